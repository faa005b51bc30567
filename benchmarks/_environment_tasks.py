"""The environments of `navrl bench environments` that no library brings."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torchrl.envs import PendulumEnv, StepCounter, TransformedEnv

CATCH = "navrl_benchmark/Catch-v0"
PIXELS, ROWS = 4, 10  # of a square of the picture; rows that a ball falls


class Catch(gymnasium.Env[NDArray[np.uint8], int]):
    """Catch a falling ball with a paddle, seen as a picture of 40 x 40 pixels.

    Actions are left, stay, right. An episode is one ball: +1 if it is caught, -1 if not.
    """

    observation_space = spaces.Box(0, 255, (ROWS * PIXELS, ROWS * PIXELS, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.ball, self.row = int(self.np_random.integers(ROWS)), 0
        self.paddle = ROWS // 2
        return self._picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), ROWS - 1)
        self.row += 1
        ended = self.row == ROWS - 1
        reward = 0.0 if not ended else 1.0 if self.ball == self.paddle else -1.0
        return self._picture(), reward, ended, False, {}

    def _picture(self) -> NDArray[np.uint8]:
        small = np.zeros((ROWS, ROWS), np.uint8)
        small[ROWS - 1, self.paddle] = 128
        small[self.row, self.ball] = 255
        return np.kron(small, np.ones((PIXELS, PIXELS), np.uint8))[..., None]


class Carts(VecEnv):
    """Carts that are to come to rest at the origin, as a `VecEnv` of rsl_rl."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 2, 100
        self.device, self.cfg = "cpu", {}
        self.generator = torch.Generator().manual_seed(seed)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.position, self.velocity = torch.zeros(2, num_envs, 2)
        self.reset()

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        return self.get_observations(), {}

    def get_observations(self) -> TensorDict:
        seen = torch.cat([self.position, self.velocity], 1)
        return TensorDict({"policy": seen}, [self.num_envs])

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        self.velocity = self.velocity + 0.1 * actions.clamp(-1, 1)
        self.position = self.position + 0.1 * self.velocity
        self.episode_length_buf += 1
        late = self.episode_length_buf >= self.max_episode_length
        lost = self.position.abs().amax(1) > 4
        reward = 1 - self.position.norm(dim=1) / 2 - 0.1 * self.velocity.norm(dim=1)
        self._begin(late | lost)
        return self.get_observations(), reward, (late | lost).long(), {"time_outs": late & ~lost}

    def _begin(self, mask: torch.Tensor) -> None:
        drawn = torch.rand(self.num_envs, 2, generator=self.generator) * 4 - 2
        self.position = torch.where(mask[:, None], drawn, self.position)
        self.velocity = torch.where(mask[:, None], torch.zeros_like(drawn), self.velocity)
        self.episode_length_buf[mask] = 0


def make_carts(num_envs: int, seed: int = 0) -> Carts:
    """Return carts, for `env.target`."""
    return Carts(num_envs, seed)


def make_pendulum() -> TransformedEnv:
    """Return TorchRL's pendulum, for `env.target`."""
    return TransformedEnv(PendulumEnv(), StepCounter(max_steps=200))


if CATCH not in gymnasium.registry:
    gymnasium.register(CATCH, entry_point=Catch)
