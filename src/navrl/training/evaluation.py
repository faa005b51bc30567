"""Evaluation while a policy learns, spread over the processes of the team."""

from __future__ import annotations

from navrl.environments.task import Task
from navrl.evaluation import Act, Flights
from navrl.rl.environment import Environment
from navrl.training.distributed.team import Team

__all__ = ["evaluate_together"]


def evaluate_together(task: Task, act: Act, env: Environment, team: Team) -> dict[str, Flights]:
    """Return all episodes by condition at the leader, and nothing elsewhere."""
    try:
        episodes = task.evaluate(act, env, team.rank, team.size)
        own = {label: vars(flights) for label, flights in episodes.items()}
    except Exception:
        if team.leads:
            # the others are sending; then they wait for the leader's next step
            team.gather(None)
        raise
    all_ranks = team.gather(own)
    if not team.leads:
        return {}
    return {
        label: Flights.joined([Flights(**flights[label]) for flights in all_ranks]) for label in own
    }
