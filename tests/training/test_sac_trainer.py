"""SAC on the navigation task: it learns from its memory, and goes on bit for bit with it."""

from __future__ import annotations

import copy

import pytest
import torch

from navrl.cli import main
from navrl.config import as_dict, load_config
from navrl.errors import ConfigError, StateError
from navrl.evaluation import load_policy
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.metrics_log import MetricsLog
from navrl.training.distributed.team import Team
from navrl.training.sac_trainer import SACTrainer

SMALL = (
    "preset=smoke",
    "algo=sac",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "env_dyn.num_obstacles=8",
    "sac.training_frame_num=8",
    "sac.batch_size=64",
    "sac.warmup=512",
    "sac.capacity=4000",
    "sac.critic_width=32",
    "max_frame_num=2048",
    "env.max_episode_length=96",
    "flight.episodes=8",
    "flight.interim_episodes=8",
    "flight.worlds=2",
    "flight.recorded=0",
    "flight.animation=false",
)


def trainer_of(*overrides):
    return SACTrainer(load_config([*SMALL, *overrides]), Team())


def state_of(trainer):
    """What a checkpoint holds, as the loop puts it together."""
    return copy.deepcopy(
        trainer.shared_state() | {"ranks": [trainer.own_state()], "config": as_dict(trainer.config)}
    )


@pytest.fixture(scope="module")
def trained():
    """A trainer after eight batches, the reports of each, and its state after four."""
    trainer, reports = trainer_of(), []
    for number in range(8):
        reports.append(trainer.learn(trainer.collect()))
        if number == 3:
            state = state_of(trainer)
    return trainer, reports, state


@pytest.mark.slow
def test_it_flies_at_random_until_its_memory_is_warm_and_then_learns(trained):
    _, reports, _ = trained
    assert [report["updates"] for report in reports] == [0, 16, 16, 16, 16, 16, 16, 16]
    assert [report["remembered"] for report in reports] == [
        256 * (number + 1) for number in range(8)
    ]
    assert all(report["value_loss"] == report["value_loss"] for report in reports[1:])


def test_its_memory_gives_back_what_the_drones_saw():
    trainer = trainer_of()
    batch = trainer.collect()
    trainer.learn(batch)
    held = trainer.replay.get(torch.arange(256))
    used = trainer.layout.width
    assert torch.equal(trainer._observe(held, ""), batch.rows[..., :used].reshape(256, used))
    assert torch.equal(
        trainer._observe(held, "next/"), batch.next_rows[..., :used].reshape(256, used)
    )
    assert torch.equal(held["action"], batch.action.reshape(256, 3))


def test_what_it_learns_from_is_what_the_same_drone_met_next():
    """The memory holds 600 frames of 4000 and is full later: both are compared with a plain list of
    transitions.
    """
    trainer = trainer_of("sac.capacity=640", "sac.n_step=3", "sac.batch_size=512", "sac.gamma=0.9")
    history = []
    for _ in range(4):
        batch = trainer.collect()
        trainer.replay.extend(trainer._frames(batch))
        history += [
            (
                batch.rows[t].clone(),
                batch.next_rows[t].clone(),
                batch.reward[t].clone(),
                batch.terminated[t].clone(),
                batch.done[t].clone(),
            )
            for t in range(8)
        ]
        held = history[-20:]  # 640 frames are 20 steps of 32 drones
        found = trainer._sample()
        seen = {
            step[0][drone, : trainer.layout.width].numpy().tobytes(): (number, drone)
            for number, step in enumerate(held)
            for drone in range(32)
        }
        for row in range(512):
            number, drone = seen[trainer._observe(found, "")[row].numpy().tobytes()]
            total, power = 0.0, 1.0
            for later in held[number : number + 3]:
                total, power = total + power * later[2][drone].item(), power * 0.9
                if later[4][drone]:
                    break
            assert found["reward"][row].item() == pytest.approx(total, rel=1e-4, abs=1e-5)
            assert found["discount"][row].item() == pytest.approx(0.0 if later[3][drone] else power)
            assert torch.equal(
                trainer._observe(found, "next/")[row], later[1][drone, : trainer.layout.width]
            )


def test_its_memory_takes_a_fraction_of_its_frames():
    trainer = trainer_of("max_frame_num=100000")
    for _ in range(12):
        trainer.replay.extend(trainer._frames(trainer.collect()))
    assert trainer.replay.nbytes() / len(trainer.replay) < 0.3 * 4 * (2 * trainer.layout.width + 5)


def test_the_end_of_an_episode_is_followed_by_its_own_last_observation():
    trainer = trainer_of()
    ended = 0
    for _ in range(6):
        batch = trainer.collect()
        follows = (batch.next_rows[:-1] == batch.rows[1:]).all(2)
        assert torch.equal(follows, ~batch.done[:-1])
        assert len(batch.episodes) == batch.done.sum()
        ended += len(batch.episodes)
    assert ended > 0


@pytest.mark.slow
def test_it_goes_on_from_a_file_bit_for_bit(trained, tmp_path):
    finished, reports, state = trained
    save_checkpoint(state, tmp_path / "state.pt")
    other = trainer_of()
    other.load(load_checkpoint(tmp_path / "state.pt"))
    for expected in reports[4:]:
        found = other.learn(other.collect())
        assert {key: value for key, value in found.items() if value == value} == {
            key: value for key, value in expected.items() if value == value
        }
    for ours, theirs in zip(finished.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(finished.sac.target.weights[0], other.sac.target.weights[0])


def test_without_its_memory_it_fills_it_anew(trained):
    _, _, state = trained
    state = copy.deepcopy(state)
    state["ranks"][0]["replay"] = None
    trainer = trainer_of("sac.save_replay=false")
    trainer.load(state)
    reports = [trainer.learn(trainer.collect()) for _ in range(3)]
    assert [report["updates"] for report in reports] == [0, 16, 16]
    assert trainer.own_state()["replay"] is None


def test_a_checkpoint_of_ppo_is_refused(trained):
    trainer, _, state = trained
    with pytest.raises(StateError, match="algo=sac"):
        trainer.load({key: value for key, value in state.items() if key != "sac"})


def test_more_than_one_process_is_refused():
    with pytest.raises(ConfigError, match="one process"):
        load_config([*SMALL, "processes=2"])
    with pytest.raises(ConfigError, match="processes is 2; expected 1"):
        SACTrainer(load_config(SMALL), Team(0, 2))


@pytest.mark.parametrize("overrides", [["algo=sac", "algo.gamma=0.5"], ["sac.gamma=0.5"]])
def test_a_setting_of_the_other_algorithm_is_refused(overrides):
    with pytest.raises(ConfigError, match="no effect on"):
        load_config(overrides)


def test_a_training_that_would_never_learn_is_refused():
    with pytest.raises(
        ConfigError, match=r"sac.warmup is 20000; expected less than max_frame_num, 1000"
    ):
        load_config(["algo=sac", "max_frame_num=1000"])


@pytest.mark.parametrize(
    "override", ["algorithm=sac", "network.distribution=gaussian", "algorithm=td3"]
)
def test_an_algorithm_and_its_distribution_belong_together(override):
    with pytest.raises(ConfigError, match="algo"):
        load_config([override])


@pytest.mark.slow
def test_the_command_trains_stops_resumes_and_leaves_a_policy_that_flies(tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["train", *SMALL, f"run_folder={whole}", "headless=true"]) == 0
    assert (
        main(["train", *SMALL, f"run_folder={parts}", "headless=true", "max_frame_num=1024"]) == 0
    )
    # The schedules follow the length of a run, so the two differ; what counts is that it goes on
    # and ends.
    assert (
        main(["train", "resume=auto", f"run_folder={parts}", "headless=true", "max_frame_num=2048"])
        == 0
    )
    frames = [record["frames"] for record in MetricsLog.read(parts / "metrics.jsonl", "train")]
    assert frames == [256 * (number + 1) for number in range(8)]
    policy = load_policy(whole)
    assert policy.card["iteration"] > 0
    assert "success: within 1.0 m" in capsys.readouterr().out
