"""Every snippet of docs/isaac.md runs, in order, against stand-ins with Isaac Lab's interface."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("rsl_rl")
torchrl_envs = pytest.importorskip("torchrl.envs")

from rsl_rl.env import VecEnv  # noqa: E402
from rsl_rl.runners import OnPolicyRunner  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402

PAGE = (Path(__file__).parents[1] / "docs" / "isaac.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


class Cart(gymnasium.Env):
    """A batch of carts, as Isaac Lab's ManagerBasedRLEnv is: tensors, resets by itself."""

    def __init__(self, cfg):
        self.cfg, self.num_envs, self.device = cfg, cfg["num_envs"], "cpu"
        self.max_episode_length = 20
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.state = torch.zeros(self.num_envs, 4)

    def reset(self, *, seed=None, options=None):
        self.state = torch.zeros(self.num_envs, 4)
        self.episode_length_buf[:] = 0
        return {"policy": self.state.clone()}, {}

    def step(self, action):
        self.state = self.state + 0.1 * action
        self.episode_length_buf += 1
        late = self.episode_length_buf >= self.max_episode_length
        lost = self.state.abs().amax(1) > 2
        reward = 1 - self.state.norm(dim=1)
        ended = late | lost
        self.state[ended] = 0
        self.episode_length_buf[ended] = 0
        return {"policy": self.state.clone()}, reward, lost, late, {}


class RslRlVecEnvWrapper(VecEnv):
    """The interface of isaaclab_rl.rsl_rl.RslRlVecEnvWrapper."""

    def __init__(self, env, clip_actions=None):
        self.env, self.unwrapped = env, env.unwrapped
        self.num_envs, self.num_actions = self.unwrapped.num_envs, 4
        self.device, self.cfg = self.unwrapped.device, self.unwrapped.cfg
        self.max_episode_length = self.unwrapped.max_episode_length
        self.reset()

    @property
    def episode_length_buf(self):
        return self.unwrapped.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value):
        self.unwrapped.episode_length_buf = value

    def seed(self, seed=-1):
        return seed

    def reset(self):
        seen, extras = self.env.reset()
        return TensorDict(seen, [self.num_envs]), extras

    def get_observations(self):
        return TensorDict({"policy": self.unwrapped.state.clone()}, [self.num_envs])

    def step(self, actions):
        seen, reward, lost, late, extras = self.unwrapped.step(actions)
        extras["time_outs"] = late
        return TensorDict(seen, [self.num_envs]), reward, (lost | late).long(), extras

    def close(self):
        self.env.close()


class AppLauncher:
    def __init__(self, **options):
        self.app = object()


def module(name, **contents):
    made = types.ModuleType(name)
    vars(made).update(contents)
    return made


@pytest.fixture
def isaac(monkeypatch):
    """Isaac Lab's modules, as far as the page imports them."""
    made = [
        module("isaaclab"),
        module("isaaclab.app", AppLauncher=AppLauncher),
        module("isaaclab_tasks"),
        module("isaaclab_tasks.utils", parse_env_cfg=lambda task, num_envs: {"num_envs": num_envs}),
        module("isaaclab_rl"),
        module("isaaclab_rl.rsl_rl", RslRlVecEnvWrapper=RslRlVecEnvWrapper),
    ]
    for one in made:
        monkeypatch.setitem(sys.modules, one.__name__, one)
    task = "Isaac-Cartpole-v0"
    gymnasium.register(task, entry_point=Cart, disable_env_checker=True, order_enforce=False)
    yield
    gymnasium.registry.pop(task)


def pendulum():
    return torchrl_envs.TransformedEnv(
        torchrl_envs.PendulumEnv(), torchrl_envs.StepCounter(max_steps=20)
    )


def runner_in(folder):
    network = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu"}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0}
    settings = {
        "num_steps_per_env": 8,
        "save_interval": 2,
        "logger": "tensorboard",
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": noise},
        "critic": dict(network),
        "algorithm": {"class_name": "PPO", "num_mini_batches": 2},
    }
    env = RslRlVecEnvWrapper(gymnasium.make("Isaac-Cartpole-v0", cfg={"num_envs": 8}))
    return OnPolicyRunner(env, settings, log_dir=str(folder), device="cpu")


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.slow
def test_every_snippet_of_the_page_runs_in_order(tmp_path, monkeypatch, isaac, capsys):
    monkeypatch.chdir(tmp_path)
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    drones = torchrl_envs.SerialEnv(2, pendulum)
    collector = Collector(drones, None, frames_per_batch=40, total_frames=120)
    names = {
        "runner": runner_in(log_dir),
        "log_dir": str(log_dir),
        "make_torchrl_env": pendulum,
        "collector": [batch.clone() for batch in collector],
    }
    assert len(BLOCKS) == 8
    for block in BLOCKS:
        exec(block, names)
    assert names["state"]["iter"] == 3
    assert names["first"]["action"].shape == (20, 1)
    assert (tmp_path / "policy.pt2").stat().st_size > 0
    assert torch.equal(names["module"](torch.zeros(1, 4)), names["action"])
    assert names["run"].finished
