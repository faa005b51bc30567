"""Charts as SVG: lines with bands, dots with intervals, stacked bars. Colours are CSS classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Bar", "Line", "bar_chart", "line_chart", "nice_ticks", "number"]

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 40
DASHES = ("", "7 4", "2 3", "10 3 2 3")
MARKERS = ("circle", "square", "triangle", "diamond")
SERIES = 8  # colours before they repeat, with other dashes and markers


@dataclass(frozen=True)
class Line:
    """A curve: points, and for each the bounds of its interval if there are any."""

    label: str
    series: int  # number of its colour, dash and marker
    points: Sequence[tuple[float, float]]
    bounds: Sequence[tuple[float, float]] = field(default_factory=list)
    faint: bool = False


@dataclass(frozen=True)
class Bar:
    """A horizontal bar of parts: colour class, words, and width of each, where 1 is the chart."""

    label: str
    parts: Sequence[tuple[str, str, float]]
    end: str = ""  # written behind the bar


def number(value: float, digits: int = 3) -> str:
    """Return a number for people: `12.3 k`, `4.56 M`, `0.012`."""
    if not math.isfinite(value):
        return "–"
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= scale:
            return f"{value / (scale if scale != 1e4 else 1e3):.{digits}g}{unit}"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers that cover an interval."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        high = low + 1 if math.isfinite(low) else 1.0
        low = low if math.isfinite(low) else 0.0
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    across: str,
    up: str,
    limits: tuple[float, float] | None = None,
) -> str:
    """Return a chart of curves as SVG."""
    points = [point for line in lines for point in line.points]
    if not points:
        empty = '<p class="faint">no data yet</p>'
        return f"<figure><figcaption>{escape(title)}</figcaption>{empty}</figure>"
    ys = [y for _, y in points] + [y for line in lines for bound in line.bounds for y in bound]
    right = max(max(x for x, _ in points), 1e-9)
    ticks_x = [tick for tick in nice_ticks(0.0, right) if tick <= right * 1.001]
    ticks_y = nice_ticks(*(limits or (min(ys), max(ys))))
    frame = _Frame(0.0, right, ticks_y[0], ticks_y[-1])
    parts = [_axes(frame, ticks_x, ticks_y, across, up)]
    parts += [_band(frame, line) for line in lines if line.bounds]
    parts += [_curve(frame, line) for line in lines]
    return _figure(title, HEIGHT, "".join(parts))


@dataclass(frozen=True)
class _Frame:
    """Where values are in the picture."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        clipped = min(max(value, self.y0), self.y1)
        share = (clipped - self.y0) / (self.y1 - self.y0)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _figure(title: str, height: int, inside: str) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{inside}</svg></figure>"
    )


def _axes(
    frame: _Frame, ticks_x: Sequence[float], ticks_y: Sequence[float], across: str, up: str
) -> str:
    parts = []
    for tick in ticks_y:
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">')
        parts.append(f"{number(tick)}</text>")
    for tick in ticks_x:
        x = frame.x(tick)
        parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">')
        parts.append(f"{number(tick)}</text>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="name" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">')
    parts.append(f"{escape(across)}</text>")
    high = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="name" transform="translate(13 {high}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )
    return "".join(parts)


def _band(frame: _Frame, line: Line) -> str:
    upper = [
        f"{frame.x(x)},{frame.y(high)}"
        for (x, _), (_, high) in zip(line.points, line.bounds, strict=True)
    ]
    lower = [
        f"{frame.x(x)},{frame.y(low)}"
        for (x, _), (low, _) in zip(line.points, line.bounds, strict=True)
    ]
    colour = line.series % SERIES
    return f'<polygon class="band fill{colour}" points="{" ".join(upper + lower[::-1])}"/>'


def _curve(frame: _Frame, line: Line) -> str:
    points = [(frame.x(x), frame.y(y)) for x, y in line.points if math.isfinite(y)]
    colour, style = line.series % SERIES, line.series % len(DASHES)
    kind = f"line stroke{colour}" + (" faint-line" if line.faint else "")
    dash = f' stroke-dasharray="{DASHES[style]}"' if DASHES[style] else ""
    path = " ".join(f"{x},{y}" for x, y in points)
    parts = [f'<polyline class="{kind}"{dash} points="{path}"/>']
    if len(points) <= 60 and not line.faint:
        told = [
            f"{line.label}: {number(y)} at {number(x)}" for x, y in line.points if math.isfinite(y)
        ]
        for (x, y), words in zip(points, told, strict=True):
            parts.append(f'<g class="fill{colour}">{marker(MARKERS[style], x, y)}')
            parts.append(f"<title>{escape(words)}</title></g>")
    return "".join(parts)


def marker(kind: str, x: float, y: float, r: float = 3.2) -> str:
    """Return a small mark as SVG."""
    if kind == "circle":
        return f'<circle cx="{x}" cy="{y}" r="{r}"/>'
    if kind == "square":
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"/>'
    if kind == "triangle":
        return (
            f'<path d="M{x} {y - r - 1:.1f}L{x + r + 1:.1f} {y + r:.1f}'
            f'L{x - r - 1:.1f} {y + r:.1f}Z"/>'
        )
    s = r + 1.2
    return f'<path d="M{x} {y - s:.1f}L{x + s:.1f} {y}L{x} {y + s:.1f}L{x - s:.1f} {y}Z"/>'


def bar_chart(bars: Sequence[Bar], *, title: str) -> str:
    """Return horizontal bars of shares from 0 to 1 as SVG, a row each."""
    row, label_width, end_width = 30, 170, 74
    span = WIDTH - label_width - end_width
    parts = []
    for i, bar in enumerate(bars):
        y, x = TOP + i * row, float(label_width)
        parts.append(f'<text class="tick" x="{label_width - 8}" y="{y + 15}" text-anchor="end">')
        parts.append(f"{escape(bar.label[:30])}</text>")
        parts.append(f'<rect class="rest" x="{x}" y="{y}" width="{span}" height="20"/>')
        for kind, words, share in bar.parts:
            wide = max(share, 0.0) * span
            parts.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="20">'
            )
            parts.append(f"<title>{escape(words)}</title></rect>")
            x += wide
        parts.append(f'<text class="tick" x="{label_width + span + 8}" y="{y + 15}">')
        parts.append(f"{escape(bar.end)}</text>")
    return _figure(title, TOP + row * max(len(bars), 1), "".join(parts))
