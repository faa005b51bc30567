"""A policy in a file: save it, load it, describe it.

A model file holds a policy's weights, how its network is built, the task it was trained on, and
its card. `create_navrl_model` gives a network that saves, loads, uploads and downloads itself.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from navrl.errors import ConfigError, StateError, nearest_name, shown
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.io.container.devices import usable_device
from navrl.navigation_observation import OBSTACLE, STATE, navigation_layout
from navrl.observation import ObservationLayout
from navrl.rl.accelerate import AppliedNetwork, accelerate
from navrl.rl.finite import check_finite
from navrl.rl.networks.navigation import NavigationNetwork, build_network, from_upstream
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import observation_layout

__all__ = [
    "KIND",
    "ForeignModelError",
    "NavRLModel",
    "check_weights",
    "create_navrl_model",
    "is_original",
    "load_model",
    "model_contents",
    "model_state",
    "network_settings",
    "policy_weights",
    "save_model",
]

KIND = "navrl.policy"
WEIGHTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHICH_ENVIRONMENT = ("name", "id", "target", "options")  # of `env.*`; not the navigation task's
LONGEST_WORD = 60  # characters of a setting


class ForeignModelError(ConfigError):
    """A model file holds a policy of another environment than the navigation task."""


def model_state(
    network: nn.Module,
    settings: NetworkSettings,
    task: NavigationSettings | Mapping[str, Any],
    card: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of a model file: weights, network settings, task and card.

    Args:
        network: whose weights these are.
        settings: of the network.
        task: the navigation task, or what `navrl.environments.task.Task.record` says.
        card: how the model came to be.
    """
    record = {"task": task.as_dict()} if isinstance(task, NavigationSettings) else dict(task)
    return {
        "kind": KIND,
        "network": copy.deepcopy(vars(settings)),
        "parameters": {
            name: value.detach().cpu().clone() for name, value in network.state_dict().items()
        },
        **record,
        "card": dict(card),
    }


def save_model(path: Path, state: Mapping[str, Any]) -> None:
    """Write a model file, complete or not at all."""
    save_checkpoint(dict(state), path)


def load_model(path: Path) -> tuple[AppliedNetwork, NavigationSettings, dict[str, Any]]:
    """Return a model's network ready to fly, the task it was trained on, and its card.

    The file may be a model, a checkpoint of a training, or one of the original NavRL. Every part is
    checked before memory of its size is allocated.

    Raises:
        ConfigError: the file is not a model, or a part of it is missing, of the wrong type, out of
            range, or not finite; the message names the file and the part.
        ContainerError: the file is damaged.
    """
    state = model_contents(path)
    if is_original(state):
        return _load_original(path, state)
    if not isinstance(state, dict) or state.get("kind") != KIND:
        raise ConfigError(
            f"{path} is not a model of navrl; expected a file written by `navrl train`, such as "
            "RUN/model.pt"
        )
    if "environment" in state:
        environment = shown(state["environment"])
        raise ForeignModelError(
            f"{path} is a policy of another environment, {environment}; expected one of the "
            "navigation task. navrl.load_policy and `navrl eval` take it"
        )
    network, parameters, task, card = (
        _part(path, state, name) for name in ("network", "parameters", "task", "card")
    )
    with _about(path):
        settings, trained = network_settings(network), NavigationSettings.from_mapping(task)
        trained.check()
        built = build_network(settings, observation_layout(trained))
    check_weights(built.state_dict(), parameters, f"{path}")
    built.load_state_dict(parameters)
    return accelerate(built.requires_grad_(False)), trained, card


def model_contents(path: Path) -> Any:
    """Return what a model file holds, or the model in a checkpoint of a training; not checked."""
    state = load_checkpoint(path)
    of_training = isinstance(state, dict) and isinstance(state.get("config"), dict)
    return _model_of_training(state) if of_training and "ranks" in state else state


def is_original(state: Any) -> bool:
    """Return whether a state is a checkpoint of the original NavRL."""
    return isinstance(state, dict) and any(
        isinstance(name, str) and name.startswith("feature_extractor.module.") for name in state
    )


def check_weights(own: Mapping[str, Tensor], weights: Any, subject: str) -> None:
    """Raise a ConfigError that names the first of `weights` that does not fit a network.

    Args:
        own: the network's weights.
        weights: those to load.
        subject: how the error begins.
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(f"{subject}: the weights are {shown(weights)}; expected tensors by name")
    _check_names(own, weights, subject)
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


def _check_names(own: Mapping[str, Tensor], weights: Mapping[Any, Any], subject: str) -> None:
    for kind, names in (
        ("no", own.keys() - weights.keys()),
        ("an unknown", weights.keys() - own.keys()),
    ):
        if names:
            first = shown(min(names, key=str))
            more = f" ({len(names)} such)" if len(names) > 1 else ""
            raise ConfigError(
                f"{subject}: has {kind} parameter {first}{more}; expected those of its network"
            )


def _part(path: Path, state: Mapping[str, Any], name: str) -> dict[str, Any]:
    if name not in state:
        raise ConfigError(f"{path}: has no {name!r}; expected a file written by `navrl train`")
    part = state[name]
    if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
        raise ConfigError(f"{path}: {name!r} is {shown(part)}; expected values by name")
    return part


def network_settings(values: Mapping[str, Any]) -> NetworkSettings:
    """Return the settings of a network that a file holds, checked."""
    settings = NetworkSettings()
    for name, value in values.items():
        if name not in vars(settings):
            near = nearest_name(name, vars(settings))
            raise ConfigError(f"unknown setting 'network.{name[:60]}'.{near}")
        kind = type(getattr(settings, name))
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or not _is_small(value):
            raise ConfigError(f"network.{name} is {shown(value)}; expected {kind.__name__}")
        setattr(settings, name, value)
    settings.check()
    return settings


def _is_small(value: Any) -> bool:
    """Return whether a setting of a file is of a size that settings have."""
    if isinstance(value, dict):
        return len(value) <= LONGEST_WORD and all(map(_is_small, (*value, *value.values())))
    if isinstance(value, list):
        return len(value) <= LONGEST_WORD and all(map(_is_small, value))
    if isinstance(value, str):
        return len(value) <= LONGEST_WORD
    return isinstance(value, int | float) and abs(value) <= 1e9


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Prefix the message of a ConfigError with the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _model_of_training(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model in a checkpoint of a training; missing parts stay missing."""
    if "record" in state:
        return {"kind": KIND, **state["record"]}
    config, groups = state["config"], NavigationSettings().as_dict()
    parts = {
        "network": config.get("network"),
        "parameters": policy_weights(state),
        "task": {group: _task_settings(config[group]) for group in groups if group in config},
        "card": {"iteration": state.get("iteration"), "seed": config.get("seed"), "evaluation": {}}
        | _decisions(state),
    }
    return {"kind": KIND} | {name: part for name, part in parts.items() if part is not None}


def policy_weights(state: Mapping[str, Any]) -> Any:
    """Return the weights that a checkpoint of a training flies with; None: it has none.

    The average of the weights, where there is one: that is what evaluations measure.
    """
    kept = (state.get(name) for name in ("average", "model_state_dict", "network"))
    return next((weights for weights in kept if weights is not None), None)


def _decisions(state: Mapping[str, Any]) -> dict[str, int]:
    """Return how many decisions a checkpoint's training had learnt from, if it says so."""
    try:
        config = state["config"]
        algorithm = config["sac" if config.get("algorithm") == "sac" else "algo"]
        batch = config["env"]["num_envs"] * algorithm["training_frame_num"]
        return {"frames": int(state["iteration"] * batch)}
    except (KeyError, TypeError, ValueError, OverflowError):
        return {}


def _task_settings(group: Any) -> Any:
    """Return a group of a training's settings without those that say which environment it is."""
    if not isinstance(group, Mapping):
        return group
    return {key: value for key, value in group.items() if key not in WHICH_ENVIRONMENT}


def _load_original(
    path: Path, state: Mapping[Any, Any]
) -> tuple[AppliedNetwork, NavigationSettings, dict[str, Any]]:
    """Return the network of a checkpoint of the original NavRL."""
    try:
        parameters, _ = from_upstream({key: state[key] for key in state if isinstance(key, str)})
    except StateError as error:
        raise ConfigError(f"{path}: {error}") from error
    network = NavigationNetwork()
    check_weights(network.state_dict(), parameters, f"{path}")
    network.load_state_dict(parameters)
    card = {"origin": "a checkpoint of the original NavRL"}
    return accelerate(network.requires_grad_(False)), NavigationSettings(), card


class NavRLModel:
    """A policy's network that saves, loads, uploads and downloads itself.

    `network` is an ordinary torch module.
    """

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
        """Write a model file that `navrl eval` can fly, and return its path.

        With `upload_to_wandb`, the file is also queued for W&B.
        """
        card = {"iteration": int(step), "evaluation": dict(eval_metrics or {})}
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(path, model_state(self.network, self.settings, self.task, card))
        if upload_to_wandb:
            from navrl.tracking.wandb_uploads import upload_model_file_to_wandb

            parameters = sum(parameter.numel() for parameter in self.network.parameters())
            upload_model_file_to_wandb(path, step, eval_metrics, wandb_alias, parameters=parameters)
        return path

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Load the weights of a file, and return what else the file holds.

        The file may be a model, a checkpoint of a training, a plain state_dict or a file of the
        original NavRL.

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
            check_weights(own, weights, f"{path} does not fit this network ({self._apart(state)})")
        except ConfigError as error:
            raise StateError(str(error)) from error
        self.network.load_state_dict(weights)
        return rest

    def _apart(self, state: Mapping[str, Any]) -> str:
        """Return the settings in which the network of a file differs from this one, in words."""
        theirs, own = state.get("network"), vars(self.settings)
        if not isinstance(theirs, Mapping):
            return "cfg.network"
        apart = [
            f"{name}={theirs[name]!r:.40}, not {own[name]!r:.40}"
            for name in own
            if name in theirs and theirs[name] != own[name]
        ]
        return f"cfg.network: the file has {'; '.join(apart)}" if apart else "cfg.network"

    def load_from_wandb(
        self, reference: str, download_dir: str | os.PathLike[str] = "models"
    ) -> dict[str, Any]:
        """Load the weights of `user/project/model:best`; return what else its file holds."""
        from navrl.tracking.wandb_downloads import fetch_model_from_wandb

        return self.load_checkpoint(fetch_model_from_wandb(reference, download_dir))


def create_navrl_model(
    cfg: Any = None, obs_spec: Any = None, act_spec: Any = None, device: str | torch.device = "cpu"
) -> NavRLModel:
    """Return a model for given observations and actions.

    Args:
        cfg: the configuration (`navrl.config.Config`, or a mapping with `network`); None for the
            defaults.
        obs_spec: a TorchRL spec, or nested mappings, with `lidar`, `dynamic_obstacle` and `state`;
            None for those of cfg.
        act_spec: a spec of three velocities; None for the default.
        device: of the network.

    Raises:
        ConfigError: a spec has a shape that the network does not support, or a setting is unknown.

    >>> import navrl
    >>> model = navrl.create_navrl_model()
    >>> path = model.save_checkpoint("policy.pt", step=100)
    >>> loaded = model.load_checkpoint("policy.pt")
    """
    settings, task = _settings_of(cfg)
    layout = observation_layout(task)
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


def _layout_of(spec: Any) -> ObservationLayout:
    shapes = dict(_leaves(spec)) if hasattr(spec, "items") else {}
    for name, last in (("lidar", 0), ("dynamic_obstacle", len(OBSTACLE)), ("state", len(STATE))):
        if name not in shapes:
            raise ConfigError(f"obs_spec has no {name!r}; there are {', '.join(shapes) or 'none'}")
        if last and shapes[name][-1] != last:
            raise ConfigError(
                f"obs_spec: {name} has the shape {shapes[name]}; expected {last} numbers last"
            )
    azimuths, beams = shapes["lidar"][-2:]
    return navigation_layout(azimuths, beams, shapes["dynamic_obstacle"][-2])


def _leaves(spec: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every leaf of nested specs."""
    for name, part in spec.items():
        if hasattr(part, "items"):
            yield from _leaves(part)
        else:
            yield str(name), tuple(part.shape)


def _weights_of(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights in a state of any supported kind, and the rest of it."""
    if is_original(state):
        return from_upstream({key: state[key] for key in state if isinstance(key, str)})
    for key in ("average", "model_state_dict", "parameters", "network"):
        if isinstance(state.get(key), dict) and any(
            isinstance(value, torch.Tensor) for value in state[key].values()
        ):
            return state[key], {name: value for name, value in state.items() if name != key}
    return state, {}
