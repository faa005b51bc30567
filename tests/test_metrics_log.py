"""MetricsLog: a file that is whole whatever happens to its writer."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from navrl.errors import ConfigError, ContainerError
from navrl.metrics_log import MetricsLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_what_is_written_is_read_back_by_kind(path):
    with MetricsLog(path) as log:
        log.write(
            "train", 1, frames=32768, loss=0.5, phases={"collect": 0.3}, note="übung", none=None
        )
        log.write("eval", 1, success=0.9)
    assert MetricsLog.read(path, "eval") == [{"kind": "eval", "iteration": 1, "success": 0.9}]
    assert MetricsLog.read(path)[0] == {
        "kind": "train",
        "iteration": 1,
        "frames": 32768,
        "loss": 0.5,
        "phases": {"collect": 0.3},
        "note": "übung",
        "none": None,
    }


def test_numbers_of_torch_and_numpy_become_numbers_and_what_is_not_finite_null(path):
    with MetricsLog(path) as log:
        log.write(
            "train",
            np.int64(3),
            a=torch.tensor(2),
            b=np.float32(0.5),
            c=math.nan,
            d=[math.inf, torch.tensor([1.5])],
        )
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "kind": "train",
        "iteration": 3,
        "a": 2,
        "b": 0.5,
        "c": None,
        "d": [None, 1.5],
    }


@pytest.mark.parametrize("value", [object(), torch.zeros(3), np.zeros(0), {1, 2}])
def test_what_json_cannot_hold_is_refused_by_name_and_nothing_is_written(path, value):
    with MetricsLog(path) as log, pytest.raises(ConfigError, match=r"losses\.first"):
        log.write("train", 1, losses={"first": value})
    assert path.read_bytes() == b""


def test_a_reader_sees_every_record_before_the_log_is_closed(path):
    log = MetricsLog(path)
    log.write("train", 1)
    assert len(MetricsLog.read(path)) == 1
    log.close()
    log.close()
    with pytest.raises(ConfigError, match="closed"):
        log.write("train", 2)
    with pytest.raises(ConfigError, match="closed"):
        log.rewind(0)


@pytest.mark.parametrize("removed", range(1, 32))
def test_a_torn_last_line_is_left_out_and_then_overwritten(path, removed):
    with MetricsLog(path) as log:
        log.write("train", 1)
        log.write("train", 2)
    path.write_bytes(path.read_bytes()[:-removed])
    assert [record["iteration"] for record in MetricsLog.read(path)] == [1]
    with MetricsLog(path) as log:
        log.write("train", 3)
    assert [record["iteration"] for record in MetricsLog.read(path)] == [1, 3]


def test_a_damaged_line_in_the_middle_is_told_with_its_number(path):
    path.write_text(
        '{"kind": "train", "iteration": 1}\nnonsense\n{"kind": "train", "iteration": 2}\n'
    )
    with pytest.raises(ContainerError, match="line 2"):
        MetricsLog.read(path)


@pytest.mark.parametrize(
    "damage",
    [
        b"nonsense\n",
        b"[" * 100_000 + b"\n",
        b"\xff\x00\n",
        b"[]\n",
        b'{"kind": 1, "iteration": 2}\n',
        b"9" * 10_000 + b"\n",
    ],
    ids=["words", "nested", "bytes", "list", "kind", "number"],
)
def test_a_log_with_a_damaged_line_goes_on_with_the_good_ones_and_keeps_the_file(path, damage):
    before, after = b'{"kind": "train", "iteration": 1}\n', b'{"kind": "train", "iteration": 3}\n'
    path.write_bytes(before + damage + after)
    with pytest.raises(
        ContainerError, match=rf"{path}, line 2: found .{{1,60}}, expected a record"
    ):
        MetricsLog.read(path)
    with pytest.warns(
        RuntimeWarning, match=r"1 damaged lines, the first is line 2; .*damaged-1\.jsonl"
    ) as told:
        log = MetricsLog(path)
    assert len(str(told[0].message)) < 400
    log.write("train", 4)
    log.close()
    assert [record["iteration"] for record in MetricsLog.read(path)] == [1, 3, 4]
    assert path.with_name("metrics.damaged-1.jsonl").read_bytes() == before + damage + after


def test_a_second_damaged_file_is_kept_beside_the_first(path):
    for _ in range(2):
        path.write_text('nonsense\n{"kind": "train", "iteration": 2}\n')
        with pytest.warns(RuntimeWarning, match="damaged"):
            MetricsLog(path).close()
    assert sorted(p.name for p in path.parent.glob("*damaged*")) == [
        "metrics.damaged-1.jsonl",
        "metrics.damaged-2.jsonl",
    ]


def test_a_log_that_is_a_pipe_is_refused_by_name(path):
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=rf"{path} is not a regular file"):
        MetricsLog(path)


HOLDING = """
import resource, sys
from navrl import metrics_log
metrics_log.HELD = 3
limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
log = metrics_log.MetricsLog(sys.argv[1], on_error="hold")
log.write("train", 1)
limit(100)
for iteration in range(2, 8):
    log.write("train", iteration, text="x" * 50)
assert (log.held, log.dropped, log.failure) == (3, 3, "File too large"), (log.held, log.dropped, log.failure)
assert not log.flush()
if sys.argv[2] == "again":
    limit(resource.RLIM_INFINITY)
    log.write("train", 8)
    assert (log.held, log.failure) == (0, "")
log.close()
"""


@pytest.mark.parametrize(("then", "kept"), [("again", [1, 5, 6, 7, 8]), ("never", [1])])
def test_records_are_held_while_the_disk_takes_none_and_written_when_it_does(path, then, kept):
    subprocess.run([sys.executable, "-c", HOLDING, str(path), then], check=True)
    assert [record["iteration"] for record in MetricsLog.read(path)] == kept


def test_rewinding_makes_the_file_of_a_run_that_never_stopped(path, tmp_path):
    def run(log, first, last):
        for iteration in range(first, last + 1):
            log.write("train", iteration, loss=1 / iteration)
            if iteration % 2 == 0:
                log.write("eval", iteration, success=0.1 * iteration)

    with MetricsLog(tmp_path / "straight.jsonl") as log:
        run(log, 1, 9)
    with MetricsLog(path) as log:
        run(log, 1, 7)
    with MetricsLog(path) as log:
        log.rewind(4)
        run(log, 5, 9)
    assert path.read_bytes() == (tmp_path / "straight.jsonl").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "straight.jsonl"]


def test_a_full_disk_spoils_no_line(path, monkeypatch):
    log = MetricsLog(path)
    log.write("train", 1)
    write = os.write

    def half(descriptor, line):
        if len(line) < 30:
            raise OSError(28, "No space left on device")
        return write(descriptor, line[:10])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        log.write("train", 2)
    monkeypatch.undo()
    log.write("train", 3)
    log.close()
    assert [record["iteration"] for record in MetricsLog.read(path)] == [1, 3]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        MetricsLog(tmp_path / "nowhere" / "metrics.jsonl")


def test_kill_9_loses_no_record_that_was_written(path):
    program = f"""
from navrl.metrics_log import MetricsLog
log = MetricsLog({str(path)!r})
for i in range(10**9):
    log.write("train", i, value=i / 3, text="x" * 200)
    print(i, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        told = [int(process.stdout.readline()) for _ in range(500)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout]
    iterations = [record["iteration"] for record in MetricsLog.read(path)]
    assert iterations[: len(told)] == told
    assert len(iterations) - len(told) <= 1
