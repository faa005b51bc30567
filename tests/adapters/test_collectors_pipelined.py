"""Collecting ahead in the background: which policy acted, who hears of errors, and how it ends."""

from __future__ import annotations

import copy
import gc
import itertools
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from collector_parts import (
    FRAMES,
    NUMBER,
    STEPS,
    collecting_threads,
    navigation,
    random_policy,
    torchrls,
)
from tensordict.nn import set_skip_existing, skip_existing
from torch import nn
from torchrl.envs.utils import ExplorationType, exploration_type, set_exploration_type

import forked
from navrl import PipelinedDataCollector
from navrl.errors import CollectorError, ConfigError


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    yield
    if collecting_threads():
        gc.collect()  # some tests leave it to the garbage collector
    deadline = time.monotonic() + 5
    while collecting_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert collecting_threads() == []


def numbers(count=10**9, made=None):
    """Yield tensors 0, 1, 2, ... and note which were made."""
    for number in range(count):
        if made is not None:
            made.append(number)
        yield torch.tensor([number])


def settled(made):
    """Wait until nothing more is made, and return how much was."""
    before = -1
    while len(made) != before:
        before = len(made)
        time.sleep(0.05)
    return before


# ---------------------------------------------------------------------- how far ahead


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_no_more_batches_are_ahead_than_asked_for(ahead):
    made = []
    with PipelinedDataCollector(numbers(made=made), policy=None, prefetch_count=ahead) as collector:
        for taken in range(1, 4):
            next(collector)
            assert settled(made) == taken + ahead
        assert collector.ready == ahead


def test_nothing_is_collected_before_the_first_batch_is_asked_for():
    made = []
    with PipelinedDataCollector(numbers(made=made), policy=None):
        time.sleep(0.05)
        assert made == []


def test_the_next_batch_is_collected_while_this_one_is_used():
    begun = threading.Event()

    def batches():
        yield torch.tensor(0)
        begun.set()
        yield torch.tensor(1)

    with PipelinedDataCollector(batches(), policy=None, prefetch_count=1) as collector:
        next(collector)
        assert begun.wait(5)  # nobody asked for it


# ---------------------------------------------------------------------- which policy acted


def halting(policy, observation, begun, go):
    """Yield what the policy says before and after a pause, which lasts until `go` is released once
    for each batch.
    """
    while True:
        first = policy(observation).detach()
        begun.release()
        go.acquire(timeout=10)
        yield {"first": first, "second": policy(observation).detach()}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_policy_that_is_trained_within_a_batch_is_not_the_one_that_acts(frozen):
    policy, observation = nn.Linear(3, 3), torch.ones(3)
    begun, go = threading.Semaphore(0), threading.Semaphore(1)
    base = halting(policy, observation, begun, go)
    with PipelinedDataCollector(
        base, prefetch_count=1, policy=policy if frozen else None
    ) as collector:
        next(collector)
        assert begun.acquire(timeout=10)
        assert begun.acquire(timeout=10)  # the second batch is being collected
        with torch.no_grad():
            policy.weight.add_(1)
        go.release(2)
        batch = next(collector)
        # without it this test sees the difference
        assert torch.equal(batch["first"], batch["second"]) == frozen
        go.release()


@pytest.mark.parametrize("make", [navigation, torchrls], ids=["navrl", "torchrl"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "pushed"])
def test_log_probabilities_are_those_of_the_weights_that_the_batch_names(make, own):
    policy = random_policy()
    base = make(copy.deepcopy(policy) if own else policy, batches=8)
    weights, seen = [], []
    with PipelinedDataCollector(
        base, policy=policy, push_weights=own, prefetch_count=2
    ) as collector:
        weights.append(copy.deepcopy(policy.state_dict()))
        for batch in collector:
            seen.append(batch)
            end = time.perf_counter() + 0.02
            while time.perf_counter() < end:  # training writes while the next batch is collected
                with torch.no_grad():
                    for parameter in policy.parameters():
                        # bounded: large weights would make large rounding errors
                        parameter.normal_(std=0.3)
            weights.append(copy.deepcopy(policy.state_dict()))
    for batch in seen:
        versions = batch["collector", "policy_version"]
        assert versions.shape == (NUMBER, STEPS)
        assert len(versions.unique()) == 1
        assert judged(batch, weights[int(versions.flatten()[0])])
    # it did move on
    assert len({int(batch["collector", "policy_version"].max()) for batch in seen}) > 3


def test_the_weights_of_a_batch_are_at_most_as_old_as_it_was_ahead():
    policy = random_policy()
    with PipelinedDataCollector(
        navigation(policy, batches=8), policy=policy, prefetch_count=2
    ) as collector:
        for number, _ in enumerate(collector):
            assert number - 2 <= collector.policy_version <= number
            time.sleep(0.01)


def test_training_goes_through_the_policy_itself_and_gives_gradients():
    policy = random_policy()
    with PipelinedDataCollector(navigation(policy), policy=policy) as collector:
        batch = next(collector)
        policy.get_dist(batch).log_prob(batch["action"]).sum().backward()
        assert policy(batch.select("state"))["loc"].requires_grad
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_a_copy_of_the_policy_that_is_made_meanwhile_is_a_policy_of_its_own():
    policy = nn.Linear(3, 3)

    def batches():
        while True:
            yield policy(torch.ones(3)).detach()

    with PipelinedDataCollector(batches(), policy=policy) as collector:
        next(collector)
        twin = copy.deepcopy(policy)
        with torch.no_grad():
            policy.weight.zero_()
        assert not torch.equal(twin(torch.ones(3)), policy(torch.ones(3)))
        assert set(policy.state_dict()) == {"weight", "bias"}
    assert "forward" not in vars(policy)


def judged(batch, weights):
    """Tell whether the log-probabilities of a batch are those of given weights."""
    judge = random_policy()
    judge.load_state_dict(weights)
    expected = judge.get_dist(batch.select("state")).log_prob(batch["action"])
    return torch.allclose(batch["action_log_prob"], expected, atol=1e-5)


def test_two_collectors_can_share_a_policy_and_each_acts_with_the_version_it_names():
    policy = random_policy()
    with PipelinedDataCollector(
        navigation(policy, batches=99), policy=policy, prefetch_count=1
    ) as first:
        next(first)  # acts already when the second one copies the policy
        with PipelinedDataCollector(
            navigation(policy, batches=99), policy=policy, prefetch_count=1
        ) as second:
            weights = {first: [None], second: []}
            for _ in range(4):
                for collector in (second, first):
                    with torch.no_grad():
                        for parameter in policy.parameters():
                            parameter.normal_(std=0.3)
                    weights[collector].append(copy.deepcopy(policy.state_dict()))
                    batch = next(collector)
                    if collector.policy_version or collector is second:
                        assert judged(batch, weights[collector][collector.policy_version])
            first.shutdown()
            weights[second].append(copy.deepcopy(policy.state_dict()))
            assert judged(next(second), weights[second][second.policy_version])
            assert second.policy_version >= 3
    assert all("forward" not in vars(module) for module in policy.modules())


class Agent(nn.Module):
    """What holds the acting module, and cannot be called itself."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict(
            {"actor": nn.Sequential(nn.Linear(3, 3)), "critic": nn.Linear(3, 1)}
        )


@pytest.mark.parametrize(
    "part", [lambda agent: agent.parts["actor"], lambda agent: agent.parts["actor"][0]]
)
def test_a_part_of_the_policy_that_acts_is_frozen_too(part):
    agent, observation = Agent(), torch.ones(3)
    begun, go = threading.Semaphore(0), threading.Semaphore(1)
    base = halting(part(agent), observation, begun, go)
    with PipelinedDataCollector(base, prefetch_count=1, policy=agent) as collector:
        next(collector)
        assert begun.acquire(timeout=10)
        assert begun.acquire(timeout=10)
        with torch.no_grad():
            agent.parts["actor"][0].weight.add_(1)
        go.release(2)
        batch = next(collector)
        assert torch.equal(batch["first"], batch["second"])
        go.release()


def test_a_forward_of_the_instance_acts_and_is_there_again_afterwards():
    policy = nn.Linear(2, 2)

    def doubled(observation):
        return 2 * nn.Linear.forward(policy, observation)

    policy.forward = doubled
    with PipelinedDataCollector(
        (policy(torch.ones(2)).detach() for _ in range(9)), policy=policy
    ) as collector:
        assert torch.equal(next(collector), doubled(torch.ones(2)))
        assert torch.equal(policy(torch.ones(2)), doubled(torch.ones(2)))
    assert policy.forward is doubled


@pytest.mark.slow
def test_a_compiled_policy_is_frozen_as_any_other():
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    policy = torch.compile(inner, backend="eager")
    begun, go = threading.Semaphore(0), threading.Semaphore(1)
    before = policy.forward
    with PipelinedDataCollector(
        halting(policy, torch.ones(3), begun, go), prefetch_count=1, policy=policy
    ) as collector:
        expected = inner(torch.ones(3)).detach()
        assert torch.allclose(next(collector)["first"], expected)
        assert begun.acquire(timeout=30)
        assert begun.acquire(timeout=30)
        with torch.no_grad():
            inner[0].weight.add_(0.1)
        changed = policy(torch.ones(3))
        assert changed.requires_grad
        assert not torch.allclose(changed, expected)
        go.release(2)
        batch = next(collector)
        assert torch.equal(batch["first"], batch["second"])
        assert torch.allclose(batch["second"], expected)
        go.release()
    assert policy.forward is before
    assert torch.allclose(policy(torch.ones(3)), inner(torch.ones(3)))


def test_a_collector_that_acts_with_another_policy_is_refused():
    with pytest.raises(ConfigError, match="another policy"):
        PipelinedDataCollector(navigation(random_policy()), policy=random_policy())


# ---------------------------------------------------------------------- modes


def test_the_exploration_type_of_one_thread_is_not_that_of_the_other():
    begun, go = threading.Semaphore(0), threading.Semaphore(0)

    def batches():
        while True:
            with set_exploration_type(ExplorationType.RANDOM):
                begun.release()
                go.acquire(timeout=10)
                yield exploration_type()

    before = exploration_type()
    go.release()
    with PipelinedDataCollector(batches(), policy=None, prefetch_count=1) as collector:
        assert next(collector) == ExplorationType.RANDOM
        begun.acquire(timeout=10)
        begun.acquire(timeout=10)  # the second batch is being collected
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            go.release()
            assert next(collector) == ExplorationType.RANDOM
            # the third one has begun within our block, and set its own
            assert begun.acquire(timeout=10)
            assert exploration_type() == ExplorationType.DETERMINISTIC
        assert exploration_type() == before
        go.release(2)
        assert next(collector) == ExplorationType.RANDOM
        assert exploration_type() == before
    assert exploration_type() == before


def test_a_base_without_a_mode_of_its_own_keeps_that_of_the_first_request():
    def batches():
        while True:
            yield exploration_type(), skip_existing()

    with PipelinedDataCollector(batches(), policy=None, prefetch_count=1) as collector:
        with set_exploration_type(ExplorationType.MEAN):
            next(collector)
        with set_skip_existing(True):  # as GAE does
            assert [next(collector) for _ in range(3)] == [(ExplorationType.MEAN, False)] * 3


def test_nothing_of_tensordict_stays_changed_when_the_last_thread_has_ended():
    holder = sys.modules["tensordict.nn.probabilistic"]._interaction_type
    before = dict(vars(holder))
    with (
        PipelinedDataCollector(numbers(), policy=None) as first,
        PipelinedDataCollector(numbers(), policy=None) as second,
    ):
        next(first), next(second)
        first.shutdown()
        assert "get_mode" in vars(holder)
    assert vars(holder) == before


# ---------------------------------------------------------------------- errors


def test_an_error_reaches_the_caller_after_the_batches_that_were_collected_before_it():
    def batches():
        yield torch.tensor(1)
        yield torch.tensor(2)
        raise OSError("the robot fell over")

    collector = PipelinedDataCollector(batches(), policy=None, prefetch_count=4)
    assert [int(next(collector)), int(next(collector))] == [1, 2]
    for _ in range(2):  # and again whenever somebody asks
        with pytest.raises(CollectorError, match="OSError: the robot fell over") as caught:
            next(collector)
        assert isinstance(caught.value.__cause__, OSError)
        assert any(
            frame.name == "batches"
            for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)
        )


def test_an_exit_of_the_base_is_an_error_and_no_exit():
    def batches():
        yield torch.tensor(1)
        sys.exit(3)

    collector = PipelinedDataCollector(batches(), policy=None)
    next(collector)
    with pytest.raises(CollectorError, match="SystemExit"):
        next(collector)


def test_an_error_of_the_consumer_ends_the_thread_when_the_block_is_left():
    with (  # noqa: PT012
        pytest.raises(RuntimeError, match="mine"),
        PipelinedDataCollector(numbers(), policy=None) as collector,
    ):
        for _ in collector:
            raise RuntimeError("mine")
    assert collecting_threads() == []


def test_weights_that_no_longer_fit_are_an_error():
    policy = nn.Linear(3, 3)

    def batches():
        while True:
            yield policy(torch.ones(3)).detach()

    with PipelinedDataCollector(batches(), policy=policy, prefetch_count=1) as collector:
        next(collector)
        policy.extra = nn.Parameter(torch.ones(2))
        with pytest.raises(CollectorError, match="zip"):
            list(itertools.islice(collector, 5))


# ---------------------------------------------------------------------- endings


def test_it_ends_when_the_base_ends():
    collector = PipelinedDataCollector(numbers(3), policy=None)
    assert [int(number) for number in collector] == [0, 1, 2]
    assert next(collector, "over") == "over"
    assert collector.next() is None


def test_a_full_pipeline_is_shut_down_without_another_batch():
    made = []
    collector = PipelinedDataCollector(numbers(made=made), policy=None, prefetch_count=2)
    next(collector)
    collected = settled(made)
    assert collector.shutdown()
    assert len(made) == collected  # it collects nothing more first
    assert collector.ready == 0
    assert next(collector, "over") == "over"
    with pytest.raises(CollectorError, match="shut down"):
        iter(collector)


def test_a_shutdown_that_would_wait_too_long_says_so_and_can_be_repeated():
    begun, go = threading.Event(), threading.Event()

    def batches():
        yield torch.tensor(0)
        begun.set()
        go.wait(10)
        yield torch.tensor(1)

    collector = PipelinedDataCollector(batches(), policy=None)
    next(collector)
    assert begun.wait(5)
    assert not collector.shutdown(timeout=0.05)
    go.set()
    assert collector.shutdown()


def test_a_shutdown_from_another_thread_ends_a_consumer_that_waits():
    go = threading.Event()

    def batches():
        go.wait(10)
        yield torch.tensor(0)

    collector, got = PipelinedDataCollector(batches(), policy=None), []
    consumer = threading.Thread(target=lambda: got.extend(collector))
    consumer.start()
    time.sleep(0.05)
    collector.shutdown(timeout=0)
    consumer.join(5)
    assert not consumer.is_alive()
    assert got == []
    go.set()


def test_one_that_was_never_used_is_shut_down():
    base = navigation()
    PipelinedDataCollector(base, policy=None).shutdown()
    assert base.closed


def test_the_base_is_shut_down_once():
    class Base:
        calls = 0

        def __iter__(self):
            return numbers()

        def shutdown(self):
            self.calls += 1

    base = Base()
    with PipelinedDataCollector(base, policy=None) as collector:
        next(collector)
        collector.shutdown()
    assert base.calls == 1


@pytest.mark.slow
@pytest.mark.parametrize("used", [0, 1, 3])
def test_one_that_nobody_holds_any_more_is_collected_and_its_thread_ends(used):
    policy = nn.Linear(2, 2)
    collector = PipelinedDataCollector(
        (policy(torch.ones(2)).detach() for _ in range(10**9)), policy=policy
    )
    for _ in range(used):
        next(collector)
    gone = weakref.ref(collector)
    del collector
    gc.collect()
    assert gone() is None
    deadline = time.monotonic() + 5
    while collecting_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert collecting_threads() == []
    assert "forward" not in vars(policy)


PROGRAM = """
import sys, time, torch
sys.modules["torchrl"] = sys.modules["tensordict"] = None  # neither is needed
from navrl import PipelinedDataCollector
def batches():
    while True:
        yield torch.zeros(1000)
        time.sleep({pause})
collector = PipelinedDataCollector(batches(), policy=None)
for batch in collector:
    {body}
"""


@pytest.mark.slow
def test_a_program_without_torchrl_that_forgets_to_shut_down_leaves_cleanly():
    program = PROGRAM.format(pause=0, body="break")
    done = forked.run(program, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_ctrl_c_ends_a_program_that_waits_for_a_batch():
    program = PROGRAM.format(pause=1, body="print('waiting', flush=True)")
    with forked.start(program) as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=30)[1]
    assert errors.endswith("KeyboardInterrupt\n")
    assert process.returncode != 0


# ---------------------------------------------------------------------- batches of every kind


Pair = namedtuple("Pair", "a b")


@dataclass
class Record:
    tensor: torch.Tensor
    name: str = "x"


@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda tensor: tensor, lambda batch: batch),
        (lambda tensor: {"deep": [tensor]}, lambda batch: batch["deep"][0]),
        (lambda tensor: Pair(1, (tensor,)), lambda batch: batch.b[0]),
        (Record, lambda batch: batch.tensor),
        (lambda tensor: tensor.numpy(), torch.from_numpy),
    ],
    ids=["tensor", "dict", "namedtuple", "dataclass", "array"],
)
def test_a_batch_whose_memory_is_reused_is_copied(wrap, read):
    memory = torch.zeros(3)

    def batches():
        for number in range(5):
            memory.fill_(number)
            yield wrap(memory)

    kept = list(PipelinedDataCollector(batches(), policy=None, prefetch_count=3))
    assert [int(read(batch)[0]) for batch in kept] == [0, 1, 2, 3, 4]
    assert isinstance(kept[0], type(wrap(memory)))


def test_batches_that_nobody_reuses_are_not_copied():
    memory = torch.zeros(3)
    assert next(PipelinedDataCollector([memory], policy=None, copy=False)) is memory
    assert next(PipelinedDataCollector([memory], policy=None)) is not memory


def test_batches_are_put_on_the_device():
    memory = torch.zeros(3)
    batch = next(PipelinedDataCollector([memory, {"a": memory}], "meta", policy=None))
    assert batch.device.type == "meta"
    kept = next(PipelinedDataCollector([memory], "cpu", policy=None))
    assert kept.data_ptr() != memory.data_ptr()


def test_its_state_is_that_of_the_base_between_two_batches():
    with PipelinedDataCollector(navigation(batches=9), policy=None, prefetch_count=1) as collector:
        next(collector)
        state = collector.state_dict()
        assert state["frames"] % FRAMES == 0
        rest = [next(collector) for _ in range(2)]
        collector.load_state_dict(state)
        assert collector.ready <= 1
        ids = next(collector)["collector", "traj_ids"]
    assert any(torch.equal(ids, batch["collector", "traj_ids"]) for batch in rest)


def test_a_finished_one_collects_again_from_a_state_that_is_loaded():
    policy = random_policy()
    with PipelinedDataCollector(navigation(policy, batches=3), policy=policy) as collector:
        state = collector.state_dict()
        first = list(collector)
        assert next(collector, "over") == "over"
        for _ in range(2):
            collector.load_state_dict(state)
            again = list(collector)
            ids = ("collector", "traj_ids")
            assert len(again) == 3
            assert torch.equal(again[0][ids][:, 0], first[0][ids][:, 0])
            assert torch.equal(again[0]["state"][:, 0], first[0]["state"][:, 0])
    assert "forward" not in vars(policy)


def test_one_that_failed_collects_again_from_a_state_that_is_loaded():
    class Robot:
        fallen = True

        def __iter__(self):
            yield torch.tensor(1)
            if self.fallen:
                raise OSError("the robot fell over")

        def load_state_dict(self, state):
            self.fallen = state["fallen"]

    with PipelinedDataCollector(Robot(), policy=None) as collector:
        with pytest.raises(CollectorError):
            list(collector)
        collector.load_state_dict({"fallen": False})
        assert len(list(collector)) == 1


def test_weights_for_a_collector_that_acts_with_those_of_the_policy_are_refused():
    policy = random_policy()
    with PipelinedDataCollector(navigation(policy), policy=policy) as collector:
        collector.update_policy_weights_()
        with pytest.raises(ConfigError, match="load them into the policy"):
            collector.update_policy_weights_(policy.state_dict())
        with pytest.raises(ConfigError, match="load them into the policy"):
            collector.update_policy_weights_(policy_or_weights=policy)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_a_prefetch_count_that_makes_no_sense_is_refused(count):
    with pytest.raises(ConfigError, match="prefetch_count"):
        PipelinedDataCollector(numbers(), policy=None, prefetch_count=count)


def test_other_mistakes_are_refused_by_name():
    with pytest.raises(ConfigError, match="int; expected something that can be iterated"):
        PipelinedDataCollector(3)
    with pytest.raises(ConfigError, match="function; expected a torch"):
        PipelinedDataCollector(numbers(), policy=numbers)
    with pytest.raises(ConfigError, match="pass policy="):
        PipelinedDataCollector(numbers(), push_weights=True)
    with pytest.raises(ConfigError, match="update_policy_weights_"):
        PipelinedDataCollector(numbers(), policy=nn.Linear(1, 1), push_weights=True)


def test_arrays_of_numpy_stay_arrays():
    assert isinstance(next(PipelinedDataCollector([np.zeros(3)], policy=None)), np.ndarray)
