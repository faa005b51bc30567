"""Moving obstacles: what they are, where they go, and in which world."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from navrl.sim import reference
from navrl.sim.draws import OBSTACLE_GOAL, OBSTACLE_SPEED, uniform
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

STEPS = 300


def make(seed=3, **overrides):
    chosen = {"env__num_envs": 4, "env__num_worlds": 1, "env__num_obstacles": 0}
    env = NavigationEnv(NavigationSettings.of(**(chosen | overrides)), seed=seed)
    env.reset()
    return env


def idle(env):
    return env.step(torch.zeros(env.num_envs, 3))


def field(env, name, world=0):
    """A part of the saved state of the moving obstacles of a world, (D, 3)."""
    return env.state_dict()[name][world, :, : int(env.pool.moving_counts[world])].T


@pytest.fixture(scope="module")
def watched():
    """Positions, velocities and goals of 80 obstacles over 300 steps, (STEPS, 80, 3) each, and
    their origins.
    """
    env = make()
    seen = {"position": [], "velocity": [], "goals": []}
    for _ in range(STEPS):
        idle(env)
        now = env.obstacles(0)
        seen["position"].append(now["position"])
        seen["velocity"].append(now["velocity"])
        seen["goals"].append(field(env, "goals"))
    return {name: torch.stack(values) for name, values in seen.items()} | {
        "origins": field(env, "origins"),
        "env": env,
    }


# What they are


@pytest.mark.parametrize(
    ("wanted", "given"), [(0, 0), (7, 0), (8, 8), (15, 8), (80, 80), (87, 80), (400, 400)]
)
def test_their_number_is_rounded_down_to_a_multiple_of_eight(wanted, given):
    moving = make(env_dyn__num_obstacles=wanted).obstacles(0)
    assert moving["position"].shape == (given, 3)
    assert moving["velocity"].shape == (given, 3)
    assert moving["width"].shape == moving["tall"].shape == (given,)


@pytest.mark.parametrize("number", [8, 80])
def test_there_are_eight_equal_classes_boxes_first(number):
    moving = make(env_dyn__num_obstacles=number).obstacles(0)
    widths = torch.tensor([0.25, 0.5, 0.75, 1.0] * 2).repeat_interleave(number // 8)
    assert torch.equal(moving["width"], widths)
    assert torch.equal(moving["tall"], torch.arange(number) >= number // 2)


def test_origins_lie_in_the_arena_and_the_tall_ones_in_the_middle(watched):
    origins = watched["origins"]
    assert origins[:, :2].abs().max() <= 20
    assert origins[:40, 2].min() >= 0
    assert origins[:40, 2].max() <= 4.5
    assert (origins[40:, 2] == 2.5).all()


@pytest.mark.parametrize("number", [8, 80, 160])
def test_origins_keep_apart_as_far_as_there_is_room(number):
    origins = field(make(env_dyn__num_obstacles=number), "origins")[:, :2]
    apart = 2 * math.sqrt(400 / number)
    distances = torch.cdist(origins, origins) + 1e9 * torch.eye(number)
    # while there is room for all
    assert distances[: number // 3, : number // 3].min() >= apart - 1e-4
    assert distances.min() >= 0.8**3 * apart  # then a little closer, step by step


def test_before_the_first_step_they_stand_at_their_origins():
    env = make()
    torch.testing.assert_close(env.obstacles(0)["position"], field(env, "origins"))


# Where they go


def test_speeds_stay_within_their_range(watched):
    speeds = watched["velocity"].norm(dim=-1)
    assert speeds.min() >= 0.5 - 1e-4
    assert speeds.max() <= 1.5 + 1e-4
    assert speeds.min() < 0.6
    assert speeds.max() > 1.4


def test_the_range_of_speeds_is_that_of_the_settings():
    env = make(env_dyn__vel_range=[2.0, 2.5])
    idle(env)
    speeds = env.obstacles(0)["velocity"].norm(dim=1)
    assert speeds.min() >= 2.0 - 1e-4
    assert speeds.max() <= 2.5 + 1e-4


def test_velocities_change_only_every_125_steps(watched):
    changed = (watched["velocity"][1:] != watched["velocity"][:-1]).any(-1)
    moments = changed.any(1).nonzero()[:, 0] + 1  # steps are counted from 0
    assert moments.tolist() == [125, 250]
    assert changed[124].all()


@pytest.mark.parametrize(("dt", "ticks"), [(0.05, 40), (0.03, 66)])
def test_velocities_change_every_two_seconds_whatever_the_time_step(dt, ticks):
    env = make(sim__dt=dt)
    velocities = []
    for _ in range(ticks + 2):
        idle(env)
        velocities.append(env.obstacles(0)["velocity"])
    same = [torch.equal(a, b) for a, b in itertools.pairwise(velocities)]
    assert same == [True] * (ticks - 1) + [False, True]


def test_positions_are_the_sum_of_velocities(watched):
    expected = watched["origins"] + 0.016 * watched["velocity"].cumsum(0)
    torch.testing.assert_close(watched["position"], expected, rtol=0, atol=1e-3)


def test_tall_ones_never_leave_their_height(watched):
    assert (watched["position"][:, 40:, 2] == 2.5).all()
    assert (watched["velocity"][:, 40:, 2] == 0).all()


def test_goals_stay_inside_the_arena_and_obstacles_near_it(watched):
    assert watched["goals"][..., :2].abs().max() <= 20
    assert watched["goals"][..., 2].min() >= 0
    assert watched["goals"][..., 2].max() <= 4.5
    # overshoot: two seconds of the fastest
    assert watched["position"][..., :2].abs().max() <= 20 + 3.0


def test_goals_stay_within_the_local_range_of_the_origins(watched):
    offset = watched["goals"] - watched["origins"]
    assert offset[..., :2].abs().max() <= 5 + 1e-4
    assert offset[..., :2].abs().max() > 4.5
    assert offset[:, :40, 2].max() <= 4 + 1e-4
    assert offset[:, :40, 2].min() >= -5 - 1e-4


@pytest.mark.parametrize(("asymmetric", "low", "high"), [(True, -0.5, 0.3), (False, -0.4, 0.4)])
def test_goal_heights_are_drawn_from_the_asymmetric_or_the_symmetric_range(asymmetric, low, high):
    env = make(
        env_dyn__local_range=[0.2, 0.5, 0.4],
        env_dyn__asymmetric_goals=asymmetric,
        env_dyn__num_obstacles=400,
    )
    offsets = []
    for _ in range(20):
        idle(env)
        offsets.append(field(env, "goals") - field(env, "origins"))
    # not clamped
    free = (field(env, "origins")[:200, 2] > 0.6) & (field(env, "origins")[:200, 2] < 3.9)
    heights = torch.stack(offsets)[:, :200, 2][:, free]
    assert heights.min().item() == pytest.approx(low, abs=0.01)
    assert heights.max().item() == pytest.approx(high, abs=0.01)
    inner = torch.stack(offsets)[..., :2]
    assert inner[..., 0].abs().max() <= 0.2 + 1e-4
    assert 0.2 < inner[..., 1].abs().max() <= 0.5 + 1e-4


def test_a_goal_changes_only_when_it_has_been_reached(watched):
    goals, position = watched["goals"], watched["position"]
    changed = (goals[2:] != goals[1:-1]).any(-1)  # the goals are one step ahead of the positions
    distance = (goals[1:-1] - position[2:]).norm(dim=-1)
    assert changed.any()
    assert (distance[changed] < 0.5 + 1e-3).all()
    # limited to the arena, the next goal may be the same
    corner = (goals[1:-1, :, :2].abs() == 20).all(-1)
    assert (distance[~changed & ~corner] >= 0.5 - 1e-3).all()


@pytest.mark.parametrize("asymmetric", [True, False])
def test_they_move_as_the_reference_says(asymmetric):
    env = make(env__num_worlds=2, env_dyn__asymmetric_goals=asymmetric, seed=9)
    padded = env.pool.padded_moving
    for number in range(130):
        before = env.state_dict()
        idle(env)
        if number not in (0, 1, 60, 123, 124, 125, 126):
            continue
        after, moment = env.state_dict(), before["time"]
        for world in range(2):

            def part(state, name, world=world):
                return state[name][world, :, :80].T.double()

            draws = [
                [uniform(9, OBSTACLE_GOAL, world * padded + k, moment, i) for i in range(3)]
                for k in range(80)
            ]
            speeds = [uniform(9, OBSTACLE_SPEED, world * padded + k, moment, 0) for k in range(80)]
            position, velocity, goal = reference.advance_obstacles(
                part(before, "positions"),
                part(before, "velocities"),
                part(before, "goals"),
                part(before, "origins"),
                env.obstacles(world)["tall"],
                moment,
                torch.tensor(draws).double(),
                torch.tensor(speeds).double(),
                symmetric_height=not asymmetric,
            )
            torch.testing.assert_close(part(after, "positions"), position, rtol=0, atol=1e-5)
            torch.testing.assert_close(part(after, "velocities"), velocity, rtol=0, atol=1e-5)
            torch.testing.assert_close(part(after, "goals"), goal, rtol=0, atol=1e-5)


def test_the_drones_see_them_where_they_are_reported():
    env = make(env__num_envs=32)
    idle(env)
    now = env.obstacles(0)
    k = torch.arange(32)
    seen = env.place(now["position"][k] + torch.tensor([0, 1.0, 0]), [60, 0, 2])[
        "dynamic_obstacle"
    ][:, 0, 0]
    nearest = torch.cdist(env.position[:, :2], now["position"][:, :2])
    torch.testing.assert_close(seen[:, 3], nearest.amin(1), rtol=0, atol=1e-4)
    torch.testing.assert_close(seen[:, 8], now["width"][nearest.argmin(1)] * 4 - 1)


def test_they_do_not_care_about_resets():
    calm, restless = make(), make()
    for number in range(10):
        idle(calm)
        idle(restless)
        if number % 3 == 0:
            restless.reset()
    assert torch.equal(calm.obstacles(0)["position"], restless.obstacles(0)["position"])


# In which world


def test_each_world_has_its_own():
    env = make(env__num_worlds=2)
    assert not torch.equal(env.obstacles(0)["position"], env.obstacles(1)["position"])


def test_a_list_of_counts_is_cycled_over_the_worlds():
    env = make(env__num_worlds=5, env_dyn__obstacles_per_world=[0, 20, 40])
    assert [len(env.obstacles(world)["width"]) for world in range(5)] == [0, 16, 40, 0, 16]


def test_drones_of_a_world_without_any_see_none_of_the_others():
    env = make(env__num_envs=8, env__num_worlds=2, env_dyn__obstacles_per_world=[0, 400])
    env.place([0, 0, 2], [10, 0, 2], world=np.arange(8) % 2)
    rows = idle(env).observation["dynamic_obstacle"]
    assert (rows[::2] == 0).all()
    assert (rows[1::2] != 0).any(-1).any()


def test_drones_are_spread_evenly_over_the_worlds_at_first():
    env = make(env__num_envs=10, env__num_worlds=4)
    assert env.world.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_resets_draw_all_worlds_equally_often():
    env = make(env__num_envs=64, env__num_worlds=4)
    counts = torch.zeros(4)
    for _ in range(40):
        env.reset()
        counts += torch.bincount(env.world, minlength=4)
    torch.testing.assert_close(counts / counts.sum(), torch.full((4,), 0.25), rtol=0, atol=0.03)


def test_resets_follow_the_probabilities_of_a_curriculum():
    env = make(env__num_envs=64, env__num_worlds=4)
    env.set_world_probabilities([0, 3, 0, 1])
    counts = torch.zeros(4)
    for _ in range(40):
        env.reset()
        counts += torch.bincount(env.world, minlength=4)
    assert counts[0] == counts[2] == 0
    assert (counts[1] / counts.sum()).item() == pytest.approx(0.75, abs=0.03)


def test_probabilities_hold_for_automatic_resets_too():
    env = make(env__num_envs=32, env__num_worlds=3, env__max_episode_length=1)
    env.set_world_probabilities([0, 0, 1])
    idle(env)
    assert (env.world == 2).all()


def test_drones_stay_in_their_world_where_it_may_not_change():
    env = make(env__num_envs=8, env__num_worlds=4, env__change_world_at_reset=False)
    for _ in range(3):
        env.reset()
        assert env.world.tolist() == [0, 1, 2, 3] * 2


def test_a_drone_can_be_placed_in_a_world():
    env = make(env__num_envs=8, env__num_worlds=4)
    env.place([0, 0, 2], [10, 0, 2], world=3)
    assert (env.world == 3).all()


def test_all_drones_can_be_moved_to_one_world():
    env = make(env__num_envs=8, env__num_worlds=4, env__change_world_at_reset=False)
    env.set_all_worlds(2)
    env.reset()
    assert (env.world == 2).all()
