"""Remote collection: what workers gain where the simulator is slow, what they cost where it is
fast, and what compression is worth on a thin link.

A measure is a few iterations of collecting and learning without a pause, after one that fills the
pipeline. All of it is PPO on the navigation task, from the package's policy, with a learning rate
of zero: the flights stay those of a trained policy, and every batch costs the same. Learner and
workers share this machine and are connected by Ray.

- "fast": the simulator as it is. Workers want the same cores as the learner.
- "slow": a simulator that takes 0.2 ms more for each environment and step without using the
  processor, as one on a GPU or on other machines does. It is divided among the workers.
- "link": 2 workers behind one link of a given rate, with batches as they are and compressed. The
  link is emulated: batches pass one after the other and take size / rate each; new weights take the
  other direction, once for each version. Without a rate it is the link of this machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _remote_link import LinkedWorkers, SlowWorker, sendable, slow_down
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.conf.collect_settings import CollectSettings
from navrl.config import Config, load_config
from navrl.evaluation import load_policy
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.remote.ray_cluster import connect
from navrl.training.remote.remote_trainer import RemoteTrainer

PAUSE = 2e-4  # seconds for each environment and step of the slow simulator
MEGABIT = 1e6
FULL = ("env.num_envs=512", "algo.training_frame_num=32", "algo.num_minibatches=16")
SMOKE = (
    "env.num_envs=8",
    "env.num_obstacles=10",
    "algo.training_frame_num=2",
    "algo.num_minibatches=1",
)
FIXED = (
    "env.num_worlds=4",
    "env.action_repeat=5",  # as in the training of the policy
    "network.relative_motion=true",  # the network of the policy
    "env_dyn.num_obstacles=80",
    "algo.feature_extractor.learning_rate=0",
    "algo.actor.learning_rate=0",
    "algo.critic.learning_rate=0",
    "processes=1",
)


def config_of(smoke: bool, workers: int = 0, *, compress: bool = True) -> Config:
    remote = ("collect=ray", f"collect.workers={workers}", f"collect.compress={compress}")
    return load_config([*FIXED, *(SMOKE if smoke else FULL), *(remote if workers else ())])


class Training:
    """A training that is started when it is first measured, and stays until it is closed."""

    def __init__(self, config: Config, *, pause: float = 0.0, iterations: int = 4) -> None:
        self.config, self.pause, self.iterations = config, pause, iterations
        self._trainer: PPOTrainer | None = None
        self._workers: LinkedWorkers | None = None

    def measure(self, rate: float = 0.0) -> Mapping[str, float]:
        """Return speed and sizes with a link of a rate, in bit/s; 0: as fast as this machine."""
        trainer = self._opened()
        if self._workers is not None:
            self._workers.set_rate(rate)
        trainer.learn(trainer.collect())  # fills the pipeline
        staleness = 0.0
        start = time.perf_counter()
        for _ in range(self.iterations):
            report = trainer.learn(trainer.collect())
            staleness += report.get("collect/staleness", 0.0)
        seconds = time.perf_counter() - start
        frames = self.iterations * trainer.frames_per_iteration
        found = {"frames_per_second": frames / seconds, "iteration": seconds / self.iterations}
        if self._workers is not None:
            found |= {"bytes": report["collect/bytes_per_frame"]}
            found |= {"staleness": staleness / self.iterations}
        return found

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()

    def _opened(self) -> PPOTrainer:
        if self._trainer is None:
            self._trainer = self._open()
            weights = load_policy("pretrained").act.network.network.state_dict()  # type: ignore
            self._trainer.network.load_state_dict(weights)
        return self._trainer

    def _open(self) -> PPOTrainer:
        if self.config.collect.name == "local":
            trainer = PPOTrainer(self.config, Team())
            if self.pause:
                slow_down(trainer.env, self.pause)
            return trainer

        def workers(config: Config, run: int, stream: int) -> LinkedWorkers:
            make = partial(SlowWorker, pause=self.pause)
            self._workers = LinkedWorkers(config, run, stream=stream, make=make)
            return self._workers

        return RemoteTrainer(self.config, Team(), make_workers=workers)


def suite(smoke: bool) -> Suite:
    started = start_ray()
    few, many = (1, 2) if smoke else (2, 4)
    pause = 1e-5 if smoke else PAUSE
    iterations = 1 if smoke else 4
    raw, packed = (
        Training(config_of(smoke, few, compress=compress), iterations=iterations)
        for compress in (False, True)
    )
    here = Training(config_of(smoke), iterations=iterations)
    slow_here = Training(config_of(smoke), pause=pause, iterations=iterations)
    slow = {
        count: Training(config_of(smoke, count), pause=pause, iterations=iterations)
        for count in (() if smoke else (few, many))
    }
    rates = (100,) if smoke else (100, 10)
    measures: dict[str, Callable[[], Mapping[str, float]]] = {
        "fast: local": here.measure,
        f"fast: {few} workers": packed.measure,
        "slow: local": slow_here.measure,
        **{f"slow: {count} workers": training.measure for count, training in slow.items()},
        "link: raw": raw.measure,
        **{f"link: raw, {r} Mbit/s": partial(raw.measure, r * MEGABIT) for r in rates},
        **{f"link: compressed, {r} Mbit/s": partial(packed.measure, r * MEGABIT) for r in rates},
    }

    def close() -> None:
        for training in (raw, packed, here, slow_here, *slow.values()):
            training.close()
        if started:
            import ray

            ray.shutdown()

    def speed(case: str, peer: str) -> Callable[[Results], float]:
        return lambda results: results.ratio("frames_per_second", case, peer)

    gates = [
        Gate("slow: 4 workers over local", speed("slow: 4 workers", "slow: local"), at_least=1.5),
        Gate(
            "link: compressed over raw at 10 Mbit/s",
            speed("link: compressed, 10 Mbit/s", "link: raw, 10 Mbit/s"),
            at_least=3.0,
        ),
        Gate(
            "link: bytes, compressed over raw",
            lambda results: results.ratio("bytes", "fast: 2 workers", "link: raw"),
            at_most=0.25,
        ),
        Gate(
            "fast: 2 workers over local",
            speed("fast: 2 workers", "fast: local"),
            at_least=1.0,
            stretch=True,
        ),
    ]
    task = here.config
    return Suite(
        name="remote",
        title=f"Remote collection: {task.env.num_envs} environments x "
        f"{task.algo.training_frame_num} steps, learner and workers on one machine",
        cases=[Case(name, measure) for name, measure in measures.items()],
        columns=[
            Column("frames_per_second", "frames/s", ",.0f"),
            Column("iteration", "s/iteration", ".2f"),
            Column("bytes", "bytes/frame", ".0f"),
            Column("staleness", "staleness", ".1f"),
        ],
        gates=[] if smoke else gates,
        packages=("ray", "zstandard"),
        repeats=3,
        warm_up=False,  # every measure begins with an iteration that does not count
        settings={"pause for each environment and step": pause, "iterations": iterations},
        close=close,
    )


def start_ray() -> bool:
    """Start a cluster on this machine unless there is one; return whether it was started."""
    started = connect(CollectSettings(name="ray", address="local"))
    sendable()
    return started
