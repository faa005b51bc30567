"""Environments of rsl_rl (`VecEnv`) under our contract, so Isaac Lab's and mjlab's too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from navrl.environments.observation_parts import part_of, write_part
from navrl.errors import ConfigError
from navrl.observation import ObservationLayout
from navrl.rl.action_space import Box
from navrl.rl.environment import Environment, EpisodeCounter, Step, check_action

__all__ = ["RslRlEnvironment", "is_vec_env"]

PRIVILEGED = ("critic", "teacher", "rnd_state")  # groups that a policy does not see
MEMBERS = ("num_envs", "num_actions", "get_observations", "step", "episode_length_buf")


def is_vec_env(value: Any) -> bool:
    """Return whether an object looks like rsl_rl's `VecEnv`, whether or not it inherits from it."""
    return all(hasattr(value, name) for name in MEMBERS)


class RslRlEnvironment(Environment):
    """A `VecEnv` of rsl_rl.

    Groups of observations become parts, those for the critic alone are left out. Actions are
    unbounded, as rsl_rl's are; environments clip them. A `VecEnv` does not return the last
    observation of an episode: the one before the last step stands in for it, as rsl_rl has it.

    Args:
        env: the environment.
        groups: what the policy sees; None: every group but those for the critic.
    """

    def __init__(self, env: Any, groups: Iterable[str] | None = None) -> None:
        self.env = env
        self.num_envs = int(env.num_envs)
        seen = _groups_of(env.get_observations())
        chosen = [name for name in seen if name not in PRIVILEGED] if groups is None else [*groups]
        missing = [name for name in chosen if name not in seen]
        if missing or not chosen:
            raise ConfigError(
                f"env.options.groups names {missing or 'nothing'}; there are {', '.join(seen)}"
            )
        self.observation = ObservationLayout(
            tuple(part_of(name, tuple(seen[name].shape[1:]), seen[name].dtype) for name in chosen)
        )
        self.action = Box.unbounded(int(env.num_actions))
        self._counter = EpisodeCounter(self.num_envs)
        self._rows = self._pack(seen, torch.zeros(self.num_envs, self.observation.width))

    def reset(self, *, seed: int | None = None) -> Tensor:
        """Begin new episodes everywhere, where the environment can; return the observations."""
        if seed is not None and callable(begin := getattr(self.env, "seed", None)):
            begin(seed)
        if callable(reset := getattr(self.env, "reset", None)):
            reset()
        self._counter.reset()
        self._pack(_groups_of(self.env.get_observations()), self._rows)
        return self._rows.clone()

    @torch.no_grad()
    def step(self, action: Tensor, *, out: Step) -> Step:
        """Take one step everywhere and write what comes of it into `out`."""
        check_action(self, action)
        seen, reward, done, extras = self.env.step(action.clone().to(self.env.device))
        ended = done.cpu().bool().reshape(self.num_envs)
        late = extras.get("time_outs")
        out.reward.copy_(reward.reshape(self.num_envs))
        out.truncated.zero_()
        if late is not None:
            out.truncated.copy_(late.cpu().bool().reshape(self.num_envs) & ended)
        out.terminated.copy_(ended & ~out.truncated)
        out.final_packed.copy_(self._rows)
        self._pack(_groups_of(seen), out.packed)
        self._rows = out.packed.clone()
        self._counter.count(out)
        return out

    def observe(self) -> Tensor:
        """Return the present observations, (N, width), in a new tensor."""
        return self._rows.clone()

    def close(self) -> None:
        """Close the environment, if it can be."""
        if callable(close := getattr(self.env, "close", None)):
            close()

    def _pack(self, seen: dict[str, Tensor], rows: Tensor) -> Tensor:
        for part in self.observation.parts:
            write_part(self.observation, part.name, seen[part.name], rows)
        return rows


def _groups_of(seen: Any) -> dict[str, Tensor]:
    """Return observations by group; older versions return a tensor, alone or before its extras."""
    if isinstance(seen, tuple):
        seen = seen[0]
    if isinstance(seen, Tensor):
        return {"policy": seen}
    return {str(name): value for name, value in seen.items()}
