"""Collectors side by side: what collecting ahead gains or costs, and what keeping rollouts
compressed saves and takes.

Three questions, all with the simulator and the network of `benchmarks/training.py` and the update
of its plain loop:

- "here": the simulator as it is, and an update of the real size. Collecting is the smaller part of
  an iteration and wants the same cores as the update, so that collecting ahead has little to gain
  and something to lose.
- "slow": every step takes longer without using the processor, as that of a simulator on another
  machine or on a GPU does. One epoch, so that collecting and learning take about as long.
- "kept": a rollout flown by the package's policy: bytes that stay, bytes at most, and the time of a
  minibatch. Bytes at most are measured: by how much the process's peak of resident memory grows
  while batches come, one at a time, and are made into what is kept.

A measure of the first two is a few iterations of collecting and learning without a pause, with a
pipeline after one that fills it; the pipeline is closed before another case has its turn. They have
half the drones of `benchmarks/training.py`, so that the whole is over in five minutes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torchrl.collectors import Collector

sys.path.insert(0, str(Path(__file__).parent))

from _training_peers.plain_loop import PlainUpdate
from _training_peers.task import Task
from _training_peers.torchrl_collector import SEEN, ScaledBeta, make_policy
from navrl.adapters.collectors import NavigationCollector
from navrl.adapters.compressed_collector import CompressedDataCollector
from navrl.adapters.compressed_tensordict import CompressedTensorDict
from navrl.adapters.observation_compression import ObservationCompression
from navrl.adapters.pipelined_collector import PipelinedDataCollector
from navrl.adapters.torchrl import TorchRLNavigationEnv
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.evaluation import load_policy
from navrl.sim.env import NavigationEnv

OURS, THEIRS = "NavigationCollector", "TorchRL's Collector"
SMOKE = Task(drones=32, steps=2, epochs=1, minibatches=2, worlds=1, threads=1)
PAUSE = 0.04  # seconds of a step of the slow simulator
LEARNED_FROM = (*SEEN, "action")
PIECES = 8  # batches of a rollout that is compressed as it comes
IN_PIECES = f"kept: compressed, {PIECES} pieces"


def slow_down(simulator: NavigationEnv, seconds: float) -> None:
    """Make every step take longer, without using the processor."""
    step = simulator.step

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return step(*arguments, **options)

    simulator.step = slowly  # type: ignore[method-assign]


def resident(field: str) -> float:
    """Return a number of bytes of this process's memory: VmRSS, resident now; VmHWM, at most since
    it was reset.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def most_memory(work: Callable[[], object]) -> float:
    """Return by how many bytes resident memory grew at most while something worked and its result
    was there.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or it would grow into what was freed before, unseen
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    result = work()
    grown = resident("VmHWM") - before
    del result
    return grown


class Training:
    """A collector and the plain update."""

    def __init__(
        self, task: Task, collector: str, *, ahead: int = 0, pause: float = 0.0, iterations: int = 2
    ) -> None:
        self.task, self.ahead, self.iterations = task, ahead, iterations
        self.update = PlainUpdate(task)
        settings = task.settings()
        self.limit = ScaledBeta.limit = settings.env.action_limit
        self.policy = make_policy(self.update.network)
        options: dict[str, Any] = {
            "frames_per_batch": task.frames,
            "total_frames": -1,
            "return_same_td": True,
        }
        if collector == THEIRS:
            env = TorchRLNavigationEnv(settings, seed=0)
            self.base, simulator = Collector(env, self.policy, **options), env.simulator
        else:
            simulator = NavigationEnv(settings, seed=0)
            self.base = NavigationCollector(simulator, self.policy, **options)
        if pause:
            slow_down(simulator, pause)

    def measure(self) -> Mapping[str, float]:
        torch.set_num_threads(self.task.threads)
        batches: Any = iter(self.base)
        pipeline = (
            PipelinedDataCollector(batches, prefetch_count=self.ahead, policy=self.policy)
            if self.ahead
            else None
        )
        source: Iterator[Any] = pipeline or batches
        if pipeline is not None:
            self.learn(next(source))  # fills it
        waited, start = 0.0, time.perf_counter()
        for _ in range(self.iterations):
            asked = time.perf_counter()
            data = next(source)
            waited += time.perf_counter() - asked
            self.learn(data)
        whole = time.perf_counter() - start
        if pipeline is not None:
            pipeline.shutdown()
        frames = self.iterations * self.task.frames
        return {
            "frames_per_second": frames / whole,
            "iteration": whole / self.iterations,
            "waited": waited / self.iterations,
        }

    def learn(self, data: Any) -> None:
        after = data["next"]
        with torch.no_grad():
            rows = torch.cat([data[name].flatten(2) for name in SEEN], 2)
            last = torch.cat([after[name][:, -1].flatten(1) for name in SEEN], 1)
            value = (
                torch.cat([data["passed_value"], self.update.network(last)[:, None, 6:]], 1)
                .squeeze(2)
                .T
            )
            reward = after["reward"].squeeze(2).T.contiguous()
            advantage = self.update.advantages(reward, after["done"].squeeze(2).T, value)
            action = ((data["action"] + self.limit) / (2 * self.limit)).clamp(1e-6, 1 - 1e-6)
        columns = (data["action_log_prob"].flatten(), advantage.T.flatten(), value[:-1].T.flatten())
        self.update.learn(rows.flatten(0, 1), action.flatten(0, 1), *columns)


class Kept:
    """A rollout flown by the package's policy among obstacles, and ways to keep it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.pilot = load_policy("pretrained")
        self.data = self.fly(before=1 if task is SMOKE else 10)
        self.piece_steps = max(1, task.steps // PIECES)

    def fly(self, *, before: int) -> Any:
        """Return a rollout from amid the flights: at their start the drones are far from the
        obstacles.
        """

        def policy(tensordict: Any) -> Any:
            return tensordict.set("action", self.pilot(tensordict))

        settings = self.task.settings()
        settings.env.action_repeat = 3  # as the policy was trained
        batches = iter(NavigationCollector(settings, policy, frames_per_batch=self.task.frames))
        for _ in range(before):
            next(batches)
        return next(batches)

    def _timed(self, minibatches: Callable[[], Iterator[Any]]) -> float:
        """Return the mean seconds of a minibatch over an epoch."""
        start = time.perf_counter()
        count = sum(1 for _ in minibatches())
        return (time.perf_counter() - start) / count

    def plain(self) -> Mapping[str, float]:
        def minibatches() -> Iterator[Any]:
            flat = self.data.select(*LEARNED_FROM).reshape(-1)
            for chosen in torch.randperm(len(flat)).split(self.task.minibatch):
                yield flat[chosen]

        most = most_memory(self.data.clone)
        return {
            "kept": float(self.data.bytes()),
            "most": most,
            "minibatch": self._timed(minibatches),
        }

    def compressed(self, *, seed: int | None, pieces: bool = False) -> Mapping[str, float]:
        parts = self.data.split(self.piece_steps, 1) if pieces else [self.data]

        def rollout_of(batches: Iterable[Any]) -> CompressedTensorDict:
            return next(
                iter(CompressedDataCollector(batches, batches_per_rollout=len(parts), seed=seed))
            )

        most = most_memory(lambda: rollout_of(part.clone() for part in parts))
        batches = [part.clone() for part in parts]
        start = time.perf_counter()
        rollout = rollout_of(batches)
        seconds = time.perf_counter() - start
        return {
            "kept": float(rollout.stored_nbytes),
            "most": most,
            "compressing": seconds,
            "minibatch": self._timed(
                lambda: rollout.minibatches(self.task.minibatch, keys=LEARNED_FROM)
            ),
        }

    def sent(self) -> Mapping[str, float]:
        keys = [*SEEN, "stats", *(("next", key) for key in (*SEEN, "stats"))]
        transform = ObservationCompression(keys)
        most = most_memory(lambda: transform(self.data.clone()))
        start = time.perf_counter()
        message = transform(self.data)
        seconds = time.perf_counter() - start
        transform.inv(message)
        whole = time.perf_counter() - start - seconds
        return {
            "kept": float(message.bytes()),
            "most": most,
            "compressing": seconds,
            "whole": whole,
        }


def suite(smoke: bool) -> Suite:
    warnings.filterwarnings("ignore")
    torch.distributions.Distribution.set_default_validate_args(False)
    here = SMOKE if smoke else Task(drones=512)
    slow = SMOKE if smoke else Task(drones=512, epochs=1)
    pause = 0.002 if smoke else PAUSE
    kept = Kept(SMOKE if smoke else Task())
    trainings = {
        f"here: {OURS}": Training(here, OURS),
        f"here: {OURS}, 1 ahead": Training(here, OURS, ahead=1),
        f"here: {THEIRS}": Training(here, THEIRS),
        f"slow: {OURS}": Training(slow, OURS, pause=pause),
        f"slow: {OURS}, 1 ahead": Training(slow, OURS, ahead=1, pause=pause),
        f"slow: {OURS}, 2 ahead": Training(slow, OURS, ahead=2, pause=pause),
        f"slow: {THEIRS}": Training(slow, THEIRS, pause=pause),
        f"slow: {THEIRS}, 1 ahead": Training(slow, THEIRS, ahead=1, pause=pause),
    }
    ways: dict[str, tuple[Callable[[], Mapping[str, float]], str]] = {
        "kept: plain": (kept.plain, "one TensorDict, written again for each rollout"),
        "kept: compressed": (lambda: kept.compressed(seed=0), "frames shuffled"),
        IN_PIECES: (lambda: kept.compressed(seed=0, pieces=True), "as they are collected"),
        "kept: compressed, in order": (
            lambda: kept.compressed(seed=None),
            "any minibatch touches most chunks",
        ),
        "sent: ObservationCompression": (kept.sent, "one message for each entry"),
    }

    def speed(case: str, peer: str) -> Callable[[Results], float]:
        return lambda results: results.ratio("frames_per_second", case, peer)

    gates = [
        Gate(
            "slow: 1 ahead over none",
            speed(f"slow: {OURS}, 1 ahead", f"slow: {OURS}"),
            at_least=1.3,
        ),
        Gate(
            "slow: TorchRL's, 1 ahead over none",
            speed(f"slow: {THEIRS}, 1 ahead", f"slow: {THEIRS}"),
            at_least=1.3,
        ),
        Gate(  # the update, most of the time, is the same
            "here: collecting, ours over TorchRL's",
            lambda results: results.ratio("waited", f"here: {THEIRS}", f"here: {OURS}"),
            at_least=1.0,
        ),
        Gate(
            "here: 1 ahead over none",
            speed(f"here: {OURS}, 1 ahead", f"here: {OURS}"),
            at_least=1.0,
            stretch=True,
        ),
        Gate(
            "kept: bytes", lambda r: r.ratio("kept", "kept: compressed", "kept: plain"), at_most=0.4
        ),
        Gate(
            "kept: bytes at most",
            lambda r: r.ratio("most", f"kept: compressed, {PIECES} pieces", "kept: plain"),
            at_most=0.6,
        ),
        Gate(
            "kept: ms of a minibatch",
            lambda r: 1e3 * r.median("kept: compressed", "minibatch"),
            at_most=30,
        ),
        Gate(
            "sent: bytes",
            lambda r: r.ratio("kept", "sent: ObservationCompression", "kept: plain"),
            at_most=0.4,
        ),
    ]
    return Suite(
        name="collectors",
        title=f"Collectors: {here.drones} drones x {here.steps} steps, {here.epochs} epochs x "
        f"{here.minibatches} minibatches "
        f"(slow: {slow.epochs} epoch, {1e3 * pause:.0f} ms more a step), {here.threads} threads; "
        f"kept and sent: {kept.task.drones} drones x {kept.task.steps} steps",
        cases=[
            *(Case(name, training.measure) for name, training in trainings.items()),
            *(Case(name, measure, note) for name, (measure, note) in ways.items()),
        ],
        columns=[
            Column("frames_per_second", "frames/s", ",.0f"),
            Column("iteration", "s/iteration", ".2f"),
            Column("waited", "s waited", ".2f"),
            Column("kept", "MB kept", ".1f", 1e-6),
            Column("most", "MB at most", ".1f", 1e-6),
            Column("compressing", "compressing ms", ".0f", 1e3),
            Column("minibatch", "minibatch ms", ".1f", 1e3),
            Column("whole", "decompressing ms", ".0f", 1e3),
        ],
        gates=[] if smoke else gates,
        packages=("torchrl", "tensordict", "zstandard"),
        repeats=3,
        settings={"task": here.as_json(), "pause of a slow step": pause},
    )
