"""Model files: a policy with all that is needed to fly it, in a container of a few hundred
kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from navrl.errors import ConfigError, StateError, nearest_name, shown
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.rl.accelerate import AppliedNetwork, accelerate
from navrl.rl.finite import check_finite
from navrl.rl.networks.navigation import (
    NavigationNetwork,
    NetworkSettings,
    RowLayout,
    build_network,
    from_upstream,
)
from navrl.sim.settings import NavigationSettings

KIND = "navrl.policy"
WEIGHTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LONGEST_WORD = 60  # characters of a setting


def model_state(
    network: nn.Module, settings: NetworkSettings, task: NavigationSettings, card: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a model file holds: weights, how they are connected, the task they were trained
    on, and its card.
    """
    return {
        "kind": KIND,
        "network": vars(settings).copy(),
        "parameters": {
            name: value.detach().cpu().clone() for name, value in network.state_dict().items()
        },
        "task": task.as_dict(),
        "card": dict(card),
    }


def save_model(path: Path, state: Mapping[str, Any]) -> None:
    """Write a model file: whole or not at all."""
    save_checkpoint(dict(state), path)


def load_model(path: Path) -> tuple[AppliedNetwork, NavigationSettings, dict[str, Any]]:
    """Return a model's network ready to fly, the task it was trained on, and its card.

    The file may be a model, a checkpoint of a training, or one of the original NavRL.
    Every part of the file is checked before anything of its size is allocated.

    Raises:
        ConfigError: the file is no model, or a part of it is missing, of another kind, out of its
            range, or not finite; the message names the file and the part.
        ContainerError: the file is damaged.
    """
    state = load_checkpoint(path)
    if isinstance(state, dict) and isinstance(state.get("config"), dict) and "ranks" in state:
        state = _model_of_training(state)
    if is_original(state):
        return _load_original(path, state)
    if not isinstance(state, dict) or state.get("kind") != KIND:
        raise ConfigError(
            f"{path} is no model of navrl; expected a file that `navrl train` wrote, such as "
            "RUN/model.pt"
        )
    network, parameters, task, card = (
        _part(path, state, name) for name in ("network", "parameters", "task", "card")
    )
    with _about(path):
        settings, trained = _network_settings(network), NavigationSettings.from_mapping(task)
        trained.check()
        sensor = trained.sensor
        layout = RowLayout(
            round(360 / sensor.lidar_hres), sensor.lidar_vbeams, trained.env.num_observed
        )
        built = build_network(settings, layout)
    check_weights(built.state_dict(), parameters, f"{path}")
    built.load_state_dict(parameters)
    return accelerate(built.requires_grad_(False)), trained, card


def is_original(state: Any) -> bool:
    """Tell whether a state is a checkpoint that the original NavRL wrote."""
    return isinstance(state, dict) and any(
        isinstance(name, str) and name.startswith("feature_extractor.module.") for name in state
    )


def check_weights(own: Mapping[str, Tensor], weights: Any, subject: str) -> None:
    """Raise a ConfigError that names the first weight that a network with the weights `own` cannot
    take.
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(f"{subject}: the weights are {shown(weights)}; expected tensors by name")
    for kind, names in (
        ("no", own.keys() - weights.keys()),
        ("an unknown", weights.keys() - own.keys()),
    ):
        if names:
            told = shown(min(names, key=str))
            more = f" ({len(names)} such)" if len(names) > 1 else ""
            raise ConfigError(
                f"{subject}: has {kind} parameter {told}{more}; expected those of its network"
            )
    for name, expected in own.items():
        value = weights[name]
        usable = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta
        if not usable or value.dtype not in WEIGHTS:
            found = f"{value.layout} {value.dtype}" if isinstance(value, Tensor) else shown(value)
            raise ConfigError(
                f"{subject}: parameter {name!r} is {found}; expected a dense tensor of floats"
            )
        if value.shape != expected.shape:
            shapes = f"{shown(tuple(value.shape))}; expected {tuple(expected.shape)}"
            raise ConfigError(f"{subject}: parameter {name!r} has the shape {shapes}")
    check_finite(weights, subject)


def _part(path: Path, state: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name not in state:
        raise ConfigError(f"{path}: has no {name!r}; expected a file that `navrl train` wrote")
    part = state[name]
    if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
        raise ConfigError(f"{path}: {name!r} is {shown(part)}; expected values by name")
    return part


def _network_settings(values: Mapping[str, Any]) -> NetworkSettings:
    settings = NetworkSettings()
    for name, value in values.items():
        if name not in vars(settings):
            near = nearest_name(name, vars(settings))
            raise ConfigError(f"unknown setting 'network.{name[:60]}'.{near}")
        kind = type(getattr(settings, name))
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or (len(value) > LONGEST_WORD if kind is str else abs(value) > 1e9):
            raise ConfigError(f"network.{name} is {shown(value)}; expected {kind.__name__}")
        setattr(settings, name, value)
    settings.check()
    return settings


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Begin the message of a ConfigError with the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _model_of_training(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model in a checkpoint of a training; what is missing there is missing in it."""
    config, groups = state["config"], NavigationSettings().as_dict()
    parts = {
        "network": config.get("network"),
        "parameters": state.get("model_state_dict", state.get("network")),
        "task": {group: config[group] for group in groups if group in config},
        "card": {"iteration": state.get("iteration"), "seed": config.get("seed"), "evaluation": {}},
    }
    return {"kind": KIND} | {name: part for name, part in parts.items() if part is not None}


def _load_original(
    path: Path, state: Mapping[Any, Any]
) -> tuple[AppliedNetwork, NavigationSettings, dict[str, Any]]:
    """Return the network of a checkpoint that the original NavRL wrote."""
    try:
        parameters, _ = from_upstream({key: state[key] for key in state if isinstance(key, str)})
    except StateError as error:
        raise ConfigError(f"{path}: {error}") from error
    network = NavigationNetwork()
    check_weights(network.state_dict(), parameters, f"{path}")
    network.load_state_dict(parameters)
    card = {"origin": "a checkpoint of the original NavRL"}
    return accelerate(network.requires_grad_(False)), NavigationSettings(), card
