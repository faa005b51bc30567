"""A run in another environment than ours is saved, tracked, resumed and evaluated as ours is."""

from __future__ import annotations

import pytest

from navrl import Registry, RolloutStorage
from navrl.cli import main
from training_runs import steps

SMALL = (
    "algo.training_frame_num=16",
    "algo.training_epoch_num=1",
    "algo.num_minibatches=2",
    "env.num_envs=4",
    "eval_interval=2",
    "save_interval=1",
    "flight.episodes=4",
    "flight.interim_episodes=4",
    "headless=true",
)
POINT = ("env=python", "env.target=point_environment:make_point")
CART = ("env=gymnasium", "env.id=CartPole-v1")


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.slow
def test_two_processes_rollouts_and_a_tracker_work_for_an_environment_of_the_user(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    more = ("processes=2", "rollout_save_interval=2", "tracker=tensorboard", "max_frame_num=128")
    assert main(["train", *POINT, *SMALL, *more, f"run_folder={run}"]) == 0, capsys.readouterr()
    with RolloutStorage(run / "rollouts") as storage:
        kept = storage.load(2)
    assert kept["observation"]["position"].shape == (16, 2, 1)  # of the leading process
    assert list(run.rglob("events.out.tfevents*"))


@pytest.mark.slow
def test_a_gymnasium_run_is_resumed_evaluated_and_registered_by_the_commands(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    run, out = tmp_path / "run", f"--out={tmp_path / 'eval'}"
    words = ["train", *CART, *SMALL, "processes=1", "max_frame_num=128", f"run_folder={run}"]
    assert main(words) == 0
    assert "not bit for bit" not in capsys.readouterr().out.replace("\n", " ")
    assert main(["train", "resume=auto", "max_frame_num=256", f"run_folder={run}"]) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "CartPole-v1 cannot save its episodes" in told
    assert "registered as CartPole-v1:" in told
    assert steps(run)[-1] == 4
    with Registry() as registry:
        assert "CartPole-v1" in {model.name for model in registry.models()}
    assert main(["eval", str(run), out, "--episodes", "4"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    assert main(["eval", str(run), out, "--scenario", "crossing"]) == 2
    assert "only the navigation task has scenarios" in capsys.readouterr().err
    assert main(["curves", str(run), "--png", str(tmp_path / "curve.png")]) == 2
    assert "navrl report RUN" in capsys.readouterr().err


def test_what_other_environments_cannot_do_says_so(tmp_path, capsys):
    for words, told in (
        ([*CART, "algo=sac"], "algo=ppo"),
        ([*CART, "env.num_obstacles=3"], "to the navigation task"),
        ([*POINT, "env.num_envs=3", "processes=2"], "multiple of the 2 processes"),
    ):
        assert main(["train", *words, f"run_folder={tmp_path / 'run'}"]) == 2
        assert told in capsys.readouterr().err
