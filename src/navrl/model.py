"""Model files: a policy with all that is needed to fly it, in a container of a few hundred kilobytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from navrl.errors import ConfigError
from navrl.io.checkpoint import load_checkpoint, save_checkpoint
from navrl.rl.accelerate import AppliedNetwork, accelerate
from navrl.rl.network import NavigationNetwork, NetworkSettings, RowLayout, build_network, from_upstream
from navrl.sim.settings import NavigationSettings

KIND = "navrl.policy"


def model_state(
    network: nn.Module, settings: NetworkSettings, task: NavigationSettings, card: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a model file holds: weights, how they are connected, the task they were trained on, and its card."""
    return {
        "kind": KIND,
        "network": vars(settings).copy(),
        "parameters": {name: value.detach().cpu().clone() for name, value in network.state_dict().items()},
        "task": task.as_dict(),
        "card": dict(card),
    }


def save_model(path: Path, state: Mapping[str, Any]) -> None:
    """Write a model file: whole or not at all."""
    save_checkpoint(dict(state), path)


def load_model(path: Path) -> tuple[AppliedNetwork, NavigationSettings, dict[str, Any]]:
    """Return a model's network ready to fly, the task it was trained on, and its card.

    The file may be a model, a checkpoint of a training, or one of the original NavRL.

    Raises:
        ConfigError: the file is no model.
        ContainerError: the file is damaged.
    """
    state = load_checkpoint(path)
    if isinstance(state, dict) and isinstance(state.get("config"), dict) and "ranks" in state:
        state = _model_of_training(state)
    if isinstance(state, dict) and any(name.startswith("feature_extractor.module.") for name in state if isinstance(name, str)):
        return _load_original(state)
    if not isinstance(state, dict) or state.get("kind") != KIND:
        raise ConfigError(f"{path} is no model of navrl; expected a file that `navrl train` wrote, such as RUN/model.pt")
    task = NavigationSettings.from_mapping(state["task"])
    layout = RowLayout(round(360 / task.sensor.lidar_hres), task.sensor.lidar_vbeams, task.env.num_observed)
    network = build_network(NetworkSettings(**state["network"]), layout)
    network.load_state_dict(state["parameters"])
    return accelerate(network.requires_grad_(False)), task, state["card"]


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


def _load_original(state: Mapping[str, Any]) -> tuple[AppliedNetwork, NavigationSettings, dict[str, Any]]:
    """Return the network of a checkpoint that the original NavRL wrote."""
    parameters, _ = from_upstream(state)
    network = NavigationNetwork()
    network.load_state_dict(parameters)
    return accelerate(network.requires_grad_(False)), NavigationSettings(), {"origin": "a checkpoint of the original NavRL"}
