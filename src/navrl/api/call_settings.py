"""Arguments of `navrl.train` and `navrl.evaluate`, as the settings that the commands use."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from torch import nn

from navrl.arguments import as_path
from navrl.conf.collect_settings import RAY
from navrl.conf.user_file import typed_value
from navrl.config import (
    NAVIGATION,
    Config,
    load_config,
    model_name,
    our_overrides,
    with_default_preset,
)
from navrl.environments.foreign import name_of
from navrl.environments.from_rsl_rl import is_vec_env
from navrl.environments.recognise import is_environment
from navrl.environments.table import Given, find_task
from navrl.errors import ConfigError, shown
from navrl.observation import ObservationLayout
from navrl.rl.networks.build import MakeFeatures

__all__ = ["Prepared", "Settings", "as_overrides", "console_for", "features_of", "prepare"]

_WORD = re.compile(r"[A-Za-z_][\w.:/-]*")
_SPECIAL = ("null", "true", "false", "nan", "inf")  # words that are no text

# overrides as they are typed, settings by (dotted or nested) name, or everything at once
Settings = Config | Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True)
class Prepared:
    """What a training is asked to do."""

    config: Config
    typed: list[str]  # overrides of the caller
    given: Given


def console_for(verbose: bool) -> Console:
    """Return a console for standard output: plain lines in a notebook; silent if not verbose."""
    return Console(file=sys.stdout, force_jupyter=False, quiet=not verbose)


def as_overrides(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Return settings as overrides: `{"algo": {"gamma": 0.9}}` as `["algo.gamma=0.9"]`."""
    if isinstance(settings, Mapping):
        return [*_flat(settings, "")]
    if isinstance(settings, str) or not isinstance(settings, Sequence):
        raise ConfigError(
            f"the settings are {shown(settings)}; expected a list such as ['seed=1'], a dict such "
            "as {'seed': 1}, or a navrl.config.Config"
        )
    return [*settings]


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={_value(value)}"


def _value(value: Any) -> str:
    """Return a value as it is typed; plain words without quotes, as names of groups must be."""
    plain = isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _SPECIAL
    return str(value) if plain else typed_value(value)


def prepare(settings: Settings, env: Any, network: Any, folder: Any) -> Prepared:
    """Return the settings of a training with what the caller has made itself.

    An environment or a network that other processes can import goes into the settings by its name;
    anything else is kept as an object, for a training in this process alone.

    Raises:
        ConfigError: a setting is wrong, or does not go with an environment that is given.
    """
    own = _overrides_of(env, network, folder)
    if isinstance(settings, Config):
        config, typed = _changed(settings, env, own), list[str]()
    else:
        typed = our_overrides([*as_overrides(settings), *own])
        chosen = any(override.startswith(("env=", "preset=")) for override in typed)
        general = [] if env is None or chosen else [f"env={_group_of(env)}"]
        config = load_config(with_default_preset([*general, *typed]))
        if env is not None and not any(one.startswith("registry.name=") for one in typed):
            config.registry.name = model_name(config.env, name_of(env))
    if env is not None and config.env.name == NAVIGATION:
        raise ConfigError("env is given, and the settings ask for env=navigation; leave one out")
    # no process is started that was not asked for: a script without a main guard would run twice
    config.processes = config.processes or 1
    named = bool(config.env.target) and env is not None
    given = Given(None if named else env, features_of(network))
    if _target_of(network):
        given = Given(given.env)
    check_given(config, given)
    if given.env is not None:
        find_task(config, given.env)  # checks it, and takes over its number of environments
    return Prepared(config, typed, given)


def check_given(config: Config, given: Given) -> None:
    """Raise a ConfigError if other processes would need what only this one has."""
    remote = config.collect.name == RAY
    if (config.processes > 1 or remote) and given != Given():
        what = "the environment" if given.env is not None else "the network"
        asked = "collect is ray" if remote else f"processes is {config.processes}"
        raise ConfigError(
            f"{asked}, and {what} that was given cannot be sent to other "
            "processes; expected a function or class of an importable module, or "
            f"{'collect=local' if remote else 'processes=1'}"
        )


def _overrides_of(env: Any, network: Any, folder: Any) -> list[str]:
    """Return the overrides that arguments stand for."""
    found = []
    if target := _target_of(env):
        found.append(f"env.target={target}")
    if isinstance(network, str):
        found.append(f"network.target={network}")
    elif network is not None:
        found.append(f"network.target={_label(network)}")
    if folder is not None:
        found.append(f"run_folder={typed_value(os.fspath(as_path('folder', folder)))}")
    return found


def _changed(settings: Config, env: Any, own: Sequence[str]) -> Config:
    """Return a copy of a configuration with the arguments of the call on top."""
    if settings.resume or settings.resume_checkpoint:
        raise ConfigError(
            "the configuration asks to resume a run, whose own settings would replace it; pass "
            "overrides instead, such as ['resume=auto', 'run_folder=runs/mine']"
        )
    config = copy.deepcopy(settings)
    if env is not None:
        config.env.name = config.env.name if config.env.name != NAVIGATION else "python"
    for override in own:
        key, _, value = override.partition("=")
        group, _, name = key.rpartition(".")
        setattr(getattr(config, group) if group else config, name, value.strip("'"))
    if env is not None and config.registry.name == NAVIGATION:
        config.registry.name = model_name(config.env, name_of(env))
    config.check()
    return config


def features_of(network: Any) -> MakeFeatures | None:
    """Return what makes the features of a network: the class or function, or copies of a module."""
    if network is None or isinstance(network, str):
        return None
    if isinstance(network, nn.Module):
        module = network

        def make(observation: ObservationLayout) -> nn.Module:
            return copy.deepcopy(module)

        return make
    if not callable(network):
        raise ConfigError(
            f"network is {shown(network)}; expected a class or a function that makes a "
            "torch.nn.Module from the observation, a module, or 'module:Class'"
        )
    found: MakeFeatures = network
    return found


def _group_of(env: Any) -> str:
    """Return the group of defaults that suits an environment."""
    return "rsl_rl" if is_vec_env(env) else "python"


def _target_of(value: Any) -> str:
    """Return `module:name` of a function or class that any process can import; else nothing."""
    module, name = (getattr(value, key, None) for key in ("__module__", "__qualname__"))
    if not callable(value) or is_environment(value):
        return ""
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else ""


def _label(network: Any) -> str:
    """Return `module:Class` of a network, for files: whoever loads the policy needs it again."""
    kind = network if hasattr(network, "__qualname__") else type(network)
    name = re.sub(r"[^\w.]", "", kind.__qualname__.replace("<locals>.", ""))
    return f"{kind.__module__}:{name}"
