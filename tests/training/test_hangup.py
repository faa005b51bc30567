"""A terminal that is closed: the training saves at once and goes on without it, with all its
processes.
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading

import pytest

from injected import ROUNDS
from training_runs import learning, logged, steps

pytestmark = pytest.mark.slow

# each test stops its own
ENDLESS = ("max_frame_num=100_000_000", "eval_interval=0", "save_interval=100_000")


class Terminal:
    """A pseudo-terminal whose output somebody reads, until it is closed."""

    def __init__(self) -> None:
        self.master, self._slave = os.openpty()
        self.name = os.ttyname(self._slave)
        self.shown = b""
        self._reader = threading.Thread(target=self._read)
        self._closing, self._close = os.pipe()
        self._reader.start()

    def _read(self) -> None:
        while self._closing not in select.select([self.master, self._closing], [], [])[0]:
            self.shown += os.read(self.master, 65536)

    def close(self) -> None:
        """Close it as a terminal window is closed: the kernel sends SIGHUP, and every write to it
        fails.
        """
        os.write(self._close, b".")
        self._reader.join()
        for descriptor in (self._slave, self.master, self._closing, self._close):
            os.close(descriptor)


def wait_for_more(run, iterations: int = 3) -> None:
    """Return when a run has trained for some more iterations."""
    run.wait_for(logged(run.folder) + iterations)
    assert not run.ended(), run.output.read_text()


def stop(run) -> int:
    """Stop a run, and return after how many iterations it ended."""
    run.send(signal.SIGTERM)
    run.finish(128 + signal.SIGTERM)
    return logged(run.folder)


def assert_saved_and_went_on(run) -> None:
    run.wait_until(lambda: len(steps(run.folder)) > 1)
    wait_for_more(run)
    iterations = stop(run)
    assert [record["iteration"] for record in learning(run.folder)] == list(
        range(1, iterations + 1)
    )
    first, *between, last = steps(run.folder)
    assert (first, last) == (0, iterations)
    assert 1 <= len(between) <= 2  # written at the signal; the kernel may send a second one


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_outlives_its_terminal_and_saves_when_it_is_closed(
    server, tmp_path, processes, number, injected
):
    terminal = Terminal()
    run = server.start(tmp_path / "run", *ENDLESS, f"processes={processes}", terminal=terminal.name)
    run.wait_for(random.Random(number).randint(1, 8))
    assert "navrl train" in terminal.shown.decode(errors="replace")
    terminal.close()
    os.killpg(run.pid, signal.SIGHUP)  # as a shell does with the processes of its terminal
    injected.add()
    assert_saved_and_went_on(run)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_sighup_without_a_terminal_saves_and_goes_on(server, tmp_path, number, injected):
    run = server.start(tmp_path / "run", *ENDLESS)
    run.wait_for(random.Random(number).randint(1, 8))
    run.send(signal.SIGHUP)
    injected.add()
    assert_saved_and_went_on(run)
    assert "stopped by a signal" in run.output.read_text()


def test_under_nohup_sighup_stays_ignored(server, tmp_path, injected):
    run = server.start(tmp_path / "run", *ENDLESS, ignore=[signal.SIGHUP])
    run.wait_for(3)
    run.send(signal.SIGHUP)
    injected.add()
    wait_for_more(run)
    iterations = stop(run)
    assert steps(run.folder) == [0, iterations]
