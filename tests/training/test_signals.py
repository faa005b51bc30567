"""Signals: raised where there is nothing to save, noted where there is; SIGHUP never ends anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from navrl.training.signals import Stopped, StopRequest
from navrl.training.terminal import Output

STOPS = [signal.SIGINT, signal.SIGTERM]
PATIENCE = 60.0  # s, on a machine that has more to do


@pytest.mark.parametrize("number", STOPS)
def test_outside_of_the_training_a_signal_ends_the_command_with_its_code(number):
    with StopRequest() as stop:
        with pytest.raises(Stopped):
            signal.raise_signal(number)
        assert stop.exit_code == 128 + number


@pytest.mark.parametrize("number", STOPS)
def test_in_the_training_a_signal_is_noted(number):
    with StopRequest() as stop, stop.deferring():
        assert stop.exit_code == 0
        signal.raise_signal(number)
        assert stop.signal == number


@pytest.mark.parametrize("number", STOPS)
def test_in_the_training_the_first_signal_is_announced_at_once(number):
    announced = threading.Event()
    with StopRequest() as stop, stop.deferring():
        stop.on_stop = announced.set
        signal.raise_signal(number)
        assert announced.wait(PATIENCE)


def test_handlers_and_mask_are_put_back():
    def state():
        return [
            signal.getsignal(number) for number in (*STOPS, signal.SIGHUP)
        ], signal.pthread_sigmask(signal.SIG_BLOCK, [])

    before = state()
    with StopRequest():
        assert state() != before
    assert state() == before


def test_a_hangup_asks_for_one_checkpoint_and_children_outlive_it():
    program = "import signal; signal.raise_signal(signal.SIGHUP); print('alive')"
    with StopRequest() as stop:
        assert not stop.take_save_request()
        os.kill(os.getpid(), signal.SIGHUP)
        end = time.monotonic() + PATIENCE
        while not (requested := stop.take_save_request()) and time.monotonic() < end:
            time.sleep(0.001)
        assert requested
        assert not stop.take_save_request()
        assert stop.exit_code == 0
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout == "alive\n"


def test_the_end_of_the_block_waits_for_no_forked_process():
    program = """
import os, sys
from navrl.training.signals import StopRequest
with StopRequest():
    if os.fork() == 0:
        os.close(1)
        os.read(0, 1)  # until the test closes its end, it holds every other descriptor of its parent
        os._exit(0)
os.write(1, b"left")
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        timer = threading.Timer(PATIENCE, process.kill)  # which ends the read below
        timer.start()
        told = os.read(process.stdout.fileno(), 4)
        timer.cancel()
        process.stdin.close()
    assert told == b"left"


def test_output_to_a_pipe_without_a_reader_is_dropped_and_changes_no_exit_code():
    program = """
import sys
from navrl.training.terminal import surviving_output
with surviving_output() as output:
    for _ in range(3):
        output.write("x" * 100_000)
        output.flush()
    print("and what others print")
"""
    reads, writes = os.pipe()
    os.close(reads)
    subprocess.run([sys.executable, "-c", program], stdout=writes, check=True)
    os.close(writes)


def test_output_to_a_full_disk_is_dropped_until_there_is_room(tmp_path):
    with open("/dev/full", "w") as full:
        output = Output(full)
        output.write("lost\n")
        output.flush()
        file = os.open(tmp_path / "output.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, full.fileno())
        os.close(file)
        output.write("kept\n")
        output.flush()
    assert (tmp_path / "output.txt").read_text() == "kept\n"
