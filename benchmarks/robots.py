"""Twelve minutes of training for each robot that comes with the package, for docs/robots.md.

    navrl bench robots

Runs `navrl train robot=NAME` and flies the policy on its robot. Stop it and call it again to
resume; a finished training is not repeated. The runs are in `.cache/bench/robots`, or in the folder
that NAVRL_ROBOT_RUNS names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _page import ROOT, measured_on, rewrite
from navrl.benchmark import Case, Column, Suite
from navrl.benchmark.peers import cache
from navrl.config import load_config
from navrl.errors import BenchmarkError
from navrl.evaluation import load_policy
from navrl.evaluation.run import fly_scenarios, results_of
from navrl.training.run_folder import is_finished, read_record

RUNS = "NAVRL_ROBOT_RUNS"
SCENARIOS = ("static", "standard", "crossing")
# what two cores train in about twelve minutes: longer scans take longer
DECISIONS = {"fast_quadrotor": 8_000_000, "ground": 14_000_000}
SMOKE = ("preset=smoke", "max_frame_num=4096", "processes=1")


def train(name: str, folder: Path, words: tuple[str, ...]) -> None:
    """Train a robot's policy in a process of its own, or go on with it.

    Raises:
        BenchmarkError: the training failed.
    """
    begun = (folder / "run.json").is_file()
    if begun and is_finished(folder, read_record(folder / "run.json")):
        return
    start = "import sys; from navrl.cli import main; sys.exit(main())"
    options = [f"robot={name}", *words, f"run_folder={folder}", "headless=true"]
    if begun:
        options.append("resume=auto")
    status = subprocess.run(
        [sys.executable, "-c", start, "train", *options], stdout=subprocess.DEVNULL
    ).returncode
    if status:
        raise BenchmarkError(f"navrl train {' '.join(options)} ended with status {status}")


def fly(folder: Path, episodes: int) -> dict[str, float]:
    """Return success and SPL of a run's policy in unseen worlds, on the robot of its training."""
    words = [f"flight.episodes={episodes}", f"flight.worlds={min(32, episodes)}"]
    config = load_config([*words, "flight.recorded=0"])
    rows = results_of(fly_scenarios(load_policy(str(folder)), SCENARIOS, config))["conditions"]
    found: dict[str, float] = {"episodes": episodes}
    for label in SCENARIOS:
        success = rows[label]["outcomes"]["success_100"]
        found |= {
            f"{label} success": success["share"],
            f"{label} low": success["low"],
            f"{label} high": success["high"],
            f"{label} spl": rows[label]["spl"]["mean"],
        }
    return found


def suite(smoke: bool) -> Suite:
    """Return the benchmark: a case for each robot."""
    scratch = TemporaryDirectory() if smoke else None
    kept = os.environ.get(RUNS) or cache() / "robots"
    above = Path(scratch.name if scratch else kept).absolute()

    def case(name: str) -> Case:
        words = SMOKE if smoke else (f"max_frame_num={DECISIONS[name]}",)
        folder = above / f"robot-{name}"

        def measure() -> Mapping[str, float]:
            train(name, folder, words)
            return fly(folder, 4 if smoke else 2048) | {"decisions": DECISIONS[name]}

        return Case(name, measure, f"navrl train robot={name} {' '.join(words)}")

    return Suite(
        name="robots",
        title="Twelve minutes of training for each robot",
        cases=[case(name) for name in DECISIONS],
        columns=[Column(f"{name} success", f"{name} %", ".1f", 100) for name in SCENARIOS],
        packages=("torch", "numba"),
        repeats=1,
        warm_up=False,
        close=scratch.cleanup if scratch else _nothing,
        publish=publish,
    )


def _nothing() -> None:
    pass


def publish(results: Mapping[str, Any]) -> None:
    """Write the table of docs/robots.md."""
    rewrite(ROOT / "docs" / "robots.md", "robots", page(results))


def page(results: Mapping[str, Any]) -> str:
    """Return the table of robots: decisions of the training, success in unseen worlds."""
    lines = [
        f"{measured_on(results)}, 2048 episodes in 32 unseen worlds:",
        "",
        "| robot | decisions | static | standard | crossing | SPL, standard |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in results["cases"].items():
        row = {metric: value["median"] for metric, value in case["metrics"].items()}
        cells = [f"`{name}`", f"{row['decisions'] / 1e6:g} million"]
        cells += [
            f"{100 * row[f'{label} success']:.1f} % "
            f"({100 * row[f'{label} low']:.1f} - {100 * row[f'{label} high']:.1f})"
            for label in SCENARIOS
        ]
        cells.append(f"{100 * row['standard spl']:.1f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
