"""When a training registers and uploads its model, and how many versions are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from navrl.errors import ConfigError
from navrl.registry.metric_names import check_metric, metric_value
from navrl.registry.model_names import check_name

__all__ = ["Action", "UploadConditions", "UploadPolicy", "decide", "is_better"]

DIRECTIONS = ("max", "min")


@dataclass
class UploadConditions:
    """Keys `registry.upload_conditions.*`: what a model must reach; null: no condition."""

    min_reward_threshold: float | None = None  # mean return of the evaluation
    min_success_rate: float | None = None  # share of the episodes, 0 to 1

    def check(self) -> None:
        """Raise a ConfigError that names the first invalid setting."""
        threshold, rate = self.min_reward_threshold, self.min_success_rate
        if threshold is not None and not math.isfinite(threshold):
            raise ConfigError(
                f"registry.upload_conditions.min_reward_threshold is {threshold}; expected a "
                "number, or null"
            )
        if rate is not None and not 0 <= rate <= 1:
            raise ConfigError(
                f"registry.upload_conditions.min_success_rate is {rate}; expected a share, 0 to "
                "1, or null"
            )


@dataclass
class UploadPolicy:
    """Keys `registry.*`: when a model is registered and uploaded, and how many are kept."""

    # of the model in the registry, for other tasks that of the environment; empty: not registered
    name: str = "navigation"
    upload_frequency: int = 0  # upload every n-th checkpoint; 0: only the best and the final one
    save_best_models: bool = True  # register a model that is better than all before
    best_model_metric: str = "success_100"  # also decides which model is RUN/model.pt
    best_model_mode: str = "max"  # or min, if less is better
    upload_conditions: UploadConditions = field(default_factory=UploadConditions)
    upload_final_model: bool = True  # even if the conditions do not hold
    keep_last_n: int = 5  # versions, beside those with an alias or a stage; 0: all
    max_retries: int = 3  # after the first attempt has failed
    continue_on_upload_failure: bool = True  # else a failed upload ends the run

    def check(self) -> None:
        """Raise a ConfigError that names the first invalid setting."""
        if self.name:
            check_name(self.name)
        self.upload_conditions.check()
        limits = {
            "upload_frequency": (0, 1 << 31),
            "keep_last_n": (0, 1 << 31),
            "max_retries": (0, 1000),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"registry.{name} is {getattr(self, name)}; expected {low} to {high}"
                )
        if self.best_model_mode not in DIRECTIONS:
            raise ConfigError(
                f"registry.best_model_mode is {self.best_model_mode!r}; expected one of "
                f"{', '.join(DIRECTIONS)}"
            )
        check_metric("registry.best_model_metric", self.best_model_metric)


class Action(NamedTuple):
    """One thing to do.

    `upload`: register the model with the aliases, and send it to the trackers. `prune`: remove old
    versions.
    """

    what: Literal["upload", "prune"]
    aliases: tuple[str, ...] = ()
    reason: str = ""


def decide(
    policy: UploadPolicy,
    save: int,
    metrics: Mapping[str, Any],
    best: float | Mapping[str, Any] | None = None,
    final: bool = False,
) -> list[Action]:
    """Return what to do with a model, in order; an empty list for nothing.

    A model is uploaded once, however many reasons there are; its aliases name them all. A metric
    that is missing or not finite is never best, and fulfils no condition.

    Args:
        policy: the settings.
        save: the number of the checkpoint being saved, from 1; 0 if none is.
        metrics: of this model's evaluation; empty if there was none.
        best: of the best model uploaded so far: its value of the metric, or all its metrics.
        final: whether the training has ended.
    """
    aliases: list[str] = []
    reasons: list[str] = []
    qualified = conditions_hold(policy, metrics)
    if qualified and policy.upload_frequency and save > 0 and save % policy.upload_frequency == 0:
        reasons.append(f"every {policy.upload_frequency} checkpoints")
    if qualified and policy.save_best_models and is_better(policy, metrics, best):
        aliases.append("best")
        reasons.append(told_best(policy, metrics))
    if final and policy.upload_final_model:
        aliases.append("final")
        reasons.append("end of the training")
    if not reasons:
        return []
    upload = Action("upload", ("latest", *aliases), ", ".join(reasons))
    return (
        [upload, Action("prune", reason=f"keep the last {policy.keep_last_n}")]
        if policy.keep_last_n
        else [upload]
    )


def is_better(
    policy: UploadPolicy, metrics: Mapping[str, Any], best: float | Mapping[str, Any] | None
) -> bool:
    """Return whether a model is strictly better than the best so far.

    Models are ranked by `best_model_metric`, then by clearance, then by return; a bare number as
    `best` has neither of the latter.
    """
    own = _rank(policy, metrics)
    if own is None:
        return False
    if isinstance(best, Mapping):
        other = _rank(policy, best)
        return other is None or own > other
    if best is None or not math.isfinite(best):
        return True
    return own[0] > (best if policy.best_model_mode == "max" else -best)


def told_best(policy: UploadPolicy, metrics: Mapping[str, Any]) -> str:
    """Return the metric of a best model and its value: `best mean_reward 12.3`."""
    value = metric_value(metrics, policy.best_model_metric)
    return f"best {policy.best_model_metric}" + ("" if value is None else f" {value:.4g}")


def _rank(policy: UploadPolicy, metrics: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return the sort key of a model, higher is better; None without the policy's metric."""
    value = metric_value(metrics, policy.best_model_metric)
    if value is None:
        return None
    clearance, reward = (metric_value(metrics, name) for name in ("min_clearance", "mean_return"))
    return (
        value if policy.best_model_mode == "max" else -value,
        0.0 if clearance is None else clearance,
        -math.inf if reward is None else reward,
    )


def conditions_hold(policy: UploadPolicy, metrics: Mapping[str, Any]) -> bool:
    """Return whether a model fulfils all conditions."""
    asked = policy.upload_conditions
    for least, name in (
        (asked.min_reward_threshold, "mean_return"),
        (asked.min_success_rate, "success_100"),
    ):
        if least is not None:
            value = metric_value(metrics, name)
            if value is None or value < least:
                return False
    return True
