"""What is reported about every episode that has ended."""

from __future__ import annotations

# Statistics of an episode. While it runs, some columns hold sums; they are made final when it ends.
STATISTICS = (
    "return",
    "length",
    "success_050",
    "success_100",
    "static_collision",
    "dynamic_collision",
    "out_of_bounds",
    "time_out",
    "at_goal",
    "path_length",
    "mean_speed",
    "min_clearance",
    "time_to_goal",
    "distance",
    "world",
    "reward_progress",
    "reward_alive",
    "reward_static",
    "reward_dynamic",
    "reward_smoothness",
    "reward_height",
    "reward_goal",
    "reward_collision",
)
