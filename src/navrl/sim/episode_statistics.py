"""What is reported about every episode that has ended."""

from __future__ import annotations

from navrl.sim.settings import REWARD_TERMS

__all__ = ["FAILURES", "STATISTICS"]

# Endings without success, in the order in which lists show them.
FAILURES = ("static_collision", "dynamic_collision", "out_of_bounds", "time_out")

# Lengths and distances in m, times in s, `length` in simulated steps; outcomes are 0 or 1.
STATISTICS = (
    "return",
    "length",
    "success_050",  # came within 0.5 m of the target before any collision
    "success_100",
    *FAILURES,
    "at_goal",  # within `env.goal_radius` when the episode ended
    "path_length",
    "mean_speed",
    "min_clearance",
    "time_to_goal",  # until within 1 m; 0 if it never was
    "distance",  # from start to target
    "world",
    *(f"reward_{term.name}" for term in REWARD_TERMS),  # sums over the episode, weighted
)
