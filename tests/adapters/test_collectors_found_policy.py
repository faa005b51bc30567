"""Collecting ahead without naming the policy: it is found and frozen, or refused with what to pass."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from collector_parts import (
    FRAMES,
    NUMBER,
    STEPS,
    navigation,
    random_policy,
    settings,
    steer,
    torchrls,
)
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv

from navrl import CompressedDataCollector, PipelinedDataCollector
from navrl.adapters.torchrl import TorchRLNavigationEnv
from navrl.errors import CollectorError, ConfigError


def constant_policy():
    """Return a policy whose action is its bias, and so tells which weights acted."""
    linear = nn.Linear(3, 1)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return TensorDictModule(linear, ["observation"], ["action"])


def pendulum(policy, **options):
    return Collector(
        GymEnv("Pendulum-v1"), policy, frames_per_batch=200, total_frames=800, **options
    )


def trained_meanwhile(collector, bias):
    """Return the actions of each batch, while a thread changes the weights all the time."""
    over = threading.Event()

    def train():
        while not over.is_set():
            with torch.no_grad():
                bias.add_(0.001)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        return [batch["action"].unique() for batch in collector]
    finally:
        over.set()
        trainer.join()
        collector.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"trust_policy": True}, {"policy_device": "cpu"}, {"return_same_td": True}],
    ids=str,
)
def test_every_batch_of_torchrls_collector_comes_from_one_version_of_the_weights(options):
    policy = constant_policy()
    collector = PipelinedDataCollector(pendulum(policy, **options), device="cpu", prefetch_count=2)
    assert [len(actions) for actions in trained_meanwhile(collector, policy.module.bias)] == [1] * 4


@pytest.mark.slow
def test_without_the_wrapper_this_test_sees_the_difference():
    policy = constant_policy()
    base = PipelinedDataCollector(pendulum(policy), policy=None)
    assert max(len(actions) for actions in trained_meanwhile(base, policy.module.bias)) > 1


@pytest.mark.slow
def test_a_module_that_torchrl_wraps_itself_is_frozen_too():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, observation):
            return self.bias.expand(*observation.shape[:-1], 1)

    network = Network()
    collector = PipelinedDataCollector(pendulum(network), prefetch_count=2)
    assert [len(actions) for actions in trained_meanwhile(collector, network.bias)] == [1] * 4


@pytest.mark.parametrize("make", [navigation, torchrls], ids=["navrl", "torchrl"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "compressed"])
def test_the_log_probabilities_are_those_of_the_version_that_the_batch_names(make, wrapped):
    policy = random_policy()
    base = make(policy, batches=6)
    weights = [copy.deepcopy(policy.state_dict())]
    with PipelinedDataCollector(CompressedDataCollector(base) if wrapped else base) as collector:
        for batch in collector:
            plain = batch.to_tensordict() if wrapped else batch
            judge = random_policy()
            judge.load_state_dict(weights[collector.policy_version])
            expected = judge.get_dist(plain.select("state")).log_prob(plain["action"])
            assert torch.allclose(plain["action_log_prob"], expected, atol=1e-5)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.normal_(std=0.3)
            weights.append(copy.deepcopy(policy.state_dict()))


def test_weights_can_be_handed_over_and_act_after_the_next_request():
    policy, other = constant_policy(), constant_policy()
    nn.init.ones_(other.module.bias)
    with PipelinedDataCollector(pendulum(policy), prefetch_count=1) as collector:
        next(collector)
        collector.update_policy_weights_()
        collector.update_policy_weights_(TensorDict.from_module(other))
        next(collector)
        assert next(collector)["action"].unique().tolist() == [1.0]


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("base", "told"),
    [
        (lambda: iter([torch.zeros(1)]), "has no attribute `policy`"),
        (lambda: navigation(steer), "its policy is a function"),
        (
            lambda: navigation(TensorDictModule(steer, ["state"], ["action"])),
            "no weights of its own",
        ),
    ],
    ids=["generator", "function", "module around a function"],
)
def test_a_base_whose_weights_cannot_be_found_is_refused_with_what_to_pass(base, told):
    with pytest.raises(ConfigError, match=told) as refused:
        PipelinedDataCollector(base())
    assert "policy=MODULE" in str(refused.value)
    assert "policy=None" in str(refused.value)


def test_a_base_that_flies_at_random_needs_no_policy():
    with PipelinedDataCollector(navigation(None)) as collector:
        assert sum(batch.numel() for batch in collector) == 3 * FRAMES


def test_a_base_that_acts_in_another_thread_is_refused_at_its_first_batch():
    policy = random_policy()

    class Elsewhere:
        def __init__(self):
            self.policy = policy

        def __iter__(self):
            with ThreadPoolExecutor(1) as thread:
                while True:
                    yield (
                        thread.submit(policy.module[0].module, torch.zeros(1, 8))
                        .result()[0]
                        .detach()
                    )

    with (
        PipelinedDataCollector(Elsewhere()) as collector,
        pytest.raises(CollectorError, match="without calling the policy in the thread"),
    ):
        next(collector)


@pytest.mark.slow
def test_workers_that_read_the_weights_while_they_are_trained_are_refused_unless_weights_are_pushed():
    policy = random_policy()
    workers = MultiSyncCollector(
        [lambda: TorchRLNavigationEnv(settings())],
        copy.deepcopy(policy),
        frames_per_batch=FRAMES,
        total_frames=3 * FRAMES,
    )
    for given in ("auto", policy):
        with pytest.raises(ConfigError, match=r"push_weights=True"):
            PipelinedDataCollector(workers, policy=given)
    with PipelinedDataCollector(workers, policy=policy, push_weights=True) as collector:
        assert [batch.numel() for batch in collector] == [FRAMES] * 3


# ---------------------------------------------------------------------- what a wrapper forwards

WRAPPERS = [
    lambda base: PipelinedDataCollector(base, device="cpu"),
    lambda base: CompressedDataCollector(base, compression_level=1),
    lambda base: CompressedDataCollector(base, compress=False),
]


@pytest.mark.parametrize("make", [navigation, torchrls], ids=["navrl", "torchrl"])
@pytest.mark.parametrize("wrap", WRAPPERS, ids=["pipelined", "compressed", "switched off"])
def test_a_wrapper_has_the_attributes_of_its_base(make, wrap):
    base = make(random_policy())
    with wrap(base) as collector:
        for _ in collector:
            break
        assert collector._frames >= FRAMES
        assert collector._fps > 0
        assert collector.frames_per_batch == STEPS
        assert collector.total_frames == 3 * FRAMES
        assert collector.policy is base.policy
        assert collector.env is base.env
        assert callable(collector.pause)
        assert not hasattr(collector, "no_such_thing")


@pytest.mark.parametrize("wrap", WRAPPERS[:2], ids=["pipelined", "compressed"])
def test_a_collector_with_a_replay_buffer_is_started_through_its_wrapper(wrap):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(NUMBER * 3), batch_size=4)
    base = torchrls(random_policy(), replay_buffer=buffer)
    collector = wrap(base)
    collector.start()
    base._thread.join(60)
    assert len(buffer) > 0
    collector.shutdown()


def test_one_that_collects_already_is_not_started_too():
    with PipelinedDataCollector(torchrls(random_policy())) as collector:
        next(collector)
        with pytest.raises(CollectorError, match="not both"):
            collector.start()
