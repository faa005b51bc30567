"""Large files are written by a process of their own: the same bytes, the same errors, and nothing
lost when somebody dies.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from io_states import TinyTraining, assert_same, everything
from sessions import niceness_of_session

from navrl.io import AsyncCheckpointSaver, CheckpointDirectory, load_checkpoint
from navrl.io.checkpoint import checkpoint_file as checkpoint_module
from navrl.io.checkpoint import file_writer as file_writer_module
from navrl.io.checkpoint import snapshot as snapshot_module
from navrl.io.checkpoint.channel import Channel
from navrl.io.checkpoint.pace import Pace
from navrl.io.checkpoint.shared_memory import SharedMemory
from navrl.io.checkpoint.writer_process import WriterProcess, _error, _Mapped, _Order
from navrl.io.container.atomic_files import TEMPORARY_PATTERN
from navrl.io.container.thread_pool import TaskThreads

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
    state = {
        "each": everything(),
        "weights": torch.randn(3_000_000),
        "bytes": torch.zeros(100_000, dtype=torch.uint8),
    }
    with with_process(
        tmp_path, workers=1
    ) as saver:  # one that never rests: chunks would be smaller, or not, as it happens
        saver.save_async(state, tmp_path / "there.pt", metadata={"reward": 0.1})
    with AsyncCheckpointSaver(process=False, workers=1) as saver:
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
        monkeypatch.setattr("navrl.io.checkpoint.saver._WORTH_OVERLAP", 0)
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


class HeldCopy(NamedTuple):
    """Two parameters, the copy of the second of which is held up until `go`, from when `reached` is
    set.
    """

    parameters: list[torch.nn.Parameter]
    reached: threading.Event
    go: threading.Event


@pytest.fixture
def hold_second(monkeypatch):
    held = HeldCopy(
        [torch.nn.Parameter(torch.randn(3_000_000)) for _ in range(2)],
        threading.Event(),
        threading.Event(),
    )
    memmove, second = ctypes.memmove, held.parameters[1].data_ptr()

    def hold(target, source, size):
        if source == second and not held.go.is_set():
            held.reached.set()
            held.go.wait(30)
        return memmove(target, source, size)

    monkeypatch.setattr(snapshot_module.ctypes, "memmove", hold)
    return held


def test_the_process_may_begin_before_the_copy_ends_and_names_the_file_after_it(
    tmp_path, hold_second, written_there
):
    with with_process(tmp_path, optimizers=[torch.optim.SGD(hold_second.parameters, 0.1)]) as saver:
        saver.save_async({"parameters": hold_second.parameters}, tmp_path / "x.pt")
        assert hold_second.reached.wait(30)
        waiting = threading.Thread(target=saver.flush)
        waiting.start()
        wait_for(lambda: half_written(tmp_path))
        assert not (tmp_path / "x.pt").exists()
        hold_second.go.set()
        waiting.join(30)
    assert written_there == ["x.pt"]
    assert_same(
        load_checkpoint(tmp_path / "x.pt")["parameters"][1], hold_second.parameters[1].detach()
    )


def test_a_copy_that_cannot_be_trusted_is_not_stored_and_the_next_is(
    tmp_path, hold_second, written_there
):
    with with_process(tmp_path, optimizers=[torch.optim.SGD(hold_second.parameters, 0.1)]) as saver:
        saver.save_async({"parameters": hold_second.parameters}, tmp_path / "x.pt")
        assert hold_second.reached.wait(30)
        failed = []
        waiting = threading.Thread(target=lambda: failed.append(error_of(saver.flush)))
        waiting.start()
        wait_for(lambda: half_written(tmp_path))  # the process is at work
        with torch.no_grad():
            hold_second.parameters[1].add_(1)
        hold_second.go.set()
        waiting.join(30)
        assert "written to while it was being copied" in str(failed[0])
        assert list(tmp_path.iterdir()) == [tmp_path / "first"]
        saver.save_async({"parameters": hold_second.parameters}, tmp_path / "y.pt")
    assert written_there == ["y.pt"]
    assert_same(
        load_checkpoint(tmp_path / "y.pt")["parameters"][1], hold_second.parameters[1].detach()
    )


def test_a_file_that_fails_before_the_copy_is_made_does_not_confuse_the_next(
    tmp_path, hold_second, written_there
):
    with with_process(tmp_path, optimizers=[torch.optim.SGD(hold_second.parameters, 0.1)]) as saver:
        saver.save_async({"x": torch.ones(10)}, tmp_path / "folder" / "x.pt")
        saver.flush()
        shutil.rmtree(tmp_path / "folder")  # which the saver has seen, and does not look for again
        saver.save_async({"parameters": hold_second.parameters}, tmp_path / "folder" / "x.pt")
        assert hold_second.reached.wait(30)
        failed = []
        waiting = threading.Thread(target=lambda: failed.append(error_of(saver.flush)))
        waiting.start()
        # it has failed before it was told of the copy
        wait_for(lambda: saver._files._process._channel.has_news())
        hold_second.go.set()
        waiting.join(30)
        assert "FileNotFoundError" in str(failed[0])
        saver.save_async({"parameters": hold_second.parameters}, tmp_path / "y.pt")
    assert written_there == ["x.pt", "y.pt"]
    assert_same(
        load_checkpoint(tmp_path / "y.pt")["parameters"][1], hold_second.parameters[1].detach()
    )


def error_of(function):
    try:
        function()
    except Exception as error:
        return error


def half_written(folder: Path) -> bool:
    return any(path.stat().st_size > 1 << 20 for path in folder.glob(TEMPORARY_PATTERN))


def test_what_goes_wrong_there_is_told_here_as_it_would_be_by_threads(tmp_path, written_there):
    (tmp_path / "x.pt").mkdir()
    told = []
    for process in (True, False):
        saver = with_process(tmp_path) if process else AsyncCheckpointSaver(process=False)
        saver.save_async({"x": torch.ones(10_000)}, tmp_path / "x.pt")
        told.append(re.sub(r"navrl-\w+", "", str(error_of(saver.flush))))
        saver.save_async({"x": torch.ones(10_000)}, tmp_path / f"{process}.pt")
        saver.shutdown()
    assert told[0] == told[1]
    assert "IsADirectoryError" in told[0]
    assert str(tmp_path / "x.pt") in told[0].split("->")[1]
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
@pytest.mark.skipif(STRACE is None, reason="needs strace to kill a process at a system call")
@pytest.mark.parametrize(
    "call", ["recvmsg", "openat", "flock", "writev", "fsync", "rename", "close", "sendto"]
)
def test_a_process_that_is_killed_at_a_system_call_loses_nothing(tmp_path, call):
    weights = torch.randn(100_000)
    kills = 0
    for number in range(1, 5):
        folder = tmp_path / str(number)
        with with_process(folder) as saver:
            victim = process_of(saver)
            tracer = subprocess.Popen(
                [
                    STRACE,
                    "-qq",
                    "-f",
                    "-o",
                    "/dev/null",
                    "-e",
                    f"trace={call}",
                    "-e",
                    f"inject={call}:signal=KILL:when={number}",
                    "-p",
                    str(victim),
                ],
                stderr=subprocess.DEVNULL,
            )
            wait_for(
                lambda victim=victim, tracer=tracer: (
                    f"TracerPid:\t{tracer.pid}" in Path(f"/proc/{victim}/status").read_text()
                )
            )
            for name in ("x.pt", "y.pt"):
                saver.save_async({"x": weights}, folder / name)
                saver.flush()
            kills += not is_running(victim)
        tracer.wait()
        assert sorted(path.name for path in folder.iterdir()) == ["first", "x.pt", "y.pt"]
        for name in ("x.pt", "y.pt"):
            assert_same(load_checkpoint(folder / name)["x"], weights)
    assert kills >= 2


def test_on_two_cores_the_process_uses_one_unless_somebody_waits(
    tmp_path, monkeypatch, hold_second
):
    monkeypatch.setattr("navrl.io.checkpoint.saver.usable_cores", lambda: 2)
    with with_process(tmp_path, optimizers=[torch.optim.SGD(hold_second.parameters, 0.1)]) as saver:
        pace = saver._files.pace
        assert pace.resting
        saver.save_async({"parameters": hold_second.parameters}, tmp_path / "x.pt")
        assert hold_second.reached.wait(30)
        assert pace.resting
        waiting = threading.Thread(target=saver.flush)
        waiting.start()
        wait_for(lambda: not pace.resting)
        hold_second.go.set()
        waiting.join(30)
        assert pace.resting


@pytest.mark.parametrize("resting", [False, True])
def test_a_process_that_is_to_rest_codes_with_one_thread(tmp_path, resting):
    with with_process(tmp_path, workers=1) as saver:
        process = process_of(saver)
        threads = {
            task: Path(f"/proc/{process}/task/{task}/schedstat")
            for task in os.listdir(f"/proc/{process}/task")
        }
        encoder = max(threads, key=int)  # the last that was started
        saver._files.pace.resting = resting
        before = used(threads[encoder])
        saver._set_pace = lambda: None
        for i in range(4):
            saver.save_async({"x": torch.randn(5_000_000)}, tmp_path / f"{i}.pt")
        saver.flush()
        assert (used(threads[encoder]) - before < 0.003) == resting


def used(schedstat: Path) -> float:
    """Return the seconds that a thread had of the processor."""
    return int(schedstat.read_text().split()[0]) / 1e9


def test_a_saver_with_a_process_that_was_shut_down_holds_no_memory(tmp_path):
    saver = with_process(tmp_path)
    saver.save_async({"x": torch.ones(100_000)}, tmp_path / "x.pt")
    saver.shutdown()
    held = [
        weakref.ref(saver._pool),
        weakref.ref(saver._pool._free[0].shared),
        weakref.ref(saver._files),
    ]
    gc.collect()
    gc.disable()
    try:
        del saver
        assert [one() for one in held] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.skipif(not niceness_of_session(), reason="this system has no niceness of sessions")
def test_the_process_gives_way_to_training_and_so_does_its_session():
    process = WriterProcess(1, 7, Pace(shared=True))
    try:
        wait_for(process.is_up)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(
            7, os.getpriority(os.PRIO_PROCESS, 0)
        )
        assert niceness_of_session(process.pid) == ["7"]
    finally:
        process.close()


def test_the_process_has_no_torch_and_ends_with_the_saver(tmp_path):
    saver = with_process(tmp_path)
    process = process_of(saver)
    assert "libtorch" not in Path(f"/proc/{process}/maps").read_text()
    assert os.getsid(process) != os.getsid(0)  # Ctrl+C in a terminal does not reach it
    saver.shutdown()
    assert not is_running(process)


@pytest.mark.parametrize(
    "place", ["an application that embeds Python", "a system without shared memory"]
)
def test_no_process_is_started_where_none_can_be(tmp_path, monkeypatch, place):
    if "application" in place:
        monkeypatch.setattr(sys, "executable", "/opt/simulator/kit")
    else:
        monkeypatch.delattr(os, "memfd_create")
    with AsyncCheckpointSaver() as saver:
        for name in ("x.pt", "y.pt"):
            saver.save_async({"x": torch.ones(1000)}, tmp_path / name)
            saver.flush()
        assert saver._files._process is None
    assert load_checkpoint(tmp_path / "y.pt")["x"].sum() == 1000


@pytest.mark.parametrize("program", ["false", "missing", "unreadable"])
def test_a_process_that_cannot_be_started_is_done_without(tmp_path, monkeypatch, caplog, program):
    executable = tmp_path / "python"
    if program == "false":  # starts, and ends at once
        shutil.copy(shutil.which("false"), executable)
    elif program == "unreadable":
        executable.write_bytes(bytes(100))
        executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    with AsyncCheckpointSaver() as saver, caplog.at_level(logging.WARNING, "navrl.io"):
        for name in "abc":
            saver.save_async({"x": torch.ones(1000)}, tmp_path / f"{name}.pt")
            saver.flush()
            if saver._files._process is not None:
                saver._files._process._process.wait(30)
        assert caplog.text.count("cannot be started") == 1
        assert ("exit code 1" in caplog.text) == (program == "false")
        shared = saver._pool.take(1 << 20, pinned=False).shared
        assert shared is None  # nobody would look at it
    assert load_checkpoint(tmp_path / "c.pt")["x"].sum() == 1000


def test_a_path_of_modules_that_is_no_text_does_no_harm(tmp_path, monkeypatch, written_there):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere"), None])
    with with_process(tmp_path) as saver:
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "x.pt")
    assert written_there == ["x.pt"]


def test_what_the_script_says_about_sockets_does_not_matter(tmp_path, monkeypatch, written_there):
    socket.setdefaulttimeout(0.01)
    try:
        saver = with_process(tmp_path)
    finally:
        socket.setdefaulttimeout(None)
    os.kill(process_of(saver), signal.SIGSTOP)
    saver.save_async({"x": torch.ones(1000)}, tmp_path / "x.pt")
    time.sleep(0.2)
    os.kill(process_of(saver), signal.SIGCONT)
    saver.shutdown()
    assert written_there == ["x.pt"]


def test_large_arrays_of_numpy_are_not_sent_but_written_by_threads(tmp_path, written_there):
    state = {"x": torch.ones(1000), "numbers": np.random.default_rng(0).normal(size=300_000)}
    with AsyncCheckpointSaver() as saver:
        saver.save_async(state, tmp_path / "x.pt")
        saver.flush()
        assert saver._files._process is None
    with with_process(tmp_path) as saver:
        saver.save_async(state, tmp_path / "x.pt")
        saver.flush()
        state["numbers"] = state["numbers"][:1000]
        saver.save_async(state, tmp_path / "y.pt")
    assert written_there == ["y.pt"]
    assert_same(load_checkpoint(tmp_path / "y.pt"), state)


def test_no_descriptor_is_left_behind_by_saves_failures_or_the_end_of_the_process(tmp_path):
    def descriptors(process: int | str = "self") -> int:
        gc.collect()
        return len(os.listdir(f"/proc/{process}/fd"))

    (tmp_path / "folder.pt").mkdir()
    before = descriptors()
    for death in (False, True):
        saver = with_process(tmp_path)
        process, first = process_of(saver), []
        for i in range(5):
            saver.save_async({"x": torch.ones(1000 * (i + 1))}, tmp_path / "x.pt")
            saver.flush()
            saver.save_async({"x": torch.ones(1000)}, tmp_path / "folder.pt")
            assert error_of(saver.flush)
            first = first or [descriptors(), descriptors(process)]
        wait_for(
            partial(
                lambda mine, theirs, process: (
                    descriptors() <= mine and descriptors(process) <= theirs
                ),
                *first,
                process,
            )
        )
        if death:
            os.kill(process, signal.SIGKILL)
            saver.save_async({"x": torch.ones(1000)}, tmp_path / "x.pt")
        saver.shutdown()
        del saver
        assert descriptors() == before


def test_raw_and_lossy_files_differences_and_small_states_are_written_by_threads(
    tmp_path, monkeypatch, written_there
):
    with with_process(tmp_path) as saver:
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "raw.pt", compress=False)
        saver.flush()
        saver.save_async({"x": 1}, tmp_path / "small.pt")  # into the memory of a large one
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
            run.save(
                step, {"weights": torch.full((10_000,), float(step))}, metrics={"reward": step}
            )
            run.flush()
            wait_for(lambda: run.saver._files._process.is_up())
        assert run.latest().step == 5
        assert run.load()["weights"].eq(5).all()
    assert len(written_there) == 5
    assert len(list((tmp_path / "run").glob("*.pt"))) == 2


# The training dies.

TRAINING = """
    import os, sys, time, torch
    import navrl.io.checkpoint.file_writer as file_writer
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


def train(then: str, folder: Path, **options) -> tuple[subprocess.Popen, int]:
    """Start a training that does something; return it, and the process that writes its files."""
    program = textwrap.dedent(TRAINING) + textwrap.dedent(then)
    training = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True, **options
    )
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
    process = saver._files._process
    receive = process._receive
    process._receive = lambda: (print("ready", flush=True), receive())[1]  # it was told all, and is to answer
    os.kill(process.pid, signal.SIGSTOP)  # amid the save that follows, for all that anybody can tell
    saver.save_async({"step": 1, "weights": torch.ones(100_000)}, f"{folder}/x.pt")
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


@pytest.mark.parametrize("killed", ["", "and its end is closed", "and a fork holds its end open"])
def test_a_process_whose_training_was_killed_does_not_replace_what_came_after(tmp_path, killed):
    training_end, end = socket.socketpair()
    training_end, end = Channel(training_end), Channel(end, lambda: "fork" not in killed)
    memory = SharedMemory(100)
    arrays = [["a", "uint8", [3], None, 3, None]]
    job = {
        "path": str(tmp_path / "x"),
        "memory": 0,
        "arrays": arrays,
        "document": {},
        "codec": "raw",
        "level": None,
    }
    training_end.send(job, [b"abc"], memory.descriptor)
    training_end.send({"ready": 1, "trusted": True})
    order = _Order(end, end.receive())
    (tmp_path / "x").write_bytes(b"of the next training")
    with TaskThreads(1, "test") as threads:
        if "closed" in killed:
            training_end.close()
        if killed:
            with pytest.raises(EOFError, match="another has written"):
                order.carry_out(_Mapped(), threads)
            assert (tmp_path / "x").read_bytes() == b"of the next training"
        else:
            assert order.carry_out(_Mapped(), threads)["written"][0] == 3
            assert b"abc" in (tmp_path / "x").read_bytes()
    training_end.close()
    end.close()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_job_whose_memory_did_not_arrive_is_answered_and_nothing_written(tmp_path):
    training_end, end = map(Channel, socket.socketpair())
    arrays = [["a", "uint8", [3], None, 3, 0]]
    training_end.send(
        {
            "path": str(tmp_path / "x"),
            "memory": 0,
            "arrays": arrays,
            "document": {},
            "codec": "raw",
            "level": None,
        }
    )
    with TaskThreads(1, "test") as threads:
        answer = _Order(end, end.receive()).carry_out(_Mapped(), threads)
    assert "did not reach the process" in str(_error(**answer))
    assert list(tmp_path.iterdir()) == []
    training_end.close()
    end.close()


FORKED_ALIVE = """
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    start = time.monotonic()
    saver.shutdown()
    print(time.monotonic() - start, flush=True)
    os.killpg(0, 9)
"""


@pytest.mark.slow
def test_a_living_fork_does_not_hold_the_end_of_the_saver_up(tmp_path):
    training, writer = train(FORKED_ALIVE, tmp_path, start_new_session=True)
    assert float(training.stdout.readline()) < 8  # without an end of the connection it would be ten
    assert not is_running(writer)
    training.communicate()


UNCLOSED = """
    saver.save_async({"step": 1, "weights": torch.ones(3_000_000)}, f"{folder}/x.pt")
"""


@pytest.mark.slow
def test_a_saver_that_nobody_closed_finishes_its_files_and_its_process_at_the_end_of_the_program(
    tmp_path,
):
    training, writer = train(UNCLOSED, tmp_path)
    training.communicate()
    assert training.returncode == 0
    assert load_checkpoint(tmp_path / "x.pt")["step"] == 1
    assert not is_running(writer)


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again_by_the_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(TRAINING) + "saver.shutdown()\nopen(f'{folder}/ran', 'a').write('once ')\n"
    )
    subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True)
    assert (tmp_path / "ran").read_text() == "once "


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
