"""What a checkpoint costs, beside its peers: time taken from training, time to the disk, size, load
time, memory.

The state is a trained network with Adam's moments (`_trained_states.py`), and training goes on
while the writers work. One core is left to them; the cases "all cores" leave none. A save is
followed by steps until the writer is done, and those steps are compared with the steps just before
and after: `added` is how much longer they took, `slower` how much more processor time their thread
needed for the same work. Meanwhile the process keeps the memory that training frees
(`_kept_memory.py`): with glibc's defaults steps differ by more than a save adds.

Files are loaded in this process and, at 200 MB, in one that was just started, as on resume.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from _checkpoint_gates import DISTRIBUTED, OURS, RAW, TORCH, gates
from _checkpoint_page import write_pages
from _checkpoint_writers import WRITERS, Writer, named_tensors
from _kept_memory import kept_memory
from _trained_states import Training, trained
from navrl.benchmark import Case, Column, Suite

# in a round
SAVES = {"1 MB": 6, "20 MB": 6, "200 MB": 12, "2 GB": 3}
# in a round at 200 MB, for the writers that gates compare
MORE_SAVES = 24
SMOKE_SAVES = {"1 MB": 2}
PEERS = {"safetensors": "safetensors", "Lightning async": "lightning"}
ALONE = 2  # times in a round that each file is written and read with training idle
SLOW = {"clone, queue, LZ4-9": 1}  # rounds at 200 MB: one save takes many seconds there
COMPARED = {*DISTRIBUTED, TORCH, OURS, "copy and write", "no save"}


class Step(NamedTuple):
    """What a step of the training took."""

    seconds: float
    waited: float  # of them for a copy
    computing: float  # time of the processor that its thread had


class Bench:
    """Trainings by size, writers by case, and every stall that was measured."""

    def __init__(self, saves: Mapping[str, int]) -> None:
        self._saves = saves
        self.folder = Path(
            tempfile.mkdtemp(prefix="navrl-bench-", dir=os.environ.get("NAVRL_BENCHMARK_FOLDER"))
        )
        self._trainings: dict[str, Training] = {}
        self._writers: dict[tuple[str, str], Writer] = {}
        self.stalls: dict[tuple[str, str], list[float]] = {}
        self._rounds: dict[str, int] = {}
        self._peaks: dict[str, float] = {}

    def case(
        self, name: str, size: str, *, all_cores: bool = False, stall_only: bool = False
    ) -> Case:
        """Return one writer at one size as a case of the suite."""
        label = f"{name}, {size}" + (", all cores" if all_cores else "")
        limit = 1 if stall_only else SLOW.get(name) if size == "200 MB" else None

        def measure() -> Mapping[str, float]:
            self._rounds[label] = self._rounds.get(label, 0) + 1
            if limit is not None and self._rounds[label] > limit + 1:  # the first is the warm-up
                return {}
            torch.set_num_threads(
                (os.cpu_count() or 2) if all_cores else max(1, (os.cpu_count() or 2) - 1)
            )
            return self._measure(name, size, label, stall_only)

        return Case(label, measure, note=(WRITERS[name].__doc__ or "").splitlines()[0])

    def _measure(self, name: str, size: str, label: str, stall_only: bool) -> dict[str, float]:
        if size not in self._trainings:
            self._trainings[size] = trained(size)
        training = self._trainings[size]
        if (name, size) not in self._writers:
            path = self.folder / f"{len(self._writers)}.pt"
            self._writers[name, size] = WRITERS[name](training, path)
        writer = self._writers[name, size]
        with kept_memory():
            saves = MORE_SAVES if size == "200 MB" and name in COMPARED else self._saves[size]
            stalls, metrics = self._beside_training(
                training, writer, saves, beside=1 if stall_only else 2
            )
        known = self.stalls.setdefault((label, size), [])
        if self._rounds[label] > 1:
            known += stalls
        metrics["stall_p99"] = float(np.percentile(known or stalls, 99))
        if stall_only or not writer.writes:
            return metrics
        times = 1 if size == "200 MB" and name in SLOW else ALONE
        return {
            **metrics,
            **self._alone(training, writer, times),
            **self._peak(name, size),
            **self._resume(name, size, writer, label),
        }

    def _beside_training(
        self, training: Training, writer: Writer, saves: int, beside: int
    ) -> tuple[list[float], dict[str, float]]:
        """Save while training, compare with so many steps before and after each save; return the
        stalls, and the medians.
        """
        stalls, added, slower = [], [], []
        self._step(training, writer)  # which takes memory that the others then have
        plain = [self._step(training, writer) for _ in range(beside)]
        for _ in range(saves):
            stall, seconds, computing, steps = self._save_while_training(training, writer)
            after = [self._step(training, writer) for _ in range(beside)]
            stalls.append(stall)
            added.append(seconds - steps * statistics.mean(step.seconds for step in plain + after))
            slower.append(
                computing - steps * statistics.mean(step.computing for step in plain + after)
            )
            plain = after
        return stalls, {
            "stall": statistics.median(stalls),
            "added": statistics.median(added),
            "slower": statistics.median(slower),
        }

    def _step(self, training: Training, writer: Writer) -> Step:
        """Make a step, and measure it."""
        waits: list[float] = []

        def wait(*_: Any) -> None:
            start = time.perf_counter()
            writer.before_step()
            waits.append(time.perf_counter() - start)

        hook = training.optimizer.register_step_pre_hook(wait)
        # before our own hook
        training.optimizer._optimizer_step_pre_hooks.move_to_end(hook.id, last=False)
        start, computed = time.perf_counter(), time.thread_time()
        training.step()
        step = Step(time.perf_counter() - start, waits[0], time.thread_time() - computed)
        hook.remove()
        return step

    def _save_while_training(
        self, training: Training, writer: Writer
    ) -> tuple[float, float, float, int]:
        """Return the seconds that training waited for a save, those until it was done, those
        computed, and the steps made.
        """
        state = training.state()
        start, computed = time.perf_counter(), time.thread_time()
        writer.save(state)
        stall = time.perf_counter() - start
        steps = 0
        while writer.busy() or not steps:
            stall += self._step(training, writer).waited
            steps += 1
        seconds, computed = time.perf_counter() - start, time.thread_time() - computed
        writer.wait()
        return stall, seconds, computed, steps

    def _alone(self, training: Training, writer: Writer, times: int) -> dict[str, float]:
        """Measure what does not depend on training: time to the disk, size, and reading back;
        medians of some times.
        """
        found = []
        for _ in range(times):
            self._step(training, writer)  # or there would be no difference to store
            found.append(self._alone_once(training, writer))
        return {
            name: statistics.median(one[name] for one in found)
            for name in ("durable", "size", "load", "load_live")
        } | {"identical": min(one["identical"] for one in found)}

    def _alone_once(self, training: Training, writer: Writer) -> dict[str, float]:
        state = training.state()
        start = time.perf_counter()
        writer.save(state)
        writer.wait()
        durable = time.perf_counter() - start
        expected = {name: tensor.clone() for name, tensor in named_tensors(state)}
        start = time.perf_counter()
        loaded = writer.load()
        fresh = time.perf_counter() - start
        identical = all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
        del loaded
        start = time.perf_counter()
        writer.load_live(state)
        live = time.perf_counter() - start
        identical &= all(
            torch.equal(tensor, expected[name]) for name, tensor in named_tensors(state)
        )
        raw = sum(tensor.nbytes for tensor in expected.values())
        return {
            "durable": durable,
            "size": writer.size() / raw,
            "load": fresh,
            "load_live": live,
            "identical": float(identical),
        }

    def _peak(self, name: str, size: str) -> dict[str, float]:
        """Measure the most memory that a process of its own needs beyond the training, once."""
        if size != "200 MB":
            return {}
        if name not in self._peaks:
            self._peaks[name] = _in_a_new_process("peak", name, size, self.folder)
        return {"peak": self._peaks[name]}

    def _resume(self, name: str, size: str, writer: Writer, label: str) -> dict[str, float]:
        """Measure how long a process that was just started takes to load the last file into its
        live tensors.
        """
        if (
            size != "200 MB" or label != f"{name}, {size}"
        ):  # how many cores train beside a save is nothing to it
            return {}
        return {"resume": _in_a_new_process("resume", name, size, writer.path)}

    def close(self) -> None:
        """Stop the writers and remove their files."""
        for writer in self._writers.values():
            writer.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _in_a_new_process(what: str, name: str, size: str, path: Path) -> float:
    command = [sys.executable, __file__, what, name, size, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_resume(name: str, size: str, path: Path) -> float:
    """Return the seconds to load a file into the live tensors of a training that has made a
    step.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
    training = Training(size)
    training.step()
    writer = WRITERS[name](training, path)
    state = training.state()
    start = time.perf_counter()
    writer.load_live(state)
    return time.perf_counter() - start


def measure_peak(name: str, size: str, folder: Path) -> float:
    """Return the bytes of memory that two saves need at most, beyond what the training itself
    holds.
    """
    training = trained(size)
    training.step()
    writer = WRITERS[name](training, Path(tempfile.mkdtemp(dir=folder)) / "peak.pt")
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    for _ in range(2):
        writer.save(training.state())
        writer.before_step()
        writer.wait()
        time.sleep(2)  # the process of DCP needs a moment to start
    peak = _status("VmHWM") - before
    children = [
        int(child)
        for path in Path("/proc/self/task").glob("*/children")
        for child in path.read_text().split()
    ]
    # what they share is counted above
    peak += sum(_status("VmHWM", child) - _status("RssShmem", child) for child in children)
    writer.close()
    return peak


def _status(field: str, process: int | str = "self") -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{process}/status has no {field}")


def draw(bench: Bench, path: Path) -> None:
    """Draw the stall of every writer against the size of the state."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    megabytes = {"1 MB": 1.03, "20 MB": 20.3, "200 MB": 203.4, "2 GB": 2074.0}
    for name in WRITERS:
        points = {
            megabytes[size]: 1e3 * statistics.median(stalls)
            for (label, size), stalls in bench.stalls.items()
            if label == f"{name}, {size}" and stalls
        }
        if points and WRITERS[name].writes:
            style: dict[str, Any] = (
                {"lw": 2.5} if name.startswith("navrl") else {"lw": 1.2, "ls": "--"}
            )
            style["color"] = matplotlib.colormaps["tab20"](2 * list(WRITERS).index(name) % 19)
            axes.plot(*zip(*sorted(points.items()), strict=True), marker="o", label=name, **style)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="weights and moments, MB",
        ylabel="training held up by a save, ms",
    )
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def suite(smoke: bool) -> Suite:
    bench = Bench(SMOKE_SAVES if smoke else SAVES)
    sizes = ["1 MB"] if smoke else ["1 MB", "20 MB", "200 MB"]
    names = [
        name
        for name in WRITERS
        if name not in PEERS or importlib.util.find_spec(PEERS[name]) is not None
    ]
    cases = [
        bench.case(name, size)
        for size in sizes
        for name in names
        if WRITERS[name].writes or size == "200 MB"
    ]
    if not smoke:
        cases += [
            bench.case(name, "200 MB", all_cores=True) for name in (TORCH, "DCP thread", OURS, RAW)
        ]
        cases += [bench.case(name, "2 GB", stall_only=True) for name in (TORCH, RAW)]

    def close() -> None:
        if not smoke:
            draw(bench, Path(__file__).parents[1] / "docs" / "checkpoint_stall.png")
        bench.close()

    left_out = sorted(set(WRITERS) - set(names))
    return Suite(
        name="checkpoint",
        title="Checkpoints: what a save takes from training, and what it leaves on the disk",
        cases=cases,
        columns=[
            Column("stall", "stall ms", ".3g", 1e3),
            Column("stall_p99", "p99 ms", ".3g", 1e3),
            Column("added", "added ms", ".3g", 1e3),
            Column("slower", "of it slower ms", ".3g", 1e3),
            Column("durable", "durable ms", ".3g", 1e3),
            Column("size", "size", ".3f"),
            Column("load", "load ms", ".3g", 1e3),
            Column("load_live", "into live ms", ".3g", 1e3),
            Column("resume", "new process ms", ".3g", 1e3),
            Column("peak", "memory MB", ".0f", 1e-6),
            Column("identical", "identical", ".0f"),
        ],
        gates=gates(sizes),
        packages=("lz4", "zstandard", "xxhash", "safetensors", "lightning"),
        repeats=5,
        settings={
            "saves a round": SMOKE_SAVES if smoke else SAVES,
            "saves a round at 200 MB, compared writers": MORE_SAVES,
            "training threads": max(1, (os.cpu_count() or 2) - 1),
            "freed memory": "kept while training is timed",
            "not installed, so left out": left_out,
        },
        close=close,
        publish=write_pages,
    )


if __name__ == "__main__":
    measure = {"peak": measure_peak, "resume": measure_resume}[sys.argv[1]]
    print(measure(sys.argv[2], sys.argv[3], Path(sys.argv[4])), flush=True)
    os._exit(0)  # some writers leave threads behind that crash an orderly end
