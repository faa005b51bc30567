"""The background waits while an optimiser steps, as long as nobody waits for it."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from io_states import assert_same

from navrl.io import AsyncCheckpointSaver, load_checkpoint, read_index
from navrl.io import pace as pace_module
from navrl.io.pace import Pace


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Have steps waited for longer than any test looks at them."""
    monkeypatch.setattr(pace_module, "_LONGEST_WAIT", 60.0)


def waits(pace: Pace) -> bool:
    """Tell whether who gives way does wait; it is let go, and may be asked again, before this returns."""
    thread = threading.Thread(target=pace.give_way)
    thread.start()
    thread.join(0.2)
    waited = thread.is_alive()
    resting, pace.resting = pace.resting, False
    thread.join(30)
    pace.resting = resting
    pace._works_until = 0.0
    return waited


@pytest.fixture
def resting() -> Pace:
    pace = Pace(shared=True)
    pace.resting = True
    return pace


def test_who_rests_waits_while_an_optimiser_steps(resting):
    resting.step_begins()
    assert waits(resting)


def test_nobody_waits_between_steps(resting):
    resting.give_way()
    for _ in range(300):  # more than fit in a byte
        resting.step_begins()
        resting.step_ends()
        resting.give_way()
    resting.step_begins()
    assert waits(resting)
    resting.step_ends()
    resting.give_way()


def test_nobody_waits_in_a_hurry(resting):
    resting.resting = False
    resting.step_begins()
    resting.give_way()


def test_a_step_that_raised_is_over_when_the_next_one_is(resting):
    resting.step_begins()
    resting.step_begins()
    assert waits(resting)
    resting.step_ends()
    resting.give_way()


def test_a_step_is_not_waited_for_too_long_and_then_there_is_time_to_work(resting, monkeypatch):
    monkeypatch.setattr(pace_module, "_LONGEST_WAIT", 1.0)
    resting.step_begins()
    begun = time.monotonic()
    resting.give_way()
    waited = time.monotonic() - begun
    assert waited >= 1.0
    resting.step_begins()
    calls = 0
    while time.monotonic() < begun + 2 * waited - 0.5:  # a while before it is to wait again
        resting.give_way()
        calls += 1
    assert calls > 1
    monkeypatch.setattr(pace_module, "_LONGEST_WAIT", 60.0)
    time.sleep(1.0)
    assert waits(resting)


def test_another_process_sees_the_pace_by_its_descriptor(resting):
    seen = Pace.behind(resting.descriptor)
    assert seen.resting
    resting.step_begins()
    assert waits(seen)
    resting.step_ends()
    seen.give_way()
    resting.resting = False
    assert not seen.resting


def test_a_system_without_memory_for_two_processes_has_a_pace_too(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    pace = Pace(shared=True)
    assert pace.descriptor is None
    pace.resting = True
    pace.step_begins()
    assert waits(pace)


class Held(torch.optim.SGD):
    """An optimiser whose step takes until it is let go, or raises."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, 0.1)
        self.begun, self.go, self.raises = threading.Event(), threading.Event(), False

    def step(self, closure=None):
        self.begun.set()
        assert self.go.wait(60)
        if self.raises:
            raise FloatingPointError("not a number")
        return super().step(closure)


@pytest.fixture
def training(monkeypatch, tmp_path, request):
    """A saver on two cores that is up, its optimiser, and what it owns."""
    monkeypatch.setattr("navrl.io.saver.usable_cores", lambda: 2)
    parameters = [torch.randn(3_000_000, requires_grad=True) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = Held(parameters)
    with AsyncCheckpointSaver(optimizers=[optimizer], process=request.param) as saver:
        deadline = time.monotonic() + 60
        while request.param and not (saver._files._process and saver._files._process.is_up()):
            saver.save_async({"x": parameters}, tmp_path / "first.pt")  # the first starts the process
            saver.flush()
            assert time.monotonic() < deadline
        yield saver, optimizer, parameters
        optimizer.go.set()


def step_in_a_thread(optimizer):
    """Let an optimiser begin with a step, and return the thread that does it."""

    def step():
        try:
            optimizer.step()
        except FloatingPointError:
            assert optimizer.raises

    thread = threading.Thread(target=step)
    thread.start()
    assert optimizer.begun.wait(30)
    return thread


@pytest.mark.parametrize("training", [False, True], ids=["threads", "process"], indirect=True)
def test_a_file_waits_for_the_step_of_an_optimiser_and_is_what_was_saved(training, tmp_path):
    saver, optimizer, parameters = training
    expected = [parameter.detach().clone() for parameter in parameters]
    step = step_in_a_thread(optimizer)
    saver.save_async({"x": parameters}, tmp_path / "x.pt", compress=True)
    time.sleep(0.4)  # less than a step is waited for at most, and many times what this file takes
    assert saver.queue_length == 1
    assert not (tmp_path / "x.pt").exists()
    optimizer.go.set()
    step.join(30)
    deadline = time.monotonic() + 30
    while saver.queue_length:
        time.sleep(0.001)
        assert time.monotonic() < deadline
    assert_same([one.detach() for one in load_checkpoint(tmp_path / "x.pt")["x"]], expected)
    sizes = {entry.chunk_bytes for entry in read_index(tmp_path / "x.pt").arrays}
    assert sizes == {1 << 19}  # nobody waited for it


@pytest.mark.parametrize("training", [False], ids=["threads"], indirect=True)  # whose patience is that of this module
def test_who_waits_for_a_file_does_not_wait_for_a_step(training, tmp_path):
    saver, optimizer, parameters = training
    step = step_in_a_thread(optimizer)
    saver.save_async({"x": parameters}, tmp_path / "x.pt")
    saver.flush(30)
    assert step.is_alive()
    assert (tmp_path / "x.pt").exists()
    optimizer.go.set()
    step.join(30)


@pytest.mark.parametrize("training", [False, True], ids=["threads", "process"], indirect=True)
def test_a_step_that_raises_holds_no_file_up_for_long(training, tmp_path, monkeypatch):
    monkeypatch.setattr(pace_module, "_LONGEST_WAIT", 1.0)  # as it is in the process
    saver, optimizer, parameters = training
    optimizer.raises = True
    optimizer.go.set()
    step_in_a_thread(optimizer).join(30)
    saver.save_async({"x": parameters}, tmp_path / "x.pt")
    deadline = time.monotonic() + 20  # a second for every part would be far more
    while saver.queue_length:
        time.sleep(0.01)
        assert time.monotonic() < deadline
