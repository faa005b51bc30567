"""Recordings in words."""

from __future__ import annotations

from navrl.evaluation.recording import Recording

__all__ = ["obstacles_in_words"]


def obstacles_in_words(recording: Recording) -> str:
    """Return what the drones fly among: `350 fixed and 80 moving obstacles`."""
    task, moving = recording.settings["env"], len(recording.moving_width)
    fixed = len(recording.boxes) + len(recording.cylinders)
    if fixed and not task["world_files"] and not task["obstacles_per_world"]:
        fixed = task["num_obstacles"]  # obstacles that touch are kept as more boxes
    counts = [f"{fixed} fixed"] if fixed or not moving else []
    counts += [f"{moving} moving"] if moving else []
    return f"{' and '.join(counts)} obstacles"
