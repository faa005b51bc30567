"""Soft actor-critic: densities and updates against independent formulas, and environments with a
known answer.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from navrl.errors import ConfigError
from navrl.rl.accelerate import PlainNetwork
from navrl.rl.distributions import gaussian
from navrl.rl.finite import SKIPS_ALLOWED, DivergedError
from navrl.rl.sac import SAC, SACSettings, TwinCritic
from navrl.rl.transitions import n_step_return

INPUTS = 5


def small_actor(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 7))


def learner(**changes: float) -> SAC:
    settings = SACSettings(
        **(
            {"batch_size": 64, "critic_width": 32, "actor_interval": 1, "final_learning_rate": 1.0}
            | changes
        )
    )
    actor = small_actor()
    critic = TwinCritic(INPUTS, settings.critic_width)
    return SAC(actor, PlainNetwork(actor), critic, settings, torch.Generator().manual_seed(7))


def transitions(count: int = 64, seed: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation": torch.randn(count, INPUTS, generator=generator),
        "next/observation": torch.randn(count, INPUTS, generator=generator),
        "action": torch.rand(count, 3, generator=generator),
        "reward": torch.randn(count, generator=generator),
        "discount": torch.where(torch.rand(count, generator=generator) < 0.3, 0.0, 0.9),
    }


# ------------------------------------------------------------------ the distribution


def reference(heads: torch.Tensor) -> TransformedDistribution:
    mean, spread = heads[:, :3], (-5 + 6 * heads[:, 3:6].sigmoid()).exp()
    return TransformedDistribution(
        Independent(Normal(mean, spread), 1), [TanhTransform(cache_size=1)]
    )


def test_the_density_of_a_squashed_action_is_that_of_torch():
    heads = torch.randn(200, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    noise = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    action, log_prob = gaussian.sample(heads, noise)
    expected = reference(heads).log_prob(2 * action - 1)
    # nearer to the edge torch's own inverse loses digits
    inside = ((2 * action - 1).abs() < 0.999).all(1)
    assert inside.sum() > 100
    torch.testing.assert_close(log_prob[inside], expected[inside], rtol=1e-6, atol=1e-6)


def test_the_density_is_finite_at_the_edge_of_the_cube():
    heads = torch.zeros(1, 7)
    heads[:, :3] = 30.0
    action, log_prob = gaussian.sample(heads, torch.zeros(1, 3))
    assert torch.equal(action, torch.ones(1, 3))
    assert torch.isfinite(log_prob).all()


def test_without_noise_the_action_is_the_mean_one():
    heads = torch.randn(20, 7)
    assert torch.equal(gaussian.sample(heads, torch.zeros(20, 3))[0], gaussian.mean(heads))


# ------------------------------------------------------------------ the critics


def plain_value(
    critic: TwinCritic, which: int, observation: torch.Tensor, action: torch.Tensor
) -> torch.Tensor:
    """One critic of the pair, layer by layer."""
    hidden = torch.cat([observation, 2 * action - 1], 1)
    for layer in range(2):
        hidden = hidden @ critic.weights[layer][which] + critic.biases[layer][which]
        normal = (hidden - hidden.mean(1, keepdim=True)) / (
            hidden.var(1, unbiased=False, keepdim=True) + 1e-5
        ).sqrt()
        hidden = nn.functional.elu(
            normal * critic.gains[layer][which] + critic.shifts[layer][which]
        )
    return (hidden @ critic.weights[2][which] + critic.biases[2][which])[:, 0]


def test_both_critics_of_a_pair_are_plain_networks_that_do_not_know_each_other():
    critic, batch = TwinCritic(INPUTS, 16).double(), transitions()
    observation, action = batch["observation"].double(), batch["action"].double()
    values = critic(observation, action)
    for which in (0, 1):
        torch.testing.assert_close(values[which], plain_value(critic, which, observation, action))
    gradient = torch.autograd.grad(values[0].sum(), critic.weights[0])[0]
    assert gradient[0].abs().sum() > 0
    assert gradient[1].abs().sum() == 0


def test_the_target_is_the_reward_and_the_discounted_lesser_value_unless_the_episode_ended():
    sac, batch = learner(first_temperature=0.2), transitions()
    noise_state = sac.generator.get_state()
    targets = sac._targets(batch)
    sac.generator.set_state(noise_state)
    noise = torch.randn(64, 3, generator=sac.generator)
    heads = sac.actor(batch["next/observation"])
    action, log_prob = gaussian.sample(heads, noise)
    both = torch.stack(
        [plain_value(sac.critic, which, batch["next/observation"], action) for which in (0, 1)]
    )
    following = torch.minimum(*both) - 0.2 * log_prob
    expected = batch["reward"] + batch["discount"] * following
    assert torch.equal(targets[batch["discount"] == 0], batch["reward"][batch["discount"] == 0])
    torch.testing.assert_close(targets, expected, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------ one update against a slow one


def test_an_update_is_that_of_a_plain_implementation():
    sac, batch = learner(max_grad_norm=1e9, tau=0.1), transitions()
    actor, critic = copy.deepcopy(sac.actor), copy.deepcopy(sac.critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=sac.settings.actor_rate)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=sac.settings.critic_rate)
    log_temperature = sac.log_temperature.detach().clone().requires_grad_()
    generator = torch.Generator().manual_seed(7)

    with torch.no_grad():
        action, density = gaussian.sample(
            actor(batch["next/observation"]), torch.randn(64, 3, generator=generator)
        )
        later = critic(batch["next/observation"], action).amin(0) - log_temperature.exp() * density
        targets = batch["reward"] + batch["discount"] * later
    old = [p.detach().clone() for p in critic.parameters()]
    first, second = (
        plain_value(critic, which, batch["observation"], batch["action"]) for which in (0, 1)
    )
    (0.5 * (first - targets).pow(2).mean() + 0.5 * (second - targets).pow(2).mean()).backward()
    critic_optimizer.step()
    action, density = gaussian.sample(
        actor(batch["observation"]), torch.randn(64, 3, generator=generator)
    )
    (
        log_temperature.detach().exp() * density - critic(batch["observation"], action).amin(0)
    ).mean().backward()
    actor_optimizer.step()
    (log_temperature * (-density.detach().mean() - sac.settings.target_entropy)).backward()
    torch.optim.Adam([log_temperature], lr=sac.settings.temperature_rate).step()

    sac.update(batch)
    for ours, theirs in zip(sac.actor.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    for ours, theirs, target, before in zip(
        sac.critic.parameters(), critic.parameters(), sac.target.parameters(), old, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            target, before + 0.1 * (ours.detach() - before), rtol=1e-4, atol=1e-6
        )
    torch.testing.assert_close(sac.log_temperature, log_temperature)


def test_the_actor_waits_for_its_turn():
    sac = learner(actor_interval=2)
    first = [p.detach().clone() for p in sac.actor.parameters()]
    assert "policy_loss" in sac.update(transitions())
    second = [p.detach().clone() for p in sac.actor.parameters()]
    assert not torch.equal(first[0], second[0])
    assert "policy_loss" not in sac.update(transitions())
    assert all(torch.equal(a, b) for a, b in zip(second, sac.actor.parameters(), strict=True))


# ------------------------------------------------------------------ sanity environments


@pytest.mark.slow
def test_it_finds_the_best_action_of_a_bandit():
    sac = learner(actor_rate=5e-3, critic_rate=5e-3, target_entropy=-6.0, temperature_rate=1e-2)
    best = torch.tensor([0.2, 0.7, 0.5])
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        observation = torch.randn(64, INPUTS, generator=generator)
        action = torch.rand(64, 3, generator=generator)
        reward = -10 * (action - best).square().sum(1)
        sac.update(
            {
                "observation": observation,
                "next/observation": observation,
                "action": action,
                "reward": reward,
                "discount": torch.zeros(64),
            }
        )
    found = gaussian.mean(sac.actor(torch.randn(200, INPUTS, generator=generator)))
    assert (found - best).abs().mean() < 0.1


def test_the_temperature_rises_when_the_policy_is_too_sure_and_falls_when_it_is_not():
    for target, direction in ((10.0, 1), (-30.0, -1)):
        sac = learner(target_entropy=target)
        before = sac.log_temperature.item()
        for _ in range(5):
            sac.update(transitions())
        assert direction * (sac.log_temperature.item() - before) > 0


@pytest.mark.slow
def test_a_reward_of_one_for_ever_is_worth_the_sum_of_its_discounts():
    sac = learner(critic_rate=1e-2, tau=0.2, first_temperature=1e-6, temperature_rate=0.0)
    batch = transitions() | {"reward": torch.ones(64), "discount": torch.full((64,), 0.5)}
    for _ in range(300):
        sac.update(batch)
    assert abs(sac.critic(batch["observation"], batch["action"]).mean().item() - 2.0) < 0.15


# ------------------------------------------------------------------ looking ahead


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 20])
def test_looking_ahead_stops_at_the_end_of_an_episode_and_of_what_is_known(steps):
    generator = torch.Generator().manual_seed(steps)
    done = torch.rand(60, steps, generator=generator) < 0.2
    terminated = done & (torch.rand(60, steps, generator=generator) < 0.5)
    known = torch.arange(steps) < torch.randint(1, steps + 1, (60, 1), generator=generator)
    reward = torch.randn(60, steps, generator=generator)
    found = n_step_return(reward, terminated, done, known, 0.9)
    for row in range(60):
        total, last = 0.0, -1
        while True:
            last += 1
            total += 0.9**last * reward[row, last].item()
            if done[row, last] or last + 1 == steps or not known[row, last + 1]:
                break
        expected = (total, 0.0 if terminated[row, last] else 0.9 ** (last + 1), last)
        assert [values[row].item() for values in found] == pytest.approx(
            expected, rel=1e-5, abs=1e-6
        )


# ------------------------------------------------------------------ state and faults


def test_it_goes_on_from_a_saved_state_bit_for_bit():
    sac = learner()
    for number in range(3):
        sac.update(transitions(seed=number))
    saved, weights = copy.deepcopy(sac.state_dict()), copy.deepcopy(sac.actor.state_dict())
    other = learner()
    other.actor.load_state_dict(weights)
    other.load_state_dict(saved)
    for number in range(3, 6):
        assert sac.update(transitions(seed=number)) == other.update(transitions(seed=number))
    for ours, theirs in zip(sac.target.parameters(), other.target.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_reward_that_is_not_a_number_changes_no_critic():
    sac = learner()
    batch = transitions() | {"reward": torch.full((64,), float("nan"))}
    before = [p.detach().clone() for p in sac.critic.parameters()]
    sac._update_critics(batch, batch["observation"])
    assert all(torch.equal(a, b) for a, b in zip(before, sac.critic.parameters(), strict=True))


@pytest.mark.parametrize("interval", [1, 4])
def test_rewards_that_stay_no_numbers_end_the_training(interval):
    sac = learner(actor_interval=interval)
    batch = transitions() | {"reward": torch.full((64,), float("nan"))}
    for _ in range(SKIPS_ALLOWED - 1):
        sac.update(batch)
    with pytest.raises(DivergedError, match="critics were not finite"):
        sac.update(batch)


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("gamma", 1.5), ("tau", 0.0), ("replay_ratio", -1.0)]
)
def test_an_impossible_setting_is_named(name, value):
    with pytest.raises(ConfigError, match=f"sac.{name}"):
        SACSettings(**{name: value}).check()


def test_a_batch_larger_than_the_memory_is_refused():
    with pytest.raises(
        ConfigError, match=r"sac.batch_size is 100; expected at most sac.capacity, 50"
    ):
        SACSettings(batch_size=100, capacity=50).check()
