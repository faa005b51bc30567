"""Flights as an MP4 or a GIF, rendered without a display."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.errors import ConfigError, missing_extra
from navrl.evaluation.recording import Recording
from navrl.render import Camera, Renderer, chasing, overview
from navrl.render.moment import FLYING
from navrl.render.palette import DARK, LIGHT, OUTCOME_NAMES
from navrl.view.caption import Caption, check_pillow
from navrl.view.moments import moment_at

__all__ = ["VideoSettings", "check_format", "frames_of", "write_video"]

FORMATS = (".mp4", ".gif")
GIF_COLOURS = 63  # and one that means: as before
STILL_SECONDS = 1.0  # at the end, when every flight has ended

Bytes = NDArray[np.uint8]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VideoSettings:
    """How a video looks."""

    width: int = 854
    height: int = 480
    frames_per_second: int = 25
    speed: float = 1.0  # seconds of flight in a second of video
    start: float = 0.0  # s of the flights
    seconds: float | None = None  # of the flights; None: until the last one ends
    follow: int | None = None  # the number of an episode to fly behind; None: the whole field
    dark: bool = False

    def check(self, recording: Recording) -> None:
        """Raise a ConfigError that names the first value that cannot be used."""
        for name, low, high in (
            ("width", 64, 4096),
            ("height", 64, 4096),
            ("frames_per_second", 1, 120),
            ("speed", 0.01, 100.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {low} to {high}")
        if self.follow is not None and self.follow not in recording.episode:
            known = ", ".join(map(str, recording.episode[:8]))
            raise ConfigError(f"no recorded flight {self.follow}; there are {known}, ...")


def check_format(path: Path) -> None:
    """Raise a ConfigError unless the name ends in .mp4 or .gif."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: expected a name that ends in {' or '.join(FORMATS)}")


def write_video(
    recording: Recording,
    path: Path,
    settings: VideoSettings | None = None,
    progress: Progress = lambda done, of: None,
) -> None:
    """Write the flights as a video: MP4 or GIF, by the ending of the name.

    Raises:
        ConfigError: a setting is impossible, or the name ends in something else.
        MissingExtraError: Pillow, or for MP4 imageio-ffmpeg, is not installed.
        OSError: the file cannot be written; no part of it is left.
    """
    settings = settings or VideoSettings()
    check_format(path)
    check_pillow()
    settings.check(recording)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    write = _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    try:
        write(part, frames_of(recording, settings, progress), settings)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def frames_of(
    recording: Recording, settings: VideoSettings, progress: Progress = lambda done, of: None
) -> Iterator[Bytes]:
    """Yield the pictures of a video, (height, width, 3)."""
    palette = DARK if settings.dark else LIGHT
    renderer = Renderer(
        recording.boxes,
        recording.cylinders,
        width=settings.width,
        height=settings.height,
        palette=palette,
    )
    caption = Caption(recording, settings.height, settings.speed, palette)
    chosen = None
    if settings.follow is not None:
        chosen = int(np.flatnonzero(recording.episode == settings.follow)[0])
    whole = overview(settings.width / settings.height)
    moments = _moments(recording, settings)
    for number, seconds in enumerate(moments):
        moment = moment_at(recording, seconds)
        camera = whole if chosen is None else _behind(recording, chosen, seconds)
        yield caption.on(renderer.picture(camera, moment, chosen=chosen), moment)
        progress(number + 1, len(moments))


def _moments(recording: Recording, settings: VideoSettings) -> NDArray[np.float64]:
    """Return the times of the pictures, in seconds of flight."""
    chosen = recording.lengths
    if settings.follow is not None:
        chosen = chosen[recording.episode == settings.follow]
    end = float(chosen.max(initial=0)) * recording.seconds_per_frame
    length = settings.seconds if settings.seconds is not None else end - settings.start
    still = STILL_SECONDS if settings.seconds is None else 0.0
    count = max(1, round((length / settings.speed + still) * settings.frames_per_second))
    step = settings.speed / settings.frames_per_second
    return np.minimum(settings.start + np.arange(count) * step, settings.start + length)


def _behind(recording: Recording, flight: int, seconds: float) -> Camera:
    """Return a camera behind a flight, turned the way that it goes in the next two seconds."""
    frame = min(seconds / recording.seconds_per_frame, float(recording.lengths[flight]))
    window = round(1.0 / recording.seconds_per_frame)
    low = max(0, int(frame) - window)
    high = min(int(recording.lengths[flight]), int(frame) + window)
    way = recording.position[high, flight] - recording.position[low, flight]
    towards = recording.goal[flight] - recording.position[0, flight]
    x, y = way[:2] + 0.2 * towards[:2]
    return chasing(moment_at(recording, seconds).position[flight], float(np.arctan2(y, x)))


def _write_mp4(path: Path, frames: Iterator[Bytes], settings: VideoSettings) -> None:
    try:
        from imageio_ffmpeg import write_frames
    except ImportError as error:
        raise missing_extra("MP4 needs imageio-ffmpeg; .gif works without", "video") from error
    size = (settings.width, settings.height)
    options = {"fps": settings.frames_per_second, "macro_block_size": 2, "quality": 7}
    writer = write_frames(str(path), size, output_params=["-preset", "veryfast"], **options)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()


def _write_gif(path: Path, frames: Iterator[Bytes], settings: VideoSettings) -> None:
    """Write a GIF that names each pixel only when it changes."""
    images = _gif_images(frames, settings)
    images[0].save(
        path,
        save_all=True,
        append_images=images[1:],
        duration=round(1000 / settings.frames_per_second / 10) * 10,  # GIFs count hundredths
        loop=0,
        disposal=1,
        transparency=GIF_COLOURS,
        optimize=False,
    )


def _gif_images(frames: Iterator[Bytes], settings: VideoSettings) -> list[Any]:
    """Return the images of a GIF: the colours that change from one to the next, else a number that
    stands for none.
    """
    from PIL import Image

    palette: Any = None
    images, before = [], np.zeros(0)
    for frame in frames:
        image = Image.fromarray(frame)
        if palette is None:
            palette = _gif_palette(image, settings)
        numbers = np.array(image.quantize(palette=palette, dither=Image.Dither.NONE))
        same = numbers == before if before.shape == numbers.shape else np.zeros(numbers.shape, bool)
        shown = Image.fromarray(np.where(same, GIF_COLOURS, numbers).astype(np.uint8), "P")
        shown.putpalette(palette.getpalette()[: 3 * (GIF_COLOURS + 1)])
        images.append(shown)
        before = numbers
    return images


def _gif_palette(first: Any, settings: VideoSettings) -> Any:
    """Return an image whose palette has the colours of the first picture and of every outcome."""
    from PIL import Image

    colours = DARK if settings.dark else LIGHT
    named = [getattr(colours, name) for name in (FLYING, "moving", "text", *OUTCOME_NAMES)]
    rgb = [int(colour[i : i + 2], 16) for colour in named for i in (1, 3, 5)]
    free = GIF_COLOURS - len(named)
    drawn = first.quantize(free, method=Image.Quantize.MEDIANCUT).getpalette()[: 3 * free]
    drawn += [0] * (3 * free - len(drawn))
    palette = Image.new("P", (1, 1))
    palette.putpalette([*drawn, *rgb, *([0] * 3)])
    return palette
