"""Hands the models of a training to the registry, and from there to its mirrors, as the upload policy says."""

from __future__ import annotations

import re
import sqlite3
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from navrl.errors import RegistryError
from navrl.registry.store import Registry
from navrl.registry.upload_policy import UploadPolicy, decide, metric_value
from navrl.tracking.recorder import Tracking

PAUSE, LONGEST_PAUSE = 0.2, 5.0  # s before the first retry, and at most before each of the next, which wait twice as long
FAILURES = (RegistryError, OSError, sqlite3.Error)


class Publisher:
    """Registers models, moves their aliases, drops old ones, and queues copies for the trackers.

    The registry is on this machine: what goes wrong there is told, and training goes on, unless the policy says otherwise.
    """

    def __init__(self, policy: UploadPolicy, tracking: Tracking) -> None:
        self.policy, self.tracking = policy, tracking
        self._labels: dict[Path, str] = {}  # versions by the file they were made from

    def publish(
        self, file: Path, iteration: int, metrics: Mapping[str, float], *, condition: str = "", final: bool = False
    ) -> str:
        """Register a model file if the policy wants it, and return what happened in words, or nothing.

        The metrics are those of an evaluation under a condition (`350 static + 80 moving`); without any, a final model has
        those that its file tells.

        Raises:
            RegistryError: it could not be registered, and `registry.continue_on_upload_failure` is off.
        """
        if not self.policy.name:
            return ""
        pause = PAUSE
        for attempt in range(self.policy.max_retries + 1):
            try:
                told = self._publish(file, iteration, metrics, condition, final, again=attempt > 0)
                self._prune(told)
                return told
            except FAILURES as error:
                if attempt < self.policy.max_retries:
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                elif self.policy.continue_on_upload_failure:
                    told = f"the model of iteration {iteration} was not registered: {error}; it is in {file}"
                    warnings.warn(told, RuntimeWarning, stacklevel=2)
                else:
                    raise RegistryError(f"the model of iteration {iteration} was not registered: {error}") from error
        return ""

    def wants(self, iteration: int, metrics: Mapping[str, float], condition: str) -> bool:
        """Tell whether the policy wants a model with these results; not, if the registry cannot be asked."""
        if not self.policy.name:
            return False
        try:
            with Registry() as registry:
                return bool(decide(self.policy, iteration, metrics, self._best(registry, condition)))
        except FAILURES:
            return False

    def due(self, iteration: int) -> bool:
        """Tell whether the policy may want the model of an iteration, whatever it is worth."""
        return bool(self.policy.name and self.policy.upload_frequency) and iteration % self.policy.upload_frequency == 0

    def judged(self, file: Path, rows: Mapping[str, Mapping[str, Any]]) -> str:
        """Write what the last evaluation of a training found beside the version of its file; return that version's label."""
        label = self._labels.get(file, "")
        if not label:
            return ""
        told = [f"{condition}: {100 * row['outcomes']['success_100']['share']:.1f} %" for condition, row in rows.items()]
        try:
            with Registry() as registry:
                registry.tag(label, {"judged": ", ".join(told)})
        except FAILURES as error:
            warnings.warn(f"the registry was not told how {label} was judged: {error}", RuntimeWarning, stacklevel=2)
        return label

    def _publish(
        self, file: Path, iteration: int, metrics: Mapping[str, float], condition: str, final: bool, *, again: bool
    ) -> str:  # fmt: skip
        name, told = self.policy.name, ""
        with Registry() as registry:
            for action in decide(self.policy, iteration, metrics, self._best(registry, condition), final):
                if action.what != "upload":
                    continue
                aliases = self._aliases(registry, action.aliases, condition)
                version = registry.register(
                    name, file, aliases=aliases, metrics=metrics or None,
                    tags={"condition": condition} if condition else None, reuse=final or again,
                )  # fmt: skip
                self._labels[file], told = version.label, f"registered as {version.label}: {action.reason}"
                metadata = {**metrics, "iteration": iteration, "condition": condition, "registered": version.label}
                self.tracking.artifact(file, name, [alias for alias in aliases if alias != "latest"], metadata)
                if "best" in action.aliases:
                    self.tracking.log(iteration, {f"best_model/{key}": value for key, value in metrics.items()})
        return told

    def _prune(self, told: str) -> None:
        """Drop old versions after a new one; that it fails is told, and no reason to register again."""
        if told and self.policy.keep_last_n:
            try:
                with Registry() as registry:
                    registry.prune(self.policy.name, self.policy.keep_last_n)
            except FAILURES as error:
                warnings.warn(f"old versions of {self.policy.name} are still there: {error}", RuntimeWarning, stacklevel=2)

    def _best(self, registry: Registry, condition: str) -> float | None:
        """Return the best that a registered model has reached under a condition."""
        try:
            known = [
                version for version in registry.versions(self.policy.name) if version.tags.get("condition", "") == condition
            ]
        except RegistryError:
            return None
        values = [metric_value(version.metrics, self.policy.best_model_metric) for version in known]
        found = [value for value in values if value is not None]
        return (max if self.policy.best_model_mode == "max" else min)(found, default=None)

    def _aliases(self, registry: Registry, aliases: Sequence[str], condition: str) -> list[str]:
        """Return the aliases of a version: the best under its condition, and the best of all if no other condition has that."""
        if "best" not in aliases:
            return [*aliases]
        own = f"best-{'-'.join(re.findall('[a-z0-9]+', condition.lower()))}".strip("-")
        try:
            taken = registry.resolve(f"{self.policy.name}:best").tags.get("condition", "") != condition
        except RegistryError:
            taken = False
        return [*(alias for alias in aliases if not (taken and alias == "best")), *([own] if own != "best" else [])]
