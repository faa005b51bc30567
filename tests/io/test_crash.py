"""kill -9, Ctrl+C, full disks: with real processes and real signals. What was whole stays whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

import forked
from injected import ROUNDS
from navrl.errors import CheckpointError
from navrl.io import CheckpointDirectory, load_checkpoint
from navrl.io.checkpoint.listing import list_aliases, list_entries
from navrl.io.container.atomic_files import TEMPORARY_PATTERN, AtomicFile, remove_stale_files

STRACE = shutil.which("strace")


def start(program: str, *arguments: object) -> forked.Piped:
    return forked.start(textwrap.dedent(program), *arguments)


def assert_all_whole(folder: Path) -> int:
    """Load every visible checkpoint of a folder, each of which must hold its own step, and return
    how many.
    """
    paths = [path for path in folder.iterdir() if path.suffix == ".pt"]
    for path in paths:
        state = load_checkpoint(path)
        assert state["weights"].eq(state["step"]).all()
        assert path.name == f"checkpoint_{state['step']:09d}.pt"
    return len(paths)


ENDLESS = """
    import os, sys, torch
    from navrl.io import CheckpointDirectory
    def train(folder):
        run = CheckpointDirectory(folder, keep_last_n=2, keep_every=50)
        step = (run.latest().step if run.latest() else 0) + 1
        os.write(1, f"{os.getpid()}\\n".encode())
        while True:
            run.save(step, {"weights": torch.full((150_000,), float(step)), "step": step})
            step += 1
    for line in sys.stdin:  # a fresh process for each, without importing everything again
        child = os.fork()
        if child == 0:
            train(line.strip())
        os.waitpid(child, 0)
        print("killed", flush=True)
"""


class Trainings:
    """A process that starts trainings without an end in a folder, each in a process of its own."""

    def __init__(self) -> None:
        self.parent = start(ENDLESS)
        self.child = 0

    def begin(self, folder: Path) -> None:
        """Start one, and return when it is about to save."""
        self.parent.stdin.write(f"{folder}\n")
        self.parent.stdin.flush()
        line = self.parent.stdout.readline()
        assert line, self.parent.communicate()  # it ended: its errors tell why
        self.child = int(line)

    def kill(self) -> None:
        """Kill it as `kill -9` does, and wait until it is gone."""
        os.kill(self.child, signal.SIGKILL)
        assert self.parent.stdout.readline() == "killed\n"
        self.child = 0

    def close(self) -> None:
        if self.child:  # of a test that failed
            self.kill()
        self.parent.communicate()


@pytest.fixture(scope="module")
def trainings():
    made = Trainings()
    yield made
    made.close()


@pytest.mark.slow
def test_a_training_that_is_killed_at_random_moments_always_goes_on_from_whole_files(
    tmp_path, injected, trainings
):
    generator = random.Random(0)
    reached = 0
    for _ in range(8 * ROUNDS):
        injected.add()
        trainings.begin(tmp_path)
        time.sleep(generator.uniform(0.0, 0.25))
        trainings.kill()
        assert_all_whole(tmp_path)
        entries = list_entries(tmp_path)
        step = entries[-1].step if entries else 0
        assert step >= reached
        reached = step
    assert reached > 0


@pytest.mark.slow
def test_a_reader_beside_a_writer_never_sees_a_partial_file(tmp_path, trainings):
    trainings.begin(tmp_path)
    seen = 0
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with suppress(
            FileNotFoundError, CheckpointError
        ):  # not there yet, or pruned between two looks
            # a partial file would be a ContainerError
            seen += load_checkpoint(tmp_path / "latest")["step"] > 0
    trainings.kill()
    assert seen > 20


SCENARIOS = ("save", "overwrite", "prune", "alias")
# Each process waits for a tracer, then does one thing whose every system call is to be its last in
# turn.
TRACED = """
    import os, sys, signal
    from pathlib import Path
    import torch
    from navrl.io import Retention, format_checkpoint_name, save_checkpoint
    from navrl.io.checkpoint.pruning import prune
    from navrl.io.container.atomic_files import point_alias
    torch.set_num_threads(1)
    def save(folder, step):
        state = {'weights': torch.full((5000,), float(step)), 'step': step}
        save_checkpoint(state, folder / format_checkpoint_name(step))
    actions = {
        'save': lambda folder: save(folder, 3),
        'overwrite': lambda folder: save(folder, 2),
        'prune': lambda folder: prune(folder, Retention(keep_last_n=1)),
        'alias': lambda folder: point_alias(folder / 'latest', 'checkpoint_000000002.pt'),
    }
    for line in sys.stdin:  # a fresh process for each, without importing everything again
        scenario, folder = line.strip().split(' ', 1)
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            actions[scenario](Path(folder))
            os._exit(0)
        os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "done", flush=True)
"""
CALLS = (
    "openat,flock,newfstatat,fstat,writev,write,fsync,fdatasync,rename,unlink,symlink,close,futex"
)


def prepare(folder: Path) -> None:
    with CheckpointDirectory(folder) as run:
        import torch

        for step in (1, 2):
            run.save(step, {"weights": torch.full((5000,), float(step)), "step": step})
            run.flush()
        run.alias("latest", 1)


@pytest.fixture(scope="module")
def traced():
    process = start(TRACED)
    yield process
    process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="needs strace to stop a process at each system call")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_every_system_call_the_files_are_whole_and_the_next_start_cleans_up(
    tmp_path, scenario, injected, traced
):
    template = tmp_path / "template"
    prepare(template)
    kills = 0
    for call in CALLS.split(","):
        for number in range(1, 100):
            folder = tmp_path / f"{call}-{number}"
            shutil.copytree(template, folder, symlinks=True)
            if not killed_at(traced, scenario, folder, call, number):
                break
            kills += 1
            assert assert_all_whole(folder) >= 1
            assert load_checkpoint(folder / list_aliases(folder)["latest"])["step"] in (1, 2)
            CheckpointDirectory(folder).close()
            assert list(folder.glob(TEMPORARY_PATTERN)) == []
            shutil.rmtree(folder)
    injected.add(kills)
    assert kills >= {"save": 10, "overwrite": 10, "prune": 3, "alias": 4}[scenario]


def killed_at(process: forked.Piped, scenario: str, folder: Path, call: str, number: int) -> bool:
    """Let a process act on a folder, killed when it enters the n-th such call; tell whether it
    came that far.
    """
    process.stdin.write(f"{scenario} {folder}\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
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
            str(child),
        ],
        stderr=subprocess.PIPE,
    )
    while f"TracerPid:\t{tracer.pid}" not in Path(f"/proc/{child}/status").read_text():
        assert tracer.poll() is None, tracer.stderr.read()
        time.sleep(0.001)
    os.kill(child, signal.SIGCONT)
    outcome = process.stdout.readline().strip()
    tracer.wait()
    tracer.stderr.close()
    return outcome == "killed"


SLOW_DISK = """
    import os, sys, time, torch
    import navrl.io.container.atomic_files as files
    from navrl import AsyncCheckpointSaver
    fsync = os.fsync
    def slow(descriptor):
        time.sleep(0.3)
        fsync(descriptor)
    files.os.fsync = slow
"""


THREE_SAVES = (
    SLOW_DISK
    + """
    with AsyncCheckpointSaver() as saver:
        for i in range(3):
            state = {"weights": torch.full((5000,), float(i)), "step": i}
            saver.save_async(state, f"{sys.argv[1]}/checkpoint_00000000{i}.pt")
        print("ready", flush=True)
        time.sleep(60)
"""
)


@pytest.mark.slow
def test_ctrl_c_ends_the_training_but_not_the_pending_saves(tmp_path):
    process = start(THREE_SAVES, tmp_path)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=50)
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT
    assert assert_all_whole(tmp_path) == 3


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_whole_files_only(tmp_path):
    process = start(THREE_SAVES, tmp_path)
    process.stdout.readline()
    for _ in range(4):
        time.sleep(0.15)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert_all_whole(tmp_path)


@pytest.mark.slow
def test_a_saver_that_nobody_closed_finishes_when_the_program_ends(tmp_path):
    program = (
        SLOW_DISK
        + """
    saver = AsyncCheckpointSaver()
    saver.save_async({"weights": torch.full((2_000_000,), 1.0), "step": 1}, f"{sys.argv[1]}/checkpoint_000000001.pt")
    """
    )
    process = start(program, tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert assert_all_whole(tmp_path) == 1


FULL_DISK = """
    import os, sys, torch
    from navrl import AsyncCheckpointSaver
    from navrl.errors import CheckpointError
    saver = AsyncCheckpointSaver()
    path = f"{sys.argv[1]}/checkpoint_000000001.pt"
    saver.save_async({"weights": torch.full((1000,), 1.0), "step": 1}, path, compress=False)
    saver.flush()
    saver.save_async({"weights": torch.rand(1_000_000), "step": 1}, path, compress=False)
    try:
        saver.shutdown()
    except CheckpointError as error:
        print("told:", error, type(error.__cause__).__name__)
    print(*os.listdir(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="needs a private mount",
)
def test_a_full_disk_is_told_and_the_file_of_before_is_intact(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(FULL_DISK))
    (tmp_path / "disk").mkdir()
    script = f"""
        mount -t tmpfs -o size=1m none {tmp_path}/disk &&
        {sys.executable} {program} {tmp_path}/disk &&
        cp {tmp_path}/disk/*.pt {tmp_path}
    """
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    assert "told: " in done.stdout, done.stderr
    assert "No space left on device" in done.stdout
    assert done.stdout.splitlines()[1] == "checkpoint_000000001.pt"
    assert assert_all_whole(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="needs strace to make a system call fail")
def test_an_error_of_the_disk_is_told_and_nothing_appears(tmp_path):
    program = """
    import sys, torch
    from navrl.io import save_checkpoint
    try:
        save_checkpoint({"x": torch.ones(1000)}, sys.argv[1] + "/x.pt")
    except OSError as error:
        print("told:", error)
    """
    command = [
        STRACE,
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync",
        "-e",
        "inject=fsync:error=EIO:when=1",
    ]
    done = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("told: [Errno 5]"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_temporary_file_of_a_living_writer_is_left_alone(tmp_path):
    with AtomicFile(tmp_path / "x") as file:
        file.write([b"abc"])
        assert remove_stale_files(tmp_path) == []
        file.commit()
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_the_temporary_file_of_a_dead_writer_is_removed(tmp_path):
    program = """
    import os, sys
    from navrl.io.container.atomic_files import AtomicFile
    file = AtomicFile(sys.argv[1] + "/x")
    file.write([b"abc"])
    os.kill(os.getpid(), 9)
    """
    start(program, tmp_path).communicate()
    assert len(list(tmp_path.glob(TEMPORARY_PATTERN))) == 1
    assert len(remove_stale_files(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_is_never_cleaned_up(tmp_path):
    for name in (".navrl-notes", "x.tmp", ".hidden.tmp", "checkpoint_000000001.pt.tmp"):
        (tmp_path / name).write_text("mine")
    assert remove_stale_files(tmp_path) == []
