"""How fast policies are judged, and what it costs to look at their flights.

The policy in the package flies the scenario `standard`, 32 worlds. A live view flies 16 drones in
real time: its share of one core is what a training beside it may lose at most.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _page import ROOT, measured_on, rewrite
from navrl.benchmark import Case, Column, Gate, Suite
from navrl.config import Config, load_config
from navrl.evaluation import load_policy
from navrl.evaluation.recording import Recording
from navrl.evaluation.run import fly_scenarios
from navrl.view.live.flight import LiveFlight
from navrl.view.replay import write_replay
from navrl.view.video import VideoSettings, write_video

PLAIN, RECORDED = "evaluation", "evaluation, 64 flights recorded"
PAGE, FILM, LIVE = "replay page, 64 flights", "video, 20 s of flight", "live view, 16 drones"


class Bench:
    """Flies, and keeps the recording of the last flights for pages and films."""

    def __init__(self, smoke: bool) -> None:
        self.episodes, self.film_seconds, self.live_seconds = (
            (16, 0.5, 0.5) if smoke else (2048, 20.0, 10.0)
        )
        self.flights = min(64, self.episodes)
        self.folder = tempfile.TemporaryDirectory(prefix="navrl-bench-")
        self.policy = load_policy("pretrained")

    def config(self, recorded: int) -> Config:
        """Return the settings of an evaluation."""
        words = [f"flight.episodes={self.episodes}", f"flight.recorded={recorded}"]
        return load_config([*words, f"flight.worlds={min(32, self.episodes)}"])

    @cached_property
    def recording(self) -> Recording:
        """Flights for pages and films."""
        words = [f"flight.episodes={self.flights}", f"flight.recorded={self.flights}"]
        config = load_config([*words, "flight.worlds=1"])
        found = fly_scenarios(self.policy, ["standard"], config).flights["standard"].recording
        assert found is not None
        return found

    def evaluation(self, recorded: int) -> Callable[[], dict[str, float]]:
        """Return the measurement of an evaluation."""

        def measure() -> dict[str, float]:
            start = time.perf_counter()
            fly_scenarios(self.policy, ["standard"], self.config(recorded))
            seconds = time.perf_counter() - start
            return {"seconds": seconds, "flights": self.episodes / seconds}

        return measure

    def page(self) -> dict[str, float]:
        """Write a replay page."""
        return self._written("replay.html", lambda path: write_replay(self.recording, path))

    def film(self) -> dict[str, float]:
        """Write a video."""
        settings = VideoSettings(seconds=self.film_seconds)
        return self._written("film.gif", lambda path: write_video(self.recording, path, settings))

    def _written(self, name: str, write: Callable[[Path], object]) -> dict[str, float]:
        path = Path(self.folder.name) / name
        recording = self.recording  # flown before the clock starts
        assert recording.flights
        start = time.perf_counter()
        write(path)
        return {"seconds": time.perf_counter() - start, "bytes": float(path.stat().st_size)}

    def live(self) -> dict[str, float]:
        """Fly and look as the live view does; return seconds of the processor in a second."""
        flight = LiveFlight(self.policy, "standard", load_config([]))
        start = time.process_time()
        for _ in range(round(self.live_seconds / flight.seconds_per_step)):
            flight.step()
            flight.moment()
        return {"core_share": (time.process_time() - start) / self.live_seconds}


def suite(smoke: bool) -> Suite:
    """Return the benchmark."""
    bench = Bench(smoke)
    return Suite(
        name="eval",
        title="Judging a policy and looking at its flights",
        cases=[
            Case(PLAIN, bench.evaluation(0), "scenario standard, no recording"),
            Case(RECORDED, bench.evaluation(bench.flights), "the same, with a recording"),
            Case(PAGE, bench.page, "one HTML file"),
            Case(FILM, bench.film, "854 x 480, 25 pictures a second, GIF"),
            Case(LIVE, bench.live, "flying and reading the scene in real time, without sending it"),
        ],
        columns=[
            Column("flights", "flights/s", ".0f"),
            Column("seconds", "s", ".2f"),
            Column("bytes", "kB", ".0f", 1e-3),
            Column("core_share", "% of a core", ".1f", 100),
        ],
        gates=[
            Gate("cost of recording 64 flights", lambda r: _cost(r, RECORDED), at_most=1.1),
            Gate("replay page, kB", lambda r: r.median(PAGE, "bytes") / 1e3, at_most=500),
            Gate("video of 20 s, s", lambda r: r.median(FILM, "seconds"), at_most=20),
        ],
        packages=("torch", "numba"),
        repeats=3,
        settings={"episodes": bench.episodes, "scenario": "standard"},
        close=bench.folder.cleanup,
        publish=publish,
    )


def _cost(results: Any, case: str) -> float:
    return float(results.ratio("seconds", case, PLAIN))


def publish(results: Mapping[str, Any]) -> None:
    """Write the table of docs/evaluation.md."""
    rewrite(ROOT / "docs" / "evaluation.md", "eval", page(results))


def page(results: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    lines = ["| | flights/s | seconds | kB | of one core |", "|---|---:|---:|---:|---:|"]
    for name, case in results["cases"].items():
        row = {metric: value["median"] for metric, value in case["metrics"].items()}
        cells = [
            f"{row[metric] * scale:{form}}" if metric in row else ""
            for metric, scale, form in (
                ("flights", 1.0, ".0f"),
                ("seconds", 1.0, ".2f"),
                ("bytes", 1e-3, ".0f"),
            )
        ]
        share = f"{100 * row['core_share']:.1f} %" if "core_share" in row else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {share} |")
    episodes = results["settings"]["episodes"]
    told = f"{episodes} episodes of `standard` with the policy in the package; medians."
    return "\n".join([*lines, "", f"{told} Measured on {measured_on(results)}."])
