"""What ends an episode, what is paid and what is counted, on hand-made worlds and states."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navrl.config import load_config
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

# A drone that has the commanded velocity after one step, commanded in the world frame: motion that
# can be done by hand.
INSTANT = {
    "drone__model_name": "first_order",
    "drone__time_constant": 0.001,
    "env__action_frame": "world",
}
NO_REWARD = {
    f"reward__{name}": 0.0
    for name in ("progress", "alive", "static", "dynamic", "smoothness", "height")
}
NO_REWARD |= {"reward__goal": 0.0, "reward__collision": 0.0, "reward__per_second": False}
DT = 0.016
DRONES = 8
WALL = "boxes: [{center: [2.5, 0, 3], size: [1, 10, 6]}]"  # its face is at x = 2


def make(auto_reset=False, seed=0, **overrides):
    chosen = {
        "env__num_envs": DRONES,
        "env__num_worlds": 1,
        "env__num_obstacles": 0,
        "env_dyn__num_obstacles": 0,
    }
    return NavigationEnv(
        NavigationSettings.of(**(chosen | overrides)), seed=seed, auto_reset=auto_reset
    )


def make_in(folder, text, **overrides):
    path = folder / "world.yaml"
    path.write_text(text)
    return make(env__world_files=[str(path)], **overrides)


def fly(env, *velocity, steps=1):
    for _ in range(steps):
        step = env.step(torch.tensor(velocity, dtype=torch.float32).expand(env.num_envs, 3))
    return step


def speed_for(metres):
    return metres / DT


def statistics(step, drone=0):
    return dict(zip(STATISTICS, step.statistics[drone].tolist(), strict=True))


def outcome(step, drone=0):
    counted = statistics(step, drone)
    names = (
        "success_050",
        "success_100",
        "static_collision",
        "dynamic_collision",
        "out_of_bounds",
        "time_out",
    )
    return {name for name in names if counted[name] == 1}


# The goal


def test_coming_within_the_goal_radius_ends_the_episode():
    env = make(**INSTANT)
    env.place([0, 0, 2], [1, 0, 2])
    step = fly(env, speed_for(0.55), 0, 0)
    assert step.terminated.all()
    assert not step.truncated.any()
    assert outcome(step) == {"success_050", "success_100"}


def test_half_a_metre_and_a_bit_does_not_end_the_episode():
    env = make(**INSTANT)
    env.place([0, 0, 2], [1, 0, 2])
    assert not fly(env, speed_for(0.49), 0, 0).done.any()


def test_the_goal_is_a_ball_not_a_disc():
    env = make(**INSTANT)
    env.place([0, 0, 2], [1, 0, 2.8])
    assert not fly(env, speed_for(0.9), 0, 0).done.any()


def test_the_goal_radius_is_that_of_the_settings():
    env = make(env__goal_radius=3.0, **INSTANT)
    env.place([0, 0, 2], [3.5, 0, 2])
    step = fly(env, speed_for(0.6), 0, 0)
    assert step.terminated.all()
    assert outcome(step) == set()  # the two recorded radii stay 0.5 and 1.0 m
    assert statistics(step)["at_goal"] == 1


def trips(**overrides):
    """Return the distances from start to target of many drones, and what they see."""
    state = make(env__num_envs=8192, **overrides).reset()["state"]
    return state[:, 3:5].norm(dim=1), state


def test_no_random_trip_is_shorter_than_the_settings_say_and_longer_ones_stay_as_they_are():
    any_length, before = trips(env__min_trip_length=0.0)
    assert (any_length < 0.5).any()  # at its goal from the beginning
    for shortest in (2.0, 40.0):
        distance, state = trips(env__min_trip_length=shortest)
        assert distance.min() >= shortest - 1e-4
        kept = any_length >= shortest + 1e-4
        assert torch.equal(state[kept], before[kept])


def test_nobody_begins_at_the_goal_unless_in_the_originals_task():
    assert trips()[0].min() >= 2.0 - 1e-4
    assert load_config(["env=navrl_exact"]).env.min_trip_length == 0


def test_the_trip_from_a_given_start_has_its_least_length_too(tmp_path):
    env = make_in(
        tmp_path, "starts: [[20, 20, 1.5]]", env__num_envs=4096, env__min_trip_length=10.0
    )
    assert env.reset()["state"][:, 3:5].norm(dim=1).min() >= 10.0 - 1e-4


def test_in_the_originals_task_the_goal_ends_nothing():
    config = load_config(
        [
            "env=navrl_exact",
            "env.num_envs=8",
            "env.num_obstacles=0",
            "env_dyn.num_obstacles=0",
            "env.max_episode_length=3",
            "drone.model_name=first_order",
            "drone.time_constant=0.001",
        ]
    )
    env = NavigationEnv(config.task, auto_reset=False)
    env.place([0, 0, 2], [1, 0, 2])
    step = fly(env, speed_for(0.7), 0, 0)
    assert not step.done.any()
    step = fly(env, 0, 0, 0, steps=2)
    assert step.truncated.all()
    assert outcome(step) == {"success_050", "success_100", "time_out"}
    assert statistics(step)["at_goal"] == 1


def test_passing_at_0_7_metres_is_a_success_at_one_metre_only():
    env = make(env__max_episode_length=2, **INSTANT)
    env.place([0, 0, 2], [1, 0.7, 2])
    step = fly(env, speed_for(1.0), 0, 0)
    assert not step.done.any()
    step = fly(env, 0, 0, 0)
    assert outcome(step) == {"success_100", "time_out"}


@pytest.mark.parametrize(
    ("metres", "successes"), [(1.02, {"time_out"}), (0.98, {"success_100", "time_out"})]
)
def test_a_success_at_one_metre_is_less_than_one_metre_away(metres, successes):
    env = make(env__max_episode_length=1, **INSTANT)
    env.place([0, 0, 2], [3, 0, 2])
    assert outcome(fly(env, speed_for(3 - metres), 0, 0)) == successes


def test_a_goal_that_was_left_again_counts_as_a_success_but_not_as_being_there():
    env = make(env__goal_ends_episode=False, env__max_episode_length=2, **INSTANT)
    env.place([0, 0, 2], [1, 0, 2])
    fly(env, speed_for(1.0), 0, 0)
    step = fly(env, speed_for(3.0), 0, 0)
    assert outcome(step) == {"success_050", "success_100", "time_out"}
    assert statistics(step)["at_goal"] == 0


def test_the_time_to_the_goal_is_when_one_metre_was_first_reached():
    env = make(**INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    fly(env, speed_for(2.9), 0, 0, steps=3)  # 1.3 m away
    fly(env, speed_for(0.5), 0, 0)  # 0.8 m away: the fourth step
    step = fly(env, speed_for(0.5), 0, 0)
    assert step.terminated.all()
    assert statistics(step)["time_to_goal"] == pytest.approx(4 * DT)
    assert statistics(step)["length"] == 5


def test_the_time_to_a_goal_that_was_never_reached_is_zero():
    env = make(env__max_episode_length=1, **INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    assert statistics(fly(env, 0, 0, 0))["time_to_goal"] == 0


# Time


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_time_out_is_a_truncation_at_exactly_the_maximal_length(repeat):
    env = make(env__max_episode_length=6, env__action_repeat=repeat, **INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    for _ in range(6 // repeat - 1):
        assert not fly(env, 0, 0, 0).done.any()
    step = fly(env, 0, 0, 0)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert outcome(step) == {"time_out"}
    assert statistics(step)["length"] == 6


def test_a_time_out_in_the_middle_of_a_decision_counts_its_own_steps():
    env = make(env__max_episode_length=5, env__action_repeat=3, **INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    fly(env, 0, 0, 0)
    step = fly(env, 0, 0, 0)
    assert step.truncated.all()
    assert statistics(step)["length"] == 5


def test_reaching_the_goal_in_the_last_step_is_no_time_out():
    env = make(env__max_episode_length=1, **INSTANT)
    env.place([0, 0, 2], [1, 0, 2])
    step = fly(env, speed_for(0.9), 0, 0)
    assert step.terminated.all()
    assert not step.truncated.any()
    assert outcome(step) == {"success_050", "success_100"}


# Collisions and bounds


def test_a_ray_shorter_than_the_radius_ends_the_episode(tmp_path):
    env = make_in(tmp_path, WALL, **INSTANT)
    env.place([1, 0, 2], [10, 0, 2])
    assert not fly(env, speed_for(0.69), 0, 0).done.any()
    step = fly(env, speed_for(0.02), 0, 0)
    assert step.terminated.all()
    assert outcome(step) == {"static_collision"}


def test_the_collision_radius_is_that_of_the_settings(tmp_path):
    env = make_in(tmp_path, WALL, env__collision_radius=1.0, **INSTANT)
    env.place([0.5, 0, 2], [10, 0, 2])
    assert not fly(env, speed_for(0.49), 0, 0).done.any()
    assert outcome(fly(env, speed_for(0.02), 0, 0)) == {"static_collision"}


def test_a_collision_before_the_goal_is_no_success(tmp_path):
    env = make_in(tmp_path, WALL, **INSTANT)
    env.place([0.8, 0, 2], [1.9, 0, 2])
    step = fly(env, speed_for(0.95), 0, 0)  # 0.15 m from the goal, 0.25 m from the wall
    assert outcome(step) == {"static_collision"}
    assert statistics(step)["time_to_goal"] == 0
    assert statistics(step)["reward_goal"] == 0


def test_a_collision_after_the_goal_leaves_the_success_standing(tmp_path):
    env = make_in(tmp_path, WALL, env__goal_ends_episode=False, **INSTANT)
    env.place([0, 0, 2], [1, 0, 2])
    fly(env, speed_for(1.0), 0, 0)
    step = fly(env, speed_for(0.8), 0, 0)
    assert outcome(step) == {"success_050", "success_100", "static_collision"}


def test_the_sphere_feels_what_lies_below_and_the_rays_do_not(tmp_path):
    text = "boxes: [{center: [0, 0, 0.5], size: [6, 6, 1]}]"
    for collision, hit in (("rays", False), ("sphere", True)):
        env = make_in(tmp_path, text, env__collision=collision, **INSTANT)
        env.place([0, 0, 1.25], [10, 0, 1.25])
        assert fly(env, 0, 0, 0).terminated.all() == hit, collision


def test_the_sphere_feels_a_thin_pole_between_two_rays(tmp_path):
    x, y = 0.28 * math.cos(math.radians(5)), 0.28 * math.sin(math.radians(5))
    text = f"cylinders: [{{center: [{x}, {y}], radius: 0.01, height: 4}}]"
    for collision, hit in (("rays", False), ("sphere", True)):
        env = make_in(tmp_path, text, env__collision=collision, **INSTANT)
        env.place([0, 0, 2], [10, 0, 2])
        assert fly(env, 0, 0, 0).terminated.all() == hit, collision


def test_the_sphere_measures_a_cylinder_to_its_mantle_not_to_its_box(tmp_path):
    # its box is 0.14 m away, its mantle 0.51 m
    text = "cylinders: [{center: [1, 1], radius: 0.9, height: 4}]"
    env = make_in(tmp_path, text, env__collision="sphere", **INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    assert not fly(env, 0, 0, 0).done.any()


@pytest.mark.parametrize(
    ("start", "metres", "out"),
    [(3.9, 0.09, False), (3.9, 0.11, True), (0.3, -0.09, False), (0.3, -0.11, True)],
)
def test_flying_above_four_metres_or_below_a_fifth_ends_the_episode(start, metres, out):
    env = make(**INSTANT)
    env.place([0, 0, start], [10, 0, 2])
    step = fly(env, 0, 0, speed_for(metres))
    assert step.terminated.all() == out
    assert step.terminated.any() == out
    if out:
        assert outcome(step) == {"out_of_bounds"}


def still_obstacles(**overrides):
    """Eight moving obstacles that stand still, and where they are."""
    env = make(env_dyn__num_obstacles=8, env_dyn__vel_range=[0.0, 0.0], **INSTANT, **overrides)
    env.reset()
    moving = env.obstacles(0)
    return env, moving["position"], moving["width"], moving["tall"]


def beside(env, obstacle, gap):
    """Place every drone `gap` metres from an obstacle's axis in x."""
    moving = env.obstacles(0)
    spot, tall = moving["position"][obstacle].clone(), moving["tall"][obstacle]
    spot[0] += gap if spot[0] < 0 else -gap
    spot[2] = 2.0 if tall else min(max(spot[2].item(), 0.3), 3.9)
    env.place(spot.numpy(), [30, 30, 2])


@pytest.mark.parametrize("obstacle", range(8))
def test_a_moving_obstacle_is_hit_within_half_its_width_and_the_radius(obstacle):
    env, _, width, _ = still_obstacles()
    reach = width[obstacle].item() / 2 + 0.3
    beside(env, obstacle, reach + 0.02)
    assert not fly(env, 0, 0, 0).done.any()
    beside(env, obstacle, reach - 0.02)
    step = fly(env, 0, 0, 0)
    assert step.terminated.all()
    assert outcome(step) == {"dynamic_collision"}


def test_a_floating_obstacle_far_above_or_below_is_not_hit():
    env, position, _, _ = still_obstacles()
    obstacle = int(((position[:4, 2] - 2).abs()).argmax())
    height = position[obstacle, 2].item()
    away = -0.85 if height > 2 else 0.85
    spot = position[obstacle].numpy() + np.array([0, 0, away])
    env.place(spot, [30, 30, 2])
    assert not fly(env, 0, 0, 0).done.any()
    env.place(spot - [0, 0, math.copysign(0.1, away)], [30, 30, 2])
    assert outcome(fly(env, 0, 0, 0)) == {"dynamic_collision"}


def test_a_static_collision_comes_before_a_dynamic_one(tmp_path):
    x, y, _ = still_obstacles()[1][7].tolist()  # the widest cylinder; put a post inside it
    post = f"boxes: [{{center: [{x}, {y}, 3], size: [0.2, 0.2, 6]}}]"
    env = make_in(
        tmp_path, post, env_dyn__num_obstacles=8, env_dyn__vel_range=[0.0, 0.0], **INSTANT
    )
    env.place([x - 0.35, y, 2], [x + 10, y, 2])
    assert outcome(fly(env, 0, 0, 0)) == {"static_collision"}
    env.place([x - 0.45, y, 2], [x + 10, y, 2])
    assert outcome(fly(env, 0, 0, 0)) == {"dynamic_collision"}


# Rewards, each weight alone


def only(**weights):
    return NO_REWARD | {f"reward__{name}": value for name, value in weights.items()} | INSTANT


def test_progress_pays_the_speed_towards_the_goal():
    env = make(**only(progress=2.0))
    env.place([0, 0, 2], [10, 0, 2])
    assert fly(env, 1.5, 0, 0).reward[0].item() == pytest.approx(3.0, rel=1e-5)


def test_progress_away_from_the_goal_costs():
    env = make(**only(progress=1.0))
    env.place([0, 0, 2], [3, 4, 2])
    reward = fly(env, -1.0, 0, 0).reward[0].item()
    assert reward == pytest.approx(-(3 + DT) / math.hypot(3 + DT, 4), rel=1e-5)


def test_being_alive_pays_its_weight():
    env = make(**only(alive=0.7))
    env.place([0, 0, 2], [10, 0, 2])
    assert fly(env, 0, 0, 0).reward[0].item() == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [(1.0, (3 * math.log(4) + math.log(2.8794)) / 4), (4.0, math.log(2.8794 / 4) / 4)],
)
def test_the_static_term_is_the_mean_logarithm_of_the_rays_over_the_reference(reference, expected):
    env = make(**only(static=2.0, log_reference=reference))
    env.place([0, 0, 0.5], [10, 0, 0.5])
    assert fly(env, 0, 0, 0).reward[0].item() == pytest.approx(2 * expected, abs=1e-4)


@pytest.mark.parametrize(("reference", "kept"), [(1.0, 1.0), (4.0, 0.0)])
@pytest.mark.parametrize("obstacle", [0, 3, 5, 7])
def test_the_dynamic_term_is_the_mean_logarithm_of_five_clearances(obstacle, reference, kept):
    env, _, width, tall = still_obstacles(
        **{k: v for k, v in only(dynamic=3.0, log_reference=reference).items() if k not in INSTANT}
    )
    beside(env, obstacle, 2.0)
    offset = (
        0.0
        if tall[obstacle]
        else (env.position[0, 2] - env.obstacles(0)["position"][obstacle, 2]).item()
    )
    clearance = math.hypot(2.0, offset) - width[obstacle].item() / 2
    expected = (math.log(clearance / 4) + 5 * kept * math.log(4)) / 5
    assert fly(env, 0, 0, 0).reward[0].item() == pytest.approx(3 * expected, abs=2e-4)


def test_without_moving_obstacles_the_dynamic_term_is_nothing():
    env = make(**only(dynamic=3.0, log_reference=1.0))
    env.place([0, 0, 2], [10, 0, 2])
    assert fly(env, 0, 0, 0).reward[0] == 0


def test_smoothness_costs_the_change_of_velocity():
    env = make(**only(smoothness=0.5))
    env.place([0, 0, 2], [10, 0, 2])
    assert fly(env, 3.0, 4.0, 0).reward[0].item() == pytest.approx(-2.5, rel=1e-5)
    assert fly(env, 3.0, 4.0, 0).reward[0].item() == pytest.approx(0.0, abs=1e-5)
    assert fly(env, 3.0, -4.0, 0).reward[0].item() == pytest.approx(-4.0, rel=1e-5)


@pytest.mark.parametrize(
    ("metres", "excess"), [(0.65, 0.0), (0.75, 0.05), (1.2, 0.5), (-0.15, 0.0), (-0.5, 0.3)]
)
def test_height_costs_the_squared_excess_beyond_start_and_target(metres, excess):
    env = make(**only(height=8.0))
    env.place([0, 0, 1.5], [10, 0, 2])
    assert fly(env, 0, 0, speed_for(metres)).reward[0].item() == pytest.approx(
        -8 * excess**2, abs=1e-4
    )


def test_the_goal_pays_once():
    env = make(**only(goal=7.0))
    env.place([0, 0, 2], [1, 0, 2])
    assert fly(env, 0, 0, 0).reward[0] == 0
    step = fly(env, speed_for(0.9), 0, 0)
    assert step.reward[0] == 7
    assert fly(env, 0, 0, 0).reward[0] == 0


def test_a_goal_that_ends_nothing_pays_nothing():
    env = make(env__goal_ends_episode=False, **only(goal=7.0))
    env.place([0, 0, 2], [1, 0, 2])
    assert fly(env, speed_for(0.9), 0, 0).reward[0] == 0


def test_a_collision_costs_once(tmp_path):
    env = make_in(tmp_path, WALL, **only(collision=4.0))
    env.place([1, 0, 2], [10, 0, 2])
    assert fly(env, speed_for(0.8), 0, 0).reward[0] == -4
    assert fly(env, 0, 0, 0).reward[0] == 0


def test_leaving_the_height_bounds_costs_as_a_collision_does():
    env = make(**only(collision=4.0))
    env.place([0, 0, 3.9], [10, 0, 2])
    assert fly(env, 0, 0, speed_for(0.2)).reward[0] == -4


def test_a_time_out_costs_nothing():
    env = make(env__max_episode_length=1, **only(collision=4.0))
    env.place([0, 0, 2], [10, 0, 2])
    assert fly(env, 0, 0, 0).reward[0] == 0


def test_rates_are_multiplied_by_the_time_step_and_the_bonus_is_not():
    weights = only(progress=1.0, alive=2.0, goal=5.0) | {"reward__per_second": True}
    env = make(**weights)
    env.place([0, 0, 2], [2, 0, 2])
    assert fly(env, 1.5, 0, 0).reward[0].item() == pytest.approx(DT * 3.5, rel=1e-5)
    reward = fly(env, speed_for(1.8), 0, 0).reward[0].item()
    assert reward == pytest.approx(1.8 + DT * 2 + 5, rel=1e-5)


# Statistics


@pytest.fixture(scope="module")
def flown():
    """Random flights with every reward term, their rewards and positions added up by hand, and how
    they ended.
    """
    env = make(
        env__num_envs=64,
        env__num_worlds=3,
        env__num_obstacles=350,
        env_dyn__num_obstacles=160,
        env__max_episode_length=400,
        reward__alive=0.5,
        reward__smoothness=0.1,
    )
    env.reset()
    generator = np.random.default_rng(0)
    spots = np.concatenate(
        [generator.uniform(-18, 18, (64, 2)), generator.uniform(0.8, 2.5, (64, 1))], 1
    )
    env.place(spots, spots + generator.uniform(-3, 3, (64, 3)) * [1, 1, 0.1])
    start, target, world = env.position, env.target, env.world
    returns, path, length = torch.zeros(64), torch.zeros(64), torch.zeros(64)
    clearance = torch.full((64,), 1e9)
    ended, before = torch.zeros(64, dtype=torch.bool), env.position
    while not ended.all():
        step = env.step(
            torch.from_numpy(generator.uniform(-2, 2, (64, 3)).astype(np.float32))
            + torch.tensor([1.0, 0, 0])
        )
        returns += step.reward
        path += (env.position - before).norm(dim=1)
        length += ~ended
        shortest = (4 - step.observation["lidar"]).flatten(1).amin(1)
        rows = step.observation["dynamic_obstacle"][:, 0]
        present = rows[..., 3] > 0
        gap = (rows[..., 3] ** 2 + rows[..., 4] ** 2).sqrt() - (rows[..., 8] + 1) * 0.125
        gap = torch.where(present, gap, 1e9).amin(1).clamp_min(0)
        clearance = torch.where(
            ended, clearance, torch.minimum(clearance, torch.minimum(shortest, gap))
        )
        ended, before = step.done, env.position
    return {
        "step": step,
        "start": start,
        "target": target,
        "world": world,
        "returns": returns,
        "path": path,
        "length": length,
        "clearance": clearance,
    }


def column(flown, name):
    return flown["step"].statistics[:, STATISTICS.index(name)]


def test_flights_of_the_fixture_end_in_several_ways(flown):
    for name in ("success_050", "static_collision", "dynamic_collision", "time_out"):
        assert 0 < column(flown, name).sum() < 64, name


def test_the_return_is_the_sum_of_the_rewards(flown):
    torch.testing.assert_close(column(flown, "return"), flown["returns"], rtol=1e-4, atol=1e-4)


def test_the_return_is_the_sum_of_its_terms(flown):
    terms = sum(column(flown, name).double() for name in STATISTICS if name.startswith("reward_"))
    torch.testing.assert_close(column(flown, "return").double(), terms, rtol=1e-4, atol=1e-3)


def test_the_length_is_the_number_of_steps(flown):
    assert (column(flown, "length") == flown["length"]).all()


def test_the_path_length_is_the_way_flown(flown):
    torch.testing.assert_close(column(flown, "path_length"), flown["path"], rtol=1e-3, atol=1e-3)


def test_the_mean_speed_is_the_way_over_the_time(flown):
    expected = flown["path"] / (flown["length"] * DT)
    torch.testing.assert_close(column(flown, "mean_speed"), expected, rtol=1e-3, atol=1e-3)


def test_the_distance_is_that_from_start_to_target(flown):
    torch.testing.assert_close(
        column(flown, "distance"), (flown["target"] - flown["start"]).norm(dim=1)
    )


def test_the_world_of_an_episode_is_recorded(flown):
    assert (column(flown, "world").long() == flown["world"]).all()


def test_the_least_clearance_is_the_least_of_rays_and_moving_obstacles(flown):
    torch.testing.assert_close(
        column(flown, "min_clearance"), flown["clearance"], rtol=0, atol=2e-4
    )


def test_every_episode_ends_in_exactly_one_way(flown):
    ways = ("static_collision", "dynamic_collision", "out_of_bounds", "time_out")
    failed = sum(column(flown, name) for name in ways)
    goal = column(flown, "reward_goal") > 0
    assert (failed + goal == 1).all()


def test_a_success_at_half_a_metre_is_one_at_a_metre(flown):
    assert (column(flown, "success_050") <= column(flown, "success_100")).all()


def test_episodes_lists_the_ended_ones_by_name():
    env = make(**INSTANT)
    env.place([[0, 0, 2]] * DRONES, [[1 + (i % 2) * 9, 0, 2] for i in range(DRONES)])
    step = fly(env, speed_for(0.9), 0, 0)
    episodes = step.episodes()
    assert list(episodes) == list(STATISTICS)
    assert episodes["success_050"].tolist() == [1.0] * (DRONES // 2)


# Action repeat


def twins(repeat, **overrides):
    chosen = {
        "env__num_envs": 40,
        "env__num_worlds": 2,
        "env__num_obstacles": 350,
        "env_dyn__num_obstacles": 160,
    } | overrides
    return make(env__action_repeat=repeat, **chosen), make(**chosen)


def scatter(*envs, seed=0):
    generator = np.random.default_rng(seed)
    number = envs[0].num_envs
    spots = np.concatenate(
        [generator.uniform(-18, 18, (number, 2)), generator.uniform(0.8, 2.5, (number, 1))], 1
    )
    velocity = generator.uniform(-1, 1, (number, 3))
    for env in envs:
        env.reset()
        env.place(spots, spots + np.array([4, 1, 0]), velocity=velocity)


@pytest.mark.parametrize("repeat", [2, 5])
def test_a_repeated_action_is_as_many_single_steps(repeat):
    together, single = twins(repeat)
    scatter(together, single)
    generator = torch.Generator().manual_seed(1)
    ended = set()
    for _ in range(60):
        action = torch.rand(40, 3, generator=generator) * 4 - 2
        joint = together.step(action)
        before = joint.done
        parts = [single.step(action) for _ in range(repeat)]
        torch.testing.assert_close(
            joint.reward, sum(part.reward for part in parts), rtol=1e-4, atol=1e-5
        )
        assert torch.equal(together.position, single.position)
        assert torch.equal(joint.terminated, parts[-1].terminated)
        assert torch.equal(joint.truncated, parts[-1].truncated)
        assert torch.equal(joint.statistics[before], parts[-1].statistics[before])
        flying = ~before
        assert torch.equal(joint.packed[flying], parts[-1].packed[flying])
        ended |= {
            (drone, moment)
            for drone in before.nonzero()[:, 0].tolist()
            for moment in [parts[0].done[drone].item()]
        }
    assert any(not at_once for _, at_once in ended)  # some ended in the middle


def test_an_action_repeat_that_ends_in_the_middle_shows_where_it_ended():
    env = make(env__action_repeat=4, **INSTANT)
    env.place([0, 0, 2], [1, 0, 2])
    step = fly(env, speed_for(0.3), 0, 0)  # at the goal after two of four
    assert statistics(step)["length"] == 2
    assert env.position[0, 0].item() == pytest.approx(0.6, abs=1e-5)
    assert step.observation["state"][0, 3].item() == pytest.approx(0.4, abs=1e-5)


# Resets


@pytest.fixture(scope="module")
def across_resets():
    """The steps in which some drones began anew: the step, a fresh look after it, and the same step
    without resets.
    """
    chosen = {
        "env__num_envs": 64,
        "env__num_worlds": 3,
        "env__num_obstacles": 350,
        "env_dyn__num_obstacles": 160,
    }
    resetting, frozen = make(auto_reset=True, **chosen), make(**chosen)
    scatter(resetting, frozen)
    generator = torch.Generator().manual_seed(2)
    ever = torch.zeros(64, dtype=torch.bool)
    seen = []
    for _ in range(150):
        action = torch.rand(64, 3, generator=generator) * 4 - 2
        step, last = resetting.step(action), frozen.step(action)
        first_end = step.done & ~ever & last.done
        ever |= step.done
        if first_end.any():
            seen.append((first_end, step, resetting.observe(), last, resetting.position))
    assert len(seen) > 5
    return seen


def test_the_first_observation_after_an_automatic_reset_is_what_is_seen_from_there(across_resets):
    for ended, step, fresh, _, _ in across_resets:
        for name, value in step.observation.items():
            assert torch.equal(value[ended], fresh[name][ended]), name


def test_the_final_observation_is_the_last_of_the_old_episode(across_resets):
    for ended, step, _, last, _ in across_resets:
        for name, value in step.final_observation.items():
            assert torch.equal(value[ended], last.observation[name][ended]), name


def test_rewards_endings_and_statistics_do_not_depend_on_the_automatic_reset(across_resets):
    for ended, step, _, last, _ in across_resets:
        assert torch.equal(step.reward[ended], last.reward[ended])
        assert torch.equal(step.terminated[ended], last.terminated[ended])
        assert torch.equal(step.statistics[ended], last.statistics[ended])


def test_after_an_automatic_reset_a_drone_is_at_rest_on_an_edge(across_resets):
    for ended, step, _, _, position in across_resets:
        assert (position[ended, :2].abs().amax(1) == 24).all()
        assert (step.observation["state"][ended, 5:] == 0).all()


def test_the_scan_of_a_new_episode_is_not_the_stale_one(tmp_path):
    env = make_in(
        tmp_path, WALL + "\nstarts: [[-10, 0, 2]]\ngoals: [[-20, 0, 2]]", auto_reset=True, **INSTANT
    )
    env.place([1, 0, 2], [10, 0, 2])
    step = fly(env, speed_for(0.8), 0, 0)
    assert step.terminated.all()
    assert step.final_observation["lidar"].amax() > 3.7  # the wall, at 0.2 m
    assert step.observation["lidar"].amax() == 0  # free on all sides


def test_a_new_episode_faces_its_target_level_and_at_rest():
    env = make(env__num_envs=32)
    env.reset()
    bearing = env.target - env.position
    assert torch.allclose(env.yaw, torch.atan2(bearing[:, 1], bearing[:, 0]), atol=1e-3)
    assert (env.velocity == 0).all()


def test_the_return_of_the_next_episode_does_not_hold_the_reset():
    env = make(auto_reset=True, env__max_episode_length=2, **only(alive=1.0))
    env.reset()
    for _ in range(3):
        fly(env, 0, 0, 0)
        assert statistics(fly(env, 0, 0, 0))["return"] == 2


def test_without_automatic_resets_an_ended_drone_is_frozen_until_its_own_reset():
    env = make(**INSTANT)
    env.place([[0, 0, 2]] * DRONES, [[1 + (i % 2) * 20, 0, 2] for i in range(DRONES)])
    step = fly(env, speed_for(0.9), 0, 0)
    ended, where = step.done.clone(), env.position
    assert ended.tolist() == [True, False] * (DRONES // 2)
    counted = step.statistics[ended].clone()
    for _ in range(3):
        step = fly(env, 1, 0, 0)
        assert torch.equal(step.done, ended)
        assert torch.equal(env.position[ended], where[ended])
        assert (step.reward[ended] == 0).all()
        assert torch.equal(step.statistics[ended], counted)
    assert (env.position[~ended] != where[~ended]).any()
    flying = env.position[~ended]
    env.reset(mask=ended)
    assert torch.equal(env.position[~ended], flying)
    assert (env.position[ended, :2].abs().amax(1) == 24).all()
    assert not fly(env, 0, 0, 0).done.any()


def test_no_moving_obstacles_leave_zero_rows_of_full_width():
    env = make(env__num_obstacles=50)
    env.reset()
    step = fly(env, 1, 0, 0, steps=3)
    assert step.observation["dynamic_obstacle"].shape == (DRONES, 1, 5, 10)
    assert (step.observation["dynamic_obstacle"] == 0).all()
    assert torch.isfinite(step.reward).all()


def test_the_evaluation_layout_is_a_row_of_parallel_lines():
    env = make(env__layout="navrl_eval")
    env.reset()
    i = torch.arange(DRONES)
    starts = torch.stack(
        [(i / DRONES - 0.5) * 32, torch.full((DRONES,), 24.0), torch.full((DRONES,), 2.0)], 1
    )
    ends = torch.stack(
        [
            torch.linspace(-0.5, 0.5, DRONES) * 32,
            torch.full((DRONES,), -24.0),
            torch.full((DRONES,), 2.0),
        ],
        1,
    )
    torch.testing.assert_close(env.position, starts)
    torch.testing.assert_close(env.target, ends)


def test_random_starts_and_targets_lie_on_the_edges_at_flying_height():
    env = make(env__num_envs=64)
    seen = []
    for _ in range(20):
        env.reset()
        seen += [env.position, env.target]
    points = torch.cat(seen)
    assert (points[:, :2].abs().amax(1) == 24).all()
    assert (points[:, :2].abs().amin(1) <= 24).all()
    assert points[:, 2].min() >= 0.5
    assert points[:, 2].max() <= 2.5
    sides = torch.stack(
        [points[:, 0] == 24, points[:, 0] == -24, points[:, 1] == 24, points[:, 1] == -24], 1
    ).float()
    torch.testing.assert_close(sides.mean(0), torch.full((4,), 0.25), atol=0.04, rtol=0)
    distance = torch.cat([(b - a).norm(dim=1) for a, b in zip(seen[::2], seen[1::2], strict=True)])
    assert distance.mean().item() == pytest.approx(35, abs=2)


# Commands


def test_actions_in_the_goal_frame_are_limited_on_each_axis():
    free, limited = make(env__action_limit=1.5), make(env__action_limit=1.5)
    for env in (free, limited):
        env.reset(seed=4)
    fly(free, 9.0, -7.0, 1.0, steps=5)
    fly(limited, 1.5, -1.5, 1.0, steps=5)
    assert torch.equal(free.position, limited.position)


def test_actions_in_the_world_frame_are_not_limited():
    env = make(**INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    fly(env, 30.0, 0, 0)
    assert env.velocity[0, 0].item() == pytest.approx(30.0, rel=1e-4)


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_delayed_command_acts_a_fixed_number_of_steps_later(repeat):
    longest = 6
    chosen = {"env__num_envs": 64, "env__action_repeat": repeat, **INSTANT}
    env, prompt = make(drone__delay=longest, **chosen), make(**chosen)
    env.place([0, 0, 2], [20, 0, 2])
    prompt.place([0, 0, 2], [20, 0, 2])
    late, early = [], []
    for number in range(20):
        fly(env, 0.1 * (number + 1), 0, 0)
        fly(prompt, 0.1 * (number + 1), 0, 0)
        late.append(env.velocity[:, 0])
        early.append(prompt.velocity[0, 0].item())
    delays = set()
    for drone in range(64):
        velocities = [round(v[drone].item() * 10) for v in late]
        # Velocity after decision n is that of the command of simulated step (n + 1) * repeat - 1 -
        # delay.
        fits = [
            d
            for d in range(longest + 1)
            if all(
                v == max(((n + 1) * repeat - 1 - d) // repeat + 1, 0)
                for n, v in enumerate(velocities)
            )
        ]
        assert fits, velocities
        delays |= set(fits)
    assert delays == set(range(longest + 1))


def test_the_delay_line_of_a_new_episode_is_empty():
    env = make(drone__delay=8, **INSTANT)
    env.place([0, 0, 2], [20, 0, 2])
    fly(env, 1.0, 0, 0, steps=20)
    env.place([0, 0, 2], [20, 0, 2])
    fly(env, 0, 0, 0, steps=10)
    assert (env.position[:, 0] == 0).all()


# Noise


@pytest.mark.parametrize("disturbance", [{"sensor__noise": 0.2}, {"sensor__dropout": 0.3}])
def test_a_disturbed_scan_changes_what_is_seen_but_not_what_is_paid_or_ended(disturbance):
    chosen = {
        "env__num_envs": 64,
        "env__num_worlds": 2,
        "env__num_obstacles": 350,
        "env_dyn__num_obstacles": 80,
    }
    clean, disturbed = make(**chosen), make(**chosen, **disturbance)
    scatter(clean, disturbed)
    differs = False
    for number in range(40):
        action = torch.rand(64, 3, generator=torch.Generator().manual_seed(number)) * 4 - 2
        ours, theirs = clean.step(action), disturbed.step(action)
        assert torch.equal(ours.reward, theirs.reward)
        assert torch.equal(ours.done, theirs.done)
        assert torch.equal(ours.observation["state"], theirs.observation["state"])
        scan = theirs.observation["lidar"]
        assert scan.min() >= 0
        assert scan.max() <= 4
        differs |= not torch.equal(ours.observation["lidar"], scan)
    assert differs


def test_noise_has_the_standard_deviation_of_the_settings(tmp_path):
    chosen = {"env__num_envs": 64, "sensor__noise": 0.1, **INSTANT}
    env = make_in(tmp_path, WALL, **chosen)
    env.place([0, 0, 2], [10, 0, 2])
    values = torch.cat([fly(env, 0, 0, 0).observation["lidar"][:, 0, 0, 1] for _ in range(40)])
    assert values.mean().item() == pytest.approx(2.0, abs=0.01)
    assert values.std().item() == pytest.approx(0.1, rel=0.06)


def test_noise_does_not_make_free_rays_see_something():
    env = make(sensor__noise=0.3)
    env.place([0, 0, 2], [10, 0, 2])
    assert (fly(env, 0, 0, 0).observation["lidar"] == 0).all()


def test_dropout_blinds_the_given_share_of_rays():
    env = make(sensor__dropout=0.25, env__num_envs=64, **INSTANT)
    env.place([0, 0, 0.5], [10, 0, 0.5])
    seen = torch.stack([fly(env, 0, 0, 0).observation["lidar"][:, 0, :, 0] for _ in range(20)])
    assert (seen == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)


def test_noise_differs_from_step_to_step_and_from_drone_to_drone(tmp_path):
    env = make_in(tmp_path, WALL, sensor__noise=0.1, **INSTANT)
    first = env.place([0, 0, 2], [10, 0, 2])["lidar"][:, 0, 0, 1]
    scans = [first, *(fly(env, 0, 0, 0).observation["lidar"][:, 0, 0, 1] for _ in range(4))]
    assert len(torch.cat(scans).unique()) == 5 * DRONES


def test_looking_again_shows_the_same_noise(tmp_path):
    env = make_in(tmp_path, WALL, sensor__noise=0.1, **INSTANT)
    env.place([0, 0, 2], [10, 0, 2])
    step = fly(env, 0, 0, 0)
    assert torch.equal(env.observe()["lidar"], step.observation["lidar"])


# The numbers of the task's description, through the environment


def exact(*overrides):
    config = load_config(["env=navrl_exact", "env.num_envs=8", *overrides])
    return NavigationEnv(config.task, auto_reset=False)


def test_a_tall_wall_two_metres_ahead_gives_the_published_rays(tmp_path):
    (tmp_path / "wall.yaml").write_text(WALL)
    env = exact(f"env.world_files=[{tmp_path / 'wall.yaml'}]", "env_dyn.num_obstacles=0")
    scan = env.place([0, 0, 2], [10, 0, 2])["lidar"]
    assert scan.shape == (8, 1, 36, 4)
    np.testing.assert_allclose(4 - scan[0, 0, 0].numpy(), [2.0309, 2.0, 2.0309, 2.1284], atol=1e-4)


@pytest.mark.parametrize("height", [-0.1, -1.0])
def test_a_scan_from_below_the_ground_is_contact_everywhere(height):
    scan = make().place([0, 0, height], [10, 0, 2])["lidar"]
    assert (scan == 4).all()


def test_the_clearance_of_a_drone_that_fell_through_the_ground_is_zero():
    env = make(**INSTANT)
    env.place([0, 0, 0.5], [10, 0, 2])
    assert statistics(fly(env, 0, 0, speed_for(-1.0)))["min_clearance"] == 0


def test_the_scan_counts_counter_clockwise_from_the_heading(tmp_path):
    (tmp_path / "wall.yaml").write_text(WALL)
    env = exact(f"env.world_files=[{tmp_path / 'wall.yaml'}]", "env_dyn.num_obstacles=0")
    # heading +y, the wall to the right
    scan = env.place([0, 0, 2], [0, 10, 2])["lidar"][0, 0, :, 1]
    assert 4 - scan[27].item() == pytest.approx(2.0, abs=1e-4)
    assert scan[9] == 0


def test_empty_ground_from_half_a_metre_gives_the_published_ray():
    env = exact("env.num_obstacles=0", "env_dyn.num_obstacles=0")
    scan = env.place([0, 0, 0.5], [10, 0, 0.5])["lidar"][0, 0]
    np.testing.assert_allclose(4 - scan[:, 0].numpy(), 2.8794, atol=1e-4)
    assert (scan[:, 1:] == 0).all()


@pytest.fixture(scope="module")
def cruise():
    """Velocity, height and reward over 8 s after a command of 2 m/s, far from everything."""
    env = exact("env.num_obstacles=0", "env_dyn.num_obstacles=80")
    env.place([60, 0, 2], [60, 1000, 2])
    velocity, height = [0.0], [2.0]
    for _ in range(500):
        step = fly(env, 0, 2.0, 0)
        velocity.append(env.velocity[0, 1].item())
        height.append(env.position[0, 2].item())
    return np.array(velocity), np.array(height), step.reward[0].item()


def test_free_cruise_earns_5_60_a_step(cruise):
    assert cruise[2] == pytest.approx(1.833 + 1 + 2 * math.log(4), abs=0.005)


def test_the_drone_settles_at_1_833_metres_a_second_without_overshoot(cruise):
    assert cruise[0][-1] == pytest.approx(2 * 2.2 / 2.4, abs=2e-3)
    assert cruise[0].max() <= 2 * 2.2 / 2.4 + 1e-3


def test_the_drone_reaches_63_percent_after_0_46_seconds(cruise):
    reached = np.flatnonzero(cruise[0] >= (1 - math.exp(-1)) * cruise[0][-1])[0] * DT
    assert reached == pytest.approx(0.46, abs=0.02)


def test_the_drone_loses_about_three_centimetres_of_height(cruise):
    assert 2 - cruise[1].min() == pytest.approx(0.03, abs=0.01)


def _opposite(env):
    """Whether each drone stands on an edge and its target on the opposite one."""
    start, target = env.position[:, :2], env.target[:, :2]
    return ((start + target).abs().lt(1e-4) & start.abs().gt(23.9)).any(1)


def test_all_trips_cross_the_field_if_the_share_is_one():
    settings = NavigationSettings.of(env__num_envs=512, env__num_worlds=4, env__crossing_share=1.0)
    env = NavigationEnv(settings, seed=0)
    env.reset()
    assert _opposite(env).all()
    sides = env.target[:, :2].abs().argmax(1) * 2 + (env.target[:, :2].sum(1) > 0)
    assert len(set(sides.tolist())) == 4  # in every direction


def test_crossing_trips_that_start_on_the_way_start_clear_of_static_obstacles():
    settings = NavigationSettings.of(
        env__num_envs=1024,
        env__num_worlds=4,
        env__crossing_share=1.0,
        env__midway_share=1.0,
        env_dyn__num_obstacles=0,
    )
    env = NavigationEnv(settings, seed=0)
    env.reset()
    inside = (env.position[:, :2].abs() < 23.9).all(1)
    assert inside.float().mean() > 0.9
    assert not env.step(torch.zeros(1024, 3)).terminated.any()


def test_the_share_of_crossing_trips_is_as_set():
    settings = NavigationSettings.of(env__num_envs=4096, env__num_worlds=4, env__crossing_share=0.5)
    env = NavigationEnv(settings, seed=0)
    env.reset()
    # a quarter of the trips between random edges lead to the opposite one, too
    assert 0.59 < _opposite(env).float().mean() < 0.66
