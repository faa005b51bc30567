"""PPO: one update against a plain implementation, its guards, and environments whose best policy is
known.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from navrl.rl.accelerate import PlainNetwork, accelerate
from navrl.rl.action_space import Box
from navrl.rl.advantage import gae
from navrl.rl.collect import Collector, Rollout
from navrl.rl.distributions import beta
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.finite import DivergedError
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.rl.normaliser import ValueNormaliser
from navrl.rl.ppo import PPO, PPOSettings

WIDTH = 202
UNIT = distribution_for(Box.of(3, 0.0, 1.0))


class SmallNetwork(nn.Module):
    """Enough of a network for the learner."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 32), nn.Tanh())
        self.alpha, self.beta, self.critic = nn.Linear(32, 3), nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, rows):
        body = self.body(rows)
        return torch.cat([self.alpha(body), self.beta(body), self.critic(body)], 1)

    def actor_parameters(self):
        return [*self.alpha.parameters(), *self.beta.parameters()]

    def critic_parameters(self):
        return [*self.critic.parameters()]


def make_rollout(seed=0, steps=6, drones=20, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    done = (torch.rand(steps, drones, generator=generator) < 0.1).float()
    return Rollout(
        rows=normal(steps + 1, drones, width),
        action=torch.rand(steps, drones, 3, generator=generator).clamp(0.01, 0.99),
        log_prob=normal(steps, drones) * 0.1,
        value=normal(steps + 1, drones),
        reward=normal(steps, drones),
        done=done,
        truncated_value=done * normal(steps, drones),
    )


def make_ppo(network, settings=None, seed=0, **options):
    return PPO(
        network,
        PlainNetwork(network),
        UNIT,
        settings or PPOSettings(),
        torch.Generator().manual_seed(seed),
        **options,
    )


def test_importance_weights_of_one_change_nothing():
    networks = [SmallNetwork() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    plain, weighted = make_rollout(), make_rollout()
    weighted.importance = torch.ones_like(weighted.reward)
    for network, batch in zip(networks, (plain, weighted), strict=True):
        make_ppo(network).update(batch)
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other)


def test_samples_of_no_weight_do_not_move_the_policy():
    network, batch = SmallNetwork(), make_rollout()
    batch.importance = torch.zeros_like(batch.reward)
    before = copy.deepcopy(network.alpha.state_dict())
    settings = PPOSettings(entropy_loss_coefficient=0.0, value_coefficient=0.0)
    make_ppo(network, settings).update(batch)
    assert all(
        torch.equal(value, before[name]) for name, value in network.alpha.state_dict().items()
    )


def plain_update(network, batch, settings, progress, seed):
    """The same update with PyTorch's own distribution, losses, clipping and optimiser, a loop over
    samples' indices.
    """
    ratio = 1 + (settings.final_learning_rate - 1) * progress
    optimizer = torch.optim.Adam(
        network.parameters(), lr=settings.actor.learning_rate * ratio, eps=settings.adam_epsilon
    )
    gain = gae(
        batch.reward,
        batch.value,
        batch.done,
        batch.truncated_value,
        settings.gamma,
        settings.gae_lambda,
    )
    returns = (gain + batch.value[:-1]).flatten()
    old_mean, old_spread = 0.0, 1.0
    mean, spread = returns.mean().item(), max(returns.var(correction=0).item(), 1e-2) ** 0.5
    with torch.no_grad():
        network.critic.weight *= old_spread / spread
        network.critic.bias.copy_((network.critic.bias * old_spread + old_mean - mean) / spread)
    gain = ((gain - gain.mean()) / gain.std(correction=0)).flatten()
    rows = batch.rows[:-1].flatten(0, 1)
    action = batch.action.flatten(0, 1)
    old = batch.log_prob.flatten()
    generator, size = torch.Generator().manual_seed(seed), len(rows) // settings.num_minibatches
    entropy_weight = settings.entropy_loss_coefficient * (
        1 + (settings.final_entropy - 1) * progress
    )
    for _ in range(settings.training_epoch_num):
        order = torch.randperm(len(rows), generator=generator)
        for number in range(settings.num_minibatches):
            index = order[number * size : (number + 1) * size]
            heads = network(rows[index])
            concentrations = 1 + nn.functional.softplus(heads[:, :6]) + 1e-6
            distribution = torch.distributions.Beta(concentrations[:, :3], concentrations[:, 3:])
            change = (distribution.log_prob(action[index]).sum(1) - old[index]).exp()
            clip = settings.actor.clip_ratio
            surrogate = torch.min(
                change * gain[index], change.clamp(1 - clip, 1 + clip) * gain[index]
            ).mean()
            target = (returns[index] - mean) / spread
            value_loss = nn.functional.huber_loss(heads[:, 6], target, delta=settings.huber_delta)
            loss = -surrogate + value_loss - entropy_weight * distribution.entropy().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
            optimizer.step()


@pytest.mark.parametrize("progress", [0.0, 0.7])
def test_an_update_is_what_a_plain_implementation_does(progress):
    torch.manual_seed(0)
    network = SmallNetwork()
    plain = copy.deepcopy(network)
    settings = PPOSettings(num_minibatches=4, training_epoch_num=3)
    make_ppo(network, settings, seed=5).update(make_rollout(), progress)
    plain_update(plain, make_rollout(), settings, progress, seed=5)
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-6)


STEPWISE = ("rows", "action", "log_prob", "value", "reward", "done", "truncated_value")


def test_two_halves_with_summed_gradients_are_one_whole():
    """Two learners that reduce in lock-step over halves of a batch move as one learner over all of
    it.
    """
    torch.manual_seed(0)
    network = NavigationNetwork(circular=True, distance_scale=0.1)
    networks = [copy.deepcopy(network) for _ in range(2)]
    batch = make_rollout(steps=4, drones=64)
    settings = PPOSettings(num_minibatches=1, training_epoch_num=3)
    make_ppo(network, settings).update(batch)
    halves = [
        Rollout(**{name: value[:, part] for name, value in vars(batch).items() if name in STEPWISE})
        for part in (slice(0, 32), slice(32, 64))
    ]
    _run_in_step(networks, halves, settings)
    for first, second in zip(*(n.parameters() for n in networks), strict=True):
        assert torch.equal(first, second)
    for ours, whole in zip(networks[0].parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-3, atol=1e-5)


def _run_in_step(networks, halves, settings):
    """Run two updates in threads that meet at every reduction."""
    import threading

    barrier, box, errors = threading.Barrier(2), [None, None], []

    def make_reduce(rank):
        def reduce(tensor):
            box[rank] = tensor.clone()
            barrier.wait(30)
            tensor.copy_(box[0] + box[1])
            barrier.wait(30)

        return reduce

    def work(rank):
        try:
            make_ppo(networks[rank], settings, all_reduce=make_reduce(rank), processes=2).update(
                halves[rank]
            )
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_gradient_that_is_not_finite_changes_nothing_and_in_the_end_says_so():
    network = SmallNetwork()
    ppo = make_ppo(network, PPOSettings(num_minibatches=60, rescale_critic=False))
    batch = make_rollout()
    batch.rows[:] = float("nan")
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(DivergedError, match="not finite 50 times"):
        ppo.update(batch)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_one_bad_minibatch_is_skipped_and_the_rest_is_learnt():
    network = SmallNetwork()
    ppo = make_ppo(network, PPOSettings(num_minibatches=10))
    batch = make_rollout()
    batch.rows[2, 3] = float("nan")
    before = copy.deepcopy(network.state_dict())
    report = ppo.update(batch)
    assert (report["updates"], report["skipped"]) == (9, 1)
    assert all(torch.isfinite(parameter).all() for parameter in network.parameters())
    assert not torch.equal(before["body.0.weight"], network.body[0].weight)


def test_a_reward_that_is_not_finite_changes_nothing_and_the_next_batch_is_learnt():
    network = SmallNetwork()
    ppo = make_ppo(network)
    ppo.update(make_rollout())
    before = copy.deepcopy([network.state_dict(), ppo.normaliser.state_dict()])
    batch = make_rollout(1)
    batch.reward[0, 0] = float("nan")
    assert ppo.update(batch)["updates"] == 0
    for old, new in zip(before, (network.state_dict(), ppo.normaliser.state_dict()), strict=True):
        assert all(torch.equal(old[name], value) for name, value in new.items())
    assert ppo.update(make_rollout(2))["updates"] > 0


def test_there_are_as_many_minibatches_as_asked_for_and_the_remainder_is_dropped():
    assert (
        make_ppo(SmallNetwork(), PPOSettings(num_minibatches=32)).update(
            make_rollout(steps=5, drones=20)
        )["updates"]
        == 32
    )


def test_an_update_ends_early_when_the_policy_has_moved_too_far():
    network = SmallNetwork()
    settings = PPOSettings(num_minibatches=4, training_epoch_num=50, target_kl=0.02)
    settings.actor.learning_rate = settings.feature_extractor.learning_rate = 0.05
    assert make_ppo(network, settings).update(make_rollout())["updates"] < 200


def test_only_the_heads_gradients_are_limited_where_the_original_does_so():
    settings = PPOSettings(num_minibatches=1, clip_heads_only=True, max_grad_norm=1e-9)
    settings.adam_epsilon = 1.0  # so that a step is as long as its gradient
    settings.feature_extractor.learning_rate = settings.actor.learning_rate = (
        settings.critic.learning_rate
    ) = 1.0
    network = SmallNetwork()
    before = copy.deepcopy(network.state_dict())
    make_ppo(network, PPOSettings(**vars(settings) | {"rescale_critic": False})).update(
        make_rollout()
    )
    moved = {
        name: (value - before[name]).abs().max().item()
        for name, value in network.state_dict().items()
    }
    assert moved["alpha.weight"] < 1e-8
    assert moved["critic.weight"] < 1e-8
    assert moved["body.0.weight"] > 1e-6


@pytest.mark.parametrize(
    ("key", "value"),
    [("gamma", 1.5), ("num_minibatches", 0), ("huber_delta", 0.0), ("target_kl", -1)],
)
def test_an_impossible_setting_is_named(key, value):
    with pytest.raises(ValueError, match=f"algo.{key} is"):
        PPOSettings(**{key: value}).check()


def test_the_normaliser_keeps_the_critics_real_output_when_it_moves():
    torch.manual_seed(0)
    critic, normaliser, features = nn.Linear(8, 1), ValueNormaliser(0.9), torch.randn(50, 8)
    for mean, square in ((3.0, 20.0), (-7.0, 90.0), (0.5, 0.5)):
        old_mean, old_spread = normaliser.statistics()
        before = critic(features) * old_spread + old_mean
        normaliser.update_and_rescale(torch.tensor(mean), torch.tensor(square), critic)
        new_mean, new_spread = normaliser.statistics()
        torch.testing.assert_close(
            critic(features) * new_spread + new_mean, before, rtol=1e-4, atol=1e-4
        )


class OneStepWorld:
    """Episodes of one step. What is seen says which action pays: the reward falls with the distance
    to it.
    """

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.generator = torch.Generator().manual_seed(0)
        self.rows = self._look()

    def _look(self):
        return torch.rand(self.num_envs, WIDTH, generator=self.generator)

    def make_step(self):
        count = self.num_envs
        return SimpleNamespace(
            packed=torch.zeros(count, WIDTH),
            final_packed=torch.zeros(count, WIDTH),
            reward=torch.zeros(count),
            terminated=torch.ones(count, dtype=torch.bool),
            truncated=torch.zeros(count, dtype=torch.bool),
            statistics=torch.zeros(count, 1),
        )

    def step(self, action, *, out):
        best = torch.stack(
            [self.rows[:, 0], 1 - self.rows[:, 0], torch.full((self.num_envs,), 0.8)], 1
        )
        out.reward[:] = 1 - (action - best).pow(2).sum(1)
        out.statistics[:, 0] = out.reward
        # so that it is neither the observation before nor the one after
        out.final_packed[:] = self.rows * 0.5
        self.rows = self._look()
        out.packed[:] = self.rows


@pytest.mark.slow
def test_it_learns_the_best_action_of_a_one_step_world():
    torch.manual_seed(0)
    env, network = OneStepWorld(256), SmallNetwork()
    settings = PPOSettings(num_minibatches=8, training_epoch_num=4)
    settings.actor.learning_rate = settings.critic.learning_rate = (
        settings.feature_extractor.learning_rate
    ) = 3e-3
    ppo = make_ppo(network, settings)
    collector = Collector(
        env, env.rows, PlainNetwork(network), 8, UNIT, torch.Generator().manual_seed(1)
    )
    first = collector.collect(*ppo.normaliser.statistics()).reward.mean().item()
    for number in range(60):
        batch = collector.collect(*ppo.normaliser.statistics())
        ppo.update(batch, number / 60)
    rows = env._look()
    action = beta.mean(network(rows))
    assert (action[:, 0] - rows[:, 0]).abs().mean() < 0.1
    assert (action[:, 2] - 0.8).abs().mean() < 0.1
    assert batch.reward.mean().item() > max(first + 0.1, 0.9)
    assert batch.value[:-1].mean().item() == pytest.approx(batch.reward.mean().item(), abs=0.05)


def test_a_collector_gives_a_cut_episode_the_value_of_its_last_observation():
    class CutWorld(OneStepWorld):
        def make_step(self):
            step = super().make_step()
            step.terminated[:], step.truncated[:] = False, True
            return step

    env, network = CutWorld(16), SmallNetwork()
    collector = Collector(
        env, env.rows, PlainNetwork(network), 3, UNIT, torch.Generator().manual_seed(1)
    )
    batch = collector.collect(2.0, 5.0)
    for t in range(3):
        expected = network(batch.rows[t] * 0.5)[:, -1] * 5 + 2
        torch.testing.assert_close(batch.truncated_value[t], expected)
    assert batch.done.all()
    assert len(batch.episodes) == 48


@pytest.mark.slow
def test_a_small_batch_can_be_learnt_by_heart():
    torch.manual_seed(0)
    network = NavigationNetwork(circular=True, distance_scale=0.1)
    ppo = PPO(
        network,
        accelerate(network),
        UNIT,
        PPOSettings(num_minibatches=1, training_epoch_num=1),
        torch.Generator().manual_seed(0),
    )
    batch = make_rollout(steps=2, drones=8)
    losses = [ppo.update(batch)["value_loss"] for _ in range(150)]
    assert losses[-1] < 0.05 * losses[0]
