"""Any environment under our contract as a `VecEnv` of rsl_rl, for its `OnPolicyRunner`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from navrl.adapters.navigation_environment import NavigationEnvironment
from navrl.errors import ConfigError, missing_extra
from navrl.rl.action_space import Box
from navrl.rl.environment import Environment
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

try:
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict
except ImportError as error:
    raise missing_extra(f"{__name__} needs rsl-rl-lib ({error})", "rsl-rl") from error

__all__ = ["RslRlVecEnv", "navigation_vec_env"]


class RslRlVecEnv(VecEnv):  # type: ignore[misc]
    """An environment as rsl_rl sees it.

    Each part of an observation is a group, flat unless `flat` is False: name those that the actor
    and the critic see in the runner's `obs_groups`. Actions are clipped to the bounds. Where
    episodes ended, their mean statistics are in `extras["log"]` as `/episode/NAME`.

    Args:
        env: with a box of actions.
        max_episode_length: steps, told to rsl_rl.
        device: where observations and rewards go; the environment itself runs on the CPU.
        flat: one row of numbers for each group, which rsl_rl's MLPs need.

    >>> import torch, navrl
    >>> from navrl.adapters.navigation_environment import NavigationEnvironment
    >>> from navrl.adapters.rsl_rl import RslRlVecEnv
    >>> settings = navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1)
    >>> drones = NavigationEnvironment(navrl.NavigationEnv(settings))
    >>> env = RslRlVecEnv(drones, max_episode_length=100)
    >>> env.step(torch.zeros(4, 3))[1].shape
    torch.Size([4])
    """

    def __init__(
        self,
        env: Environment,
        *,
        max_episode_length: int,
        device: torch.device | str = "cpu",
        flat: bool = True,
    ) -> None:
        if not isinstance(env.action, Box):
            raise ConfigError(f"actions are {env.action}; rsl_rl has only continuous ones (Box)")
        self.env, self.flat = env, flat
        self.num_envs, self.num_actions = env.num_envs, env.action.size
        self.max_episode_length = max_episode_length
        self.episode_length_buf = torch.zeros(env.num_envs, dtype=torch.long, device=device)
        self.device = torch.device(device)
        self.cfg: dict[str, Any] = {}
        self._low, self._high = torch.tensor(env.action.low), torch.tensor(env.action.high)
        self._step = env.make_step()

    def get_observations(self) -> TensorDict:
        """Return the present observations, by group."""
        return self._groups(self.env.observe())

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        """Begin new episodes everywhere; return the observations and no extras."""
        self.episode_length_buf.zero_()
        return self._groups(self.env.reset()), {}

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Return observations, rewards, dones and extras after one step everywhere."""
        step = self.env.step(actions.cpu().float().clamp(self._low, self._high), out=self._step)
        done = step.terminated | step.truncated
        extras: dict[str, Any] = {"time_outs": (step.truncated & ~step.terminated).to(self.device)}
        if done.any():
            means = step.statistics[done].mean(0)
            names = [f"/episode/{name}" for name in self.env.statistics]
            extras["log"] = dict(zip(names, means.unbind(), strict=True))
        self.episode_length_buf += 1
        self.episode_length_buf[done.to(self.device)] = 0
        reward = step.reward.to(self.device, copy=True)
        return self._groups(step.packed.clone()), reward, done.to(self.device), extras

    def _groups(self, rows: Tensor) -> TensorDict:
        parts = self.env.observation.split(rows.to(self.device))
        groups = {name: part.flatten(1) if self.flat else part for name, part in parts.items()}
        return TensorDict(groups, [self.num_envs], device=self.device)


def navigation_vec_env(
    settings: NavigationSettings | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    flat: bool = True,
) -> RslRlVecEnv:
    """Return all drones of a simulator as a `VecEnv`.

    The groups are `lidar`, `dynamic_obstacle`, `state` and `direction`. Commands are velocities in
    m/s in the frame `env.action_frame`.

    >>> import navrl
    >>> from navrl.adapters.rsl_rl import navigation_vec_env
    >>> drones = navigation_vec_env(navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1))
    >>> drones.num_envs, drones.num_actions
    (4, 3)
    """
    simulator = NavigationEnv(settings, seed=seed)
    length = -(-simulator.settings.env.max_episode_length // simulator.settings.env.action_repeat)
    env = NavigationEnvironment(simulator)
    return RslRlVecEnv(env, max_episode_length=length, device=device, flat=flat)
