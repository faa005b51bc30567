"""Run: a training run as an object: its model, its metrics, its final evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from navrl.arguments import as_path
from navrl.config import Config, from_dict
from navrl.environments.table import NOTHING_GIVEN, Given
from navrl.errors import ConfigError
from navrl.evaluation import Policy, load_policy
from navrl.metrics_log import MetricsLog
from navrl.training.resume.continued_run import saved_settings
from navrl.training.run_folder import RunFolder

__all__ = ["Run"]


class Run:
    """A run that `navrl.train` or `navrl train` made: `navrl.Run("runs/mine")` opens one.

    Args:
        folder: of the run.
        given: environment and network that the caller of `navrl.train` made.
        problems: what the training could not save.

    Raises:
        ConfigError: the folder holds no run.

    >>> import navrl
    >>> from navrl.errors import ConfigError
    >>> try:
    ...     run = navrl.Run("runs/mine")  # then run.policy, run.curve(), run.summary, ...
    ... except ConfigError as error:
    ...     print("no run there")
    no run there
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        given: Given = NOTHING_GIVEN,
        problems: Sequence[str] = (),
    ) -> None:
        self._folder = RunFolder.open(as_path("folder", folder))
        self.given, self.problems = given, list(problems)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._folder.path

    @property
    def model_path(self) -> Path:
        """The best model of the run so far."""
        return self._folder.model_path

    @property
    def finished(self) -> bool:
        """Whether the training and its final evaluation are complete."""
        return self._folder.is_finished()

    @cached_property
    def config(self) -> Config:
        """All settings of the run."""
        return from_dict(saved_settings(self.folder))

    @property
    def policy(self) -> Policy:
        """The best policy of the run so far, loaded from its file."""
        return load_policy(self.folder, network=self.given.network or self.config.network.target)

    def metrics(self, kind: str = "train") -> list[dict[str, Any]]:
        """Return records of `metrics.jsonl`: of iterations (`train`) or evaluations (`eval`)."""
        return MetricsLog.read(self._folder.metrics, kind)

    def curve(self, metric: str = "eval/mean_reward") -> list[tuple[int, float]]:
        """Return a metric over the steps of all environments: [(steps, value), ...].

        Names that begin with `eval/` are of evaluations, all others of iterations, such as
        `episode/return`.

        Raises:
            ConfigError: no record has this metric; the message lists those that there are.
        """
        records = self.metrics("eval" if metric.startswith("eval/") else "train")
        found = [
            (int(record["frames"]), float(record[metric]))
            for record in records
            if isinstance(record.get(metric), int | float)
        ]
        if records and not found:
            known = sorted({name for record in records for name in record})
            raise ConfigError(
                f"no metric {metric!r} in {self.folder}; there are {', '.join(known)}"
            )
        return found

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """The numbers of the final evaluation by condition; empty until there is one."""
        path = self.folder / "evaluation.json"
        if not path.is_file():
            return {}
        return dict(json.loads(path.read_text())["conditions"])

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"Run({str(self.folder)!r}, {state})"
