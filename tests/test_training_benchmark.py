"""The training benchmark: its contestants learn, its processes answer and end, its gates name the
right peers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import Beta

from navrl import benchmark as bench
from navrl.benchmark import Results, peers
from navrl.errors import BenchmarkError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from _training_peers import gemm_limit, task  # noqa: E402
from _training_peers.plain_loop import PlainLoop, PlainUpdate  # noqa: E402
from _training_peers.process import ContestantProcess, _session  # noqa: E402

TINY = task.Task(drones=32, steps=4, epochs=1, minibatches=2, worlds=2, threads=1)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_density_and_entropy_are_those_of_the_beta_distribution():
    torch.manual_seed(0)
    alpha, beta = task.beta_parameters(torch.randn(50, 7))
    action, peer = task.sample(alpha, beta), Beta(alpha, beta)
    torch.testing.assert_close(
        task.log_probability(alpha, beta, action),
        peer.log_prob(action).sum(1),
        rtol=1e-4,
        atol=1e-4,
    )
    torch.testing.assert_close(
        task.entropy(alpha, beta), peer.entropy().sum(1), rtol=1e-4, atol=1e-4
    )


def test_advantages_stop_at_the_end_of_an_episode():
    update = PlainUpdate(TINY)
    reward, value = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [0.25], [1.0], [3.0]])
    advantage = update.advantages(reward, torch.tensor([[False], [True], [False]]), value)
    last, second = 4 + 0.99 * 3 - 1, 2 - 0.25
    first = 1 + 0.99 * 0.25 - 0.5 + 0.99 * 0.95 * second
    torch.testing.assert_close(advantage[:, 0], torch.tensor([first, second, last]))


def test_the_plain_loop_moves_every_part_of_the_network():
    loop = PlainLoop(TINY)
    before = {name: value.clone() for name, value in loop.update.network.named_parameters()}
    loop.iterate()
    still = [
        name
        for name, value in loop.update.network.named_parameters()
        if torch.equal(before[name], value)
    ]
    assert set(still) <= {"dynamic.0.weight"}  # nobody may have met a moving obstacle yet


def test_the_products_of_the_limit_are_those_of_the_network():
    network = task.make_network()
    shapes = [tuple(value.shape) for name, value in network.named_parameters() if value.ndim > 1]
    heads = [shape for shape in shapes if shape[1:] == (256,) and shape[0] < 8]
    weights = [shape for shape in shapes if shape not in heads] + [
        (sum(shape[0] for shape in heads), 256)
    ]
    found = sorted(layer.shapes[0][1] * layer.shapes[0][2] for layer in gemm_limit.LAYERS)
    assert found == sorted(torch.Size(shape).numel() for shape in weights)


def test_both_forms_of_a_convolution_have_outputs_of_the_same_size():
    for layer in gemm_limit.LAYERS:
        assert len({rows * outputs for rows, _, outputs in layer.shapes}) == 1


EACH = """
import importlib, json, os, sys
from _training_peers.task import Task
task = Task(**json.loads(sys.argv[1]))
for name in sys.argv[2:]:
    contestant = importlib.import_module(f"_training_peers.{name}").make(task)
    print(name, *contestant.iterate(), flush=True)
os._exit(0)  # collectors leave threads behind
"""


@pytest.mark.slow
def test_every_contestant_that_is_installed_trains(monkeypatch):
    monkeypatch.chdir(BENCHMARKS.parent)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=os.pathsep)
    names = [case.measure.__self__.name for case in bench.find_suite("training", smoke=True).cases]
    assert {"navrl_trainer", "plain_loop", "gemm_limit"} <= set(names)
    command = [sys.executable, "-W", "ignore", "-c", EACH, TINY.as_json(), *names]
    done = subprocess.run(command, capture_output=True, text=True)
    told = [line.split() for line in done.stdout.splitlines() if line.startswith(tuple(names))]
    assert [name for name, *_ in told] == names, done.stderr
    assert all(float(seconds) > 0 for _, *both in told for seconds in both)


@pytest.mark.slow
def test_the_smoke_run_measures_speed_and_memory(monkeypatch):
    monkeypatch.chdir(BENCHMARKS.parent)
    suite = bench.find_suite("training", smoke=True)
    names = ["navrl", "GEMM limit"]  # each is a process
    suite = replace(suite, cases=[case for case in suite.cases if case.name in names])
    report = bench.run(suite, smoke=True)
    for name in names:
        assert report.results.median(name, "frames_per_second") > 0
        assert report.results.median(name, "memory") > 50e6
    assert report.gates == []


@pytest.mark.slow
def test_our_trainer_answers_with_two_processes_and_takes_both_with_it():
    contestant = ContestantProcess(
        "navrl_trainer", replace(TINY, threads=2), lambda: sys.executable
    )
    try:
        contestant.measure()
        members = [int(folder.name) for folder, _ in _session(contestant._process.pid)]
        assert len(members) >= 2
        assert contestant.measure()["frames_per_second"] > 0
    finally:
        contestant.close()
    deadline = time.monotonic() + 20
    while any(is_running(member) for member in members) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_running(member) for member in members)


@pytest.mark.slow
def test_a_contestant_sleeps_between_its_iterations_and_ends_when_closed():
    contestant = ContestantProcess("plain_loop", TINY, lambda: sys.executable)
    contestant.measure()
    process = contestant._process
    time.sleep(1.0)
    assert contestant.measure()["waiting_cores"] < 0.1
    contestant.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.slow
def test_a_contestant_that_fails_says_why():
    contestant = ContestantProcess("nobody", TINY, lambda: sys.executable)
    with pytest.raises(
        BenchmarkError,
        match=r"nobody ended with status 1:[\s\S]*No module named '_training_peers.nobody'",
    ):
        contestant.measure()
    contestant.close()


def test_an_environment_sees_navrl_of_this_checkout_and_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "cache", lambda: tmp_path / "bench")
    commands = []

    def call(command, name):
        commands.append(command)
        (tmp_path / "bench" / name / "lib" / "python3" / "site-packages").mkdir(
            parents=True, exist_ok=True
        )
        (tmp_path / "bench" / name / "bin").mkdir(exist_ok=True)
        (tmp_path / "bench" / name / "bin" / "python").touch()

    monkeypatch.setattr(peers, "_call", call)
    first = peers.python_of("peer", ["peer==1.0"])
    assert peers.python_of("peer", ["peer==1.0"]) == first
    assert len(commands) == 2
    assert commands[1][-1] == "peer==1.0"
    assert "site.addsitedir" in next((tmp_path / "bench").rglob("below.pth")).read_text()
    peers.python_of("peer", ["peer==2.0"])
    assert len(commands) == 4


def test_an_environment_that_cannot_be_made_is_an_error_with_pips_words():
    with pytest.raises(
        BenchmarkError, match=r"environment of peer cannot be made: no such package.*--smoke"
    ):
        peers._call([sys.executable, "-c", "raise SystemExit('no such package')"], "peer")


def test_the_gates_compare_with_the_faster_form_of_torchrl(monkeypatch):
    monkeypatch.chdir(BENCHMARKS.parent)
    suite = bench.find_suite("training", smoke=False)
    results = Results()
    speeds = {
        "navrl": 30.0,
        "TorchRL": 5.0,
        "TorchRL collector, plain update": 10.0,
        "Stable-Baselines3": 10.0,
        "rsl_rl": 6.0,
        "GEMM limit": 40.0,
    }
    for name, speed in speeds.items():
        results.add(name, {"frames_per_second": speed})
    values = {(gate.name, gate.stretch): gate.value(results) for gate in suite.gates}
    assert values["times TorchRL, the faster of the two", False] == pytest.approx(3.0)
    assert values["times rsl_rl", True] == pytest.approx(5.0)
    assert values["share of the GEMM limit", True] == pytest.approx(0.75)
