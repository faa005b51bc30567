"""The simulator as a TorchRL environment: a batch of drones for TorchRL's rollouts and
collectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from navrl.errors import ActionError, ConfigError, missing_extra
from navrl.io.container.devices import usable_device
from navrl.observation import Part
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.inputs import checked_seed
from navrl.sim.settings import NavigationSettings

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise missing_extra(f"{__name__} needs torchrl and tensordict ({error})", "torchrl") from error


class TorchRLNavigationEnv(EnvBase):  # type: ignore[misc]
    """All drones of a simulator as one TorchRL environment of batch size (N,).

    Read `state`, `lidar`, `direction` and `dynamic_obstacle`; write `action`, velocity commands in
    m/s, (N, 3). Where an episode has ended, the row of `("next", "stats")` holds its statistics,
    elsewhere zeros; `episodes(data)` gives them by name. The simulator runs on the CPU; tensors go
    to and come from `device`. What is returned is never written again by the environment.

    Drones are reset where `"_reset"` holds, as TorchRL's collectors ask for. A drone that is not
    reset stays where its episode ended.

    `set_seed(seed)` is used by the next reset of all drones. If a step comes first, as in TorchRL's
    collectors, that step truncates every episode, so that the reset which follows begins all of
    them from the seed.

    >>> import navrl
    >>> from navrl.adapters.torchrl import TorchRLNavigationEnv
    >>> settings = navrl.NavigationSettings.of(env__num_envs=4, env__num_worlds=1)
    >>> TorchRLNavigationEnv(settings).rollout(3).batch_size
    torch.Size([4, 3])
    """

    def __init__(
        self,
        settings: NavigationSettings | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        simulator = NavigationEnv(settings, seed=seed, auto_reset=False)
        super().__init__(device=usable_device(device), batch_size=[simulator.num_envs])
        self.simulator = simulator
        self._next_seed: int | None = None
        # drones that wait for a reset, and why
        self._terminated = torch.zeros(simulator.num_envs, dtype=torch.bool)
        self._truncated = torch.zeros(simulator.num_envs, dtype=torch.bool)
        self._make_specs()

    def _make_specs(self) -> None:
        number = self.simulator.num_envs
        layout = self.simulator.layout
        settings = self.simulator.settings
        limit = settings.env.action_limit
        parts = {part.name: _spec_of(part, number, self.device) for part in layout.parts}
        # One tensor for all statistics: 23 named ones would make TorchRL's collector a third
        # slower.
        parts["stats"] = Unbounded((number, len(STATISTICS)), device=self.device)
        column = (number, 1)
        flags = {
            name: Categorical(2, column, device=self.device, dtype=torch.bool)
            for name in ("done", "terminated", "truncated")
        }
        self.observation_spec = Composite(parts, shape=(number,), device=self.device)
        self.action_spec = Bounded(-limit, limit, (number, 3), device=self.device)
        self.reward_spec = Unbounded(column, device=self.device)
        self.done_spec = Composite(flags, shape=(number,), device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._refuse_partial_step(tensordict.get("_step", None))
        result = self.simulator.step(tensordict.get("action"))
        self._terminated, self._truncated = result.terminated, result.truncated
        if self._next_seed is not None:
            self._truncated = ~self._terminated
        return self._tensordict(result.observation, result.statistics, reward=result.reward)

    def _reset(self, tensordict: TensorDictBase | None, **options: Any) -> TensorDictBase:
        if options:
            raise ConfigError(
                f"unknown option {next(iter(options))!r} of reset; expected none: call "
                "set_seed() for a seed"
            )
        asked = None if tensordict is None else tensordict.get("_reset", None)
        if asked is None or asked.all():
            observation = self.simulator.reset(seed=self._next_seed)
            self._next_seed = None
            mask = torch.ones_like(self._terminated)
        else:
            mask = asked.reshape(self.simulator.num_envs).cpu()
            observation = self.simulator.reset(mask=mask)
        self._terminated, self._truncated = self._terminated & ~mask, self._truncated & ~mask
        return self._tensordict(observation, torch.zeros(len(mask), len(STATISTICS)))

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = None if seed is None else checked_seed(seed)

    def _tensordict(
        self, observation: Mapping[str, Tensor], statistics: Tensor, **columns: Tensor
    ) -> TensorDictBase:
        """Return what a step or a reset gives, on the device, with new tensors for the flags."""
        columns |= {
            "done": self._terminated | self._truncated,
            "terminated": self._terminated.clone(),
            "truncated": self._truncated.clone(),
        }
        entries: dict[str, Any] = {name: part.to(self.device) for name, part in observation.items()}
        entries |= {name: column.unsqueeze(-1).to(self.device) for name, column in columns.items()}
        entries["stats"] = statistics.to(self.device)
        return TensorDict(entries, self.batch_size, self.device)

    def _refuse_partial_step(self, stepped: Tensor | None) -> None:
        """Raise an ActionError if a drone that still flies is left out of a step: the simulator
        steps all together.
        """
        if stepped is None:
            return
        left_out = ~(
            stepped.reshape(self.simulator.num_envs).cpu() | self._terminated | self._truncated
        )
        if left_out.any():
            raise ActionError(
                f"'_step' leaves out drones {left_out.nonzero().flatten()[:10].tolist()}, which "
                "still fly; expected "
                "only drones whose episode has ended to be left out: all drones share one "
                "simulator and step together"
            )


def _spec_of(part: Part, number: int, device: torch.device) -> Any:
    """Return the spec of one part of an observation, for `number` drones.

    Bounded if one finite pair of bounds holds for all numbers: TorchRL draws from bounded specs.
    """
    shape, low, high = (number, *part.shape), part.low, part.high
    if isinstance(low, float) and isinstance(high, float) and math.isfinite(high - low):
        return Bounded(low, high, shape, device=device)
    return Unbounded(shape, device=device)


def episodes(data: TensorDictBase) -> dict[str, Tensor]:
    """Return the statistics of the episodes that ended in collected data, by name, (number ended,).

    Episodes that a `set_seed` cut have none, and are left out.
    """
    rows = data["next", "stats"][data["next", "done"].squeeze(-1)]
    rows = rows[rows[:, STATISTICS.index("length")] > 0]
    return dict(zip(STATISTICS, rows.unbind(-1), strict=True))
