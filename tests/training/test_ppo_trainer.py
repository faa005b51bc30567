"""PPOTrainer: tasks split without overlap, evaluations without side effects, the best model kept."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from rich.console import Console

from navrl.config import PERIODIC_EVALUATION_OFFSET, as_dict, load_config
from navrl.environments.navigation_task import split_task
from navrl.errors import ConfigError, ContainerError, StateError
from navrl.evaluation import Flights, conditions, load_policy
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.metrics_log import MetricsLog
from navrl.models import load_model, model_state, save_model
from navrl.registry.registry import Registry
from navrl.registry.upload_policy import UploadPolicy
from navrl.rl.policy import NetworkPilot
from navrl.sim.env import NavigationEnv
from navrl.sim.episode_statistics import STATISTICS
from navrl.tracking.tracker import Tracking
from navrl.training.denormals import flushed_denormals
from navrl.training.display import PlainDisplay
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.run_folder import RunFolder
from navrl.training.run_log import RunLog
from navrl.training.saving.publisher import Publisher

SMALL = (
    "preset=smoke",
    "env.num_envs=32",
    "env.num_worlds=4",
    "env.num_obstacles=10",
    "env_dyn.num_obstacles=8",
    "algo.training_frame_num=8",
    "algo.num_minibatches=2",
    "max_frame_num=2048",
    "env.max_episode_length=96",
    "flight.episodes=8",
    "flight.interim_episodes=8",
    "flight.worlds=2",
)


def configured(*overrides):
    return load_config([*SMALL, *overrides])


def trainer_of(*overrides):
    return PPOTrainer(configured(*overrides), Team())


def shapes(env):
    """Return the boxes of each world as bytes."""
    return [world.boxes.tobytes() for world in env.pool.worlds]


# ---------------------------------------------------------------------- sharing


@pytest.fixture(scope="module")
def shared():
    """The environment of one process, and those of two that share its task."""
    config = configured(
        "env.num_worlds=6",
        "env.obstacles_per_world=[3,5,7,9]",
        "env_dyn.obstacles_per_world=[0,8,16,24]",
        "env.map_seed=7",
    )
    shares = [(0, 1), (0, 2), (1, 2)]
    return config.task, [NavigationEnv(split_task(config.task, *share)) for share in shares]


def test_two_processes_share_the_drones(shared):
    _, (whole, first, second) = shared
    assert first.num_envs == second.num_envs
    assert first.num_envs + second.num_envs == whole.num_envs


def test_the_worlds_of_two_processes_are_those_of_one_without_overlap(shared):
    _, (whole, first, second) = shared
    assert shapes(first) + shapes(second) == shapes(whole)
    assert len(set(shapes(whole))) == 6


def test_every_world_keeps_its_number_of_obstacles(shared):
    _, (whole, first, second) = shared
    assert (
        [*first.pool.moving_counts, *second.pool.moving_counts]
        == [*whole.pool.moving_counts]
        == [0, 8, 16, 24, 0, 8]
    )


def test_a_share_leaves_the_task_as_it_was(shared):
    task, _ = shared
    before = copy.deepcopy(task)
    split_task(task, 1, 2)
    assert task == before


def test_one_map_for_all_stays_the_map_of_all():
    task = configured("env.same_map=true").task
    assert split_task(task, 1, 2).env.map_seed == task.env.map_seed
    assert split_task(task, 1, 2).env.num_worlds == task.env.num_worlds


def test_a_process_of_several_simulates_in_one_thread():
    assert split_task(configured("sim.num_threads=4").task, 1, 2).sim.num_threads == 1
    assert split_task(configured("sim.num_threads=4").task, 0, 1).sim.num_threads == 4


def test_drones_that_cannot_be_shared_evenly_are_an_error_that_names_the_setting():
    with pytest.raises(ConfigError, match=r"env\.num_envs is 33.*multiple of the 2 processes"):
        split_task(configured("env.num_envs=33").task, 0, 2)


# ------------------------------------------------------------------- evaluation


def batch_of(trainer):
    batch = vars(trainer.collect())
    return {name: value.clone() for name, value in batch.items() if value is not None}


def test_an_evaluation_does_not_disturb_the_training():
    watched, left_alone = trainer_of(), trainer_of()
    for number in range(3):
        if number:
            watched.evaluate()
        seen, expected = batch_of(watched), batch_of(left_alone)
        assert {name: value.numpy().tobytes() for name, value in seen.items()} == {
            name: value.numpy().tobytes() for name, value in expected.items()
        }
        watched.learn(watched.collector._rollout)
        left_alone.learn(left_alone.collector._rollout)
    for name, value in watched.network.state_dict().items():
        assert torch.equal(value, left_alone.network.state_dict()[name])


def test_an_evaluation_takes_no_number_from_the_global_generators():
    trainer = trainer_of()
    torch.manual_seed(3)
    trainer.evaluate()
    told = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(told, torch.rand(4))


def test_the_same_policy_is_evaluated_alike_again_and_again():
    trainer = trainer_of()
    first, second = trainer.evaluate(), trainer.evaluate()
    labels = ["10 static", "10 static + 8 moving", "crossing 10 static + 8 moving"]
    assert list(first) == list(second) == labels
    for label in first:
        for name in STATISTICS:
            assert torch.equal(first[label].statistics[name], second[label].statistics[name])


def test_the_worlds_of_training_of_choosing_and_of_judging_are_different_ones():
    trainer = trainer_of()
    trainer.evaluate()
    chosen = {shape for env in trainer.task._environments.values() for shape in shapes(env)}
    config = trainer.config
    judged = {
        shape
        for task in conditions(config.task, config.flight).values()
        for shape in shapes(NavigationEnv(task, auto_reset=False))
    }
    learnt = {*shapes(trainer.env.simulator)}
    assert (len(learnt), len(chosen), len(judged)) == (4, 2, 2)
    assert len(learnt | chosen | judged) == 8


def test_as_many_worlds_as_there_may_be_are_still_different_ones():
    assert configured("flight.worlds=4096").flight.worlds <= PERIODIC_EVALUATION_OFFSET
    with pytest.raises(ConfigError, match=r"flight\.worlds"):
        configured("flight.worlds=4097")


# -------------------------------------------------------------------- the best


def flown(success, clearance, reward=0.0):
    """Return ten flights with so many successes in a hundred, and the same clearance and return in
    all.
    """
    names = (*STATISTICS, "spl", "effort", "time_ratio")
    statistics = {name: torch.zeros(10) for name in names}
    statistics["success_100"][: round(10 * success)] = 1.0
    statistics["min_clearance"][:] = clearance
    statistics["return"][:] = reward
    return Flights(statistics, torch.arange(10) % 2)


@pytest.fixture
def recorded(tmp_path):
    """Return a function that evaluates one model after another, and gives what was kept, and what
    the display said.
    """

    def evaluate(scores, **policy):
        trainer, kept, told = trainer_of(), [], io.StringIO()
        folder = RunFolder.create(tmp_path / "run", "", "navrl train")
        with (
            folder,
            MetricsLog(folder.metrics) as metrics,
            Tracking(trainer.config.tracking, as_dict(trainer.config), folder.path) as tracker,
        ):
            publisher = Publisher(UploadPolicy(**{"name": ""} | policy), tracker)
            record = RunLog(
                trainer, folder, PlainDisplay(Console(file=told), ""), metrics, publisher
            )
            for trainer.iteration, score in enumerate(scores, 1):
                record.evaluation({"static": flown(1.0, 1.0), "moving": flown(*score)})
                kept.append(load_checkpoint(folder.model_path)["card"]["iteration"])
        return trainer, kept, told.getvalue()

    return evaluate


def test_the_best_model_is_kept_by_success_then_by_clearance_among_moving_obstacles(
    recorded, tmp_path
):
    scores = [(0.0, 0.9), (0.5, 0.3), (0.5, 0.2), (0.5, 0.4), (0.4, 0.9), (0.5, 0.4), (0.7, 0.1)]
    trainer, kept, _ = recorded(scores)
    assert kept == [1, 2, 2, 4, 4, 4, 7]
    assert (trainer.best["iteration"], trainer.best["success_rate"]) == (7.0, pytest.approx(0.7))
    moving = load_policy(tmp_path / "run").card["evaluation"]["moving"]
    assert (
        moving["outcomes"]["success_100"]["share"] == moving["success_rate"] == pytest.approx(0.7)
    )


def test_of_models_that_never_succeed_the_one_with_the_highest_return_is_kept_and_any_success_is_better(
    recorded,
):
    _, kept, _ = recorded([(0.0, 0.5, 3.0), (0.0, 0.5, 4.0), (0.0, 0.5, 2.0), (0.1, 0.5, 1.0)])
    assert kept == [1, 2, 2, 4]


@pytest.mark.parametrize(
    ("metric", "mode", "kept", "told"),
    [
        ("mean_reward", "max", [1, 1, 3], "best mean_reward 12.5 so far"),
        ("mean_reward", "min", [1, 2, 2], "best mean_reward 10 so far"),
        ("success_rate", "max", [1, 2, 2], "best success_rate 0.5 so far"),
        ("time_to_goal", "min", [1, 2, 2], "best time_to_goal 0 so far"),
    ],
)
def test_the_model_of_a_run_and_the_best_of_the_registry_follow_the_metric_of_the_settings(
    recorded, tmp_path, monkeypatch, metric, mode, kept, told
):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    scores = [(0.0, 0.5, 12.0), (0.5, 0.5, 10.0), (0.1, 0.4, 12.5)]
    _, models, said = recorded(scores, name="flyer", best_model_metric=metric, best_model_mode=mode)
    assert models == kept
    assert told in said
    with Registry() as registry:
        best = registry.resolve("flyer:best")
        assert load_checkpoint(best.path)["card"]["iteration"] == kept[-1]
        assert f"registered as {best.label}: {told.removesuffix(' so far')}" in said
        assert best.metrics["mean_reward"] == best.metrics["mean_return"] == scores[kept[-1] - 1][2]


# ------------------------------------------------------------------ curriculum


@pytest.mark.parametrize(
    ("iteration", "penalty"), [(0, 2.0), (1, 4.0), (2, 6.0), (4, 10.0), (7, 10.0)]
)
def test_the_penalty_of_a_collision_grows_in_a_straight_line_and_stays(ramped, iteration, penalty):
    ramped.iteration = iteration
    ramped.collect()
    parameters = ramped.env.simulator._batch.parameters
    assert parameters["weight_collision"].item() == pytest.approx(penalty)


@pytest.fixture(scope="module")
def ramped():
    trainer = trainer_of(
        "reward.collision=2", "curriculum.final_collision=10", "curriculum.collision_until=0.5"
    )
    assert trainer.iterations == 8
    return trainer


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("extractor", ["cnn", "vit"])
def test_a_saved_model_flies_the_same_actions(tmp_path, extractor):
    trainer = trainer_of(f"network.extractor={extractor}", "env.action_limit=1.5")
    trainer.learn(trainer.collect())
    card = {"seed": 4, "evaluation": {"success": 0.5}}
    save_model(
        tmp_path / "model.pt",
        model_state(trainer.network, trainer.config.network, trainer.config.task, card),
    )
    network, task, read = load_model(tmp_path / "model.pt")
    observation = trainer.env.simulator.observe()
    action = NetworkPilot(trainer.applied, 1.5)(observation)
    assert action.abs().max() <= 1.5
    assert torch.equal(NetworkPilot(network, task.env.action_limit)(observation), action)
    assert torch.equal(load_policy(tmp_path / "model.pt")(observation), action)
    assert task == trainer.config.task
    assert read == card


def test_a_checkpoint_of_something_else_is_no_model(tmp_path):
    save_checkpoint({"parameters": {"weight": torch.zeros(3)}}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match=r"other\.pt is not a model of navrl.*model\.pt"):
        load_model(tmp_path / "other.pt")


def test_a_model_cut_short_is_refused(tmp_path):
    trainer = trainer_of()
    save_model(
        tmp_path / "model.pt",
        model_state(trainer.network, trainer.config.network, trainer.config.task, {}),
    )
    content = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(ContainerError, match=r"model\.pt"):
        load_model(tmp_path / "model.pt")


# ----------------------------------------------------------------------- saving


@pytest.mark.parametrize("options", [(), ("algo.average=0.9", "algo.mirror_share=0.5")])
def test_a_trainer_goes_on_from_a_saved_state_bit_for_bit(options):
    first, second = trainer_of(*options), trainer_of("seed=0", *options)
    first.learn(first.collect())
    state = copy.deepcopy(first.shared_state() | {"ranks": [first.own_state()]})
    second.load(state)
    for _ in range(2):
        assert first.learn(first.collect()) == pytest.approx(
            second.learn(second.collect()), abs=0, rel=0, nan_ok=True
        )
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name])
    for name, value in first.policy_network.state_dict().items():
        assert torch.equal(value, second.policy_network.state_dict()[name])
    assert (first.policy_network is first.network) == (not options)


def test_the_averaged_weights_are_evaluated_and_a_state_without_them_begins_with_its_weights():
    plain, averaged = trainer_of(), trainer_of("algo.average=0.9")
    state = copy.deepcopy(plain.shared_state() | {"ranks": [plain.own_state()]})
    assert "average" not in state
    averaged.load(state)
    assert torch.equal(averaged.policy_network.alpha.weight, plain.network.alpha.weight)
    with torch.no_grad():
        averaged.policy_network.alpha.bias.fill_(50.0)  # full speed ahead, to the left and up
    (flights, *_) = averaged.evaluate().values()
    (others, *_) = plain.evaluate().values()
    assert not torch.equal(flights.statistics["return"], others.statistics["return"])


def test_a_state_that_is_none_of_a_training_is_refused():
    with pytest.raises(StateError, match="no training state"):
        trainer_of().load({"model_state_dict": {}})


def test_a_state_of_an_older_navrl_is_read_under_the_names_of_today():
    trainer, old = trainer_of(), trainer_of("seed=1")
    state = old.shared_state() | {
        "ranks": [old.own_state()],
        "best": {"success": 0.5, "clearance": 0.2, "iteration": 4.0},
    }
    state["network"] = state.pop("model_state_dict")
    trainer.load(state)
    for name, value in trainer.network.state_dict().items():
        assert torch.equal(value, state["network"][name])
    assert trainer.best == {"success_100": 0.5, "min_clearance": 0.2, "iteration": 4.0}


def test_a_state_of_two_processes_is_loaded_by_one_which_begins_new_episodes():
    trained, trainer = trainer_of(), trainer_of()
    trained.learn(trained.collect())
    own = trained.own_state()
    trainer.load(trained.shared_state() | {"ranks": [own, own]})
    assert trainer.iteration == 1
    for name, value in trainer.network.state_dict().items():
        assert torch.equal(value, trained.network.state_dict()[name])
    assert not torch.equal(trainer.own_state()["actions"], own["actions"])
    trainer.learn(trainer.collect())


# --------------------------------------------------------------------- learning


def test_numbers_next_to_zero_are_zero_in_a_training_and_only_there():
    def smallest():
        return float(np.float64(5e-324) * np.float64(1)), float(
            torch.tensor(1e-310, dtype=torch.float64) * 1
        )

    assert all(smallest())
    with flushed_denormals():
        assert smallest() == (0, 0)
        with flushed_denormals():
            pass
        assert smallest() == (0, 0)
    assert all(smallest())


@pytest.mark.slow
def test_a_short_training_learns_to_fly_at_the_goal():
    """In an empty world, where seeds 0 to 6 reach a return of 4.9 to 5.9."""
    trainer = trainer_of(
        "env.num_envs=256",
        "env.num_obstacles=0",
        "env_dyn.num_obstacles=0",
        "env.max_episode_length=320",
        "env.action_repeat=8",
        "drone.model_name=first_order",
        "reward.static=0",
        "reward.dynamic=0",
        "algo.training_frame_num=16",
        "algo.num_minibatches=4",
        "algo.training_epoch_num=2",
        "max_frame_num=49_152",
        "flight.interim_episodes=64",
    )
    before, *_ = trainer.evaluate().values()
    while trainer.iteration < trainer.iterations:
        trainer.learn(trainer.collect())
    after, *_ = trainer.evaluate().values()
    assert abs(before.rate("return")[0]) < 0.1
    assert after.rate("return")[0] > 3
