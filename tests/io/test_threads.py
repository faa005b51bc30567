"""Threads that carry out tasks, and the one that waits for them and helps."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from navrl.io.container.container_reader import Container
from navrl.io.container.container_writer import ArraySource, write_container
from navrl.io.container.thread_pool import TaskThreads


@pytest.fixture
def busy():
    """One thread, the event that it waits for, and the future that tells when it no longer does."""
    go, begun = threading.Event(), threading.Event()
    threads = TaskThreads(1, "test")
    waiting = threads.submit(lambda: (begun.set(), go.wait(30)))
    assert begun.wait(30)
    yield threads, go, waiting
    go.set()
    threads.close()
    threads.join()


def test_who_waits_carries_out_what_no_thread_has_begun_with(busy):
    threads, *_ = busy
    futures = [threads.submit(threading.get_ident), threads.submit(divmod, 1, 0)]
    assert threads.help()
    assert threads.help()
    assert not threads.help()
    assert futures[0].result(0) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        futures[1].result(0)


def test_helping_does_not_take_the_end_from_a_thread(busy):
    threads, go, _ = busy
    last = threads.submit(threading.get_ident)
    threads.close()
    assert threads.help()
    assert not threads.help()
    go.set()
    for thread in threads._threads:
        thread.join(30)
        assert not thread.is_alive()
    assert last.result(0) == threading.get_ident()


def test_a_task_that_fails_holds_nothing_but_its_error(busy):
    class Large:
        pass

    def fail(given):
        raise ValueError("no")

    threads, *_ = busy
    large = Large()
    held = weakref.ref(large)
    future = threads.submit(fail, large)
    gc.disable()
    try:
        assert threads.help()
        del large
        future.exception(0).__traceback__ = None
        assert held() is None
    finally:
        gc.enable()


def test_ctrl_c_in_a_task_is_for_the_one_who_helps(busy):
    def interrupted():
        raise KeyboardInterrupt

    threads, *_ = busy
    future = threads.submit(interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.help()
    assert isinstance(future.exception(0), KeyboardInterrupt)


@pytest.mark.parametrize("codec", ["planes-zstd", "time-delta-zstd"])
def test_a_writer_whose_threads_are_busy_codes_everything_itself(busy, tmp_path, codec):
    numbers = np.random.default_rng(0).normal(0, 0.02, (40, 50, 1000)).astype(np.float32)
    source = ArraySource("numbers", "float32", numbers.shape, numbers.reshape(-1).view(np.uint8))
    write_container(tmp_path / "usual", [source], {}, codec=codec)
    threads, _, waiting = busy
    write_container(tmp_path / "alone", [source], {}, codec=codec, threads=threads)
    assert not waiting.done()
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "usual").read_bytes()


@pytest.mark.parametrize("codec", ["planes-zstd", "time-delta-zstd"])
def test_a_writer_gives_nothing_to_threads_that_rest(tmp_path, codec):
    numbers = np.random.default_rng(0).normal(0, 0.02, (40, 50, 1000)).astype(np.float32)
    source = ArraySource("numbers", "float32", numbers.shape, numbers.reshape(-1).view(np.uint8))
    write_container(tmp_path / "usual", [source], {}, codec=codec)
    with TaskThreads(1, "test", resting=lambda: True) as threads:
        threads.submit = None
        write_container(tmp_path / "alone", [source], {}, codec=codec, threads=threads)
    assert stored(tmp_path / "alone") == stored(tmp_path / "usual") == numbers.tobytes()


def stored(path):
    """Return the bytes of the only array of a container."""
    with Container(path) as container:
        [entry] = container.index.arrays
        return container.read([entry], [np.empty(entry.size, np.uint8)])[0].tobytes()


def test_threads_that_begin_to_rest_finish_what_they_were_given(tmp_path):
    numbers = np.random.default_rng(0).normal(0, 0.02, 5_000_000).astype(np.float32)
    source = ArraySource("numbers", "float32", numbers.shape, numbers.view(np.uint8))
    write_container(tmp_path / "usual", [source], {})
    answers = iter([False, False, True, True, False, True] * 10)
    with TaskThreads(1, "test", resting=lambda: next(answers)) as threads:
        write_container(tmp_path / "mixed", [source], {}, threads=threads)
    assert (tmp_path / "mixed").read_bytes() == (tmp_path / "usual").read_bytes()
