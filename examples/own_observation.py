"""Our simulator with an observation of your own: what the drone commanded a moment ago.

    navrl train env=python env.target=own_observation:make env.num_envs=256 max_frame_num=2_000_000

in the folder of this file. The parts of the simulator stay as they are; one more follows them.
"""

import torch

from navrl import NavigationEnv, NavigationSettings
from navrl.adapters.navigation_environment import NavigationEnvironment
from navrl.observation import ObservationLayout, Part
from navrl.rl.environment import Environment


class RemembersAction(Environment):
    """The navigation task; the part `previous_action` is the last command over its limit."""

    def __init__(self, num_envs: int, seed: int = 0, action_repeat: int = 6) -> None:
        settings = NavigationSettings.of(
            env__num_envs=num_envs, env__num_worlds=8, env__action_repeat=action_repeat
        )
        self.inner = NavigationEnvironment(NavigationEnv(settings, seed=seed))
        self.num_envs, self.action = num_envs, self.inner.action
        self.statistics = self.inner.statistics
        parts = self.inner.observation.parts
        self.observation = ObservationLayout((*parts, Part("previous_action", (3,))))
        self._seen = sum(part.size for part in parts)  # numbers of a row without padding
        self._previous = torch.zeros(num_envs, 3)
        self._step = self.inner.make_step()

    def _with_action(self, rows: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[:, : self._seen], action], 1)

    def reset(self, *, seed: int | None = None) -> torch.Tensor:
        """Begin new episodes everywhere."""
        self._previous = torch.zeros(self.num_envs, 3)
        return self._with_action(self.inner.reset(seed=seed), self._previous)

    def observe(self) -> torch.Tensor:
        """Return the present observations."""
        return self._with_action(self.inner.observe(), self._previous)

    def step(self, action, *, out):
        """Fly all drones for one decision."""
        flown = self.inner.step(action, out=self._step)
        ended = (flown.terminated | flown.truncated)[:, None]
        scaled = action / self.inner.simulator.settings.env.action_limit
        self._previous = torch.where(ended, 0.0, scaled)  # a new episode begins at rest
        out.packed.copy_(self._with_action(flown.packed, self._previous))
        out.final_packed.copy_(self._with_action(flown.final_packed, scaled))
        for name in ("reward", "terminated", "truncated", "statistics"):
            getattr(out, name).copy_(getattr(flown, name))
        return out

    def state_dict(self):
        """Return everything needed to continue bit for bit."""
        return {"simulator": self.inner.state_dict(), "previous": self._previous.clone()}

    def load_state_dict(self, state) -> None:
        """Continue from a saved state."""
        self.inner.load_state_dict(state["simulator"])
        self._previous = state["previous"].clone()


def make(num_envs: int, seed: int = 0, action_repeat: int = 6) -> RemembersAction:
    """Return what `env.target` names; `env.options.action_repeat=5` decides more often."""
    return RemembersAction(num_envs, seed, action_repeat)
