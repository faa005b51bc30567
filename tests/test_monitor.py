"""PerformanceMonitor and MetricsLog: statistics that are right, and a file that is whole whatever
happens to its writer.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import navrl
from counting import count_calls
from navrl.errors import ConfigError, ContainerError
from navrl.monitor import KEPT, MetricsLog, PerformanceMonitor


@pytest.fixture
def monitor():
    return PerformanceMonitor()


@pytest.fixture
def clock(monkeypatch):
    """The clock of the monitor, which the test moves on."""
    clock = SimpleNamespace(now=100.0)
    fake = SimpleNamespace(perf_counter=lambda: clock.now, time=time.time)
    monkeypatch.setattr("navrl.monitor.time", fake)
    return clock


def test_it_is_offered_at_the_top_of_the_package():
    assert navrl.PerformanceMonitor is PerformanceMonitor


def test_a_timer_measures_its_block(monitor, clock):
    with monitor.timer("block"):
        clock.now += 0.25
    assert monitor.get_stats()["block"]["mean"] == 0.25


def test_a_block_that_raises_is_measured_and_raises(monitor):
    with pytest.raises(KeyError), monitor.timer("broken"):
        raise KeyError
    assert monitor.get_stats()["broken"]["count"] == 1


def test_start_and_end_measure_and_return_the_same(monitor):
    monitor.start_timer("x")
    seconds = monitor.end_timer("x")
    assert monitor.get_stats()["x"]["total"] == seconds


def test_starting_again_starts_anew(monitor, clock):
    monitor.start_timer("x")
    clock.now += 0.25
    monitor.start_timer("x")
    clock.now += 0.5
    assert monitor.end_timer("x") == 0.5


def test_ending_what_was_not_started_names_what_runs(monitor):
    with pytest.raises(ConfigError, match="none is running"):
        monitor.end_timer("train")
    monitor.start_timer("training")
    with pytest.raises(ConfigError, match="Did you mean 'training'"):
        monitor.end_timer("trainin")


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_an_impossible_duration_is_refused_by_name(monitor, seconds):
    with pytest.raises(ConfigError, match="collect"):
        monitor.record("collect", seconds)
    assert monitor.get_stats() == {}


def test_statistics_agree_with_numpy(monitor):
    values = np.random.default_rng(0).exponential(size=257)
    for value in values:
        monitor.record("x", value)
    recent = values[-100:]
    stats = monitor.get_stats(window=100)["x"]
    expected = {
        "mean": recent.mean(),
        "std": recent.std(),
        "min": recent.min(),
        "max": recent.max(),
        "p50": np.quantile(recent, 0.5),
        "p99": np.quantile(recent, 0.99),
        "total": values.sum(),
        "count": 257,
    }
    assert stats.keys() == expected.keys()
    assert all(stats[key] == pytest.approx(expected[key]) for key in expected)


def test_totals_outlive_the_measurements_that_are_kept(monitor):
    for _ in range(KEPT + 5):
        monitor.record("x", 1.0)
    assert monitor.get_stats(window=None)["x"]["count"] == KEPT + 5
    assert monitor.get_stats()["x"]["total"] == KEPT + 5


def test_a_window_of_nothing_is_refused(monitor):
    with pytest.raises(ConfigError, match="window is 0"):
        monitor.get_stats(window=0)


def test_the_summary_is_a_table_with_the_slowest_first(monitor):
    monitor.record("quick", 0.002)
    monitor.record("slow", 3.0)
    monitor.record("nothing", 0.0)
    heading, *lines = monitor.get_summary(window=100).splitlines()
    assert heading == "=== Performance Summary ==="
    assert [line.split()[0] for line in lines] == ["count", "slow", "quick", "nothing"]
    assert "3.00 s" in lines[1]
    assert "2.00 ms" in lines[2]
    assert len({len(line) for line in lines}) == 1


def test_the_summary_of_nothing_says_so(monitor):
    assert monitor.get_summary() == "=== Performance Summary ===\nnothing measured yet"


def test_the_report_is_the_statistics_in_one_level(monitor):
    for seconds in (9.0, 0.5, 1.5):
        monitor.record("training", seconds)
    monitor.record("evaluation", 2.0)
    report = monitor.report(window=2)
    assert (report["training_mean"], report["training_std"]) == (1.0, 0.5)
    assert report["evaluation_mean"] == 2.0
    for name, one in monitor.get_stats(window=2).items():
        assert {key: report[f"{name}_{key}"] for key in one} == one


def test_reset_forgets_everything(monitor):
    monitor.record("x", 1.0)
    monitor.start_timer("y")
    monitor.reset()
    assert monitor.get_stats() == {}
    with pytest.raises(ConfigError):
        monitor.end_timer("y")


def test_threads_lose_no_measurement_and_share_no_clock(monitor):
    def measure():
        for _ in range(2000):
            monitor.start_timer("shared")
            monitor.end_timer("shared")
            with monitor.timer("shared"):
                pass

    threads = [threading.Thread(target=measure) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert monitor.get_stats()["shared"]["count"] == 16_000


def test_a_timer_makes_few_calls_however_much_was_measured(monitor):
    def measure():
        with monitor.timer("x"):
            pass

    measure()
    first = count_calls(measure)
    for _ in range(2 * KEPT):
        monitor.record("x", 1.0)
    assert count_calls(measure) == first <= 12


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
from navrl import monitor
monitor.HELD = 3
limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
log = monitor.MetricsLog(sys.argv[1], on_error="hold")
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
from navrl.monitor import MetricsLog
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
