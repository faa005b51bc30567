"""Evaluation of a policy in an environment of another library: a table, and numbers in a file."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from rich.console import Console
from rich.table import Table

from navrl.config import NAVIGATION, Config
from navrl.environments.foreign import EPISODES, FINAL_SEED, ForeignTask
from navrl.environments.table import find_task
from navrl.errors import ConfigError, shown
from navrl.evaluation import Policy
from navrl.evaluation.episodes import play_episodes
from navrl.evaluation.flights import Flights

__all__ = ["episode_table", "play", "task_for"]


def task_for(
    policy: Policy, config: Config, typed: Collection[str], env: Any = None
) -> ForeignTask:
    """Return the task that a policy is evaluated in: the one given, typed, or of its training.

    Code that a model file names is not run, unless the user has typed its name too.

    Raises:
        ConfigError: the policy's environment cannot be made.
    """
    if env is not None:
        config = copy.deepcopy(config)
        config.env.name = "python"
        config.env.options = dict((policy.environment or {}).get("options", config.env.options))
    elif config.env.name == NAVIGATION:
        config = _recorded(policy, config, typed)
    if "flight.episodes" not in typed:
        config.flight.episodes = EPISODES
    task = find_task(config, env)
    if not isinstance(task, ForeignTask):
        raise ConfigError(
            f"{policy.name} was trained in {shown(dict(policy.environment or {}))}; expected env= "
            "and its settings, as in its training"
        )
    return task


def _recorded(policy: Policy, config: Config, typed: Collection[str]) -> Config:
    """Return the settings with the environment that a policy's file names."""
    found, chosen = dict(policy.environment or {}), copy.deepcopy(config)
    for key in ("name", "id", "target", "options", "num_envs"):
        value, present = found.get(key), getattr(chosen.env, key)
        if f"env.{key}" in typed:
            found[key] = present
        elif not isinstance(value, type(present)):
            raise ConfigError(f"{policy.name}: env.{key} is {shown(value)} in its file")
        else:
            setattr(chosen.env, key, value)
    code = found["target"] or (found["id"] if ":" in found["id"] else "")
    key = "env.target" if found["target"] else "env.id"
    if code and key not in typed:
        raise ConfigError(
            f"{policy.name} was trained with {key}={code}, and code that a file names is not run; "
            f"if you trust it, type env={found['name']} {key}={code} too"
        )
    return chosen


def play(policy: Policy, task: ForeignTask, console: Console) -> Flights:
    """Play `flight.episodes` episodes with seeds that training has not used; return them."""
    flight = task.config.flight
    num_envs = min(task.config.env.num_envs, flight.episodes)
    env = task.factory(num_envs, FINAL_SEED)
    with console.status(f"{task.name}: playing {flight.episodes} episodes"):
        return play_episodes(env, policy, flight.episodes, seed=FINAL_SEED + flight.seed * num_envs)


def episode_table(rows: dict[str, dict[str, Any]], title: str = "") -> Table:
    """Return the results of an evaluation as a table."""
    table = Table(title=title, title_justify="left")
    for heading in ("environment", "episodes", "return", "length", "success"):
        table.add_column(heading, justify="left" if heading == "environment" else "right")
    for label, row in rows.items():
        success = row.get("success_rate")
        table.add_row(
            label,
            str(row["episodes"]),
            f"{row['mean_return']:.2f} ± {row['std_return']:.2f}",
            f"{row['mean_length']:.1f}",
            "-" if success is None else f"{100 * success:.1f} %",
        )
    return table
