"""The tracking of a training without the training: logs, uploads, and ends.

`python trainer.py '{"folder": ..., "settings": {...}, "steps": 20, "every": 5, "pause": 0.05}'`
prints a line after each step, and at the end one of JSON: the seconds that the end took, and the
warnings. With `"paced": true` it waits for a line on its standard input after each step.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

from navrl.tracking.tracker import Tracking
from navrl.tracking.tracker_settings import MlflowSettings, TrackingSettings, WandbSettings


def settings_of(values):
    values = dict(values)
    wandb = WandbSettings(**values.pop("wandb", {}))
    mlflow = MlflowSettings(**values.pop("mlflow", {}))
    return TrackingSettings(tuple(values.pop("trackers", ())), wandb, mlflow, **values)


def model_of(step: int) -> bytes:
    return bytes([step % 251]) * 40_000


def main(order):
    folder = Path(order["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracking = Tracking(settings_of(order["settings"]), {"seed": 3}, folder)
        for step in range(order.get("first", 1), order["steps"] + 1):
            tracking.log(step, {"train/kl": 1 / step})
            if step % order["every"] == 0:
                model = folder / "model.pt"
                model.write_bytes(model_of(step))
                tracking.artifact(model, "model", ["best"], {"step": step})
                model.unlink()
            print(step, flush=True)
            if order.get("paced"):
                sys.stdin.readline()
            time.sleep(order.get("pause", 0))
        start = time.perf_counter()
        tracking.close()
        exit_seconds = time.perf_counter() - start
    messages = [str(warning.message) for warning in caught]
    print(json.dumps({"exit": exit_seconds, "warnings": messages}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
