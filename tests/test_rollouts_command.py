"""A training keeps its rollouts, and `navrl rollouts` lists them, draws them, and hands them to
Minari and Arrow.
"""

from __future__ import annotations

import io
import json
import shutil
import signal

import numpy as np
import pytest
import torch
from rich.console import Console

from navrl.cli import main
from navrl.config import as_dict, load_config
from navrl.errors import ConfigError, RolloutError
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.io.checkpoint.listing import list_entries
from navrl.io.rollouts.dataset_export import export_minari, export_parquet
from navrl.io.rollouts.experience import read_experience
from navrl.io.rollouts.storage import RolloutStorage
from navrl.registry.upload_policy import UploadPolicy
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.tracking.tracker import Tracking
from navrl.training.display import PlainDisplay
from navrl.training.distributed.team import Team
from navrl.training.loop import Ending, Start, lead
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.resume.continued_run import continued_config
from navrl.training.run_folder import RunFolder
from navrl.training.saving import batches
from navrl.training.saving.publisher import Publisher
from navrl.training.signals import StopRequest
from navrl.view.rollouts import read_flight

SMALL = (
    "preset=smoke",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "env_dyn.num_obstacles=8",
    "algo.training_frame_num=32",
    "algo.num_minibatches=2",
    "max_frame_num=4096",
    "env.max_episode_length=40",
    "flight.episodes=8",
    "flight.interim_episodes=8",
    "flight.worlds=2",
    "eval_interval=0",
    "save_interval=10",
    "processes=1",
)
SAC = (
    "algo=sac",
    "sac.warmup=100",
    "sac.training_frame_num=8",
    *(word for word in SMALL if not word.startswith("algo.")),
)


class Watched(PlainDisplay):
    """Keeps the shares of the time that were shown last."""

    def update(self, status):
        (self.folder / "phases.json").write_text(json.dumps(status.phases))


def train(folder, *overrides, settings=SMALL, stop=None, resume=False):
    config, request = load_config([*settings, *overrides]), StopRequest()
    request.signal = stop
    order = Start(config, load_checkpoint(folder / "checkpoints" / "latest") if resume else None)
    with (
        RunFolder.open(folder) if resume else RunFolder.create(folder, "", "navrl train") as run,
        Tracking(config.tracking, {}, folder) as tracking,
    ):
        display = Watched(Console(file=io.StringIO()), "")
        display.folder = folder
        ended = lead(
            Team(), order, run, display, request, Publisher(UploadPolicy(name=""), tracking)
        )
    assert ended == Ending(finished=stop is None)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(
        tmp_path_factory.mktemp("kept") / "run", "rollout_save_interval=1", "rollout_keep_last_n=3"
    )


@pytest.fixture(scope="module")
def storage(run):
    return RolloutStorage(run / "rollouts")


# ------------------------------------------------------------------ training


@pytest.mark.slow
def test_a_training_leaves_its_last_rollouts(storage):
    assert storage.list() == [2, 3, 4]
    info = storage.info(4)
    assert (info.envs, info.steps, info.time_first) == (32, 32, True)
    assert info.keys["observation/lidar"].shape == (32, 32, 1, 36, 4)
    assert {
        "observation/state",
        "observation/dynamic_obstacle",
        "action",
        "reward",
        "ended",
        "value",
    } <= set(info.keys)
    assert info.metadata["lidar_range"] == 4.0
    assert info.metadata["frames"] == 4096


@pytest.mark.slow
def test_what_is_kept_is_what_was_flown(storage):
    config = load_config([*SMALL])
    trainer = PPOTrainer(config, Team())
    for _ in range(2):
        batch = trainer.collect()
        kept = batches.batch_arrays(batch, trainer.env.observation)
        expected = {
            name: value.clone() for name, value in kept.items() if isinstance(value, torch.Tensor)
        }
        lidar = kept["observation"]["lidar"].clone()
        trainer.learn(batch)
    found = storage.load(2)
    assert torch.equal(found["observation"]["lidar"], lidar)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_keeping_rollouts_changes_no_bit_of_the_training(run, tmp_path):
    other = train(tmp_path / "other")
    assert not (other / "rollouts").exists()
    assert RolloutStorage(other / "checkpoints").list() == []
    kept, plain = (load_checkpoint(folder / "checkpoints" / "latest") for folder in (run, other))
    for name, value in plain["model_state_dict"].items():
        assert torch.equal(kept["model_state_dict"][name], value), name
    assert torch.equal(kept["ranks"][0]["actions"], plain["ranks"][0]["actions"])


def test_obstacles_stand_where_they_are_in_the_frame_of_the_path(tmp_path):
    settings = NavigationSettings.of(
        env__num_envs=8, env__num_worlds=1, env__layout="navrl_eval", env__action_repeat=40
    )
    env = NavigationEnv(settings, seed=0)
    env.reset()
    start = env.position * torch.tensor([1.0, 0.3, 1.0])  # among the obstacles
    env.place(start, env.target)
    observation, truth = env.observe(), env.obstacles(0)["position"][:, :2].numpy()
    kept = {
        "observation": {name: part[None] for name, part in observation.items()},
        "ended": torch.zeros(1, 8, dtype=torch.bool),
    }
    about = {"lidar_range": 4.0, "task": settings.as_dict()}
    with RolloutStorage(tmp_path, time_first=True) as storage:
        storage.save(kept, 0, metadata=about)
    boxes = env.pool.worlds[0].boxes
    seen = 0
    for drone in range(8):
        flight = read_flight(RolloutStorage(tmp_path), 0, drone)
        (x, y), goal = env.forward[drone].numpy(), env.target[drone, :2].numpy()
        turn = np.array([[x, -y], [y, x]])
        for point in flight.rays[0][~np.isnan(flight.rays[0, :, 0])] @ turn.T + goal:
            across = np.maximum(boxes[:, 0] - point[0], point[0] - boxes[:, 1]).clip(0)
            along = np.maximum(boxes[:, 2] - point[1], point[1] - boxes[:, 3]).clip(0)
            assert np.hypot(across, along).min() < 0.01
            seen += 1
        for point in flight.moving[0][~np.isnan(flight.moving[0, :, 0])] @ turn.T + goal:
            assert np.linalg.norm(truth - point, axis=1).min() < 0.01
            seen += 1
    assert seen > 100


def test_the_steps_without_anything_in_range_are_told(run, tmp_path, capsys):
    picture = str(tmp_path / "flight.png")
    assert main(["rollouts", "show", str(run), "--env", "0", "--png", picture]) == 0
    flight = read_flight(RolloutStorage(run / "rollouts"), 4, 0)
    told = f"nothing within the LiDAR's 4 m in {flight.saturated.sum()} of 32 steps"
    assert (told in capsys.readouterr().out) == bool(flight.saturated.any())
    assert ((flight.clearance < 4.0) != flight.saturated).all()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SMALL, SAC], ids=["PPO", "SAC"])
def test_the_last_batch_is_kept_beside_each_checkpoint_if_asked_for(settings, tmp_path, capsys):
    keys = ("compress_lidar=true", "rollout_save_interval=1", "save_interval=1", "keep_last_n=2")
    both = train(tmp_path / "both", *keys, settings=settings)
    before, beside = RolloutStorage(both / "rollouts"), RolloutStorage(both / "checkpoints")
    last = before.list()[-1]
    assert (
        beside.list()
        == [last - 1, last]
        == [entry.step for entry in list_entries(both / "checkpoints")]
    )
    for iteration in beside.list():  # kept after it was learnt from, and the other before
        assert_same(beside.load(iteration), before.load(iteration))
        assert beside.info(iteration).metadata == before.info(iteration).metadata
    shutil.rmtree(both / "rollouts")
    assert main(["rollouts", "ls", str(both)]) == 0
    assert "2 rollouts" in capsys.readouterr().out


@pytest.mark.slow
def test_a_batch_stays_as_long_as_its_checkpoint_also_in_a_resumed_run(tmp_path):
    keys = ("save_interval=1", "keep_last_n=1")
    folder = train(tmp_path / "run", "compress_lidar=true", "max_frame_num=2048", *keys)
    checkpoints = folder / "checkpoints"
    assert RolloutStorage(checkpoints).list() == [2]
    (checkpoints / "demo").symlink_to("checkpoint_000000002.pt")
    train(folder, *keys, resume=True)  # four iterations, and no more batches
    assert [entry.step for entry in list_entries(checkpoints)] == [2, 4]
    assert RolloutStorage(checkpoints).list() == [2]
    (checkpoints / "demo").unlink()
    train(folder, *keys, "max_frame_num=5120", resume=True)
    assert [entry.step for entry in list_entries(checkpoints)] == [5]
    assert RolloutStorage(checkpoints).list() == []


def assert_same(found, expected):
    """Compare two rollouts, every array of them."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_same(found[name], value)
        else:
            assert torch.equal(found[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "steps"), [(SMALL, 32), (SAC, 8)], ids=["PPO", "SAC"])
def test_a_checkpoint_that_a_signal_asked_for_has_its_batch_too(tmp_path, settings, steps):
    stopped = train(
        tmp_path / "stopped", "compress_lidar=true", settings=settings, stop=signal.SIGTERM
    )
    beside = RolloutStorage(stopped / "checkpoints")
    assert beside.list() == [1]
    assert (beside.info(1).steps, beside.info(1).metadata["frames"]) == (steps, 32 * steps)


def test_a_resumed_run_may_keep_other_rollouts():
    saved = as_dict(load_config([*SMALL]))
    config = continued_config(
        saved, ["rollout_save_interval=5", "rollout_keep_last_n=1", "compress_lidar=true"]
    )
    assert (config.rollout_save_interval, config.rollout_keep_last_n, config.compress_lidar) == (
        5,
        1,
        True,
    )


def test_the_time_of_keeping_is_watched(run):
    assert json.loads((run / "phases.json").read_text())["rollout_save"] > 0


def test_a_rollout_that_cannot_be_kept_warns_and_training_goes_on(tmp_path):
    (tmp_path / "file").write_text("no folder")
    trainer = PPOTrainer(load_config([*SMALL]), Team())
    storage = RolloutStorage(tmp_path / "file", time_first=True, on_error="warn")
    batches.keep_batch(storage, trainer, trainer.collect(), 1)
    with pytest.warns(RuntimeWarning, match="not saved"):
        storage.close()
    with pytest.warns(RuntimeWarning, match="was not kept.*closed"):
        batches.keep_batch(storage, trainer, trainer.collect(), 1)


# ------------------------------------------------------------------ commands


def test_ls_lists_the_rollouts_of_a_run(run, capsys):
    assert main(["rollouts", "ls", str(run)]) == 0
    told = capsys.readouterr().out
    assert "3 rollouts" in told
    assert " 4 │" in told


def test_show_prints_the_keys_and_draws_the_flight(run, tmp_path, capsys):
    assert (
        main(
            [
                "rollouts",
                "show",
                str(run / "rollouts"),
                "3",
                "--env",
                "5",
                "--png",
                str(tmp_path / "flight.png"),
            ]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "rollout_000000003.navrl: 32 environments x 32 steps" in told
    assert "observation/lidar" in told
    assert "least clearance" in told
    assert (tmp_path / "flight.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ls", "{run}/checkpoints"], "holds no rollouts"),
        (["ls", "{run}/nothing"], "holds no rollouts"),
        (["show", "{run}", "99"], "no rollout of iteration 99; there are 2, 3, 4"),
        (["show", "{run}", "--env", "32", "--png", "{tmp}/x.png"], "environment 32 is asked for"),
        (["show", "{run}", "--png", "/proc/x.png"], "--png /proc/x.png cannot be written"),
        (["export", "{run}", "--minari", "{tmp}", "--dataset-id", "../x"], "dataset_id is '../x'"),
    ],
)
def test_a_mistake_exits_2_and_is_named(run, tmp_path, capsys, arguments, told):
    assert main(["rollouts", *(word.format(run=run, tmp=tmp_path) for word in arguments)]) == 2
    assert told in capsys.readouterr().err


def test_the_flight_is_where_the_simulator_says_it_was():
    """The place seen from the goal, rebuilt from the observed state, has the true distance to the
    goal.
    """
    trainer = PPOTrainer(load_config([*SMALL]), Team())
    from navrl.view.rollouts import _from_goal

    state = trainer.env.simulator.observe()["state"].numpy()
    away = (trainer.env.simulator.position - trainer.env.simulator.target).numpy()
    found = _from_goal(state)
    np.testing.assert_allclose(
        np.linalg.norm(found, axis=1), np.linalg.norm(away, axis=1), rtol=1e-4
    )
    np.testing.assert_allclose(found[:, 2], away[:, 2], atol=1e-4)


def test_clearance_is_the_shortest_ray(storage):
    flight = read_flight(storage, 4, 7)
    scan = storage.load(4, envs=7, keys=["observation/lidar"])["observation"]["lidar"]
    np.testing.assert_allclose(flight.clearance, 4.0 - scan.flatten(1).amax(1).numpy())
    assert sum(part.stop - part.start for part in flight.parts) == 32


# ------------------------------------------------------------------ export


def episodes_of(storage, iteration):
    """Return (environment, start, stop) of every episode, the slow way."""
    ended = storage.load(iteration)["ended"].numpy()
    found = []
    for env in range(ended.shape[1]):
        start = 0
        for step in range(ended.shape[0]):
            if ended[step, env] or step == ended.shape[0] - 1:
                found.append((env, start, step + 1))
                start = step + 1
    return found


@pytest.mark.slow
def test_minari_reads_the_export_by_its_name(run, storage, tmp_path, monkeypatch, capsys):
    minari = pytest.importorskip("minari")
    assert (
        main(["rollouts", "export", str(run), "--minari", str(tmp_path), "--iterations", "3", "4"])
        == 0
    )
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("navrl/rollouts-v0")
    expected = [
        (iteration, *episode) for iteration in (3, 4) for episode in episodes_of(storage, iteration)
    ]
    assert dataset.total_episodes == len(expected) > 64  # some ended inside
    assert dataset.total_steps == 2 * 32 * 32
    loaded = {iteration: storage.load(iteration) for iteration in (3, 4)}
    for number in (0, 5, len(expected) - 1):
        iteration, env, start, stop = expected[number]
        data, episode = loaded[iteration], dataset[number]
        assert len(episode.observations["lidar"]) == stop - start + 1
        np.testing.assert_array_equal(
            episode.observations["lidar"][:-1],
            data["observation"]["lidar"][start:stop, env].numpy(),
        )
        np.testing.assert_array_equal(
            episode.actions, 4 * data["action"][start:stop, env].numpy() - 2
        )
        np.testing.assert_array_equal(episode.rewards, data["reward"][start:stop, env].numpy())
        assert episode.terminations[-1] != episode.truncations[-1]
        assert not episode.terminations[:-1].any()
        if stop == 32 and not data["ended"][31, env]:
            np.testing.assert_array_equal(
                episode.observations["state"][-1], data["last_observation"]["state"][env].numpy()
            )
    with pytest.raises(ConfigError, match="exists; choose another dataset_id"):
        export_minari(storage, tmp_path)


def test_minari_recovers_the_environment_from_an_export_to_a_relative_folder(
    run, tmp_path, monkeypatch, capsys
):
    minari = pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    assert main(["rollouts", "export", str(run), "--minari", "datasets", "--iterations", "4"]) == 0
    assert f"MINARI_DATASETS_PATH={tmp_path / 'datasets'} " in capsys.readouterr().out
    monkeypatch.setenv("MINARI_DATASETS_PATH", "datasets")
    dataset = minari.load_dataset("navrl/rollouts-v0")
    environment = dataset.recover_environment()
    assert (
        environment.unwrapped.simulator.settings.env.max_episode_length
        == load_config(SMALL).env.max_episode_length
    )
    assert dataset.observation_space == environment.observation_space
    assert dataset.action_space == environment.action_space
    assert (dataset.action_space.high == 2).all()
    environment.reset(seed=1)
    for episode in (dataset[0], dataset[7]):
        seen = {name: part[0] for name, part in episode.observations.items()}
        assert seen in dataset.observation_space
        assert all(action in dataset.action_space for action in episode.actions)
        environment.step(episode.actions[0])


def test_an_environment_of_another_task_is_refused(storage, tmp_path):
    pytest.importorskip("minari")
    gymnasium = pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match="the environment has"):
        export_minari(storage, tmp_path, environment=gymnasium.make("Pendulum-v1"))
    assert not (tmp_path / "navrl").exists()


def test_a_time_limit_is_a_truncation_and_a_collision_a_termination(storage):
    experience = read_experience(storage, 4)
    data = storage.load(4)
    ended, cut = data["ended"].T.numpy(), data["cut_value"].T.numpy()
    assert ended.any()
    np.testing.assert_array_equal(experience.ended, ended)
    np.testing.assert_array_equal(experience.truncated, ended & (cut != 0))


def test_arrow_reads_the_export(run, storage, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert (
        main(
            ["rollouts", "export", str(run), "--parquet", str(tmp_path / "deep" / "steps.parquet")]
        )
        == 0
    )
    table = parquet.read_table(tmp_path / "deep" / "steps.parquet")
    assert table.num_rows == 3 * 32 * 32
    shapes = json.loads(table.schema.metadata[b"navrl_shapes"])
    assert shapes["observation/lidar"] == [1, 36, 4]
    assert table["iteration"].to_numpy().tolist() == np.repeat([2, 3, 4], 1024).tolist()
    data = storage.load(3)
    lidar = (
        table["observation/lidar"]
        .combine_chunks()
        .flatten()
        .to_numpy()
        .reshape(3, 32, 32, 1, 36, 4)[1]
    )
    np.testing.assert_array_equal(lidar, data["observation"]["lidar"].swapaxes(0, 1).numpy())
    np.testing.assert_array_equal(
        table["reward"].to_numpy().reshape(3, 32, 32)[1], data["reward"].T.numpy()
    )
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["steps.parquet"]


def test_torchrl_names_are_understood(tmp_path):
    from tensordict import TensorDict

    done = torch.zeros(4, 6, 1, dtype=torch.bool)
    done[2, 3] = True
    data = TensorDict(
        {
            "observation": torch.rand(4, 6, 5),
            "action": torch.rand(4, 6, 2),
            "next": {
                "observation": torch.rand(4, 6, 5),
                "reward": torch.rand(4, 6, 1),
                "done": done,
                "terminated": done,
                "truncated": torch.zeros_like(done),
            },
        },
        batch_size=[4, 6],
    )
    with RolloutStorage(tmp_path) as storage:
        storage.save(data, 1)
        experience = read_experience(storage, 1)
        assert [*experience.episodes()] == [(0, 0, 6), (1, 0, 6), (2, 0, 4), (2, 4, 6), (3, 0, 6)]
        np.testing.assert_array_equal(
            experience.after(2, 4), data["next", "observation"][2, 3].numpy()
        )
        storage.save({"reward": torch.rand(4, 6)}, 2)
        with pytest.raises(RolloutError, match="rollout 2 has no observation"):
            read_experience(storage, 2)
        with pytest.raises(ConfigError, match="rollout 2 has other arrays"):
            export_parquet(storage, tmp_path / "x.parquet")
        assert not [*tmp_path.glob("*parquet*")]


def test_a_folder_that_was_half_exported_does_not_appear(tmp_path, storage, monkeypatch):
    pytest.importorskip("minari")
    from navrl.io.rollouts import dataset_export

    def fail(experience):
        raise KeyboardInterrupt

    monkeypatch.setattr(dataset_export, "_minari_episodes", fail)
    with pytest.raises(KeyboardInterrupt):
        export_minari(storage, tmp_path)
    assert [*(tmp_path / "navrl").iterdir()] == []
    shutil.rmtree(tmp_path / "navrl")
