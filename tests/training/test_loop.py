"""The loop, led by this process: whatever fails after an iteration, its state is saved, and no
signal is lost.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import signal

import pytest
from rich.console import Console

import navrl.api.train_policy
from navrl.cli import main
from navrl.config import load_config
from navrl.environments import navigation_task
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.registry.upload_policy import UploadPolicy
from navrl.tracking.tracker import Tracking
from navrl.training.display import PlainDisplay
from navrl.training.distributed.team import TeamError
from navrl.training.loop import Start, follow, lead
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.run_folder import RunFolder
from navrl.training.saving.publisher import Publisher
from navrl.training.signals import StopRequest
from navrl.training.status import Status
from teams import team_of
from training_runs import TINY, checkpoints, same, steps

SHORT = (*TINY, "max_frame_num=1024")  # four iterations
NOTHING_PUBLISHED = UploadPolicy(name="")


class Broken(PlainDisplay):
    def update(self, status: Status) -> None:
        if status.iteration == 3:
            raise KeyError("a mistake of ours")


def train(path, *overrides, display=PlainDisplay, policy=NOTHING_PUBLISHED):
    """Train in a folder and return how it ended; this process leads."""
    config = load_config([*SHORT, *overrides])
    order = Start(config)
    with (
        RunFolder.create(path, "", "navrl train") as folder,
        Tracking(config.tracking, {}, folder.path) as tracking,
        Publisher(policy, tracking) as publisher,
        team_of(config.processes, follow) as team,
    ):
        return lead(
            team, order, folder, display(Console(file=io.StringIO()), ""), StopRequest(), publisher
        )


def test_after_an_error_between_iterations_a_last_checkpoint_is_written(tmp_path):
    with pytest.raises(KeyError, match="a mistake of ours"):
        train(tmp_path / "run", "save_interval=1000", display=Broken)
    assert steps(tmp_path / "run") == [0, 3]


def test_a_model_to_publish_that_can_be_neither_written_nor_removed_does_not_end_the_training(
    tmp_path,
):
    folder = tmp_path / "run"
    (folder / "present.pt" / "in the way").mkdir(parents=True)
    assert train(folder, "eval_interval=0", policy=UploadPolicy(upload_frequency=1)).finished
    assert steps(folder)[-1] == 4


@pytest.fixture(scope="module")
def third_of_two(tmp_path_factory):
    """The third checkpoint of a training of two processes that nothing disturbed."""
    folder = tmp_path_factory.mktemp("two") / "run"
    assert train(folder, "processes=2", "save_interval=1", "eval_interval=0").finished
    assert steps(folder) == [1, 2, 3, 4]
    return load_checkpoint(checkpoints(folder)[2])


def fail_in(part: str, monkeypatch) -> type[PlainDisplay]:
    """Let a part of the leader fail after the third iteration, and return the display to train
    with.
    """

    def fail(*_):
        raise KeyError("a mistake of ours")

    if part == "display":
        return Broken
    module, name = {
        "flight": (navigation_task, "evaluate"),
        "summary": (navigation_task.NavigationTask, "summary"),
    }[part]
    monkeypatch.setattr(module, name, fail)
    return PlainDisplay


@pytest.mark.slow
@pytest.mark.parametrize("part", ["display", "flight", "summary"])
def test_an_error_of_the_leader_saves_the_state_of_the_whole_team(
    tmp_path, monkeypatch, third_of_two, part
):
    display = fail_in(part, monkeypatch)
    interval = "eval_interval=0" if part == "display" else "eval_interval=3"
    with pytest.raises(KeyError, match="a mistake of ours"):
        train(tmp_path / "run", "processes=2", "save_interval=1000", interval, display=display)
    assert steps(tmp_path / "run") == [0, 3]
    saved = load_checkpoint(checkpoints(tmp_path / "run")[-1])
    assert len(saved["ranks"]) == 2
    assert all(same(saved[name], third_of_two[name]) for name in saved.keys() - {"config"})


@pytest.mark.slow
def test_if_another_process_has_died_too_the_leader_says_so_and_does_not_wait(tmp_path):
    class Deadly(Broken):
        def update(self, status: Status) -> None:
            if status.iteration == 3:
                kill_workers()
            super().update(status)

    with pytest.raises(TeamError, match="a training process has died"):
        train(
            tmp_path / "run", "processes=2", "save_interval=1000", "eval_interval=0", display=Deadly
        )
    assert steps(tmp_path / "run") == [0]


def kill_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()


# ------------------------------------------------------------------ signals at the end


def signal_in(place: str, monkeypatch) -> None:
    """Send SIGTERM to this process in the last iteration of SHORT, or in one of the evaluations
    after it.
    """
    owner, name = {
        "last iteration": (PPOTrainer, "learn"),
        "last evaluation in training": (PPOTrainer, "evaluate"),
        "final evaluation": (navrl.api.train_policy, "fly_and_report"),
    }[place]
    original = getattr(owner, name)

    def sending(*arguments, **options):
        if not isinstance(arguments[0], PPOTrainer) or arguments[0].iteration >= 3:
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, sending)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main(["train", *SHORT, f"run_folder={folder}"]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["last iteration", "last evaluation in training", "final evaluation"]
)
def test_a_signal_at_the_end_ends_the_command_and_resuming_makes_the_evaluation(
    tmp_path, monkeypatch, capsys, undisturbed, place
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        signal_in(place, patch)
        assert main(["train", *SHORT, f"run_folder={folder}"]) == 128 + signal.SIGTERM
    assert f"`navrl train resume=auto run_folder={folder}`" in capsys.readouterr().out.replace(
        "\n", ""
    )
    assert steps(folder)[-1] == 4
    assert "finished" not in json.loads((folder / "run.json").read_text())
    assert not (folder / "evaluation.json").exists()
    assert main(["train", *SHORT, f"run_folder={folder}", "resume=auto"]) == 0
    assert "finished" in json.loads((folder / "run.json").read_text())
    assert same(*(load_checkpoint(run / "model.pt") for run in (folder, undisturbed)))
    found = [
        json.loads((run / "evaluation.json").read_text())["conditions"]
        for run in (folder, undisturbed)
    ]
    assert found[0] == found[1]
