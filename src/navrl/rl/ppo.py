"""Proximal policy optimisation. Every choice is numbered in docs/ppo-details.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from navrl.errors import ConfigError
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.advantage import gae
from navrl.rl.collect import Rollout
from navrl.rl.distributions.action_distribution import ActionDistribution
from navrl.rl.finite import SKIPS_ALLOWED, DivergedError, refuse_bad_parameters
from navrl.rl.mirror import Mirror
from navrl.rl.networks.observation_norm import ObservationNorm
from navrl.rl.normaliser import ValueNormaliser

# means over the minibatches of an update, and statistics of the whole batch
MINIBATCH_METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "imitation_loss")
BATCH_METRICS = ("explained_variance", "return_mean", "reward_mean", "value_spread")
KL = MINIBATCH_METRICS.index("kl")
TARGETS = 4  # numbers that a sample has beside its action and a teacher's


@dataclass
class ExtractorSettings:
    """Keys `algo.feature_extractor.*`."""

    learning_rate: float = 1e-3  # at the start, of the part that actor and critic share


@dataclass
class ActorSettings:
    """Keys `algo.actor.*`."""

    learning_rate: float = 1e-3  # at the start
    clip_ratio: float = 0.2  # of the surrogate objective


@dataclass
class CriticSettings:
    """Keys `algo.critic.*`."""

    learning_rate: float = 1e-3  # at the start
    # clip of the value's change in an update, in normalised units; 0: no clipping
    clip_ratio: float = 0.0


@dataclass
class PPOSettings:
    """Keys `algo.*`: the PPO update."""

    training_frame_num: int = 32  # steps of each drone in a batch
    training_epoch_num: int = 1  # passes over a batch
    num_minibatches: int = 32  # of a batch, one gradient step each
    gamma: float = 0.99  # discount of a decision
    gae_lambda: float = 0.95  # of generalised advantage estimation
    feature_extractor: ExtractorSettings = field(default_factory=ExtractorSettings)
    actor: ActorSettings = field(default_factory=ActorSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)
    final_learning_rate: float = (
        0.05  # at the end of training, as a fraction of the initial rate; linear decay
    )
    entropy_loss_coefficient: float = 2e-3  # at the start
    final_entropy: float = 0.1  # at the end of training, as a fraction of the initial coefficient
    policy_coefficient: float = 1.0  # weight of the policy loss
    value_coefficient: float = 1.0  # weight of the value loss
    huber_delta: float = 5.0  # in units of the normalised return
    max_grad_norm: float = 1.0  # gradients are clipped to it
    clip_heads_only: bool = (
        False  # leave the gradients of the features unclipped, as the original does
    )
    adam_epsilon: float = 1e-5  # of the optimiser
    target_kl: float = 0.0  # stop an update early above this KL; 0: never
    value_decay: float = 0.98  # of the running mean and variance of the returns
    rescale_critic: bool = True  # keep the critic's denormalised output when those move (PopArt)
    # decay per iteration of an average of the weights, which is what is evaluated and kept as the
    # model; 0: the weights themselves
    average: float = 0.0
    # share of the samples that are learnt from as their left-right reflection; navigation only
    mirror_share: float = 0.0
    # weight of the squared distance between the policy's mean action and its teacher's at the
    # start, both as the distribution draws actions (a bounded box: the unit cube), mean over the
    # samples that the teacher has advice for; 0: no teacher. The navigation task's: see `teacher`
    imitation: float = 0.0
    imitation_until: float = 0.3  # share of the training after which it has fallen to 0, linearly

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        for key, (low, high) in _LIMITS.items():
            value: Any = self
            for name in key.split("."):
                value = getattr(value, name)
            if not low <= value <= high:
                raise ConfigError(f"algo.{key} is {value!r}; expected {low:g} to {high:g}")


_LIMITS: dict[str, tuple[float, float]] = {  # of each setting
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
    "average": (0, 1 - 1e-6),
    "mirror_share": (0, 1),
    "imitation": (0, 1e6),
    "imitation_until": (1e-6, 1),
}


def imitation_weight(settings: PPOSettings, progress: float) -> float:
    """Return the weight of the imitation after a share of the training."""
    return settings.imitation * max(0.0, 1 - progress / settings.imitation_until)


def _one_process(tensor: Tensor) -> None:
    """All-reduce over one process: nothing to do."""


class PPO:
    """Updates a network from rollouts.

    Args:
        network: `actor_parameters()` and `critic_parameters()` are those that only one of them
            depends on, `critic` is its last layer for the value; the rest counts as features.
        applied: the same network in its fastest form.
        distribution: of the actions.
        settings: see `PPOSettings`.
        generator: shuffles the samples.
        all_reduce: sums a tensor over all processes, in place.
        processes: how many there are.
        mirror: reflects samples, `algo.mirror_share` of them; None: none are.
    """

    def __init__(
        self,
        network: nn.Module,
        applied: AppliedNetwork,
        distribution: ActionDistribution,
        settings: PPOSettings,
        generator: torch.Generator,
        *,
        all_reduce: Callable[[Tensor], None] = _one_process,
        processes: int = 1,
        mirror: Mirror | None = None,
    ) -> None:
        settings.check()
        self.network = network
        self.applied = applied
        self.distribution = distribution
        self.settings = settings
        self.generator = generator
        self._all_reduce, self._processes = all_reduce, processes
        self._mirror = mirror
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
        """Update the network from a batch and return metrics.

        `progress` through the training, 0 to 1, sets the learning rate, the entropy coefficient and
        the weight of the imitation.
        """
        settings = self.settings
        decay = 1 + (settings.final_learning_rate - 1) * progress
        entropy_coefficient = settings.entropy_loss_coefficient * (
            1 + (settings.final_entropy - 1) * progress
        )
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * decay
        prepared = self._targets(batch)
        if prepared is None:
            return self._skipped_batch(decay)
        targets, report = prepared
        imitation = imitation_weight(settings, progress)
        rows = batch.rows[:-1].flatten(0, 1)
        if self._mirror is not None:
            rows, targets = self._reflected(self._mirror, rows, targets)
        metrics, counts = self._take_steps(rows, targets, entropy_coefficient, imitation)
        self.check_parameters()
        inputs = getattr(self.network, "norm", None)
        if isinstance(inputs, ObservationNorm):
            # last, so that the whole update sees the inputs that the batch was collected with
            inputs.update(rows, self._all_reduce)
        return report | metrics | {"learning_rate": self._rates[0] * decay} | counts

    def _take_steps(
        self, rows: Tensor, targets: Tensor, entropy_coefficient: float, imitation: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Take the steps of all epochs; return the mean metrics, and how many steps there were."""
        sums, norms, updates, skipped = torch.zeros(len(MINIBATCH_METRICS)), 0.0, 0, 0
        for index in self._minibatches(len(rows), rows.device):
            result = self._step(rows, targets, index, entropy_coefficient, imitation)
            if result is None:
                skipped += 1
                continue
            metrics, norm = result
            sums += metrics
            norms += norm
            updates += 1
            if 0 < self.settings.target_kl < metrics[KL].item():
                break
        means = (sums / max(updates, 1)).tolist()
        report = dict(zip(MINIBATCH_METRICS, means, strict=True))
        report["gradient_norm"] = norms / max(updates, 1)
        return report, {"updates": updates, "skipped": skipped}

    def _reflected(self, mirror: Mirror, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies in which random samples are reflected: observation and action.

        log_prob, advantage and return stay: the reflected action was drawn with that probability,
        by the reflected policy.
        """
        drawn = torch.rand(len(rows), generator=self.generator).to(rows.device)
        chosen = torch.nonzero(drawn < self.settings.mirror_share)[:, 0]
        rows, targets = rows.clone(), targets.clone()
        rows[chosen] = mirror.rows(rows[chosen])
        targets[chosen] = mirror.actions(targets[chosen])
        if targets.shape[1] > (first := self.distribution.size + TARGETS):
            targets[chosen, first:] = mirror.actions(targets[chosen, first:])
        return rows, targets

    def _minibatches(self, samples: int, device: torch.device) -> Iterator[Tensor]:
        """Yield the indices of each minibatch: a new shuffle each epoch, the remainder dropped."""
        number = min(self.settings.num_minibatches, samples)
        size = samples // number
        for _ in range(self.settings.training_epoch_num):
            order = torch.randperm(samples, generator=self.generator).to(device)
            for start in range(0, number * size, size):
                yield order[start : start + size]

    def check_parameters(self) -> None:
        """Raise a DivergedError that names a parameter that is not finite; every update ends so."""
        parameters = dict(self.network.named_parameters())
        refuse_bad_parameters(parameters, "algo.*.learning_rate or raise algo.adam_epsilon")

    def _skipped_batch(self, decay: float) -> dict[str, float]:
        """Return the metrics of a batch that was not finite; the network is unchanged."""
        self._skip()
        names = (*MINIBATCH_METRICS, *BATCH_METRICS, "gradient_norm")
        return dict.fromkeys(names, float("nan")) | {
            "learning_rate": self._rates[0] * decay,
            "updates": 0,
            "skipped": self.settings.num_minibatches,
        }

    def _targets(self, batch: Rollout) -> tuple[Tensor, dict[str, float]] | None:
        """Return the targets of all samples and the batch's metrics; None if it is not finite.

        Columns: action (A), log_prob, advantage, normalised return, normalised old value, and the
        teacher's advice (A) if there is any.
        """
        settings = self.settings
        advantage = gae(
            batch.reward,
            batch.value,
            batch.done,
            batch.truncated_value,
            settings.gamma,
            settings.gae_lambda,
            batch.importance,
        )
        importance = 1.0 if batch.importance is None else batch.importance
        correction = advantage if batch.importance is None else importance * advantage
        returns = correction + batch.value[:-1]
        means = self._means(
            returns, returns * returns, advantage, advantage * advantage, batch.reward
        )
        if means is None:
            return None
        mean, square, advantage_mean, advantage_square, reward = means
        old_mean, old_std = self._update_normaliser(mean.float(), square.float())
        value_mean, value_std = self.normaliser.statistics()
        advantage_variance = (advantage_square - advantage_mean * advantage_mean).item()
        advantage_std = max(advantage_variance, 1e-12) ** 0.5
        columns = [
            batch.action,
            batch.log_prob[..., None],
            (importance * ((advantage - advantage_mean.item()) / advantage_std))[..., None],
            ((returns - value_mean) / value_std)[..., None],
            ((batch.value[:-1] - old_mean) / old_std)[..., None],
        ]
        return_variance = max((square - mean * mean).item(), 1e-12)
        unexplained = (
            advantage_variance if batch.importance is None else correction.var(correction=0).item()
        )
        report = {
            "explained_variance": 1 - unexplained / return_variance,
            "return_mean": mean.item(),
            "reward_mean": reward.item(),
            "value_spread": value_std,
        }
        if batch.advice is not None:
            columns.append(batch.advice)
        return torch.cat(columns, 2).flatten(0, 1), report

    def _means(self, *samples: Tensor) -> Tensor | None:
        """Return the means of tensors over all processes; None if one of them is not finite."""
        means = torch.stack([sample.double().mean() for sample in samples])
        self._all_reduce(means)
        if not torch.isfinite(means).all():
            return None  # in every process: they all have the same sums
        return means / self._processes

    def _update_normaliser(self, mean: Tensor, square: Tensor) -> tuple[float, float]:
        """Update the statistics of the returns; return those in which the critic's old values are
        to be normalised.
        """
        before = self.normaliser.statistics()
        if self.settings.rescale_critic:
            self.normaliser.update_and_rescale(mean, square, self._last)
            return self.normaliser.statistics()
        self.normaliser.update(mean, square)
        return before

    def _loss(
        self, heads: Tensor, target: Tensor, entropy_coefficient: float, imitation: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch and its metrics.

        ratio   = exp(log_prob - old_log_prob)
        L_clip  = -mean(min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A))
        loss    = c_pi * L_clip + c_v * huber(V, returns) - c_H * entropy + c_I * |mean - advice|^2
        KL      = mean(ratio - 1 - log(ratio))
        """
        settings, clip = self.settings, self.settings.actor.clip_ratio
        size = self.distribution.size
        action, rest, advice = target.tensor_split([size, size + TARGETS], 1)
        old_log_prob, advantage, returns, old_value = rest.unbind(1)
        log_prob, entropies = self.distribution.log_prob_and_entropy(heads, action)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))
        policy_loss = -surrogate.mean()
        value_loss = self._value_loss(heads[:, -1], old_value, returns)
        entropy = entropies.mean()
        imitation_loss = self._imitation_loss(heads, advice)
        loss = (
            settings.policy_coefficient * policy_loss
            + settings.value_coefficient * value_loss
            - entropy_coefficient * entropy
            + imitation * imitation_loss
        )
        with torch.no_grad():
            kl = (ratio - 1 - log_ratio).mean()
            clipped = ((ratio - 1).abs() > clip).float().mean()
            metrics = [policy_loss, value_loss, entropy, kl, clipped, imitation_loss]
        return loss, torch.stack([metric.detach() for metric in metrics])

    def _imitation_loss(self, heads: Tensor, advice: Tensor) -> Tensor:
        """Return the mean squared distance of the mean actions from a teacher's, where it has any.

        Only the mean is drawn to the teacher; how widely to explore around it is left to PPO.
        """
        if not advice.shape[1]:
            return heads.new_zeros(())
        given = advice.isfinite().all(1)
        known = torch.where(given[:, None], advice, 0.0)
        away = torch.where(given[:, None], self.distribution.mean(heads) - known, 0.0)
        return away.square().sum() / given.sum().clamp_min(1)

    def _value_loss(self, value: Tensor, old_value: Tensor, returns: Tensor) -> Tensor:
        """Return the Huber loss of normalised values, the larger of two with value clipping."""
        delta, clip = self.settings.huber_delta, self.settings.critic.clip_ratio
        loss = functional.huber_loss(value, returns, delta=delta)
        if clip > 0:
            clipped = old_value + (value - old_value).clamp(-clip, clip)
            loss = torch.maximum(loss, functional.huber_loss(clipped, returns, delta=delta))
        return loss

    def _step(
        self,
        rows: Tensor,
        targets: Tensor,
        index: Tensor,
        entropy_coefficient: float,
        imitation: float,
    ) -> tuple[Tensor, float] | None:
        """Take one optimiser step; return the metrics over all processes and the gradient norm.

        None: the gradient was not finite, and nothing has changed.
        """
        self.optimizer.zero_grad(set_to_none=True)
        heads, target = self.applied(rows, index), targets.index_select(0, index)
        loss, metrics = self._loss(heads, target, entropy_coefficient, imitation)
        loss.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), metrics])
        self._all_reduce(flat)
        flat /= self._processes
        *parts, metrics = flat.split([*self._sizes, len(MINIBATCH_METRICS)])
        norm = self._clip_gradient(flat[: -len(MINIBATCH_METRICS)])
        if not norm < float("inf"):
            self._skip()
            return None
        self._skipped = 0
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimizer.step()
        return metrics.cpu(), norm

    def _clip_gradient(self, flat: Tensor) -> float:
        """Clip the norm of the gradient, or of each head, in place; return the norm before."""
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
                "parameters are those of the last good update. Lower algo.*.learning_rate or "
                "algo.max_grad_norm, or look for NaN in the rewards"
            )
