"""The table of docs/learning.md and its picture, from the results of `navrl bench learning`."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from _page import ROOT, measured_on, rewrite

PICTURE = "images/learning-peers.png"
COLOURS = {
    "navrl": "#d55e00",
    "Stable-Baselines3": "#0072b2",
    "rsl_rl": "#009e73",
    "skrl": "#cc79a7",
}
TARGETS = ("70 %", "80 %")


def publish(results: Mapping[str, Any]) -> None:
    """Write the table and the picture."""
    rewrite(ROOT / "docs" / "learning.md", "learning", page(results))
    draw(results, ROOT / "docs" / PICTURE)


def page(results: Mapping[str, Any]) -> str:
    """Return the table with what was measured and for how long."""
    run = results["settings"]["run"]
    seeds = max(len(curves) for curves in results["settings"]["curves"].values())
    lines = [
        f"{measured_on(results)}; {seeds} {'seed' if seeds == 1 else 'seeds, medians'}; at most "
        f"{run['minutes']:g} minutes of training and {run['decisions'] / 1e6:g} million decisions "
        f"a run; {run['episodes']} episodes every {run['interval']:g} s.",
        "",
        "| learner | settings | 70 %: minutes | decisions | 80 %: minutes | decisions | best | "
        "decisions/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(name, case["metrics"]) for name, case in results["cases"].items()]
    return "\n".join([*lines, "", f"![Success against minutes of training]({PICTURE})"])


def _row(name: str, metrics: Mapping[str, Any]) -> str:
    learner, _, own = name.partition(", ")
    settings = "`preset=quick`" if own or learner == "navrl" else "Isaac Lab's"
    settings += f", {own}" if own.startswith("without") else ""
    cells = [f"**{learner}**" if learner == "navrl" else learner, settings]
    for target in TARGETS:
        minutes = _median(metrics, f"minutes to {target}")
        decisions = _median(metrics, f"decisions to {target}")
        cells += (
            ["not reached", ""]
            if minutes == inf
            else [f"{minutes:.1f}", f"{decisions / 1e6:.1f} million"]
        )
    cells += [
        f"{100 * _median(metrics, 'best'):.1f} %",
        f"{_median(metrics, 'decisions_per_second'):,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _median(metrics: Mapping[str, Any], name: str) -> float:
    """Return a median; JSON has no infinity, so that null means not reached."""
    found = metrics[name]["median"]
    return inf if found is None else float(found)


def draw(results: Mapping[str, Any], path: Any) -> None:
    """Draw success against minutes: dashed with the second settings of a learner."""
    from navrl.view.topdown import make_figure

    figure = make_figure(8.0, 4.4)
    axis = figure.subplots()
    for name, curves in results["settings"]["curves"].items():
        learner, _, own = name.partition(", ")
        for number, curve in enumerate(curves):
            axis.plot(
                [point["minutes"] for point in curve],
                [100 * point["success"] for point in curve],
                color=COLOURS[learner],
                linestyle="--" if own else "-",
                linewidth=1.4,
                label=name if number == 0 else None,
            )
    for target in TARGETS:
        axis.axhline(float(target.split()[0]), color="#888888", linestyle=":", linewidth=1.0)
    axis.set(xlabel="minutes of training", ylabel="success in standard (%)", ylim=(0, 100))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(path)
