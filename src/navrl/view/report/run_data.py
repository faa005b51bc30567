"""What the folder of a run says, read as far as it is there: a run may still be training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from navrl.errors import ConfigError, ContainerError
from navrl.evaluation.recording import Recording
from navrl.metrics_log import MetricsLog

__all__ = ["Failure", "RunData", "differing", "group_by_settings", "read_run"]

# Settings that two runs of the same experiment may differ in.
PERSONAL = {
    "headless",
    "mlflow",
    "registry",
    "resume",
    "resume_checkpoint",
    "run_folder",
    "seed",
    "tracker",
    "wandb",
}
PER_ITERATION = ("data_collection", "policy_training", "rollout_save")


@dataclass(frozen=True)
class Failure:
    """A recorded flight that did not reach its goal."""

    scenario: str
    episode: int
    outcome: str


@dataclass(frozen=True)
class RunData:
    """Everything about one run that a report shows."""

    name: str
    path: Path
    settings: Mapping[str, Any]  # by dotted key
    about: Mapping[str, Any]  # run.json
    train: Sequence[Mapping[str, Any]]  # records of metrics.jsonl, by kind
    evaluations: Sequence[Mapping[str, Any]]
    performance: Sequence[Mapping[str, Any]]
    held_out: Mapping[str, Mapping[str, Any]]  # conditions of evaluation.json, by label
    failures: Sequence[Failure] = field(default_factory=list)
    checkpoint_bytes: int = 0  # of all checkpoints that are kept

    @property
    def seed(self) -> Any:
        """The seed, or None if the settings are lost."""
        return self.settings.get("seed")

    @property
    def replay(self) -> Path | None:
        """The page that replays the flights of the last evaluation, if there is one."""
        path = self.path / "replay.html"
        return path if path.is_file() else None

    @property
    def frames(self) -> int:
        """Decisions so far."""
        records = [*self.train[-1:], *self.evaluations[-1:]]
        return max((int(record.get("frames", 0)) for record in records), default=0)

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds until the last evaluation."""
        return next((r["seconds"] for r in reversed(self.evaluations) if r.get("seconds")), None)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.about.get("finished")) or bool(self.held_out)

    def phase_seconds(self) -> dict[str, float]:
        """Return the total seconds of each phase, the longest first."""
        if not self.performance:
            return {}
        last = self.performance[-1]
        known = {
            key.removeprefix("seconds/"): float(value)
            for key, value in last.items()
            if key.startswith("seconds/") and value
        }
        totals = known or self._estimated_phases(last)
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def _estimated_phases(self, last: Mapping[str, Any]) -> dict[str, float]:
        """Return mean times how often; for runs of versions that did not log totals."""
        iterations = int(last["iteration"])
        counts = dict.fromkeys(PER_ITERATION, iterations)
        counts["evaluation"] = sum(r["iteration"] <= iterations for r in self.evaluations)
        counts["checkpoint_save"] = int(last.get("checkpoint/total_saved") or 0)
        means = {name: last.get(f"perf/{name}") for name in counts}
        return {name: mean * counts[name] for name, mean in means.items() if mean}


def read_run(path: Path) -> RunData:
    """Return what a run's folder says.

    Raises:
        ConfigError: the folder holds no metrics.
        ContainerError: a file of the run is damaged.
    """
    metrics = path / "metrics.jsonl"
    if not metrics.is_file():
        raise ConfigError(
            f"{path} holds no metrics.jsonl; expected the folder of a run, such as runs/mine"
        )
    records = MetricsLog.read(metrics)

    def of(kind: str) -> list[dict[str, Any]]:
        return [record for record in records if record["kind"] == kind]

    evaluation = _json(path / "evaluation.json")
    return RunData(
        name=path.resolve().name,
        path=path,
        settings=_settings(path / "config.yaml"),
        about=_json(path / "run.json"),
        train=of("train"),
        evaluations=of("eval"),
        performance=of("perf"),
        held_out=evaluation.get("conditions", {}),
        failures=_failures(path / "recordings"),
        checkpoint_bytes=sum(
            file.stat().st_size for file in (path / "checkpoints").glob("*") if file.is_file()
        ),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ContainerError(f"{path} is no JSON ({error}); move it away") from error
    if not isinstance(content, dict):
        raise ContainerError(f"{path} holds a {type(content).__name__}; expected an object")
    return content


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ContainerError(f"{path} is no YAML ({error}); move it away") from error
    return dict(_flat(content)) if isinstance(content, dict) else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested settings as pairs of a dotted key and a value."""
    pairs = []
    for key, value in values.items():
        inner = isinstance(value, dict) and value
        pairs += _flat(value, f"{prefix}{key}.") if inner else [(f"{prefix}{key}", value)]
    return pairs


def _failures(folder: Path) -> list[Failure]:
    failures = []
    for file in sorted(folder.glob("*.npz")):
        recording = Recording.load(file)
        failures += [
            Failure(recording.scenario, int(episode), outcome)
            for episode, outcome in zip(recording.episode, recording.outcome, strict=True)
            if outcome != "success_100"
        ]
    return failures


def differing(runs: Sequence[RunData]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ: the value of each run by key, None if unknown.

    A key that a run does not have, because another version wrote it, is no difference.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    found = {}
    for key in keys:
        known = [run.settings[key] for run in runs if key in run.settings]
        if any(value != known[0] for value in known):
            found[key] = [run.settings.get(key) for run in runs]
    return found


def group_by_settings(runs: Sequence[RunData]) -> list[list[int]]:
    """Return the numbers of runs that differ only by their seed, group by group."""
    groups: list[list[int]] = []
    for number, run in enumerate(runs):
        mine = next((group for group in groups if _same(runs[group[0]], run)), None)
        if mine is None:
            groups.append([number])
        else:
            mine.append(number)
    return groups


def _same(one: RunData, other: RunData) -> bool:
    """Return whether two runs are the same experiment."""
    return bool(one.settings and other.settings) and all(
        _personal(key) for key in differing([one, other])
    )


def _personal(key: str) -> bool:
    return key.split(".")[0] in PERSONAL
