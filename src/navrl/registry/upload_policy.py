"""When a training hands its model to the registry and its mirrors, and what is kept there: settings, and pure decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from navrl.errors import ConfigError
from navrl.registry.names import check_name

__all__ = ["Action", "UploadConditions", "UploadPolicy", "decide", "is_better", "metric_value"]

# One number has several names: that of our evaluations first, then those that other people's settings use.
REWARD_METRICS = ("mean_return", "mean_reward", "return", "reward")
SUCCESS_METRICS = ("success_100", "success", "success_rate")
DIRECTIONS = ("max", "min")


@dataclass
class UploadConditions:
    """Keys `registry.upload_conditions.*`: what a model must reach to be worth an upload; null asks for nothing."""

    min_reward_threshold: float | None = None  # mean return of the evaluation
    min_success_rate: float | None = None  # share of the episodes, 0 to 1

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        threshold, rate = self.min_reward_threshold, self.min_success_rate
        if threshold is not None and not math.isfinite(threshold):
            raise ConfigError(f"registry.upload_conditions.min_reward_threshold is {threshold}; expected a number, or null")
        if rate is not None and not 0 <= rate <= 1:
            raise ConfigError(f"registry.upload_conditions.min_success_rate is {rate}; expected a share, 0 to 1, or null")


@dataclass
class UploadPolicy:
    """Keys `registry.*`: when a model is registered and uploaded, and how many are kept."""

    name: str = "navigation"  # of the model in the registry; empty: nothing is registered
    upload_frequency: int = 0  # iterations; 0: only the best and the final one
    save_best_models: bool = True
    best_model_metric: str = "success_100"
    best_model_mode: str = "max"  # or min, where less is better
    upload_conditions: UploadConditions = field(default_factory=UploadConditions)
    upload_final_model: bool = True  # whatever the conditions say
    keep_last_n: int = 5  # versions, beside those with an alias or a stage; 0: all
    max_retries: int = 3  # after the first attempt has failed
    continue_on_upload_failure: bool = True

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        if self.name:
            check_name(self.name)
        self.upload_conditions.check()
        limits = {"upload_frequency": (0, 1 << 31), "keep_last_n": (0, 1 << 31), "max_retries": (0, 1000)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"registry.{name} is {getattr(self, name)}; expected {low} to {high}")
        if self.best_model_mode not in DIRECTIONS:
            raise ConfigError(f"registry.best_model_mode is {self.best_model_mode!r}; expected one of {', '.join(DIRECTIONS)}")
        if self.save_best_models and not self.best_model_metric:
            raise ConfigError("registry.best_model_metric is empty; name the metric that says which model is best")


class Action(NamedTuple):
    """One thing to do. `upload`: register the model with the aliases, hand it to the mirrors. `prune`: drop old versions."""

    what: Literal["upload", "prune"]
    aliases: tuple[str, ...] = ()
    reason: str = ""


def decide(
    policy: UploadPolicy, iteration: int, metrics: Mapping[str, Any], best: float | None = None, final: bool = False
) -> list[Action]:
    """Return what to do after an iteration, in order; nothing is an empty list.

    One model is uploaded once, however many reasons there are, and its aliases say them all. `metrics` are those of the
    evaluation of this iteration, empty if there was none; `best` is the best value of `best_model_metric` among the models
    that were uploaded so far. A metric that is missing or not finite is never best, and fulfils no condition.
    """
    aliases: list[str] = []
    reasons: list[str] = []
    worthy = conditions_hold(policy, metrics)
    if worthy and policy.upload_frequency and iteration > 0 and iteration % policy.upload_frequency == 0:
        reasons.append(f"every {policy.upload_frequency} iterations")
    if worthy and policy.save_best_models and is_better(policy, metrics, best):
        aliases.append("best")
        reasons.append(f"best {policy.best_model_metric}")
    if final and policy.upload_final_model:
        aliases.append("final")
        reasons.append("end of the training")
    if not reasons:
        return []
    upload = Action("upload", ("latest", *aliases), ", ".join(reasons))
    return [upload, Action("prune", reason=f"keep the last {policy.keep_last_n}")] if policy.keep_last_n else [upload]


def is_better(policy: UploadPolicy, metrics: Mapping[str, Any], best: float | None) -> bool:
    """Return whether a model is the best so far; one that is just as good is not."""
    value = metric_value(metrics, policy.best_model_metric)
    if value is None:
        return False
    if best is None or not math.isfinite(best):
        return True
    return value > best if policy.best_model_mode == "max" else value < best


def conditions_hold(policy: UploadPolicy, metrics: Mapping[str, Any]) -> bool:
    """Return whether a model reaches everything that the conditions ask for."""
    asked = policy.upload_conditions
    pairs = ((asked.min_reward_threshold, REWARD_METRICS), (asked.min_success_rate, SUCCESS_METRICS))
    for least, names in pairs:
        if least is not None:
            values = [value for name in names if (value := metric_value(metrics, name)) is not None]
            if not values or values[0] < least:
                return False
    return True


def metric_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric by its name, or by its name behind `eval/`; None if it is missing, no number, or not finite."""
    for key in (name, f"eval/{name}"):
        value = metrics.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None
