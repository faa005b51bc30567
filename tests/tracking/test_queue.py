"""The durable queue: no record is lost, damage is detected, files outlive their names."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.io.container.checksums import sha256_of
from navrl.tracking.line_file import LineFile
from navrl.tracking.queue import CONTAINER, RecordQueue, Undeliverable

# No subnormal numbers: other tests have this process flush them to zero, as training does.
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
VALUES = st.dictionaries(st.text(max_size=8), NUMBERS | st.text())


@settings(max_examples=50, deadline=None)
@given(records=st.lists(VALUES, max_size=6), kept=st.integers(min_value=0))
def test_a_file_of_records_cut_anywhere_gives_the_whole_ones_and_takes_more(records, kept):
    with tempfile.TemporaryDirectory() as folder:
        check_cut(Path(folder) / "records.log", records, kept)


def check_cut(path, records, kept):
    lines = LineFile(path)
    ends = [0]
    with lines.locked():
        for record in records:
            lines.append(record)
            ends.append(path.stat().st_size)
    lines.close()
    cut = min(kept, ends[-1])
    os.truncate(path, cut)
    whole = [record for record, end in zip(records, ends[1:], strict=True) if end <= cut]
    assert [*LineFile(path).new()] == whole
    again = LineFile(path)
    with again.locked():
        again.append({"after": "the cut"})
    again.close()
    assert [*LineFile(path).new()] == [*whole, {"after": "the cut"}]


@pytest.mark.parametrize("byte", [b"\0", b"\r", b"\x85", b"\xff"])
def test_records_behind_a_damaged_byte_are_read_whatever_it_is(tmp_path, byte):
    queue = RecordQueue(tmp_path)
    for step in range(3):
        queue.append("metrics", step=step, values={})
    path = queue.folder / "records.log"
    path.write_bytes(path.read_bytes().replace(b'"step":1', b'"step"' + byte + b"1"))
    assert [record["step"] for record in RecordQueue(tmp_path).read()] == [0, 2]


def test_what_a_killed_writer_has_left_is_removed_some_time_later(tmp_path):
    queue = RecordQueue(tmp_path)
    queue.append("metrics", step=1, values={})
    queue.files.mkdir()
    left = [
        queue.files / ".1234.tmp",
        queue.folder / ".written-abc",
        queue.files / ".5678.tmp",
        queue.files / "a-model",
    ]
    for path in left:
        path.mkdir() if "written" in path.name else path.write_bytes(b"half")
    for path in (left[0], left[1], left[3]):
        os.utime(path, (1, 1))
    queue.tidy()
    assert [path.exists() for path in left] == [False, False, True, True]
    assert len(RecordQueue(tmp_path).read()) == 1


def test_a_damaged_record_is_left_out_and_counted_and_its_number_is_not_given_again(tmp_path):
    queue = RecordQueue(tmp_path)
    for step in range(3):
        queue.append("metrics", step=step, values={})
    path = queue.folder / "records.log"
    content = path.read_bytes().splitlines(keepends=True)
    content[1] = content[1].replace(b'"step":1', b'"step":7')
    path.write_bytes(b"".join(content))
    damaged = RecordQueue(tmp_path)
    assert [record["step"] for record in damaged.read()] == [0, 2]
    assert damaged.damaged == 1
    assert damaged.append("metrics", step=3, values={})["number"] > 3


def test_a_reader_sees_what_is_appended_while_it_reads(tmp_path):
    writer, reader = RecordQueue(tmp_path), RecordQueue(tmp_path)
    assert reader.read() == []
    writer.append("metrics", step=1, values={"x": 0.5})
    assert [record["number"] for record in reader.read()] == [1]
    writer.append("end")
    assert [record["kind"] for record in reader.read()] == ["metrics", "end"]


def test_two_writers_never_give_the_same_number(tmp_path):
    program = (
        "import sys; from navrl.tracking.queue import RecordQueue; queue = RecordQueue(sys.argv[1])\n"
        "for step in range(200): queue.append('metrics', step=step, values={})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [record["number"] for record in RecordQueue(tmp_path).read()] == [*range(1, 401)]


def test_every_record_that_append_returned_from_survives_kill_9(tmp_path):
    program = (
        "import sys; from navrl.tracking.queue import RecordQueue; queue = RecordQueue(sys.argv[1]); step = 0\n"
        "while True:\n    queue.append('metrics', step=step, values={}); print(step, "
        "flush=True); step += 1"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(50):
        told = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    told = max([told, *(int(line) for line in writer.stdout.read().split())])
    writer.wait()
    steps = [record["step"] for record in RecordQueue(tmp_path).read()]
    assert steps[: told + 1] == [*range(told + 1)]


@pytest.mark.parametrize("ours", [True, False])
def test_a_kept_file_outlives_its_name(tmp_path, ours):
    file = tmp_path / "model.pt"
    file.write_bytes((CONTAINER if ours else b"") + os.urandom(5000))
    content, queue = file.read_bytes(), RecordQueue(tmp_path / "run")
    with open(file, "rb") as opened:
        digest = queue.keep(opened.fileno())
    assert queue.file(digest).samefile(file) is ours  # one of ours costs no room while it is there
    file.unlink()
    assert queue.file(digest).read_bytes() == content
    assert sha256_of(queue.file(digest)) == digest
    assert [path.name for path in queue.files.iterdir()] == [digest]


@pytest.mark.parametrize("begin", [CONTAINER, b""])
def test_a_file_that_was_removed_meanwhile_is_kept_by_its_descriptor(tmp_path, begin):
    file = tmp_path / "model.pt"
    file.write_bytes(begin + b"weights")
    queue = RecordQueue(tmp_path / "run")
    with open(file, "rb") as opened:
        file.unlink()
        digest = queue.keep(opened.fileno())
    assert queue.file(digest).read_bytes() == begin + b"weights"


def test_a_file_that_is_written_again_in_place_is_kept_as_it_was(tmp_path):
    file, queue = tmp_path / "model.pt", RecordQueue(tmp_path / "run")
    file.write_bytes(b"weights")
    with open(file, "rb") as opened:
        digest = queue.keep(opened.fileno())
    file.write_bytes(b"others")  # the same inode, as torch.save does it
    assert queue.file(digest).read_bytes() == b"weights"


def test_a_kept_file_that_was_damaged_or_lost_is_never_delivered(tmp_path):
    file = tmp_path / "model.pt"
    file.write_bytes(b"weights")
    queue = RecordQueue(tmp_path / "run")
    with open(file, "rb") as opened:
        digest = queue.keep(opened.fileno())
    (queue.files / digest).write_bytes(b"other")
    with pytest.raises(Undeliverable, match="changed"):
        queue.file(digest)
    (queue.files / digest).unlink()
    with pytest.raises(Undeliverable, match="missing"):
        queue.file(digest)


def test_the_queue_knows_how_our_files_begin():
    from navrl.io.container.index import MAGIC

    assert CONTAINER == MAGIC


def test_a_journal_tells_what_is_missing_and_who_may_write_it(tmp_path):
    queue = RecordQueue(tmp_path)
    records = [queue.append("metrics", step=step, values={}) for step in range(6)]
    with queue.deliveries("one") as deliveries:
        assert deliveries.lock()
        assert not queue.deliveries("one").lock()
        assert queue.deliveries("other").lock()
        deliveries.deliver(1, 3)
        deliveries.deliver(5, 5, "v2")
        deliveries.refuse(6, "no such file")
        deliveries.fail("no answer")
        later = queue.deliveries("one").read()
        assert [record["number"] for record in later.missing(records)] == [4]
        assert (later.done[5], later.refused[6], later.failure) == (
            "v2",
            "no such file",
            "no answer",
        )
    assert queue.deliveries("one").lock()


def test_a_full_disk_leaves_no_half_record(tmp_path, monkeypatch):
    queue = RecordQueue(tmp_path)
    queue.append("metrics", step=1, values={})
    write, budget = os.write, [20]

    def short_of_room(descriptor, data):
        if budget[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: budget[0]])
        budget[0] -= written
        return written

    monkeypatch.setattr(os, "write", short_of_room)
    with pytest.raises(OSError, match="space"):
        queue.append("metrics", step=2, values={})
    monkeypatch.undo()
    queue.append("metrics", step=3, values={})
    assert [record["step"] for record in RecordQueue(tmp_path).read()] == [1, 3]


def test_an_append_writes_once_and_reads_only_what_is_new(tmp_path, monkeypatch):
    queue = RecordQueue(tmp_path)
    for step in range(200):
        queue.append("metrics", step=step, values={"train/kl": 0.1})
    size = (queue.folder / "records.log").stat().st_size
    calls, write, fsync = [], os.write, os.fsync
    monkeypatch.setattr(
        os, "write", lambda file, data: calls.append(len(data)) or write(file, data)
    )
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("fsync") or fsync(file))
    read = []
    new = LineFile.new
    monkeypatch.setattr(LineFile, "new", lambda self: read.append(self._read) or new(self))
    queue.append("metrics", step=200, values={"train/kl": 0.1})
    monkeypatch.undo()
    assert calls == [(queue.folder / "records.log").stat().st_size - size]
    assert read
    assert min(read) > 0.9 * size
