"""The pictures that an evaluation leaves in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from navrl.evaluation.recording import Recording

__all__ = ["draw_flights"]


def draw_flights(folder: Path, recording: Recording, *, animation: bool = True) -> list[Path]:
    """Write `flights.png` and, if asked, `flights.gif` of recorded flights; return their paths.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: a picture could not be written; no part of it is left.
    """
    # here: matplotlib is an extra, and slow to load
    from navrl.view.topdown import save_animation, save_flights

    drawings: dict[Path, Callable[[Recording, Path], None]] = {folder / "flights.png": save_flights}
    if animation:
        drawings[folder / "flights.gif"] = save_animation
    for path, save in drawings.items():
        try:
            save(recording, path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return [*drawings]
