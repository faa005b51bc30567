"""How much delay a policy tolerates: a batch flown with old measurements and late commands."""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from navrl.deploy.contract import damping, turning_delay, velocity_lag
from navrl.deploy.exported_pilot import Arrays, ExportedPilot, to_goal_frame
from navrl.deploy.latency.carry_forward import CarryForward, Measured
from navrl.deploy.latency.own_motion import Response
from navrl.deploy.node.node_settings import NodeSettings
from navrl.deploy.robot_inputs import inputs_of
from navrl.deploy.shield import Shield
from navrl.deploy.shielded_pilot import settings_for
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

Array = NDArray[np.float32]
DELAYS_MS = (0, 40, 80, 120, 160, 240, 320)
TOLERATED = 0.02  # loss of success


@dataclass(frozen=True)
class Delayed:
    """Success with a delay on each way, from the sensors and to the motors."""

    delay_ms: float
    success: float


def success_with_delay(
    task: NavigationSettings,
    pilot: ExportedPilot,
    seed: int,
    delay: float,
    *,
    shield: bool = False,
    compensated: bool = True,
) -> float:
    """Return the share of the episodes that reach their goal.

    Args:
        task: one episode for each drone.
        pilot: the exported policy.
        seed: of starts, goals and moving obstacles.
        delay: s on each way, rounded up to simulated steps.
        shield: whether commands pass the shield.
        compensated: whether inputs are carried forward to when their command acts, as the node does
            that knows the delay of its commands.
    """
    settings = copy.deepcopy(task)
    repeat, settings.env.action_repeat = settings.env.action_repeat, 1
    env = NavigationEnv(settings, seed=seed, auto_reset=False)
    steps = math.ceil(delay / settings.sim.dt - 1e-9)
    decide = _Decider(env, pilot, steps, shield, compensated)
    commands: deque[Tensor] = deque([torch.zeros(env.num_envs, 3)] * (steps + 1), steps + 1)
    observation, step = env.reset(), env.make_step()
    command, number, flying = torch.zeros(env.num_envs, 3), 0, True
    while flying:
        if number == 0 or (number + steps) % repeat == 0:  # when a decision will use it
            decide.measure(observation, number)
        if number % repeat == 0:
            command = decide(number)
        commands.append(command)
        env.step(commands[0], out=step)
        observation, number = step.observation, number + 1
        flying = not bool(step.done.all())
    return float(step.statistics[:, STATISTICS.index("success_100")].mean())


class _Decider:
    """Decides for a batch by measurements that are `steps` simulated steps old."""

    def __init__(
        self, env: NavigationEnv, pilot: ExportedPilot, steps: int, shield: bool, compensated: bool
    ) -> None:
        self.env, self.pilot, self.steps = env, pilot, steps
        self.dt = env.settings.sim.dt
        settings = settings_for(env)
        self.shield = Shield(settings) if shield else None
        drone = env.settings.drone
        self.ahead = CarryForward(
            Response(velocity_lag(drone), damping(drone), turning_delay(drone)),
            settings.elevations,
            settings.lidar_range,
            delay=steps * self.dt,
            longest=NodeSettings().max_age,
        )
        self.compensated = compensated and steps > 0
        self._measured: deque[tuple[int, dict[str, Tensor], Tensor]] = deque()

    def measure(self, observation: dict[str, Tensor], number: int) -> None:
        """Keep what is measured at a step."""
        self._measured.append((number, inputs_of(self.env, observation), self.env.yaw))

    def __call__(self, number: int) -> Tensor:
        """Return commands in the goal frame for the newest measurements that have arrived."""
        while len(self._measured) > 1 and self._measured[1][0] <= number - self.steps:
            self._measured.popleft()
        when, inputs, yaw = self._measured[0]
        arrays = {name: value.numpy() for name, value in inputs.items()}
        if self.compensated:
            arrays |= self._carried(arrays, yaw.numpy(), when * self.dt, number * self.dt)
        world = self.pilot.command(arrays)
        if self.shield is not None:
            world = self.shield(
                world,
                position=arrays["position"],
                velocity=arrays["velocity"],
                lidar=arrays["lidar"],
                bearing=yaw,
                obstacles=arrays["obstacles"],
                goal=arrays["goal"],
            ).velocity.astype("float32")
        self.ahead.sent.add(number * self.dt, world)
        return to_goal_frame(torch.from_numpy(world), self.env.forward)

    def _carried(self, arrays: Arrays, yaw: Array, at: float, now: float) -> dict[str, Array]:
        """Return the inputs that change on the way from their measurement to the command."""
        moved = ("position", "velocity", "lidar", "obstacles")
        position, velocity, lidar, obstacles = (arrays[name].astype(float) for name in moved)
        measured = Measured(position, velocity, lidar, yaw.astype(float), obstacles, at, at, at)
        carried = self.ahead(measured, now)
        return {name: getattr(carried, name).astype("float32") for name in moved}


def tolerated_ms(found: list[Delayed]) -> float:
    """Return the longest delay up to which success falls by no more than `TOLERATED`."""
    longest = 0.0
    for one in found[1:]:
        if one.success < found[0].success - TOLERATED:
            break
        longest = one.delay_ms
    return longest
