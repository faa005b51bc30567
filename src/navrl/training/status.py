"""Where a run stands, as one record and as one line of text."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from navrl.training.saving.checkpoints import SaveStatus

__all__ = ["Status", "clock", "count", "headline", "number", "percent", "plain_line", "save_state"]

MISSING = "-"
NAN = math.nan


@dataclass(frozen=True)
class Status:
    """Where a run stands; NaN is shown as a dash, None is left out, rates are from 0 to 1."""

    iteration: int
    iterations: int
    frames: int
    total_frames: int
    seconds: float  # since the start
    frames_per_second: float = NAN
    success: float = NAN
    collision: float = NAN
    out_of_bounds: float = NAN
    time_out: float = NAN
    episode_return: float = NAN
    episode_length: float = NAN  # simulated steps
    policy_loss: float = NAN
    value_loss: float = NAN
    kl: float = NAN
    entropy: float = NAN
    learning_rate: float = NAN
    gradient_norm: float = NAN
    explained_variance: float = NAN
    phases: dict[str, float] = field(default_factory=dict)  # fraction of the time by phase
    stall_ms: float | None = None  # of the last checkpoint
    evaluation: dict[str, float] | None = None  # headline of the last evaluation, by condition
    headline: str = "success"  # what is shown large: success, or return where there is none
    seconds_left: float | None = None
    saves: SaveStatus = field(default_factory=SaveStatus)
    unwritten: int = 0  # files beside the checkpoints whose write failed
    collection: str = ""  # the state of remote workers


def plain_line(status: Status) -> str:
    """Return a status in one line."""
    pieces = [
        f"iteration {status.iteration}/{status.iterations}",
        f"{count(status.frames)} frames",
        f"{count(status.frames_per_second)} frames/s",
        *_outcomes(status),
        f"return {number(status.episode_return)}",
        f"KL {number(status.kl)}",
        f"entropy {number(status.entropy)}",
    ]
    if status.evaluation:
        rates = (f"{name} {headline(status, value)}" for name, value in status.evaluation.items())
        pieces.append(f"evaluated {status.headline} {', '.join(rates)}")
    if status.seconds_left is not None:
        pieces.append(f"{clock(status.seconds_left)} left")
    if saved := save_state(status):
        pieces.append(f"checkpoint {saved}")
    if status.collection:
        pieces.append(status.collection)
    if status.unwritten:
        pieces.append(f"{status.unwritten} files NOT written")
    return "  ".join(pieces)


def _outcomes(status: Status) -> list[str]:
    """Return how episodes ended, as far as the environment tells."""
    success = f"training success {percent(status.success)}"
    if status.headline == "return":
        return [success] if math.isfinite(status.success) else []
    return [success, f"collision {percent(status.collision)}"]


def headline(status: Status, value: float) -> str:
    """Return the headline of an evaluation: a rate, or a return."""
    return number(value, 4) if status.headline == "return" else percent(value)


def save_state(status: Status) -> str:
    """Return the last checkpoint and its age, or why the last attempts failed."""
    saves = status.saves
    age = clock(time.monotonic() - saves.at)
    last = f"iteration {saves.iteration}, {age} ago" if saves.iteration is not None else ""
    if not saves.failure:
        return last
    times = f" {saves.failed_in_row} times" if saves.failed_in_row > 1 else ""
    return f"FAILED{times}: {saves.failure}; last: {last or 'none'}"


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e7 else f"{value:.{digits}g}"


def percent(rate: float) -> str:
    """Return a rate from 0 to 1 as percent."""
    return f"{100 * rate:.1f} %" if math.isfinite(rate) else MISSING


def count(value: float) -> str:
    """Return a number with a suffix: `1.5 M`."""
    if not math.isfinite(value):
        return MISSING
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= scale:
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"


def clock(seconds: float) -> str:
    """Return a duration as `h:mm:ss` or `m:ss`."""
    if not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
