"""A run that was stopped, killed or damaged goes on and ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from navrl.io.checkpoint import load_checkpoint
from navrl.monitor import MetricsLog
from navrl.registry import Registry

pytestmark = pytest.mark.slow

TINY = (
    "preset=smoke", "env.num_envs=32", "env.num_worlds=2", "env.num_obstacles=10", "env_dyn.num_obstacles=8",
    "algo.training_frame_num=8", "algo.num_minibatches=2", "max_frame_num=4096", "save_interval=2", "eval_interval=6",
    "flight.episodes=8", "flight.interim_episodes=8", "flight.worlds=2", "flight.recorded=0", "flight.animation=false",
    "env.max_episode_length=96", "keep_last_n=4", "processes=1",
)  # fmt: skip
ITERATIONS = 16
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
PATIENCE = 300.0  # s, on a machine that has more to do


class Server:
    """Starts `navrl` processes without the seconds that imports and compiled kernels take: see warm_server.py."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("warm_server.py")), *TINY]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ONE_THREAD)
        assert json.loads(self.process.stdout.readline()) == {"ready": True}

    def ask(self, **request: object) -> dict:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def start(self, folder: Path, *overrides: str) -> Run:
        output = folder.with_name(f"{folder.name}.txt")
        arguments = ["train", *TINY, f"run_folder={folder}", *overrides]
        return Run(self, self.ask(arguments=arguments, output=str(output))["pid"], folder, output)

    def train(self, folder: Path, *overrides: str, code: int = 0) -> str:
        return self.start(folder, *overrides).finish(code)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class Run:
    """A process that trains in a folder."""

    def __init__(self, server: Server, pid: int, folder: Path, output: Path) -> None:
        self.server, self.pid, self.folder, self.output = server, pid, folder, output
        self.code: int | None = None

    def ended(self) -> bool:
        if self.code is None:
            self.code = self.server.ask(poll=self.pid)["code"]
        return self.code is not None

    def send(self, number: int) -> None:
        assert not self.ended(), self.output.read_text()
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        if not self.ended():
            self.send(signal.SIGKILL)
            self.wait()

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self.ended():
            if time.monotonic() > end:
                self.kill()
                pytest.fail(f"it did not end within {PATIENCE} s:\n{self.output.read_text()}")
            time.sleep(0.01)

    def finish(self, code: int = 0) -> str:
        """Wait until it ends, as it should, and return what it printed."""
        self.wait()
        told = self.output.read_text()
        assert self.code == code, told
        return told

    def wait_for(self, iterations: int) -> None:
        """Return when so many iterations are in the metrics and a checkpoint is there, or the process has ended."""
        end = time.monotonic() + PATIENCE
        while not self.ended() and (logged(self.folder) < iterations or not checkpoints(self.folder)):
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.005)


def logged(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return sum(b'"train"' in line for line in path.read_bytes().splitlines()) if path.exists() else 0


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted((folder / "checkpoints").glob("checkpoint_*.pt"))


def same(first: object, second: object) -> bool:
    """Return whether two states are equal to the bit; NaN equals itself."""
    if isinstance(first, torch.Tensor):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (first, second)))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return type(first) is type(second) and (first == second or (first != first and second != second))


def ending(folder: Path) -> dict:
    state = load_checkpoint(folder / "checkpoints" / f"checkpoint_{ITERATIONS:09d}.pt")
    state["config"].pop("run_folder")
    return state


def learning(folder: Path) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "time"} for record in MetricsLog.read(folder / "metrics.jsonl", "train")]


def evaluated(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "evaluations").iterdir())


def conditions(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())["conditions"]


def assert_ends_alike(folder: Path, whole: Path) -> None:
    assert same(ending(folder), ending(whole))
    assert learning(folder) == learning(whole)
    assert same(*(load_checkpoint(run / "model.pt") for run in (folder, whole)))
    assert conditions(folder) == conditions(whole)


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    server.train(folder)
    return folder


def test_a_run_from_the_shell_ends_like_one_of_the_warm_server(whole, tmp_path):
    command = [sys.executable, "-m", "navrl.cli", "train", *TINY, f"run_folder={tmp_path / 'run'}"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, env=ONE_THREAD)
    assert_ends_alike(tmp_path / "run", whole)


@pytest.mark.parametrize("number", range(4))
def test_a_run_killed_again_and_again_ends_as_if_never_stopped(server, whole, tmp_path, number):
    """Five kill -9 at random moments each: twenty in all. A kill too late for the run begins it anew."""
    moments, kills, attempt = random.Random(number), 0, 0
    run = server.start(tmp_path / "run0")
    while kills < 5:
        run.wait_for(logged(run.folder) + moments.randint(0, 4))
        time.sleep(moments.random() * 0.05)
        run.kill()
        if run.code == -signal.SIGKILL:
            kills += 1
            run = server.start(run.folder, "resume=auto")
        else:
            assert_ends_alike(run.folder, whole)
            attempt += 1
            run = server.start(tmp_path / f"run{attempt}")
    run.finish()
    assert_ends_alike(run.folder, whole)
    assert len(json.loads((run.folder / "run.json").read_text())["resumed"]) <= 5


def test_a_run_that_collects_ahead_and_is_killed_ends_as_if_never_stopped(server, tmp_path):
    server.train(tmp_path / "whole", "use_pipelined_collector=true")
    run = server.start(tmp_path / "run", "use_pipelined_collector=true")
    run.wait_for(7)
    run.kill()
    server.train(run.folder, "resume=auto")
    assert_ends_alike(run.folder, tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops_with_its_code_and_the_run_goes_on_from_there(server, whole, tmp_path, number):
    folder = tmp_path / "run"
    run = server.start(folder)
    run.wait_for(7)
    run.send(number)
    told = run.finish(128 + number)
    assert f"resume=auto run_folder={folder}" in told
    stopped = load_checkpoint(checkpoints(folder)[-1])["iteration"]
    assert 7 <= stopped < ITERATIONS
    assert len(learning(folder)) == stopped
    server.train(folder, "resume=auto")
    assert_ends_alike(folder, whole)


def test_a_signal_does_not_cost_the_evaluation_that_was_due(server, tmp_path):
    overrides = ("eval_interval=1", "max_frame_num=1536")
    server.train(tmp_path / "whole", *overrides)
    run = server.start(tmp_path / "run", *overrides)
    run.wait_for(2)
    run.send(signal.SIGTERM)
    run.finish(128 + signal.SIGTERM)
    server.train(run.folder, *overrides, "resume=auto")
    assert evaluated(run.folder) == evaluated(tmp_path / "whole") == [f"iteration_{number:06d}.json" for number in range(1, 7)]
    assert same(*(load_checkpoint(folder / "model.pt") for folder in (run.folder, tmp_path / "whole")))


def test_a_second_interrupt_ends_it_at_once_and_leaves_whole_files(server, tmp_path):
    run = server.start(
        tmp_path / "run", "env.num_envs=2048", "algo.training_frame_num=64", "save_interval=1", "max_frame_num=100_000_000"
    )
    run.wait_for(1)
    run.send(signal.SIGINT)
    time.sleep(0.05)
    run.send(signal.SIGINT)
    told = run.finish(128 + signal.SIGINT)
    assert "stopped by a signal" not in told
    for path in checkpoints(run.folder):
        load_checkpoint(path)


def test_a_damaged_newest_checkpoint_is_passed_over_and_said(server, whole, tmp_path):
    run = server.start(tmp_path / "run")
    run.wait_for(9)
    run.kill()
    newest = checkpoints(run.folder)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0x40
    newest.write_bytes(content)
    assert newest.name in server.train(run.folder, "resume=auto")
    assert_ends_alike(run.folder, whole)


def test_two_processes_resume_bit_for_bit_too(server, tmp_path):
    whole = tmp_path / "whole"
    server.train(whole, "processes=2")
    run = server.start(tmp_path / "run", "processes=2")
    run.wait_for(7)
    run.kill()
    server.train(run.folder, "processes=2", "resume=auto")
    assert_ends_alike(run.folder, whole)


def test_a_setting_that_would_make_it_another_run_is_refused_by_name(server, whole):
    told = server.train(whole, "resume=auto", "algo.gamma=0.5", code=2)
    assert "algo.gamma (was 0.99, now 0.5)" in told
    assert "max_frame_num" in told


def test_a_run_that_has_ended_can_be_made_longer(server, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder, symlinks=True)
    server.train(folder, "resume=auto", "max_frame_num=4600")
    assert len(learning(folder)) == -(-4600 // 256)


def test_a_checkpoint_of_the_registry_goes_on_in_a_folder_of_its_own_to_the_same_end(server, whole, tmp_path):
    with Registry() as registry:
        registry.register("resumed", checkpoints(whole)[1], aliases=["stable"])
    folder = tmp_path / "run"
    server.train(folder, "resume_checkpoint=resumed:stable")
    ends = [{key: value for key, value in ending(run).items() if key != "best"} for run in (folder, whole)]
    assert same(*ends)  # but for the best model, which is that of the folder
    assert learning(folder) == learning(whole)[-len(learning(folder)) :]


def test_a_folder_with_a_run_is_not_trained_in_again(server, whole):
    assert "resume=auto" in server.train(whole, code=2)


def test_two_trainings_in_one_folder_are_refused(server, tmp_path):
    run = server.start(tmp_path / "run", "max_frame_num=10_000_000")
    run.wait_for(3)
    told = server.train(run.folder, "resume=auto", code=2)
    assert f"process {run.pid} " in told
    run.kill()


def test_resuming_where_there_is_no_run_says_so(server, tmp_path):
    assert "holds no run" in server.train(tmp_path / "nothing", "resume=auto", code=2)


def test_a_training_process_that_dies_ends_the_run_with_its_files_whole(server, tmp_path):
    run = server.start(tmp_path / "run", "processes=2", "max_frame_num=10_000_000")
    run.wait_for(5)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    [worker] = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(int(worker), signal.SIGKILL)
    assert "a training process is gone" in run.finish(2)
    for path in checkpoints(run.folder):
        load_checkpoint(path)
