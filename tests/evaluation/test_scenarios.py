"""Scenarios by name give the settings they promise; typed settings and presets win."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from navrl.config import FlightSettings
from navrl.deploy import ShieldedPilot
from navrl.errors import ConfigError
from navrl.evaluation import Policy, conditions, evaluate, load_policy, scenario_tasks
from navrl.evaluation.comparison import check_same_episodes, compare
from navrl.evaluation.names import DEFAULT_SCENARIOS, SCENARIOS
from navrl.evaluation.scenarios import parse_scenarios
from navrl.sim.env import NavigationEnv
from navrl.sim.robots import load_robot
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


RANDOMISED = {
    "sensor.noise": 0.05,
    "sensor.dropout": 0.1,
    "sensor.detection_dropout": 0.3,
    "sensor.detection_noise": 0.1,
    "sensor.position_noise": 0.1,
    "sensor.observation_delay": 1,
    "drone.mass_variation": 0.1,
    "drone.thrust_variation": 0.1,
    "drone.wind": 2.0,
    "drone.delay": 5,
}


def randomised(**more) -> NavigationSettings:
    task = NavigationSettings.of(**more)
    for key, value in RANDOMISED.items():
        task.set(key, value)
    return task


def values_of(task: NavigationSettings, keys) -> dict[str, object]:
    groups = task.as_dict()
    return {key: groups[key.split(".")[0]][key.split(".")[1]] for key in keys}


def test_noise_delay_and_wind_of_a_training_are_not_flown_unless_they_are_typed():
    policy = Policy("p", at_rest, randomised(env__action_repeat=5))
    nominal = values_of(NavigationSettings(), RANDOMISED)
    of_eval = tasks("standard", policy=policy)["standard"]
    of_training = tasks("standard", task=policy.task, policy=policy)["standard"]
    interim = [*conditions(policy.task, FLIGHT).values()][-1]
    for flown in (of_eval, of_training, interim):
        assert values_of(flown, RANDOMISED) == nominal
    typed = tasks("standard", task=randomised(), policy=policy, typed=RANDOMISED)["standard"]
    assert values_of(typed, RANDOMISED) == RANDOMISED


def test_a_robot_has_the_noise_of_its_file_and_not_that_of_its_training():
    ground = load_robot("ground").applied_to(NavigationSettings())
    of_file = ground.sensor.noise
    ground.sensor.noise = 0.3
    flown = tasks("standard", policy=Policy("p", at_rest, ground))["standard"]
    assert flown.sensor.noise == of_file > 0
    ground.drone.robot = "my_own"  # whose file is not known here
    flown = tasks("standard", policy=Policy("p", at_rest, ground))["standard"]
    assert flown.sensor.noise == 0.3


def test_a_policy_trained_with_noise_still_flies_its_robot():
    policy = load_policy("pretrained")
    noisy = copy.deepcopy(policy.task)
    noisy.sensor.noise = 0.05
    trained = replace(policy, task=noisy)
    assert trained.on_robot(load_robot("hummingbird")).task.sensor.noise == 0.0
    with pytest.raises(ConfigError, match="radius"):
        trained.on_robot(replace(load_robot("hummingbird"), radius=0.5))


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


def test_deciding_for_the_drones_that_still_fly_changes_no_flight():
    task = NavigationSettings.of(env__max_episode_length=600, env__action_repeat=5)
    pilot = load_policy("straight", task)
    found = tasks("standard", task=task, policy=pilot)["standard"]
    flown = [
        evaluate(NavigationEnv(found, seed=5, auto_reset=False), each).statistics
        for each in (pilot, lambda observation: pilot(observation))
    ]
    assert pilot.act.decides_alone
    assert len(set(flown[0]["length"].tolist())) > 2  # some end before others
    for name, values in flown[0].items():
        assert torch.equal(values.nan_to_num(), flown[1][name].nan_to_num())


def test_a_shielded_pilot_decides_for_all_drones_though_its_policy_could_decide_for_some():
    task = NavigationSettings.of(env__max_episode_length=1200, env__action_repeat=5)
    act = load_policy("straight", task).act
    found = tasks("standard", task=task, policy=load_policy("straight", task))["standard"]
    env = NavigationEnv(found, seed=5, auto_reset=False)
    flights = evaluate(env, ShieldedPilot(act, env))
    assert len(set(flights.statistics["length"].tolist())) > 1  # some end before others


@pytest.mark.parametrize("kept", [1, 5, 16, 30])
def test_a_network_gives_a_drone_the_same_bits_whatever_the_others_observe(kept):
    policy = load_policy("pretrained")
    env = NavigationEnv(replace_drones(policy.task, 37), seed=5)
    observation, rows = env.reset(), torch.randperm(37)[:kept]
    some = policy({name: part[rows] for name, part in observation.items()})
    assert policy.act.decides_alone
    assert torch.equal(some, policy(observation)[rows])


def replace_drones(task: NavigationSettings, drones: int) -> NavigationSettings:
    own = copy.deepcopy(task)
    own.env.num_envs, own.env.num_worlds = drones, 2
    return own


def test_evaluations_of_different_episodes_are_not_compared():
    first = fly("standard", at_rest, 5)[3]
    with pytest.raises(ConfigError, match="different episodes"):
        compare(first, fly("crossing", at_rest, 5)[3])
