"""Write recorded flights into one HTML file: data, style and programs, nothing from elsewhere."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError
from navrl.evaluation.recording import Recording
from navrl.io.container.atomic_files import AtomicFile
from navrl.render.palette import DARK, LIGHT, OUTCOME_NAMES, Palette
from navrl.sim.reference import FLOATING_HEIGHT, TALL_HEIGHT
from navrl.sim.worlds.terrain import GROUND
from navrl.view.replay.payload import payload_of

__all__ = ["replay_page", "write_replay"]

SCRIPTS = (
    "start",
    "decode",
    "maths",
    "rays",
    "meshes",
    "shaders",
    "renderer",
    "camera",
    "stage",
    "panel",
    "main",
)


def write_replay(recordings: Recording | Sequence[Recording], path: Path) -> None:
    """Write a page that replays the recordings, one tab each, whole or not at all.

    Raises:
        ConfigError: there is no recording.
        OSError: the file cannot be written.
    """
    page = replay_page([recordings] if isinstance(recordings, Recording) else recordings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as file:
        file.write([page.encode()])
        file.commit()


def replay_page(recordings: Sequence[Recording]) -> str:
    """Return the HTML of a page that replays the recordings."""
    if not recordings:
        raise ConfigError(
            "there is no recorded flight to replay; record some with flight.recorded=64"
        )
    title = f"Flights of {recordings[0].policy}: {', '.join(r.scenario for r in recordings)}"
    style = _part("page.css").replace("{{light}}", _variables(LIGHT, "light"))
    parts = {
        "title": html.escape(title),
        "style": style.replace("{{dark}}", _variables(DARK, "dark")),
        "scripts": "\n".join(_part(f"{name}.js") for name in SCRIPTS),
        # `<` inside would end the script element
        "flights": json.dumps(_shown(recordings), separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = _part("page.html")
    for name in ("title", "style", "scripts", "flights"):
        page = page.replace("{{" + name + "}}", parts[name])
    return page


def _shown(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Return what the scripts of the page read."""
    return {
        "ground": GROUND,
        "heights": {"tall": TALL_HEIGHT, "box": FLOATING_HEIGHT},
        "outcomes": OUTCOME_NAMES,
        "colours": [field.name for field in dataclasses.fields(Palette)],
        "scenes": [payload_of(recording) for recording in recordings],
    }


def _part(name: str) -> str:
    return files("navrl.view.replay").joinpath("page").joinpath(name).read_text(encoding="utf-8")


def _variables(palette: Palette, scheme: str) -> str:
    """Return the colours as CSS variables."""
    colours = [f"--{name}: {value};" for name, value in dataclasses.asdict(palette).items()]
    return " ".join([*colours, f"--dark: {int(scheme == 'dark')};", f"color-scheme: {scheme};"])
