"""The model card of a version as Markdown: what it is, its results, how to load it, its origin."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from navrl.registry.blob_contents import CHECKPOINT, MODEL
from navrl.registry.held_out import HELD_OUT, held_out_results
from navrl.registry.schema import ModelVersion
from navrl.registry.version_comparison import flat

__all__ = ["model_card"]

_WHAT = {
    MODEL: "A policy that flies a drone to its goal among static and moving obstacles: weights, "
    "network and task in one file.",
    CHECKPOINT: "A checkpoint of a training: the complete state, to resume from.",
}
_ORIGIN = {
    "parent": "made from",
    "run_folder": "run",
    "command": "command",
    "git.commit": "commit",
    "git.dirty": "uncommitted changes",
    "iteration": "iteration",
    "frames": "frames",
    "seed": "seed",
    "parameters": "parameters",
    "versions.navrl": "navrl",
    "versions.torch": "torch",
    "versions.python": "Python",
}


def model_card(version: ModelVersion) -> str:
    """Return the card of a version."""
    held_out = version.tags.get(HELD_OUT)
    parts = [f"# {version.name}, version {version.version}", _WHAT.get(version.kind, "A file.")]
    if held_out:
        parts += ["## Held-out evaluation", _held_out(held_out)]
    parts += [version.notes.strip()] if version.notes else []
    parts += [
        "## About",
        _about(version),
        "## Evaluation that chose the model" if held_out else "## Results",
        _results(version),
        "## How to load it",
        _loading(version),
        "## Where it came from",
        _origin(version),
    ]
    config = flat(version.lineage.get("config", {}))
    if config:
        parts += [
            "## Settings",
            _table(
                ("setting", "value"), ((f"`{key}`", _shown(value)) for key, value in config.items())
            ),
        ]
    return "\n\n".join(parts) + "\n"


def _held_out(text: str) -> str:
    """Return the results in worlds that neither training nor the choice of the model has seen."""
    results = held_out_results(text).items()
    rows = [(_cell(scenario), _cell(result)) for scenario, result in results]
    return _table(("scenario", "success in unseen worlds (95 % interval)"), rows)


def _about(version: ModelVersion) -> str:
    rows = {
        "aliases": ", ".join(version.aliases) or "none",
        "stage": version.stage,
        "tags": ", ".join(
            f"{key}={value}" if value else key
            for key, value in version.tags.items()
            if key != HELD_OUT
        )
        or "none",
        "size": f"{version.size:,} bytes",
        "SHA-256": version.digest,
        "registered": version.created.strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    return _table(("", ""), ((key, _shown(value)) for key, value in rows.items()))


def _results(version: ModelVersion) -> str:
    if not version.metrics:
        return "None were registered."
    return _table(
        ("metric", "value"),
        ((f"`{_cell(name)}`", _shown(value)) for name, value in sorted(version.metrics.items())),
    )


def _loading(version: ModelVersion) -> str:
    reference = f"{version.name}:v{version.version}"
    if version.kind == CHECKPOINT:
        return f"```sh\nnavrl train resume_checkpoint={reference}\n```"
    if version.kind == MODEL:
        return (
            f"```sh\nnavrl eval {reference}\n```\n\n```python\nfrom navrl import load_policy\n\n"
            f'policy = load_policy("{reference}")\n```'
        )
    return (
        "```python\nfrom navrl.registry import Registry\n\npath = "
        f'Registry().resolve("{reference}").path\n```'
    )


def _origin(version: ModelVersion) -> str:
    known = flat({key: value for key, value in version.lineage.items() if key != "config"})
    rows = [
        (label, _shown(known[key])) for key, label in _ORIGIN.items() if known.get(key) is not None
    ]
    others = [
        (f"`{_cell(key)}`", _shown(value))
        for key, value in known.items()
        if key not in _ORIGIN and "." not in key
    ]
    return _table(("", ""), [*rows, *others]) if rows or others else "Unknown."


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    heading = list(heading)
    return "\n".join(["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading), *lines])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None:
        return "not finite"
    return _cell(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )


def _cell(text: str) -> str:
    """Return text escaped for a cell of a Markdown table."""
    plain = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*[]<>|" else letter for letter in plain)
