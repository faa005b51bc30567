"""Threads that carry out tasks, and the one that waits for them and helps."""

from __future__ import annotations

import threading

import pytest

from navrl.io.threads import TaskThreads


@pytest.fixture
def busy():
    """One thread, which waits for the event."""
    go, begun = threading.Event(), threading.Event()
    threads = TaskThreads(1, "test")
    threads.submit(lambda: (begun.set(), go.wait(30)))
    assert begun.wait(30)
    yield threads, go
    go.set()
    threads.close()
    threads.join()


def test_who_waits_carries_out_what_no_thread_has_begun_with(busy):
    threads, _ = busy
    futures = [threads.submit(threading.get_ident), threads.submit(divmod, 1, 0)]
    assert threads.help()
    assert threads.help()
    assert not threads.help()
    assert futures[0].result(0) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        futures[1].result(0)


def test_helping_does_not_take_the_end_from_a_thread(busy):
    threads, go = busy
    last = threads.submit(threading.get_ident)
    threads.close()
    assert threads.help()
    assert not threads.help()
    go.set()
    threads.join()
    assert last.result(0) == threading.get_ident()
