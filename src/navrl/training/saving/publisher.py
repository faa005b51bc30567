"""Registers and uploads the models of a training by the upload policy."""

from __future__ import annotations

import re
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.errors import RegistryError
from navrl.registry.database import is_locked
from navrl.registry.held_out import HELD_OUT, held_out_text
from navrl.registry.model_card import model_card
from navrl.registry.registry import Registry
from navrl.registry.schema import ModelVersion
from navrl.registry.upload_policy import UploadPolicy, decide, is_better
from navrl.tracking.tracker import Tracking
from navrl.training.saving.unregistered import UnregisteredModel, drop, keep, kept_models

if TYPE_CHECKING:
    from typing_extensions import Self

# seconds that training waits for a registry that another process has locked
DEADLINE = 1.0  # per evaluation
LAST_DEADLINE = 5.0  # at the end
FAILURES = (RegistryError, OSError, sqlite3.Error)


class Publisher:
    """Registers models, moves aliases, prunes old versions, and queues copies for the trackers.

    If the registry cannot be used, because another process holds its lock or for any other reason,
    training goes on and the model is kept in `RUN/unregistered`. Every later call retries, oldest
    model first, also after the run was killed and resumed. A model that fails for a reason of its
    own does not block the others. Leaving the block retries a last time, and warns with the command
    that registers what is left.
    """

    def __init__(self, policy: UploadPolicy, tracking: Tracking, parent: str = "") -> None:
        self.policy, self.tracking = policy, tracking
        self.parent = parent  # the version whose weights the training started from
        self._labels: dict[Path, str] = {}  # registered versions by the training's file
        self._folder = tracking.folder / "unregistered"
        self._waiting = kept_models(self._folder) if policy.name else []  # oldest first
        self._waited = 0.0  # seconds spent with the registry at this evaluation
        self._message = ""  # what `wants` registered; part of the next message of `publish`
        # metrics of the best model by condition, as last read from the registry
        self._known: dict[str, Mapping[str, Any] | None] = {}

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
        """Register a model file if the policy wants it; return a sentence on it, or "".

        The metrics are those of an evaluation under a condition (`350 static + 80 moving`); a final
        model without any keeps those of its file. `save` is the number of the checkpoint that is
        saved with the model, 0 if there is none.

        Raises:
            RegistryError: it could not be registered, and `registry.continue_on_upload_failure` is
            off.
        """
        if not self.policy.name:
            return ""
        model = UnregisteredModel(file, file, iteration, dict(metrics), condition, final, save)
        try:
            told = self._register_all([*self._waiting, model], LAST_DEADLINE if final else DEADLINE)
        finally:
            self._waited = 0.0
        told, self._message = "; ".join(filter(None, (self._message, told))), ""
        return told

    def wants(self, metrics: Mapping[str, float], condition: str, save: int = 0) -> bool:
        """Return whether the policy wants a model with these metrics at checkpoint `save`.

        If the registry cannot be used, its last known state decides. This call and the `publish`
        that follows wait for it one second together.
        """
        if not self.policy.name:
            return False
        self._waited = 0.0
        told = self._register_all([*self._waiting], DEADLINE)
        self._message = "; ".join(filter(None, (self._message, told)))
        best = self._known.get(condition)
        with suppress(*FAILURES), self._registry(DEADLINE) as registry:
            best = self._best(registry, condition)
        for model in self._waiting:
            if model.condition == condition and is_better(self.policy, model.metrics, best):
                best = model.metrics
        wanted = bool(decide(self.policy, save, metrics, best))
        self._waited = self._waited if wanted else 0.0
        return wanted

    def due(self, save: int) -> bool:
        """Return whether the policy may want the model of checkpoint `save` without metrics."""
        interval = self.policy.upload_frequency if self.policy.name else 0
        return bool(interval) and save > 0 and save % interval == 0

    def tag_final_evaluation(self, file: Path, rows: Mapping[str, Mapping[str, Any]]) -> str:
        """Tag the version of a file with the results of the final evaluation; return it.

        `rows` are summaries by scenario, as `evaluation.json` has them.
        """
        label = self._labels.get(file, "")
        if not label:
            return ""
        try:
            with Registry(deadline=LAST_DEADLINE) as registry:
                registry.tag(label, {HELD_OUT: held_out_text(rows)})
        except FAILURES as error:
            warnings.warn(
                f"the results of {label} were not added to the registry: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        return label

    def close(self) -> None:
        """Retry the models that are left; warn with the command that registers them by hand.

        Raises:
            RegistryError: something is left, and `registry.continue_on_upload_failure` is off.
        """
        failure = None
        self._waited = 0.0
        try:
            self._register_all([*self._waiting], LAST_DEADLINE)
        except RegistryError as error:
            failure = error
        for model in self._waiting:
            alias = " --alias final" if model.final else ""
            command = f"navrl models register {self.policy.name} {model.file}{alias}"
            warnings.warn(
                f"the model of iteration {model.iteration} is not registered. When the registry "
                f"can be used again: `{command}`",
                RuntimeWarning,
                stacklevel=2,
            )
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        # the first error is the one to raise
        with suppress(*(() if exception[0] is None else (RegistryError,))):
            self.close()

    def _register_all(self, models: Sequence[UnregisteredModel], limit: float) -> str:
        """Register models in order, keep those that fail for later, and return a sentence.

        While another process holds the registry's lock, no newer model is tried: versions are
        numbered in the order of the training. After any other failure the next model is tried.

        Raises:
            RegistryError: a model failed more than `registry.max_retries` times after the first,
            and `registry.continue_on_upload_failure` is off. All models were kept or registered.
        """
        told, stopped, failure = [], False, None
        for model in models:
            if not stopped:
                try:
                    told.append(self._attempt(model, limit))
                    continue
                except FAILURES as error:
                    self._keep(model)
                    out_of_time = limit < LAST_DEADLINE and self._waited >= limit
                    stopped = is_locked(error) or out_of_time
                    failure = failure or self._failed(model, error)
            self._keep(model)
        if failure is not None:
            raise failure
        return "; ".join(filter(None, told))

    def _attempt(self, model: UnregisteredModel, limit: float) -> str:
        """Register one model and take it off the waiting list; return a sentence on it."""
        model.attempts += 1
        with self._registry(limit) as registry:
            told = self._register(registry, model)
            if told:
                self._prune(registry)
        if model in self._waiting:
            self._waiting.remove(model)
            drop(model)
            return told or (f"the waiting model of iteration {model.iteration} is no longer wanted")
        return told

    def _failed(self, model: UnregisteredModel, error: Exception) -> RegistryError | None:
        """Warn of a new failure; return it as an error if the policy makes it one."""
        told = f"the model of iteration {model.iteration} was not registered: {error}"
        if model.attempts > self.policy.max_retries and not self.policy.continue_on_upload_failure:
            failure = RegistryError(f"{told}; it is kept in {model.file}")
            failure.__cause__ = error
            return failure
        known = {other.failure for other in self._waiting}
        model.failure = str(error)
        if model.failure not in known:
            told += f"; it is kept in {model.file}, and registered as soon as that is possible"
            warnings.warn(told, RuntimeWarning, stacklevel=4)
        return None

    @contextmanager
    def _registry(self, limit: float) -> Iterator[Registry]:
        """Open the registry; wait for its lock no longer than what is left of the limit."""
        start = time.monotonic()
        try:
            with Registry(deadline=max(0.0, limit - self._waited)) as registry:
                yield registry
        finally:
            self._waited += time.monotonic() - start

    def _register(self, registry: Registry, model: UnregisteredModel) -> str:
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
        others = [alias for alias in aliases if alias != "latest"]
        self.tracking.artifact(model.file, name, others, _metadata(model, version))
        if "best" in action.aliases:
            self._known[model.condition] = model.metrics
        return f"registered as {version.label}: {action.reason}"

    def _prune(self, registry: Registry) -> None:
        """Prune old versions after a new one; a failure only warns."""
        if self.policy.keep_last_n:
            try:
                registry.prune(self.policy.name, self.policy.keep_last_n)
            except FAILURES as error:
                warnings.warn(
                    f"old versions of {self.policy.name} were not pruned: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _keep(self, model: UnregisteredModel) -> None:
        """Put a model on the waiting list; it replaces one of the same iteration."""
        if model not in self._waiting:
            with suppress(OSError):  # a full disk: the training's own file is all there is
                keep(model, self._folder)
            self._waiting = [other for other in self._waiting if other.file != model.file]
            self._waiting.append(model)

    def _best(self, registry: Registry, condition: str) -> Mapping[str, Any] | None:
        """Return the metrics of the best registered model of a condition."""
        name = self.policy.name
        known = (
            registry.versions(name)
            if any(model.name == name for model in registry.models())
            else []
        )
        best: Mapping[str, Any] | None = None
        for version in known:
            if version.tags.get("condition", "") == condition and is_better(
                self.policy, version.metrics, best
            ):
                best = version.metrics
        self._known[condition] = best
        return best

    def _parentage(self, registry: Registry) -> dict[str, str]:
        """Return the parent version of this training's models, if the registry has it."""
        with suppress(RegistryError):
            return {"parent": registry.resolve(self.parent).label} if self.parent else {}
        return {}

    def _aliases(self, registry: Registry, aliases: Sequence[str], condition: str) -> list[str]:
        """Return the aliases of a version; `best` only if no other condition has it."""
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


def _metadata(model: UnregisteredModel, version: ModelVersion) -> dict[str, Any]:
    """Return what the trackers are told about a version."""
    return {
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
