"""The left-right reflection: it is that of the simulator, and PPO learns from what it reflects."""

from __future__ import annotations

import copy

import torch

from navrl.navigation_observation import navigation_layout
from navrl.rl.accelerate import PlainNetwork
from navrl.rl.action_space import Box
from navrl.rl.collect import Rollout
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.mirror import Mirror
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.ppo import PPO, PPOSettings
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

LAYOUT = navigation_layout()


def test_reflecting_twice_gives_the_row_and_the_action_back():
    mirror, rows, actions = Mirror(LAYOUT), torch.randn(5, LAYOUT.width), torch.rand(5, 3)
    assert torch.equal(mirror.rows(mirror.rows(rows)), rows)
    torch.testing.assert_close(mirror.actions(mirror.actions(actions)), actions)
    assert not torch.equal(mirror.rows(rows), rows)


WORLD = """
boxes: [{{center: [-6, {side}1.5, 2], size: [1, 2, 4]}}]
cylinders: [{{center: [-4, {side}2.5], radius: 0.6, height: 4}}]
starts: [[-8, 0, 1.5]]
goals: [[9, 0, 1.5]]
"""


def flown(tmp_path, side):
    """Return the observations of a flight past obstacles to the left or, with "-", the right."""
    path = tmp_path / f"world{side}.yaml"
    path.write_text(WORLD.format(side=side))
    settings = NavigationSettings.of(
        env__num_envs=1,
        env__num_worlds=1,
        env__world_files=[str(path)],
        env__action_frame="goal",
        env__action_repeat=6,
        env_dyn__num_obstacles=0,
    )
    env = NavigationEnv(settings, seed=0)
    env.reset()
    command = torch.tensor([[1.0, 0.4 if side else -0.4, 0.2]])
    rows = [env.step(command).packed.clone() for _ in range(20)]
    return env.layout, torch.cat(rows)


def test_a_flight_through_the_reflected_world_shows_the_reflected_observations(tmp_path):
    layout, left = flown(tmp_path, "")
    _, right = flown(tmp_path, "-")
    assert (layout.split(left)["lidar"] < 3.9).any()
    assert layout.split(left)["state"][-1, 6].abs() > 0.1
    assert (left - right).abs().max() > 0.5
    # not to the bit: the order in which the rotors are summed is not reflected
    torch.testing.assert_close(Mirror(layout).rows(left), right, rtol=0, atol=0.03)


def rollout(rows, action):
    steps, drones = action.shape[:2]
    generator = torch.Generator().manual_seed(1)
    return Rollout(
        rows=rows,
        action=action,
        log_prob=torch.zeros(steps, drones),
        value=torch.randn(steps + 1, drones, generator=generator),
        reward=torch.randn(steps, drones, generator=generator),
        done=torch.zeros(steps, drones),
        truncated_value=torch.zeros(steps, drones),
    )


def updated(network, batch, share):
    settings = PPOSettings(num_minibatches=1, mirror_share=share)
    mirror = Mirror(LAYOUT) if share else None
    unit = distribution_for(Box.of(3, 0.0, 1.0))
    generator = torch.Generator().manual_seed(0)
    PPO(network, PlainNetwork(network), unit, settings, generator, mirror=mirror).update(batch)
    return network


def test_learning_from_reflected_samples_is_learning_from_a_reflected_batch():
    torch.manual_seed(0)
    network, mirror = NavigationNetwork(), Mirror(LAYOUT)
    rows, action = torch.randn(5, 8, LAYOUT.width), torch.rand(4, 8, 3).clamp(0.01, 0.99)
    before = rows.clone()
    ours = updated(copy.deepcopy(network), rollout(rows, action), 1.0)
    assert torch.equal(rows, before)  # a batch may still be written to a file
    reflected = mirror.rows(rows.flatten(0, 1)).view_as(rows)
    theirs = updated(
        copy.deepcopy(network),
        rollout(reflected, mirror.actions(action.flatten(0, 1)).view_as(action)),
        0.0,
    )
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
