"""Writes docs/scaling.md and its picture from benchmarks/results/scaling.json.

python benchmarks/_scaling_page.py     # `navrl bench scaling` does it too
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _page import ROOT, measured_on, rewrite
from _scaling_model import (
    DIRECT,
    LINKS,
    NETWORKS,
    SMALL,
    Training,
    Value,
    fit_reduction,
    link_case,
    sent,
)

PAGE = ROOT / "docs" / "scaling.md"
PICTURE = ROOT / "docs" / "images" / "scaling.svg"
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
PREDICTED = (8, 64, 512)  # ranks
BUSY = 1.3  # times its processor time that an iteration takes where there is other work
Results = Mapping[str, Any]


def values_of(results: Results) -> Value:
    """Return a function that looks up medians."""

    def value(case: str, metric: str) -> float:
        return float(results["cases"][case]["metrics"][metric]["median"])

    return value


def fit(results: Results) -> Training:
    """Fit the model to results."""
    value, settings = values_of(results), results["settings"]
    cores, gradient = results["machine"]["cores"], float(settings["gradient"])
    teams = [ranks for ranks in settings["ranks"] if ranks > 1]
    links = [link for link in LINKS if link_case(link, teams[0]) in results["cases"]]
    shares = sorted(settings["shares"])
    alone = {number: value(f"share: {number} drones", "compute") for number in shares}
    alone[settings["drones"]] = value("train: 1 rank", "compute")
    reductions = value("train: 1 rank", "reductions")
    return Training(
        reduction=fit_reduction(value, teams, links, gradient, cores),
        drones=[*alone],
        compute=[*alone.values()],
        whole=settings["drones"],
        steps=settings["steps"],
        gradients=float(settings["minibatches"]),
        gradient=gradient,
        others=reductions - settings["minibatches"],
    )


# ---------------------------------------------------------------------------- tables


def train_table(results: Results) -> str:
    """Return what an iteration costs each rank."""
    value, settings = values_of(results), results["settings"]
    lines = [
        "| ranks | drones of a rank | frames/s | iteration ms | compute ms | all-reduces ms | "
        "all-reduces | bytes reduced | bytes sent |",
        "|---:|" + "---:|" * 8,
    ]
    for ranks in settings["ranks"]:
        case = f"train: {_ranks(ranks)}"
        size = value(case, "bytes")
        lines.append(
            f"| {ranks} | {settings['drones'] // ranks} | {value(case, 'frames_per_second'):,.0f} "
            f"| {_ms(value(case, 'iteration'))} | {_ms(value(case, 'compute'))} | "
            f"{_ms(value(case, 'reduce')) if ranks > 1 else ''} | {value(case, 'reductions'):.0f} "
            f"| {size / 1e6:.1f} MB | {sent(ranks, size) / 1e6:.1f} MB |"
        )
    return "\n".join(lines)


def share_table(results: Results) -> str:
    """Return the compute of an iteration by the drones of a rank."""
    value, settings = values_of(results), results["settings"]
    cases = {settings["drones"]: "train: 1 rank"}
    cases |= {number: f"share: {number} drones" for number in settings["shares"]}
    lines = ["| drones of a rank | compute ms | a frame, us |", "|---:|---:|---:|"]
    for drones, case in cases.items():
        seconds = value(case, "compute")
        frame = 1e6 * seconds / drones / settings["steps"]
        lines.append(f"| {drones} | {_ms(seconds)} | {frame:.1f} |")
    return "\n".join(lines)


def link_table(results: Results, model: Training) -> str:
    """Return measured all-reduces beside the model's."""
    value, gradient = values_of(results), model.gradient
    lines = [
        f"| link | ranks | {SMALL} bytes, ms | model | {gradient / 1e3:.0f} kB, ms | model | "
        "sent by a rank |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for link in (DIRECT, *LINKS):
        for ranks in results["settings"]["ranks"]:
            case = link_case(link, ranks)
            if case not in results["cases"]:
                continue
            cells = []
            for metric, size in (("small", SMALL), ("gradient", gradient)):
                told = model.reduction.seconds(ranks, size, link, forwarded=link is not DIRECT)
                cells += [_ms(value(case, metric)), _ms(told)]
            wire = "" if link is DIRECT else f"{value(case, 'sent') / 1e3:.0f} kB"
            lines.append(f"| {link.name} | {ranks} | {' | '.join(cells)} | {wire} |")
    return "\n".join(lines)


def save_table(results: Results) -> str:
    """Return what a checkpoint costs."""
    value = values_of(results)
    lines = [
        "| ranks | `checkpoint_save`, median ms | longest ms | added until the file is written, ms "
        "| file |",
        "|---:|---:|---:|---:|---:|",
    ]
    for ranks in results["settings"]["ranks"]:
        case = f"save: {_ranks(ranks)}"
        times = " | ".join(_ms(value(case, name)) for name in ("save", "save_most", "added"))
        lines.append(f"| {ranks} | {times} | {value(case, 'file') / 1e6:.1f} MB |")
    return "\n".join(lines)


def prediction_table(model: Training) -> str:
    """Return what the model says for more ranks."""
    lines = [
        "| network | ranks | fixed batch, frames/s | efficiency | in all-reduces | "
        "batch grows, frames/s | efficiency | in all-reduces |",
        "|---|---:|" + "---:|" * 6,
    ]
    for link in NETWORKS:
        for ranks in PREDICTED:
            cells = []
            for weak in (False, True):
                communication = model.communication(ranks, link)
                compute = model.compute_of(model.share(ranks, weak=weak))
                share = communication / (communication + compute)
                speed = model.frames_per_second(ranks, link, weak=weak)
                efficiency = model.efficiency(ranks, link, weak=weak)
                cells += [_number(speed), f"{100 * efficiency:.2g} %", f"{100 * share:.3g} %"]
            lines.append(f"| {link.name} | {ranks} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits(model: Training) -> Iterator[str]:
    """Yield a sentence for each network on where it stops scaling, and why."""
    for link in NETWORKS:
        best, half = model.fastest(link), model.half(link, weak=True)
        few, many = (model.parts(ranks, link) for ranks in (best, 2 * best))
        more = {name: many[name] - few[name] for name in few}
        saved = model.compute_of(model.whole / best) - model.compute_of(model.whole / best / 2)
        why = max(more, key=more.__getitem__)
        word = {"latency": "the latency of the ring's steps", "bytes": "the gradient's bytes"}[why]
        yield (
            f"- **{link.name}**: {model.whole} drones in all are fastest with {best} ranks "
            f"({_number(model.frames_per_second(best, link, weak=False))} frames/s, "
            f"{100 * model.efficiency(best, link, weak=False):.0f} % efficiency). Twice as many "
            f"would save {_ms(saved)} ms of compute in an iteration and spend {_ms(more[why])} ms "
            f"more on {word}. With {model.whole} drones for each rank, efficiency stays above a "
            f"half up to {half} ranks."
        )


def fitted(model: Training) -> str:
    """Return the fitted numbers in words."""
    one = model.reduction
    return (
        f"Fitted: a step of the ring takes {1e3 * one.overhead:.3f} ms of software on loopback and "
        f"waits for {one.hops:.1f} one-way delays; loopback carries "
        f"{_rate(one.byte)}. Through the forwarder a step takes "
        f"{1e3 * one.forwarder_overhead:.3f} ms and bytes {_rate(one.forwarder_byte)}; this part "
        "is left out of predictions. An iteration has "
        f"{model.gradients:.0f} all-reduces of {model.gradient / 1e3:.0f} kB, one for each "
        f"minibatch, and {model.others:.0f} small ones."
    )


def page(results: Results) -> str:
    """Return the generated part of the page."""
    model, settings = fit(results), results["settings"]
    cores, most = results["machine"]["cores"], max(results["settings"]["ranks"])
    crowded = (
        f" {most} ranks share {cores} cores here: their iteration takes as long as the cores need, "
        "and their all-reduces include waiting for ranks that have no core at the moment. Compute "
        "is processor time, and can be compared."
        if most > cores
        else ""
    )
    parts = [
        f"`navrl bench scaling`, {measured_on(results)}, {_rounds(results)}. PPO with "
        f"{settings['drones']} "
        f"drones, {settings['steps']} decisions and {settings['minibatches']} minibatches in an "
        "iteration, one thread for each rank." + _busy(results),
        "### Cost of a rank",
        f"Per rank and iteration.{crowded}",
        train_table(results),
        "One rank alone, with fewer drones: what a rank of a larger team computes.",
        share_table(results),
        "### All-reduce over slow links",
        "Delay and rate are emulated on loopback, in each direction of each connection.",
        link_table(results, model),
        fitted(model),
        "### Checkpoints",
        f"{settings['drones']} drones in all, compressed, written while training continues.",
        save_table(results),
        "### Prediction",
        "![Frames a second by ranks](images/scaling.svg)",
        prediction_table(model),
        "\n".join(limits(model)),
    ]
    return "\n\n".join(parts)


def _rounds(results: Results) -> str:
    number = len(results["cases"]["train: 1 rank"]["metrics"]["compute"]["rounds"])
    return "one round" if number == 1 else f"medians of {number} rounds"


def _busy(results: Results) -> str:
    """Return a warning if other work took the processor while this was measured."""
    iteration, compute = (values_of(results)("train: 1 rank", m) for m in ("iteration", "compute"))
    if iteration < BUSY * compute:
        return ""
    return (
        f" **The machine was busy**: one rank alone took {_ms(iteration)} ms for {_ms(compute)} ms "
        "of processor time. All times but compute are too long, and predictions too low."
    )


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _ms(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _number(value: float) -> str:
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k"


def _rate(byte: float) -> str:
    return f"{1e-9 / byte:.2g} GB/s" if byte > 1e-12 else "as fast as can be measured"


# --------------------------------------------------------------------------- picture


def draw(results: Results) -> None:
    """Draw measured and predicted speeds; equal files for equal numbers."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    model, value = fit(results), values_of(results)
    cores, measured = results["machine"]["cores"], results["settings"]["ranks"]
    style = {"svg.hashsalt": "navrl", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure((7.6, 3.4), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, weak in zip(axes, (False, True), strict=True):
            numbers = [2**n for n in range(11)]
            for link in NETWORKS:
                speeds = [model.frames_per_second(n, link, weak=weak) for n in numbers]
                axis.plot(numbers, speeds, label=link.name)
            ideal = [n * model.frames_per_second(1, DIRECT, weak=weak) for n in numbers]
            axis.plot(numbers, ideal, ":", color="gray", label="no loss")
            axis.set(xscale="log", yscale="log", xlabel="ranks")
            each = " a rank" if weak else " in all"
            axis.set_title(f"{model.whole} drones{each}")
            axis.grid(alpha=0.3)
        own = [ranks for ranks in measured if ranks <= cores]
        speeds = [value(f"train: {_ranks(ranks)}", "frames_per_second") for ranks in own]
        axes[0].plot(own, speeds, "ko", markersize=4, label="measured")
        axes[0].set_ylabel("frames/s")
        axes[0].legend()
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasSVG(figure).print_svg(str(PICTURE), metadata={"Date": None})


def publish(results: Results) -> None:
    """Write the page and the picture."""
    draw(results)
    rewrite(PAGE, "scaling", page(results))


if __name__ == "__main__":
    publish(json.loads(RESULTS.read_text()))
