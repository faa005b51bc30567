"""How much delay a policy tolerates: a batch flown with old measurements and late commands."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from navrl.deploy.exported_pilot import ExportedPilot, to_goal_frame
from navrl.deploy.robot_inputs import inputs_of
from navrl.deploy.shield import Shield
from navrl.deploy.shielded_pilot import settings_for
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

DELAYS_MS = (0, 40, 80, 120, 160, 240, 320)
TOLERATED = 0.02  # loss of success


@dataclass(frozen=True)
class Delayed:
    """Success with a delay on each way, from the sensors and to the motors."""

    delay_ms: float
    success: float


def success_with_delay(
    task: NavigationSettings, pilot: ExportedPilot, seed: int, delay: float, *, shield: bool = False
) -> float:
    """Return the share of the episodes that reach their goal.

    Args:
        task: one episode for each drone.
        pilot: the exported policy.
        seed: of starts, goals and moving obstacles.
        delay: s on each way, rounded up to simulated steps.
        shield: whether commands pass the shield.
    """
    settings = copy.deepcopy(task)
    repeat, settings.env.action_repeat = settings.env.action_repeat, 1
    env = NavigationEnv(settings, seed=seed, auto_reset=False)
    steps = math.ceil(delay / settings.sim.dt - 1e-9)
    decide = _decider(env, pilot, shield)
    measured: deque[tuple[dict[str, Tensor], Tensor]] = deque(maxlen=steps + 1)
    commands: deque[Tensor] = deque([torch.zeros(env.num_envs, 3)] * (steps + 1), steps + 1)
    observation, step = env.reset(), env.make_step()
    command, number, flying = torch.zeros(env.num_envs, 3), 0, True
    while flying:
        if steps or number % repeat == 0:
            measured.append((inputs_of(env, observation), env.yaw))
        if number % repeat == 0:
            command = decide(*measured[0])
        commands.append(command)
        env.step(commands[0], out=step)
        observation, number = step.observation, number + 1
        flying = not bool(step.done.all())
    return float(step.statistics[:, STATISTICS.index("success_100")].mean())


def _decider(
    env: NavigationEnv, pilot: ExportedPilot, shield: bool
) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    filtered = Shield(settings_for(env)) if shield else None

    def decide(inputs: dict[str, Tensor], yaw: Tensor) -> Tensor:
        world = pilot.command({name: value.numpy() for name, value in inputs.items()})
        if filtered is not None:
            result = filtered(
                world,
                position=inputs["position"],
                velocity=inputs["velocity"],
                lidar=inputs["lidar"],
                bearing=yaw,
                obstacles=inputs["obstacles"],
                goal=inputs["goal"],
            )
            world = result.velocity.astype("float32")
        return to_goal_frame(torch.from_numpy(world), env.forward)

    return decide


def tolerated_ms(found: list[Delayed]) -> float:
    """Return the longest delay up to which success falls by no more than `TOLERATED`."""
    longest = 0.0
    for one in found[1:]:
        if one.success < found[0].success - TOLERATED:
            break
        longest = one.delay_ms
    return longest
