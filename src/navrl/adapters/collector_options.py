"""Options of TorchRL's collector that NavigationCollector does not take, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from navrl.errors import ConfigError, nearest_name

__all__ = ["refuse_options"]

_INSTEAD = {
    "max_frames_per_traj": "set env.max_episode_length in the settings of the simulator",
    "create_env_fn": "pass the simulator or its settings as the first argument",
    "create_env_kwargs": "pass the simulator or its settings as the first argument",
    "env_device": "the simulator flies on the CPU; `device` is where the policy acts",
    "policy_device": "the simulator flies on the CPU; `device` is where the policy acts",
    "policy_factory": "call it, and pass the policy",
    "compile_policy": "pass torch.compile(policy)",
    "reset_when_done": "drones always begin anew where an episode ended",
}


def refuse_options(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise a ConfigError that names the first option and what to use instead."""
    for name in options:
        instead = f": {_INSTEAD[name]}" if name in _INSTEAD else f".{nearest_name(name, known)}"
        raise ConfigError(f"NavigationCollector does not take {name}{instead}")
