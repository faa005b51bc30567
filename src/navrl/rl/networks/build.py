"""The network of a policy, by its settings and by what its environment shows and takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from navrl.errors import ConfigError, shown
from navrl.navigation_observation import OBSTACLE, STATE
from navrl.observation import ObservationLayout
from navrl.rl.action_space import ActionSpace, Box
from navrl.rl.networks.general import GeneralNetwork, encoders_for
from navrl.rl.networks.navigation import build_network
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.targets import find_target

__all__ = ["MakeFeatures", "build_policy_network", "is_navigation"]

MakeFeatures = Callable[[ObservationLayout], nn.Module]  # parts by name, to (N, F) or two of them

NAVIGATION = ("lidar", "dynamic_obstacle", "state", "direction")


def build_policy_network(
    settings: NetworkSettings,
    observation: ObservationLayout,
    action: ActionSpace,
    make: MakeFeatures | None = None,
) -> nn.Module:
    """Return a network with random weights, from packed observations to heads.

    Args:
        settings: keys `network.*`.
        observation: what the environment shows.
        action: what it takes.
        make: makes the features from the observation, instead of `network.target`.

    Raises:
        ConfigError: the settings do not fit the observation.
    """
    if make is None and settings.target:
        make = find_target("network.target", settings.target)
    if make is not None:
        return GeneralNetwork(observation, action, _own(make, observation))
    if is_navigation(observation, action):
        return build_network(settings, observation)
    return GeneralNetwork(
        observation, action, encoders_for(observation, settings.hidden, settings.encoders)
    )


def is_navigation(observation: ObservationLayout, action: ActionSpace) -> bool:
    """Return whether an environment shows and takes exactly what the navigation task does."""
    shapes = observation.shapes
    return (
        tuple(shapes) == NAVIGATION
        and shapes["dynamic_obstacle"][-1] == len(OBSTACLE)
        and shapes["state"] == (len(STATE),)
        and isinstance(action, Box)
        and action.size == 3
        and action.bounded
    )


def _own(make: Callable[[ObservationLayout], Any], observation: ObservationLayout) -> nn.Module:
    made = make(observation)
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"network.target made {shown(made)}; expected a torch.nn.Module from parts by name to "
            "features"
        )
    return made
