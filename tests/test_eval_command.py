"""`navrl eval`: scenarios, paired comparison, JSON, recordings, pictures; mistakes are named before
anything flies.
"""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from PIL import Image
from rich.console import Console

from navrl.cli import main
from navrl.commands.evaluate import split_words
from navrl.config import FlightSettings
from navrl.errors import ConfigError
from navrl.evaluation import (
    INTERFACE,
    OUTCOMES,
    Flights,
    Policy,
    Recording,
    label_of,
    load_policy,
    scenario_tasks,
)
from navrl.evaluation.comparison import comparison_table, short_names
from navrl.evaluation.report import cell_table, outcome_table, summary
from navrl.rl.networks.navigation import NavigationNetwork, to_upstream
from navrl.sim.episode_statistics import STATISTICS
from navrl.sim.settings import NavigationSettings

SMALL = [
    "eval",
    "scripted",
    "flight.recorded=2",
    "env.max_episode_length=20",
    "--episodes",
    "8",
    "--worlds",
    "2",
]


def made_up(success: list[float], world: list[int]) -> Flights:
    """Return flights with these successes; every other statistic is 2."""
    derived = ("spl", "effort", "time_ratio", "path_to_goal")
    statistics = {name: torch.full((len(success),), 2.0) for name in (*STATISTICS, *derived)}
    statistics.update(
        {name: torch.zeros(len(success)) for name in OUTCOMES},
        success_100=torch.tensor(success, dtype=torch.float32),
    )
    return Flights(statistics, torch.tensor(world))


def told(table: object, width: int = 120) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.slow
def test_an_evaluation_leaves_a_table_numbers_recordings_and_pictures(tmp_path, capsys):
    folder = tmp_path / "made" / "here"
    assert main([*SMALL, "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "8 episodes in 2 worlds" in shown
    assert "95 % interval" in shown  # definitions stand beside the numbers
    report = json.loads((folder / "evaluation.json").read_text())
    assert list(report["conditions"]) == ["standard", "crossing"]
    assert report["decision_ms"] > 0
    for name, condition in report["conditions"].items():
        assert condition["episodes"] == 8
        assert condition["worlds"] == 2
        assert set(condition["outcomes"]) == set(OUTCOMES)
        assert condition["settings"]["env"]["map_seed"] == FlightSettings().map_seed
        recording = Recording.load(folder / condition["recording"])
        assert (recording.scenario, recording.flights) == (name, 2)
    with Image.open(folder / "flights.gif") as animation:
        assert animation.n_frames > 10
    assert (folder / "flights.png").stat().st_size > 10_000


def test_json_alone_goes_to_the_output_and_equals_the_file(tmp_path, capsys):
    words = [
        *SMALL[:2],
        "env.num_obstacles=20",
        *SMALL[2:],
        "--scenario",
        "static",
        "--no-animation",
        "--json",
        "--out",
        str(tmp_path),
    ]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "evaluation.json").read_text())
    conditions = json.loads(printed.out)["conditions"]
    assert {name: row["label"] for name, row in conditions.items()} == {"static": "20 static"}
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["evaluation.json", "flights.png", "recordings", "replay.html"]


def test_two_policies_are_compared_on_the_same_episodes(tmp_path, capsys):
    words = [*SMALL[:2], "scripted", *SMALL[2:], "--scenario", "light", "--no-animation"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "success on the same episodes" in capsys.readouterr().out
    report = json.loads((tmp_path / "evaluation.json").read_text())
    (other,) = report["compared"]
    compared = other["paired"]["light"]
    assert compared["success_100"]["mean"] == 0.0  # the same policy twice
    assert (compared["only_first"], compared["only_second"]) == (0, 0)
    assert compared["mcnemar_p"] == 1.0
    assert compared["differing"] == []
    assert len(list((tmp_path / "recordings").iterdir())) == 2


@pytest.mark.slow
def test_a_checkpoint_of_the_original_is_compared_with_another_policy(tmp_path, capsys):
    torch.save(to_upstream(NavigationNetwork()), tmp_path / "published.pt")
    words = [*SMALL[:2], str(tmp_path / "published.pt"), *SMALL[3:], "--scenario", "light,grid"]
    assert main([*words, "flight.recorded=0", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.split("success on the same episodes")[1]
    for word in ("scripted", "published.pt", "light", "grid 300+60", "grid, all"):
        assert word in printed


def test_a_word_with_an_equals_sign_is_a_setting_unless_it_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rate=0.1").mkdir()
    words = ["a", "env.num_envs=3", "rate=0.1", "b:best"]
    assert split_words(words) == (["a", "rate=0.1", "b:best"], ["env.num_envs=3"])


MISTAKES = {
    "unknown policy": (["eval", "skripted"], "Did you mean 'scripted'?"),
    "missing file": (["eval", "nowhere/model.pt"], "nowhere/model.pt"),
    "no episodes": (["eval", "scripted", "--episodes", "0"], "flight.episodes is 0"),
    "no worlds": (["eval", "scripted", "--worlds", "0"], "flight.worlds is 0"),
    "unknown setting": (
        ["eval", "scripted", "env.num_obstacle=3"],
        "Did you mean 'env.num_obstacles'?",
    ),
    "no policy": (["eval", "env.num_envs=3"], "needs a policy"),
    "unknown scenario": (["eval", "scripted", "--scenario", "crosing"], "Did you mean 'crossing'?"),
    "a folder that is a file": (["eval", "scripted", "--out", __file__], "--out"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_told_in_one_line_before_anything_flies(capsys, kind):
    arguments, piece = MISTAKES[kind]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert piece in told
    assert told.count("\n") == 1


def test_the_policys_robot_comes_from_its_training_and_the_task_does_not():
    trained = NavigationSettings.of(
        env__action_repeat=3,
        env__action_limit=1.5,
        sensor__lidar_hres=5.0,
        env__num_obstacles=10,
        env__collision_radius=0.1,
    )
    policy = Policy("a", lambda observation: observation["state"][:, :3], trained)
    names = ("static", "crossing")
    for settings in scenario_tasks(names, NavigationSettings(), FlightSettings(), policy).values():
        assert (
            settings.env.action_repeat,
            settings.env.action_limit,
            settings.sensor.lidar_hres,
        ) == (3, 1.5, 5.0)
        assert settings.env.collision_radius == 0.1
        assert (settings.env.num_obstacles, settings.env.max_episode_length) == (350, 2200)
    assert set(INTERFACE) <= set(NavigationSettings.keys())


def test_a_typed_setting_wins_over_the_policys_training():
    policy = Policy(
        "a", lambda observation: observation["state"], NavigationSettings.of(env__action_repeat=3)
    )
    task = NavigationSettings.of(env__action_repeat=2)
    flown = scenario_tasks(
        ("standard",), task, FlightSettings(), policy, typed={"env.action_repeat"}
    )
    assert {settings.env.action_repeat for settings in flown.values()} == {2}


def test_scenarios_change_nothing_that_they_were_given():
    task = NavigationSettings()
    scenario_tasks(("static", "crossing"), task, FlightSettings())
    assert task == NavigationSettings()


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ({}, "350 static + 80 moving"),
        ({"env_dyn__num_obstacles": 7}, "350 static"),
        ({"env_dyn__num_obstacles": 20}, "350 static + 16 moving"),
        ({"env__layout": "navrl_eval"}, "crossing 350 static + 80 moving"),
        ({"env__obstacles_per_world": [50, 350]}, "50-350 static + 80 moving"),
        ({"env__world_files": ["a.yaml"], "env_dyn__num_obstacles": 0}, "own worlds"),
    ],
)
def test_a_condition_is_called_by_what_a_drone_meets(overrides, label):
    assert label_of(NavigationSettings.of(**overrides)) == label


def test_conditions_stand_side_by_side_with_intervals():
    table = outcome_table(
        {"easy": made_up([1, 1, 1, 0], [0, 0, 1, 1]), "hard": made_up([0, 0, 0, 0], [0, 0, 1, 1])},
        "pilot",
    )
    text = told(table)
    assert "pilot: 4 episodes in 2 worlds" in text
    line = next(line for line in text.splitlines() if "within 1.0 m" in line)
    assert "75.0 % (50.0 - 100.0)" in line
    assert "0.0 % (0.0 - " in line
    speed = next(line for line in text.splitlines() if "speed" in line)
    assert "2.00 m/s" in speed
    assert " - " in speed  # nobody arrived: there is no speed to tell


def test_one_world_has_no_interval():
    flights = made_up([1, 0], [3, 3])
    assert "50.0 % " in told(outcome_table({"a": flights}))
    assert "(" not in told(outcome_table({"a": flights}))
    assert math.isnan(summary(flights)["outcomes"]["success_100"]["low"])


def test_a_grid_is_a_table_with_its_mean_and_its_hardest_cell():
    cells = {
        "300+0": made_up([1, 1, 1, 1], [0, 0, 1, 1]),
        "300+60": made_up([1, 1, 1, 0], [0, 0, 1, 1]),
        "400+0": made_up([1, 1, 0, 0], [0, 1, 0, 1]),
        "400+60": made_up([0, 1, 0, 0], [0, 0, 1, 1]),
    }
    text = told(cell_table("grid", cells, "pilot"))
    assert "all cells 62.5 %" in text
    assert "hardest cell 400+60: 25.0 %" in text
    assert "60 moving" in text


def test_a_comparison_shows_differences_and_discordant_pairs():
    flown = {
        "a": {"light": made_up([1, 1, 1, 0], [0, 0, 1, 1])},
        "b": {"light": made_up([1, 0, 0, 1], [0, 0, 1, 1])},
    }
    text = told(comparison_table(flown))
    assert "-25.0" in text
    assert "1 / 2" in text
    assert "1.000" in text


PATHS = {
    "runs": (["/home/ada/runs/first", "/home/ada/runs/second/"], ["first", "second"]),
    "models": (["runs/a/model.pt", "runs/b/model.pt"], ["a/model.pt", "b/model.pt"]),
    "a name and a run": (["pretrained", "runs/pretrained"], ["pretrained", "runs/pretrained"]),
    "a shield": (["runs/a", "runs/a + shield"], ["a", "a + shield"]),
}


@pytest.mark.parametrize("kind", PATHS)
def test_policies_are_told_apart_by_the_ends_of_their_paths(kind):
    references, names = PATHS[kind]
    assert short_names(references) == names


@pytest.mark.parametrize("number", [2, 6])
def test_many_policies_are_compared_in_a_terminal_of_80_columns(number):
    runs = [f"/home/ada/projects/drones/runs/quick-{17 + index}" for index in range(number)]
    flown = {run: {"crossing-static": made_up([1, 1, 1, 0], [0, 0, 1, 1])} for run in runs}
    lines = told(comparison_table(flown), width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)
    for index in range(number):
        (row,) = [line for line in lines if line.split()[:1] == [f"quick-{17 + index}"]]
        assert "75.0 %" in row


def test_the_scripted_pilot_obeys_the_limit_of_the_task():
    pilot = load_policy("scripted", NavigationSettings.of(env__action_limit=0.5))
    observation = {
        "state": torch.tensor([[1.0, 0, 0, 20, 0, 0, 0, 0]]),
        "lidar": torch.zeros(1, 1, 36, 4),
        "dynamic_obstacle": torch.zeros(1, 1, 5, 10),
    }
    assert pilot(observation).norm() <= 0.5 + 1e-6
    assert pilot.task is None


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="scripted"):
        load_policy("nothing")


@pytest.mark.parametrize("option", [[], ["--shield"], ["--coast"]])
def test_a_pilot_of_the_navigation_task_is_refused_in_another_environment(option, capsys):
    assert main(["eval", "straight", *option, "env=gymnasium", "env.id=CartPole-v1"]) == 2
    assert "navigation task" in capsys.readouterr().err
