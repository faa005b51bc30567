"""Hands the models of a training to the registry and its mirrors, as the upload policy says."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from navrl.errors import RegistryError
from navrl.registry.card import model_card
from navrl.registry.store import Registry
from navrl.registry.upload_policy import UploadPolicy, decide, is_better
from navrl.tracking.recorder import Tracking

DEADLINE = 1.0  # s that training waits for a registry that another process holds
LAST_DEADLINE = 5.0  # s, at the end of the training
FAILURES = (RegistryError, OSError, sqlite3.Error)


@dataclass
class _Model:
    """A model file that is to be registered, and what is known about it."""

    file: Path
    origin: Path  # where the training wrote it
    iteration: int
    metrics: dict[str, float]
    condition: str
    final: bool
    save: int = 0
    attempts: int = 0


class Publisher:
    """Registers models, moves their aliases, drops old ones, and queues copies for the trackers.

    A registry that cannot be used now, because another process holds it for longer than a second or
    for any other reason, does not stop the training: the model is kept in the folder `unregistered`
    of the run, and is registered later, before any newer one. Leaving the block tries once more,
    and says which command registers what is left.
    """

    def __init__(self, policy: UploadPolicy, tracking: Tracking, parent: str = "") -> None:
        self.policy, self.tracking = policy, tracking
        self.parent = parent  # the version whose weights the training began with
        self._labels: dict[Path, str] = {}  # versions by the file they were made from
        self._waiting: list[_Model] = []  # the oldest first
        self._known: dict[str, Mapping[str, Any] | None] = {}  # metrics of the best by condition, as last registered

    def publish(
        self,
        file: Path,
        iteration: int,
        metrics: Mapping[str, float],
        *,
        condition: str = "",
        save: int = 0,
        final: bool = False,
    ) -> str:
        """Register a model file if the policy wants it; return what happened in words, or nothing.

        The metrics are those of an evaluation under a condition (`350 static + 80 moving`); without
        any, a final model has those that its file tells. `save` is the number of the checkpoint that
        is saved with the model, 0 if none is.

        Raises:
            RegistryError: it could not be registered, and `registry.continue_on_upload_failure` is
            off.
        """
        if not self.policy.name:
            return ""
        model = _Model(file, file, iteration, dict(metrics), condition, final, save)
        told = self._register_waiting(LAST_DEADLINE if final else DEADLINE)
        if self._waiting:  # versions are numbered in the order of the training
            self._keep(model)
            return told
        return "; ".join(filter(None, (told, self._attempt(model, LAST_DEADLINE if final else DEADLINE))))

    def wants(self, metrics: Mapping[str, float], condition: str, save: int = 0) -> bool:
        """Return whether the policy wants a model with these results, beside checkpoint number `save`.

        While the registry cannot be used, this is judged by what it last said.
        """
        if not self.policy.name:
            return False
        self._register_waiting(DEADLINE)
        best = self._known.get(condition)
        if not self._waiting:
            with suppress(*FAILURES), Registry(deadline=DEADLINE) as registry:
                best = self._best(registry, condition)
        for model in self._waiting:
            if model.condition == condition and is_better(self.policy, model.metrics, best):
                best = model.metrics
        return bool(decide(self.policy, save, metrics, best))

    def due(self, save: int) -> bool:
        """Return whether the policy may want the model of checkpoint number `save`, whatever it is worth."""
        interval = self.policy.upload_frequency if self.policy.name else 0
        return bool(interval) and save > 0 and save % interval == 0

    def judged(self, file: Path, rows: Mapping[str, Mapping[str, Any]]) -> str:
        """Tag the version of a file with the results of the last evaluation; return its label."""
        label = self._labels.get(file, "")
        if not label:
            return ""
        told = [f"{condition}: {100 * row['outcomes']['success_100']['share']:.1f} %" for condition, row in rows.items()]
        try:
            with Registry(deadline=LAST_DEADLINE) as registry:
                registry.tag(label, {"judged": ", ".join(told)})
        except FAILURES as error:
            warnings.warn(
                f"the results of {label} were not added to the registry: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        return label

    def close(self) -> None:
        """Try to register what is left, and say how to do it by hand if that fails again.

        Raises:
            RegistryError: something is left, and `registry.continue_on_upload_failure` is off.
        """
        failure = None
        try:
            self._register_waiting(LAST_DEADLINE)
        except RegistryError as error:
            failure = error
        for model in self._waiting:
            alias = " --alias final" if model.final else ""
            told = (
                f"the model of iteration {model.iteration} is not registered. "
                "When the registry can be used again: "
                f"`navrl models register {self.policy.name} {model.file}{alias}`"
            )
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(*(() if kind is None else (RegistryError,))):  # the first error is the one to be told
            self.close()

    def _register_waiting(self, deadline: float) -> str:
        """Register the models that wait, the oldest first, until one fails; say what happened."""
        told = []
        while self._waiting:
            model = self._waiting[0]
            if model.attempts > self.policy.max_retries and deadline < LAST_DEADLINE:
                break
            said = self._attempt(model, deadline)
            if self._waiting and self._waiting[0] is model:
                break
            told.append(said)
        return "; ".join(filter(None, told))

    def _attempt(self, model: _Model, deadline: float) -> str:
        """Register one model, or keep it for later; return what happened in words."""
        model.attempts += 1
        try:
            with Registry(deadline=deadline) as registry:
                told = self._register(registry, model)
                if told:
                    self._prune(registry)
        except FAILURES as error:
            told = f"the model of iteration {model.iteration} was not registered: {error}"
            first = model not in self._waiting
            if first:
                self._keep(model)
            if model.attempts > self.policy.max_retries and not self.policy.continue_on_upload_failure:
                raise RegistryError(f"{told}; it is kept in {model.file}") from error
            if first:
                told += f"; it is kept in {model.file}, and registered as soon as that is possible"
                warnings.warn(told, RuntimeWarning, stacklevel=3)
            return ""
        if model in self._waiting:
            self._waiting.remove(model)
            self._drop(model)
        return told

    def _register(self, registry: Registry, model: _Model) -> str:
        best = self._best(registry, model.condition)
        actions = decide(self.policy, model.save, model.metrics, best, model.final)
        action = next((action for action in actions if action.what == "upload"), None)
        if action is None:
            return ""
        name = self.policy.name
        aliases = self._aliases(registry, action.aliases, model.condition)
        version = registry.register(
            name,
            model.file,
            aliases=aliases,
            metrics=model.metrics or None,
            tags={"condition": model.condition} if model.condition else None,
            lineage={"file": str(model.origin.absolute()), **self._parentage(registry)},
            reuse=model.final or model.attempts > 1,
        )
        self._labels[model.origin] = version.label
        known = {
            **model.metrics,
            "metrics": model.metrics,
            "iteration": model.iteration,
            "condition": model.condition,
            "registered": version.label,
            "kind": version.kind,
            "total_parameters": version.lineage.get("parameters", 0),
            "description": model_card(version),
            "file": model.origin.name,
        }
        others = [alias for alias in aliases if alias != "latest"]
        self.tracking.artifact(model.file, name, others, known)
        if "best" in action.aliases:
            self._known[model.condition] = model.metrics
        return f"registered as {version.label}: {action.reason}"

    def _prune(self, registry: Registry) -> None:
        """Drop old versions after a new one; a failure is a warning, no reason to register again."""
        if self.policy.keep_last_n:
            try:
                registry.prune(self.policy.name, self.policy.keep_last_n)
            except FAILURES as error:
                warnings.warn(
                    f"old versions of {self.policy.name} are still there: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _keep(self, model: _Model) -> None:
        """Keep a model for later under a name that the training does not write to."""
        kept = model.file.parent / "unregistered" / f"iteration_{model.iteration:06d}.pt"
        with suppress(OSError):  # a full disk: then there is only the file that the training keeps itself
            kept.parent.mkdir(exist_ok=True)
            kept.unlink(missing_ok=True)
            try:
                os.link(model.file, kept)
            except OSError:  # a file system without links
                shutil.copyfile(model.file, kept)
            model.file = kept
        self._waiting.append(model)

    def _drop(self, model: _Model) -> None:
        """Remove the copy of a model that is registered now."""
        if model.file != model.origin and not any(other.file == model.file for other in self._waiting):
            with suppress(OSError):
                model.file.unlink()
                model.file.parent.rmdir()

    def _best(self, registry: Registry, condition: str) -> Mapping[str, Any] | None:
        """Return the metrics of the best model that is registered under a condition."""
        name = self.policy.name
        known = registry.versions(name) if any(model.name == name for model in registry.models()) else []
        best: Mapping[str, Any] | None = None
        for version in known:
            if version.tags.get("condition", "") == condition and is_better(self.policy, version.metrics, best):
                best = version.metrics
        self._known[condition] = best
        return best

    def _parentage(self, registry: Registry) -> dict[str, str]:
        """Return the parent of the models of this training, as long as the registry has it."""
        with suppress(RegistryError):
            return {"parent": registry.resolve(self.parent).label} if self.parent else {}
        return {}

    def _aliases(self, registry: Registry, aliases: Sequence[str], condition: str) -> list[str]:
        """Return the aliases of a version; `best` only if no model of another condition has it."""
        if "best" not in aliases:
            return [*aliases]
        own = f"best-{'-'.join(re.findall('[a-z0-9]+', condition.lower()))}".strip("-")
        name = self.policy.name
        models = {model.name: model for model in registry.models()}
        taken = name in models and "best" in models[name].aliases
        if taken:
            taken = registry.resolve(f"{name}:best").tags.get("condition", "") != condition
        return [
            *(alias for alias in aliases if not (taken and alias == "best")),
            *([own] if own != "best" else []),
        ]
