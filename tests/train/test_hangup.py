"""A terminal that is closed: the training saves at once and goes on without it, with all its processes."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from training_runs import learning, logged, steps

pytestmark = pytest.mark.slow

ITERATIONS = 60
LONG = (f"max_frame_num={256 * ITERATIONS}", "eval_interval=0", "save_interval=100_000")


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
        """Close it as a terminal window is closed: the kernel sends SIGHUP, and every write to it fails."""
        os.write(self._close, b".")
        self._reader.join()
        for descriptor in (self._slave, self.master, self._closing, self._close):
            os.close(descriptor)


def assert_saved_and_finished(run) -> None:
    run.finish(0)
    assert len(learning(run.folder)) == ITERATIONS
    first, *between, last = steps(run.folder)
    assert (first, last) == (0, ITERATIONS)
    assert len(between) == 1  # written at the signal


@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_outlives_its_terminal_and_saves_when_it_is_closed(server, tmp_path, processes):
    terminal = Terminal()
    run = server.start(tmp_path / "run", *LONG, f"processes={processes}", terminal=terminal.name)
    run.wait_for(3)
    assert "navrl train" in terminal.shown.decode(errors="replace")
    terminal.close()
    os.killpg(run.pid, signal.SIGHUP)  # as a shell does with the processes of its terminal
    assert_saved_and_finished(run)


def test_sighup_without_a_terminal_saves_and_goes_on(server, tmp_path):
    run = server.start(tmp_path / "run", *LONG)
    run.wait_for(3)
    run.send(signal.SIGHUP)
    assert_saved_and_finished(run)
    assert f"iteration {ITERATIONS}/{ITERATIONS}" in run.output.read_text()


def test_under_nohup_sighup_stays_ignored(server, tmp_path):
    run = server.start(tmp_path / "run", *LONG, ignore=[signal.SIGHUP])
    run.wait_for(3)
    run.send(signal.SIGHUP)
    run.finish(0)
    assert logged(run.folder) == ITERATIONS
    assert steps(run.folder) == [0, ITERATIONS]
