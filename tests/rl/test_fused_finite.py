"""The fused network never makes finite heads of weights or observations that are not finite."""

from __future__ import annotations

import pytest
import torch

from navrl.errors import ConfigError
from navrl.rl.accelerate import accelerate
from navrl.rl.fused import fused_network as fused
from navrl.rl.fused.fused_network import FusedNetwork
from navrl.rl.networks.navigation import NavigationNetwork

PARAMETERS = [name for name, _ in NavigationNetwork().named_parameters()]
BAD = [float("nan"), float("inf"), float("-inf")]


def make_network(circular=False):
    torch.manual_seed(0)
    return NavigationNetwork(circular=circular)


def make_rows(number, seed=1):
    return torch.rand(number, 202, generator=torch.Generator().manual_seed(seed))


def spoil(network, name, value):
    """Put a value at a place of a parameter that its name draws; return a function that heals it."""
    parameter = dict(network.named_parameters())[name].detach().view(-1)
    place = torch.randint(
        len(parameter), (), generator=torch.Generator().manual_seed(len(name))
    ).item()
    before, parameter[place] = parameter[place].clone(), value

    def heal():
        parameter[place] = before

    return heal


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_bad_weight_makes_every_head_and_gradient_nan_until_it_is_healed(name, bad):
    network, rows = make_network(), make_rows(20)
    network_fused = FusedNetwork(network, threads=1)
    good = network_fused.infer(rows)
    heal = spoil(network, name, bad)
    assert network_fused.infer(rows).isnan().all()
    heads = network_fused(rows)
    assert heads.isnan().all()
    heads.nan_to_num().sum().backward()
    assert all(parameter.grad.isnan().all() for parameter in network.parameters())
    heal()
    assert torch.equal(network_fused.infer(rows), good)
    assert torch.equal(network_fused(rows), good)


@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_kernels_alone_pass_nan_on_as_the_module_does(name, circular, monkeypatch):
    monkeypatch.setattr(fused, "all_finite", lambda *_: True)
    network, rows = make_network(circular), make_rows(20)
    spoil(network, name, float("nan"))
    with torch.no_grad():
        expected = network(rows).isnan()
    assert torch.equal(FusedNetwork(network, threads=1).infer(rows).isnan(), expected)


@pytest.mark.parametrize(
    "layer",
    ["lidar.0.weight", "lidar.2.weight", "lidar.4.weight", "trunk.0.weight", "dynamic.0.weight"],
)
def test_weights_so_large_that_sums_overflow_give_nan_where_the_module_does(layer):
    network, rows = make_network(), make_rows(20)
    with torch.no_grad():
        dict(network.named_parameters())[layer].mul_(3e38)
        dict(network.named_parameters())[layer].clamp_(-3e38, 3e38)
        expected = network(rows)
    heads = FusedNetwork(network, threads=1).infer(rows)
    assert heads[expected.isnan()].isnan().all()


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("column", [0, 143, 144, 193, 194, 201])
def test_a_bad_observation_has_heads_of_nan_and_the_others_keep_theirs(column, bad, indexed):
    network_fused, rows = FusedNetwork(make_network(), threads=1), make_rows(30)
    index = torch.arange(29, -1, -1) if indexed else None
    good = network_fused.infer(rows, index)
    spoiled = rows.clone()
    spoiled[7, column] = bad
    heads = network_fused.infer(spoiled, index)
    place = 22 if indexed else 7
    others = torch.arange(30) != place
    assert heads[place].isnan().all()
    assert torch.equal(heads[others], good[others])
    assert torch.equal(network_fused(spoiled, index)[others], good[others])
    assert torch.equal(network_fused.infer(rows, index), good)  # nothing is left in the buffers


def test_after_a_bad_observation_gradients_are_nan_once_and_then_as_before():
    network, rows = make_network(), make_rows(30)
    network_fused = FusedNetwork(network, threads=1)

    def gradients(rows):
        network.zero_grad()
        network_fused(rows).nan_to_num().sum().backward()
        return [parameter.grad.clone() for parameter in network.parameters()]

    good, spoiled = gradients(rows), rows.clone()
    spoiled[3, 20] = torch.nan
    assert all(gradient.isnan().all() for gradient in gradients(spoiled))
    assert all(torch.equal(a, b) for a, b in zip(gradients(rows), good, strict=True))


def test_a_gradient_of_the_heads_that_is_not_finite_makes_all_gradients_nan():
    network = make_network()
    weights = torch.ones(20, 7)
    weights[4, 2] = torch.nan
    (FusedNetwork(network, threads=1)(make_rows(20)) * weights).sum().backward()
    assert all(parameter.grad.isnan().all() for parameter in network.parameters())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_bad_network_is_not_accelerated(name, bad):
    network = make_network()
    spoil(network, name, bad)
    with pytest.raises(
        ConfigError, match=rf"network: parameter '{name}' holds NaN or infinite values \(1 of"
    ):
        accelerate(network)
