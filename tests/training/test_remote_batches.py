"""Batches and weights on their way between machines: stamps, checksums, and what they carry."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from navrl.errors import ContainerError
from navrl.rl.accelerate import PlainNetwork
from navrl.rl.collect import Collector
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.networks.build import build_policy_network
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.rl.off_policy import join_rollouts, reweighted
from navrl.training.remote.contents import pack_batch, pack_value, read_batch, read_value
from navrl.training.remote.stamps import BATCH, WEIGHTS, Stamp, seal, unseal
from point_environment import Point

STAMP = Stamp(run=3, version=12, worker=1, number=5)


@given(contents=st.binary(max_size=200))
def test_a_sealed_message_opens_to_its_stamp_and_contents(contents):
    stamp, found = unseal(BATCH, seal(BATCH, STAMP, contents))
    assert (stamp, bytes(found)) == (STAMP, contents)


@given(contents=st.binary(max_size=60), data=st.data())
def test_one_changed_bit_anywhere_is_refused(contents, data):
    message = bytearray(seal(BATCH, STAMP, contents))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ContainerError):
        unseal(BATCH, bytes(message))


@given(cut=st.integers(0, 99))
def test_a_message_cut_anywhere_is_refused(cut):
    message = seal(BATCH, STAMP, b"x" * 44)
    with pytest.raises(ContainerError):
        unseal(BATCH, message[:cut])


def test_weights_are_not_taken_for_a_batch():
    with pytest.raises(ContainerError, match="the versions of navrl differ"):
        unseal(BATCH, seal(WEIGHTS, STAMP, b""))


def test_weights_arrive_bit_for_bit():
    weights = {"a": torch.randn(3, 2), "b": torch.tensor(7)}
    found = read_value(pack_value({"weights": weights, "progress": 0.25}))
    assert found["progress"] == 0.25
    assert all(torch.equal(found["weights"][name], value) for name, value in weights.items())


@pytest.fixture(scope="module")
def flown():
    """Environment, network, and a batch of it in which episodes were truncated."""
    torch.manual_seed(0)
    env = Point(num_envs=6, time_limit=5)
    env.reset(seed=1)
    network = build_policy_network(NetworkSettings(hidden=[8]), env.observation, env.action)
    collector = Collector(
        env,
        env.observe(),
        PlainNetwork(network),
        12,
        distribution_for(env.action),
        torch.Generator().manual_seed(2),
    )
    return env, network, collector.collect(0.5, 2.0)


@pytest.mark.parametrize("compress", [True, False])
def test_a_batch_arrives_bit_for_bit(flown, compress):
    env, _, batch = flown
    packed = pack_batch(batch, env.observation, compress=compress)
    found = read_batch(packed, env.observation, compress=compress)
    for name in ("rows", "action", "log_prob", "reward", "done", "episodes", "final_rows"):
        assert torch.equal(getattr(found, name), getattr(batch, name)), name
    assert torch.equal(found.final_places, batch.final_places)
    assert len(found.final_places) >= 6


@pytest.mark.parametrize("compress", [True, False])
def test_a_teachers_advice_arrives_with_its_batch(flown, compress):
    env, network, batch = flown
    advice = torch.rand_like(batch.action)
    advice[1::2] = math.nan
    packed = pack_batch(replace(batch, advice=advice), env.observation, compress=compress)
    found = read_batch(packed, env.observation, compress=compress)
    assert torch.equal(found.advice[::2], advice[::2])
    assert found.advice[1::2].isnan().all()
    assert judged(flown, network, found).advice is found.advice
    plain = pack_batch(batch, env.observation, compress=compress)
    assert read_batch(plain, env.observation, compress=compress).advice is None


def test_a_batch_of_another_observation_is_refused(flown):
    env, _, batch = flown
    packed = pack_batch(batch, env.observation.leading("position"), compress=True)
    with pytest.raises(ContainerError, match="expected the parts"):
        read_batch(packed, env.observation, compress=True)


def judged(flown, network, batch=None):
    env, _, own = flown
    return reweighted(
        own if batch is None else batch,
        PlainNetwork(network),
        distribution_for(env.action),
        0.5,
        2.0,
    )


def test_the_policy_that_acted_gives_weights_of_one_and_the_same_values(flown):
    _, network, batch = flown
    found = judged(flown, network)
    torch.testing.assert_close(found.importance, torch.ones_like(found.importance))
    for name in ("log_prob", "value", "truncated_value"):
        torch.testing.assert_close(getattr(found, name), getattr(batch, name))


def test_another_policy_gives_truncated_ratios_of_the_probabilities(flown):
    env, _, batch = flown
    other = build_policy_network(NetworkSettings(hidden=[8]), env.observation, env.action)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3)
    found = judged(flown, other)
    heads = other(batch.rows[:-1].flatten(0, 1)).detach()
    log_prob, _ = distribution_for(env.action).log_prob_and_entropy(
        heads, batch.action.flatten(0, 1)
    )
    ratio = (log_prob.view_as(batch.log_prob) - batch.log_prob).exp()
    torch.testing.assert_close(found.importance, ratio.clamp(max=1))
    assert (found.importance < 1).any()
    assert (found.importance == 1).any()


def test_batches_side_by_side_keep_their_episodes_apart(flown):
    _, network, _ = flown
    part = judged(flown, network)
    whole = join_rollouts([part, part])
    assert whole.rows.shape[1] == 12
    for half in (slice(0, 6), slice(6, 12)):
        assert torch.equal(whole.reward[:, half], part.reward)
        assert torch.equal(whole.truncated_value[:, half], part.truncated_value)
    expected = torch.zeros_like(whole.truncated_value, dtype=torch.bool)
    expected.view(-1)[whole.final_places] = True
    assert torch.equal(expected, whole.truncated_value != 0)
