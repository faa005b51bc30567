"""The colours of every picture, page and video: one set, told apart by the colour-blind.

The hues are those of Okabe and Ito. No meaning rests on a hue alone: each outcome also has its own
mark and its own words.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DARK", "LIGHT", "OUTCOME_NAMES", "Palette"]

OUTCOME_NAMES = {
    "static_collision": "hit an obstacle",
    "dynamic_collision": "hit a moving obstacle",
    "out_of_bounds": "too high or too low",
    "time_out": "ran out of time",
    "success_100": "reached the goal",
}


@dataclass(frozen=True)
class Palette:
    """Colours as `#rrggbb`, for one background."""

    background: str
    sky: str
    ground: str
    grid: str
    text: str
    faint: str
    panel: str
    line: str
    low: str  # static obstacles, from the lowest ...
    high: str  # ... to the highest
    moving: str
    flying: str
    ray: str
    success_100: str
    static_collision: str
    dynamic_collision: str
    out_of_bounds: str
    time_out: str


LIGHT = Palette(
    background="#ffffff",
    sky="#eef2f6",
    ground="#f7f8fa",
    grid="#d5dbe2",
    text="#1b2430",
    faint="#5c6773",
    panel="#ffffff",
    line="#d8dee6",
    low="#d3dae2",
    high="#8997a8",
    moving="#e69f00",
    flying="#0072b2",
    ray="#7d8b99",
    success_100="#009e73",
    static_collision="#d55e00",
    dynamic_collision="#c2408f",
    out_of_bounds="#6a3d9a",
    time_out="#50565e",
)

DARK = Palette(
    background="#0e131a",
    sky="#141b24",
    ground="#1a222d",
    grid="#2c3846",
    text="#e8edf3",
    faint="#9aa7b5",
    panel="#161d27",
    line="#2b3644",
    low="#3a4757",
    high="#7b8ca0",
    moving="#f0b429",
    flying="#56b4e9",
    ray="#8fa1b3",
    success_100="#2fc795",
    static_collision="#ff7a33",
    dynamic_collision="#f07cc3",
    out_of_bounds="#b08be0",
    time_out="#b4bcc6",
)
