"""TorchRL environments under our contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from navrl.environments.observation_parts import part_of, write_part
from navrl.errors import ConfigError, missing_extra
from navrl.observation import ObservationLayout
from navrl.rl.action_space import ActionSpace, Box, Discrete
from navrl.rl.environment import Environment, EpisodeCounter, Step, check_action

try:
    from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise missing_extra(f"{__name__} needs torchrl ({error})", "torchrl") from error

__all__ = ["TorchRLEnvironment"]

SUCCESS = ("success", "is_success")


class TorchRLEnvironment(Environment):
    """A TorchRL environment with one batch dimension.

    Every leaf of the observation spec becomes a part under its name, nested ones with dots. Actions
    may be bounded, unbounded, categorical or one-hot. The statistic `success` is what the leaf
    `success` or `is_success` says at the end of an episode, NaN without one.
    """

    statistics = ("return", "length", "success")

    def __init__(self, env: EnvBase) -> None:
        if len(env.batch_size) != 1:
            raise ConfigError(
                f"the TorchRL environment has the batch size {tuple(env.batch_size)}; expected one "
                "dimension, (num_envs,): wrap single environments in SerialEnv or ParallelEnv"
            )
        self.env = env
        self.num_envs = env.batch_size[0]
        leaves = dict(_leaves(env.observation_spec_unbatched))
        self._keys = {".".join(key): key for key in leaves}
        self.observation = ObservationLayout(
            tuple(
                part_of(".".join(key), tuple(spec.shape), spec.dtype)
                for key, spec in leaves.items()
            )
        )
        self._action_spec = env.action_spec_unbatched
        self.action = _action_space(self._action_spec)
        self._counter = EpisodeCounter(self.num_envs)
        self._present: Any = None

    def reset(self, *, seed: int | None = None) -> Tensor:
        """Begin new episodes everywhere, and return their first observations, (N, width)."""
        if seed is not None:
            self.env.set_seed(seed)
        self._present = self.env.reset()
        self._counter.reset()
        return self.observe()

    @torch.no_grad()
    def step(self, action: Tensor, *, out: Step) -> Step:
        """Take one step everywhere and write what comes of it into `out`."""
        check_action(self, action)
        if self._present is None:
            self.reset()
        taken, self._present = self.env.step_and_maybe_reset(
            self._present.set(self.env.action_key, self._taken(action))
        )
        after = taken["next"]
        out.reward.copy_(after[self.env.reward_key].reshape(self.num_envs))
        out.terminated.copy_(after["terminated"].reshape(self.num_envs))
        out.truncated.copy_((after["done"] & ~after["terminated"]).reshape(self.num_envs))
        ended = out.terminated | out.truncated
        if ended.any():
            out.final_packed[ended] = self._pack(after, torch.zeros_like(out.packed))[ended]
        self._counter.count(out, self._success(after))
        self._pack(self._present, out.packed)
        return out

    def observe(self) -> Tensor:
        """Return the present observations, (N, width), in a new tensor."""
        if self._present is None:
            self.reset()
        return self._pack(self._present, torch.zeros(self.num_envs, self.observation.width))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _taken(self, action: Tensor) -> Tensor:
        spec = self._action_spec
        if isinstance(spec, OneHot):
            action = torch.nn.functional.one_hot(action, spec.shape[-1])
        return action.reshape(self.num_envs, *spec.shape).to(self.env.device, spec.dtype)

    def _pack(self, seen: Any, rows: Tensor) -> Tensor:
        for name, key in self._keys.items():
            write_part(self.observation, name, seen[key], rows)
        return rows

    def _success(self, after: Any) -> Tensor:
        said = next((name for name in SUCCESS if name in after.keys()), None)  # noqa: SIM118
        if said is None:
            return torch.full((self.num_envs,), torch.nan)
        return after[said].reshape(self.num_envs).float().cpu()


def _leaves(spec: Composite, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every part of nested specs, with its key."""
    for name, inner in spec.items():
        if isinstance(inner, Composite):
            yield from _leaves(inner, (*prefix, name))
        else:
            yield (*prefix, name), inner


def _action_space(spec: Any) -> ActionSpace:
    if isinstance(spec, OneHot) and not isinstance(spec, Binary):
        return Discrete(int(spec.shape[-1]))
    if isinstance(spec, Categorical):
        return Discrete(int(spec.space.n))
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        low, high = (bound.flatten().tolist() for bound in (spec.space.low, spec.space.high))
        return Box(tuple(low), tuple(high))
    if isinstance(spec, Unbounded) and spec.dtype.is_floating_point:
        return Box.unbounded(spec.shape.numel())
    raise ConfigError(
        f"actions are a {type(spec).__name__}; expected one Bounded, Unbounded, Categorical or "
        "OneHot spec: a TorchRL transform can make one of them"
    )
