"""Policies of any environment in files: what `navrl train` leaves of a foreign task.

The navigation task's own policies are in `navrl.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from navrl.errors import ConfigError, shown
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.models import KIND, check_weights, network_settings, policy_weights
from navrl.observation import ObservationLayout
from navrl.rl.accelerate import accelerate
from navrl.rl.action_space import ActionSpace, action_space_from
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.networks.build import MakeFeatures, build_policy_network
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.rl.policy import NetworkPolicy

__all__ = ["GeneralModel", "is_general", "load_general_model"]

WIDEST = 1 << 24  # numbers of an observation that a file may claim


@dataclass(frozen=True)
class GeneralModel:
    """A policy of a file, and what the file says about its environment and its training."""

    policy: NetworkPolicy
    observation: ObservationLayout
    action: ActionSpace
    environment: dict[str, Any]  # name, id, target, options, num_envs of `env.*`
    card: dict[str, Any]


def is_general(state: Any) -> bool:
    """Return whether a file holds a policy, or the training, of another task than navigation."""
    return isinstance(state, Mapping) and "environment" in _model_of(state)


def load_general_model(
    path: Path, network: MakeFeatures | None = None, *, target: str = ""
) -> GeneralModel:
    """Return the policy of a model file or of a training checkpoint of a foreign task.

    Code that a file names is never run: a network of the user's own must be given again.

    Args:
        path: of the file.
        network: makes the features of the network.
        target: `module:Class` of the same, as the user has typed it.

    Raises:
        ConfigError: a part of the file is missing or wrong, or it needs a network that is not
            given; the message says which.
        ContainerError: the file is damaged.
    """
    state = load_checkpoint(path)
    if not is_general(state):
        raise ConfigError(f"{path} holds no policy of an environment; expected RUN/model.pt")
    state = _model_of(state)
    try:
        settings = network_settings(_mapping(state, "network"))
        _refuse_code(settings, network, target)
        observation = _observation_of(state.get("observation"))
        action = action_space_from(_mapping(state, "action"))
        with torch.random.fork_rng(devices=[]):
            built = build_policy_network(settings, observation, action, network)
        weights = _mapping(state, "parameters")
        check_weights(built.state_dict(), weights, "its weights")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    built.load_state_dict(weights)
    policy = NetworkPolicy(
        accelerate(built.requires_grad_(False).eval()), observation, distribution_for(action)
    )
    return GeneralModel(
        policy, observation, action, _mapping(state, "environment"), _mapping(state, "card")
    )


def _model_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model in a training checkpoint, or the state as it is."""
    if state.get("kind") == KIND:
        return state
    config, record = state.get("config"), state.get("record")
    if not isinstance(config, Mapping) or not isinstance(record, Mapping):
        return {}
    card: dict[str, Any] = {
        "iteration": state.get("iteration"),
        "seed": config.get("seed"),
        "evaluation": {},
    }
    weights = policy_weights(state)
    return {**record, "network": config.get("network"), "parameters": weights, "card": card}


def _refuse_code(settings: NetworkSettings, network: MakeFeatures | None, target: str) -> None:
    named = [settings.target, *(name for name in settings.encoders.values() if ":" in name)]
    for name in filter(None, named):
        if network is None and target != name:
            raise ConfigError(
                f"it needs the network {shown(name)}, and code that a file names is not run; if "
                f"you trust it, type network.target={name} too, or pass network="
            )


def _mapping(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = state.get(name)
    if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
        raise ConfigError(f"{name!r} is {shown(part)}; expected values by name")
    return part


def _observation_of(values: Any) -> ObservationLayout:
    try:
        observation = ObservationLayout.from_list(values)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(f"'observation' is {shown(values)}; expected its parts") from error
    if observation.width > WIDEST:
        raise ConfigError(f"'observation' has {observation.width} numbers; expected fewer")
    return observation
