"""The network is the original's: its size, its names, its order of features."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from navrl.errors import StateError
from navrl.navigation_observation import navigation_layout
from navrl.rl.networks.navigation import (
    NavigationNetwork,
    NetworkSettings,
    build_network,
    from_upstream,
    to_upstream,
)
from navrl.rl.networks.transformer import TransformerNetwork


def original(state):
    """The original's network, built layer by layer from its description and its own parameter
    names.
    """
    parts = (
        "feature_extractor.module.0.module",
        "feature_extractor.module.1.module.1",
        "feature_extractor.module.3.module",
    )
    lidar = nn.Sequential(
        nn.Conv2d(1, 4, (5, 3), padding=(2, 1)),
        nn.ELU(),
        nn.Conv2d(4, 16, (5, 3), (2, 1), (2, 1)),
        nn.ELU(),
        nn.Conv2d(16, 16, (5, 3), (2, 2), (2, 1)),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(288, 128),
        nn.LayerNorm(128),
    )
    blocks = [
        nn.Sequential(
            nn.Linear(a, b),
            nn.LeakyReLU(),
            nn.LayerNorm(b),
            nn.Linear(b, c),
            nn.LeakyReLU(),
            nn.LayerNorm(c),
        )
        for a, b, c in ((50, 128, 64), (200, 256, 256))
    ]
    for part, module in zip(parts, (lidar, *blocks), strict=True):
        module.load_state_dict(
            {key.removeprefix(f"{part}."): v for key, v in state.items() if key.startswith(part)}
        )

    def run(lidar_image, dynamic, own):
        # CatTensors sorts its keys: "_dynamic..." comes before "agents...".
        features = blocks[1](torch.cat([lidar(lidar_image), blocks[0](dynamic.flatten(1)), own], 1))
        outputs = []
        for name in (
            "actor.module.0.module.alpha_layer",
            "actor.module.0.module.beta_layer",
            "critic.module",
        ):
            outputs.append(
                nn.functional.linear(features, state[f"{name}.weight"], state[f"{name}.bias"])
            )
        return torch.cat(outputs, 1)

    return run


def test_it_has_as_many_parameters_as_the_original():
    stored_with_statistics = 177_388
    assert (
        sum(p.numel() for p in NavigationNetwork().parameters()) == stored_with_statistics - 3 - 2
    )


@pytest.mark.parametrize("distance_scale", [1.0, 0.1])
def test_the_originals_code_with_our_weights_gives_our_output(distance_scale):
    torch.manual_seed(0)
    network = NavigationNetwork(distance_scale=distance_scale)
    rows = torch.randn(9, 208)
    run = original(to_upstream(network))
    theirs = run(
        rows[:, :144].view(-1, 1, 36, 4), rows[:, 144:194].view(-1, 1, 5, 10), rows[:, 194:202]
    )
    torch.testing.assert_close(network(rows), theirs)


def test_weights_come_back_from_the_originals_names_and_the_rest_is_given_too():
    network = NavigationNetwork()
    extra = {"value_norm.running_mean": torch.tensor(447.2), "gae.gamma": torch.tensor(0.99)}
    parameters, rest = from_upstream(to_upstream(network) | extra)
    assert set(rest) == set(extra)
    assert all(torch.equal(parameters[name], value) for name, value in network.state_dict().items())


def test_a_state_that_is_not_the_originals_is_refused_by_name():
    with pytest.raises(StateError, match=r"alpha\.bias"):
        from_upstream({"something": torch.zeros(1)})


@pytest.mark.parametrize("option", ["circular", "relative_motion"])
def test_what_the_original_has_not_cannot_be_given_to_it(option):
    with pytest.raises(StateError, match=f"{option}=True .* network=navrl"):
        to_upstream(NavigationNetwork(**{option: True}))


@pytest.mark.parametrize("kind", [NavigationNetwork, TransformerNetwork])
def test_relative_motion_reaches_the_commands(kind):
    torch.manual_seed(0)
    network = kind(relative_motion=True)
    for head in (network.alpha, network.beta):
        torch.nn.init.normal_(head.weight)
    rows = torch.rand(4, network.layout.width)
    inputs = network.dynamic[0].weight
    before = network(rows)
    with torch.no_grad():
        inputs[:, network.layout["dynamic_obstacle"].size :] = 0
    assert not torch.allclose(network(rows), before, atol=1e-3)


def test_a_joined_image_has_no_edge():
    """Turning the scene by a whole stride turns what the last convolution sees, and changes nothing
    else.
    """
    torch.manual_seed(0)
    network = NavigationNetwork(circular=True)
    network.lidar[7], network.lidar[8] = nn.Identity(), nn.Identity()
    image = torch.rand(3, 1, 36, 4)
    seen = network._look(image).view(3, 16, 9, 2)
    turned = network._look(image.roll(4, 2)).view(3, 16, 9, 2)
    torch.testing.assert_close(turned, seen.roll(1, 2))


@pytest.mark.parametrize("extractor", ["cnn", "vit"])
@pytest.mark.parametrize(
    ("azimuths", "beams", "observed"), [(36, 4, 5), (20, 1, 3), (7, 3, 1), (90, 8, 5)]
)
def test_every_extractor_takes_every_layout_and_learns(extractor, azimuths, beams, observed):
    layout = navigation_layout(azimuths, beams, observed)
    network = build_network(NetworkSettings(extractor=extractor), layout)
    heads = network(torch.randn(4, layout.width + 5))
    assert heads.shape == (4, 7)
    heads.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_an_unknown_extractor_is_named():
    with pytest.raises(ValueError, match="cnn, vit"):
        NetworkSettings(extractor="resnet").check()
