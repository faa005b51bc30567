"""Episodes of any environment, played with a deterministic policy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from navrl.errors import ConfigError
from navrl.evaluation.flights import Flights
from navrl.rl.environment import Environment

__all__ = ["play_episodes", "summary_of_episodes"]

LONGEST = 100_000  # steps within which an episode must end


@torch.no_grad()
def play_episodes(
    env: Environment,
    act: Callable[[dict[str, Tensor]], Tensor],
    episodes: int,
    *,
    seed: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Flights:
    """Return the statistics of at least so many episodes.

    Every environment of the batch plays the same number, so that short episodes do not count more
    than long ones.

    Args:
        env: begins new episodes, and is left in the middle of others.
        act: the deterministic action for observation parts by name, (N, *shape) each.
        episodes: how many; rounded up to a multiple of the environments.
        seed: of the episodes; None: they follow those before.
        progress: called with the number of ended and of all episodes.

    Raises:
        ConfigError: an episode has not ended within 100 000 steps.
    """
    each = -(-episodes // env.num_envs)
    rows = env.reset(seed=seed)
    step = env.make_step()
    played = torch.zeros(env.num_envs, dtype=torch.long)
    found: list[Tensor] = []
    members: list[Tensor] = []
    for _ in range(LONGEST * each):
        env.step(act(env.observation.split(rows)), out=step)
        ended = torch.nonzero((step.terminated | step.truncated) & (played < each))[:, 0]
        found.append(step.statistics[ended].clone())
        members.append(ended)
        played[ended] += 1
        rows = step.packed
        if len(ended):
            progress(int(played.sum()), each * env.num_envs)
        if bool((played == each).all()):
            columns = torch.cat(found).unbind(1)
            return Flights(dict(zip(env.statistics, columns, strict=True)), torch.cat(members))
    raise ConfigError(
        f"an episode did not end within {LONGEST} steps of an evaluation; give the environment a "
        "time limit"
    )


def summary_of_episodes(episodes: Flights) -> dict[str, object]:
    """Return the means of all statistics that the environment gave, under the names of metrics."""
    means = {
        name: values.double().mean().item()
        for name, values in episodes.statistics.items()
        if not bool(values.isnan().any())
    }
    totals = episodes.statistics["return"].double()
    row: dict[str, object] = {
        "episodes": len(totals),
        "mean_return": means["return"],
        "std_return": totals.std().item() if len(totals) > 1 else 0.0,
        "mean_length": means["length"],
        "mean_reward": means["return"],
        "episode_length": means["length"],
    }
    if "success" in means:
        row["success_rate"] = means["success"]
    return row | {"statistics": means}
