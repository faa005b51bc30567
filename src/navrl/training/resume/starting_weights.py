"""Starting a training from the weights of a model: reads them and fits the settings to them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navrl.config import ALGORITHMS, Config, NavigationSettings
from navrl.environments.table import NOTHING_GIVEN, Given, find_task
from navrl.errors import ConfigError
from navrl.evaluation import INTERFACE
from navrl.models import KIND, load_model, network_settings
from navrl.navigation_observation import OBSTACLE
from navrl.rl.networks.navigation import from_upstream
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.rl.networks.relative_motion import RELATIVE

__all__ = ["Weights", "checked_weights", "fitted_config", "read_weights"]

# These determine the shapes of the layers. The rest of INTERFACE may differ from the model's.
SHAPES = ("sensor.lidar_hres", "sensor.lidar_vbeams", "env.num_observed")
RELATIVE_MOTION = ("network.relative_motion", True)  # any policy can be given it
OBSTACLE_LAYER = "dynamic.0.weight"  # reads the obstacles, and behind them their relative motion


@dataclass(frozen=True)
class Weights:
    """The weights of a policy by name, and its settings; None if the file does not hold them."""

    parameters: dict[str, Tensor]
    network: NetworkSettings | None = None
    task: NavigationSettings | None = None


def read_weights(file: Path, state: Any, subject: str) -> Weights:
    """Return the weights in a model of navrl, a file of the original NavRL, or a plain state dict.

    `state` is the contents of the file.

    Raises:
        ConfigError: it holds no weights.
    """
    if isinstance(state, Mapping) and "environment" in state and state.get("kind") == KIND:
        return Weights(state["parameters"], network_settings(state["network"]))
    if isinstance(state, Mapping) and state.get("kind") == KIND:
        applied, task, _ = load_model(file)  # checks every part
        return Weights(
            dict(applied.network.state_dict()), NetworkSettings(**state["network"]), task
        )
    if isinstance(state, Mapping) and isinstance(state.get("model_state_dict"), Mapping):
        state = state["model_state_dict"]
    items = state.items() if isinstance(state, Mapping) else ()
    named = {key: value for key, value in items if isinstance(key, str)}
    if any(name.startswith("feature_extractor.module.") for name in named):
        parameters, _ = from_upstream(named)
        return Weights(parameters, NetworkSettings(circular=False, distance_scale=1.0))
    if not any(isinstance(value, Tensor) for value in named.values()):
        raise ConfigError(
            f"{subject} holds neither a training state nor the weights of a policy; expected a "
            "checkpoint or a model that `navrl train` wrote, or a state_dict"
        )
    return Weights(named)


def fitted_config(
    config: Config,
    typed: Collection[str],
    weights: Weights,
    subject: str,
    given: Given = NOTHING_GIVEN,
) -> tuple[Config, Weights, list[str]]:
    """Return settings and weights that fit each other, and the settings that were changed.

    Settings that were not typed are taken from the model.

    Raises:
        ConfigError: a typed setting does not fit; all such settings are named.
    """
    fitted = copy.deepcopy(config)
    if weights.network is not None:
        _check_distribution(config, weights.network, subject)
    misfits, changes = [], []
    for key, value in _wanted(weights).items():
        found = _value(config, key)
        if found == value:
            continue
        if key not in typed and names_code(key, value):
            misfits.append(
                f"{key} is {value!r} in the model, and code that a file names is not run"
            )
        elif key not in typed:
            group, name = key.split(".")
            setattr(getattr(fitted, group), name, copy.deepcopy(value))
            changes.append(f"{key}={value}")
        elif key in SHAPES or (key.startswith("network.") and (key, found) != RELATIVE_MOTION):
            misfits.append(f"{key} is {found!r}, the model has {value!r}")
    if misfits:
        raise ConfigError(
            f"the weights of {subject} do not fit: {'; '.join(misfits)}. Leave out these settings "
            "and the groups that set them, type those that name code, or start from another model"
        )
    fitted.check()
    return fitted, checked_weights(fitted, weights, subject, given), changes


def _grown(weights: Weights, config: Config) -> Weights:
    """Return weights for a network that is given relative motion, where the settings ask for it.

    A policy without it gets zeros as the weights of these inputs, so that it acts as before.
    """
    layer = weights.parameters.get(OBSTACLE_LAYER)
    observed = config.env.num_observed
    if (
        not config.network.relative_motion
        or not isinstance(layer, Tensor)
        or layer.ndim != 2
        or layer.shape[1] != observed * len(OBSTACLE)
    ):
        return weights
    wider = torch.nn.functional.pad(layer, (0, observed * len(RELATIVE)))
    return replace(weights, parameters={**weights.parameters, OBSTACLE_LAYER: wider})


def _wanted(weights: Weights) -> dict[str, Any]:
    """Return the settings that the model was trained with, by their keys."""
    wanted: dict[str, Any] = {}
    if weights.network is not None:
        wanted |= {f"network.{name}": value for name, value in vars(weights.network).items()}
    if weights.task is not None:
        wanted |= {key: _value(weights.task, key) for key in INTERFACE}
    return wanted


def checked_weights(
    config: Config, weights: Weights, subject: str, given: Given = NOTHING_GIVEN
) -> Weights:
    """Return the weights for the network of the settings.

    Raises:
        ConfigError: one does not fit; the message names it.
    """
    weights = _grown(weights, config)
    with torch.random.fork_rng(devices=[]):
        own = find_task(config, given.env).new_network(given.network).state_dict()
    advice = f"check network.* and {', '.join(SHAPES)}"
    _check_names(own, weights.parameters, subject, advice)
    for name, expected in own.items():
        value = weights.parameters[name]
        if not isinstance(value, Tensor) or value.shape != expected.shape:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"{subject}: parameter {name!r} is {found!s:.80}, the network of these "
                "settings has "
                f"{tuple(expected.shape)}; {advice}"
            )
        if not torch.isfinite(value).all():
            raise ConfigError(
                f"{subject}: parameter {name!r} holds NaN or infinite values; use an earlier model"
            )
    return weights


def _check_names(
    own: Mapping[str, Any], parameters: Mapping[str, Any], subject: str, advice: str
) -> None:
    for kind, names in (
        ("lacks", own.keys() - parameters),
        ("has an unknown", parameters.keys() - own),
    ):
        if names:
            raise ConfigError(
                f"{subject} {kind} parameter {min(names)!a:.80} ({len(names)} such); {advice}"
            )


def _check_distribution(config: Config, network: NetworkSettings, subject: str) -> None:
    """Refuse the model of another algorithm: its heads parametrise another distribution."""
    if network.distribution != ALGORITHMS[config.algorithm]:
        other = next(
            (name for name, kind in ALGORITHMS.items() if kind == network.distribution), "another"
        )
        raise ConfigError(
            f"{subject} was trained with algo={other} "
            f"(network.distribution={network.distribution}), "
            f"this training has algo={config.algorithm}: use algo={other}, or another model"
        )


def names_code(key: str, value: Any) -> bool:
    """Return whether a setting names Python code, which is run only if the user typed it."""
    if key == "network.encoders":
        return any(":" in str(name) for name in value.values())
    if key.startswith("network.encoders."):
        return ":" in str(value)
    return bool(value) and (
        key in ("network.target", "env.target") or (key == "env.id" and ":" in str(value))
    )


def _value(settings: NavigationSettings, key: str) -> Any:
    group, name = key.split(".")
    return getattr(getattr(settings, group), name)
