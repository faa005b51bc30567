"""What the ranks of a team do while they are measured: train, save, and reduce through a link."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from signal import SIGTERM
from statistics import median
from typing import Any

import torch
from rich.console import Console

from _scaling_link import Link
from _scaling_team import TimedTeam
from navrl.config import load_config
from navrl.evaluation import load_policy
from navrl.registry.upload_policy import UploadPolicy
from navrl.tracking.tracker import Tracking
from navrl.training.display import Display
from navrl.training.loop import Start, follow, lead
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.run_folder import RunFolder
from navrl.training.saving.publisher import Publisher
from navrl.training.signals import StopRequest
from navrl.training.status import Status


def train(team: TimedTeam, words: Sequence[str], iterations: int) -> dict[str, float]:
    """Return what an iteration of PPO costs this rank, in seconds, bytes and all-reduces.

    The policy is the package's and does not change: the learning rate is zero.
    """
    torch.set_num_threads(1)
    trainer = PPOTrainer(load_config([*words, f"processes={team.size}"]), team)
    weights = load_policy("pretrained").act.network.network.state_dict()  # type: ignore
    trainer.network.load_state_dict(weights)
    trainer.learn(trainer.collect())
    found = []
    for _ in range(iterations):
        team.reset()
        start, own, whole = time.perf_counter(), time.thread_time(), time.process_time()
        trainer.learn(trainer.collect())
        seconds, own = time.perf_counter() - start, time.thread_time() - own
        found.append(
            {
                "iteration": seconds,
                "compute": own - team.processor_seconds,
                "processor": time.process_time() - whole,
                "reduce": team.seconds,
                "reductions": float(team.reductions),
                "bytes": float(team.bytes),
            }
        )
    values = {name: median(one[name] for one in found) for name in found[0]}
    values["frames"] = float(trainer.frames_per_iteration)
    return values


def reduce(
    team: TimedTeam, links: Sequence[Link], sizes: Sequence[int], repeats: int, control: Any = None
) -> dict[str, dict[int, dict[str, float]]]:
    """Return the median seconds of an all-reduce and the bytes that each rank sent, by link and
    size; rank 0's values count.
    """
    found: dict[str, dict[int, dict[str, float]]] = {}
    for link in links:
        for size in sizes:
            tensor = torch.zeros(max(size // 4, 1))
            team.all_reduce(tensor)
            before = _passed(control, link)
            for _ in range(2):  # nobody begins before the link is set
                team.all_reduce(tensor)
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                team.all_reduce(tensor)
                seconds.append(time.perf_counter() - start)
            team.all_reduce(torch.zeros(1))  # what the others sent has arrived
            sent = (_passed(control, link) - before) / (repeats + 2) / team.size
            values = {"seconds": median(seconds), "sent": sent}
            found.setdefault(link.name, {})[size] = values
    return found


def _passed(control: Any, link: Link) -> int:
    """Set the link, if this rank may, and return how many bytes have passed."""
    if control is None:
        return 0
    control.send(link)
    return int(control.recv())


# ------------------------------------------------------------------------------ saving


class _Stopwatch(Display):
    """A display that notes how long iterations and saves take, and stops the training."""

    def __init__(self, stop: StopRequest, iterations: int) -> None:
        super().__init__(Console(file=io.StringIO()), "")
        self._stop, self._iterations = stop, iterations
        self.saves: list[float] = []  # s that the last save took, by iteration
        self.ends: list[float] = []

    def update(self, status: Status) -> None:
        """Note an iteration; no evaluation follows the last one, as it would after a whole run."""
        self.ends.append(time.perf_counter())
        self.saves.append((status.stall_ms or 0.0) / 1e3)
        if status.iteration == self._iterations:
            self._stop.signal = SIGTERM

    def note(self, text: str) -> None:
        """Show nothing."""

    def preparing(self, what: str) -> None:
        """Show nothing."""

    def stopping(self, what: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


def save(team: TimedTeam, words: Sequence[str], saves: int) -> dict[str, float]:
    """Train with checkpoints as `navrl train` does; return what one costs, in seconds and bytes.

    `save` is the time of the step `checkpoint_save`, `added` what it adds to the iterations until
    the next one, in which the file is written.
    """
    torch.set_num_threads(1)
    if not team.leads:
        follow(team)
        return {}
    config = load_config([*words, f"processes={team.size}"])
    stop, interval = StopRequest(), config.save_interval
    watch = _Stopwatch(stop, (saves + 1) * interval)
    with (
        tempfile.TemporaryDirectory() as path,
        RunFolder.create(Path(path) / "run", "", "navrl bench scaling") as folder,
        Tracking(config.tracking, {}, folder.path) as tracking,
        Publisher(UploadPolicy(name=""), tracking) as publisher,
    ):
        lead(team, Start(config), folder, watch, stop, publisher)
        newest = max(folder.checkpoints.glob("checkpoint_?????????.pt"))
        files = [*folder.checkpoints.glob(f"{newest.stem}*")]
        size = float(sum(one.stat().st_size for one in files))
    return _cost_of_saves(watch, interval) | {"file": size}


def _cost_of_saves(watch: _Stopwatch, interval: int) -> dict[str, float]:
    ends = watch.ends
    durations = [0.0, *(after - before for before, after in pairwise(ends))]
    first = [*range(interval - 1, len(ends) - interval, interval)]  # iterations that end in a save
    quiet = median(durations[at + n] for at in first for n in range(interval // 2, interval))
    periods = [sum(durations[at : at + interval]) - interval * quiet for at in first]
    saves = [watch.saves[at] for at in first]
    return {"save": median(saves), "save_most": max(saves), "added": median(periods)}
