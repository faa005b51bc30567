"""NavigationCollector: the simulator's batches as TorchRL's own collector would give them, without
its cost per step.
"""

from __future__ import annotations

import copy
import inspect
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from navrl.adapters.collector_options import refuse_options
from navrl.adapters.forwarding import FrameRate
from navrl.errors import CollectorError, ConfigError, StateError, missing_extra
from navrl.io.container.devices import usable_device
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.inputs import checked_seed
from navrl.sim.settings import NavigationSettings

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl._utils import seed_generator
    from torchrl.collectors import BaseCollector, RandomPolicy
    from torchrl.collectors.utils import split_trajectories
    from torchrl.data import Bounded
    from torchrl.envs.utils import ExplorationType, set_exploration_type
except ImportError as error:
    raise missing_extra(f"{__name__} needs torchrl and tensordict ({error})", "torchrl") from error

__all__ = ["NavigationCollector"]

_FLAGS = ("done", "terminated", "truncated")


class NavigationCollector(BaseCollector):  # type: ignore[misc]
    """Flies all drones of a simulator with a policy and yields batches of `frames_per_batch`
    frames, (N, T).

    A batch has the keys, shapes and contents that TorchRL's `Collector` gives around
    `TorchRLNavigationEnv`: observations, what the policy wrote, `"next"`, `("collector",
    "traj_ids")`. It goes where such a batch goes: losses, GAE, replay buffers. `("next", "stats")`
    holds the statistics of the episodes that ended; see `navrl.adapters.torchrl.episodes`.

    With `return_same_td` every batch is the same TensorDict in the same memory, overwritten each
    time: nothing is copied; clone what has to outlive the next batch. Otherwise every batch is a
    copy of its own.

    Args:
        env: a simulator with `auto_reset`, or the settings of one.
        policy: takes a TensorDict of (N,) and writes `"action"`, (N, 3) in m/s; random actions by
            default.
        frames_per_batch: rounded up to whole steps of all drones.
        total_frames: iteration ends after so many; -1 for never.
        seed: of a simulator that is made from settings.
        device: where the policy acts and the batch is, by default the CPU; the simulator flies on
            the CPU.
        storing_device: where batches are put, by default `device`.
        exploration_type: RANDOM for training, MEAN or DETERMINISTIC for evaluation.
        split_trajs: whether batches are cut into trajectories, padded with zeros, (trajectories,
            longest).
        postproc: makes of each batch what is handed out.
        reset_at_each_iter: whether all episodes begin anew with each batch.
        init_random_frames: so many frames at the beginning are flown with random actions.
        replay_buffer: gets the batches; iterating then gives None for each, as with TorchRL's
            collector.

    Raises:
        ConfigError: a setting is impossible, or an option of TorchRL's collector is not supported
            here.
    """

    total_frames: float

    def __init__(
        self,
        env: NavigationEnv | NavigationSettings,
        policy: Callable[[Any], Any] | None = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        seed: int = 0,
        device: torch.device | str | None = None,
        storing_device: torch.device | str | None = None,
        exploration_type: ExplorationType | None = None,
        return_same_td: bool = False,
        split_trajs: bool = False,
        postproc: Callable[[Any], Any] | None = None,
        reset_at_each_iter: bool = False,
        init_random_frames: int | None = None,
        replay_buffer: Any = None,
        **other: Any,
    ) -> None:
        super().__init__()
        refuse_options(other, inspect.signature(NavigationCollector.__init__).parameters)
        self.env = env if isinstance(env, NavigationEnv) else NavigationEnv(env, seed=seed)
        if not self.env.auto_reset:
            raise ConfigError(
                "the simulator was made with auto_reset=False; a collector needs one with "
                "auto_reset=True"
            )
        number = self.env.num_envs
        # steps of all drones, as TorchRL means it
        self.frames_per_batch = _whole_steps(frames_per_batch, number)
        self.requested_frames_per_batch = self.frames_per_batch * number
        self.total_frames = float("inf") if total_frames < 0 else total_frames
        self.device = usable_device("cpu" if device is None else device)
        # as TorchRL's, which has none unless it is given one
        self._batch_device = None if device is None else self.device
        self.storing_device = storing_device and usable_device(storing_device, "storing_device")
        limit = self.env.settings.env.action_limit
        self._random_policy = RandomPolicy(Bounded(-limit, limit, (number, 3), device=self.device))
        self.policy = self._random_policy if policy is None else policy
        self.init_random_frames = max(0, int(init_random_frames or 0))
        self.replay_buffer = replay_buffer
        self._next_seed: int | None = None  # that everything begins anew with after the next step
        self.exploration_type = exploration_type or ExplorationType.RANDOM
        self.return_same_td, self.split_trajs, self.postproc = return_same_td, split_trajs, postproc
        self.reset_at_each_iter = reset_at_each_iter
        self.closed = False
        self._frames, self._iter = 0, -1
        self._rate = FrameRate()
        self._make_buffers()
        self._next_trajectory = 0
        self.reset()

    def _make_buffers(self) -> None:
        number, steps, layout = self.env.num_envs, self.frames_per_batch, self.env.layout
        self._step = self.env.make_step()
        self._rows = torch.zeros(number, steps, layout.width, device=self.device)  # what was seen
        # and after the step
        self._next_rows = torch.zeros(number, steps, layout.width, device=self.device)
        self._ids = torch.zeros(number, steps, dtype=torch.int64, device=self.device)
        flags = {
            name: torch.zeros(number, steps, 1, dtype=torch.bool, device=self.device)
            for name in _FLAGS
        }
        self._after = {name: torch.zeros_like(flag) for name, flag in flags.items()}
        self._after["reward"] = torch.zeros(number, steps, 1, device=self.device)
        self._after["stats"] = torch.zeros(number, steps, len(STATISTICS), device=self.device)
        # No episode is over when a policy acts. Written for each batch, in case the caller has
        # written into them.
        self._always_zero = {**flags, "stats": torch.zeros_like(self._after["stats"])}
        seen = {**layout.split(self._rows), **self._always_zero}
        after = {**layout.split(self._next_rows), **self._after}
        shape = (number, steps)
        whole = {
            **seen,
            "collector": TensorDict({"traj_ids": self._ids}, shape, self._batch_device),
        }
        self._batch = TensorDict(whole, shape, self._batch_device)
        # What the policy is shown at each step: views of the batch, made once.
        self._shown = [self._batch[:, t] for t in range(steps)]
        self._batch.set("next", TensorDict(after, shape, self._batch_device))
        self._batch.refine_names(..., "time")
        # what the policy writes; known after its first call
        self._written: dict[Any, Tensor] | None = None
        self._written_by: Any = None
        self._same: TensorDictBase | None = None  # what is handed out again and again

    # ------------------------------------------------------------------ collecting

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Fly one batch and return it, in the memory that all batches share."""
        self._refuse_closed()
        start = time.perf_counter()
        if self.reset_at_each_iter:
            self.reset()
        for zeros in self._always_zero.values():
            zeros.zero_()
        with set_exploration_type(self.exploration_type):
            for t in range(self.frames_per_batch):
                self._rows[:, t] = self._step.packed.to(self.device)
                self._ids[:, t] = self._trajectories.to(self.device)
                action = self._act(t)
                self.env.step(action, out=self._step)
                if self._next_seed is None:
                    self._store(t)
                else:
                    self._truncate_all()
                    self._store(t)
                    self._begin_from_seed()
        self._rate.add(self.requested_frames_per_batch, time.perf_counter() - start)
        return self._batch if self.storing_device is None else self._batch.to(self.storing_device)

    def _act(self, t: int) -> Tensor:
        """Call the policy, store what it wrote, and return its action."""
        shown = self._shown[t]
        given = shown.copy()
        policy = self._random_policy if self._acts_at_random() else self.policy
        answer = policy(given)
        answer = given if answer is None else answer
        if self._written is None or self._written_by is not policy:
            self._written, self._written_by = self._buffers_for(shown, answer), policy
        for key, buffer in self._written.items():
            buffer[:, t] = answer.get(key)
        return answer.get("action")

    def _acts_at_random(self) -> bool:
        collected = self._frames if self.replay_buffer is None else self.replay_buffer.write_count
        return bool(collected < self.init_random_frames)

    def _buffers_for(self, shown: TensorDictBase, answer: TensorDictBase) -> dict[Any, Tensor]:
        """Return buffers for the keys that a policy writes, new in the batch or instead of what is
        there.
        """
        buffers = {}
        for key, value in answer.items(include_nested=True, leaves_only=True):
            names = (key,) if isinstance(key, str) else key
            if value is shown.get(key, None) or any(name.startswith("_") for name in names):
                continue
            shape = (self.env.num_envs, self.frames_per_batch, *value.shape[1:])
            buffers[key] = torch.zeros(shape, dtype=value.dtype, device=self.device)
            self._batch.set(key, buffers[key])
        if "action" not in buffers:
            raise CollectorError(
                f"the policy wrote {sorted(map(str, buffers))}; expected it to write 'action', "
                "(N, 3)"
            )
        return buffers

    def _store(self, t: int) -> None:
        """Store the result of a step. Where an episode ended, "next" holds its last observation,
        not the first of the new episode.
        """
        step, after = self._step, self._after
        done = step.terminated | step.truncated
        self._next_rows[:, t] = step.packed.to(self.device)
        after["reward"][:, t, 0] = step.reward.to(self.device)
        after["done"][:, t, 0] = done.to(self.device)
        after["terminated"][:, t, 0] = step.terminated.to(self.device)
        after["truncated"][:, t, 0] = step.truncated.to(self.device)
        after["stats"][:, t] = 0
        if done.any():
            ended = done.nonzero().squeeze(1)
            places = ended.to(self.device)
            self._next_rows[places, t] = step.final_packed[ended].to(self.device)
            after["stats"][places, t] = step.statistics[ended].to(self.device)
            self._trajectories[ended] = self._new_trajectories(len(ended))

    def _truncate_all(self) -> None:
        """End the episodes that go on after a step as well; they have no statistics."""
        step = self._step
        flying = ~(step.terminated | step.truncated)
        step.final_packed[flying] = step.packed[flying]
        step.statistics[flying] = 0
        step.truncated[flying] = True

    def _begin_from_seed(self) -> None:
        seed, self._next_seed = self._next_seed, None
        self.env.reset(seed=seed)
        self._step.packed.copy_(self.env.observe_packed())

    def iterator(self) -> Iterator[TensorDictBase | None]:
        """Yield batches until `total_frames` are collected; None if a replay buffer gets them."""
        while self._frames < self.total_frames:
            self._iter += 1
            if self.pre_collect_hook is not None:
                self.pre_collect_hook()
            batch = self.rollout()
            self._frames += self.requested_frames_per_batch
            if self.split_trajs:
                batch = split_trajectories(batch, prefix="collector")
            elif self.return_same_td:
                batch = self._handed_out(batch)
            if self.postproc is not None:
                batch = self.postproc(batch.copy())
            batch = batch if self.return_same_td else batch.clone()
            if self.post_collect_hook is not None:
                self.post_collect_hook(batch)
            if self.replay_buffer is None:
                yield batch
            else:
                self.replay_buffer.extend(batch)
                yield None

    def _handed_out(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the one TensorDict that is handed out again and again, with our tensors in it,
        whatever was put there.
        """
        if self._same is None:
            self._same = batch.copy()
        elif self._same.is_locked:
            self._same.unlock_()
        return self._same.update(batch)

    @property
    def fps(self) -> float:
        """Frames collected in a second of collecting, over the last batches; 0 before the first."""
        return self._rate.per_second

    _fps = fps  # as the collector of the original training script calls it

    # ------------------------------------------------------------------ the rest of TorchRL's
    # contract

    def reset(self, index: Tensor | None = None) -> None:
        """Begin new episodes and trajectories, everywhere or where `index` says."""
        self._refuse_closed()
        mask = torch.zeros(self.env.num_envs, dtype=torch.bool)
        mask[slice(None) if index is None else index] = True
        if index is None:
            seed, self._next_seed = self._next_seed, None
            self.env.reset(seed=seed)
        else:
            self.env.reset(mask=mask)
        self._begin(mask)

    def _begin(self, mask: Tensor) -> None:
        self._step.packed.copy_(self.env.observe_packed())
        if not hasattr(self, "_trajectories"):
            self._trajectories = torch.zeros(self.env.num_envs, dtype=torch.int64)
        self._trajectories[mask] = self._new_trajectories(int(mask.sum()))

    def _new_trajectories(self, number: int) -> Tensor:
        first, self._next_trajectory = self._next_trajectory, self._next_trajectory + number
        return torch.arange(first, first + number)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Begin everything anew with a seed; return TorchRL's next seed, for another collector.

        As with TorchRL's collector, whose policy has seen the present observations already, one
        more step is flown. It truncates the present episodes; those that follow depend on the seed
        alone.
        """
        self._refuse_closed()
        self._next_seed = checked_seed(seed)
        return seed if static_seed else int(seed_generator(seed))

    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Copy weights into the policy: those of a module, a state_dict, or a TensorDict of
        parameters.

        Without an argument nothing is done: the collector acts with the policy that it was given,
        not with a copy.
        """
        if policy_or_weights is None:
            return
        if not isinstance(self.policy, nn.Module):
            raise CollectorError(
                f"the policy is a {type(self.policy).__name__}; only a torch.nn.Module has "
                "weights to update"
            )
        if isinstance(policy_or_weights, nn.Module):
            policy_or_weights = policy_or_weights.state_dict()
        if isinstance(policy_or_weights, TensorDictBase):
            TensorDict.from_module(self.policy).data.update_(policy_or_weights.data)
        else:
            self.policy.load_state_dict(policy_or_weights)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return all that is needed to continue bit for bit, the flying drones included.

        All but the generator of a policy that draws its actions, which is torch's, not the
        collector's.
        """
        policy = (
            {"policy_state_dict": self.policy.state_dict()}
            if isinstance(self.policy, nn.Module)
            else {}
        )
        return OrderedDict(
            **policy,
            env_state_dict=self.env.state_dict(),
            observation=self._step.packed.clone(),
            traj_ids=self._trajectories.clone(),
            traj_pool={"traj_id": torch.tensor(self._next_trajectory)},
            frames=self._frames,
            iter=self._iter,
            next_seed=self._next_seed,
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: it was not saved by a collector of equal settings; nothing has been changed.
        """
        self._refuse_closed()
        expected = {"env_state_dict", "observation", "traj_ids", "traj_pool", "frames", "iter"}
        missing = sorted(expected - set(state_dict))
        if missing:
            raise StateError(
                f"the state lacks {', '.join(missing)}; expected what a NavigationCollector's "
                "state_dict() gave"
            )
        _check_tensor("observation", state_dict["observation"], self._step.packed)
        _check_tensor("traj_ids", state_dict["traj_ids"], self._trajectories)
        trajectory, frames, iteration, seed = _numbers(state_dict)
        policy, weights = self.policy, state_dict.get("policy_state_dict")
        if isinstance(policy, nn.Module) and weights is not None:
            _refuse_weights_that_do_not_fit(policy, weights)
        # refuses before it changes anything, too
        self.env.load_state_dict(state_dict["env_state_dict"])
        if isinstance(policy, nn.Module) and weights is not None:
            policy.load_state_dict(weights)
        self._step.packed.copy_(state_dict["observation"])
        self._trajectories.copy_(state_dict["traj_ids"])
        self._next_trajectory = trajectory
        self._frames = frames
        self._iter = iteration
        self._next_seed = seed

    def shutdown(
        self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True
    ) -> None:
        """Refuse to collect from now on; a simulator that was given stays usable."""
        self.closed = True

    def _refuse_closed(self) -> None:
        if self.closed:
            raise CollectorError("the collector was shut down; make a new one")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.env.num_envs} drones x {self.frames_per_batch} "
            f"steps, policy={self.policy})"
        )


def _whole_steps(frames_per_batch: int, number: int) -> int:
    """Return the steps of a batch; warn if they have more frames than were asked for."""
    if frames_per_batch < 1:
        raise ConfigError(f"frames_per_batch is {frames_per_batch}; expected at least 1")
    steps = -(-frames_per_batch // number)
    if steps * number != frames_per_batch:
        warnings.warn(
            f"frames_per_batch is {frames_per_batch}, no multiple of the {number} drones: "
            "batches will have "
            f"{steps * number} frames",
            stacklevel=3,  # who made the collector
        )
    return steps


def _check_tensor(name: str, saved: Any, own: Tensor) -> None:
    """Raise a StateError unless a saved tensor can be copied into our own."""
    if isinstance(saved, Tensor):
        if (saved.shape, saved.dtype) == (own.shape, own.dtype):
            return
        found = f"{saved.dtype} {tuple(saved.shape)}"
    else:
        found = type(saved).__name__
    raise StateError(f"{name} of the state is {found}; expected {own.dtype} {tuple(own.shape)}")


def _numbers(state: Mapping[str, Any]) -> tuple[int, int, int, int | None]:
    """Return the next trajectory, the frames, the iteration and the next seed of a state."""
    try:
        trajectory = int(state["traj_pool"]["traj_id"])
        frames, iteration = int(state["frames"]), int(state["iter"])
        seed = None if state.get("next_seed") is None else checked_seed(state["next_seed"])
    except (TypeError, ValueError, KeyError) as error:
        raise StateError(
            f"traj_pool, frames, iter or next_seed of the state is no number ({error!r}); "
            "expected whole numbers"
        ) from error
    return trajectory, frames, iteration, seed


def _refuse_weights_that_do_not_fit(policy: nn.Module, weights: Mapping[str, Any]) -> None:
    try:
        # torch loads what fits before it complains of the rest
        copy.deepcopy(policy).load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise StateError(
            f"the weights of the state do not fit the collector's policy: {error}"
        ) from error
