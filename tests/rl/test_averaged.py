"""Averaged weights: a moving average that starts at the network, and what is copied instead."""

from __future__ import annotations

import copy

import torch

from navrl.rl.averaged import WARM_UP, AveragedWeights
from navrl.rl.networks.navigation import NavigationNetwork


def moved(network, change):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += change
    return network


def test_the_first_average_is_the_network_and_later_ones_follow_it():
    network = NavigationNetwork()
    average = AveragedWeights(copy.deepcopy(network), 0.5)
    first = moved(network, 1.0).alpha.weight.clone()
    average.update(network, 0)
    torch.testing.assert_close(average.network.alpha.weight, first)
    average.update(moved(network, 1.0), 1)
    early = 1 / (1 + WARM_UP)  # of the past, at the beginning
    torch.testing.assert_close(average.network.alpha.weight, first + (1 - early))
    average.update(moved(network, 0.0), 1000)
    torch.testing.assert_close(average.network.alpha.weight, first + 1 - 0.5 * early)


def test_what_only_the_value_depends_on_is_copied():
    network = NavigationNetwork()
    average = AveragedWeights(network, 0.9)
    average.update(moved(network, 1.0), 1000)
    assert torch.equal(average.network.critic.weight, network.critic.weight)
    assert not torch.allclose(average.network.beta.weight, network.beta.weight)


def test_the_average_acts_with_its_own_weights():
    network, rows = NavigationNetwork(), torch.randn(3, 202)
    average = AveragedWeights(network, 0.9)
    average.update(moved(network, 0.1), 1000)
    heads = average.applied.infer(rows)
    torch.testing.assert_close(heads, average.network(rows), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(heads, network(rows).detach(), rtol=1e-3)
