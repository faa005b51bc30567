"""The original's services: its flat arrays in, the same answers as our own policy and shield."""

from __future__ import annotations

import math

import numpy as np
import pytest

from navrl.deploy.node.scans import ScanLayout
from navrl.deploy.original_services import (
    OBSTACLES,
    POLICY,
    RAY_CAST,
    SAFE_ACTION,
    OriginalServices,
)
from navrl.deploy.ros.cdr import decode, encode
from navrl.errors import MessageError
from navrl.sim.worlds.world_file import World

LAYOUT = ScanLayout(36, (-10.0, 0.0, 10.0, 20.0), 4.0)
TRACKS = np.array([[3.0, 0, 1, -1, 0, 0, 0.5, 5], [1.0, 0, 1, 0, 1, 0, 0.75, 1], [0.0] * 8])


def named(x, y, z):
    return {"x": x, "y": y, "z": z}


@pytest.fixture
def services(straight):
    world = World(np.array([[2.0, 3.0, -1.0, 1.0, 0.0, 4.0]], np.float32))
    return OriginalServices(straight, LAYOUT, world=world, tracks=lambda: TRACKS)


def called(services, which, request):
    """Call a service as ROS does: through bytes, both ways."""
    name = which[1]
    asked = decode(f"{name}_Request", encode(f"{name}_Request", request))
    return decode(f"{name}_Response", encode(f"{name}_Response", services.table()[which](asked)))


def observation(**other):
    return {
        "state": [0.6, 0.8, 0.0, 5.0, 0.5, 0.1, 0.2, 0.3],
        "state_shape": [1, 8],
        "lidar": np.zeros(144),
        "lidar_shape": [1, 1, 36, 4],
        "direction": [0.0, 2.0, 0.0],
        "direction_shape": [3],
        "dynamic_obstacle": np.zeros(50),
        "dynamic_obstacle_shape": [1, 1, 5, 10],
    } | other


def test_the_policy_is_given_the_goal_frame_and_answers_in_the_world(services, straight):
    found = called(services, POLICY, observation())["action"]
    given = straight.given
    assert given["goal"] == pytest.approx([3.0, 4.0, 0.5])
    assert given["velocity"] == pytest.approx([0.1, 0.2, 0.3])
    assert given["lidar"] == pytest.approx(np.full((36, 4), 4.0))
    unit = np.array([3.0, 4.0, 0.5]) / math.sqrt(25.25)
    assert found == pytest.approx([-unit[1], unit[0], unit[2]])  # the goal frame looks along y


@pytest.mark.slow
def test_the_policy_answers_as_the_simulator_flies(exported):
    from navrl.deploy.runner import RobotRunner
    from navrl.deploy.verify import crossing
    from navrl.evaluation.policy_lookup import load_policy

    policy = load_policy("pretrained")
    env = crossing(policy, 4, 1)
    seen = env.reset()
    for _ in range(30):
        seen = env.step(policy(seen)).observation
    forward, wanted = env.forward, policy(seen).numpy()
    services = OriginalServices(RobotRunner(str(exported)), LAYOUT)
    for drone in range(4):
        asked = {
            name: seen[name][drone].numpy().reshape(-1)
            for name in ("state", "lidar", "dynamic_obstacle")
        }
        x, y = forward[drone].tolist()
        request = observation(**asked, direction=[x, y, 0.0])
        found = called(services, POLICY, request)["action"]
        goal_frame = [found[0] * x + found[1] * y, found[1] * x - found[0] * y, found[2]]
        assert goal_frame == pytest.approx(wanted[drone], abs=1e-4)


def test_observations_of_another_shape_are_refused_by_name(services):
    with pytest.raises(MessageError, match="lidar has 144 numbers; its shape says"):
        called(services, POLICY, observation(lidar_shape=[36, 3]))
    with pytest.raises(MessageError, match="state has 7 numbers"):
        called(services, POLICY, observation(state=np.zeros(7), state_shape=[7]))


def safe(**other):
    return {
        "agent_position": named(0.0, 0.0, 1.0),
        "agent_velocity": named(1.0, 0.0, 0.0),
        "agent_size": 0.6,
        "laser_points": [],
        "laser_range": 4.0,
        "laser_res": 10.0,
        "max_velocity": 2.0,
        "rl_velocity": named(1.5, 0.0, 0.0),
    } | other


def test_a_safe_action_passes_and_an_unsafe_one_is_turned_away(services):
    free = called(services, SAFE_ACTION, safe())["safe_action"]
    assert free == named(1.5, 0.0, 0.0)
    walls = [part for y in np.linspace(-0.4, 0.4, 9) for part in (0.8, y, 1.0)]
    beside = called(services, SAFE_ACTION, safe(laser_points=walls))["safe_action"]
    assert beside["x"] < 1.0
    met = safe(
        obs_position=[named(1.5, 0.0, 1.0)],
        obs_velocity=[named(-1.0, 0.0, 0.0)],
        obs_size=[named(0.5, 0.5, 2.0)],
    )
    assert called(services, SAFE_ACTION, met)["safe_action"] != free
    with pytest.raises(MessageError, match="differ in length"):
        called(services, SAFE_ACTION, met | {"obs_size": []})


def test_rays_end_at_the_world_and_misses_at_the_range(services):
    request = {
        "position": named(0.0, 0.0, 1.0),
        "start_angle": 0.0,
        "range": 4.0,
        "vfov_min": -10.0,
        "vfov_max": 20.0,
        "vbeams": 4,
        "hres": 10.0,
        "visualize": False,
    }
    ends = called(services, RAY_CAST, request)["points"].reshape(36, 4, 3)
    assert ends[0, 1] == pytest.approx([2.0, 0.0, 1.0])
    assert ends[18, 1] == pytest.approx([-4.0, 0.0, 1.0])
    assert ends[9, 1] == pytest.approx([0.0, 4.0, 1.0])  # counter-clockwise
    turned = called(services, RAY_CAST, request | {"start_angle": math.pi})["points"]
    assert turned.reshape(36, 4, 3)[18, 1] == pytest.approx([2.0, 0.0, 1.0])
    with pytest.raises(MessageError, match="rays"):
        called(services, RAY_CAST, request | {"hres": 1e-6})


def test_the_nearest_obstacles_within_range_come_first(services):
    request = {"current_position": named(0.0, 0.0, 1.0), "range": 4.0}
    found = called(services, OBSTACLES, request)
    assert [one["x"] for one in found["position"]] == [1.0, 3.0]
    assert found["size"][0] == named(0.75, 0.75, 1.0)
    assert len(called(services, OBSTACLES, request | {"range": 2.0})["size"]) == 1
    assert RAY_CAST not in OriginalServices(services.policy, LAYOUT).table()
