"""What wrappers around collectors share: the base collector's attributes and its frame rate."""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["ForwardsToBase", "FrameRate"]

_RECENT = 16  # batches over which the speed is measured
_PRIVATE = ("_frames", "_iter")  # that training scripts read from TorchRL's collectors


class FrameRate:
    """Frames collected per second of collecting, over the last batches."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add(self, batch: Any, seconds: float) -> None:
        """Count a batch: a TensorDict, or a number of frames."""
        frames = batch if isinstance(batch, int) else getattr(batch, "numel", lambda: 0)()
        self._recent.append((int(frames), seconds))

    @property
    def per_second(self) -> float:
        """Frames per second; 0 before the first batch."""
        seconds = sum(spent for _, spent in self._recent)
        return sum(frames for frames, _ in self._recent) / seconds if seconds else 0.0


class ForwardsToBase:
    """A collector around another: what it lacks itself is looked up in its `base_collector`.

    That is every public name (`frames_per_batch`, `total_frames`, `policy`, `env`, `set_seed`,
    `pause`, ...) and the two private ones that training scripts read, `_frames` and `_iter`.
    """

    base_collector: Any
    _rate: FrameRate

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("_") and name not in _PRIVATE) or "base_collector" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.base_collector, name)

    @property
    def _fps(self) -> float:
        """Frames per second: as the base collector tells it, else as measured here."""
        told = getattr(self.base_collector, "_fps", None)
        return self._rate.per_second if told is None else float(told)
