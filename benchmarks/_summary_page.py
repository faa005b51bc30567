"""Writes docs/benchmarks.md, its charts, and the tables of user pages from benchmarks/results/.

python benchmarks/_summary_page.py     # `navrl bench` does it after every whole run
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _bar_chart import LIMIT, OURS, PEER, Bar, chart
from _measured_pages import write_measured
from _page import ROOT, measured_on, rewrite
from _readme_page import write_readme
from _summary_tables import SECTIONS, Measure, Section
from navrl.benchmark.compare import CONFIDENCE, student_quantile

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
CHARTS = ROOT / "docs" / "images" / "benchmarks"
Results = Mapping[str, Mapping[str, Any]]  # by benchmark


def load() -> Results:
    """Return all kept results by benchmark."""
    contents = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return {name: content for name, content in contents.items() if "cases" in content}


def number(value: float) -> str:
    """Return a number with three digits, and words for thousands and millions."""
    for limit, word in ((1e6, " million"), (1e4, " thousand")):
        if abs(value) >= limit:
            return f"{value / limit if word == ' million' else value / 1e3:.3g}{word}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def metric_of(results: Results, section: Section, case: str, metric: str) -> Any:
    """Return median and rounds of a metric; None where it was not measured."""
    cases = results[section.benchmark]["cases"]
    found = cases.get(case, {"metrics": {}})["metrics"].get(metric)
    return found if found and found["median"] is not None else None


# ------------------------------------------------------------------------ sections


def table(results: Results, section: Section) -> str:
    """Return one row for each case, one column for each measure."""
    lines = [
        "| | " + " | ".join(one.heading for one in section.measures) + " |",
        "|---|" + "---:|" * len(section.measures),
    ]
    for case, label in section.cases.items():
        found = [metric_of(results, section, case, one.metric) for one in section.measures]
        if any(found):
            title = f"**{label}**" if case == section.ours else label
            cells = [
                number(value["median"] * one.scale) if value else ""
                for value, one in zip(found, section.measures, strict=True)
            ]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def charts(results: Results) -> Iterator[tuple[str, Section, Measure, str]]:
    """Yield file name, section, measure and SVG of every chart."""
    for section in SECTIONS:
        for one in section.measures:
            if one.chart and section.benchmark in results:
                bars = _bars(results, section, one)
                yield f"{section.benchmark}-{one.metric}.svg", section, one, chart(one.chart, bars)


def _bars(results: Results, section: Section, one: Measure) -> list[Bar]:
    found = []
    for case, label in section.cases.items():
        value = metric_of(results, section, case, one.metric)
        if value:
            rounds = [x * one.scale for x in value["rounds"]]
            middle = value["median"] * one.scale
            color = OURS if case == section.ours else LIMIT if case in section.limits else PEER
            found.append(Bar(label, middle, min(rounds), max(rounds), number(middle), color))
    return sorted(found, key=lambda bar: bar.value, reverse=one.more_is_better)


def section_text(results: Results, section: Section) -> str:
    """Return heading, sentence, charts and table of a section."""
    images = [
        f"![{one.chart}](images/benchmarks/{name})"
        for name, of, one, _ in charts(results)
        if of is section
    ]
    command = f"`navrl bench {section.benchmark}`, {measured_on(results[section.benchmark])}."
    parts = [f"### {section.heading}", f"{section.about} {command}", *images]
    return "\n\n".join([*parts, table(results, section)])


# ----------------------------------------------------------------------- summaries


def losses(results: Results) -> str:
    """Return the measures in which a peer is better, with the best peer of each."""
    lines = ["| | navrl | better | by |", "|---|---:|---:|---:|"]
    for section in SECTIONS:
        if section.benchmark not in results:
            continue
        for one in section.measures:
            lines += _loss(results, section, one)
    return "\n".join(lines)


def _loss(results: Results, section: Section, one: Measure) -> list[str]:
    ours = metric_of(results, section, section.ours, one.metric)
    values = {
        label: metric_of(results, section, case, one.metric)
        for case, label in section.cases.items()
        if "navrl" not in label and case not in section.limits
    }
    medians = {label: value["median"] for label, value in values.items() if value}
    if not ours or not medians:
        return []
    best = (max if one.more_is_better else min)(medians, key=medians.__getitem__)
    mine, theirs = ours["median"], medians[best]
    if (mine >= theirs) if one.more_is_better else (mine <= theirs):
        return []
    positive = mine > 0 and theirs > 0
    factor = f"{max(mine / theirs, theirs / mine):.2g} x" if positive else ""
    return [
        f"| {section.heading}: {one.heading} | {number(mine * one.scale)} | {best}: "
        f"{number(theirs * one.scale)} | {factor} |"
    ]


def targets(results: Results) -> str:
    """Return the gates that do not hold."""
    lines = ["| benchmark | | target | measured |", "|---|---|---:|---:|"]
    for name, content in results.items():
        for gate in content["gates"]:
            if not gate["holds"] and gate["value"] is not None:
                lines.append(
                    f"| `{name}` | {gate['name']} | {gate['limit'].replace('|', '')} | "
                    f"{gate['value']:.3g} |"
                )
    return "\n".join(lines)


def spreads(results: Results) -> str:
    """Return how much rounds scatter, and the smallest change that two such runs can show."""
    lines = [
        "| benchmark | rounds | standard deviation of a round | smallest change two runs show |",
        "|---|---:|---:|---:|",
    ]
    for name, content in results.items():
        series = [
            value["rounds"]
            for case in content["cases"].values()
            for value in case["metrics"].values()
            if len(set(value["rounds"])) > 1 and min(value["rounds"]) > 0
        ]
        if series:
            rounds = median(len(values) for values in series)
            scatter = median(stdev(map(math.log, values)) for values in series)
            quantile = student_quantile((1 + CONFIDENCE) / 2, 2 * (rounds - 1))
            smallest = math.expm1(quantile * scatter * math.sqrt(2 / rounds))
            lines.append(
                f"| `{name}` | {rounds:.0f} | {100 * scatter:.1f} % | {100 * smallest:.0f} % |"
            )
        else:
            lines.append(f"| `{name}` | 1 | not known | not known |")
    return "\n".join(lines)


def page(results: Results) -> str:
    """Return the generated part of docs/benchmarks.md."""
    sections = [s for s in SECTIONS if s.benchmark in results]
    parts = ["## Results", *(section_text(results, section) for section in sections)]
    parts += ["## Where navrl loses", "Measures in which a peer is better.", losses(results)]
    parts += ["Targets that are not met.", targets(results)]
    parts += [
        "## Spread to expect",
        "Medians over the metrics of each benchmark. The last column is what "
        "`navrl bench compare` can tell apart with 99 % confidence; ratios to a peer of the same "
        "run are steadier than absolute numbers, and other processors give other ratios.",
        spreads(results),
    ]
    return "\n\n".join(parts)


def main() -> None:
    """Write the page, its charts, and the tables of user pages and of the READMEs."""
    results = load()
    CHARTS.mkdir(parents=True, exist_ok=True)
    for name, _, _, svg in charts(results):
        (CHARTS / name).write_text(svg)
    rewrite(PAGE, "all", page(results))
    write_measured(results)
    write_readme()


if __name__ == "__main__":
    main()
