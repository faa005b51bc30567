"""TensorBoard: metrics and pictures in event files of the run's folder, written without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from navrl.tracking.backends.interface import Backend, RunInfo, refused_here


class TensorboardBackend(Backend):
    """Event files in `RUN/tensorboard`, shown by `tensorboard --logdir RUN/tensorboard`.

    TensorBoard has no videos, no summary and no models.
    """

    keeps_models = False

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder) / "tensorboard"
        self._writer: Any = None

    def start(self, run: RunInfo) -> int:
        """Begin an event file."""
        self._writer = EventFileWriter(str(self._folder), flush_secs=3600)
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Log the numbers among the metrics of a step."""
        numbers = {
            name: float(value) for name, value in values.items() if isinstance(value, int | float)
        }
        self._add(
            step,
            moment,
            [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()],
        )

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Log a picture."""
        from PIL import Image

        with refused_here(file), Image.open(file) as opened:
            width, height = opened.size
        picture = Summary.Image(height=height, width=width, encoded_image_string=file.read_bytes())
        self._add(step, moment, [Summary.Value(tag=name, image=picture)])

    def finish(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, step: int, moment: float, values: list[Any]) -> None:
        self._writer.add_event(Event(wall_time=moment, step=step, summary=Summary(value=values)))
        self._writer.flush()  # the row counts as delivered once this returns
