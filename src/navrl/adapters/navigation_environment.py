"""The simulator under the contract of `navrl.rl.environment`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from navrl.rl.action_space import Box
from navrl.rl.environment import Environment
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS

__all__ = ["NavigationEnvironment"]


class NavigationEnvironment(Environment):
    """All drones of a simulator as an environment; the step is the simulator's own.

    Args:
        simulator: made with `auto_reset`, and taking commands in the goal frame.
    """

    statistics = STATISTICS

    def __init__(self, simulator: NavigationEnv) -> None:
        self.simulator = simulator
        self.num_envs = simulator.num_envs
        self.observation = simulator.layout
        limit = simulator.settings.env.action_limit
        self.action = Box.of(3, -limit, limit)

    def reset(self, *, seed: int | None = None) -> Tensor:
        """Begin new episodes everywhere, and return their first observations, (N, width)."""
        self.simulator.reset(seed=seed)
        return self.observe()

    def step(self, action: Tensor, *, out: Any) -> Any:
        """Fly all drones for one decision; see `NavigationEnv.step`."""
        return self.simulator.step(action, out=out)

    def observe(self) -> Tensor:
        """Return the present observations, (N, width), in a new tensor."""
        return self.simulator.observe_packed()

    def make_step(self) -> Any:
        """Return buffers for `step`."""
        return self.simulator.make_step()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit."""
        return self.simulator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.simulator.load_state_dict(state)
