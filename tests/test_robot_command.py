"""`navrl robot`, and that a policy flies on the robot that it was trained for and on no other."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

from navrl.cli import main
from navrl.config import FlightSettings, load_config
from navrl.deploy.c_header import c_header
from navrl.deploy.contract import contract_of
from navrl.deploy.robot_inputs import sampled_inputs
from navrl.deploy.robot_policy import INPUTS, RobotPolicy
from navrl.deploy.shield import ShieldSettings
from navrl.deploy.shielded_pilot import settings_for
from navrl.deploy.verify import load_command
from navrl.errors import ConfigError
from navrl.evaluation.policy_lookup import Policy, load_policy, pilot_of
from navrl.evaluation.tasks import flight_task
from navrl.models import model_state, save_model
from navrl.rl.accelerate import accelerate
from navrl.rl.fused.fused_network import FusedNetwork
from navrl.rl.networks.navigation import build_network
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.sim.env import NavigationEnv
from navrl.sim.robots import load_robot, robot_of
from navrl.sim.settings import NavigationSettings
from navrl.sim.step import observation_layout

SHIPPED = ("fast_quadrotor", "ground", "hummingbird")


def task_of(name: str) -> NavigationSettings:
    small = NavigationSettings.of(env__num_envs=16, env__num_worlds=2, env_dyn__num_obstacles=160)
    return load_robot(name).applied_to(small)


@pytest.fixture
def model(tmp_path):
    """A policy with random weights for the ground robot, in a file."""
    task, network = task_of("ground"), NetworkSettings()
    built = build_network(network, observation_layout(task))
    save_model(tmp_path / "model.pt", model_state(built, network, task, {"iteration": 1}))
    return tmp_path / "model.pt"


def test_robots_are_listed_shown_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["robot"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in SHIPPED)
    assert main(["robot", "ground"]) == 0
    assert "0.35 m" in capsys.readouterr().out
    assert main(["robot", "new", "my_robot.yaml", "--like", "ground"]) == 0
    assert load_robot("my_robot.yaml").lidar == load_robot("ground").lidar
    assert load_robot("my_robot.yaml").name == "my_robot"
    assert main(["robot", "my_robot.yaml", "--yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out.partition("\n")[2])["radius"] == 0.35
    assert main(["robot", "new", "my_robot.yaml"]) == 2
    assert "my_robot.yaml exists" in capsys.readouterr().err
    assert main(["robot", "new", "my_robot.txt"]) == 2
    assert main(["robot", "gruond"]) == 2
    assert "Did you mean 'ground'?" in capsys.readouterr().err


def test_a_policy_carries_its_robot(model, capsys):
    assert load_policy(model).robot == load_robot("ground")
    assert main(["robot", str(model)]) == 0
    assert "robot ground" in capsys.readouterr().out


def test_another_robot_is_refused_unless_forced(model, tmp_path):
    policy = load_policy(model)
    assert policy.on_robot(load_robot("ground")) is policy
    faster = tmp_path / "faster.yaml"
    main(["robot", "new", str(faster), "--like", "ground"])
    faster.write_text(faster.read_text().replace("speed: 2.0 ", "speed: 3.0 "))
    with pytest.raises(
        ConfigError, match=r"ground, not for faster: speed 3 m/s \(trained.*--force"
    ):
        policy.on_robot(load_robot(faster))
    forced = policy.on_robot(load_robot(faster), force=True)
    assert (forced.task.env.action_limit, forced.act.limit) == (3.0, 3.0)
    with pytest.raises(ConfigError, match=r"lidar.rays 36 \(trained with 180\)") as failure:
        policy.on_robot(load_robot("hummingbird"), force=True)
    assert "--force" not in str(failure.value)


def test_a_robot_among_the_typed_settings_of_flights_is_refused_too(model):
    policy, flight = load_policy(model), FlightSettings(episodes=4, worlds=2)
    same = load_config(["robot=ground", "env.num_obstacles=20"])
    assert flight_task(same.task, flight, policy, {"drone.robot"}).drone.robot == "ground"
    other = load_config(["robot=ground", "env.action_limit=1.0"])
    with pytest.raises(ConfigError, match=r"speed 1 m/s \(trained with 2 m/s\)"):
        flight_task(other.task, flight, policy, {"drone.robot"})


def test_the_shield_keeps_the_robots_radius_free():
    ground, usual = NavigationEnv(task_of("ground")), NavigationEnv(task_of("hummingbird"))
    ground.reset()
    assert settings_for(ground).static_radius > ground.settings.env.collision_radius
    assert settings_for(ground).lowest < float(ground.position[:, 2].min())
    assert settings_for(usual) == ShieldSettings()


@pytest.mark.slow  # compiles the network for the ground robot's scan
def test_an_evaluation_flies_the_policys_robot_and_refuses_others(model, tmp_path, capsys):
    few = ["--episodes", "4", "--worlds", "2", "--json", "--scenario", "static"]
    words = [str(model), *few, "--out", str(tmp_path / "out"), "env.max_episode_length=30"]
    assert main(["eval", *words, "flight.recorded=0"]) == 0
    flown = json.loads(capsys.readouterr().out)["conditions"]["static"]["settings"]
    assert differ(flown) == []
    assert main(["eval", *words, "robot=hummingbird"]) == 2
    assert "was trained for the robot ground, not for hummingbird" in capsys.readouterr().err


def differ(settings: dict) -> list[str]:
    from navrl.sim.robots import differences

    return differences(load_robot("ground"), robot_of(NavigationSettings.from_mapping(settings)))


@pytest.mark.slow  # compiles the network for three sizes of the observation
@pytest.mark.parametrize("name", SHIPPED)
def test_the_compiled_network_serves_the_robot_and_its_export_gives_the_same_commands(
    name, tmp_path
):
    task = task_of(name)
    torch.manual_seed(0)
    network = build_network(NetworkSettings(), observation_layout(task)).requires_grad_(False)
    for parameter in (network.alpha.weight, network.beta.weight):
        parameter *= 100  # commands that differ
    applied = accelerate(network)
    assert isinstance(applied, FusedNetwork)
    policy = Policy(name, pilot_of(applied, task), task)
    robot = RobotPolicy(network, task).eval()
    inputs, commands = sampled_inputs(task, policy, 32, 3)
    with torch.no_grad():
        found = robot(*(inputs[each] for each in INPUTS))
    assert torch.allclose(found, commands, atol=1e-4)
    assert commands.abs().max() > 0.1
    contract = contract_of(robot, task, {}, "")
    assert contract["robot"]["file"] == robot_of(task).as_dict()
    assert contract["robot"]["planar"] == (name == "ground")
    if name == "ground":
        assert not commands[:, 2].any()
        (tmp_path / "navrl_policy.h").write_text(c_header(robot))
        arrays = {each: inputs[each].numpy() for each in INPUTS}
        in_c = torch.from_numpy(load_command(tmp_path, "c")(arrays))
        assert torch.allclose(in_c, commands, atol=1e-4)
    if name == "fast_quadrotor":
        assert commands[:, 2].abs().max() <= 2.0
