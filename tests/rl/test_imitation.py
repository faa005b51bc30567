"""Imitating a teacher: whose advice is kept, how it pulls the policy, and when it ends."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from navrl.errors import ActionError
from navrl.navigation_observation import navigation_layout
from navrl.observation import ObservationLayout, Part
from navrl.rl.accelerate import PlainNetwork
from navrl.rl.action_space import Box, Discrete
from navrl.rl.collect import ADVICE_INTERVAL, Collector, Rollout
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.environment import TorchEnvironment
from navrl.rl.mirror import Mirror
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.off_policy import join_rollouts
from navrl.rl.ppo import PPO, ActorSettings, PPOSettings, imitation_weight

BOX = Box.of(2, -3.0, 3.0)
ADVICE = torch.tensor([1.5, -2.0])  # m/s


class Taught(TorchEnvironment):
    """Nothing happens; its teacher has advice for the first of two drones."""

    def begin(self, mask):
        self.position = torch.zeros(self.num_envs)

    def advance(self, action):
        return torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.bool)

    def look(self):
        return {"position": self.position}

    def advise(self, rows, action):
        assert rows.shape == (2, 1)
        assert action.shape == (2, 2)
        return torch.stack([ADVICE, torch.full((2,), math.nan)])


class Network(nn.Module):
    """Heads that do not depend on what is seen."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(1, 4)
        self.critic = nn.Linear(1, 1)

    def forward(self, rows):
        return torch.cat([self.body(rows), self.critic(rows)], 1)

    def actor_parameters(self):
        return [*self.body.parameters()]

    def critic_parameters(self):
        return [*self.critic.parameters()]


def collected(*, advised, steps=8, network=None):
    env = Taught(2, ObservationLayout((Part("position", (1,)),)), BOX)
    network = PlainNetwork(network or Network())
    generator = torch.Generator().manual_seed(0)
    collector = Collector(env, env.reset(), network, steps, distribution_for(BOX), generator)
    return collector.collect(0.0, 1.0, advised=advised)


def test_a_teacher_is_asked_at_intervals_and_its_advice_kept_as_actions_are_drawn():
    advice = collected(advised=True).advice
    asked = advice[::ADVICE_INTERVAL]
    torch.testing.assert_close(asked[:, 0], (ADVICE / 6 + 0.5).expand(2, 2))
    assert asked[:, 1].isnan().all()
    others = [t for t in range(8) if t % ADVICE_INTERVAL]
    assert advice[others].isnan().all()


def test_nobody_is_asked_where_nothing_is_imitated():
    assert collected(advised=False).advice is None


def test_advice_of_a_wrong_shape_is_refused(monkeypatch):
    monkeypatch.setattr(Taught, "advise", lambda env, rows, action: ADVICE)
    with pytest.raises(ActionError, match=r"actions of shape \(2,\); expected \(2, 2\)"):
        collected(advised=True)


def learner(network, **settings):
    return PPO(
        network,
        PlainNetwork(network),
        distribution_for(BOX),
        PPOSettings(num_minibatches=2, **settings),
        torch.Generator().manual_seed(0),
    )


def mean_action(network):
    with torch.no_grad():
        return distribution_for(BOX).to_environment(
            distribution_for(BOX).mean(network(torch.zeros(1, 1)))
        )[0]


def test_updates_pull_the_mean_action_to_the_advice():
    torch.manual_seed(0)
    network = Network()
    # the rewards are all zero: there is nothing else to learn
    ppo = learner(network, imitation=10.0, policy_coefficient=0.0, actor=ActorSettings(0.02))
    losses = [
        ppo.update(collected(advised=True, network=network))["imitation_loss"] for _ in range(300)
    ]
    torch.testing.assert_close(mean_action(network), ADVICE, rtol=0, atol=0.1)
    assert losses[-1] < 0.01 < losses[0]


def test_samples_without_advice_are_learnt_from_as_if_there_were_no_teacher():
    networks = [Network(), Network()]
    networks[1].load_state_dict(networks[0].state_dict())
    plain, unadvised = (collected(advised=False, network=networks[0]) for _ in range(2))
    unadvised.advice = torch.full_like(unadvised.action, math.nan)
    unadvised.advice[:4] = math.inf
    learner(networks[0]).update(plain)
    report = learner(networks[1], imitation=10.0).update(unadvised)
    assert report["imitation_loss"] == 0
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other)


def test_the_weight_falls_linearly_to_zero():
    settings = PPOSettings(imitation=8.0, imitation_until=0.5)
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    assert [imitation_weight(settings, share) for share in shares] == [8.0, 4.0, 0.0, 0.0, 0.0]
    assert imitation_weight(PPOSettings(), 0.0) == 0.0


def test_advice_is_reflected_with_its_sample():
    layout, box = navigation_layout(), Box.of(3, -1.0, 1.0)
    torch.manual_seed(0)
    networks = [NavigationNetwork() for _ in range(2)]
    networks[1].load_state_dict(copy.deepcopy(networks[0].state_dict()))
    rows, action = torch.randn(3, 4, layout.width) * 0.1, torch.rand(2, 4, 3) * 0.8 + 0.1
    advice, mirror = torch.rand(2, 4, 3), Mirror(layout)

    def batch(reflected):
        if not reflected:
            return rows, action, advice
        mirrored = [mirror.actions(each.flatten(0, 1)).view_as(each) for each in (action, advice)]
        return (mirror.rows(rows.flatten(0, 1)).view_as(rows), *mirrored)

    for number, network in enumerate(networks):
        seen, done, told = batch(reflected=number == 1)
        rollout = Rollout(
            rows=seen.clone(),
            action=done.clone(),
            log_prob=torch.zeros(2, 4),
            value=torch.zeros(3, 4),
            reward=torch.arange(8.0).view(2, 4),
            done=torch.zeros(2, 4),
            truncated_value=torch.zeros(2, 4),
            advice=told.clone(),
        )
        # the first learns from the reflection of all samples, the second from reflected samples
        settings = PPOSettings(num_minibatches=1, imitation=5.0, mirror_share=1.0 - number)
        PPO(
            network,
            PlainNetwork(network),
            distribution_for(box),
            settings,
            torch.Generator().manual_seed(0),
            mirror=mirror if number == 0 else None,
        ).update(rollout)
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other)


def test_batches_of_several_workers_keep_their_advice():
    parts = [collected(advised=True), collected(advised=True)]
    assert join_rollouts(parts).advice.shape == (8, 4, 2)
    parts[1].advice = None
    assert join_rollouts(parts).advice is None


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (Box.of(3, -2.0, 4.0), torch.tensor([[-2.0, 0.0, 4.0], [1.0, 2.0, 3.0]])),
        (Box.of(2, -math.inf, math.inf), torch.tensor([[-7.0, 9.0]])),
        (Discrete(4), torch.tensor([3, 0])),
    ],
)
def test_actions_of_an_environment_come_back_from_how_they_are_drawn(space, actions):
    distribution = distribution_for(space)
    drawn = distribution.from_environment(actions)
    assert drawn.shape == (len(actions), distribution.size)
    torch.testing.assert_close(distribution.to_environment(drawn), actions)
