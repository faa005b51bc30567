"""Advantages against the definition, written out as sums over the future."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from navrl.rl.advantage import gae


def plain_advantages(reward, value, done, truncated_value, gamma, gae_lambda):
    """Sum the discounted errors of every later step of the same episode, one by one."""
    steps, drones = reward.shape
    result = torch.zeros(steps, drones, dtype=torch.float64)
    for drone in range(drones):
        for start in range(steps):
            weight = 1.0
            for t in range(start, steps):
                over = bool(done[t, drone])
                following = truncated_value[t, drone] if over else value[t + 1, drone]
                error = reward[t, drone] + gamma * following - value[t, drone]
                result[start, drone] += weight * float(error)
                weight *= gamma * gae_lambda
                if over:
                    break
    return result


@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 12),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
)
def test_advantages_are_the_discounted_errors_of_the_rest_of_the_episode(
    seed, steps, gamma, gae_lambda
):
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(steps, 3, generator=generator, dtype=torch.float64)
    value = torch.randn(steps + 1, 3, generator=generator, dtype=torch.float64)
    done = (torch.rand(steps, 3, generator=generator) < 0.3).double()
    cut = (torch.rand(steps, 3, generator=generator) < 0.5).double() * done
    truncated_value = cut * torch.randn(steps, 3, generator=generator, dtype=torch.float64)
    expected = plain_advantages(reward, value, done, truncated_value, gamma, gae_lambda)
    torch.testing.assert_close(
        gae(reward, value, done, truncated_value, gamma, gae_lambda), expected
    )


def vtrace_targets(reward, value, importance, gamma, gae_lambda):
    """V-trace as its paper writes it: V(s) plus every later error, times the weights before it."""
    steps, drones = reward.shape
    result = value[:-1].clone()
    for drone in range(drones):
        for start in range(steps):
            traced = 1.0
            for t in range(start, steps):
                rho = importance[t, drone]
                error = reward[t, drone] + gamma * value[t + 1, drone] - value[t, drone]
                result[start, drone] += traced * rho * error
                traced *= gamma * gae_lambda * rho
    return result


@given(seed=st.integers(0, 2**31), gamma=st.floats(0, 1), gae_lambda=st.floats(0, 1))
def test_weighted_advantages_lead_to_the_value_targets_of_vtrace(seed, gamma, gae_lambda):
    generator = torch.Generator().manual_seed(seed)
    reward, value, importance = (
        torch.rand(steps, 2, generator=generator, dtype=torch.float64) for steps in (6, 7, 6)
    )
    never = torch.zeros_like(reward)
    advantage = gae(reward, value, never, never, gamma, gae_lambda, importance)
    expected = vtrace_targets(reward, value, importance, gamma, gae_lambda)
    torch.testing.assert_close(value[:-1] + importance * advantage, expected)


def test_nothing_of_the_next_episode_leaks_into_the_last_one():
    reward, value = torch.zeros(4, 1), torch.zeros(5, 1)
    done = torch.tensor([[0.0], [1.0], [0.0], [0.0]])
    quiet = gae(reward, value, done, torch.zeros(4, 1), 0.99, 0.95)
    reward[2:], value[2:] = 100.0, -50.0
    loud = gae(reward, value, done, torch.zeros(4, 1), 0.99, 0.95)
    assert torch.equal(quiet[:2], loud[:2])
    assert not torch.equal(quiet[2:], loud[2:])


def test_a_time_out_is_worth_what_the_last_observation_promised():
    reward, value, truncated_value = (
        torch.ones(1, 1),
        torch.tensor([[2.0], [7.0]]),
        torch.tensor([[5.0]]),
    )
    result = gae(reward, value, torch.ones(1, 1), truncated_value, 0.5, 0.9)
    assert result.item() == 1 + 0.5 * 5 - 2
