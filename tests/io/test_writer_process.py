"""Large files are written by a process of their own: the same bytes, the same errors, and nothing lost when somebody dies."""

from __future__ import annotations

import copy
import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from io_states import TinyTraining, assert_same, everything

from navrl.errors import CheckpointError
from navrl.io import AsyncCheckpointSaver, CheckpointDirectory, load_checkpoint
from navrl.io import checkpoint as checkpoint_module
from navrl.io import file_writer as file_writer_module
from navrl.io import snapshot as snapshot_module
from navrl.io.channel import Channel
from navrl.io.files import TEMPORARY_PATTERN
from navrl.io.shared_memory import SharedMemory
from navrl.io.threads import TaskThreads
from navrl.io.writer_process import WriterProcess, _Order

STRACE = shutil.which("strace")


@pytest.fixture(autouse=True)
def every_state_is_large(monkeypatch):
    monkeypatch.setattr(file_writer_module, "WORTH_PROCESS", 1)


@pytest.fixture
def written_there(monkeypatch):
    """The files that a process has written."""
    paths = []
    write = WriterProcess.write

    def note(self, path, *arguments, **named):
        written = write(self, path, *arguments, **named)
        paths.append(path.name)
        return written

    monkeypatch.setattr(WriterProcess, "write", note)
    return paths


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def with_process(folder, **options) -> AsyncCheckpointSaver:
    """Return a saver whose process is up."""
    saver = AsyncCheckpointSaver(**options)
    saver.save_async({"x": torch.ones(10)}, folder / "first" / "x.pt")
    saver.flush()
    wait_for(lambda: saver._files._process.is_up())
    return saver


def process_of(saver) -> int:
    return saver._files._process.pid


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_process_writes_the_very_bytes_that_threads_write(tmp_path, written_there, monkeypatch):
    monkeypatch.setattr(checkpoint_module.time, "time", lambda: 1.5)
    state = {"each": everything(), "weights": torch.randn(3_000_000), "bytes": torch.zeros(100_000, dtype=torch.uint8)}
    with with_process(tmp_path) as saver:
        saver.save_async(state, tmp_path / "there.pt", metadata={"reward": 0.1})
    with AsyncCheckpointSaver(process=False) as saver:
        saver.save_async(state, tmp_path / "here.pt", metadata={"reward": 0.1})
    assert written_there == ["there.pt"]
    assert (tmp_path / "there.pt").read_bytes() == (tmp_path / "here.pt").read_bytes()
    assert_same(load_checkpoint(tmp_path / "there.pt")["weights"], state["weights"])


@pytest.mark.parametrize("hurry", [False, True])
def test_no_file_is_torn_while_training_runs_hard(tmp_path, written_there, monkeypatch, hurry):
    memmove = ctypes.memmove

    def slow(*arguments):
        if threading.current_thread().name == "navrl-copy":
            time.sleep(0.001)
        return memmove(*arguments)

    training = TinyTraining()
    expected = {}
    with with_process(tmp_path, optimizers=training.optimizers) as saver:
        monkeypatch.setattr(snapshot_module.ctypes, "memmove", slow)
        monkeypatch.setattr("navrl.io.saver._WORTH_OVERLAP", 0)
        for i in range(8):
            for _ in range(3):
                training.step()
            expected[i] = copy.deepcopy(training.state())
            saver.save_async(training.state(), tmp_path / f"{i}.pt")
            if hurry:
                threading.Thread(target=saver.flush).start()
            training.step()
    assert len(written_there) == 8
    for i, state in expected.items():
        assert_same(load_checkpoint(tmp_path / f"{i}.pt"), state)


def test_the_process_may_begin_before_the_copy_ends_and_names_the_file_after_it(tmp_path, monkeypatch, written_there):
    parameters = [torch.nn.Parameter(torch.randn(3_000_000)) for _ in range(2)]
    reached, go = threading.Event(), threading.Event()
    memmove, copied = ctypes.memmove, []

    def hold_second(*arguments):
        if threading.current_thread().name == "navrl-copy":
            copied.append(1)
            if len(copied) == 2:
                reached.set()
                go.wait(30)
        return memmove(*arguments)

    with with_process(tmp_path, optimizers=[torch.optim.SGD(parameters, 0.1)]) as saver:
        monkeypatch.setattr(snapshot_module.ctypes, "memmove", hold_second)
        saver.save_async({"parameters": parameters}, tmp_path / "x.pt")
        assert reached.wait(30)
        waiting = threading.Thread(target=saver.flush)
        waiting.start()
        wait_for(lambda: [path.stat().st_size for path in tmp_path.glob(TEMPORARY_PATTERN) if path.stat().st_size > 1 << 20])
        assert not (tmp_path / "x.pt").exists()
        go.set()
        waiting.join(30)
    assert written_there == ["x.pt"]
    assert_same(load_checkpoint(tmp_path / "x.pt")["parameters"][1], parameters[1].detach())


def test_a_copy_that_cannot_be_trusted_is_not_stored_and_the_next_is(tmp_path, monkeypatch, written_there):
    parameter = torch.nn.Parameter(torch.randn(100_000))
    go = threading.Event()
    finish_copy = snapshot_module.Snapshot.finish_copy
    with with_process(tmp_path, optimizers=[torch.optim.SGD([parameter], 0.1)]) as saver:
        monkeypatch.setattr(snapshot_module.Snapshot, "finish_copy", lambda self: (go.wait(30), finish_copy(self)))
        monkeypatch.setattr("navrl.io.saver._WORTH_OVERLAP", 0)
        saver.save_async({"x": parameter}, tmp_path / "x.pt")
        with torch.no_grad():
            parameter.add_(1)
        go.set()
        with pytest.raises(CheckpointError, match="written to while it was being copied"):
            saver.flush()
        assert not (tmp_path / "x.pt").exists()
        saver.save_async({"x": parameter}, tmp_path / "y.pt")
    assert written_there == ["y.pt"]
    assert_same(load_checkpoint(tmp_path / "y.pt")["x"], parameter.detach())
    assert list(tmp_path.glob(TEMPORARY_PATTERN)) == []


def test_what_goes_wrong_there_is_told_here_as_it_would_be_by_threads(tmp_path, written_there):
    (tmp_path / "x.pt").mkdir()
    told = []
    for process in (True, False):
        saver = with_process(tmp_path) if process else AsyncCheckpointSaver(process=False)
        saver.save_async({"x": torch.ones(10_000)}, tmp_path / "x.pt")
        with pytest.raises(CheckpointError, match="IsADirectoryError") as caught:
            saver.flush()
        told.append(str(caught.value).split(" -> ")[0].replace(str(tmp_path), ""))
        saver.save_async({"x": torch.ones(10_000)}, tmp_path / f"{process}.pt")
        saver.shutdown()
    assert [text.split("Error")[0] for text in told] == [told[0].split("Error")[0]] * 2
    assert written_there == ["True.pt"]
    assert list(tmp_path.glob(TEMPORARY_PATTERN)) == []


def test_a_process_that_is_killed_loses_nothing(tmp_path, caplog, written_there):
    weights = torch.randn(5_000_000)
    with with_process(tmp_path) as saver, caplog.at_level(logging.WARNING, "navrl.io"):
        victim = process_of(saver)
        os.kill(victim, signal.SIGSTOP)
        saver.save_async({"x": weights}, tmp_path / "x.pt")
        time.sleep(0.05)
        os.kill(victim, signal.SIGKILL)
        saver.flush()
        assert "is gone" in caplog.text
        saver.save_async({"x": weights}, tmp_path / "y.pt")
    assert written_there == []
    assert not is_running(victim)
    for name in ("x.pt", "y.pt"):
        assert_same(load_checkpoint(tmp_path / name)["x"], weights)
    assert list(tmp_path.glob(TEMPORARY_PATTERN)) == []


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="needs strace to stop a process at each system call")
@pytest.mark.parametrize("call", ["recvmsg", "openat", "flock", "writev", "fsync", "rename", "close", "sendto"])
def test_a_process_that_is_killed_at_any_system_call_loses_nothing(tmp_path, call):
    weights = torch.randn(100_000)
    kills = 0
    for number in range(1, 5):
        folder = tmp_path / str(number)
        with with_process(folder) as saver:
            victim = process_of(saver)
            tracer = subprocess.Popen(
                [STRACE, "-qq", "-f", "-o", "/dev/null", "-e", f"trace={call}",
                 "-e", f"inject={call}:signal=KILL:when={number}", "-p", str(victim)], stderr=subprocess.DEVNULL,
            )  # fmt: skip
            wait_for(lambda: f"TracerPid:\t{tracer.pid}" in Path(f"/proc/{victim}/status").read_text())  # noqa: B023
            for name in ("x.pt", "y.pt"):
                saver.save_async({"x": weights}, folder / name)
                saver.flush()
            kills += not is_running(victim)
        tracer.wait()
        assert sorted(path.name for path in folder.iterdir()) == ["first", "x.pt", "y.pt"]
        for name in ("x.pt", "y.pt"):
            assert_same(load_checkpoint(folder / name)["x"], weights)
    assert kills >= 2


def test_the_process_has_no_torch_and_ends_with_the_saver(tmp_path):
    saver = with_process(tmp_path)
    process = process_of(saver)
    assert "libtorch" not in Path(f"/proc/{process}/maps").read_text()
    assert os.getsid(process) != os.getsid(0)  # Ctrl+C in a terminal does not reach it
    saver.shutdown()
    assert not is_running(process)


def test_no_process_is_started_where_the_interpreter_is_another_application(tmp_path, monkeypatch, written_there):
    monkeypatch.setattr(sys, "executable", "/opt/simulator/kit")
    with AsyncCheckpointSaver() as saver:
        for name in ("x.pt", "y.pt"):
            saver.save_async({"x": torch.ones(1000)}, tmp_path / name)
            saver.flush()
        assert saver._files._process is None
    assert load_checkpoint(tmp_path / "y.pt")["x"].sum() == 1000


def test_a_process_that_cannot_import_what_it_needs_is_done_without(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", shutil.copy(shutil.which("false"), tmp_path / "python"))
    with AsyncCheckpointSaver() as saver, caplog.at_level(logging.WARNING, "navrl.io"):
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "x.pt")
        saver.flush()
        saver._files._process._process.wait(10)
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "y.pt")
        saver.flush()
        assert "is gone" in caplog.text
    assert load_checkpoint(tmp_path / "y.pt")["x"].sum() == 1000


def test_raw_lossy_and_differing_files_and_small_states_are_written_by_threads(tmp_path, monkeypatch, written_there):
    with with_process(tmp_path) as saver:
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "raw.pt", compress=False)
        saver.save_async({"x": 1}, tmp_path / "small.pt")
    for options in ({"delta_chain": 3}, {"lossy_moments": True}):
        with AsyncCheckpointSaver(**options) as saver:
            for name in ("a.pt", "b.pt"):
                saver.save_async({"x": torch.ones(1000)}, tmp_path / name)
                saver.flush()
            assert saver._files._process is None
    monkeypatch.setattr(file_writer_module, "WORTH_PROCESS", 16 << 20)
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "x.pt")
        saver.flush()
        assert saver._files._process is None
    assert written_there == []


def test_a_directory_of_checkpoints_is_written_by_a_process_too(tmp_path, written_there):
    with CheckpointDirectory(tmp_path / "run", keep_last_n=2) as run:
        for step in range(6):
            run.save(step, {"weights": torch.full((10_000,), float(step))}, metrics={"reward": step})
            run.flush()
            wait_for(lambda: run.saver._files._process.is_up())
        assert run.latest().step == 5
        assert run.load()["weights"].eq(5).all()
    assert len(written_there) == 5
    assert len(list((tmp_path / "run").glob("*.pt"))) == 2


# The training dies.

TRAINING = """
    import os, sys, time, torch
    import navrl.io.file_writer as file_writer
    from navrl.io import AsyncCheckpointSaver
    file_writer.WORTH_PROCESS = 1
    folder = sys.argv[1]
    saver = AsyncCheckpointSaver()
    saver.save_async({"step": 0, "weights": torch.zeros(10)}, f"{folder}/x.pt")
    saver.flush()
    while not saver._files._process.is_up():
        time.sleep(0.01)
    print(saver._files._process.pid, flush=True)
"""


def train(then: str, folder: Path) -> tuple[subprocess.Popen, int]:
    """Start a training that does something; return it, and the process that writes its files."""
    program = textwrap.dedent(TRAINING) + textwrap.dedent(then)
    training = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
    return training, int(training.stdout.readline())


ENDLESS = """
    for step in range(1, 1_000_000):
        saver.save_async({"step": step, "weights": torch.full((2_000_000,), float(step))}, f"{folder}/x.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.11, 0.3])
def test_when_the_training_is_killed_the_process_ends_and_leaves_whole_files(tmp_path, delay):
    training, writer = train(ENDLESS, tmp_path)
    time.sleep(delay)
    training.kill()
    training.communicate()
    wait_for(lambda: not is_running(writer))
    state = load_checkpoint(tmp_path / "x.pt")
    assert state["weights"].eq(state["step"]).all()
    assert list(tmp_path.glob(TEMPORARY_PATTERN)) == []  # it had the time to clean up


HELD = """
    import signal
    os.kill(saver._files._process.pid, signal.SIGSTOP)  # amid the save that follows, for all that anybody can tell
    saver.save_async({"step": 1, "weights": torch.ones(100_000)}, f"{folder}/x.pt")
    time.sleep(0.5)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_save_whose_copy_was_made_is_finished_though_the_training_is_killed(tmp_path):
    training, writer = train(HELD, tmp_path)
    assert training.stdout.readline() == "ready\n"
    training.kill()
    training.communicate()
    assert load_checkpoint(tmp_path / "x.pt")["step"] == 0
    os.kill(writer, signal.SIGCONT)
    wait_for(lambda: not is_running(writer))
    assert load_checkpoint(tmp_path / "x.pt")["step"] == 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_process_whose_training_was_killed_does_not_replace_what_came_after(tmp_path, killed):
    training_end, end = map(Channel, socket.socketpair())
    memory = SharedMemory(100)
    job = {"path": str(tmp_path / "x"), "arrays": [["a", "uint8", [3], 3, None]], "document": {}, "codec": "raw", "level": None}
    training_end.send(job, [b"abc"], memory.descriptor)
    training_end.send({"ready": 1, "trusted": True})
    order = _Order(end, end.receive(), memory.bytes)
    (tmp_path / "x").write_bytes(b"of the next training")
    with TaskThreads(1, "test") as threads:
        if killed:
            training_end.close()
            with pytest.raises(EOFError, match="another has written"):
                order.carry_out(threads)
            assert (tmp_path / "x").read_bytes() == b"of the next training"
        else:
            assert order.carry_out(threads)["written"][0] == 3
            assert b"abc" in (tmp_path / "x").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


FORKING = """
    import signal
    fork = os.fork()
    if fork == 0:
        time.sleep(60)
        os._exit(0)
    print(fork, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_fork_that_outlives_the_training_does_not_keep_the_process_waiting(tmp_path):
    training, writer = train(FORKING, tmp_path)
    fork = int(training.stdout.readline())
    training.wait(30)
    try:
        assert is_running(fork)
        wait_for(lambda: not is_running(writer), 30)
    finally:
        os.kill(fork, signal.SIGKILL)
        training.stdout.close()
