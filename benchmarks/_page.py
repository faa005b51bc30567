"""Puts generated tables between two marks of a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def _marks(writer: str) -> list[str]:
    name = writer if writer.endswith(".py") else f"`navrl bench {writer}`"
    return [f"<!-- {word} of what {name} writes -->" for word in ("begin", "end")]


def written(page: str, writer: str) -> str:
    """Return what stands between the marks of `writer`: a benchmark, or a script."""
    begin, end = _marks(writer)
    return page.partition(begin)[2].partition(end)[0].strip()


def rewrite(page: Path, writer: str, text: str) -> None:
    """Replace what stands between the marks of `writer`: a benchmark, or a script."""
    begin, end = _marks(writer)
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no marks {begin} ... {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def measured_on(results: Mapping[str, Any]) -> str:
    """Return the machine and the date of results in words."""
    machine = results["machine"]
    return f"{machine['processor']}, {machine['cores']} cores, {machine['date'][:10]}"


def gate_table(results: Mapping[str, Any]) -> str:
    """Return the gates of a benchmark with what was measured."""
    lines = ["| | target | measured |", "|---|---|---:|"]
    for gate in results["gates"]:
        stretch = " (stretch)" if gate["stretch"] else ""
        measured = "" if gate["value"] is None else f"{gate['value']:.3g}"
        lines.append(f"| {gate['name']}{stretch} | {gate['limit']} | {measured} |")
    return "\n".join(lines)
