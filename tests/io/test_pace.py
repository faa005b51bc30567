"""How hard the background works is seen by whoever works: threads, or another process."""

from __future__ import annotations

import os
import time

import pytest
import torch
from io_states import assert_same

from navrl.io import AsyncCheckpointSaver, load_checkpoint, read_index
from navrl.io.checkpoint.pace import Pace


def test_another_process_sees_the_pace_by_its_descriptor():
    pace = Pace(shared=True)
    seen = Pace.behind(pace.descriptor)
    for resting in (True, False):
        pace.resting = resting
        assert seen.resting == resting


def test_a_system_without_memory_for_two_processes_has_a_pace_too(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    pace = Pace(shared=True)
    assert pace.descriptor is None
    pace.resting = True
    assert pace.resting


@pytest.mark.parametrize("process", [False, True])
def test_a_file_that_nobody_waits_for_is_of_small_chunks_and_is_what_was_saved(
    tmp_path, monkeypatch, process
):
    monkeypatch.setattr("navrl.io.checkpoint.saver.usable_cores", lambda: 2)
    parameters = [torch.randn(3_000_000, requires_grad=True) for _ in range(2)]
    deadline = time.monotonic() + 60
    with AsyncCheckpointSaver(
        optimizers=[torch.optim.SGD(parameters, 0.1)], process=process
    ) as saver:
        while process and not (saver._files._process and saver._files._process.is_up()):
            # the first starts the process
            saver.save_async({"x": parameters}, tmp_path / "first.pt")
            saver.flush()
            assert time.monotonic() < deadline
        saver.save_async({"x": parameters}, tmp_path / "x.pt")
        while saver.queue_size:
            time.sleep(0.001)
            assert time.monotonic() < deadline
    assert_same(
        [one.detach() for one in load_checkpoint(tmp_path / "x.pt")["x"]],
        [one.detach() for one in parameters],
    )
    assert {entry.chunk_bytes for entry in read_index(tmp_path / "x.pt").arrays} == {1 << 19}
