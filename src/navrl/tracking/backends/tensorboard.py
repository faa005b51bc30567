"""The backend to TensorBoard: metrics and pictures in event files of the run's folder, written
without torch.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from navrl.errors import TrackingError
from navrl.tracking.backends.interface import RunInfo, refused_here

_NO_MODELS = "TensorBoard keeps no models; use local, wandb, trackio or mlflow for them"


class TensorboardBackend:
    """Event files below `RUN/tensorboard`; look at them with `tensorboard --logdir
    RUN/tensorboard`.
    """

    confirms = True
    keeps_models = False

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder) / "tensorboard"
        self._writer: Any = None

    def start(self, run: RunInfo) -> int:
        """Begin another event file."""
        self._writer = EventFileWriter(str(self._folder), flush_secs=3600)
        return 0

    def log(self, step: int, values: Mapping[str, Any], *, number: int, moment: float) -> None:
        """Take the numbers among the metrics of a step."""
        numbers = {
            name: float(value) for name, value in values.items() if isinstance(value, int | float)
        }
        self._add(
            step,
            moment,
            [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()],
        )

    def image(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Take a picture of a step."""
        from PIL import Image

        with refused_here(file), Image.open(file) as opened:
            width, height = opened.size
        picture = Summary.Image(height=height, width=width, encoded_image_string=file.read_bytes())
        self._add(step, moment, [Summary.Value(tag=name, image=picture)])

    def video(self, step: int, name: str, file: Path, *, number: int, moment: float) -> None:
        """Leave videos out: TensorBoard knows none."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Leave the summary out: TensorBoard knows none."""

    def finish(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, step: int, moment: float, values: list[Any]) -> None:
        self._writer.add_event(Event(wall_time=moment, step=step, summary=Summary(value=values)))
        self._writer.flush()  # it is noted as delivered when this returns

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Refuse: TensorBoard keeps no models."""
        raise TrackingError(_NO_MODELS)

    def download(self, reference: str, folder: Path) -> Path:
        """Refuse: TensorBoard keeps no models."""
        raise TrackingError(_NO_MODELS)

    def versions(self, name: str) -> list[str]:
        """Return nothing: TensorBoard keeps no models."""
        return []

    def aliases(self, name: str) -> dict[str, str]:
        """Return nothing: TensorBoard keeps no models."""
        return {}

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Refuse: TensorBoard keeps no models."""
        raise TrackingError(_NO_MODELS)

    def delete(self, name: str, version: str) -> None:
        """Refuse: TensorBoard keeps no models."""
        raise TrackingError(_NO_MODELS)
