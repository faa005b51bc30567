"""Records that a tracker cannot use are not delivered, and do not hold up the others."""

from __future__ import annotations

import contextlib
import os

import pytest
from trackers import processes_of, wait_for
from trainer import settings_of

from navrl.tracking.backends import open_backend
from navrl.tracking.delivery import NICENESS, Delivery
from navrl.tracking.queue import Dropped, RecordQueue
from navrl.tracking.tracker import Tracking


@pytest.fixture
def queue(tmp_path):
    queue = RecordQueue(tmp_path)
    queue.append(
        "run", id="i", name="n", trackers=["x"], options={}, config={}, patience=1.0, deadline=9.0
    )
    return queue


def carry(queue, tracker):
    """Deliver everything and return the deliveries."""
    with queue.deliveries(tracker) as deliveries:
        worker = Delivery(queue, deliveries, lambda what, more: contextlib.nullcontext())
        assert worker.round(), deliveries.failure
        assert worker.finish(), deliveries.failure
        assert deliveries.missing(queue.read()) == []
        return deliveries


def kept(queue, path, content):
    path.write_bytes(content)
    with open(path, "rb") as file:
        return queue.keep(file.fileno())


def tensorboard_events(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [
        event
        for file in sorted((folder / "tensorboard").iterdir())
        for event in EventFileLoader(str(file)).Load()
    ]
    return [(event.step, value.tag) for event in events for value in event.summary.value]


class Listening:
    """A backend that remembers."""

    confirms = keeps_models = True

    def __init__(self):
        self.heard = []

    def start(self, run):
        return 0

    def log(self, step, values, **place):
        self.heard.append((step, values))

    def summary(self, values):
        self.heard.append(values)

    def upload(self, file, name, *, aliases, metadata):
        self.heard.append((file.read_bytes(), name, aliases))
        return f"v{len(self.heard)}"

    def set_alias(self, name, alias, version):
        raise AssertionError(f"{version} is no version")

    def finish(self):
        pass


def test_no_tracker_is_told_of_a_value_that_is_not_finite(queue, monkeypatch):
    backend = Listening()
    monkeypatch.setattr("navrl.tracking.delivery.open_backend", lambda tracker, **options: backend)
    queue.append("metrics", step=1, values={"a": None, "b": 0.5})
    queue.append("metrics", step=2, values={"a": None})
    queue.append("summary", values={"a": None, "best": 1})
    carry(queue, "x")
    assert backend.heard == [(1, {"b": 0.5}), {"best": 1}]


def test_tensorboard_is_sent_no_models_and_lacks_none(queue, tmp_path):
    pytest.importorskip("tensorboard")
    digest = kept(queue, tmp_path / "model.pt", b"weights")
    number = queue.append(
        "artifact", name="m", file="model.pt", aliases=["best"], metadata={}, sha256=digest
    )["number"]
    queue.append("alias", name="m", alias="stable", of=number)
    queue.append("delete", name="m", of=number)
    queue.append("metrics", step=1, values={"a": 0.5})
    assert carry(queue, "tensorboard").refused == {}
    assert tensorboard_events(tmp_path) == [(1, "a")]


def test_a_picture_that_is_none_is_refused_and_holds_nothing_up(queue, tmp_path):
    pytest.importorskip("tensorboard")
    digest = kept(queue, tmp_path / "notes.txt", b"no picture")
    queue.append("image", step=1, name="flights", file="notes.txt", sha256=digest)
    queue.append("metrics", step=1, values={"a": 0.5})
    [reason] = carry(queue, "tensorboard").refused.values()
    assert "notes.txt" in reason
    assert tensorboard_events(tmp_path) == [(1, "a")]


def queue_model(queue, content, *aliases):
    digest = kept(queue, queue.run / "model.pt", content)
    return queue.append(
        "artifact", name="m", file="model.pt", aliases=[*aliases], metadata={}, sha256=digest
    )["number"]


def test_a_file_is_dropped_when_every_tracker_has_it_and_no_alias_means_it(queue):
    queue.append(
        "run",
        id="i",
        name="n",
        trackers=["x", "y"],
        options={},
        config={},
        patience=1.0,
        deadline=9.0,
    )
    numbers = [
        queue_model(queue, b"weights %d" % n, *(["best"] if n == 1 else [])) for n in range(4)
    ]
    with queue.deliveries("x") as x, queue.deliveries("y") as y:
        for number in numbers:
            x.deliver(number, number, f"v{number}")
        assert queue.drop() == 0  # y has none
        y.deliver(numbers[0], numbers[1])
        y.refuse(numbers[3], "no")
        assert queue.drop() == 1
        y.deliver(numbers[2], numbers[2])
        assert queue.drop() == 1
    digests = [record["sha256"] for record in queue.read() if record["kind"] == "artifact"]
    # best and latest
    assert [queue.file(digests[n]).read_bytes() for n in (1, 3)] == [b"weights 1", b"weights 3"]
    for n in (0, 2):
        with pytest.raises(Dropped, match="every tracker"):
            queue.file(digests[n])
    # the same again is kept again
    assert kept(queue, queue.run / "model.pt", b"weights 0") == digests[0]
    assert queue.file(digests[0]).read_bytes() == b"weights 0"


def test_a_tracker_that_joins_later_lacks_nothing_that_was_dropped(queue, monkeypatch):
    backend = Listening()
    monkeypatch.setattr("navrl.tracking.delivery.open_backend", lambda tracker, **options: backend)
    first = queue_model(queue, b"old")
    queue_model(queue, b"new", "best")
    carry(queue, "x")
    assert [content for content, *_ in backend.heard] == [b"old", b"new"]
    assert sorted(path.suffix for path in queue.files.iterdir()) == ["", ".dropped"]
    backend.heard.clear()
    queue.append(
        "run",
        id="i",
        name="n",
        trackers=["x", "y"],
        options={},
        config={},
        patience=1.0,
        deadline=9.0,
    )
    queue.append("alias", name="m", alias="stable", of=first)
    # it cannot be said of a model that is not there
    assert [*carry(queue, "y").refused] == [queue.read()[-1]["number"]]
    assert backend.heard == [(b"new", "m", ["best"])]


def test_a_large_file_is_given_more_time(queue, monkeypatch):
    monkeypatch.setattr(
        "navrl.tracking.delivery.open_backend", lambda tracker, **options: Listening()
    )
    given = {}

    @contextlib.contextmanager
    def limit(what, more):
        given[what] = more
        yield

    queue.append("metrics", step=1, values={"a": 0.5})
    queue_model(queue, bytes(3_000_000))
    with queue.deliveries("x") as deliveries:
        assert Delivery(queue, deliveries, limit).round()
    assert given == {"record 1 (run)": 0.0, "record 2 (metrics)": 0.0, "record 3 (artifact)": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    ["a//b", "/a", "../up", "..a", ".", "a/./b", "", "x" * 300, "a/" * 150, "ä+%", "a/.."],
)
def test_every_name_of_a_metric_becomes_one_that_mlflow_takes(hostile):
    validation = pytest.importorskip("mlflow.utils.validation")
    from navrl.tracking.backends.mlflow import _metric

    validation._validate_metric_name(_metric(hostile))
    assert len(_metric(hostile)) <= validation.MAX_ENTITY_KEY_LENGTH


def test_tensorboard_says_that_it_keeps_no_models(tmp_path):
    pytest.importorskip("tensorboard")
    backend = open_backend("tensorboard", folder=tmp_path)
    assert (backend.versions("m"), backend.aliases("m"), backend.keeps_models) == ([], {}, False)


def test_the_workers_of_a_run_give_way_to_it(tmp_path):
    pytest.importorskip("tensorboard")
    settings = settings_of({"trackers": ["tensorboard"], "patience": 5.0})

    def niceness():
        return [os.getpriority(os.PRIO_PROCESS, process) for process in processes_of(tmp_path)]

    expected = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    with Tracking(settings, {}, tmp_path):
        wait_for(lambda: niceness() == [expected], 60)
