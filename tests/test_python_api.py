"""`navrl.train` and `navrl.evaluate`: what the commands do, as functions."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

import navrl
from navrl.cli import main
from navrl.config import load_config
from navrl.errors import ConfigError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from point_environment import Point
from training_runs import same, steps

SMALL = {
    "max_frame_num": 1024,
    "eval_interval": 2,
    "save_interval": 2,
    "env.num_envs": 8,
    "algo": {"training_frame_num": 32, "training_epoch_num": 2, "num_minibatches": 2},
    "flight": {"episodes": 8, "interim_episodes": 8},
}
TYPED = [
    *(f"{key}={value}" for key, value in SMALL.items() if not isinstance(value, dict)),
    *(f"algo.{key}={value}" for key, value in SMALL["algo"].items()),
    *(f"flight.{key}={value}" for key, value in SMALL["flight"].items()),
]


class Features(torch.nn.Module):
    def __init__(self, observation):
        super().__init__()
        self.layer = torch.nn.Linear(observation["position"].size, 8)

    def forward(self, parts):
        return torch.tanh(self.layer(parts["position"]))


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return navrl.train(SMALL, env=Point, folder=tmp_path_factory.mktemp("runs") / "point")


def test_a_run_has_its_model_metrics_curve_and_final_evaluation(run):
    assert run.finished
    assert not run.problems
    assert run.model_path == run.folder / "model.pt"
    assert [steps for steps, _ in run.curve()] == [512, 1024]
    assert len(run.metrics("train")) == len(run.curve("episode/return")) == 4
    ((name, numbers),) = run.summary.items()
    assert (name, numbers["episodes"]) == ("point_environment:Point", 8)
    assert run.config.algo.num_minibatches == 2
    actions = run.policy({"position": torch.zeros(3, 1), "goal": torch.zeros(3, 1)})
    assert actions.shape == (3, 1)
    with pytest.raises(ConfigError, match=r"no metric 'eval/x'.*eval/mean_reward"):
        run.curve("eval/x")


def test_a_run_is_opened_again_by_its_folder(run):
    again = navrl.Run(run.folder)
    assert again.summary == run.summary
    assert repr(again) == f"Run({str(run.folder)!r}, finished)"
    with pytest.raises(ConfigError, match="holds no run"):
        navrl.Run(run.folder.parent)


def test_the_command_trains_the_same_policy_bit_for_bit(run, tmp_path, monkeypatch, capsys):
    typed = ["env=python", "env.target=point_environment:Point", "processes=1", *TYPED]
    assert main(["train", *typed, f"run_folder={tmp_path / 'run'}"]) == 0
    mine, theirs = (load_checkpoint(path / "model.pt") for path in (run.folder, tmp_path / "run"))
    assert same(mine["parameters"], theirs["parameters"])


def test_models_are_registered_under_the_name_of_their_environment(run):
    with navrl.Registry() as registry:
        versions = registry.versions("point_environment-Point")
    assert str(run.model_path) in {version.lineage["file"] for version in versions}


def test_an_evaluation_of_a_run_needs_no_environment(run):
    result = navrl.evaluate(run, episodes=16)
    (name,) = result.conditions
    assert result[name]["episodes"] == len(result.flights[name].statistics["return"]) == 16
    assert result.paths == []
    with pytest.raises(ConfigError, match="no condition 'crossing'"):
        result["crossing"]


def test_functions_are_policies_and_several_are_compared(tmp_path):
    def still(observation):
        return torch.zeros(len(observation["position"]), 1)

    def home(observation):
        return (-3 * observation["position"]).clamp(-1, 1)

    result = navrl.evaluate(still, home, env=Point(4), episodes=8, folder=tmp_path)
    (other,) = result.compared
    assert other["conditions"]["Point"]["mean_return"] > result["Point"]["mean_return"]
    assert (tmp_path / "evaluation.json") in result.paths


def test_the_navigation_task_is_evaluated_by_scenario():
    result = navrl.evaluate(
        "scripted", scenario="light", episodes=4, worlds=2, config={"env.max_episode_length": 50}
    )
    assert list(result.conditions) == ["light"]
    assert result["light"]["episodes"] == 4
    with pytest.raises(ConfigError, match="ligt"):
        navrl.evaluate("scripted", scenario="ligt")


def test_objects_are_trained_in_this_process_and_in_a_thread(tmp_path, capsys):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    made = []

    def work():
        network = Features(Point().observation)
        made.append((network, network.layer.weight.clone()))
        made.append(navrl.train(SMALL, env=Point(8), network=network, folder=tmp_path / "run"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (network, before), run = made
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.equal(network.layer.weight, before)  # arguments are not changed
    assert run.config.network.target == "test_python_api:Features"
    assert list(run.summary) == list(navrl.evaluate(run, episodes=4).conditions) == ["Point"]
    assert capsys.readouterr().out == ""


def test_ctrl_c_saves_raises_and_the_run_can_be_resumed(tmp_path, capsys):
    folder, handler, taken = tmp_path / "run", signal.getsignal(signal.SIGINT), []

    class Pressed(Point):
        """Presses Ctrl+C in the second iteration of the training."""

        def advance(self, action):
            taken.append(1)
            if len(taken) == 40:
                signal.raise_signal(signal.SIGINT)
            return super().advance(action)

    def make(num_envs):
        return Pressed(num_envs)

    with pytest.raises(KeyboardInterrupt):
        navrl.train(SMALL, env=make, folder=folder, verbose=True)
    assert signal.getsignal(signal.SIGINT) == handler
    assert steps(folder)[-1] == 2
    assert not navrl.Run(folder).finished
    assert "resume=auto" in capsys.readouterr().out
    run = navrl.train({"resume": "auto"}, env=make, folder=folder)
    assert run.finished
    assert steps(folder)[-1] == 4
    again = navrl.train({"resume": "auto"}, env=make, folder=folder)  # there is nothing left to do
    assert again.summary == run.summary


def test_a_configuration_object_is_used_and_not_changed(tmp_path):
    config = load_config(["env=python", *TYPED, "max_frame_num=256"])
    run = navrl.train(config, env=Point, folder=tmp_path / "run")
    assert run.config.max_frame_num == 256
    assert (config.run_folder, config.env.target, config.processes) == ("", "", 0)


def test_a_mistake_found_before_the_first_iteration_leaves_no_folder(tmp_path):
    for target in ("nothing:Thing", "nothing"):
        with pytest.raises(ConfigError, match=r"env\.target is"):
            navrl.train(["env=python", f"env.target={target}"], folder=tmp_path / "run")
        assert [*tmp_path.iterdir()] == []


def test_a_mistake_found_before_the_first_iteration_removes_nothing_of_the_users(tmp_path):
    for name in ("empty", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("kept")
    for name in ("empty", "notes"):
        with pytest.raises(ConfigError, match=r"env\.target is"):
            navrl.train(["env=python", "env.target=nothing"], folder=tmp_path / name)
    assert [*(tmp_path / "empty").iterdir()] == []
    assert (tmp_path / "notes" / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("settings", "arguments", "told"),
    [
        ("seed=1", {}, r"expected a list such as \['seed=1'\]"),
        (["processes=2"], {"env": Point(2)}, "cannot be sent to other processes"),
        (["env=navigation"], {"env": Point}, "leave one out"),
        (load_config(["resume=auto"]), {}, "pass overrides"),
        ([], {"env": "CartPole-v1"}, r"env\.id=CartPole-v1"),
        ([], {"env": Point, "network": 3}, "network is 3"),
        ({"algo.gama": 0.9}, {}, r"Did you mean 'algo\.gamma'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    settings, arguments, told, tmp_path
):
    with pytest.raises(ConfigError, match=told):
        navrl.train(settings, folder=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()
