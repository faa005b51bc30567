"""A node's messages as ROS 2 messages, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from navrl.deploy.node_messages import (
    Arm,
    Array,
    Clock,
    Command,
    Diagnostics,
    EmergencyStop,
    Goal,
    LevelScan,
    Message,
    Odometry,
    Points,
    Rays,
    Scan,
    Tracks,
    rotated,
)
from navrl.deploy.ros.point_clouds import make_cloud, read_cloud
from navrl.deploy.tracks import COLUMNS
from navrl.errors import ConfigError, MessageError

Ros = dict[str, Any]
XYZ = ("x", "y", "z")
SCAN_FIELDS = (*XYZ, "range", "azimuth")
NAME = "navrl"  # of the node in /diagnostics
COMMANDS = ("twist", "twist_stamped", "position_target")
FRAMES = ("world", "body")
# mavros_msgs/msg/PositionTarget: a velocity in the local frame; no position, force or yaw
FRAME_LOCAL_NED = 1  # MAVROS turns ENU into NED
VELOCITY_ONLY = 1 + 2 + 4 + 64 + 128 + 256 + 1024 + 2048
COVARIANCE = np.zeros(36)


@dataclass(frozen=True)
class RosTopic:
    """The name and type of a topic."""

    name: str
    type: str


TOPICS: dict[str, RosTopic] = {
    "odometry": RosTopic("/odom", "nav_msgs/msg/Odometry"),
    "goal": RosTopic("/goal_pose", "geometry_msgs/msg/PoseStamped"),
    "scan": RosTopic("/navrl/scan", "sensor_msgs/msg/PointCloud2"),
    "level_scan": RosTopic("/scan", "sensor_msgs/msg/LaserScan"),
    "points": RosTopic("/points", "sensor_msgs/msg/PointCloud2"),
    "rays": RosTopic("/navrl/rays", "std_msgs/msg/Float64MultiArray"),
    "tracks": RosTopic("/navrl/tracks", "sensor_msgs/msg/PointCloud2"),
    "arm": RosTopic("/navrl/arm", "std_msgs/msg/Bool"),
    "emergency_stop": RosTopic("/emergency_stop", "std_msgs/msg/Bool"),
    "clock": RosTopic("/clock", "rosgraph_msgs/msg/Clock"),
    "diagnostics": RosTopic("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray"),
}
COMMAND_TOPICS = {
    "twist": RosTopic("/cmd_vel", "geometry_msgs/msg/Twist"),
    "twist_stamped": RosTopic("/cmd_vel", "geometry_msgs/msg/TwistStamped"),
    "position_target": RosTopic("/mavros/setpoint_raw/local", "mavros_msgs/msg/PositionTarget"),
}


class RosConversion:
    """Converts between a node's messages and ROS 2 messages, which are nested dicts.

    Args:
        command: the message that commands are sent in, one of `COMMANDS`.
        command_frame: `world`, or `body`: turned by the robot's yaw.
        remap: other names of topics, by the node's own: {"odometry": "/state"}.
    """

    def __init__(
        self,
        command: str = "twist",
        command_frame: str = "world",
        remap: Mapping[str, str] | None = None,
    ) -> None:
        if command not in COMMANDS or command_frame not in FRAMES:
            raise ConfigError(
                f"commands are {command!r} in the frame {command_frame!r}; expected one of "
                f"{', '.join(COMMANDS)} in {' or '.join(FRAMES)}"
            )
        self.command, self.command_frame = command, command_frame
        self.topics = TOPICS | {"command": COMMAND_TOPICS[command]}
        for own, name in (remap or {}).items():
            if own not in self.topics:
                raise ConfigError(
                    f"cannot rename {own!r}; expected one of {', '.join(self.topics)}"
                )
            self.topics[own] = RosTopic(name, self.topics[own].type)

    def to_ros(self, message: Message) -> Ros:
        """Return a message as ROS 2 knows it."""
        if isinstance(message, Command):
            return self._command(message)
        return _TO_ROS[message.topic](message)

    def from_ros(self, topic: str, message: Ros, now: float) -> Message:
        """Return a ROS 2 message as the node knows it.

        Args:
            topic: the node's own name of the topic.
            message: by field.
            now: when it arrived, for messages without a stamp.

        Raises:
            MessageError: the message cannot be used.
        """
        if topic == "command":
            return self._from_command(message, now)
        return _FROM_ROS[topic](message, now)

    def _command(self, message: Command) -> Ros:
        velocity = message.velocity
        if self.command_frame == "body":
            velocity = _turned(velocity, -message.yaw)
        if self.command == "position_target":
            return {
                "header": _header(message.stamp, message.frame),
                "coordinate_frame": FRAME_LOCAL_NED,
                "type_mask": VELOCITY_ONLY,
                "velocity": _xyz(velocity),
            }
        twist = {"linear": _xyz(velocity)}
        if self.command == "twist":
            return twist
        return {"header": _header(message.stamp, message.frame), "twist": twist}

    def _from_command(self, message: Ros, now: float) -> Command:
        stamp = _seconds(message["header"]["stamp"]) if "header" in message else now
        if self.command == "position_target":
            return Command(stamp, _array(message["velocity"]))
        twist = message["twist"] if self.command == "twist_stamped" else message
        return Command(stamp, _array(twist["linear"]))


# ---------------------------------------------------------------------- parts of messages


def _turned(vector: Array, angle: float) -> Array:
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y, z = vector
    return np.array([x * cosine - y * sine, x * sine + y * cosine, z])


def _stamp(seconds: float) -> Ros:
    whole = math.floor(seconds)
    nanoseconds = min(round((seconds - whole) * 1e9), 999_999_999)
    return {"sec": int(whole), "nanosec": int(nanoseconds)}


def _seconds(stamp: Ros) -> float:
    return float(stamp["sec"] + 1e-9 * stamp["nanosec"])


def _header(stamp: float, frame: str) -> Ros:
    return {"stamp": _stamp(stamp), "frame_id": frame}


def _xyz(vector: Array) -> Ros:
    return dict(zip(XYZ, map(float, vector), strict=True))


def _array(vector: Ros) -> Array:
    return np.array([vector["x"], vector["y"], vector["z"]])


# ---------------------------------------------------------------------- to ROS


def _odometry(message: Odometry) -> Ros:
    w, x, y, z = map(float, message.attitude)
    inverse = message.attitude * np.array([1.0, -1.0, -1.0, -1.0])
    velocity = rotated(inverse, message.velocity)  # an Odometry's twist is in the body frame
    pose = {"position": _xyz(message.position), "orientation": {"x": x, "y": y, "z": z, "w": w}}
    return {
        "header": _header(message.stamp, message.frame),
        "child_frame_id": message.body_frame,
        "pose": {"pose": pose, "covariance": COVARIANCE},
        "twist": {"twist": {"linear": _xyz(velocity)}, "covariance": COVARIANCE},
    }


def _goal(message: Goal) -> Ros:
    pose = {"position": _xyz(message.position), "orientation": {"w": 1.0}}
    return {"header": _header(message.stamp, message.frame), "pose": pose}


def _scan(message: Scan) -> Ros:
    azimuths, beams = message.ranges.shape
    azimuth = message.bearing + np.arange(azimuths) * 2 * math.pi / azimuths
    rows = np.zeros((azimuths, beams, len(SCAN_FIELDS)))
    rows[:, :, 0] = message.ranges * np.cos(azimuth)[:, None]
    rows[:, :, 1] = message.ranges * np.sin(azimuth)[:, None]
    rows[:, :, 3], rows[:, :, 4] = message.ranges, azimuth[:, None]
    header = _header(message.stamp, "")
    return make_cloud(header, SCAN_FIELDS, rows.reshape(-1, len(SCAN_FIELDS)), (azimuths, beams))


def _level_scan(message: LevelScan) -> Ros:
    last = message.first_angle + message.step * (len(message.ranges) - 1)
    return {
        "header": _header(message.stamp, message.frame),
        "angle_min": message.first_angle,
        "angle_max": last,
        "angle_increment": message.step,
        "range_min": 0.0,
        "range_max": 1e9,
        "ranges": message.ranges,
    }


def _points(message: Points) -> Ros:
    return make_cloud(_header(message.stamp, message.frame), XYZ, message.points)


def _tracks(message: Tracks) -> Ros:
    return make_cloud(_header(message.stamp, message.frame), COLUMNS, message.obstacles)


def _diagnostics(message: Diagnostics) -> Ros:
    status = {
        "level": message.level,
        "name": NAME,
        "message": message.message,
        "hardware_id": NAME,
        "values": [{"key": key, "value": value} for key, value in message.values.items()],
    }
    return {"header": _header(message.stamp, ""), "status": [status]}


_TO_ROS: dict[str, Callable[[Any], Ros]] = {
    "odometry": _odometry,
    "goal": _goal,
    "scan": _scan,
    "level_scan": _level_scan,
    "points": _points,
    "rays": lambda message: {"data": message.points.reshape(-1)},
    "tracks": _tracks,
    "arm": lambda message: {"data": message.on},
    "emergency_stop": lambda message: {"data": message.on},
    "clock": lambda message: {"clock": _stamp(message.stamp)},
    "diagnostics": _diagnostics,
}


# ---------------------------------------------------------------------- from ROS


def _from_odometry(message: Ros, now: float) -> Message:
    pose, twist = message["pose"]["pose"], message["twist"]["twist"]
    turn = pose["orientation"]
    attitude = np.array([turn["w"], turn["x"], turn["y"], turn["z"]])
    frame, body = message["header"]["frame_id"], message["child_frame_id"]
    velocity = _array(twist["linear"])
    if body != frame:  # the twist is in the child frame
        if not abs(np.linalg.norm(attitude) - 1) < 1e-2:
            raise MessageError("the odometry's orientation is not a unit quaternion")
        velocity = rotated(attitude, velocity)
    stamp = _seconds(message["header"]["stamp"])
    return Odometry(stamp, _array(pose["position"]), velocity, attitude, frame, body)


def _from_goal(message: Ros, now: float) -> Message:
    header = message["header"]
    return Goal(_seconds(header["stamp"]), _array(message["pose"]["position"]), header["frame_id"])


def _from_scan(message: Ros, now: float) -> Message:
    rows = read_cloud(message, ("range", "azimuth"))
    if not len(rows):
        raise MessageError("the scan has no rays")
    ranges = rows[:, 0].reshape(message["height"], message["width"])
    return Scan(_seconds(message["header"]["stamp"]), ranges, float(rows[0, 1]))


def _from_level_scan(message: Ros, now: float) -> Message:
    ranges = message["ranges"].astype(np.float64)
    used = (ranges >= message["range_min"]) & (ranges <= message["range_max"])
    header = message["header"]
    return LevelScan(
        _seconds(header["stamp"]),
        np.where(used, ranges, np.inf),
        float(message["angle_min"]),
        float(message["angle_increment"]),
        header["frame_id"],
    )


def _from_points(message: Ros, now: float) -> Message:
    header = message["header"]
    return Points(_seconds(header["stamp"]), read_cloud(message, XYZ), header["frame_id"])


def _from_rays(message: Ros, now: float) -> Message:
    data = np.asarray(message["data"], np.float64)
    if len(data) % 3:
        raise MessageError(f"rays have {len(data)} numbers; expected three for each")
    return Rays(now, data.reshape(-1, 3))


def _from_tracks(message: Ros, now: float) -> Message:
    header = message["header"]
    return Tracks(_seconds(header["stamp"]), read_cloud(message, COLUMNS), header["frame_id"])


def _from_diagnostics(message: Ros, now: float) -> Message:
    stamp = _seconds(message["header"]["stamp"])
    own = [status for status in message["status"] if status["name"] == NAME]
    if not own:
        raise MessageError(f"the diagnostics have no status of {NAME}")
    values = {pair["key"]: pair["value"] for pair in own[0]["values"]}
    return Diagnostics(stamp, int(own[0]["level"]), own[0]["message"], values)


_FROM_ROS: dict[str, Callable[[Ros, float], Message]] = {
    "odometry": _from_odometry,
    "goal": _from_goal,
    "scan": _from_scan,
    "level_scan": _from_level_scan,
    "points": _from_points,
    "rays": _from_rays,
    "tracks": _from_tracks,
    "arm": lambda message, now: Arm(now, bool(message["data"])),
    "emergency_stop": lambda message, now: EmergencyStop(now, bool(message["data"])),
    "clock": lambda message, now: Clock(_seconds(message["clock"])),
    "diagnostics": _from_diagnostics,
}
