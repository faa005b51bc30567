"""The words on a picture of a video: title, time, and how many flights have ended how."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.errors import missing_extra
from navrl.evaluation.recording import Recording
from navrl.render import Moment
from navrl.render.moment import FLYING
from navrl.render.palette import OUTCOME_NAMES, Palette
from navrl.render.renderer import MARKS
from navrl.view.words import obstacles_in_words

__all__ = ["Caption"]

Bytes = NDArray[np.uint8]


def check_pillow() -> None:
    """Raise a MissingExtraError if Pillow, which draws words and writes GIFs, is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise missing_extra("videos need Pillow", "view") from error


class Caption:
    """The words on a picture: what is shown, the time, and how many flights have ended how."""

    def __init__(self, recording: Recording, height: int, speed: float, palette: Palette) -> None:
        check_pillow()
        from PIL import ImageFont

        self.palette = palette
        size = max(10, round(height / 30))
        self.font, self.small = (ImageFont.load_default(part) for part in (size, size * 0.86))
        self.line = round(size * 1.45)
        kind = f"{recording.scenario}: " if recording.scenario else ""
        self.title = f"{kind}{recording.flights} flights among {obstacles_in_words(recording)}"
        self.speed = f"  x{speed:g}" if speed != 1 else ""

    def on(self, picture: Bytes, moment: Moment) -> Bytes:
        """Return the picture with the words on it."""
        from PIL import Image, ImageDraw

        image = Image.fromarray(picture)
        draw = ImageDraw.Draw(image)
        line, palette = self.line, self.palette
        draw.text((line, line * 0.7), self.title, palette.text, self.font)
        clock = f"{moment.seconds:.1f} s{self.speed}"
        draw.text((image.width - line, line * 0.7), clock, palette.faint, self.font, "ra")
        counts = Counter(moment.state)
        rows = [(FLYING, "in flight"), *OUTCOME_NAMES.items()]
        rows = [row for row in rows if counts[row[0]] or row[0] in (FLYING, "success_100")]
        top = image.height - line * (len(rows) + 0.7)
        for number, (state, words) in enumerate(rows):
            y = top + number * line
            _draw_key(
                draw, state, line * 1.25, y + line * 0.42, line * 0.3, getattr(palette, state)
            )
            draw.text((line * 1.9, y), f"{counts[state]} {words}", palette.text, self.small)
        return np.asarray(image)


def _draw_key(draw: Any, state: str, x: float, y: float, r: float, colour: str) -> None:
    """Draw the mark of an outcome, or a drone."""
    shape = MARKS.get(state, "drone")
    if shape == "disc":
        draw.ellipse((x - r, y - r, x + r, y + r), colour)
    elif shape == "cross":
        for sign in (1, -1):
            draw.line((x - r, y - r * sign, x + r, y + r * sign), colour, max(2, round(r * 0.6)))
    elif shape == "diamond":
        draw.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], colour)
    elif shape == "triangle":
        draw.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], colour)
    elif shape == "square":
        draw.rectangle((x - r, y - r, x + r, y + r), colour)
    else:
        for u in (-1, 1):
            for v in (-1, 1):
                cx, cy, s = x + u * r * 0.6, y + v * r * 0.6, r * 0.5
                draw.ellipse((cx - s, cy - s, cx + s, cy + s), colour)
