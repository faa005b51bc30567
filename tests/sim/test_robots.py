"""Robot files: what they set, what a mistake is told, and that they survive being written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.sim.robots import (
    ROBOT_KEYS,
    Robot,
    as_built,
    differences,
    load_robot,
    robot_names,
    robot_of,
    robot_text,
)
from navrl.sim.robots.robot_keys import Detector, Lidar, Response, keys_of
from navrl.sim.settings import NavigationSettings

SHIPPED = ("fast_quadrotor", "ground", "hummingbird")


def numbers(low: float, high: float):
    return st.floats(low, high).map(lambda value: round(value, 4))


robots = st.builds(
    Robot,
    name=st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True),
    radius=numbers(0.01, 2),
    height=numbers(0, 5),
    speed=numbers(0.01, 50),
    vertical_speed=numbers(0, 50),
    acceleration=numbers(0, 1000),
    planar=st.booleans(),
    control_rate=numbers(1, 200),
    response=st.builds(Response, model=st.just("first_order"), time_constant=numbers(0.001, 10)),
    lidar=st.builds(
        Lidar,
        rays=st.integers(3, 360),
        beams=st.integers(1, 64),
        field_of_view=numbers(1, 360),
        elevations=st.tuples(numbers(-85, 0), numbers(0.1, 85)),
        range=numbers(0.5, 20),
        rate=numbers(0, 1000),
        sees_moving=st.booleans(),
    ),
    detector=st.builds(Detector, range=numbers(0, 40), obstacles=st.integers(1, 32)),
)


def written(folder, text: str):
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def told(folder, text: str) -> str:
    with pytest.raises(ConfigError) as failure:
        load_robot(written(folder, text))
    return str(failure.value)


def test_three_robots_come_with_the_package():
    assert tuple(robot_names()) == SHIPPED
    assert load_robot("hummingbird") == Robot()


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(robot=robots)
@example(robot=Robot(name="no"))
def test_a_robot_is_read_back_as_it_was_written(tmp_path_factory, robot):
    path = written(tmp_path_factory.getbasetemp(), robot_text(robot))
    assert load_robot(path) == robot


@settings(max_examples=30, deadline=None)
@given(robot=robots)
def test_a_task_gives_back_the_robot_that_was_applied_to_it(robot):
    task = robot.applied_to(NavigationSettings())
    assert differences(robot, robot_of(task)) == []
    assert robot_of(task).name == robot.name
    task.check()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_robot_is_an_override_of_its_settings(name):
    config = load_config(["preset=quick", f"robot={name}"])
    assert differences(load_robot(name), robot_of(config.task)) == []
    assert config.drone.robot == name
    assert config.reward.log_reference == config.sensor.lidar_range


def test_a_typed_setting_wins_over_the_robots_wherever_it_stands(tmp_path):
    path = written(tmp_path, "speed: 3\ncontrol_rate: 20\nlidar: {range: 5}\n")
    config = load_config(["sensor.lidar_range=6", f"robot={path}", "preset=quick"])
    assert (config.env.action_limit, config.sensor.lidar_range) == (3.0, 6.0)
    assert config.sim.dt * config.env.action_repeat == pytest.approx(0.05)
    assert config.drone.robot == "mine"


@pytest.mark.parametrize("name", SHIPPED)
def test_noise_that_a_training_adds_does_not_belong_to_the_robot(name):
    noise = ["sensor.noise=0.2", "sensor.dropout=0.3", "sensor.detection_dropout=0.4"]
    plain, noisy = load_config([f"robot={name}"]).task, load_config([f"robot={name}", *noise]).task
    assert robot_of(noisy) != robot_of(plain)
    assert as_built(noisy) == as_built(plain) == robot_of(plain)


def test_every_key_sets_a_known_setting():
    assert set(ROBOT_KEYS) <= set(NavigationSettings.keys())
    assert len(set(ROBOT_KEYS)) == len(ROBOT_KEYS)


@pytest.mark.parametrize("key", [key for key in keys_of() if key.setting], ids=lambda key: key.name)
def test_the_settings_take_the_limits_of_a_robot(key):
    for limit in () if isinstance(key.default, bool | str) else key.limits:
        task = NavigationSettings.of(sensor__lidar_vbeams=1, sim__gravity=0.0)
        task.drone.model_name = "quadrotor"
        task.set(key.setting, [limit] * key.size if key.size else type(key.default)(limit))
        task.check()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lidar: {rang: 8}", ["lidar.rang", "Did you mean 'lidar.range'?"]),
        ("raduis: 0.3", ["raduis", "Did you mean 'radius'?"]),
        ("lidar: {range: 80}", ["lidar.range is 80.0 m", "0.5 to 20 m"]),
        ("control_rate: 5000", ["control_rate is 5000.0 Hz", "0, or 0.32 to 1000 Hz"]),
        ("speed: fast", ["speed is 'fast'", "0.01 to 50 m/s"]),
        ("planar: 1", ["planar is 1", "true or false"]),
        ("response: {model: quadcopter}", ["response.model", "quadrotor"]),
        ("response: {mass: 3}", ["response.mass", "response.model: quadrotor"]),
        ("response: {model: quadrotor, mass: 9}", ["rotor_thrust", "the weight is 88.3 N"]),
        ("planar: true", ["planar", "first_order"]),
        ("lidar: 4", ["lidar is 4", "indented"]),
        ("lidar: {rays: 7.5}", ["lidar.rays is 7.5", "3 to 360"]),
        ("lidar: {elevations: [20, -10]}", ["lidar.elevations", "lowest first"]),
        ("name: a b", ["name is 'a b'", "letters"]),
        ("- 1", ["expected keys"]),
        ("# radius: 0.3", ["no keys", "such as radius: 0.3"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_a_mistake_in_a_file_is_told_by_file_key_and_unit(tmp_path, text, expected):
    message = told(tmp_path, text)
    assert all(part in message for part in ["mine.yaml", *expected])


def test_an_unknown_robot_is_told_the_nearest_one(tmp_path):
    with pytest.raises(ConfigError, match=r"expected one of fast.*Did you mean 'ground'\?"):
        load_robot("gruond")
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        load_robot(tmp_path / "absent.yaml")


def test_differences_name_key_values_and_unit():
    robot = dataclasses.replace(Robot(), speed=5.0, lidar=Lidar(range=8.0))
    assert differences(Robot(), robot) == [
        "speed 5 m/s (trained with 2 m/s)",
        "lidar.range 8 m (trained with 4 m)",
    ]


def test_the_page_lists_every_key_with_its_limits():
    page = (Path(__file__).parents[2] / "docs" / "robots.md").read_text()
    for key in keys_of():
        setting = f"`{key.setting}`" if key.setting else ""
        row = (
            f"| `{key.name}` | {key.told(key.default)} | {key.expected} | {key.about} | {setting} |"
        )
        assert row in page


def test_the_example_of_the_page_is_a_robot(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "robots.md").read_text()
    robot = load_robot(written(tmp_path, page.partition("```yaml\n")[2].partition("```")[0]))
    assert (robot.name, robot.detector.misses, robot.lidar.rate) == ("courier", 0.1, 10.0)
    robot.applied_to(NavigationSettings()).check()
    assert robot == load_robot(Path(__file__).parents[2] / "examples" / "robots" / "courier.yaml")
