"""AsyncCheckpointSaver: every file equals the state at the moment of the call, and no failure is
silent.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from io_states import TinyTraining, assert_same, everything

from navrl.errors import CheckpointError, ConfigError, UnsupportedStateError
from navrl.io import AsyncCheckpointSaver, load_checkpoint, read_index, save_checkpoint
from navrl.io.checkpoint import saver as saver_module
from navrl.io.container import background as background_module
from navrl.io.container import container_writer as container_module
from navrl.io.container import snapshot as snapshot_module
from navrl.io.container.job import Job


@pytest.fixture
def slow_copy(monkeypatch):
    """Make the background copy slow, one tensor at a time: whatever writes too early is then bound
    to be seen.
    """
    move = snapshot_module._move_small

    def slow(*arguments):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.002)
        return move(*arguments)

    monkeypatch.setattr(snapshot_module, "_move_small", slow)


@pytest.fixture(params=["in the call", "by the writer", "by the copy thread"])
def copied_by(request, monkeypatch):
    """Who copies what optimisers own: the writer if it is small, the copy thread if it is large."""
    limit = 1 << 40 if request.param == "by the writer" else 0
    monkeypatch.setattr(background_module, "_SMALL_BYTES", limit)
    return request.param


def pending(saver):
    """Return the jobs that are not on the disk yet."""
    return saver._writer._load.pending


@pytest.mark.parametrize("buffers", [True, False])
def test_no_file_is_torn_while_training_runs_hard(tmp_path, slow_copy, copied_by, buffers):
    training = TinyTraining(buffers=buffers)
    expected = {}
    optimizers = () if copied_by == "in the call" else training.optimizers
    with AsyncCheckpointSaver(2, optimizers=optimizers) as saver:
        for i in range(12):
            for _ in range(3):
                training.step()
            expected[i] = copy.deepcopy(training.state())
            saver.save_async(training.state(), tmp_path / f"{i}.pt", compress=bool(i % 2))
        for _ in range(3):
            training.step()
    for i, state in expected.items():
        assert_same(load_checkpoint(tmp_path / f"{i}.pt"), state)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_one_of_each_is_saved_as_it_was(tmp_path):
    state = everything()
    expected = copy.deepcopy(
        {key: value for key, value in state.items() if key not in ("conjugate", "negative bit")}
    )
    with AsyncCheckpointSaver() as saver:
        saver.save_async(state, tmp_path / "x.pt")
        for value in state["dtypes"].values():
            value.view(torch.uint8).fill_(1)
        state["scalars"] = state["texts"][0] = None
        state["arrays"][0][:] = 0
    loaded = load_checkpoint(tmp_path / "x.pt")
    assert_same({key: loaded[key] for key in expected}, expected)
    assert_same(loaded["conjugate"], state["conjugate"])


def test_the_next_step_waits_for_the_copy_and_the_copy_alone(tmp_path, slow_copy):
    training = TinyTraining()
    training.step()
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.state(), tmp_path / "x.pt")
        assert not pending(saver)[0].snapshot.complete
        training.step()
        assert all(job.snapshot.complete for job in pending(saver))


def test_a_write_that_no_optimiser_made_is_found_out_and_nothing_is_stored(tmp_path, slow_copy):
    training = TinyTraining()
    training.step()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    saver.save_async(training.state(), tmp_path / "x.pt")
    with torch.no_grad():
        training.model[3].weight.mul_(2)
    with pytest.raises(
        CheckpointError, match=r"model/3\.weight: written to while .* saver\.barrier\(\)"
    ):
        saver.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_a_load_into_live_tensors_is_found_out_like_any_write(tmp_path, monkeypatch):
    training = TinyTraining()
    training.step()
    save_checkpoint(training.state(), tmp_path / "old.pt")
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    loaded = threading.Event()
    finish = snapshot_module.Snapshot.finish
    monkeypatch.setattr(
        snapshot_module.Snapshot, "finish", lambda self: (loaded.wait(10), finish(self))
    )
    saver.save_async(training.state(), tmp_path / "x.pt")
    load_checkpoint(tmp_path / "old.pt", into=training.state())
    loaded.set()
    with pytest.raises(CheckpointError, match="written to while"):
        saver.shutdown()
    assert not (tmp_path / "x.pt").exists()


def test_after_a_barrier_anybody_may_write(tmp_path, slow_copy):
    training = TinyTraining()
    training.step()
    expected = copy.deepcopy(training.state())
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.state(), tmp_path / "x.pt")
        saver.barrier()
        with torch.no_grad():
            training.model[3].weight.mul_(2)
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


@pytest.fixture
def held_copy(monkeypatch):
    """Finish no snapshot before this event: the state of optimisers is not even looked at."""
    go = threading.Event()
    finish = snapshot_module.Snapshot.finish
    monkeypatch.setattr(
        snapshot_module.Snapshot, "finish", lambda self: (go.wait(30), finish(self))
    )
    yield go
    go.set()


def test_a_step_waits_until_the_state_of_its_optimiser_was_looked_at(tmp_path, held_copy):
    training = TinyTraining(buffers=False)
    training.step()
    # what only dicts hold, and no version counts
    training.momentum.state[training.head.bias]["count"] = 1
    expected = copy.deepcopy(training.state())
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.state(), tmp_path / "x.pt")
        assert pending(saver)[0].snapshot.packed.deferred  # nothing was copied in the call

        def step():
            training.step()
            training.momentum.state[training.head.bias]["count"] = 2

        stepping = threading.Thread(target=step)
        stepping.start()
        stepping.join(0.1)
        assert stepping.is_alive()
        held_copy.set()
        stepping.join(30)
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_a_write_to_moments_is_found_out_once_their_copy_has_begun(tmp_path, monkeypatch):
    training = TinyTraining(buffers=False)
    training.step()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    begun, written = threading.Event(), threading.Event()
    copy_tensors = snapshot_module.Snapshot._copy
    monkeypatch.setattr(
        snapshot_module.Snapshot,
        "_copy",
        lambda self, numbers: (begun.set(), written.wait(30), copy_tensors(self, numbers)),
    )
    saver.save_async(training.state(), tmp_path / "x.pt")
    assert begun.wait(30)
    moment = next(iter(training.optimizers[0].state.values()))["exp_avg"]
    moment.zero_()
    written.set()
    with pytest.raises(CheckpointError, match=r"adam/state/\[0\]/exp_avg: written to while"):
        saver.shutdown()


@pytest.mark.parametrize("clears", [True, False])
def test_an_optimiser_that_is_given_another_state_after_the_call_is_saved_as_it_was(
    tmp_path, held_copy, clears
):
    training, other = TinyTraining(buffers=False), TinyTraining(buffers=False)
    training.step()
    for _ in range(3):
        other.step()
    expected = copy.deepcopy(training.state())
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.state(), tmp_path / "x.pt")
        for mine, its in zip(training.optimizers, other.optimizers, strict=True):
            if clears:
                mine.state.clear()
            else:
                mine.load_state_dict(its.state_dict())
        held_copy.set()
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_the_state_of_an_optimiser_may_be_saved_twice_and_hold_whatever_can_be_stored(
    tmp_path, held_copy
):
    training = TinyTraining(buffers=False)
    training.step()
    training.adam.state[training.model[0].weight] |= {
        "nested": {"list": [torch.ones(3), 1.5]},
        "count": 7,
        "array": np.ones(4),
    }
    state = {
        "one": training.adam.state_dict(),
        "two": training.adam.state_dict(),
        "again": training.adam.state_dict()["state"],
    }
    expected = copy.deepcopy(state)
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(state, tmp_path / "x.pt")
        held_copy.set()
    loaded = load_checkpoint(tmp_path / "x.pt")
    assert_same(loaded, expected)
    assert loaded["one"]["state"][0]["exp_avg"] is loaded["two"]["state"][0]["exp_avg"]


def test_tensors_of_the_inference_mode_are_saved(tmp_path):
    training = TinyTraining(buffers=False)
    training.step()
    with torch.inference_mode():
        state = {"seen": torch.arange(5.0) * 2, "model": training.model.state_dict()}
    expected = copy.deepcopy(state)
    for optimizers in ([], training.optimizers):
        with AsyncCheckpointSaver(optimizers=optimizers) as saver:
            saver.save_async(state, tmp_path / "x.pt")
        assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_moments_in_dicts_of_the_callers_own_are_copied_in_the_background_too(tmp_path, slow_copy):
    training = TinyTraining()
    training.step()
    optimizer = training.optimizers[0]
    state = {
        "moments": [dict(state) for state in optimizer.state.values()],
        "step": [{"buffer": torch.ones(3)}],
    }
    expected = copy.deepcopy(state)
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(state, tmp_path / "x.pt")
        snapshot = pending(saver)[0].snapshot
        at_once = set(range(len(snapshot._tensors))).difference(snapshot._later)
        assert [snapshot._tensors[number].shape for number in at_once] == [(3,)]
        training.step()
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_an_optimisers_state_that_cannot_be_stored_is_an_error_with_its_place(tmp_path):
    training = TinyTraining(buffers=False)
    training.step()
    next(iter(training.optimizers[0].state.values()))["note"] = object()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    saver.save_async({"adam": training.optimizers[0].state_dict()}, tmp_path / "x.pt")
    training.step()
    with pytest.raises(
        CheckpointError, match=r"adam/state/\[0\]/note: builtins\.object cannot be stored"
    ):
        saver.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_parameters_that_are_given_other_memory_are_saved_as_they_were(tmp_path, slow_copy):
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([parameter], 0.1)
    with AsyncCheckpointSaver(optimizers=[optimizer]) as saver:
        saver.save_async([torch.zeros(10), parameter], tmp_path / "x.pt")
        parameter.data = torch.zeros(1000)
    assert load_checkpoint(tmp_path / "x.pt")[1].sum() == 1000


def test_tensors_that_become_one_after_the_call_are_saved_as_the_two_they_were(tmp_path, slow_copy):
    parameter = torch.nn.Parameter(torch.ones(1000))
    one, two = torch.zeros(500), torch.ones(500)
    with AsyncCheckpointSaver(optimizers=[torch.optim.SGD([parameter], 0.1)]) as saver:
        saver.save_async([parameter, one, two], tmp_path / "x.pt")
        one.data = two.data
    assert load_checkpoint(tmp_path / "x.pt")[1].sum() == 0


def test_an_optimiser_registered_later_waits_too(tmp_path, slow_copy):
    training = TinyTraining()
    training.step()
    with AsyncCheckpointSaver() as saver:
        for optimizer in training.optimizers:
            saver.register(optimizer)
        expected = copy.deepcopy(training.state())
        saver.save_async(training.state(), tmp_path / "x.pt")
        training.step()
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_after_shutdown_the_optimisers_are_as_they_were():
    training = TinyTraining()
    with AsyncCheckpointSaver(optimizers=training.optimizers):
        assert training.adam._optimizer_step_pre_hooks
    assert not training.adam._optimizer_step_pre_hooks


def test_an_object_that_cannot_be_stored_is_refused_in_the_call(tmp_path):
    with AsyncCheckpointSaver() as saver:
        with pytest.raises(UnsupportedStateError, match="model"):
            saver.save_async({"model": torch.nn.Linear(1, 1)}, tmp_path / "x.pt")
        saver.save_async({"ok": 1}, tmp_path / "y.pt")
    assert load_checkpoint(tmp_path / "y.pt") == {"ok": 1}


@pytest.fixture
def unwritable(tmp_path):
    """A path below a file: no user, not even root, can create it."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "x.pt"


def test_a_failed_save_is_raised_by_the_next_call_and_the_one_after_works(tmp_path, unwritable):
    saver = AsyncCheckpointSaver()
    saver.save_async({}, unwritable)
    while not saver.errors:
        time.sleep(0.001)
    with pytest.raises(CheckpointError, match=r"x\.pt: not saved, .*Error"):
        saver.save_async({"n": 1}, tmp_path / "good.pt")
    saver.save_async({"n": 2}, tmp_path / "good.pt")
    saver.shutdown()
    assert load_checkpoint(tmp_path / "good.pt") == {"n": 2}


def test_a_failed_save_is_raised_at_the_end_of_the_block(unwritable):
    with pytest.raises(CheckpointError, match="not saved"), AsyncCheckpointSaver() as saver:
        saver.save_async({}, unwritable)


def test_an_error_in_the_block_is_not_hidden_by_a_failed_save_but_mentions_it(unwritable):
    def train():
        with AsyncCheckpointSaver() as saver:
            saver.save_async({}, unwritable)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        train()
    assert "not saved" in caught.value.__notes__[0]


def test_a_failure_after_the_save_does_not_say_that_the_save_failed(tmp_path):
    saver = AsyncCheckpointSaver()
    saver.save_async({"x": 1}, tmp_path / "x.pt", after=lambda written: 1 / 0)
    with pytest.raises(
        CheckpointError, match=r"x\.pt: saved, but what was to follow failed: ZeroDivisionError"
    ):
        saver.shutdown()
    assert load_checkpoint(tmp_path / "x.pt") == {"x": 1}


def test_several_failures_are_told_together(unwritable):
    saver = AsyncCheckpointSaver()
    for _ in range(2):
        saver.save_async({}, unwritable)
    with pytest.raises(CheckpointError) as caught:
        saver.shutdown()
    assert len(caught.value.__notes__) == 1


def test_training_goes_on_with_a_warning_when_asked_to(tmp_path, unwritable):
    saver = AsyncCheckpointSaver(on_error="warn")
    saver.save_async({}, unwritable)
    while not saver.errors:
        time.sleep(0.001)
    with pytest.warns(RuntimeWarning, match="not saved"):
        saver.save_async({"n": 1}, tmp_path / "x.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saver.shutdown()
    assert load_checkpoint(tmp_path / "x.pt") == {"n": 1}


def test_whoever_asks_to_be_called_hears_of_every_save_before_flush_returns(tmp_path, unwritable):
    heard = []

    def done(path, written, error):
        heard.append((path.name, written, "" if error is None else str(error)))

    def fail(written):
        raise OSError(28, "No space left on device")

    with warnings.catch_warnings(), AsyncCheckpointSaver(on_done=done) as saver:
        warnings.simplefilter("error")
        saver.save_async({}, tmp_path / "good.pt")
        saver.save_async({}, unwritable)
        saver.save_async({}, tmp_path / "followed.pt", after=fail)
        saver.flush()
        assert [(name, written) for name, written, _ in heard] == [
            ("good.pt", True),
            (unwritable.name, False),
            ("followed.pt", True),
        ]
    assert [bool(error) for *_, error in heard] == [False, True, True]
    assert saver.get_stats()["failed"] == 2


def test_an_on_done_that_raises_is_logged_and_changes_nothing_about_the_saves(
    tmp_path, unwritable, caplog
):
    def done(path, written, error):
        raise RuntimeError("a mistake of the caller")

    with AsyncCheckpointSaver(on_done=done) as saver:
        saver.save_async({"n": 1}, tmp_path / "good.pt")
        saver.save_async({}, unwritable)
        saver.flush(60)
        saver.save_async({"n": 2}, tmp_path / "later.pt")
    assert [load_checkpoint(tmp_path / name)["n"] for name in ("good.pt", "later.pt")] == [1, 2]
    counted = saver.get_stats()
    assert (counted["total_saved"], counted["failed"]) == (2, 1)
    assert caplog.text.count("RuntimeError: a mistake of the caller") == 3


def test_an_on_done_may_ask_the_saver_but_not_wait_for_it(tmp_path):
    seen = []

    def done(path, written, error):
        def ask():
            seen.append((saver.get_stats()["total_saved"], saver.queue_size, saver.errors))

        ask()
        # it holds no lock of the thread that calls `done`
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(60)
        with pytest.raises(CheckpointError, match="from another thread"):
            saver.flush()
        seen.append("refused")

    saver = AsyncCheckpointSaver(on_done=done)
    saver.save_async({}, tmp_path / "x.pt")
    saver.flush(60)
    assert seen == [(1, 1, ()), (1, 1, ()), "refused"]
    saver.shutdown()


@pytest.fixture(params=["navrl-copy", "navrl-write"])
def victim(request, monkeypatch):
    """The name of a background thread; every state that is not copied in the call passes it."""
    monkeypatch.setattr(background_module, "_SMALL_BYTES", 0)
    return request.param


def test_a_dead_worker_reports_its_saves_to_an_on_done_that_raises(tmp_path, victim):
    heard = []
    training = TinyTraining()

    def done(path, written, error):
        heard.append((path.name, written, str(error)))
        raise RuntimeError("a mistake of the caller")

    saver = AsyncCheckpointSaver(on_done=done, optimizers=training.optimizers)
    kill_thread(saver, victim)
    saver.save_async(training.state(), tmp_path / "x.pt")
    saver.flush(60)
    [(name, written, error)] = heard
    assert (name, written) == ("x.pt", False)
    assert "SystemExit" in error
    saver.shutdown()


def kill_thread(saver, victim):
    """Let a background thread die as soon as it has something to do, and return it."""
    thread = next(thread for thread in saver._writer._threads if thread.name == victim)
    asynchronous = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert asynchronous(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)) == 1
    return thread


def test_a_dead_worker_is_told_and_holds_nobody_up(tmp_path, victim):
    training = TinyTraining()
    training.step()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    thread = kill_thread(saver, victim)
    # wakes the thread, which finds its death sentence
    saver.save_async(training.state(), tmp_path / "x.pt")
    training.step()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(CheckpointError, match=r"not saved, .*: SystemExit"):
        saver.save_async(training.state(), tmp_path / "y.pt")
    with pytest.raises(CheckpointError, match="has died"):
        saver.save_async(training.state(), tmp_path / "y.pt")
    saver.shutdown()


def test_shutdown_waits_for_everything(tmp_path):
    saver = AsyncCheckpointSaver(max_queue_size=8)
    for i in range(8):
        saver.save_async({"x": torch.full((300_000,), float(i))}, tmp_path / f"{i}.pt")
    saver.shutdown()
    assert [load_checkpoint(tmp_path / f"{i}.pt")["x"][0].item() for i in range(8)] == list(
        range(8)
    )


@pytest.fixture
def held(monkeypatch):
    """Hold every write back until the event is set."""
    go = threading.Event()
    write = saver_module.write_container
    monkeypatch.setattr(
        saver_module, "write_container", lambda *a, **k: (go.wait(10), write(*a, **k))[1]
    )
    yield go
    go.set()


def test_a_full_queue_makes_the_caller_wait_and_drops_nothing(tmp_path, held):
    saver = AsyncCheckpointSaver(max_queue_size=2)
    threading.Timer(0.1, held.set).start()
    for i in range(6):
        saver.save_async({"i": i}, tmp_path / f"{i}.pt")
        assert saver.get_stats()["queue_size"] <= 2
    saver.shutdown()
    assert len(list(tmp_path.iterdir())) == 6


def test_a_full_queue_says_so_when_asked_to(tmp_path, held):
    saver = AsyncCheckpointSaver(max_queue_size=1, when_full="raise")
    saver.save_async({}, tmp_path / "1.pt")
    with pytest.raises(CheckpointError, match="max_queue_size is 1: this state was not saved"):
        saver.save_async({}, tmp_path / "2.pt")
    held.set()
    saver.shutdown()


def test_a_shutdown_that_times_out_names_what_is_missing_and_can_be_repeated(tmp_path, held):
    saver = AsyncCheckpointSaver()
    saver.save_async({"x": 1}, tmp_path / "late.pt")
    with pytest.raises(CheckpointError, match=r"late\.pt: not on the disk after 0\.05 s"):
        saver.shutdown(timeout=0.05)
    held.set()
    saver.shutdown()
    assert load_checkpoint(tmp_path / "late.pt") == {"x": 1}


def test_two_saves_to_one_path_leave_the_later(tmp_path):
    with AsyncCheckpointSaver() as saver:
        for i in range(5):
            saver.save_async({"i": i}, tmp_path / "x.pt")
    assert load_checkpoint(tmp_path / "x.pt") == {"i": 4}


def test_a_save_during_which_the_saver_is_shut_down_is_refused_and_not_lost_silently(
    tmp_path, monkeypatch
):
    saver = AsyncCheckpointSaver()
    pack_state = saver_module.pack_state
    monkeypatch.setattr(
        saver_module, "pack_state", lambda state: saver.shutdown() or pack_state(state)
    )
    with pytest.raises(CheckpointError, match="shut down"):
        saver.save_async({}, tmp_path / "x.pt")
    assert saver.get_stats()["queue_size"] == 0


def test_a_save_that_is_interrupted_on_its_way_to_the_thread_holds_nobody_up(tmp_path, monkeypatch):
    class Interrupted:
        def put(self, job):
            raise KeyboardInterrupt

    saver = AsyncCheckpointSaver()
    threads_queue = saver._writer._to_write
    monkeypatch.setattr(saver._writer, "_to_write", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        saver.save_async({}, tmp_path / "x.pt")
    monkeypatch.setattr(saver._writer, "_to_write", threads_queue)
    saver.barrier()
    saver.shutdown(timeout=5)


def test_a_save_that_is_interrupted_just_after_it_was_handed_over_is_not_stored(
    tmp_path, monkeypatch
):
    class Interrupted:
        def put(self, job):
            threads_queue.put(job)
            raise KeyboardInterrupt

    training = TinyTraining(buffers=False)
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    threads_queue = saver._writer._to_write
    monkeypatch.setattr(saver._writer, "_to_write", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        saver.save_async(training.state(), tmp_path / "x.pt")
    monkeypatch.setattr(saver._writer, "_to_write", threads_queue)
    training.step()
    with contextlib.suppress(CheckpointError):  # which of the two is first to know of it
        saver.shutdown(timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_a_saver_that_was_shut_down_holds_no_memory_on_its_own(tmp_path):
    saver = AsyncCheckpointSaver()
    saver.save_async({"x": torch.ones(100_000)}, tmp_path / "x.pt")
    saver.shutdown()
    pool = weakref.ref(saver._writer.pool)
    gc.collect()
    gc.disable()
    try:
        del saver
        assert pool() is None
    finally:
        gc.enable()


def test_a_forked_child_waits_for_no_thread_of_its_parent(tmp_path, held, monkeypatch):
    training = TinyTraining()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    saver.save_async(training.state(), tmp_path / "x.pt")
    saver.barrier()  # in the parent, whose memory the step below writes to as well
    # what a child sees that was forked while a thread copies this
    begun = Job("y.pt", pending(saver)[0].snapshot, {}, "raw")
    assert begun.claim()
    saver._writer._uncopied.append(begun)
    with monkeypatch.context() as child:
        child.setattr(background_module.os, "getpid", lambda: -1)
        saver.barrier()
        training.step()
        saver._writer._finish_at_exit()
    saver._writer._uncopied.remove(begun)
    held.set()
    saver.shutdown()


def test_a_forked_child_is_told_to_make_a_saver_of_its_own_and_never_hangs(tmp_path):
    program = """
import os, signal, sys, torch
from navrl.errors import CheckpointError
from navrl.io import AsyncCheckpointSaver, load_checkpoint
saver = AsyncCheckpointSaver()
saver.save_async({"x": torch.ones(3)}, sys.argv[1] + "/parent.pt")
saver._writer._changed.acquire()  # as if a thread held it at the moment of the fork
child = os.fork()
if not child:
    signal.alarm(20)
    told = 0
    for call in (lambda: saver.save_async({"n": 1}, sys.argv[1] + "/child.pt"), saver.flush, saver.get_stats):
        try:
            call()
        except CheckpointError as error:
            told += "create a new one in this process" in str(error)
    saver.barrier()
    saver.shutdown()
    with AsyncCheckpointSaver() as own:
        own.save_async({"n": 2}, sys.argv[1] + "/own.pt")
    os._exit(told)
saver._writer._changed.release()
_, status = os.waitpid(child, 0)
saver.shutdown()
assert load_checkpoint(sys.argv[1] + "/own.pt") == {"n": 2}
assert load_checkpoint(sys.argv[1] + "/parent.pt")["x"].sum() == 3
assert not os.path.exists(sys.argv[1] + "/child.pt")
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3, done.stderr


def test_a_change_of_the_containers_after_the_call_does_not_show(tmp_path, held):
    state = {
        "list": [1, {"deep": [2]}],
        "dict": {"a": {"b": 1}, "c": {"b": 2}},
        "pair": ([3], "x"),
        "keys": {(1, "k"): [4]},
    }
    expected = copy.deepcopy(state)
    with AsyncCheckpointSaver() as saver:
        saver.save_async(state, tmp_path / "x.pt")
        state["list"][1]["deep"].append(9)
        state["dict"]["a"]["b"] = 9
        state["dict"]["new"] = {}
        state["pair"][0].clear()
        state["keys"][1, "k"].append(9)
        held.set()
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_a_tensor_that_is_replaced_between_two_saves_is_noticed(tmp_path):
    training = TinyTraining()
    training.step()
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.state(), tmp_path / "1.pt")
        saver.barrier()
        for state in training.adam.state.values():
            state["exp_avg"] = torch.full_like(state["exp_avg"], 7.0)
        expected = copy.deepcopy(training.state())
        saver.save_async(training.state(), tmp_path / "2.pt")
    assert_same(load_checkpoint(tmp_path / "2.pt"), expected)


def test_the_state_of_an_optimiser_is_guarded_through_other_objects_of_the_same_memory(
    tmp_path, slow_copy
):
    training = TinyTraining()
    training.step()
    views = {
        key: [one.detach() for one in state.values()]
        for key, state in enumerate(training.adam.state.values())
    }
    expected = copy.deepcopy(views)
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(views, tmp_path / "x.pt")
        assert not pending(saver)[0].snapshot.complete
        training.step()
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(3).to_sparse(), torch.zeros(3, device="meta"), torch.zeros(2, 2).to_mkldnn()],
)
def test_a_tensor_without_plain_memory_is_refused_in_the_call_by_its_place(tmp_path, bad):
    with (
        AsyncCheckpointSaver() as saver,
        pytest.raises(UnsupportedStateError, match=r"a/b: .*cannot be stored"),
    ):
        saver.save_async({"ok": torch.ones(2), "a": {"b": bad}}, tmp_path / "x.pt")


def test_an_optimiser_whose_state_is_no_dict_is_saved_too(tmp_path):
    training = TinyTraining()
    training.step()
    training.adam.state[training.head.weight] = [torch.ones(3)]
    training.adam.state["counter"] = 7
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.model.state_dict(), tmp_path / "x.pt")
    assert_same(load_checkpoint(tmp_path / "x.pt"), training.model.state_dict())


def test_a_closed_saver_refuses(tmp_path):
    saver = AsyncCheckpointSaver()
    saver.shutdown()
    saver.shutdown()
    with pytest.raises(CheckpointError, match="shut down"):
        saver.save_async({}, tmp_path / "x.pt")


def test_the_statistics_count_saves_bytes_and_stalls(tmp_path):
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"x": torch.zeros(1000)}, tmp_path / "x.pt")
        saver.flush()
        stats = saver.get_stats()
    assert (stats["total_saved"], stats["failed"], stats["raw_bytes"], stats["queue_size"]) == (
        1,
        0,
        4000,
        0,
    )
    assert stats["stored_bytes"] == (tmp_path / "x.pt").stat().st_size
    assert stats["compression_ratio"] == 4000 / stats["stored_bytes"]
    assert 0 < stats["stall_ms_p50"] <= stats["stall_ms_max"]


def test_verbose_prints_every_file_and_every_failure(tmp_path, capfd):
    (tmp_path / "a file").touch()
    with AsyncCheckpointSaver(verbose=True) as saver:
        saver.save_async({"x": torch.zeros(1000)}, tmp_path / "x.pt")
        saver.save_async({"x": torch.zeros(1000)}, tmp_path / "a file" / "y.pt")
        with pytest.raises(CheckpointError):
            saver.flush()
    saved, failed = capfd.readouterr().out.splitlines()
    assert saved.startswith(f"[checkpoint] saved {tmp_path / 'x.pt'}: 0.0 MB as")
    assert failed.startswith(f"[checkpoint] NOT saved: {tmp_path / 'a file' / 'y.pt'}")


def test_a_saver_prints_nothing_unless_asked(tmp_path, capfd):
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"x": torch.zeros(1000)}, tmp_path / "x.pt")
    assert capfd.readouterr() == ("", "")


def test_a_full_queue_is_told_once(tmp_path, monkeypatch):
    told, released = [], threading.Event()

    def tell(message, *_):
        told.append(str(message))
        released.set()

    with AsyncCheckpointSaver(max_queue_size=1) as saver, warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", tell)
        saver.save_async({"x": 1}, tmp_path / "0.pt", after=lambda _: released.wait())
        # waits until it has told, which lets the first one go
        saver.save_async({"x": 1}, tmp_path / "1.pt")
        again = threading.Event()
        saver.save_async({"x": 1}, tmp_path / "2.pt", after=lambda _: again.wait())
        threading.Timer(0.1, again.set).start()
        saver.save_async({"x": 1}, tmp_path / "3.pt")
    assert [line.partition(",")[0] for line in told] == [
        "the save queue is full (1 of 1 saves pending)"
    ]


@pytest.mark.parametrize("level", [-1, 17])
def test_a_level_out_of_range_is_refused(level):
    with pytest.raises(
        ConfigError, match=f"level is {level}; expected a whole number from 0 to 16"
    ):
        AsyncCheckpointSaver(level=level)


def test_the_memory_of_copies_is_used_again(tmp_path):
    with AsyncCheckpointSaver() as saver:
        for i in range(4):
            saver.save_async({"x": torch.zeros(1000)}, tmp_path / f"{i}.pt")
            saver.flush()
        assert len(saver._writer.pool._free) == 1


def test_metadata_is_read_without_the_arrays(tmp_path):
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"x": torch.zeros(9)}, tmp_path / "x.pt", metadata={"reward": 1.5})
    assert read_index(tmp_path / "x.pt").document["metadata"] == {"reward": 1.5}


def test_the_folder_is_created(tmp_path):
    with AsyncCheckpointSaver() as saver:
        saver.save_async({}, tmp_path / "a" / "b" / "x.pt")
    assert os.listdir(tmp_path / "a" / "b") == ["x.pt"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_queue_size", 0),
        ("on_error", "print"),
        ("when_full", "drop"),
        ("codec", "x"),
        ("workers", 0),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=setting):
        AsyncCheckpointSaver(**{setting: value})


@pytest.fixture
def coding(monkeypatch):
    """The names of the threads that code, each of which takes its time."""
    names = []
    encode = container_module._Encoder._encode

    def note(*arguments):
        names.append(threading.current_thread().name)
        time.sleep(0.005)
        return encode(*arguments)

    monkeypatch.setattr(container_module._Encoder, "_encode", note)
    return names


def wait_until_written(saver):
    deadline = time.monotonic() + 60
    while saver.queue_size and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not saver.queue_size


def test_on_two_cores_one_thread_codes_and_all_do_when_somebody_waits(
    tmp_path, coding, monkeypatch
):
    monkeypatch.setattr(background_module, "usable_cores", lambda: 2)
    state = {"numbers": torch.randn(5_000_000)}
    with AsyncCheckpointSaver() as saver:
        saver.save_async(state, tmp_path / "x.pt")
        wait_until_written(saver)
        assert set(coding) == {"navrl-write"}
        coding.clear()
        saver.save_async(state, tmp_path / "y.pt")
        saver.flush()
        assert "navrl-encode-0" in coding
    assert_same(load_checkpoint(tmp_path / "x.pt"), state)
    assert_same(load_checkpoint(tmp_path / "y.pt"), state)


@pytest.mark.parametrize(("cores", "saves"), [(8, 1), (2, 2)])
def test_with_many_cores_or_several_saves_on_their_way_several_threads_code(
    tmp_path, coding, monkeypatch, cores, saves
):
    monkeypatch.setattr(background_module, "usable_cores", lambda: cores)
    state = {"numbers": torch.randn(5_000_000)}
    with AsyncCheckpointSaver() as saver:
        for number in range(saves):
            saver.save_async(state, tmp_path / f"{number}.pt")
        wait_until_written(saver)
    assert "navrl-encode-0" in coding


def test_a_large_save_starts_no_process(tmp_path):
    def children() -> set[str]:
        tasks = Path("/proc/self/task").glob("*/children")
        return set("".join(task.read_text() for task in tasks).split())

    before = children()
    with AsyncCheckpointSaver() as saver:
        for name in ("x.pt", "y.pt"):
            saver.save_async({"x": torch.randn(6_000_000)}, tmp_path / name)
            saver.flush()
            assert children() - before == set()


def test_saves_and_failures_leave_no_descriptor_open(tmp_path):
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    (tmp_path / "folder.pt").mkdir()
    before = descriptors()
    for _ in range(3):
        with AsyncCheckpointSaver() as saver:
            saver.save_async({"x": torch.ones(1000)}, tmp_path / "x.pt")
            saver.save_async({"x": torch.ones(1000)}, tmp_path / "folder.pt")
            with pytest.raises(CheckpointError, match="IsADirectoryError"):
                saver.flush()
    for thread in threading.enumerate():
        if thread.name == "navrl-free":
            thread.join(30)
    assert descriptors() == before


def test_a_file_that_nobody_waits_for_on_two_cores_has_small_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(background_module, "usable_cores", lambda: 2)
    parameters = [torch.randn(3_000_000, requires_grad=True) for _ in range(2)]
    with AsyncCheckpointSaver(optimizers=[torch.optim.SGD(parameters, 0.1)]) as saver:
        saver.save_async({"x": parameters}, tmp_path / "x.pt")
        wait_until_written(saver)
    assert_same(
        [one.detach() for one in load_checkpoint(tmp_path / "x.pt")["x"]],
        [one.detach() for one in parameters],
    )
    assert {entry.chunk_bytes for entry in read_index(tmp_path / "x.pt").arrays} == {1 << 19}


def test_a_step_copies_what_no_thread_has_begun_to_copy(tmp_path):
    training = TinyTraining()
    training.step()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    threads_queue, saver._writer._to_write = saver._writer._to_write, queue.SimpleQueue()
    expected = copy.deepcopy(training.state())
    saver.save_async(training.state(), tmp_path / "x.pt")
    training.step()  # would wait for ever for a thread
    job = saver._writer._to_write.get_nowait()
    saver._writer._to_write = threads_queue
    threads_queue.put(job)
    saver.shutdown()
    assert_same(load_checkpoint(tmp_path / "x.pt"), expected)


def test_ctrl_c_while_a_step_copies_fails_the_save_and_holds_nobody_up(tmp_path, monkeypatch):
    training = TinyTraining()
    training.step()
    saver = AsyncCheckpointSaver(optimizers=training.optimizers)
    threads_queue, saver._writer._to_write = saver._writer._to_write, queue.SimpleQueue()
    saver.save_async(training.state(), tmp_path / "x.pt")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot_module.Snapshot, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    threads_queue.put(saver._writer._to_write.get_nowait())
    saver._writer._to_write = threads_queue
    with pytest.raises(CheckpointError, match="interrupted while it was copied"):
        saver.shutdown(timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_a_save_is_written_after_an_earlier_one_that_is_still_being_copied(
    tmp_path, held_copy, monkeypatch
):
    monkeypatch.setattr(background_module, "_SMALL_BYTES", 0)
    training = TinyTraining(buffers=False)
    with AsyncCheckpointSaver(optimizers=training.optimizers) as saver:
        saver.save_async(training.state(), tmp_path / "x.pt")
        saver.save_async({"later": True}, tmp_path / "x.pt")
        held_copy.set()
    assert load_checkpoint(tmp_path / "x.pt") == {"later": True}
