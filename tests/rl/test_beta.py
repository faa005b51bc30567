"""The policy's distribution against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from navrl.rl.distributions import beta


@pytest.fixture
def heads():
    return torch.randn(500, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3


def peer(heads):
    alpha, second = beta.concentrations(heads).split(3, 1)
    return torch.distributions.Independent(torch.distributions.Beta(alpha, second), 1)


def test_density_and_entropy_are_those_of_a_beta(heads):
    action = torch.rand(
        500, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).clamp(1e-3, 1 - 1e-3)
    density, entropy = beta.log_prob_and_entropy(heads, action)
    torch.testing.assert_close(density, peer(heads).log_prob(action))
    torch.testing.assert_close(entropy, peer(heads).entropy())


def test_a_sample_comes_with_its_own_density(heads):
    action, density = beta.sample(heads, torch.Generator().manual_seed(3))
    torch.testing.assert_close(density, peer(heads).log_prob(action))
    assert (action > 0).all()
    assert (action < 1).all()


def test_samples_have_the_mean_and_the_spread_of_the_distribution():
    heads = torch.tensor([[0.5, -1.0, 2.0, 1.0, 0.0, -2.0, 0.0]]).repeat(40_000, 1)
    action, _ = beta.sample(heads, torch.Generator().manual_seed(3))
    expected = peer(heads[:1])
    torch.testing.assert_close(action.mean(0), expected.mean[0], atol=5e-3, rtol=0)
    torch.testing.assert_close(action.var(0), expected.variance[0], atol=3e-3, rtol=0)
    torch.testing.assert_close(beta.mean(heads[:1]), expected.mean)


def test_the_likeliest_action_is_where_the_density_is_highest(heads):
    action = beta.mode(heads)
    best, _ = beta.log_prob_and_entropy(heads, action.clamp(1e-6, 1 - 1e-6))
    for step in (-1e-3, 1e-3):
        beside, _ = beta.log_prob_and_entropy(heads, (action + step).clamp(1e-6, 1 - 1e-6))
        assert (beside <= best + 1e-9).all()


def test_the_likeliest_action_reaches_the_limits_where_the_mean_does_not():
    heads = torch.tensor([[40.0, -40.0, 0.0, -40.0, 40.0, 0.0, 0.0]])
    torch.testing.assert_close(beta.mode(heads), torch.tensor([[1.0, 0.0, 0.5]]), atol=1e-6, rtol=0)
    assert (beta.mean(heads)[0, :2] - torch.tensor([1.0, 0.0])).abs().min() > 0.02


def test_equal_generators_draw_equal_actions(heads):
    first, second = (beta.sample(heads, torch.Generator().manual_seed(9))[0] for _ in range(2))
    assert torch.equal(first, second)
