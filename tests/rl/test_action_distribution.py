"""Distributions of actions, beside torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions

from navrl.rl.action_space import Box, Discrete
from navrl.rl.distributions.action_distribution import distribution_for

SPACES = {
    "beta": Box((-1.0, 0.0), (1.0, 5.0)),
    "gaussian": Box.unbounded(2),
    "half bounded": Box((0.0, -math.inf), (math.inf, math.inf)),
    "categorical": Discrete(4),
}


def heads_for(space, count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, distribution_for(space).parameters + 1, generator=generator)


def peer(space, heads):
    """The same distribution by torch."""
    if isinstance(space, Discrete):
        return distributions.Categorical(logits=heads[:, :-1])
    first, second = heads[:, :-1].chunk(2, 1)
    if not space.bounded:
        return distributions.Independent(distributions.Normal(first, second.exp()), 1)
    raised = [1 + torch.nn.functional.softplus(half) + 1e-6 for half in (first, second)]
    return distributions.Independent(distributions.Beta(*raised), 1)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_log_probabilities_and_entropy_are_those_of_torch(space):
    distribution, heads = distribution_for(space), heads_for(space)
    action, log_prob = distribution.sample(heads, torch.Generator().manual_seed(1))
    again, entropy = distribution.log_prob_and_entropy(heads, action)
    other = peer(space, heads)
    drawn = action[:, 0] if isinstance(space, Discrete) else action
    torch.testing.assert_close(log_prob, again)
    torch.testing.assert_close(again, other.log_prob(drawn), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, other.entropy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_samples_have_the_mean_of_torch(space):
    distribution, heads = distribution_for(space), heads_for(space, 1).expand(20_000, -1)
    action, _ = distribution.sample(heads, torch.Generator().manual_seed(2))
    other = peer(space, heads[:1])
    expected = other.probs @ torch.arange(4.0) if isinstance(space, Discrete) else other.mean
    torch.testing.assert_close(action.mean(0), expected.flatten(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_environments_get_actions_within_their_bounds(space):
    distribution, heads = distribution_for(space), 5 * heads_for(space, 200)
    for action in (distribution.sample(heads)[0], distribution.mean(heads)):
        taken = distribution.to_environment(action)
        if isinstance(space, Discrete):
            assert taken.dtype == torch.int64
            assert taken.shape == (200,)
            assert set(taken.tolist()) <= set(range(4))
        else:
            assert (taken >= torch.tensor(space.low)).all()
            assert (taken <= torch.tensor(space.high)).all()


def test_the_unit_cube_spans_the_bounds_of_a_box():
    distribution = distribution_for(Box((-1.0, 0.0), (1.0, 5.0)))
    assert distribution.to_environment(torch.tensor([[0.0, 0.0]])).tolist() == [[-1.0, 0.0]]
    assert distribution.to_environment(torch.tensor([[1.0, 0.5]])).tolist() == [[1.0, 2.5]]


def test_gradients_reach_every_head_but_the_value():
    for space in SPACES.values():
        heads = heads_for(space).requires_grad_()
        distribution = distribution_for(space)
        action, _ = distribution.sample(heads.detach())
        log_prob, entropy = distribution.log_prob_and_entropy(heads, action)
        (log_prob.sum() + entropy.sum()).backward()
        assert (heads.grad[:, :-1].abs().sum(0) > 0).all()
        assert (heads.grad[:, -1] == 0).all()
