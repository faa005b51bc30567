"""Which batches of remote workers are used: staleness, deadlines, lost workers, damage."""

from __future__ import annotations

import pytest
from remote_workers import RUN, ScriptedWorkers

from navrl.conf.collect_settings import CollectSettings
from navrl.errors import CollectorError, RolloutError
from navrl.training.remote import collection as module
from navrl.training.remote.collection import RemoteCollection
from navrl.training.remote.stamps import BATCH, Stamp, seal
from navrl.training.remote.workers import Arrived, Finished, Lost


def read(contents):
    if bytes(contents) == b"nonsense":
        raise RolloutError("not a batch")
    return bytes(contents)


@pytest.fixture
def opened():
    """A function that returns scripted workers and their collection, which is closed at the end."""
    made = []

    def start(count=2, **settings):
        workers = ScriptedWorkers(count)
        settings = {"deadline": 30.0, "first_deadline": 30.0} | settings
        made.append(RemoteCollection(workers, CollectSettings(**settings), RUN, read))
        made[-1].publish(0, b"weights 0")
        return workers, made[-1]

    yield start
    for one in made:
        one.close()


def test_every_worker_is_started_with_the_newest_weights(opened):
    workers, collection = opened(2)
    assert sorted(workers.next_start() for _ in range(2)) == [(0, b"weights 0"), (1, b"weights 0")]
    collection.publish(1, b"weights 1")
    workers.deliver(0, 0)
    assert workers.next_start() == (0, b"weights 1")


def test_batches_are_taken_in_the_order_in_which_they_arrive(opened):
    workers, collection = opened(2)
    workers.deliver(1, 0, b"first")
    workers.deliver(1, 0, b"second")
    assert [one.batch for one in collection.take(2)] == [b"first", b"second"]


@pytest.mark.parametrize(("age", "used"), [(0, True), (2, True), (3, False), (50, False)])
def test_a_batch_older_than_the_limit_is_dropped_and_counted(opened, age, used):
    workers, collection = opened(1, max_staleness=2)
    collection.publish(100, b"newest")
    workers.deliver(0, 100 - age, b"old")
    workers.deliver(0, 100, b"new")
    assert collection.take(1)[0].batch == (b"old" if used else b"new")
    assert collection.counts.stale == (not used)


@pytest.mark.parametrize(
    "message",
    [
        seal(BATCH, Stamp(RUN, 0, 0), b"batch")[:-1] + b"!",
        seal(BATCH, Stamp(RUN + 1, 0, 0), b"batch"),
        seal(BATCH, Stamp(RUN, 0, 1), b"batch"),
        seal(BATCH, Stamp(RUN, 0, 0), b"nonsense"),
        b"",
    ],
    ids=["checksum", "another training", "another worker", "no batch", "empty"],
)
def test_a_batch_that_is_damaged_or_foreign_is_dropped_counted_and_told(opened, message):
    workers, collection = opened(1)
    workers.events.put(Finished(0))
    workers.events.put(Arrived(0, message))
    workers.deliver(0, 0, b"good")
    assert collection.take(1)[0].batch == b"good"
    assert collection.counts.damaged == 1
    assert "a batch of worker 0 was dropped" in collection.news()[0]


def test_at_the_deadline_the_batches_that_are_there_are_returned(opened):
    workers, collection = opened(3)
    workers.deliver(0, 0)
    collection.take(1)
    collection._settings.deadline = 0.2
    workers.deliver(1, 0)
    assert len(collection.take(3)) == 1
    assert collection.counts.short == 1


def test_without_any_batch_the_deadline_is_an_error_that_says_what_went_wrong(opened):
    workers, collection = opened(2, first_deadline=0.3)
    workers.events.put(Lost(1, "its machine is gone"))
    with pytest.raises(CollectorError, match=r"within 0.3 s \(collect.first_deadline\).*is gone"):
        collection.take(2)


def test_a_worker_that_was_lost_is_started_again_and_its_return_is_told(opened):
    workers, collection = opened(1)
    workers.next_start()
    workers.events.put(Lost(0, "killed"))
    assert workers.next_start()[0] == 0
    workers.deliver(0, 0)
    collection.take(1)
    assert (collection.counts.lost, collection.delivering) == (1, 1)
    assert collection.news() == ["worker 0 was lost: killed", "worker 0 is back"]


def test_a_worker_whose_code_fails_is_replaced_and_finally_given_up(opened, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.0)
    workers, collection = opened(1)
    for _ in range(module.ERRORS_ALLOWED):
        workers.next_start()
        workers.events.put(Lost(0, "ImportError: no module", raised=True))
    with pytest.raises(CollectorError, match=r"every one of the 1 workers.*no module"):
        collection.take(1)
    assert workers.restarted == [0] * (module.ERRORS_ALLOWED - 1)


def test_a_batch_lost_on_its_way_frees_its_place(opened):
    workers, collection = opened(1, ahead=0)
    workers.next_start()
    workers.events.put(Finished(0))
    workers.events.put(Lost(0, "object lost", finished=True))
    assert workers.next_start()[0] == 0
    assert collection.counts.lost == 1


def test_a_worker_waits_while_more_than_its_share_is_ahead(opened):
    workers, collection = opened(1, ahead=1)
    workers.next_start()
    workers.deliver(0, 0)
    workers.next_start()
    workers.deliver(0, 0)
    workers.settle()
    assert workers.started.empty()  # two wait for the learner
    collection.take(1)
    assert workers.next_start()[0] == 0


def test_a_worker_that_hangs_is_restarted(opened):
    workers, collection = opened(1, worker_timeout=0.2)
    workers.next_start()
    workers.deliver(0, 0)
    assert [workers.next_start()[0] for _ in range(2)] == [0, 0]
    assert workers.restarted == [0]
    assert "no batch within 0.2 s" in collection.news()[0]


def test_an_error_of_the_thread_reaches_the_learner(opened):
    workers, collection = opened(1)
    workers.events.put(Finished(99))  # there is no such worker
    with pytest.raises(CollectorError, match="remote collection has failed"):
        collection.take(1)


def test_bytes_are_counted_both_ways(opened):
    workers, collection = opened(1)
    workers.next_start()
    workers.deliver(0, 0, b"12345678")
    collection.take(1)
    assert collection.counts.bytes_in == len(seal(BATCH, Stamp(RUN, 0, 0), b"12345678"))
    assert collection.counts.bytes_out >= len(b"weights 0")


def test_closing_ends_the_workers_once():
    workers = ScriptedWorkers(1)
    collection = RemoteCollection(workers, CollectSettings(), RUN, read)
    collection.publish(0, b"weights")
    collection.close()
    collection.close()
    assert workers.closed
