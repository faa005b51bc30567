"""The configuration: a dataclass of everything, presets in `conf/`, dotted overrides on top."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from navrl.errors import ConfigError, nearest_name
from navrl.sim.settings import NavigationSettings


@dataclass
class FlightSettings:
    """Keys `flight.*`: the flights that are shown at the end."""

    episodes: int = 1024  # in all, spread evenly over the worlds
    worlds: int = 16
    map_seed: int = 1_000_000  # far from the maps of training
    recorded: int = 24  # flights in the picture and the animation, all in the first world
    animation: bool = True

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        limits = {"episodes": (1, 1 << 20), "worlds": (1, 4096), "map_seed": (0, 2**32 - 4097), "recorded": (0, 4096)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"flight.{name} is {getattr(self, name)}; expected {low} to {high}")


@dataclass
class Config(NavigationSettings):
    """All settings: those of the task, and those of the run."""

    seed: int = 0
    flight: FlightSettings = field(default_factory=FlightSettings)

    @property
    def task(self) -> NavigationSettings:
        """The settings of the navigation task alone."""
        return NavigationSettings(self.env, self.env_dyn, self.sensor, self.drone, self.reward, self.sim)


def load_config(overrides: Sequence[str] = ()) -> Config:
    """Return the configuration after overrides such as `env.num_envs=256` or `env=navrl_exact`.

    Raises:
        ConfigError: an override is malformed, names no setting (the nearest one is named), or has an impossible value.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name="schema", node=Config)
    for override in overrides:
        if override.startswith(("+", "~", "=")):
            raise ConfigError(_explain_added(override))
    with initialize_config_module("navrl.conf", version_base="1.3"):
        try:
            composed = compose("config", overrides=list(overrides))
            config = OmegaConf.to_object(composed)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_explain(str(error), overrides)) from error
    if not isinstance(config, Config):
        raise ConfigError(f"the configuration became {type(config).__name__}; expected {Config.__name__}")
    config.task.check()
    config.flight.check()
    return config


def as_yaml(config: Config) -> str:
    """Return the configuration as YAML text."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _explain_added(override: str) -> str:
    key = override.lstrip("+~").split("=", 1)[0]
    known = [*NavigationSettings.keys(), *_own_keys()]
    return f"override {override!r} adds or removes a setting; expected key=value of a known one.{nearest_name(key, known)}"


def _explain(message: str, overrides: Sequence[str]) -> str:
    """Return Hydra's complaint in one sentence, with the nearest setting where a key is unknown."""
    known = [*NavigationSettings.keys(), *_own_keys(), "env"]
    for override in overrides:
        key = override.split("=", 1)[0].lstrip("+~")
        if "=" not in override:
            return f"override {override!r} has no value; expected key=value, such as env.num_envs=256"
        if key not in known and re.search(rf"\b{re.escape(key.split('.')[-1])}\b", message):
            return f"unknown setting {key!r}.{nearest_name(key, known)} `navrl train --cfg` lists all"
    return " ".join(message.split())


def _own_keys() -> list[str]:
    own: dict[str, Any] = {"flight": FlightSettings()}
    return ["seed", *(f"{group}.{key}" for group, value in own.items() for key in vars(value))]
