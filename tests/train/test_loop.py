"""The loop, in this process: whatever fails after an iteration, its state is saved."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from navrl.config import load_config
from navrl.registry.upload_policy import UploadPolicy
from navrl.tracking.recorder import Tracking
from navrl.train.display import PlainDisplay, Status
from navrl.train.folder import RunFolder
from navrl.train.loop import Order, lead
from navrl.train.publish import Publisher
from navrl.train.stopping import StopRequest
from navrl.train.team import Team
from training_runs import TINY, steps


class Broken(PlainDisplay):
    def update(self, status: Status) -> None:
        if status.iteration == 3:
            raise KeyError("a mistake of ours")


def test_after_an_error_between_iterations_a_last_checkpoint_is_written(tmp_path):
    config = load_config([*TINY, "save_interval=1000"])
    with (
        RunFolder.create(tmp_path / "run", "", "navrl train") as folder,
        Tracking(config.tracking, {}, folder.path) as tracking,
    ):
        display = Broken(Console(file=io.StringIO()), "")
        publisher = Publisher(UploadPolicy(name=""), tracking)
        with pytest.raises(KeyError, match="a mistake of ours"):
            lead(Team(), Order(config), folder, display, StopRequest(), publisher)
    assert steps(tmp_path / "run") == [0, 3]
