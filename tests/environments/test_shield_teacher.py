"""The teacher of the navigation task: what it says, who may have one, and resuming under it."""

from __future__ import annotations

import pytest
import torch

import navrl
from navrl.config import load_config
from navrl.deploy import ShieldedPilot
from navrl.environments.navigation_task import NavigationTask
from navrl.environments.shield_teacher import StraightTeacher
from navrl.errors import ConfigError
from navrl.evaluation import PRETRAINED, evaluate, load_policy
from navrl.io import load_checkpoint, save_checkpoint
from navrl.rl.distributions import beta
from navrl.rl.networks.navigation import INPUTS
from navrl.rl.policy import to_velocity
from navrl.sim.env import NavigationEnv
from navrl.training.distributed.team import Team
from navrl.training.trainers import make_trainer

SMALL = ["env.num_envs=32", "env.num_worlds=2", "env.layout=navrl_eval", "processes=1"]
TINY = ["preset=smoke", "max_frame_num=16384", "processes=1"]


def made(*overrides):
    return NavigationTask(load_config([*SMALL, *overrides])).make(0, 1)


def test_there_is_no_teacher_unless_a_policy_imitates():
    env = made()
    assert env.advise(env.observe(), torch.zeros(32, 3)) is None


def test_it_flies_at_the_goal_where_nothing_is_near_and_dodges_where_something_is():
    env = made("algo.imitation=5", "env.action_repeat=6")
    straight, out = load_policy("straight", env.simulator.settings), env.make_step()
    dodged = same = 0
    for _ in range(40):
        rows = env.observe()
        advice = env.advise(rows, torch.zeros(32, 3))
        ahead = straight(env.observation.split(rows))
        equal = torch.isclose(advice, ahead, atol=1e-3).all(1)
        same, dodged = same + int(equal.sum()), dodged + int((~equal).sum())
        env.step(advice, out=out)
    assert same > 100
    assert dodged > 100


def test_the_policys_own_direction_is_corrected_at_full_speed_and_only_where_it_hits_something():
    env = made("algo.imitation=5", "teacher=own", "env.action_repeat=6")
    out, corrected = env.make_step(), 0
    slowly = torch.tensor([[0.5, 0.0, 0.0]]).expand(32, 3)
    for _ in range(40):
        advice = env.advise(env.observe(), slowly)
        given = ~advice.isnan().any(1)
        corrected += int(given.sum())
        assert advice[~given].isnan().all()
        assert (advice[given].abs() <= 2.0 + 1e-6).all()
        fast = env.advise(env.observe(), 4 * slowly)
        assert torch.equal(advice.isnan(), fast.isnan())
        torch.testing.assert_close(advice[given], fast[given])
        env.step(4 * slowly, out=out)
    assert 0 < corrected < 40 * 32


def test_a_model_as_teacher_says_what_the_shield_makes_of_its_likeliest_command():
    env = made("algo.imitation=5", "teacher=pretrained", "env.action_repeat=5")
    network = load_policy("pretrained").act.network
    shield, out, changed = ShieldedPilot(lambda seen: None, env.simulator), env.make_step(), 0
    for _ in range(20):
        rows = env.observe()
        advice = env.advise(rows, torch.zeros(32, 3))
        seen = env.observation.split(rows)
        inputs = torch.cat([seen[name].flatten(1) for name in INPUTS], 1)
        heads = network.infer(inputs)
        likeliest = to_velocity(beta.mode(heads), 2.0)
        filtered = torch.from_numpy(shield.filtered(seen, likeliest).velocity).float()
        torch.testing.assert_close(advice, filtered, atol=1e-5, rtol=0)
        changed += int((advice - likeliest).abs().gt(1e-3).any(1).sum())
        env.step(advice, out=out)
    assert changed > 0
    assert (likeliest - to_velocity(beta.mean(heads), 2.0)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("straigt", "expected straight, own, pretrained, or a model.*Did you mean 'straight'"),
        ("orca", "teacher is 'orca'; expected straight, own"),
    ],
)
def test_a_teacher_that_there_is_not_is_refused_before_anything_is_compiled(tmp_path, name, told):
    words = [*TINY, "algo.imitation=5", f"teacher={name}", f"run_folder={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=told):
        NavigationTask(load_config(words))
    with pytest.raises(ConfigError, match=told):
        navrl.train(words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [("sensor.lidar_hres=5", "lidar.rays 72"), ("env.action_repeat=6", "control_rate 10.4")],
)
def test_a_teacher_that_was_trained_for_another_robot_is_refused(change, told):
    with pytest.raises(ConfigError, match=f"'pretrained' was trained for another robot: .*{told}"):
        made("algo.imitation=5", "teacher=pretrained", "env.action_repeat=5", change)


def test_a_run_does_not_go_on_under_another_model_of_the_same_name(tmp_path):
    state = load_checkpoint(PRETRAINED)
    save_checkpoint(state, tmp_path / "model.pt")
    words = ["algo.imitation=5", f"teacher={tmp_path / 'model.pt'}", "env.action_repeat=5"]
    saved = made(*words).state_dict()
    made(*words).load_state_dict(saved)
    for value in state["parameters"].values():
        value += 1e-3
    save_checkpoint(state, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match="is another model now than when this run began"):
        made(*words).load_state_dict(saved)


def test_a_command_beyond_the_climb_limit_is_no_reason_for_advice():
    env = made("algo.imitation=5", "teacher=own", "robot=ground")
    level, climbing = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.5]])
    rows = env.observe()
    without, with_climb = (env.advise(rows, one.expand(32, 3)) for one in (level, climbing))
    assert without.isnan().any()
    assert torch.equal(without.isnan(), with_climb.isnan())


@pytest.mark.parametrize(
    "words",
    [
        ["preset=quick", "algo=ppo_exact"],
        ["preset=quick", "algo=sac"],
        ["preset=quick", "env=gymnasium", "env.id=Pendulum-v1"],
    ],
)
def test_what_a_preset_imitates_does_not_reach_other_algorithms_and_environments(words):
    assert load_config(["preset=quick"]).algo.imitation > 0
    assert load_config(words).algo.imitation == 0
    with pytest.raises(ConfigError, match="teacher=own' has no effect without"):
        load_config([*words, "teacher=own"])


@pytest.mark.slow
def test_it_crosses_the_field_far_more_often_than_a_straight_line():
    task = load_config([*SMALL, "env.num_envs=64", "env.action_repeat=6"]).task
    task.env.action_frame = "goal"
    success = {}
    for name in ("straight", "taught"):
        env = NavigationEnv(task, seed=3, auto_reset=False)
        env.reset(seed=3)
        teacher = StraightTeacher(env)

        def act(parts, teacher=teacher, env=env):
            rows = torch.zeros(len(parts["state"]), env.layout.width)
            env.layout.pack(parts, rows)
            return teacher(rows, rows[:, :0])

        pilot = load_policy("straight", task).act if name == "straight" else act
        success[name] = evaluate(env, pilot).success.float().mean().item()
    assert success["straight"] < 0.1
    assert success["taught"] > 0.6


def trained(*overrides, iterations=2, state=None):
    trainer = make_trainer(load_config([*TINY, *overrides]), Team())
    if state is not None:
        trainer.load(state)
    reports = [trainer.learn(trainer.collect()) for _ in range(iterations)]
    return trainer, reports


@pytest.mark.slow
@pytest.mark.parametrize("collection", ["false", "true"])
def test_a_training_under_a_teacher_resumes_bit_for_bit(collection):
    words = [
        "algo.imitation=5",
        "algo.imitation_until=1.0",
        f"use_pipelined_collector={collection}",
    ]
    whole, reports = trained(*words, iterations=3)
    first, _ = trained(*words, iterations=1)
    state = first.shared_state() | {"ranks": [first.own_state()]}
    resumed, rest = trained(*words, iterations=2, state=state)
    assert [report["imitation_loss"] for report in rest] == [
        report["imitation_loss"] for report in reports[1:]
    ]
    assert all(report["imitation_loss"] > 0 for report in reports)
    for one, other in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_environment_without_a_teacher_refuses_imitation():
    words = ["env=gymnasium", "env.id=Pendulum-v1", "env.num_envs=2", "algo.imitation=5"]
    with pytest.raises(ConfigError, match="has no teacher"):
        make_trainer(load_config(words), Team())
    words[1] = "env.id=CartPole-v1"
    with pytest.raises(ConfigError, match="are choices"):
        make_trainer(load_config(words), Team())
