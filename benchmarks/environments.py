"""PPO in environments of other libraries, beside Stable-Baselines3's and rsl_rl's in the same time.

Every trainer gets the same seconds of one processor for collecting and learning, the same number
of environments, steps and epochs, minibatches of the same size, and its own defaults for the rest.
The return is the mean of twenty episodes with deterministic actions, before and after. A gain of
1.00 is what the peer has gained in the same time. Our compiled simulator and network have no part
in this: these environments run as they are, and the networks in PyTorch.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch

from _environment_page import write_page
from _environment_tasks import CATCH, Carts
from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.config import load_config
from navrl.environments.foreign import FINAL_SEED
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer

EPISODES = 20  # of an evaluation
OURS, SB3, RSL_RL = "navrl", "Stable-Baselines3", "rsl_rl"
Measure = Callable[[float], Mapping[str, float]]  # trains for so many seconds


@dataclass(frozen=True)
class Task:
    """An environment: the settings of our trainer, and what trains it beside us."""

    name: str
    overrides: tuple[str, ...]
    peer: str = ""
    gymnasium: str = ""  # the id, for Stable-Baselines3
    policy: str = "MlpPolicy"  # of Stable-Baselines3
    share: float = 1.0  # of the seconds


def gym(name: str, **options: Any) -> Task:
    return Task(name, ("env=gymnasium", f"env.id={name}"), SB3, name, **options)


TASKS = (
    gym("CartPole-v1", share=0.5),
    gym("Pendulum-v1"),
    gym("HalfCheetah-v5"),
    Task("Catch, pixels", ("env=gymnasium", f"env.id={CATCH}"), SB3, CATCH, "CnnPolicy"),
    Task("TorchRL PendulumEnv", ("env=torchrl", "env.target=_environment_tasks:make_pendulum")),
    Task(
        "rsl_rl VecEnv, 64 carts",
        ("env=rsl_rl", "env.target=_environment_tasks:make_carts", "env.num_envs=64"),
        RSL_RL,
        share=0.5,
    ),
)


def clocked(step: Callable[[], int], seconds: float) -> tuple[int, float]:
    """Call a step of a training until the time is over; return the frames and the seconds.

    It is the processor's time, so that other work on the machine makes no difference.
    """
    frames, start = 0, time.process_time()
    while (gone := time.process_time() - start) < seconds:
        frames += step()
    return frames, gone


def result(before: float, after: float, frames: int, seconds: float) -> dict[str, float]:
    return {
        "start": before,
        "end": after,
        "gain": after - before,
        "frames": frames,
        "frames_per_second": frames / seconds,
    }


def ours(task: Task, episodes: int) -> Measure:
    """Return what trains with navrl."""

    def measure(seconds: float) -> Mapping[str, float]:
        settings = [*task.overrides, f"flight.interim_episodes={episodes}", "max_frame_num=1e9"]
        trainer = PPOTrainer(load_config(settings), Team())

        def judged() -> float:
            ((_, played),) = trainer.evaluate().items()
            return float(trainer.task.summary(played)["mean_return"])

        def step() -> int:
            trainer.learn(trainer.collect())
            return trainer.frames_per_iteration

        before = judged()
        frames, gone = clocked(step, seconds)
        return result(before, judged(), frames, gone)

    return measure


def stable_baselines(task: Task, episodes: int) -> Measure:
    """Return what trains with Stable-Baselines3, with rollouts and minibatches of our size."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    def measure(seconds: float) -> Mapping[str, float]:
        config = load_config(task.overrides)
        count, steps = config.env.num_envs, config.algo.training_frame_num
        model = PPO(
            task.policy,
            make_vec_env(task.gymnasium, count, seed=0),
            n_steps=steps,
            batch_size=count * steps // config.algo.num_minibatches,
            n_epochs=config.algo.training_epoch_num,
            seed=0,
            device="cpu",
        )
        other = make_vec_env(task.gymnasium, min(episodes, count), seed=FINAL_SEED)

        def judged() -> float:
            return float(evaluate_policy(model, other, episodes)[0])

        def step() -> int:
            model.learn(count * steps, reset_num_timesteps=False)
            return count * steps

        before = judged()
        frames, gone = clocked(step, seconds)
        return result(before, judged(), frames, gone)

    return measure


def rsl_rl_runner(task: Task, episodes: int) -> Measure:
    """Return what trains with rsl_rl's own runner, in its usual settings."""
    from rsl_rl.runners import OnPolicyRunner

    def measure(seconds: float) -> Mapping[str, float]:
        config = load_config(task.overrides)
        network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "elu"}
        noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
        settings = {
            "num_steps_per_env": config.algo.training_frame_num,
            "save_interval": 1 << 30,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**network, "obs_normalization": True, "distribution_cfg": noise},
            "critic": {**network, "obs_normalization": True},
            "algorithm": {
                "class_name": "PPO",
                "num_learning_epochs": config.algo.training_epoch_num,
                "num_mini_batches": config.algo.num_minibatches,
            },
        }
        torch.manual_seed(0)
        env = Carts(config.env.num_envs)
        with contextlib.redirect_stdout(io.StringIO()):
            runner = OnPolicyRunner(env, settings, log_dir=None, device="cpu")

        def judged() -> float:
            return carts_return(runner.get_inference_policy(), episodes)

        def step() -> int:
            with contextlib.redirect_stdout(io.StringIO()):
                runner.learn(1)
            return env.num_envs * config.algo.training_frame_num

        before = judged()
        frames, gone = clocked(step, seconds)
        return result(before, judged(), frames, gone)

    return measure


def carts_return(policy: Callable[[Any], torch.Tensor], episodes: int) -> float:
    """Return the mean return of one episode of so many carts."""
    env = Carts(episodes, FINAL_SEED)
    total, running, seen = torch.zeros(episodes), torch.ones(episodes), env.get_observations()
    with torch.inference_mode():
        while running.any():
            seen, reward, done, _ = env.step(policy(seen))
            total += reward * running
            running *= 1 - done
    return float(total.mean())


PEERS = {SB3: stable_baselines, RSL_RL: rsl_rl_runner}


def case(name: str, measure: Measure, seconds: float, note: str) -> Case:
    """Return a case whose first call, the harness's warm-up, trains for a moment only."""
    warm: list[bool] = []

    def timed() -> Mapping[str, float]:
        limit = seconds if warm else min(seconds, 0.1)
        warm.append(True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return measure(limit)
        finally:
            torch.set_num_threads(threads)

    return Case(name, timed, note)


def improvement(task: Task) -> Gate:
    def value(results: Results) -> float:
        return results.median(f"{task.name}: {OURS}", "gain")

    return Gate(f"{task.name}: the return improves", value, at_least=1e-6)


def against(task: Task) -> Gate:
    def value(results: Results) -> float:
        return results.ratio("gain", f"{task.name}: {OURS}", f"{task.name}: {task.peer}")

    return Gate(f"{task.name}: gain, {task.peer} is 1", value, at_least=1.0, stretch=True)


def suite(smoke: bool) -> Suite:
    seconds, episodes = (0.05, 2) if smoke else (40.0, EPISODES)
    cases = []
    for task in TASKS:
        limit = seconds * task.share
        note = f"{limit:g} s"
        cases.append(case(f"{task.name}: {OURS}", ours(task, episodes), limit, note))
        if task.peer:
            peer = PEERS[task.peer](task, episodes)
            cases.append(case(f"{task.name}: {task.peer}", peer, limit, note))
    return Suite(
        name="environments",
        title="PPO in environments of other libraries, one thread, equal seconds",
        cases=cases,
        columns=[
            Column("start", "return before", ",.1f"),
            Column("end", "return after", ",.1f"),
            Column("frames", "steps", ",.0f"),
            Column("frames_per_second", "steps/s", ",.0f"),
        ],
        gates=[]
        if smoke
        else [
            *(improvement(task) for task in TASKS),
            *(against(task) for task in TASKS if task.peer),
        ],
        packages=("gymnasium", "stable-baselines3", "rsl-rl-lib", "torchrl", "mujoco"),
        repeats=1,
        settings={"seconds": seconds, "episodes": episodes},
        publish=write_page,
    )
