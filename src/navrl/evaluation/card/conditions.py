"""The conditions of the robustness card, as data: one line each. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CONDITIONS", "NOMINAL", "SPEED_LIMIT", "Condition"]

NOMINAL = "nominal"
SPEED_LIMIT = "env.action_limit"  # commands of the policy are scaled to this limit


@dataclass(frozen=True)
class Condition:
    """One row of the card: settings over those of the scenario."""

    group: str
    name: str
    settings: Mapping[str, Any]


def _traffic(count: int, speed: str, slowest: float, fastest: float) -> Condition:
    """Return moving obstacles of another number and speed."""
    return Condition(
        "moving obstacles",
        f"{count}, {speed}",
        {"env_dyn.num_obstacles": count, "env_dyn.vel_range": [slowest, fastest]},
    )


CONDITIONS = (
    Condition(NOMINAL, "as the scenario", {}),
    Condition("LiDAR", "noise 0.05 m", {"sensor.noise": 0.05}),
    Condition("LiDAR", "noise 0.2 m", {"sensor.noise": 0.2}),
    Condition("LiDAR", "5 % of rays dropped", {"sensor.dropout": 0.05}),
    Condition("LiDAR", "20 % of rays dropped", {"sensor.dropout": 0.2}),
    Condition("detection", "10 % missed", {"sensor.detection_dropout": 0.1}),
    Condition("detection", "30 % missed", {"sensor.detection_dropout": 0.3}),
    Condition("detection", "50 % missed", {"sensor.detection_dropout": 0.5}),
    Condition("detection", "noise 0.1 m", {"sensor.detection_noise": 0.1}),
    Condition("detection", "noise 0.3 m", {"sensor.detection_noise": 0.3}),
    Condition("own position", "noise 0.1 m", {"sensor.position_noise": 0.1}),
    Condition("own position", "noise 0.3 m", {"sensor.position_noise": 0.3}),
    Condition("observation delay", "1 decision", {"sensor.observation_delay": 1}),
    Condition("observation delay", "2 decisions", {"sensor.observation_delay": 2}),
    Condition("control delay", "up to 80 ms", {"drone.delay": 5}),
    Condition("control delay", "up to 160 ms", {"drone.delay": 10}),
    Condition(
        "response",
        "first order, 0.5 s",
        {"drone.model_name": "first_order", "drone.time_constant": 0.5},
    ),
    Condition(
        "response",
        "first order, 0.8 s",
        {"drone.model_name": "first_order", "drone.time_constant": 0.8},
    ),
    Condition("wind", "up to 2 m/s", {"drone.wind": 2.0}),
    Condition("wind", "up to 5 m/s", {"drone.wind": 5.0}),
    Condition("mass", "within 10 %", {"drone.mass_variation": 0.1}),
    Condition("mass", "within 30 %", {"drone.mass_variation": 0.3}),
    # the time limit is that of the same trips at the scenario's 2 m/s
    Condition("speed limit", "1 m/s", {SPEED_LIMIT: 1.0, "env.max_episode_length": 4400}),
    Condition("speed limit", "1.5 m/s", {SPEED_LIMIT: 1.5, "env.max_episode_length": 2934}),
    Condition("speed limit", "3 m/s", {SPEED_LIMIT: 3.0}),
    _traffic(40, "0.25 - 0.75 m/s", 0.25, 0.75),
    _traffic(40, "0.5 - 1.5 m/s", 0.5, 1.5),
    _traffic(40, "1 - 3 m/s", 1.0, 3.0),
    _traffic(80, "0.25 - 0.75 m/s", 0.25, 0.75),
    _traffic(80, "1 - 3 m/s", 1.0, 3.0),
    _traffic(120, "0.25 - 0.75 m/s", 0.25, 0.75),
    _traffic(120, "0.5 - 1.5 m/s", 0.5, 1.5),
    _traffic(120, "1 - 3 m/s", 1.0, 3.0),
    Condition(
        "combined",
        "30 % missed + noise + 1 decision late",
        {
            "sensor.detection_dropout": 0.3,
            "sensor.detection_noise": 0.1,
            "sensor.noise": 0.05,
            "sensor.position_noise": 0.1,
            "sensor.observation_delay": 1,
        },
    ),
)
