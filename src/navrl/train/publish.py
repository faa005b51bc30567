"""Hands the models of a training to the registry, and from there to its mirrors, as the upload policy says."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from navrl.errors import RegistryError
from navrl.registry.store import Registry
from navrl.registry.upload_policy import UploadPolicy, decide, metric_value
from navrl.tracking.recorder import Tracking

PAUSE = 0.2  # s before the first retry; twice as long before each of the next
FAILURES = (RegistryError, OSError, sqlite3.Error)


class Publisher:
    """Registers models, moves their aliases, drops old ones, and queues copies for the trackers.

    The registry is on this machine: what goes wrong there is told, and training goes on, unless the policy says otherwise.
    """

    def __init__(self, policy: UploadPolicy, tracking: Tracking) -> None:
        self.policy, self.tracking = policy, tracking
        self.label: str | None = None  # of the version that was registered last: `navigation:v3`

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
                return self._publish(file, iteration, metrics, condition, final)
            except FAILURES as error:
                if attempt < self.policy.max_retries:
                    time.sleep(pause)
                    pause *= 2
                elif self.policy.continue_on_upload_failure:
                    told = f"the model of iteration {iteration} was not registered: {error}; it is in {file}"
                    warnings.warn(told, RuntimeWarning, stacklevel=2)
                    break
                else:
                    raise RegistryError(f"the model of iteration {iteration} was not registered: {error}") from error
        return ""

    def _publish(self, file: Path, iteration: int, metrics: Mapping[str, float], condition: str, final: bool) -> str:
        policy, told = self.policy, ""
        with Registry() as registry:
            best = self._best(registry, condition)
            for action in decide(policy, iteration, metrics, best, final):
                if action.what == "prune":
                    registry.prune(policy.name, policy.keep_last_n)
                    continue
                version = registry.register(
                    policy.name, file, aliases=action.aliases, metrics=metrics or None,
                    tags={"condition": condition} if condition else None, reuse=final,
                )  # fmt: skip
                self.label, told = version.label, f"registered as {version.label}: {action.reason}"
                self.tracking.artifact(
                    file, policy.name, [alias for alias in action.aliases if alias != "latest"],
                    {**metrics, "iteration": iteration, "condition": condition, "registered": version.label},
                )  # fmt: skip
                if "best" in action.aliases:
                    self.tracking.log(iteration, {f"best_model/{name}": value for name, value in metrics.items()})
        return told

    def _best(self, registry: Registry, condition: str) -> float | None:
        """Return what the registered best model reached under the same condition; under another it is no match."""
        try:
            known = registry.resolve(f"{self.policy.name}:best")
        except RegistryError:
            return None
        if known.tags.get("condition", "") != condition:
            return None
        return metric_value(known.metrics, self.policy.best_model_metric)

    def due(self, iteration: int) -> bool:
        """Tell whether the policy may want the model of an iteration, whatever it is worth."""
        return bool(self.policy.name and self.policy.upload_frequency) and iteration % self.policy.upload_frequency == 0

    def judged(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Write what the last evaluation of a training found beside the version that it judged."""
        if self.label is None:
            return
        told = [f"{label}: {100 * row['outcomes']['success_100']['share']:.1f} %" for label, row in rows.items()]
        try:
            with Registry() as registry:
                registry.tag(self.label, {"judged": ", ".join(told)})
        except FAILURES as error:
            warnings.warn(f"the registry was not told how {self.label} was judged: {error}", RuntimeWarning, stacklevel=2)
