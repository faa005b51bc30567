"""Start the navrl node.

    ros2 launch navrl_ros navrl.launch.py policy:=/path/to/out options:="--no-dry-run --shield"

`navrl` must be installed in the Python environment that this runs in: pip install 'navrl[deploy]'.
"""

import shlex

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch.substitutions import LaunchConfiguration

ARGUMENTS = {
    "policy": (None, "the folder that `navrl export` wrote"),
    "frame": ("map", "the world frame"),
    "odometry": ("/odom", "nav_msgs/msg/Odometry"),
    "command_topic": ("/cmd_vel", "where commands go"),
    "options": ("", "further options of `navrl node`, such as --no-dry-run --shield"),
}


def command(policy, frame, odometry, command_topic, options):
    """Return the command line of the node."""
    words = ["navrl", "node", "--transport", "ros2", "--policy", policy, "--frame", frame]
    words += ["--remap", f"odometry={odometry}", "--remap", f"command={command_topic}"]
    return words + shlex.split(options)


def start(context):
    """Return the process of the node."""
    values = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    return [ExecuteProcess(cmd=command(**values), output="screen")]


def generate_launch_description():
    """Return what `ros2 launch` starts."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=about)
        for name, (default, about) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])
