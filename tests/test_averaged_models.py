"""`navrl average`: the mean of models flies; models that do not fit are refused by name."""

from __future__ import annotations

import copy

import pytest
import torch

import navrl
from navrl.averaged_models import average_models
from navrl.cli import main
from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.evaluation import PRETRAINED
from navrl.io import load_checkpoint, save_checkpoint


@pytest.fixture
def write(tmp_path):
    """A function that writes the policy in the package with changes; returns the file's path."""

    def write(name, change=lambda state: None):
        state = copy.deepcopy(load_checkpoint(PRETRAINED))
        change(state)
        save_checkpoint(state, tmp_path / name)
        return tmp_path / name

    return write


def shifted(by):
    def change(state):
        for value in state["parameters"].values():
            value += by
        state["card"] = {"frames": 1000 * (1 + by), "seed": by, "evaluation": {"static": {}}}

    return change


def test_every_weight_is_the_mean_and_decisions_add_up(write):
    files = [write("a.pt", shifted(0.0)), write("b.pt", shifted(1.0)), write("c.pt", shifted(5.0))]
    state, own = average_models(files), load_checkpoint(files[0])
    for name, value in own["parameters"].items():
        torch.testing.assert_close(state["parameters"][name], value + 2)
        assert state["parameters"][name].dtype == value.dtype
    assert state["card"] == {"average_of": ["a.pt", "b.pt", "c.pt"], "frames": 9000, "seed": 0}
    assert (state["task"], state["network"]) == (own["task"], own["network"])


def test_the_command_writes_a_model_that_flies(write, tmp_path, capsys):
    mean = tmp_path / "mean.pt"
    names = ["pretrained", str(write("other.pt", shifted(1e-3)))]
    assert main(["average", *names, "-o", str(mean)]) == 0
    assert f"{mean}: the mean of 2 models" in capsys.readouterr().out
    policy = navrl.load_policy(mean)
    env = navrl.NavigationEnv(
        navrl.NavigationSettings.of(env__num_envs=8, env__num_worlds=1, env__num_obstacles=20)
    )
    observation = env.reset()
    both = [navrl.load_policy(name).act(observation) for name in names]
    assert torch.allclose(policy.act(observation), sum(both) / 2, atol=0.05)
    assert policy.card["average_of"] == names


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_of_before_and_after_a_setting_was_added_are_averaged(write, order):
    def without(state):
        del state["network"]["distribution"]

    files = [write("new.pt"), write("old.pt", without)]
    assert average_models([files[number] for number in order])["kind"]


def other_robot(state):
    state["task"] = load_config(["robot=fast_quadrotor"]).task.as_dict()
    # a robot of other limits, not of other observations
    for key in ("lidar_hres", "lidar_vbeams", "lidar_vfov", "lidar_range"):
        state["task"]["sensor"][key] = load_config([]).task.as_dict()["sensor"][key]
    state["task"]["env"]["num_observed"] = 5


def other_network(state):
    state["network"]["distance_scale"] = 0.5


def noisier(state):
    state["task"]["sensor"]["noise"] = 0.25


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_robot, "b.pt does not fit .*another robot, speed"),
        (other_network, r"network.distance_scale is 0.5; expected 0.1"),
        (lambda state: state.update(kind="something"), "b.pt is not a model"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_reason(write, change, told):
    with pytest.raises(ConfigError, match=told):
        average_models([write("a.pt"), write("b.pt", change)])


def test_noise_of_the_training_does_not_matter(write):
    own = load_checkpoint(PRETRAINED)["task"]
    assert average_models([write("a.pt"), write("b.pt", noisier)])["task"] == own


def test_checkpoints_of_trainings_are_averaged_with_models(write, tmp_path):
    model, other = write("a.pt"), load_checkpoint(write("b.pt", shifted(2.0)))
    config = other["task"] | {"network": other["network"], "algo": {"training_frame_num": 32}}
    state = {"iteration": 7, "model_state_dict": other["parameters"], "ranks": [{}]}
    save_checkpoint(state | {"config": config}, tmp_path / "checkpoint.pt")
    mean = average_models([model, tmp_path / "checkpoint.pt"])
    for name, value in load_checkpoint(model)["parameters"].items():
        torch.testing.assert_close(mean["parameters"][name], value + 1)
    learnt = 7 * 32 * other["task"]["env"]["num_envs"]
    assert mean["card"]["frames"] == load_checkpoint(model)["card"]["frames"] + learnt


def test_one_model_has_no_average(write):
    with pytest.raises(ConfigError, match="1 model to average; expected two or more"):
        average_models([write("a.pt")])
