"""A robot in one file: what it measures, how it moves, what it sees; three of them come with the
package.
"""

from navrl.sim.robots.robot_file import (
    as_built,
    load_robot,
    measuring_errors,
    robot_names,
    robot_text,
)
from navrl.sim.robots.robot_keys import MEASURING, ROBOT_KEYS, Robot, differences, robot_of

__all__ = [
    "MEASURING",
    "ROBOT_KEYS",
    "Robot",
    "as_built",
    "differences",
    "load_robot",
    "measuring_errors",
    "robot_names",
    "robot_of",
    "robot_text",
]
