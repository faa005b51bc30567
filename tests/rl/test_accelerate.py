"""The fastest form of a network, and what is said where there is no fast one."""

from __future__ import annotations

import pytest

from navrl.navigation_observation import navigation_layout
from navrl.rl.accelerate import PlainNetwork, accelerate, slow_path
from navrl.rl.fused import FusedNetwork
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.networks.transformer import TransformerNetwork


@pytest.mark.parametrize("layout", [(36, 4, 5), (20, 2, 1), (360, 64, 32), (3, 1, 1)])
def test_the_navigation_network_runs_in_compiled_kernels_whatever_its_layout(layout):
    applied = accelerate(NavigationNetwork(navigation_layout(*layout)))
    assert isinstance(applied, FusedNetwork)
    assert slow_path(applied) == ""


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (TransformerNetwork(), "not for TransformerNetwork"),
        (NavigationNetwork().double(), "not contiguous torch.float32"),
    ],
    ids=["another network", "double precision"],
)
def test_a_network_without_kernels_runs_in_pytorch_and_says_why(network, reason):
    applied = accelerate(network)
    assert isinstance(applied, PlainNetwork)
    assert "runs in PyTorch, slower" in slow_path(applied)
    assert reason in slow_path(applied)
