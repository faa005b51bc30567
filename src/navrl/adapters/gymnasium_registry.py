"""The registration of the environment with Gymnasium, which navrl does not import.

`gymnasium.make("navrl:navrl/Navigation-v0")` imports `navrl` and then looks the id up. Gymnasium
has no other way to find out about a package, so importing navrl registers the id: at once if
Gymnasium is loaded, else when it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["ENVIRONMENT_ID", "register_in", "register_when_loaded"]

ENVIRONMENT_ID = "navrl/Navigation-v0"
_ADAPTER = "navrl.adapters.gymnasium"
_REGISTRATION = "gymnasium.envs.registration"


def register_in(registration: ModuleType) -> None:
    """Register the environment with Gymnasium's module of registrations; again changes nothing."""
    if ENVIRONMENT_ID not in registration.registry:
        registration.register(
            ENVIRONMENT_ID,
            entry_point=f"{_ADAPTER}:NavigationSingleEnv",
            vector_entry_point=f"{_ADAPTER}:NavigationVectorEnv",
        )


def register_when_loaded() -> None:
    """Register the environment now if Gymnasium is loaded, else as soon as it is."""
    loaded = sys.modules.get(_REGISTRATION)
    if loaded is not None and hasattr(loaded, "register"):
        register_in(loaded)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """Waits for the import of Gymnasium's module of registrations; finds nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _REGISTRATION:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            _also_register(spec.loader)
        return spec


def _also_register(loader: Any) -> None:
    """Have a module that this loader executes know the environment afterwards."""
    execute = loader.exec_module

    def execute_and_register(module: ModuleType) -> None:
        execute(module)
        register_in(module)

    loader.exec_module = execute_and_register
