"""Scenarios by name give the settings they promise; typed settings and presets win."""

from __future__ import annotations

import pytest
import torch

from navrl.config import FlightSettings
from navrl.errors import ConfigError
from navrl.evaluation import Policy, conditions, evaluate, scenario_tasks
from navrl.evaluation.comparison import check_same_episodes, compare
from navrl.evaluation.names import DEFAULT_SCENARIOS, SCENARIOS
from navrl.evaluation.scenarios import parse_scenarios
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

FLIGHT = FlightSettings(episodes=16, worlds=4)


def tasks(*names, task=None, **more):
    return scenario_tasks(names, task or NavigationSettings(), FLIGHT, **more)


@pytest.mark.parametrize(
    ("name", "static", "moving", "layout"),
    [
        ("static", 350, 0, "random"),
        ("standard", 350, 80, "random"),
        ("crossing", 350, 80, "navrl_eval"),
        ("crossing-static", 350, 0, "navrl_eval"),
        ("walled", 350, 80, "walled"),
        ("light", 100, 16, "random"),
        ("dense", 500, 120, "random"),
        ("moving", 0, 80, "random"),
    ],
)
def test_a_scenario_has_the_obstacles_and_trips_of_its_name(name, static, moving, layout):
    task = tasks(name)[name]
    assert (task.env.num_obstacles, task.env_dyn.num_obstacles) == (static, moving)
    assert task.env.layout == layout
    assert (task.env.num_envs, task.env.num_worlds) == (16, 4)
    assert task.env.map_seed == FLIGHT.map_seed
    task.check()


def test_the_grid_has_twelve_cells():
    cells = tasks("grid")
    assert len(cells) == 12
    assert cells["grid 400+60"].env.num_obstacles == 400
    assert cells["grid 400+60"].env_dyn.num_obstacles == 60


def test_every_scenario_but_own_needs_nothing_else():
    assert set(tasks(*(set(SCENARIOS) - {"own", "grid"}))) == set(SCENARIOS) - {"own", "grid"}
    with pytest.raises(ConfigError, match="world_files"):
        tasks("own")


def test_worlds_of_the_user_are_flown_as_they_are():
    task = NavigationSettings.of(env__world_files=["a.yaml"], env_dyn__num_obstacles=8)
    flown = tasks("own", task=task)["own"]
    assert flown.env.world_files == ["a.yaml"]
    assert flown.env_dyn.num_obstacles == 8


def test_a_typed_setting_wins_over_the_scenario():
    task = NavigationSettings.of(env__num_obstacles=500)
    found = tasks("crossing", task=task, typed={"env.num_obstacles"})["crossing"]
    assert (found.env.num_obstacles, found.env_dyn.num_obstacles) == (500, 80)


def test_the_counts_of_a_lighter_training_are_kept():
    found = tasks("standard", task=NavigationSettings.of(env__num_obstacles=50))["standard"]
    assert found.env.num_obstacles == 50


def test_what_only_training_varies_is_not_flown():
    task = NavigationSettings.of(
        env__crossing_share=0.6, env__midway_share=0.5, env_dyn__obstacles_per_world=[0, 80]
    )
    found = tasks("standard", task=task)["standard"]
    assert (found.env.crossing_share, found.env.midway_share) == (0.0, 0.0)
    assert found.env_dyn.obstacles_per_world == []
    typed = tasks("standard", task=task, typed={"env.crossing_share"})["standard"]
    assert typed.env.crossing_share == 0.6


@pytest.mark.parametrize("text", ["crosing", "", ",", "standard,nowhere"])
def test_an_unknown_scenario_is_refused_with_the_known_ones(text):
    with pytest.raises(ConfigError, match="crossing"):
        parse_scenarios(text)


def test_scenarios_are_parsed_in_order_and_once():
    assert parse_scenarios("crossing, static,crossing") == ["crossing", "static"]
    assert parse_scenarios(",".join(DEFAULT_SCENARIOS)) == ["standard", "crossing"]


def test_evaluation_in_training_flies_crossing_last_and_no_more_than_before():
    found = conditions(NavigationSettings(), FlightSettings(episodes=512))
    assert [*found] == ["350 static", "350 static + 80 moving", "crossing 350 static + 80 moving"]
    assert [task.env.num_envs for task in found.values()] == [256, 384, 384]
    assert [*found.values()][-1].env.layout == "navrl_eval"


def test_evaluation_in_training_keeps_to_the_worlds_of_the_user():
    task = NavigationSettings.of(env__world_files=["a.yaml"])
    assert [*conditions(task, FLIGHT)] == ["own worlds", "own worlds + 80 moving"]


def at_rest(observation):
    return torch.zeros(len(observation["state"]), 3)


def straight(observation):
    return 2.0 * observation["state"][:, :3]


def fly(name: str, act, repeat: int):
    policy = Policy("p", act, NavigationSettings.of(env__action_repeat=repeat))
    task = tasks(
        name,
        task=NavigationSettings.of(
            env__num_obstacles=40, env_dyn__num_obstacles=16, env__max_episode_length=120
        ),
        policy=policy,
    )[name]
    env = NavigationEnv(task, seed=5, auto_reset=False)
    start, goal = env.reset() and env.position, env.target
    boxes = [world.boxes for world in env.pool.worlds]
    env = NavigationEnv(task, seed=5, auto_reset=False)
    flights = evaluate(env, policy, recorded=4)
    return start, goal, boxes, flights


@pytest.mark.parametrize("name", ["standard", "crossing"])
def test_policies_of_different_decision_rates_fly_the_same_episodes(name):
    """Equal worlds, starts, goals, and equal moving obstacles at equal times."""
    slow, fast = fly(name, at_rest, repeat=5), fly(name, straight, repeat=1)
    assert torch.equal(slow[0], fast[0])
    assert torch.equal(slow[1], fast[1])
    assert all((a == b).all() for a, b in zip(slow[2], fast[2], strict=True))
    check_same_episodes(slow[3], fast[3])
    a, b = slow[3].recording, fast[3].recording
    assert a.seconds_per_frame == b.seconds_per_frame
    together = min(len(a.moving_position), len(b.moving_position)) - 1
    assert together > 5
    assert (a.moving_position[:together] == b.moving_position[:together]).all()
    assert not (a.position[together - 1] == b.position[together - 1]).all()


def test_evaluations_of_different_episodes_are_not_compared():
    first = fly("standard", at_rest, 5)[3]
    with pytest.raises(ConfigError, match="different episodes"):
        compare(first, fly("crossing", at_rest, 5)[3])
