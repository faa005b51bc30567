"""Proximal policy optimisation. Every choice is numbered in docs/ppo-details.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from navrl.errors import ConfigError, NavrlError
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.advantage import gae
from navrl.rl.collect import Rollout
from navrl.rl.distributions.action_distribution import ActionDistribution
from navrl.rl.finite import describe_bad
from navrl.rl.networks.observation_norm import ObservationNorm
from navrl.rl.normaliser import ValueNormaliser

MEASURED = ("policy_loss", "value_loss", "entropy", "kl", "clipped")
CRITIC = ("explained_variance", "return_mean", "reward_mean", "value_spread")
SKIPS_ALLOWED = 50  # updates in a row that were not finite, before training gives up


class DivergedError(NavrlError, ArithmeticError):
    """Losses, gradients or parameters are not finite any more; the message says which."""


@dataclass
class ExtractorSettings:
    """Keys `algo.feature_extractor.*`."""

    learning_rate: float = 1e-3


@dataclass
class ActorSettings:
    """Keys `algo.actor.*`."""

    learning_rate: float = 1e-3
    clip_ratio: float = 0.2


@dataclass
class CriticSettings:
    """Keys `algo.critic.*`."""

    learning_rate: float = 1e-3
    # how far a value may move in an update, in units of the normalised return; 0: as far as it
    # likes
    clip_ratio: float = 0.0


@dataclass
class PPOSettings:
    """Keys `algo.*`: how the policy learns."""

    training_frame_num: int = 32  # decisions of each drone in a batch
    training_epoch_num: int = 1  # passes over a batch
    num_minibatches: int = 32
    gamma: float = 0.99
    gae_lambda: float = 0.95
    feature_extractor: ExtractorSettings = field(default_factory=ExtractorSettings)
    actor: ActorSettings = field(default_factory=ActorSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    final_learning_rate: float = 0.05  # of the first one, reached in a straight line at the end
    entropy_loss_coefficient: float = 2e-3
    final_entropy: float = 0.1  # of the first coefficient
    policy_coefficient: float = 1.0
    value_coefficient: float = 1.0
    huber_delta: float = 5.0  # in units of the normalised return
    max_grad_norm: float = 1.0
    clip_heads_only: bool = False  # the original leaves the gradients of the features as they are
    adam_epsilon: float = 1e-5
    target_kl: float = 0.0  # an update that moved the policy farther ends early; 0: never
    value_decay: float = 0.98  # of the running statistics of the returns
    rescale_critic: bool = True  # keep the critic's real output when those statistics move

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        limits: dict[str, tuple[float, float]] = {
            "training_frame_num": (1, 65536),
            "training_epoch_num": (1, 1000),
            "num_minibatches": (1, 1 << 20),
            "gamma": (0, 1),
            "gae_lambda": (0, 1),
            "feature_extractor.learning_rate": (0, 1),
            "actor.learning_rate": (0, 1),
            "critic.learning_rate": (0, 1),
            "actor.clip_ratio": (1e-6, 1e6),
            "critic.clip_ratio": (0, 1e6),
            "final_learning_rate": (0, 1e3),
            "entropy_loss_coefficient": (0, 1e3),
            "final_entropy": (0, 1e3),
            "policy_coefficient": (0, 1e6),
            "value_coefficient": (0, 1e6),
            "huber_delta": (1e-6, 1e6),
            "max_grad_norm": (1e-9, 1e9),
            "adam_epsilon": (0, 1),
            "target_kl": (0, 1e6),
            "value_decay": (0, 1 - 1e-6),
        }
        for key, (low, high) in limits.items():
            value: Any = self
            for name in key.split("."):
                value = getattr(value, name)
            if not low <= value <= high:
                raise ConfigError(f"algo.{key} is {value!r}; expected {low:g} to {high:g}")


def refuse_bad_parameters(parameters: Mapping[str, Tensor], advice: str) -> None:
    """Raise a DivergedError that names the parameters that an update has made NaN or infinite, if
    there are any.
    """
    found = describe_bad(parameters)
    if found:
        raise DivergedError(
            f"an update has diverged: {found}. Earlier checkpoints are good; lower {advice}, "
            "and train anew"
        )


def _alone(tensor: Tensor) -> None:
    """Sum over one process: nothing to do."""


class PPO:
    """Updates a network from rollouts.

    Args:
        network: `actor_parameters()` and `critic_parameters()` are those that only one of them
            depends on, `critic` is its last layer for the value; the rest counts as features.
        applied: the same network in its fastest form.
        distribution: of the actions.
        settings: see `PPOSettings`.
        generator: of the order of samples.
        reduce: sums a tensor over all processes, in place; `processes` says how many they are.
    """

    def __init__(
        self,
        network: nn.Module,
        applied: AppliedNetwork,
        distribution: ActionDistribution,
        settings: PPOSettings,
        generator: torch.Generator,
        *,
        reduce: Callable[[Tensor], None] = _alone,
        processes: int = 1,
    ) -> None:
        settings.check()
        self.network = network
        self.applied = applied
        self.distribution = distribution
        self.settings = settings
        self.generator = generator
        self._reduce, self._processes = reduce, processes
        self.normaliser = ValueNormaliser(settings.value_decay)
        self._last: nn.Linear = network.critic  # type: ignore[assignment]
        self._actor: list[nn.Parameter] = network.actor_parameters()  # type: ignore[operator]
        self._critic: list[nn.Parameter] = network.critic_parameters()  # type: ignore[operator]
        owned = {id(p) for p in (*self._actor, *self._critic)}
        features = [p for p in network.parameters() if id(p) not in owned]
        rates = (
            settings.feature_extractor.learning_rate,
            settings.actor.learning_rate,
            settings.critic.learning_rate,
        )
        self._rates = rates
        groups = [
            {"params": parameters, "lr": rate}
            for parameters, rate in zip((features, self._actor, self._critic), rates, strict=True)
        ]
        self.optimizer = torch.optim.Adam(groups, eps=settings.adam_epsilon, fused=True)
        self._parameters = [*features, *self._actor, *self._critic]
        self._sizes = [p.numel() for p in self._parameters]
        self._skipped = 0

    def update(self, batch: Rollout, progress: float = 0.0) -> dict[str, float]:
        """Learn from a batch and return what happened; `progress` from 0 to 1 moves the
        schedules.
        """
        settings = self.settings
        rates = 1 + (settings.final_learning_rate - 1) * progress
        entropy_weight = settings.entropy_loss_coefficient * (
            1 + (settings.final_entropy - 1) * progress
        )
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * rates
        prepared = self._targets(batch)
        if prepared is None:
            return self._nothing_learnt(rates)
        targets, report = prepared
        rows = batch.rows[:-1].flatten(0, 1)
        number_of = min(settings.num_minibatches, len(rows))
        size = len(rows) // number_of
        sums, norms, updates, skipped = torch.zeros(len(MEASURED)), 0.0, 0, 0
        stop = False
        for _ in range(settings.training_epoch_num):
            order = torch.randperm(len(rows), generator=self.generator).to(rows.device)
            for number in range(number_of):
                index = order[number * size : (number + 1) * size]
                learnt = self._learn(rows, targets, index, entropy_weight)
                if learnt is None:
                    skipped += 1
                    continue
                measured, norm = learnt
                sums += measured
                norms += norm
                updates += 1
                stop = 0 < settings.target_kl < measured[3].item()
                if stop:
                    break
            if stop:
                break
        self.check_parameters()
        inputs = getattr(self.network, "norm", None)
        if isinstance(inputs, ObservationNorm):
            inputs.update(rows, self._reduce)  # last: the policy stays that of the batch till here
        learnt_from = max(updates, 1)
        report |= dict(zip(MEASURED, (sums / learnt_from).tolist(), strict=True))
        report |= {"gradient_norm": norms / learnt_from, "learning_rate": self._rates[0] * rates}
        return report | {"updates": updates, "skipped": skipped}

    def check_parameters(self) -> None:
        """Raise a DivergedError that names a parameter that is not finite, if there is one; every
        update ends with this.
        """
        parameters = dict(self.network.named_parameters())
        refuse_bad_parameters(parameters, "algo.*.learning_rate or raise algo.adam_epsilon")

    def _nothing_learnt(self, rates: float) -> dict[str, float]:
        """Return the report of a batch that was not finite: nothing has changed."""
        self._skip()
        nothing = dict.fromkeys((*MEASURED, *CRITIC, "gradient_norm"), float("nan"))
        return nothing | {
            "learning_rate": self._rates[0] * rates,
            "updates": 0,
            "skipped": self.settings.num_minibatches,
        }

    def _targets(self, batch: Rollout) -> tuple[Tensor, dict[str, float]] | None:
        """Return what a minibatch needs beside its rows, and what the batch says about the critic;
        None if it is not finite.

        Columns: action (A), log_prob, advantage, normalised return, normalised old value.
        """
        settings = self.settings
        advantage = gae(
            batch.reward,
            batch.value,
            batch.done,
            batch.truncated_value,
            settings.gamma,
            settings.gae_lambda,
        )
        returns = advantage + batch.value[:-1]
        moments = torch.stack(
            [
                x.double().mean()
                for x in (
                    returns,
                    returns * returns,
                    advantage,
                    advantage * advantage,
                    batch.reward,
                )
            ]
        )
        self._reduce(moments)
        if not torch.isfinite(moments).all():
            return None  # in every process: they all have the same sums
        mean, square, level, level_square, reward = moments / self._processes
        old_mean, old_spread = self.normaliser.statistics()
        if settings.rescale_critic:
            self.normaliser.update_and_rescale(mean.float(), square.float(), self._last)
        else:
            self.normaliser.update(mean.float(), square.float())
        value_mean, value_spread = self.normaliser.statistics()
        known = (value_mean, value_spread) if settings.rescale_critic else (old_mean, old_spread)
        spread = max((level_square - level * level).item(), 1e-12) ** 0.5
        columns = [
            batch.action,
            batch.log_prob[..., None],
            ((advantage - level.item()) / spread)[..., None],
            ((returns - value_mean) / value_spread)[..., None],
            ((batch.value[:-1] - known[0]) / known[1])[..., None],
        ]
        variance = max((square - mean * mean).item(), 1e-12)
        report = {
            "explained_variance": 1 - (level_square - level * level).item() / variance,
            "return_mean": mean.item(),
            "reward_mean": reward.item(),
            "value_spread": value_spread,
        }
        return torch.cat(columns, 2).flatten(0, 1), report

    def _loss(self, heads: Tensor, target: Tensor, entropy_weight: float) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch, and what is measured on the way."""
        settings, clip = self.settings, self.settings.actor.clip_ratio
        action, rest = target.split([self.distribution.size, 4], 1)
        old, advantage, returns, old_value = rest.unbind(1)
        log_prob, entropy = self.distribution.log_prob_and_entropy(heads, action)
        change = log_prob - old
        ratio = change.exp()
        policy_loss = -torch.minimum(
            advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip)
        ).mean()
        value, delta = heads[:, -1], settings.huber_delta
        value_loss = functional.huber_loss(value, returns, delta=delta)
        if settings.critic.clip_ratio > 0:
            near = old_value + (value - old_value).clamp(
                -settings.critic.clip_ratio, settings.critic.clip_ratio
            )
            value_loss = torch.maximum(
                value_loss, functional.huber_loss(near, returns, delta=delta)
            )
        spread = entropy.mean()
        loss = (
            settings.policy_coefficient * policy_loss
            + settings.value_coefficient * value_loss
            - entropy_weight * spread
        )
        with torch.no_grad():
            kl = (ratio - 1 - change).mean()
            clipped = ((ratio - 1).abs() > clip).float().mean()
            measured = torch.stack(
                [policy_loss.detach(), value_loss.detach(), spread.detach(), kl, clipped]
            )
        return loss, measured

    def _learn(
        self, rows: Tensor, targets: Tensor, index: Tensor, entropy_weight: float
    ) -> tuple[Tensor, float] | None:
        """Take one step of the optimiser; return what was measured over all processes, and the
        gradient's norm.

        None: the gradient was not finite, and nothing has changed.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss, measured = self._loss(
            self.applied(rows, index), targets.index_select(0, index), entropy_weight
        )
        loss.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), measured])
        self._reduce(flat)
        flat /= self._processes
        *parts, measured = flat.split([*self._sizes, len(MEASURED)])
        norm = self._clip(flat[: -len(MEASURED)])
        if not norm < float("inf"):
            self._skip()
            return None
        self._skipped = 0
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimizer.step()
        return measured.cpu(), norm

    def _clip(self, flat: Tensor) -> float:
        """Limit the gradient's norm in place, all of it or that of each head; return the norm
        before.
        """
        limit, norm = self.settings.max_grad_norm, float(flat.norm())
        actor, critic = sum(p.numel() for p in self._actor), sum(p.numel() for p in self._critic)
        parts = (
            flat.split([len(flat) - actor - critic, actor, critic])[1:]
            if self.settings.clip_heads_only
            else (flat,)
        )
        for part in parts:
            length = norm if len(part) == len(flat) else float(part.norm())
            part.mul_(min(1.0, limit / (length + 1e-6)))
        return norm

    def _skip(self) -> None:
        self._skipped += 1
        if self._skipped >= SKIPS_ALLOWED:
            self.check_parameters()
            raise DivergedError(
                f"gradients or rewards were not finite {self._skipped} times in a row; the "
                "parameters are those of the last "
                "good update. Lower algo.*.learning_rate or algo.max_grad_norm, or look for NaN "
                "in the rewards"
            )
