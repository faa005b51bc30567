"""What a courier makes of records that a tracker cannot use: they neither arrive nor hold the rest
up.
"""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from trainer import settings_of

from navrl.tracking.courier import NICENESS, Courier
from navrl.tracking.mirrors import open_mirror
from navrl.tracking.recorder import Tracking
from navrl.tracking.spool import Dropped, Journal, Spool


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path)
    spool.append(
        "run", id="i", name="n", trackers=["x"], options={}, config={}, patience=1.0, deadline=9.0
    )
    return spool


def carry(spool, tracker):
    """Deliver everything and return the journal."""
    with Journal(spool, tracker) as journal:
        courier = Courier(spool, journal, lambda what, more: contextlib.nullcontext())
        assert courier.round(), journal.failure
        assert courier.finish(), journal.failure
        assert journal.missing(spool.read()) == []
        return journal


def kept(spool, path, content):
    path.write_bytes(content)
    with open(path, "rb") as file:
        return spool.keep(file.fileno())


def tensorboard_events(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [
        event
        for file in sorted((folder / "tensorboard").iterdir())
        for event in EventFileLoader(str(file)).Load()
    ]
    return [(event.step, value.tag) for event in events for value in event.summary.value]


class Listening:
    """A mirror that remembers."""

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


def test_no_tracker_is_told_of_a_value_that_is_not_finite(spool, monkeypatch):
    mirror = Listening()
    monkeypatch.setattr("navrl.tracking.courier.open_mirror", lambda tracker, **options: mirror)
    spool.append("metrics", step=1, values={"a": None, "b": 0.5})
    spool.append("metrics", step=2, values={"a": None})
    spool.append("summary", values={"a": None, "best": 1})
    carry(spool, "x")
    assert mirror.heard == [(1, {"b": 0.5}), {"best": 1}]


def test_tensorboard_is_sent_no_models_and_lacks_none(spool, tmp_path):
    pytest.importorskip("tensorboard")
    digest = kept(spool, tmp_path / "model.pt", b"weights")
    number = spool.append(
        "artifact", name="m", file="model.pt", aliases=["best"], metadata={}, sha256=digest
    )["number"]
    spool.append("alias", name="m", alias="stable", of=number)
    spool.append("delete", name="m", of=number)
    spool.append("metrics", step=1, values={"a": 0.5})
    assert carry(spool, "tensorboard").refused == {}
    assert tensorboard_events(tmp_path) == [(1, "a")]


def test_a_picture_that_is_none_is_refused_and_holds_nothing_up(spool, tmp_path):
    pytest.importorskip("tensorboard")
    digest = kept(spool, tmp_path / "notes.txt", b"no picture")
    spool.append("image", step=1, name="flights", file="notes.txt", sha256=digest)
    spool.append("metrics", step=1, values={"a": 0.5})
    [reason] = carry(spool, "tensorboard").refused.values()
    assert "notes.txt" in reason
    assert tensorboard_events(tmp_path) == [(1, "a")]


def queue_model(spool, content, *aliases):
    digest = kept(spool, spool.run / "model.pt", content)
    return spool.append(
        "artifact", name="m", file="model.pt", aliases=[*aliases], metadata={}, sha256=digest
    )["number"]


def test_a_file_is_dropped_when_every_tracker_has_it_and_no_alias_means_it(spool):
    spool.append(
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
        queue_model(spool, b"weights %d" % n, *(["best"] if n == 1 else [])) for n in range(4)
    ]
    with Journal(spool, "x") as x, Journal(spool, "y") as y:
        for number in numbers:
            x.deliver(number, number, f"v{number}")
        assert spool.drop() == 0  # y has none
        y.deliver(numbers[0], numbers[1])
        y.refuse(numbers[3], "no")
        assert spool.drop() == 1
        y.deliver(numbers[2], numbers[2])
        assert spool.drop() == 1
    digests = [record["sha256"] for record in spool.read() if record["kind"] == "artifact"]
    # best and latest
    assert [spool.file(digests[n]).read_bytes() for n in (1, 3)] == [b"weights 1", b"weights 3"]
    for n in (0, 2):
        with pytest.raises(Dropped, match="every tracker"):
            spool.file(digests[n])
    # the same again is kept again
    assert kept(spool, spool.run / "model.pt", b"weights 0") == digests[0]
    assert spool.file(digests[0]).read_bytes() == b"weights 0"


def test_a_tracker_that_joins_later_lacks_nothing_that_was_dropped(spool, monkeypatch):
    mirror = Listening()
    monkeypatch.setattr("navrl.tracking.courier.open_mirror", lambda tracker, **options: mirror)
    first = queue_model(spool, b"old")
    queue_model(spool, b"new", "best")
    carry(spool, "x")
    assert [content for content, *_ in mirror.heard] == [b"old", b"new"]
    assert sorted(path.suffix for path in spool.files.iterdir()) == ["", ".dropped"]
    mirror.heard.clear()
    spool.append(
        "run",
        id="i",
        name="n",
        trackers=["x", "y"],
        options={},
        config={},
        patience=1.0,
        deadline=9.0,
    )
    spool.append("alias", name="m", alias="stable", of=first)
    # it cannot be said of a model that is not there
    assert [*carry(spool, "y").refused] == [spool.read()[-1]["number"]]
    assert mirror.heard == [(b"new", "m", ["best"])]


def test_a_large_file_is_given_more_time(spool, monkeypatch):
    monkeypatch.setattr(
        "navrl.tracking.courier.open_mirror", lambda tracker, **options: Listening()
    )
    given = {}

    @contextlib.contextmanager
    def limit(what, more):
        given[what] = more
        yield

    spool.append("metrics", step=1, values={"a": 0.5})
    queue_model(spool, bytes(3_000_000))
    with Journal(spool, "x") as journal:
        assert Courier(spool, journal, limit).round()
    assert given == {"record 1 (run)": 0.0, "record 2 (metrics)": 0.0, "record 3 (artifact)": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    ["a//b", "/a", "../up", "..a", ".", "a/./b", "", "x" * 300, "a/" * 150, "ä+%", "a/.."],
)
def test_every_name_of_a_metric_becomes_one_that_mlflow_takes(hostile):
    validation = pytest.importorskip("mlflow.utils.validation")
    from navrl.tracking.mirrors.mlflow import _metric

    validation._validate_metric_name(_metric(hostile))
    assert len(_metric(hostile)) <= validation.MAX_ENTITY_KEY_LENGTH


def test_tensorboard_says_that_it_keeps_no_models(tmp_path):
    pytest.importorskip("tensorboard")
    mirror = open_mirror("tensorboard", folder=tmp_path)
    assert (mirror.versions("m"), mirror.aliases("m"), mirror.keeps_models) == ([], {}, False)


def test_the_couriers_of_a_run_give_way_to_it(tmp_path):
    with Tracking(
        settings_of({"trackers": ["tensorboard"], "patience": 5.0}), {}, tmp_path
    ) as tracking:
        until = time.monotonic() + 30
        while (
            os.getpriority(os.PRIO_PROCESS, tracking._couriers.pid) < NICENESS
            and time.monotonic() < until
        ):
            time.sleep(0.05)
        assert os.getpriority(os.PRIO_PROCESS, tracking._couriers.pid) >= NICENESS
