"""`navrl.evaluate`: how well a policy does on episodes that it was not trained on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from navrl.api.call_settings import as_overrides, console_for, features_of
from navrl.api.evaluation_result import Evaluation
from navrl.api.flight_report import fly_and_report
from navrl.api.foreign_report import play_and_report
from navrl.api.training_run import Run
from navrl.config import NAVIGATION, Config, load_config, our_overrides
from navrl.environments.foreign_evaluation import task_for
from navrl.errors import ConfigError, shown
from navrl.evaluation import Policy, load_policy
from navrl.evaluation.scenarios import parse_scenarios
from navrl.rl.networks.build import MakeFeatures
from navrl.training.run_folder import make_folder

__all__ = ["PolicyLike", "evaluate", "evaluate_policies"]

# a policy, what `load_policy` finds, a run, or any function from observation parts to actions
PolicyLike = Policy | Run | str | os.PathLike[str] | Callable[[dict[str, Any]], Any]


def evaluate(
    policy: PolicyLike,
    *others: PolicyLike,
    scenario: str | Sequence[str] | None = None,
    episodes: int | None = None,
    worlds: int | None = None,
    config: Mapping[str, Any] | Sequence[str] = (),
    env: Any = None,
    network: Any = None,
    folder: str | os.PathLike[str] | None = None,
    verbose: bool = False,
) -> Evaluation:
    """Play episodes with a policy, deterministic, and return how they ended; as `navrl eval` does.

    Args:
        policy: a `Policy`, a name (`pretrained`, `orca`, ...), a model file, a run or its folder,
            a name in the registry, or a function from observation parts to actions.
        *others: compared with the first on the same episodes.
        scenario: of the navigation task: a name, or several; None: standard and crossing.
        episodes: of each scenario, or of the environment; None: `flight.episodes`.
        worlds: unseen worlds of the navigation task; None: `flight.worlds`.
        config: further settings, such as `["env.num_obstacles=500"]` or `{"flight.seed": 1}`.
        env: an environment, or a function that makes one; None: that of the policy's training.
        network: the network of the user's own that the policy was trained with.
        folder: for `evaluation.json`, recordings and pictures; None: nothing is written.
        verbose: print tables and progress.

    Raises:
        ConfigError: there is no such policy or scenario, or a setting is wrong.

    >>> import navrl
    >>> result = navrl.evaluate("straight", scenario="light", episodes=4, worlds=1)
    >>> 0 <= result["light"]["success_rate"] <= 1
    True
    """
    names = scenario.split(",") if isinstance(scenario, str) else scenario
    chosen = None if names is None else parse_scenarios(",".join(names))
    options = {"flight.episodes": episodes, "flight.worlds": worlds}
    overrides = our_overrides(
        [
            *as_overrides(config),
            *(f"{key}={value}" for key, value in options.items() if value is not None),
        ]
    )
    settings, typed = load_config(overrides), {one.split("=", 1)[0] for one in overrides}
    if folder is None:
        settings.flight.recorded = 0
    else:
        make_folder(Path(folder), "folder")
    target = network if isinstance(network, str) else settings.network.target
    make = features_of(network) or target or None
    given = env if env is not None else _environment_of(policy)
    policies = [_policy(one, settings, make) for one in (policy, *others)]
    return evaluate_policies(
        policies,
        [one.name for one in policies],
        settings,
        typed,
        console_for(verbose),
        names=chosen,
        env=given,
        folder=None if folder is None else Path(folder),
    )


def evaluate_policies(
    policies: Sequence[Policy],
    references: Sequence[str],
    config: Config,
    typed: set[str],
    console: Console,
    *,
    names: Sequence[str] | None = None,
    env: Any = None,
    folder: Path | None = None,
    print_json: bool = False,
) -> Evaluation:
    """Fly scenarios of the navigation task, or play episodes of another environment.

    Args:
        policies: deterministic, evaluated on the same episodes.
        references: how the user calls them.
        config: task and episodes.
        typed: dotted keys that the user typed.
        console: for tables and progress.
        names: of scenarios.
        env: an environment that the caller made, or a function that makes one.
        folder: for the results; None: nothing is written.
        print_json: print the JSON instead of tables.

    Raises:
        ConfigError: a policy does not go with the task, or a file could not be written.
    """
    foreign = env is not None or config.env.name != NAVIGATION
    if not foreign and not any(policy.environment for policy in policies):
        return fly_and_report(
            policies, references, config, typed, folder, console, names=names, print_json=print_json
        )
    if names is not None:
        raise ConfigError("only the navigation task has scenarios; leave them out")
    pilots = [policy.name for policy in policies if policy.task is not None]
    if pilots:
        raise ConfigError(f"{pilots[0]} flies only in the navigation task (env=navigation)")
    tasks = [task_for(policy, config, typed, env) for policy in policies]
    return play_and_report(policies, references, tasks, folder, console, print_json=print_json)


def _policy(value: PolicyLike, config: Config, network: MakeFeatures | str | None) -> Policy:
    if isinstance(value, Policy):
        return value
    if isinstance(value, Run):
        return value.policy
    if isinstance(value, str | os.PathLike):
        return load_policy(os.fspath(value), config.task, network=network)
    if not callable(value):
        raise ConfigError(
            f"the policy is {shown(value)}; expected a Policy, what navrl.load_policy finds, a "
            "run, or a function from observation parts to actions"
        )
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    return Policy(str(name or type(value).__name__), value)


def _environment_of(policy: PolicyLike) -> Any:
    """Return the environment that the caller of `navrl.train` made, if the policy is its run."""
    return policy.given.env if isinstance(policy, Run) else None
