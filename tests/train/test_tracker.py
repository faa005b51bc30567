"""The tracker's mirror: real wandb, offline; it gets what was logged, and cannot stop anything."""

from __future__ import annotations

import time
import warnings

import pytest

from navrl.config import WandbSettings, load_config
from navrl.errors import ConfigError
from navrl.train.tracker import Tracker


def test_nothing_is_done_when_disabled(tmp_path):
    with Tracker(WandbSettings(), {}, tmp_path) as tracker:
        tracker.log(1, {"train/kl": 0.1})
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_offline_metrics_end_in_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    with Tracker(WandbSettings(mode="offline", name="mirrored"), {"seed": 3}, tmp_path) as tracker:
        start = time.perf_counter()
        for step in range(50):
            tracker.log(step, {"train/kl": 0.125 * step})
        assert time.perf_counter() - start < 0.05  # the thread that trains does not wait
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"train/kl" in content
    assert b"mirrored" in content


@pytest.mark.slow
def test_a_tracker_that_fails_is_a_warning(tmp_path, monkeypatch):
    import wandb

    def broken(**options):
        raise RuntimeError("no such entity")

    monkeypatch.setattr(wandb, "init", broken)
    with warnings.catch_warnings(record=True) as caught, Tracker(WandbSettings(mode="offline"), {}, tmp_path) as tracker:
        warnings.simplefilter("always")
        tracker.log(1, {"x": 1})
        tracker.close()
    assert any("no such entity" in str(warning.message) for warning in caught)


def test_the_user_types_what_the_original_takes():
    assert load_config(["wandb.mode=online", "wandb.project=Mine"]).wandb.project == "Mine"
    with pytest.raises(ConfigError, match="disabled, offline, online"):
        load_config(["wandb.mode=sometimes"])
