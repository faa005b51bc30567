"""Networks for any observation: encoders by kind, running normalisation, networks of the user."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from navrl.errors import ConfigError
from navrl.navigation_observation import navigation_layout
from navrl.observation import ObservationLayout, Part
from navrl.rl.action_space import Box, Discrete
from navrl.rl.networks.build import build_policy_network
from navrl.rl.networks.general import GeneralNetwork
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.networks.network_settings import NetworkSettings
from navrl.rl.networks.observation_norm import ObservationNorm

PARTS = (
    Part("pose", (3,)),
    Part("camera.front", (3, 20, 24), "image", scaled=True),
    Part("scan", (1, 12, 2), "scan"),
    Part("others", (4, 5), "set"),
)
EVERYTHING = ObservationLayout(PARTS)


class Sums(nn.Module):
    """A network of the user: one number of features for each part."""

    def __init__(self, observation):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(len(observation.parts)))

    def forward(self, parts):
        return torch.stack([part.flatten(1).sum(1) for part in parts.values()], 1) * self.weights


class Two(Sums):
    """Features of their own for actor and critic."""

    def forward(self, parts):
        features = super().forward(parts)
        return features, features[:, :1]


def make(settings=None, observation=EVERYTHING, action=None, **options):
    torch.manual_seed(0)
    return build_policy_network(
        settings or NetworkSettings(), observation, action or Box.of(2), **options
    )


@pytest.mark.parametrize(
    ("action", "heads"), [(Box.of(2), 5), (Box.unbounded(3), 7), (Discrete(4), 5)]
)
def test_heads_follow_the_action_space(action, heads):
    network = make(action=action)
    rows = torch.rand(6, EVERYTHING.width)
    found = network(rows)
    assert found.shape == (6, heads)
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_every_kind_of_part_changes_the_heads(part):
    network = make(observation=ObservationLayout((part,)))
    rows = torch.rand(2, part.size)
    assert not torch.equal(network(rows)[0], network(rows)[1])


def test_turning_a_scan_and_its_circle_gives_the_convolutions_the_same_to_see():
    part = PARTS[2]
    encoder = make(observation=ObservationLayout((part,))).features.encoders[0]
    scan = torch.rand(1, *part.shape)
    first = torch.nn.functional.elu(encoder.convolutions[0](_joined(scan)))
    turned = torch.nn.functional.elu(encoder.convolutions[0](_joined(scan.roll(2, 2))))
    torch.testing.assert_close(first.roll(1, 2), turned)


def _joined(scan):
    from navrl.rl.networks.encoders import _joined

    return _joined(scan, 2)


def test_the_order_of_a_set_does_not_matter_and_absent_members_do_not_count():
    network = make(observation=ObservationLayout((PARTS[3],)))
    members = torch.rand(1, 4, 5)
    members[:, 3] = 0
    shuffled = members[:, [3, 1, 0, 2]]
    expected = network(members.flatten(1))
    torch.testing.assert_close(network(shuffled.flatten(1)), expected)
    assert torch.isfinite(network(torch.zeros(1, 20))).all()


def test_images_are_taken_with_channels_first_or_last():
    first = ObservationLayout((Part("camera", (3, 16, 16), "image"),))
    last = ObservationLayout((Part("camera", (16, 16, 3), "image"),))
    image = torch.rand(2, 3, 16, 16)
    one, other = make(observation=first), make(observation=last)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(
        one.features(first.split(image.flatten(1))),
        other.features(last.split(image.permute(0, 2, 3, 1).flatten(1))),
    )


def test_encoders_can_be_chosen_by_the_name_of_a_part():
    settings = NetworkSettings(encoders={"camera.front": "mlp"})
    names = [type(encoder).__name__ for encoder in make(settings).features.encoders]
    assert names == ["FlatEncoder", "MLPEncoder", "ScanEncoder", "SetEncoder"]


@pytest.mark.parametrize(
    ("encoders", "told"),
    [
        ({"lidar": "cnn"}, "names no part.*pose, camera.front"),
        ({"pose": "cn"}, "expected one of .*Did you mean 'cnn'"),
        ({"pose": "cnn"}, "shape .3,.*for a CNN"),
        ({"pose": "nowhere:Encoder"}, "cannot be imported"),
    ],
)
def test_impossible_encoders_are_refused(encoders, told):
    with pytest.raises(ConfigError, match=told):
        make(NetworkSettings(encoders=encoders))


def test_the_navigation_task_keeps_its_own_network():
    layout = navigation_layout(padding=3)
    assert type(make(observation=layout, action=Box.of(3))) is NavigationNetwork
    assert type(make(observation=layout, action=Discrete(3))) is GeneralNetwork
    more = ObservationLayout((*layout.parts, Part("battery", (1,))))
    assert type(make(observation=more, action=Box.of(3))) is GeneralNetwork


# ---------------------------------------------------------------------- networks of the user


@pytest.mark.parametrize("own", [Sums, Two])
def test_a_module_of_the_user_gives_the_features(own):
    network = make(make=own)
    rows = torch.rand(3, EVERYTHING.width)
    network(rows).sum().backward()
    assert network.features.weights.grad.abs().sum() > 0


def test_a_module_of_the_user_is_found_by_its_name():
    settings = NetworkSettings(target=f"{__name__}:Sums")
    assert isinstance(make(settings).features, Sums)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (lambda observation: 3, "network.target made 3"),
        (lambda observation: nn.Flatten(0), "Flatten|features|attribute"),
        (lambda observation: Flat(), r"\(2, 3, 1\).*expected features"),
    ],
)
def test_what_is_no_network_is_refused(own, told):
    with pytest.raises((ConfigError, AttributeError), match=told):
        make(make=own)


class Flat(nn.Module):
    def forward(self, parts):
        return parts["pose"][..., None]


# ---------------------------------------------------------------------- normalisation


def test_observations_are_brought_to_mean_0_and_variance_1():
    norm = ObservationNorm(ObservationLayout((Part("pose", (2,)), Part("flag", (1,), scaled=True))))
    rows = torch.randn(1000, 3) * torch.tensor([50.0, 0.1, 7.0]) + torch.tensor([9.0, 3.0, 1.0])
    assert torch.equal(norm(rows[:1]).clamp(-10, 10)[:, 2], rows[:1, 2].clamp(-10, 10))
    for part in rows.split(100):
        norm.update(part, lambda sums: None)
    found = norm(rows)
    torch.testing.assert_close(found[:, :2].mean(0), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(found[:, :2].std(0), torch.ones(2), atol=1e-2, rtol=0)
    assert torch.equal(found[:, 2], rows[:, 2])


def test_two_processes_with_half_the_rows_each_reach_the_same_statistics():
    layout, rows = ObservationLayout((Part("pose", (2,)),)), torch.rand(100, 2)
    one, other = ObservationNorm(layout), ObservationNorm(layout)
    one.update(rows, lambda sums: None)
    wide = rows[50:].double()
    theirs = torch.cat([wide.sum(0), (wide * wide).sum(0), torch.tensor([50.0])])
    other.update(rows[:50], lambda sums: sums.add_(theirs))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_a_constant_input_stays_finite():
    norm = ObservationNorm(ObservationLayout((Part("pose", (1,)),)))
    norm.update(torch.full((10, 1), 3.0), lambda sums: None)
    assert norm(torch.tensor([[3.0], [4.0]])).tolist() == [[0.0], [10.0]]
