"""The file that describes a sweep: which settings vary, and how trials are ranked."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from navrl.config import Config, load_config
from navrl.errors import ConfigError, nearest_name, shown

__all__ = ["PRUNERS", "SAMPLERS", "TEMPLATE", "Choice", "Range", "Space", "load_space"]

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "hyperband", "none")
KEYS = ("space", "settings", "trials", "metric", "direction", "sampler", "pruner")
RANGE_KEYS = ("low", "high", "log", "step")
LARGEST = 1 << 20  # bytes of a file

TEMPLATE = """\
# What varies. A list: one of its values. low and high: any number between them.
space:
  algo.actor.learning_rate: {low: 3.0e-4, high: 3.0e-3, log: true}
  algo.num_minibatches: [16, 32, 64]
  env.crossing_share: {low: 0.0, high: 1.0, step: 0.25}
# What all trials have in common, as typed after `navrl train`.
settings: [preset=quick, max_frame_num=6_000_000, eval_interval=10]
trials: 20
metric: success_100   # of the evaluations in training
direction: maximize
sampler: tpe          # or random, grid
pruner: median        # or hyperband, none
"""


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    @property
    def example(self) -> Any:
        """A value of it."""
        return self.values[0]


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`; whole numbers if both are whole."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only."""
        step = self.step is None or isinstance(self.step, int)
        return isinstance(self.low, int) and isinstance(self.high, int) and step

    @property
    def example(self) -> Any:
        """A value of it."""
        return self.low


@dataclass(frozen=True)
class Space:
    """A sweep as its file describes it.

    >>> from navrl.sweep import Space
    >>> from navrl.sweep.space import Choice
    >>> Space({"seed": Choice((1, 2, 3))}, sampler="grid").count
    3
    """

    space: Mapping[str, Choice | Range]
    settings: tuple[str, ...] = ()
    trials: int = 20
    metric: str = "success_100"
    direction: str = "maximize"
    sampler: str = "tpe"
    pruner: str = "median"

    @property
    def count(self) -> int:
        """How many trials there are: `trials`, or all combinations of a grid."""
        return len(self.grid()) or self.trials

    def grid(self) -> list[dict[str, Any]]:
        """Return every combination of values for the sampler `grid`, else nothing."""
        if self.sampler != "grid":
            return []
        values = [_points(values) for values in self.space.values()]
        return [
            dict(zip(self.space, combination, strict=True))
            for combination in itertools.product(*values)
        ]

    def config(self, values: Mapping[str, Any] | None = None) -> Config:
        """Return the settings of a trial.

        Raises:
            ConfigError: a setting does not exist or has an impossible value.
        """
        return load_config(self.overrides(values or {k: v.example for k, v in self.space.items()}))

    def overrides(self, values: Mapping[str, Any]) -> list[str]:
        """Return what is typed after `navrl train` for a trial."""
        return [*self.settings, *(f"{key}={typed(value)}" for key, value in values.items())]


def _points(values: Choice | Range) -> list[Any]:
    """Return the values that a grid tries."""
    if isinstance(values, Choice):
        return list(values.values)
    step = values.step or 0
    count = int((values.high - values.low) / step + 1e-9) + 1
    return [values.low + number * step for number in range(count)]


def typed(value: Any) -> str:
    """Return a value as a user types it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value).replace(" ", "")


def load_space(path: str | os.PathLike[str]) -> Space:
    """Return the sweep that a YAML file describes, every setting checked.

    Raises:
        ConfigError: the file is not a sweep; the message names the key and what is expected.
        FileNotFoundError: there is no such file.

    >>> from pathlib import Path
    >>> from navrl.sweep import load_space
    >>> written = Path("space.yaml").write_text("{space: {seed: [1, 2, 3]}, trials: 3}")
    >>> load_space("space.yaml").trials
    3
    """
    path = Path(path)
    if path.stat().st_size > LARGEST:
        raise ConfigError(f"{path}: more than {LARGEST} bytes; expected the file of a sweep")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(f"{path}: not a YAML file: {first}") from error
    try:
        space = _space(found)
        space.config()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return space


def _space(found: Any) -> Space:
    if not isinstance(found, dict) or not isinstance(found.get("space"), dict):
        raise ConfigError("no `space`; expected `space: {algo.gamma: [0.98, 0.99], ...}`")
    for key in found:
        if key not in KEYS:
            raise ConfigError(
                f"unknown key {shown(key)}; expected {', '.join(KEYS)}."
                f"{nearest_name(str(key), KEYS)}"
            )
    if not found["space"]:
        raise ConfigError("`space` is empty; expected at least one setting that varies")
    settings = found.get("settings") or []
    if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
        raise ConfigError(f"settings is {shown(settings)}; expected a list such as [preset=quick]")
    space = Space(
        space={str(key): _values(str(key), values) for key, values in found["space"].items()},
        settings=tuple(settings),
        **{key: found[key] for key in KEYS[2:] if key in found},
    )
    _check(space)
    return space


def _values(key: str, found: Any) -> Choice | Range:
    if isinstance(found, list) and found:
        # Optuna keeps plain values; a list such as [0, 80] is kept as it is typed
        plain = bool | int | float | str | None
        return Choice(tuple(one if isinstance(one, plain) else typed(one) for one in found))
    numbers = isinstance(found, dict) and all(
        isinstance(found.get(name), int | float) and not isinstance(found.get(name), bool)
        for name in ("low", "high")
    )
    if not numbers or set(found) - set(RANGE_KEYS):
        raise ConfigError(
            f"space.{key} is {shown(found)}; expected a list of values, or "
            "{low: 1, high: 10} with log: true or step: 2 if wanted"
        )
    values = Range(found["low"], found["high"], bool(found.get("log")), found.get("step"))
    if not values.low < values.high or (values.log and values.low <= 0):
        raise ConfigError(f"space.{key} is {shown(found)}; expected low < high, above 0 with log")
    if values.log and values.step is not None:
        raise ConfigError(f"space.{key} has log and step; expected one of them")
    if values.step is not None and not (isinstance(values.step, int | float) and values.step > 0):
        raise ConfigError(f"space.{key} has step {shown(values.step)}; expected a number above 0")
    return values


def _check(space: Space) -> None:
    for name, known in (
        ("direction", ("maximize", "minimize")),
        ("sampler", SAMPLERS),
        ("pruner", PRUNERS),
    ):
        value = getattr(space, name)
        if value not in known:
            near = nearest_name(str(value), known)
            raise ConfigError(
                f"{name} is {shown(value)}; expected one of {', '.join(known)}.{near}"
            )
    if isinstance(space.trials, bool) or not isinstance(space.trials, int) or space.trials < 1:
        raise ConfigError(f"trials is {shown(space.trials)}; expected a whole number from 1")
    if space.sampler == "grid":
        endless = [k for k, v in space.space.items() if isinstance(v, Range) and v.step is None]
        if endless:
            raise ConfigError(
                f"sampler is grid and space.{endless[0]} has no step; expected a list or a step"
            )
