"""A tiny training for the usual robot, and for one with another LiDAR, body and plane of motion.

That the compiled network serves the third robot is tested in test_robot_command.py.
"""

from __future__ import annotations

import json

import pytest

from navrl.cli import main
from navrl.evaluation import load_policy
from navrl.sim.robots import differences, load_robot
from training_runs import TINY


@pytest.mark.slow  # compiles the network for the robot's observation
@pytest.mark.parametrize("name", ["ground", "hummingbird"])
def test_a_policy_is_trained_for_a_robot_and_carries_it(name, tmp_path, capsys):
    run = tmp_path / "run"
    few = ["max_frame_num=768", "save_interval=3", "eval_interval=3", "registry.name="]
    words = [*TINY, *few, f"robot={name}", f"run_folder={run}", "headless=true"]
    assert main(["train", *words]) == 0
    assert differences(load_policy(run).robot, load_robot(name)) == []
    flown = json.loads((run / "evaluation.json").read_text())["conditions"]
    assert {row["settings"]["drone"]["robot"] for row in flown.values()} == {name}
    assert "PyTorch" not in capsys.readouterr().out  # the compiled network served it
