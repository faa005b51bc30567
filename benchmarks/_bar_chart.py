"""Bar charts as small SVG files: text, equal for equal numbers, readable on any background."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, TOP, LABELS, VALUES = 680, 24, 34, 210, 90
OURS, PEER, LIMIT = "#0b7285", "#adb5bd", "#dee2e6"
LOGARITHMIC = 20.0  # above this ratio of the longest bar to the shortest


@dataclass(frozen=True)
class Bar:
    """One bar: its value, the range of the rounds, and the value as text."""

    label: str
    value: float
    low: float
    high: float
    text: str
    color: str = PEER


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Return the SVG of horizontal bars, with the range of the rounds as a line on each."""
    largest = max(bar.high for bar in bars)
    positive = [bar.low for bar in bars if bar.low > 0]
    smallest = min(positive, default=largest)
    logarithmic = len(positive) == len(bars) and largest / smallest > LOGARITHMIC
    space = WIDTH - LABELS - VALUES

    def x(value: float) -> float:
        if not logarithmic:
            return LABELS + space * max(value, 0.0) / largest
        floor = math.log(smallest / 2)
        return LABELS + space * (math.log(value) - floor) / (math.log(largest) - floor)

    note = ", logarithmic scale" if logarithmic else ""
    height = TOP + ROW * len(bars) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13" fill="#212529">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#fff"/>',
        f'<text x="12" y="22" font-weight="bold">{escape(title)}{note}</text>',
    ]
    for number, bar in enumerate(bars):
        lines += _bar(bar, TOP + ROW * number, x)
    return "\n".join([*lines, "</svg>", ""])


def _bar(bar: Bar, top: float, x) -> list[str]:  # type: ignore[no-untyped-def]
    weight = ' font-weight="bold"' if bar.color == OURS else ""
    end, low, high = (round(x(value), 1) for value in (bar.value, bar.low, bar.high))
    middle, text = top + ROW / 2, top + ROW / 2 + 4.5
    return [
        f'<text x="{LABELS - 8}" y="{text:g}" text-anchor="end"{weight}>{escape(bar.label)}</text>',
        f'<rect x="{LABELS}" y="{top + 4}" width="{max(end - LABELS, 1):g}" height="{ROW - 8}" '
        f'rx="2" fill="{bar.color}"/>',
        f'<path d="M{low:g} {middle:g}H{high:g}" stroke="#212529" stroke-width="1.5"/>',
        f'<text x="{max(end, high) + 6:g}" y="{text:g}"{weight}>{escape(bar.text)}</text>',
    ]
