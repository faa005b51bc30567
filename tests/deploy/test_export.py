"""Exported policies: every format commands and flies as the torch policy, and misuse is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from navrl import benchmark as bench
from navrl.cli import main
from navrl.deploy import policy_export, robot_policy
from navrl.deploy.c_header import c_header
from navrl.deploy.policy_export import export_policy
from navrl.deploy.robot_inputs import sampled_inputs
from navrl.deploy.robot_policy import INPUTS, RobotPolicy
from navrl.deploy.verify import FILES, TOLERANCE, Verdict, load_command, rounding, verify_export
from navrl.errors import ConfigError
from navrl.evaluation.policy_lookup import load_policy
from navrl.rl.networks.navigation import NavigationNetwork, to_upstream
from navrl.rl.networks.transformer import TransformerNetwork
from navrl.sim.settings import NavigationSettings

onnxruntime = pytest.importorskip("onnxruntime", reason="navrl[export] is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.slow  # torch's exporters take some ten seconds


@pytest.fixture(scope="module")
def golden(exported):
    with np.load(exported / "golden.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def verdicts(exported):
    policy = load_policy("pretrained")
    found = verify_export(exported, policy, observations=600, episodes=32)
    return {verdict.name: verdict for verdict in found}


@pytest.mark.parametrize("name", FILES)
def test_a_file_commands_and_flies_as_the_torch_policy_does(verdicts, name):
    verdict = verdicts[name]
    if verdict.skipped:
        pytest.skip(verdict.skipped)
    assert verdict.golden <= TOLERANCE
    assert verdict.parity <= verdict.allowed
    assert verdict.exported_success == verdict.torch_success > 0.5
    assert verdict.holds


def test_a_difference_beyond_rounding_fails_and_rounding_alone_does_not():
    policy = load_policy("pretrained")
    inputs, _ = sampled_inputs(policy.task, policy, 200, 7)
    assert 0 < rounding(policy, inputs) < 2 * TOLERANCE
    fine = Verdict("onnx", 0.0, 1.4e-5, 0.9, 0.9, allowed=2e-5)
    assert fine.holds
    assert not replace(fine, parity=2.1e-5).holds
    assert not replace(fine, golden=1.4e-5).holds
    assert not replace(fine, allowed=TOLERANCE).holds


def test_a_mistake_in_the_exported_module_fails_although_all_of_its_files_share_it(
    tmp_path, monkeypatch
):
    right = robot_policy._from_goal_frame
    monkeypatch.setattr(
        robot_policy, "_from_goal_frame", lambda command, forward: -right(command, forward)
    )
    folder = export_policy("pretrained", tmp_path / "out", formats=["pt2"])
    [verdict] = verify_export(folder, load_policy("pretrained"), observations=200, episodes=0)
    assert verdict.allowed <= 2 * TOLERANCE
    assert verdict.parity > 0.1
    assert not verdict.holds


@pytest.mark.parametrize("name", ["onnx", "pt2"])
@pytest.mark.parametrize(("number", "tracks"), [(1, 1), (1, 8), (5, 3), (200, 8)])
def test_batch_size_and_number_of_obstacles_are_free(exported, golden, name, number, tracks):
    inputs = {key: golden[key][:number] for key in INPUTS}
    inputs["obstacles"] = inputs["obstacles"][:, :tracks]
    whole = {**inputs, "obstacles": np.pad(inputs["obstacles"], ((0, 0), (0, 4), (0, 0)))}
    command = load_command(exported, name)
    assert command(inputs).shape == (number, 3)
    assert np.allclose(command(inputs), command(whole), atol=TOLERANCE)


def test_there_are_at_least_256_test_vectors_and_the_edge_cases(golden):
    assert len(golden["velocity_world"]) >= 256 + 10
    assert np.isfinite(golden["velocity_world"]).all()


RUN = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from runner import RobotRunner
policy = RobotRunner(sys.argv[1])
golden = np.load(sys.argv[1] + "/golden.npz")
names = ("position", "velocity", "goal", "start", "lidar", "obstacles")
row = [n for n in range(len(golden["lidar"])) if (golden["lidar"][n] > 0).any()][20]
command = policy(**{name: golden[name][row] for name in names})
assert np.abs(command - golden["velocity_world"][row]).max() < 1e-5
assert not {"torch", "navrl", "yaml"} & set(sys.modules), "it needs more than it says"
print("equal")
"""


def test_the_runner_needs_numpy_and_onnxruntime_only(exported):
    command = [sys.executable, "-c", RUN, str(exported)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("position", [0.0, np.nan, 1.0], "position holds NaN"),
        ("lidar", np.full((36, 3), 4.0), "lidar has the shape"),
        ("lidar", np.zeros((36, 4)), "every ray of a scan is 0"),
        ("lidar", np.full((36, 4), -1.0), "below 0"),
        ("obstacles", np.zeros((2, 7)), "obstacles has the shape"),
        ("age", 3.0, "3.0 s old"),
    ],
)
def test_the_runner_refuses_misuse_by_name(exported, name, value, told):
    from navrl.deploy.runner import RobotRunner

    inputs = {
        "position": [0, 0, 1],
        "velocity": [0, 0, 0],
        "goal": [9, 0, 1],
        "start": [0, 0, 1],
        "lidar": np.full((36, 4), 4.0),
    }
    runner = RobotRunner(exported)
    assert runner(**inputs).shape == (3,)
    with pytest.raises(ValueError, match=told):
        runner(**inputs | {name: value})


def test_the_contract_is_in_the_file_and_beside_it(exported):
    import yaml

    session = onnxruntime.InferenceSession(str(exported / "policy.onnx"))
    inside = json.loads(session.get_modelmeta().custom_metadata_map["contract"])
    beside = yaml.safe_load((exported / "contract.yaml").read_text())
    assert inside["inputs"] == beside["inputs"]
    assert inside["policy_sha256"] == beside["policy_sha256"]
    assert [node.name for node in session.get_inputs()] == list(inside["inputs"])
    assert inside["lidar"]["elevations_degrees"] == [-10, 0, 10, 20]
    assert "counter-clockwise" in (exported / "contract.yaml").read_text()


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_c_example_compiles_without_warnings_and_flies(exported, tmp_path):
    build = [COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "example.c", "-lm", "-o"]
    subprocess.run([*build, str(tmp_path / "example")], cwd=exported, check=True)
    done = subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fly ")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_verification_finds_a_file_with_another_weight(exported, tmp_path, capsys):
    for file in ("golden.npz", "navrl_policy.h", "source.txt"):
        if (exported / file).exists():
            shutil.copy(exported / file, tmp_path)
    header = tmp_path / "navrl_policy.h"
    text = header.read_text()
    start = text.index("navrl_heads_bias[6] = {") + len("navrl_heads_bias[6] = {")
    header.write_text(text[:start] + "1.0f" + text[text.index(",", start) :])
    words = ["export", "--verify", str(tmp_path), "--policy", "pretrained"]
    assert main([*words, "--observations", "64", "--episodes", "0"]) == 1
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("azimuths", "beams", "circular", "relative_motion"),
    [(36, 4, False, False), (17, 3, True, False), (36, 4, True, True)],
)
def test_a_header_serves_other_scans_and_networks(
    tmp_path, azimuths, beams, circular, relative_motion
):
    task = NavigationSettings()
    from navrl.navigation_observation import navigation_layout

    torch.manual_seed(0)
    layout = navigation_layout(azimuths, beams, task.env.num_observed)
    network = NavigationNetwork(
        layout, circular=circular, distance_scale=0.1, relative_motion=relative_motion
    )
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    robot = RobotPolicy(network.requires_grad_(False), task)
    (tmp_path / "navrl_policy.h").write_text(c_header(robot))
    inputs = [torch.rand(20, 3) * 6 for _ in range(4)]
    inputs += [torch.rand(20, azimuths, beams) * 4, torch.rand(20, 9, 8) * 3]
    arrays = {name: value.numpy() for name, value in zip(INPUTS, inputs, strict=True)}
    found = load_command(tmp_path, "c")(arrays)
    assert np.abs(found - robot(*inputs).numpy()).max() < TOLERANCE


@pytest.mark.parametrize("name", ["onnx", "pt2"])
def test_relative_motion_is_in_the_other_files_too(tmp_path, name):
    torch.manual_seed(0)
    network = NavigationNetwork(circular=True, distance_scale=0.1, relative_motion=True)
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    robot = RobotPolicy(network.requires_grad_(False), NavigationSettings())
    if name == "onnx":
        policy_export._write_onnx(robot, {}, tmp_path)
    else:
        policy_export._write_pt2(robot, tmp_path / FILES["pt2"])
    inputs = [torch.rand(20, 3) * 6 for _ in range(4)]
    inputs += [torch.rand(20, 36, 4) * 4, torch.rand(20, 3, 8) * 6]
    arrays = {key: value.numpy() for key, value in zip(INPUTS, inputs, strict=True)}
    assert np.abs(load_command(tmp_path, name)(arrays) - robot(*inputs).numpy()).max() < TOLERANCE


def test_a_checkpoint_of_the_original_exports_too(tmp_path):
    path = tmp_path / "original.pt"
    torch.save(to_upstream(NavigationNetwork()), path)
    folder = export_policy(path, tmp_path / "out", formats=["c"])
    assert (folder / "navrl_policy.h").stat().st_size > 1_000_000
    assert (folder / "contract.yaml").exists()


def test_a_policy_without_a_network_or_with_another_one_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no network to export"):
        export_policy("scripted", tmp_path, formats=["c"])
    with pytest.raises(ConfigError, match="leave c out"):
        c_header(RobotPolicy(TransformerNetwork(), NavigationSettings()))
    with pytest.raises(ConfigError, match="onnx, pt2, c"):
        export_policy("pretrained", tmp_path, formats=["tflite"])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_no_export_is_told(tmp_path, capsys):
    assert main(["export", "--verify", str(tmp_path), "--policy", "pretrained"]) == 2
    assert "holds no exported policy" in capsys.readouterr().err


def test_the_code_on_the_page_runs(exported, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").symlink_to(exported)
    monkeypatch.syspath_prepend(str(exported))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["command"].shape == (3,)
    assert "moving obstacle" in capsys.readouterr().out


def test_the_benchmark_still_runs(exported, monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    monkeypatch.setattr(policy_export, "export_policy", lambda policy, folder: exported)
    report = bench.run(bench.find_suite("deploy", smoke=True), smoke=True)
    assert report.results.median("decision: onnxruntime", "p50") > 0
    assert 0 <= report.results.median("crossing: policy + shield", "success") <= 1
