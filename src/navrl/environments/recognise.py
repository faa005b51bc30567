"""Any environment under our contract, whatever library it is of."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from navrl.errors import ConfigError
from navrl.rl.environment import Environment

__all__ = ["as_environment", "call_factory", "is_environment"]

EXPECTED = (
    "a navrl.rl.environment.Environment, a Gymnasium Env or VectorEnv, a TorchRL EnvBase or an "
    "rsl_rl VecEnv"
)


def as_environment(value: Any) -> Environment:
    """Return an environment of any supported library under our contract.

    Raises:
        ConfigError: it is of none of them; the message names them.
    """
    if isinstance(value, Environment):
        return value
    if _is_of("gymnasium.vector", "VectorEnv", value):
        from navrl.environments.from_gymnasium import GymnasiumEnvironment

        return GymnasiumEnvironment(value)
    if _is_of("gymnasium", "Env", value):
        from navrl.environments.from_gymnasium import make_gymnasium

        return make_gymnasium(lambda: value, 1)
    if _is_of("torchrl.envs", "EnvBase", value):
        from navrl.environments.from_torchrl import TorchRLEnvironment

        return TorchRLEnvironment(value)
    from navrl.environments.from_rsl_rl import RslRlEnvironment, is_vec_env

    if is_vec_env(value):
        return RslRlEnvironment(value)
    raise ConfigError(f"an environment is a {type(value).__name__}; expected {EXPECTED}")


def is_environment(value: Any) -> bool:
    """Return whether a value is an environment of any supported library, not what makes one."""
    from navrl.environments.from_rsl_rl import is_vec_env

    known = (("gymnasium.vector", "VectorEnv"), ("gymnasium", "Env"), ("torchrl.envs", "EnvBase"))
    if isinstance(value, type):
        return False
    return (
        isinstance(value, Environment)
        or any(_is_of(module, name, value) for module, name in known)
        or is_vec_env(value)
    )


def call_factory(
    factory: Callable[..., Any], num_envs: int, seed: int, options: Mapping[str, Any]
) -> Environment:
    """Return what a factory makes, under our contract, with `num_envs` environments.

    The factory is given `num_envs` and `seed` if it takes arguments of these names, and all
    options. One that makes single Gymnasium or TorchRL environments is called once for each.
    """
    known = _parameters(factory)
    offered = {"num_envs": num_envs, "seed": seed}
    arguments = {name: value for name, value in offered.items() if name in known} | dict(options)
    first = factory(**arguments)
    if _is_of("gymnasium", "Env", first):
        from navrl.environments.from_gymnasium import make_gymnasium

        ready = [first]  # the first one has been made

        def make_one() -> Any:
            return ready.pop() if ready else factory(**arguments)

        return make_gymnasium(make_one, num_envs)
    if _is_of("torchrl.envs", "EnvBase", first) and len(first.batch_size) == 0:
        from torchrl.envs import SerialEnv

        first.close()
        return as_environment(SerialEnv(num_envs, lambda: factory(**arguments)))
    env = as_environment(first)
    if env.num_envs != num_envs:
        raise ConfigError(
            f"{getattr(factory, '__qualname__', factory)!s} made {env.num_envs} environments; "
            f"expected env.num_envs={num_envs}: let it take an argument num_envs, or type "
            f"env.num_envs={env.num_envs} processes=1"
        )
    return env


def _is_of(module: str, name: str, value: Any) -> bool:
    """Return whether a value is of a library's class; without loading the library."""
    loaded = sys.modules.get(module)  # if it is not loaded, no such value exists
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _parameters(factory: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return set()
