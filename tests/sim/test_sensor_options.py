"""Missed detections, noise and delay: they change what a drone observes, and nothing else."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from navrl.sim import reference
from navrl.sim.draws import DETECTION_DROPOUT, DETECTION_NOISE, POSITION_NOISE, normal, uniform
from navrl.sim.env import NavigationEnv
from navrl.sim.kernels.layout import DIRECTION, EPISODE, STEP
from navrl.sim.settings import NavigationSettings

DRONES, SEED = 24, 5
SMALL = {
    "env__num_envs": DRONES,
    "env__num_worlds": 2,
    "env__num_obstacles": 60,
    "env_dyn__num_obstacles": 400,
}
IMPERFECT = {
    "sensor__detection_dropout": 0.3,
    "sensor__detection_noise": 0.2,
    "sensor__position_noise": 0.5,
    "sensor__observation_delay": 3,
}


def make(**overrides) -> NavigationEnv:
    settings = NavigationSettings.of(**{**SMALL, **overrides})
    return NavigationEnv(settings, seed=SEED)


def actions(number: int) -> torch.Tensor:
    return torch.randn(DRONES, 3, generator=torch.Generator().manual_seed(number))


def scatter(env: NavigationEnv) -> dict[str, torch.Tensor]:
    generator = np.random.default_rng(0)
    low, high = [-15, -15, 1], [15, 15, 3]
    return env.place(*generator.uniform(low, high, (2, DRONES, 3)))


def obstacles_of(env: NavigationEnv) -> reference.MovingObstacles:
    """The moving obstacles of each drone's own world."""
    worlds = [env.obstacles(world) for world in range(len(env.pool.worlds))]
    own = {key: torch.stack([world[key] for world in worlds])[env.world] for key in worlds[0]}
    parts = [own[key].double() for key in ("position", "velocity", "width")]
    return reference.MovingObstacles(*parts, worlds[0]["tall"])


def observed(env: NavigationEnv, obstacles, **options) -> dict[str, torch.Tensor]:
    """What the reference observes of these obstacles."""
    direction = torch.from_numpy(env._batch.field(DIRECTION, 3)).double()
    drone = reference.hover(env.position.double(), env.yaw.double())
    return reference.observe(drone, env.target.double(), direction, obstacles, **options)


def draws(draw, env: NavigationEnv, purpose: int, *numbers: int) -> torch.Tensor:
    """The random numbers of all drones at this moment, (N, *numbers)."""
    counters = env._batch.arrays["counters"].astype(np.int64)
    moments = (counters[:, EPISODE] << 24) + counters[:, STEP]
    values = [
        [draw(SEED, purpose, drone, moment, k) for k in range(int(np.prod(numbers)))]
        for drone, moment in enumerate(moments)
    ]
    return torch.tensor(values, dtype=torch.float64).view(DRONES, *numbers)


@pytest.mark.slow
def test_missed_and_misplaced_obstacles_are_those_of_the_reference():
    env = make(sensor__detection_dropout=0.3, sensor__detection_noise=0.2)
    seen = scatter(env)["dynamic_obstacle"][:, 0].double()
    truth = obstacles_of(env)
    missed = draws(uniform, env, DETECTION_DROPOUT, 400) < np.float32(0.3)
    error = 0.2 * draws(normal, env, DETECTION_NOISE, 400, 3)
    expected = observed(env, reference.detected(truth, missed, error))["dynamic_obstacle"]
    assert torch.allclose(seen, expected, atol=1e-4)
    assert not torch.allclose(seen, observed(env, truth)["dynamic_obstacle"], atol=0.05)


def test_position_noise_moves_the_goal_as_in_the_reference():
    env = make(sensor__position_noise=0.5)
    seen = scatter(env)
    error = 0.5 * draws(normal, env, POSITION_NOISE, 3)
    expected = observed(env, obstacles_of(env), position_error=error)
    assert torch.allclose(seen["state"].double(), expected["state"], atol=1e-4)
    assert torch.allclose(
        seen["dynamic_obstacle"][:, 0].double(), expected["dynamic_obstacle"], atol=1e-4
    )


@pytest.mark.parametrize(("dropout", "share"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_the_share_of_missed_obstacles_is_as_set(dropout, share):
    env = make(sensor__detection_dropout=dropout, env__num_observed=32)
    seen = int(scatter(env)["dynamic_obstacle"].any(-1).sum())
    present = int(observed(env, obstacles_of(env), count=32)["dynamic_obstacle"].any(-1).sum())
    assert present > 100
    assert seen == pytest.approx(share * present, abs=0.1 * present)


def test_noise_and_delay_change_neither_flights_nor_rewards_nor_endings():
    perfect, imperfect = make(env__action_repeat=3), make(env__action_repeat=3, **IMPERFECT)
    perfect.reset()
    imperfect.reset()
    ended = 0
    for number in range(150):
        one, other = perfect.step(actions(number)), imperfect.step(actions(number))
        assert torch.equal(one.reward, other.reward)
        assert torch.equal(one.terminated, other.terminated)
        assert torch.equal(perfect.position, imperfect.position)
        ended += int(one.done.sum())
    assert ended > 0


def test_looking_twice_shows_the_same():
    env = make(**IMPERFECT)
    env.reset()
    env.step(actions(0))
    assert torch.equal(env.observe_packed(), env.observe_packed())


def test_delayed_observations_are_those_of_earlier_decisions_of_the_same_episode():
    options = {"env__action_repeat": 3, "env__max_episode_length": 50}
    now, late = make(**options), make(**options, sensor__observation_delay=4)
    width = now.layout.width - now.layout.padding
    past = [[row] for row in now.reset()["state"]]  # of each drone's episode
    assert torch.equal(late.reset()["state"], torch.stack([rows[0] for rows in past]))
    finished = 0
    for number in range(60):
        one, other = now.step(actions(number)), late.step(actions(number))
        for drone in range(DRONES):
            if one.done[drone]:
                past[drone].append(one.final_observation["state"][drone].clone())
                expected = reference.delayed(torch.stack(past[drone]), 4)[-1]
                assert torch.equal(other.final_observation["state"][drone], expected)
                past[drone] = []
                finished += 1
            past[drone].append(one.observation["state"][drone].clone())
        expected = [reference.delayed(torch.stack(rows), 4)[-1] for rows in past]
        assert torch.equal(other.observation["state"], torch.stack(expected))
        assert torch.equal(other.packed[:, :width], late.observe_packed()[:, :width])
    assert finished > DRONES


def test_a_share_of_the_episodes_is_observed_perfectly_from_start_to_end():
    options = {"env__max_episode_length": 20, "sensor__noise": 0.1, "sensor__dropout": 0.2}
    perfect = make(env__max_episode_length=20)
    imperfect = make(**options, **IMPERFECT)
    mixed = make(**options, **IMPERFECT, sensor__perfect_share=0.4)
    for env in (perfect, imperfect, mixed):
        env.reset()
    kinds = set()  # drone, episode, whether it was perfect
    for number in range(200):
        rows = [env.step(actions(number)).packed for env in (perfect, imperfect, mixed)]
        as_perfect, as_imperfect = ((rows[2] == row).all(1) for row in rows[:2])
        assert (as_perfect | as_imperfect).all()
        episodes = mixed._batch.arrays["counters"][:, EPISODE].tolist()
        differ = (rows[0] != rows[1]).any(1)
        kinds |= {
            (drone, episodes[drone], bool(as_perfect[drone]))
            for drone in range(DRONES)
            if differ[drone]
        }
    flown = {(drone, episode) for drone, episode, _ in kinds}
    assert len(kinds) == len(flown) > 200  # no episode is both
    assert sum(kind for *_, kind in kinds) == pytest.approx(0.4 * len(flown), rel=0.25)


def test_a_copy_of_an_environment_remembers_what_is_delayed():
    env = make(**IMPERFECT)
    env.reset()
    for number in range(10):
        env.step(actions(number))
    copied = pickle.loads(pickle.dumps(env))
    for number in range(5):
        assert torch.equal(env.step(actions(number)).packed, copied.step(actions(number)).packed)


def test_a_state_without_delayed_observations_is_as_small_as_before():
    assert "observed" not in make().state_dict()
    assert "observed" in make(sensor__observation_delay=1).state_dict()


def test_a_walled_field_has_the_trips_of_the_crossing_layout():
    walled, crossing = make(env__layout="walled"), make(env__layout="navrl_eval")
    walled.reset()
    crossing.reset()
    assert torch.equal(walled.position, crossing.position)
    assert torch.equal(walled.target, crossing.target)


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("y", [-24.0, 0.0, 24.0])
def test_a_drone_that_leaves_a_walled_field_sideways_collides(side, y):
    options = {"env__num_obstacles": 0, "env_dyn__num_obstacles": 0, "env__action_frame": "world"}
    env = make(env__layout="walled", **options)
    env.place([side * 19.0, y, 3.9], [side * 24.0, y, 3.9])
    for _ in range(100):
        step = env.step(np.tile(np.float32([2 * side, 0, 0]), (DRONES, 1)))
        if step.done.any():
            break
    assert step.episodes()["static_collision"].tolist() == [1] * DRONES
    assert step.final_observation["state"][:, 3].min() > 4.0  # m still to go: before x = 20


def test_walls_are_at_twenty_metres():
    options = {"env__num_obstacles": 0, "env_dyn__num_obstacles": 0}
    env = make(env__layout="walled", **options)
    scan = env.place([18.0, 3.0, 2.0], [24.0, 3.0, 2.0])["lidar"]
    assert (4 - scan[:, 0, 0, 1]).numpy() == pytest.approx(2.0, abs=1e-4)
