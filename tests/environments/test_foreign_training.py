"""Environments of other libraries are trained, saved and evaluated as ours is."""

from __future__ import annotations

import pytest
import torch

from navrl.config import load_config
from navrl.environments.foreign import GivenTask
from navrl.environments.foreign_evaluation import task_for
from navrl.environments.table import find_task
from navrl.errors import ConfigError
from navrl.evaluation import load_policy
from navrl.models import model_state, save_model
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer
from point_environment import Point

POINT = (
    "env=python",
    "env.target=point_environment:make_point",
    "algo.training_frame_num=32",
    "algo.training_epoch_num=4",
    "algo.num_minibatches=4",
    "algo.actor.learning_rate=3e-3",
    "algo.critic.learning_rate=3e-3",
    "flight.interim_episodes=16",
    "max_frame_num=15360",
)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def mean_return(trainer):
    ((_, episodes),) = trainer.evaluate().items()
    return trainer.task.summary(episodes)["mean_return"]


def saved(trainer, path, **settings):
    record = trainer.task.record(trainer.env)
    save_model(path, model_state(trainer.network, trainer.config.network, record, {"seed": 0}))
    return path


@pytest.mark.slow
def test_a_policy_learns_in_an_environment_of_the_user():
    trainer = PPOTrainer(load_config([*POINT]), Team())
    before = mean_return(trainer)
    for _ in range(trainer.iterations):
        trainer.learn(trainer.collect())
    assert mean_return(trainer) > before + 2


def test_training_goes_on_bit_for_bit_where_the_environment_can_be_saved():
    first, second = (PPOTrainer(load_config([*POINT]), Team()) for _ in range(2))
    first.learn(first.collect())
    second.load(first.shared_state() | {"ranks": [first.own_state()]})
    for trainer in (first, second):
        trainer.learn(trainer.collect())
    for name, weight in first.network.state_dict().items():
        assert torch.equal(weight, second.network.state_dict()[name]), name


def test_an_environment_that_cannot_be_saved_begins_new_episodes(tmp_path):
    trainer = PPOTrainer(
        load_config(["env=gymnasium", "env.id=CartPole-v1", "algo.training_frame_num=8"]), Team()
    )
    assert not trainer.task.exact
    state = trainer.shared_state() | {"ranks": [trainer.own_state()]}
    assert state["ranks"][0]["env"] is None
    trainer.load(state)
    trainer.collect()


def test_the_policy_of_a_file_acts_as_the_one_that_was_trained(tmp_path):
    trainer = PPOTrainer(load_config([*POINT]), Team())
    trainer.learn(trainer.collect())
    policy = load_policy(saved(trainer, tmp_path / "model.pt"))
    rows = trainer.env.observe()
    heads = trainer.applied.infer(rows)
    expected = trainer.distribution.to_environment(trainer.distribution.mean(heads))
    assert torch.equal(policy(trainer.env.observation.split(rows)), expected)


def test_code_that_a_model_file_names_is_not_run_unless_it_is_typed(tmp_path):
    trainer = PPOTrainer(load_config([*POINT]), Team())
    policy = load_policy(saved(trainer, tmp_path / "model.pt"))
    with pytest.raises(ConfigError, match="code that a file names is not run"):
        task_for(policy, load_config([]), set())
    assert task_for(policy, load_config([*POINT]), set()).name == POINT[1].split("=")[1]


def test_an_environment_given_as_an_object_is_trained_and_evaluated_in_place():
    config = load_config([*POINT, "env.num_envs=4"])
    trainer = PPOTrainer(config, Team(), GivenTask(config, Point(8)))
    assert trainer.env.num_envs == config.env.num_envs == 8
    trainer.learn(trainer.collect())
    mean_return(trainer)
    trainer.learn(trainer.collect())


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["env=gymnasium"], r"env\.id is empty"),
        (["env=python"], r"env\.target is empty"),
        (["env.name=isaac"], r"env\.name is 'isaac'; expected one of navigation"),
    ],
)
def test_an_incomplete_environment_is_refused(overrides, told):
    with pytest.raises(ConfigError, match=told):
        find_task(load_config(overrides))
