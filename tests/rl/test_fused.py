"""The fused network computes what NavigationNetwork computes, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch

from navrl.errors import StateError
from navrl.navigation_observation import navigation_layout
from navrl.rl.fused.fused_network import FusedNetwork, supports
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.networks.network_settings import NetworkSettings

USUAL = NetworkSettings().relative_motion  # of the network that trainings make, and compile


def make_network(circular=False, seed=0, layout=None, relative_motion=USUAL):
    """Return a network with every parameter away from its initial zero or one, so that no gradient
    vanishes.
    """
    torch.manual_seed(seed)
    network = NavigationNetwork(
        layout, circular=circular, distance_scale=0.1, relative_motion=relative_motion
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return network


def make_rows(number, seed=1):
    """Return observations whose unread columns are not numbers."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(number, 208, generator=generator)
    rows[:, 144:] = torch.randn(number, 64, generator=generator)
    rows[::3, 184:194] = 0  # the last obstacle is absent
    rows[:, 202:] = torch.nan
    return rows


def gradients_of(network, heads, weights):
    network.zero_grad()
    (heads * weights).sum().backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


def distance(network, gradients, expected):
    """Return the largest relative distance between two gradients of a parameter."""
    names = [name for name, _ in network.named_parameters()]
    pairs = zip(names, gradients, expected, strict=True)
    return max((float((a - b).norm() / b.norm().clamp_min(1e-12)), name) for name, a, b in pairs)


def near_a_kink(network, rows):
    """Return the samples with a leaky unit so near its kink that rounding may put it on the other
    side.
    """
    near, hooks = torch.zeros(len(rows), dtype=torch.bool), []

    def note(_, __, output):
        near.logical_or_((output.abs() < 1e-5).any(1))

    for layer in (network.dynamic[0], network.dynamic[3], network.trunk[0], network.trunk[3]):
        hooks.append(layer.register_forward_hook(note))
    network(rows)
    for hook in hooks:
        hook.remove()
    return near


@pytest.fixture(scope="module", params=[False, True], ids=["zeros", "circular"])
def network(request):
    return make_network(request.param)


@pytest.mark.parametrize("number", [1, 7, 96, 97, pytest.param(2048, marks=pytest.mark.slow)])
@pytest.mark.parametrize("indexed", [False, True])
def test_forward_and_gradients_are_those_of_the_module(network, number, indexed):
    rows = make_rows(number + 100)
    index = (
        torch.randperm(number + 100, generator=torch.Generator().manual_seed(2))[:number]
        if indexed
        else None
    )
    chosen = rows[index] if indexed else rows[:number]
    exact = copy.deepcopy(network).double()
    weights = torch.randn(number, 7, generator=torch.Generator().manual_seed(3))

    fused = FusedNetwork(network, threads=1)
    heads = fused(rows if indexed else chosen, index)
    expected = exact(chosen.double())
    assert float((heads - expected).detach().abs().max() / expected.detach().abs().max()) < 5e-6
    assert torch.equal(fused.infer(rows if indexed else chosen, index), heads)

    weights[near_a_kink(exact, chosen.double())] = 0
    found = gradients_of(network, heads, weights)
    far, name = distance(network, found, gradients_of(exact, expected, weights.double()))
    assert far < 2e-5, name


# An odd number of azimuths before each convolution, padded beams, beams enough for three kinds of
# matrices, and longer rows of activations; the smallest layout. Each is compiled anew.
LAYOUTS = [(45, 11, 5, True), (3, 1, 1, False)]


@pytest.mark.slow  # compiles the kernels of each layout
@pytest.mark.parametrize(("azimuths", "beams", "observed", "relative_motion"), LAYOUTS)
@pytest.mark.parametrize("circular", [False, True], ids=["zeros", "circular"])
def test_any_layout_of_the_simulator_is_computed(
    azimuths, beams, observed, relative_motion, circular
):
    layout = navigation_layout(azimuths, beams, observed)
    network = make_network(circular, layout=layout, relative_motion=relative_motion)
    generator = torch.Generator().manual_seed(1)
    usual = torch.rand(30, network.layout.width + 3, generator=generator)
    usual[:, azimuths * beams :] = torch.randn(30, usual.shape[1] - azimuths * beams)
    usual[:, network.layout.width :] = torch.nan
    exact, weights = copy.deepcopy(network).double(), torch.randn(30, 7, generator=generator)
    fused = FusedNetwork(network, threads=2)
    # the second time with what the first left in the buffers
    for rows, close in ((usual, 1), (usual, 1), (0 * usual, 5), (1e4 * usual, 5)):
        heads, expected = fused(rows), exact(rows.double())
        error = (heads - expected).detach().abs().max() / expected.detach().abs().max()
        assert float(error) < 5e-6 * close
        counted = weights * ~near_a_kink(exact, rows.double())[:, None]
        found = gradients_of(network, heads, counted)
        far, name = distance(network, found, gradients_of(exact, expected, counted.double()))
        assert far < 2e-5 * close, name
        assert torch.equal(fused.infer(rows), heads)


def test_gradients_are_those_of_the_module_in_single_precision(network):
    rows, weights = make_rows(64), torch.randn(64, 7)
    expected = gradients_of(network, network(rows), weights)
    assert (
        distance(network, gradients_of(network, FusedNetwork(network)(rows), weights), expected)[0]
        < 2e-5
    )


@pytest.mark.parametrize(
    "make",
    [
        torch.zeros,
        lambda *shape: 1e4 * torch.randn(*shape, generator=torch.Generator().manual_seed(0)),
    ],
)
def test_zero_and_large_inputs(network, make):
    rows, weights = make(50, 202), torch.randn(50, 7)
    fused = FusedNetwork(network, threads=1)
    exact = copy.deepcopy(network).double()
    expected = exact(rows.double())
    assert (
        float((fused.infer(rows) - expected.detach()).abs().max() / expected.detach().abs().max())
        < 1e-5
    )
    found = gradients_of(network, fused(rows), weights)
    assert all(gradient.isfinite().all() for gradient in found)
    assert distance(network, found, gradients_of(exact, expected, weights.double()))[0] < 1e-4


def test_rows_need_not_be_contiguous(network):
    wide = torch.cat([make_rows(40), torch.full((40, 33), torch.nan)], 1)
    fused = FusedNetwork(network, threads=1)
    assert torch.equal(fused.infer(wide[::2, :208]), fused.infer(wide[::2, :208].contiguous()))
    assert torch.equal(fused.infer(wide[:, :202]), fused.infer(wide[:, :202].contiguous()))


def test_a_sample_does_not_depend_on_its_neighbours(network):
    rows, fused = make_rows(300), FusedNetwork(network, threads=1)
    whole = fused.infer(rows)
    assert torch.equal(whole[17:18], fused.infer(rows[17:18]))
    assert torch.equal(whole[100:], fused.infer(rows[100:]))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_input_gives_the_same_bits(network, threads):
    rows, weights = make_rows(250), torch.randn(250, 7)
    runs = []
    for _ in range(2):
        fused = FusedNetwork(network, threads=threads)
        fused(make_rows(400, seed=9)).sum().backward()  # leaves something else in the buffers
        runs.append(gradients_of(network, fused(rows), weights))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_threads_change_nothing_but_rounding(network):
    rows, weights = make_rows(250), torch.randn(250, 7)
    one, three = FusedNetwork(network, threads=1), FusedNetwork(network, threads=3)
    assert torch.equal(one.infer(rows), three.infer(rows))
    expected = gradients_of(network, one(rows), weights)
    assert distance(network, gradients_of(network, three(rows), weights), expected)[0] < 1e-5
    assert three.infer(rows[:5]).shape == (5, 7)


def test_two_passes_may_be_open_at_once(network):
    rows, weights, fused = make_rows(60), torch.randn(60, 7), FusedNetwork(network, threads=1)
    expected = gradients_of(network, fused(rows), weights)
    first = fused(rows)
    second = fused(make_rows(60, seed=5))
    fused.infer(make_rows(60, seed=6))
    gradients_of(network, second, weights)
    assert all(
        torch.equal(a, b)
        for a, b in zip(gradients_of(network, first, weights), expected, strict=True)
    )


def test_going_back_twice_is_refused(network):
    heads = FusedNetwork(network, threads=1)(make_rows(5))
    heads.sum().backward(retain_graph=True)
    with pytest.raises(StateError, match="call backward once"):
        heads.sum().backward()


def test_parameters_are_read_anew_and_gradients_are_accumulated():
    network, rows = make_network(), make_rows(30)
    fused = FusedNetwork(network, threads=1)
    before = fused.infer(rows)
    network.critic.bias.data.add_(1.0)
    assert torch.allclose(fused.infer(rows)[:, 6], before[:, 6] + 1)
    fused(rows).sum().backward()
    once = network.trunk[0].weight.grad.clone()
    fused(rows).sum().backward()
    assert torch.allclose(network.trunk[0].weight.grad, 2 * once)


def test_no_rows_give_no_heads_and_no_gradient(network):
    fused = FusedNetwork(network, threads=1)
    assert fused.infer(make_rows(0)).shape == (0, 7)
    network.zero_grad()
    fused(make_rows(4), torch.zeros(0, dtype=torch.int64)).sum().backward()
    assert all(not parameter.grad.any() for parameter in network.parameters())


def test_what_it_does_not_support_it_says():
    network, rows = make_network(), make_rows(4)
    assert supports(network, rows)
    assert not supports(network, rows.double())
    assert not supports(network, rows[:, :201])
    assert not supports(network, rows.T)
    assert not supports(copy.deepcopy(network).double(), rows)
    assert not supports(torch.nn.Linear(208, 7), rows)
    with pytest.raises(StateError, match="at least 202"):
        FusedNetwork(network).infer(rows[:, :100])


def test_an_index_outside_the_rows_is_refused(network):
    fused, rows = FusedNetwork(network, threads=1), make_rows(4)
    with pytest.raises(StateError, match="index goes from 0 to 4"):
        fused.infer(rows, torch.tensor([0, 4]))
    with pytest.raises(StateError, match="expected int64"):
        fused.infer(rows, torch.tensor([0, 1], dtype=torch.int32))


def test_weights_that_are_packed_once_are_packed_again_after_a_change():
    network = make_network()
    fused, rows = FusedNetwork(network), make_rows(3)[:, : network.layout.width].contiguous()
    infer = fused.packed()
    assert torch.equal(infer(rows), fused.infer(rows))
    before = infer(rows)
    with torch.no_grad():
        next(network.parameters()).mul_(1.1)
    assert not torch.equal(infer(rows), before)
    assert torch.equal(infer(rows), fused.infer(rows))
    with torch.no_grad():
        next(network.parameters()).fill_(torch.nan)
    assert infer(rows).isnan().all()
    with pytest.raises(StateError, match="float32 rows"):
        infer(rows[:, :5])
