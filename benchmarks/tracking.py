"""What a tracker costs the thread that trains, and the end of a run: navrl's queue beside W&B's own
calls, same server.

The real W&B client talks to the emulator of the tests, behind a proxy that fails on purpose: in the
middle of the run it stops answering (hangs) or listening (refused), or it never answers at all
(dead). Each case is a process of its own that begins, logs and uploads a model at every step, and
ends; for each of the three it has `CAP` seconds beyond its pauses, then it is killed, and the step
that it was in counts as its upload, for as long as it had lasted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from navrl.benchmark import Case, Column, Gate, Results, Suite

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "tracking"))

CONDITIONS = ("ok", "hangs", "refused", "dead")
CAP = 20.0
PAUSE = 0.2  # s between two steps
MEGABYTES = 1


class Navrl:
    """The queue and its workers."""

    def __init__(self, folder: Path, patience: float) -> None:
        from navrl.tracking.tracker import Tracking
        from navrl.tracking.tracker_settings import TrackingSettings, WandbSettings

        self._tracking = Tracking(
            TrackingSettings(wandb=WandbSettings("online", "bench"), patience=patience), {}, folder
        )
        self.log, self.close = self._tracking.log, self._tracking.close

    def artifact(self, file: Path, step: int) -> None:
        self._tracking.artifact(file, "model", ["best"], {"step": step})


class Direct:
    """W&B's own calls, as its documentation shows them."""

    def __init__(self, folder: Path, patience: float) -> None:
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project="bench", dir=str(folder), settings=wandb.Settings(console="off", silent=True)
        )
        self.close = self._run.finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def artifact(self, file: Path, step: int) -> None:
        artifact = self._wandb.Artifact("model", "model", metadata={"step": step})
        artifact.add_file(str(file))
        self._run.log_artifact(artifact, aliases=["best"])


KINDS: dict[str, Callable[[Path, float], Navrl | Direct]] = {"navrl": Navrl, "wandb": Direct}


def act(kind: str, folder: Path, steps: int, patience: float) -> None:
    """Be the training: print `begun`, a line for each step, and the seconds of every call; wait for
    a line after each step.
    """
    start = time.perf_counter()
    tracker = KINDS[kind](folder, patience)
    print(json.dumps({"begin": time.perf_counter() - start}), flush=True)
    logs, artifacts = [], []
    for step in range(1, steps + 1):
        file = folder / f"model{step}.pt"
        file.write_bytes(os.urandom(MEGABYTES << 20))
        start = time.perf_counter()
        tracker.log(step, {"train/kl": 1 / step})
        logged = time.perf_counter()
        tracker.artifact(file, step)
        artifacts.append(time.perf_counter() - logged)
        logs.append(logged - start)
        print(json.dumps({"log": max(logs), "artifact": max(artifacts)}), flush=True)
        sys.stdin.readline()
    start = time.perf_counter()
    tracker.close()
    print(json.dumps({"end": time.perf_counter() - start}), flush=True)


class Bench:
    """The emulator, and one measured process after the other."""

    def __init__(self, steps: int, cap: float, patience: float) -> None:
        from wandb_emulator import Emulator

        self.emulator, self.steps, self.cap, self.patience = Emulator(), steps, cap, patience

    def measure(self, kind: str, condition: str) -> dict[str, float]:
        from faulty_proxy import FaultyProxy

        proxy = FaultyProxy(self.emulator.url)
        proxy.fault = "hang" if condition == "dead" else "ok"
        environment = os.environ | {
            "WANDB_BASE_URL": proxy.url,
            "WANDB_API_KEY": "a" * 40,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_SILENT": "true",
            "PYTHONWARNINGS": "ignore",
        }
        with tempfile.TemporaryDirectory(prefix="navrl-bench-") as folder:
            command = [
                sys.executable,
                str(Path(__file__).resolve()),
                kind,
                folder,
                str(self.steps),
                str(self.patience),
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                start_new_session=True,
            )
            try:
                return self._drive(process, proxy, condition)
            finally:
                proxy.close()
                process.kill()
                process.wait()
                time.sleep(0.5)  # those that it has started notice its end

    def _drive(
        self, process: subprocess.Popen[str], proxy: object, condition: str
    ) -> dict[str, float]:
        found = {"ended": 0.0}
        begun = self._line(process, self.cap)
        if begun is None:
            return found | {"begin": self.cap}
        found |= begun
        until = time.monotonic() + self.cap + self.steps * PAUSE
        for step in range(1, self.steps + 1):
            asked = time.monotonic()
            told = self._line(process, until - asked)
            if told is None:
                waited = time.monotonic() - asked if process.poll() is None else self.cap
                return found | {"artifact": max(waited, found.get("artifact", 0.0))}
            found |= told
            if step == self.steps // 2 and condition in ("hangs", "refused"):
                proxy.fault = {"hangs": "hang", "refused": "refused"}[condition]  # type: ignore[attr-defined]
            time.sleep(PAUSE)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        ended = self._line(process, self.cap)
        return found | ({"end": self.cap} if ended is None else ended | {"ended": 1.0})

    def _line(self, process: subprocess.Popen[str], seconds: float) -> dict[str, float] | None:
        """Return the next line of a process, or None if none comes in time."""
        import threading

        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(
            target=lambda: lines.append(process.stdout.readline()), daemon=True
        )  # type: ignore[union-attr]
        reader.start()
        reader.join(max(0.0, seconds))
        return json.loads(lines[0]) if lines and lines[0] else None


def suite(smoke: bool) -> Suite:
    conditions = ("hangs",) if smoke else CONDITIONS
    bench = (
        Bench(steps=2, cap=4.0, patience=0.5) if smoke else Bench(steps=20, cap=CAP, patience=8.0)
    )
    cases = [
        Case(
            f"{kind}, {condition}",
            lambda kind=kind, condition=condition: bench.measure(kind, condition),
        )
        for condition in conditions
        for kind in KINDS
    ]
    columns = [
        Column("begin", "begin s", ".2f"),
        Column("log", "longest log ms", ".1f", 1000.0),
        Column("artifact", "longest artifact ms", ".1f", 1000.0),
        Column("end", "end s", ".1f"),
        Column("ended", "ended", ".0f"),
    ]

    def longest(condition: str, metric: str) -> Callable[[Results], float]:
        return lambda results: max(
            results.rounds[f"navrl, {condition}"].get(metric, [float("inf")])
        )

    def ended(condition: str) -> Callable[[Results], float]:
        return lambda results: min(results.rounds[f"navrl, {condition}"]["ended"])

    gates = [
        gate
        for condition in conditions
        for gate in (
            Gate(f"longest log, {condition}, s", longest(condition, "log"), at_most=0.05),
            Gate(f"longest artifact, {condition}, s", longest(condition, "artifact"), at_most=0.05),
            Gate(f"longest end, {condition}, s", longest(condition, "end"), at_most=10),
            Gate(f"ended, {condition}", ended(condition), at_least=1),
        )
    ]
    settings = {"model_megabytes": MEGABYTES, "steps": bench.steps, "cap_seconds": bench.cap}
    return Suite(
        "tracking",
        "What a tracker costs the thread that trains",
        cases,
        columns,
        gates,
        ("wandb",),
        repeats=3,
        warm_up=False,
        settings=settings,
        close=bench.emulator.close,
    )


if __name__ == "__main__":
    act(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
