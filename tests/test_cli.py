"""The command line: what it leaves behind, and what a mistake looks like."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml
from PIL import Image

from navrl.cli import main, make_parser
from navrl.commands.candidates import command_parsers
from navrl.config import as_saved, load_config


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert all(command in told for command in ("train", "world", "bench", "examples:"))


def all_parsers(parser, name="navrl"):
    """Yield every parser by what is typed to reach it."""
    yield name, parser
    for word, command in command_parsers(parser).items():
        yield from all_parsers(command, f"{name} {word}")


PARSERS = dict(all_parsers(make_parser()))


@pytest.mark.parametrize("typed", PARSERS)
def test_every_command_and_argument_says_what_it_is(typed):
    assert PARSERS[typed].description
    for action in PARSERS[typed]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, action.dest
            assert not action.help.startswith("("), action.dest


def test_descriptions_are_wrapped_and_examples_are_not(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told, examples = PARSERS["navrl train"].format_help().split("presets:")
    assert max(map(len, told.splitlines()[3:8])) < 80
    assert "\n  navrl train resume=auto    " in examples


@pytest.mark.parametrize("command", ["train", "world", "bench"])
def test_every_command_has_help_with_examples(capsys, command):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("navrl ")


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["world", "--png"], ["world", "--drones", "many"]]
)
def test_a_command_line_that_makes_no_sense_exits_2(capsys, arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.slow
def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "navrl.cli", "train", "--cfg", "x.y=1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("navrl: unknown setting 'x.y'")
    assert "Traceback" not in done.stderr


def test_cfg_prints_every_setting_with_its_override(capsys):
    assert main(["train", "--cfg", "env.num_envs=77"]) == 0
    told = capsys.readouterr().out
    assert "num_envs: 77" in told
    assert all(
        group in told
        for group in (
            "env:",
            "env_dyn:",
            "sensor:",
            "drone:",
            "reward:",
            "sim:",
            "flight:",
            "seed:",
        )
    )


def test_settings_may_stand_behind_options(capsys):
    assert main(["train", "--cfg", "job", "env.num_envs=78"]) == 0
    assert "num_envs: 78" in capsys.readouterr().out


def test_cfg_explains_every_setting_beside_its_value(capsys):
    long = "a " * 60 + "# b: c"
    assert main(["train", "--cfg", "job", f"wandb.name='{long}'", "preset=best"]) == 0
    told = capsys.readouterr().out
    assert yaml.safe_load(told) == as_saved(load_config([f"wandb.name='{long}'", "preset=best"]))
    assert re.search(r"^  vel_range: +# speeds, m/s$", told, re.M)
    assert re.search(r"^seed: 0 +# of the weights", told, re.M)


def test_cfg_leaves_nothing_behind(tmp_path):
    main(["train", "--cfg"])
    assert [*tmp_path.iterdir()] == []


TRAIN = [
    "train",
    "preset=smoke",
    "env.num_envs=64",
    "max_frame_num=2048",
    "flight.worlds=2",
    "flight.interim_episodes=8",
    "env.max_episode_length=150",
    "processes=1",
]


@pytest.mark.slow
def test_training_leaves_a_model_its_evaluation_a_picture_and_an_animation(tmp_path, capsys):
    folder = tmp_path / "made" / "here"
    assert main([*TRAIN, f"run_folder={folder}", "flight.episodes=32", "flight.recorded=4"]) == 0
    told = capsys.readouterr().out
    assert "32 episodes in 2 worlds" in " ".join(told.split())  # a narrow terminal wraps titles
    assert "within 1.0 m" in told
    assert str(folder / "model.pt") in told.replace("\n", "")
    assert f"open in a browser: {folder / 'report.html'}" in told.replace("\n", "")
    assert "Learning curves" in (folder / "report.html").read_text()
    assert (folder / "replay.html").stat().st_size < 500_000
    with Image.open(folder / "flights.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
    with Image.open(folder / "flights.gif") as animation:
        assert animation.format == "GIF"
        assert animation.n_frames > 10
    assert (
        main(
            [
                "eval",
                str(folder),
                "--episodes",
                "8",
                "--worlds",
                "2",
                "--no-animation",
                "--out",
                str(tmp_path / "eval"),
            ]
        )
        == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [0, 1])
def test_training_records_as_few_flights_as_asked(tmp_path, recorded):
    arguments = [
        "flight.episodes=2",
        "flight.worlds=1",
        f"flight.recorded={recorded}",
        "flight.animation=false",
    ]
    assert main([*TRAIN, f"run_folder={tmp_path / 'run'}", *arguments]) == 0
    for name in ("flights.png", "replay.html"):  # without recorded flights there are none to show
        assert (tmp_path / "run" / name).is_file() == bool(recorded)
    assert not (tmp_path / "run" / "flights.gif").exists()


@pytest.mark.slow
def test_training_in_the_originals_task_flies_its_one_map(tmp_path, capsys):
    arguments = [
        "env=navrl_exact",
        "flight.episodes=4",
        "flight.recorded=1",
        "flight.animation=false",
    ]
    assert (
        main([*TRAIN, f"run_folder={tmp_path / 'run'}", *arguments, "env.max_episode_length=30"])
        == 0
    )
    assert "4 episodes in 1 world " in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def yard(tmp_path):
    (tmp_path / "yard.yaml").write_text(
        "boxes: [{center: [2.5, 0, 3], size: [1, 10, 6]}]\ncylinders: [{center: [0, 3], radius: "
        "1, height: 5}]"
    )
    return tmp_path / "yard.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [[], ["env=navrl_exact"], ["env.world_files=[yard.yaml]"], ["env_dyn.num_obstacles=0"]],
)
def test_a_world_becomes_a_picture(tmp_path, yard, capsys, overrides):
    path = tmp_path / "folder" / "world.png"
    assert (
        main(
            [
                "world",
                "--png",
                str(path),
                "--steps",
                "3",
                "--drones",
                "2",
                "env.num_worlds=1",
                *overrides,
            ]
        )
        == 0
    )
    assert str(path) in capsys.readouterr().out
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture.convert("L")).std() > 5  # not one colour


def test_any_world_of_the_pool_can_be_drawn(tmp_path):
    arguments = [
        "world",
        "--png",
        str(tmp_path / "second.png"),
        "--world",
        "1",
        "--steps",
        "0",
        "--drones",
        "1",
    ]
    assert main([*arguments, "env.num_worlds=2"]) == 0
    assert (tmp_path / "second.png").is_file()


MISTAKES = {
    "unknown setting": (["train", "env.num_env=3"], "Did you mean 'env.num_envs'?"),
    "unknown setting of a world": (["world", "sensr.noise=0.1"], "sensor.noise"),
    "wrong type": (["train", "env.num_envs=many"], "many"),
    "no value": (["train", "env.num_envs"], "has no value"),
    "impossible value": (["train", "sim.dt=-1"], "sim.dt"),
    "no episodes": (["train", "flight.episodes=0"], ""),
    "no worlds to fly": (["train", "flight.worlds=0"], ""),
    "negative seed": (["train", "seed=-1", "flight.episodes=2"], "seed"),
    "world outside the pool": (["world", "--world", "99"], "--world is 99"),
    "no drones": (["world", "--drones", "0"], ""),
    "missing file": (["world", "env.world_files=[none.yaml]"], "none.yaml: no such file"),
    "bad file": (["world", "env.world_files=[bad.yaml]"], "bad.yaml: boxes[0]"),
    "unknown preset": (["train", "env=original"], "navrl_exact"),
    "unknown benchmark": (["bench", "nothing"], "nothing"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_exits_2_with_one_line_and_no_traceback(tmp_path, capsys, kind):
    (tmp_path / "bad.yaml").write_text("boxes: [3]")
    arguments, piece = MISTAKES[kind]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("navrl: ")
    assert piece in told
    assert told.count("\n") == 1
    assert "Traceback" not in told


MISTAKES_OF_FILES = {
    "a picture of an unknown kind": (
        ["world", "--png", "world.xyz", "--steps", "0", "env.num_worlds=1"],
        "xyz",
    ),
    "a folder that is a file": (
        [
            "train",
            "run_folder=file",
            "flight.episodes=2",
            "flight.worlds=1",
            "env.max_episode_length=2",
        ],
        "file",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES_OF_FILES)
def test_a_picture_that_cannot_be_written_exits_2_with_one_line(tmp_path, capsys, kind):
    (tmp_path / "file").write_text("")
    arguments, piece = MISTAKES_OF_FILES[kind]
    assert main(arguments) == 2
    assert piece in capsys.readouterr().err


@pytest.mark.parametrize("recorded", [-1, -100])
def test_a_negative_number_of_recorded_flights_is_refused(tmp_path, capsys, recorded):
    assert main([*TRAIN, f"flight.recorded={recorded}", f"run_folder={tmp_path / 'run'}"]) == 2
    assert not (tmp_path / "run").exists()
    assert "flight.recorded" in capsys.readouterr().err


@pytest.mark.parametrize("overrides", [["flight.episodes=0"], ["flight.worlds=0"]])
def test_a_mistake_in_the_flight_is_told_with_the_key_that_was_typed(capsys, overrides):
    assert main(["train", *overrides]) == 2
    assert overrides[0].split("=")[0] in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_of_the_simulator_still_runs(run_benchmark):
    assert "mujoco" in run_benchmark("simulator").lower()


def test_an_error_of_the_users_environment_keeps_its_traceback(tmp_path, monkeypatch):
    code = "def make(num_envs): raise PermissionError(13, 'Permission denied', '/dev/robot')"
    (tmp_path / "own_robot.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    run = ["run_folder=run", "processes=1", "headless=true"]
    with pytest.raises(PermissionError, match="/dev/robot"):
        main(["train", "env=python", "env.target=own_robot:make", *run])


@pytest.mark.parametrize("words", [["settings", "--markdown"], ["train", "--cfg", "job"]])
def test_a_reader_that_has_left_ends_a_command_without_a_traceback(words):
    command = subprocess.Popen(
        [sys.executable, "-m", "navrl", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    command.stdout.close()  # before it prints: importing takes longer
    assert command.stderr.read() == b""
    command.stderr.close()
    assert command.wait() == 128 + signal.SIGPIPE
