"""`create_navrl_model`: a network from specs, that saves, loads, uploads and downloads itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from navrl.errors import ConfigError, StateError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.io.container.devices import usable_device
from navrl.model import check_weights, is_original, model_state, save_model
from navrl.rl.networks.navigation import (
    FEATURES,
    STATE,
    NetworkSettings,
    RowLayout,
    build_network,
    from_upstream,
)
from navrl.sim.settings import NavigationSettings
from navrl.tracking.wandb_models import fetch_model_from_wandb, upload_model_file_to_wandb

__all__ = ["NavRLModel", "create_navrl_model"]


class NavRLModel:
    """A policy's network and where it is kept. `network` is an ordinary torch module."""

    def __init__(
        self,
        network: nn.Module,
        settings: NetworkSettings,
        task: NavigationSettings,
        device: torch.device,
    ) -> None:
        self.network, self.settings, self.task, self.device = network, settings, task, device

    def save_checkpoint(
        self,
        filepath: str | os.PathLike[str],
        step: int,
        upload_to_wandb: bool = False,
        wandb_alias: str = "latest",
        eval_metrics: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a model file that `navrl eval` can fly, queue that very file for W&B if asked to,
        and return its path.
        """
        card = {"iteration": int(step), "evaluation": dict(eval_metrics or {})}
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(path, model_state(self.network, self.settings, self.task, card))
        if upload_to_wandb:
            parameters = sum(parameter.numel() for parameter in self.network.parameters())
            upload_model_file_to_wandb(path, step, eval_metrics, wandb_alias, parameters=parameters)
        return path

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Take the weights of a model file, a training checkpoint, a plain state_dict or a file of
        the original NavRL.

        Returns what else the file holds.

        Raises:
            CheckpointError: there is no such file.
            ContainerError: it is damaged.
            StateError: its weights do not fit this network; the network is unchanged.
        """
        state = load_checkpoint(path)
        if not isinstance(state, dict):
            raise StateError(f"{path} holds a {type(state).__name__}; expected weights by name")
        try:
            weights, rest = _weights_of(state)
            own = self.network.state_dict()
            check_weights(own, weights, f"{path} does not fit this network (cfg.network)")
        except ConfigError as error:
            raise StateError(str(error)) from error
        self.network.load_state_dict(weights)
        return rest

    def load_from_wandb(
        self, reference: str, download_dir: str | os.PathLike[str] = "models"
    ) -> dict[str, Any]:
        """Take the weights of `user/project/model:best`, and return what else its file holds."""
        return self.load_checkpoint(fetch_model_from_wandb(reference, download_dir))


def create_navrl_model(
    cfg: Any = None, obs_spec: Any = None, act_spec: Any = None, device: str | torch.device = "cpu"
) -> NavRLModel:
    """Return a model for what a policy sees and does.

    Args:
        cfg: the configuration (`navrl.config.Config`, or a mapping with `network`); None for the
            defaults.
        obs_spec: a TorchRL spec, or nested mappings, with `lidar`, `dynamic_obstacle` and `state`;
            None for those of cfg.
        act_spec: a spec of three velocities; None for that.
        device: where the network lives.

    Raises:
        ConfigError: a spec is of another shape than a policy of this kind can see or do, or a
            setting is unknown.
    """
    settings, task = _settings_of(cfg)
    layout = RowLayout(
        round(360 / task.sensor.lidar_hres), task.sensor.lidar_vbeams, task.env.num_observed
    )
    if obs_spec is not None:
        layout = _layout_of(obs_spec)
    acted = (3,) if act_spec is None else tuple(getattr(act_spec, "shape", ()))
    if acted[-1:] != (3,):
        raise ConfigError(f"act_spec has the shape {acted}; expected three velocities last")
    place = usable_device(device)
    return NavRLModel(build_network(settings, layout).to(place), settings, task, place)


def _settings_of(cfg: Any) -> tuple[NetworkSettings, NavigationSettings]:
    if cfg is None:
        return NetworkSettings(), NavigationSettings()
    network = (
        cfg.get("network", {})
        if isinstance(cfg, Mapping)
        else getattr(cfg, "network", NetworkSettings())
    )
    if not isinstance(network, NetworkSettings):
        try:
            network = NetworkSettings(**dict(network))
        except TypeError as error:
            raise ConfigError(
                f"cfg.network: {error}; there are {', '.join(vars(NetworkSettings()))}"
            ) from error
    network.check()
    task = getattr(cfg, "task", None)
    return network, task if isinstance(task, NavigationSettings) else NavigationSettings()


def _layout_of(spec: Any) -> RowLayout:
    shapes = dict(_leaves(spec)) if hasattr(spec, "items") else {}
    for name, last in (("lidar", None), ("dynamic_obstacle", FEATURES), ("state", STATE)):
        if name not in shapes:
            raise ConfigError(f"obs_spec has no {name!r}; there are {', '.join(shapes) or 'none'}")
        if last is not None and shapes[name][-1] != last:
            raise ConfigError(
                f"obs_spec: {name} has the shape {shapes[name]}; expected {last} numbers last"
            )
    return RowLayout(shapes["lidar"][-2], shapes["lidar"][-1], shapes["dynamic_obstacle"][-2])


def _leaves(spec: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every part of nested specs."""
    for name, part in spec.items():
        if hasattr(part, "items"):
            yield from _leaves(part)
        else:
            yield str(name), tuple(part.shape)


def _weights_of(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights in a file of any of the kinds that hold them, and the rest."""
    if is_original(state):
        return from_upstream({key: state[key] for key in state if isinstance(key, str)})
    for key in ("model_state_dict", "parameters", "network"):
        if isinstance(state.get(key), dict) and any(
            isinstance(value, torch.Tensor) for value in state[key].values()
        ):
            return state[key], {name: value for name, value in state.items() if name != key}
    return state, {}
