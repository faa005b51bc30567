"""Environment: the one contract between a task and everything that trains, evaluates or saves.

Write your own by subclassing `TorchEnvironment` (three methods) or `Environment` itself (when you
have a fast batched step of your own). `navrl.testing.EnvironmentContract` checks it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from navrl.errors import ActionError, StateError
from navrl.observation import ObservationLayout
from navrl.rl.action_space import ActionSpace, Discrete

__all__ = ["Environment", "Step", "TorchEnvironment"]


class Step:
    """The buffers that one step of an environment is written to.

    Rows of `final_packed` and `statistics` are valid where an episode ended; the rest are stale.

    >>> from navrl.rl.environment import Step
    >>> step = Step(num_envs=4, width=8, statistics=2)
    >>> step.packed.shape, step.reward.shape
    (torch.Size([4, 8]), torch.Size([4]))
    """

    def __init__(self, num_envs: int, width: int, statistics: int) -> None:
        self.packed = torch.zeros(num_envs, width)  # observations, the next episode's after an end
        self.final_packed = torch.zeros(num_envs, width)  # last observations of ended episodes
        self.reward = torch.zeros(num_envs)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool)  # what follows is worth nothing
        self.truncated = torch.zeros(num_envs, dtype=torch.bool)  # cut by a limit; bootstrapped
        self.statistics = torch.zeros(num_envs, statistics)  # of ended episodes


class Environment(ABC):
    """A batch of environments that step together and begin a new episode where one has ended.

    All tensors are float32 on the CPU unless said otherwise; N is `num_envs`. An observation is one
    row of numbers, whose named parts `observation` describes.

    >>> import torch
    >>> from navrl.observation import ObservationLayout, Part
    >>> from navrl.rl.action_space import Box
    >>> from navrl.rl.environment import Environment
    >>> class Still(Environment):  # nothing moves, no episode ends
    ...     num_envs, action = 4, Box.of(1)
    ...     observation = ObservationLayout((Part("position", (1,)),))
    ...     def reset(self, *, seed=None):
    ...         return self.observe()
    ...     def step(self, action, *, out):
    ...         out.reward.zero_()
    ...         return out
    ...     def observe(self):
    ...         return torch.zeros(4, self.observation.width)
    >>> env = Still()
    >>> env.step(torch.zeros(4, 1), out=env.make_step()).reward
    tensor([0., 0., 0., 0.])
    """

    num_envs: int
    observation: ObservationLayout
    action: ActionSpace
    statistics: tuple[str, ...] = ("return", "length")
    """Names of the columns of `Step.statistics`. `success` (0 or 1) is shown where it is there."""

    @abstractmethod
    def reset(self, *, seed: int | None = None) -> Tensor:
        """Begin new episodes everywhere, and return their first observations, (N, width).

        With a seed everything random begins anew: equal seeds give equal episodes.
        """

    @abstractmethod
    def step(self, action: Tensor, *, out: Step) -> Step:
        """Take one step everywhere, write what comes of it into `out`, and return `out`.

        Args:
            action: (N, size) within the bounds of a `Box`, or (N,) int64 for `Discrete`. It must
                not be changed or kept.
            out: made by `make_step`. Where an episode ends in this step, `packed` is the first
                observation of the next one and `final_packed` the last of the old one.
        """

    @abstractmethod
    def observe(self) -> Tensor:
        """Return the present observations, (N, width), in a new tensor."""

    def make_step(self) -> Step:
        """Return buffers for `step`."""
        return Step(self.num_envs, self.observation.width, len(self.statistics))

    def state_dict(self) -> dict[str, Any] | None:
        """Return everything needed to continue bit for bit; None if that is not possible.

        Values are tensors, plain values, and dicts and lists of them.
        """
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned in an equal environment."""
        raise StateError(f"{type(self).__name__} cannot be restored: it has no load_state_dict")

    def set_progress(self, progress: float) -> None:
        """Take note before each batch how much of the training is done, 0 to 1: for curricula."""
        return

    def advise(self, rows: Tensor, action: Tensor) -> Tensor | None:
        """Return what a teacher would do now, which PPO imitates with `algo.imitation`.

        Args:
            rows: (N, width) the present observations. Neither they nor the actions must be changed
                or kept.
            action: (N, size) what the policy would do, as for `step`.

        Returns:
            Actions as for `step`, (N, size), rows with NaN or infinity where the teacher has no
            advice; None: the environment has no teacher.
        """
        return None

    def close(self) -> None:
        """Release what the environment holds."""
        return


class EpisodeCounter:
    """Return and length of running episodes, and any further statistic given at their end."""

    def __init__(self, num_envs: int) -> None:
        self.total = torch.zeros(num_envs)
        self.length = torch.zeros(num_envs)

    def reset(self) -> None:
        """Forget running episodes."""
        self.total.zero_()
        self.length.zero_()

    def count(self, out: Step, *further: Tensor) -> None:
        """Count a step, and write `return`, `length` and further columns of ended episodes."""
        self.total += out.reward
        self.length += 1
        ended = out.terminated | out.truncated
        if ended.any():
            columns = torch.stack([self.total, self.length, *further], 1)
            out.statistics[ended] = columns[ended]
            self.total[ended] = 0
            self.length[ended] = 0


class TorchEnvironment(Environment):
    """An environment over torch tensors from three methods; everything else follows from them.

    Every tensor, `torch.Generator` and number among the attributes is part of the saved state, so
    that training resumes bit for bit. Draw random numbers from `self.generator` only.

    Args:
        num_envs: N.
        observation: see `navrl.observation.ObservationLayout`.
        action: see `navrl.rl.action_space`.
        time_limit: steps after which an episode is truncated; 0: none.
        seed: of `generator`, until `reset(seed=...)`.

    >>> import torch
    >>> from navrl.observation import ObservationLayout, Part
    >>> from navrl.rl.action_space import Box
    >>> from navrl.rl.environment import TorchEnvironment
    >>> class Point(TorchEnvironment):
    ...     def begin(self, mask):
    ...         self.position = torch.zeros(self.num_envs)
    ...     def advance(self, action):
    ...         self.position = self.position + action[:, 0]
    ...         return -self.position.abs(), self.position.abs() > 2
    ...     def look(self):
    ...         return {"position": self.position}
    >>> point = Point(4, ObservationLayout((Part("position", (1,)),)), Box.of(1), time_limit=20)
    >>> point.reset().shape
    torch.Size([4, 1])
    """

    def __init__(
        self,
        num_envs: int,
        observation: ObservationLayout,
        action: ActionSpace,
        *,
        time_limit: int = 0,
        seed: int = 0,
    ) -> None:
        self.num_envs, self.observation, self.action = num_envs, observation, action
        self.time_limit = time_limit
        self.generator = torch.Generator().manual_seed(seed)
        self._counter = EpisodeCounter(num_envs)
        self._started = False

    @abstractmethod
    def begin(self, mask: Tensor) -> None:
        """Begin new episodes where the mask, (N,) bool, holds."""

    @abstractmethod
    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step everywhere; return the rewards and where an episode has ended, (N,)."""

    @abstractmethod
    def look(self) -> dict[str, Tensor]:
        """Return what is seen now: every part of `observation` by name, (N, *shape)."""

    # ------------------------------------------------------------------ the contract

    def reset(self, *, seed: int | None = None) -> Tensor:
        """Begin new episodes everywhere, and return their first observations, (N, width)."""
        if seed is not None:
            self.generator.manual_seed(seed)
        self._counter.reset()
        self._started = True
        self.begin(torch.ones(self.num_envs, dtype=torch.bool))
        return self.observe()

    def step(self, action: Tensor, *, out: Step) -> Step:
        """Take one step everywhere and write what comes of it into `out`."""
        check_action(self, action)
        if not self._started:
            self.reset()
        reward, ended = self.advance(action)
        out.reward.copy_(reward)
        out.terminated.copy_(ended)
        late = self._counter.length + 1 >= self.time_limit
        out.truncated.copy_(late & ~out.terminated if self.time_limit else torch.zeros_like(late))
        self._counter.count(out)
        self.observation.pack(self.look(), out.packed)
        done = out.terminated | out.truncated
        if done.any():
            out.final_packed[done] = out.packed[done]
            self.begin(done)
            self.observation.pack(self.look(), out.packed)
        return out

    def observe(self) -> Tensor:
        """Return the present observations, (N, width), in a new tensor."""
        if not self._started:
            self.reset()
        return self.observation.pack(
            self.look(), torch.zeros(self.num_envs, self.observation.width)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return every tensor, generator and number among the attributes."""
        saved = {name: value for name, value in vars(self).items() if _is_state(value)}
        copied = {name: _copied(value) for name, value in saved.items()}
        counted = {"total": self._counter.total.clone(), "length": self._counter.length.clone()}
        return {**copied, "_counter": counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned in an equal environment."""
        expected = {name for name, value in vars(self).items() if _is_state(value)} | {"_counter"}
        if set(state) != expected:
            missing, unknown = sorted(expected - set(state)), sorted(set(state) - expected)
            raise StateError(
                f"the state of {type(self).__name__} lacks {missing or 'nothing'} and has unknown "
                f"{unknown or 'nothing'}"
            )
        for name in expected - {"_counter"}:
            present = getattr(self, name)
            if isinstance(present, torch.Generator):
                present.set_state(state[name])
            else:
                setattr(self, name, _copied(state[name]))
        for name, value in state["_counter"].items():
            getattr(self._counter, name).copy_(value)


def check_action(env: Environment, action: Tensor) -> None:
    """Raise an ActionError if an action has not the shape that an environment takes."""
    expected = (
        (env.num_envs,) if isinstance(env.action, Discrete) else (env.num_envs, env.action.size)
    )
    if tuple(action.shape) != expected:
        raise ActionError(
            f"actions of shape {tuple(action.shape)}; expected {expected}: one for each environment"
        )


def _is_state(value: Any) -> bool:
    return isinstance(value, Tensor | torch.Generator | bool | int | float)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    return value.clone() if isinstance(value, Tensor) else value
