"""Soft actor-critic: twin critics, target critics, an automatic temperature."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from navrl.errors import ConfigError
from navrl.rl.accelerate import AppliedNetwork
from navrl.rl.distributions import gaussian
from navrl.rl.finite import SKIPS_ALLOWED, DivergedError, refuse_bad_parameters
from navrl.rl.networks.twin_critic import TwinCritic

__all__ = ["SAC", "SACSettings", "TwinCritic"]


@dataclass
class SACSettings:
    """Keys `sac.*`: the SAC update, with `algo=sac`."""

    training_frame_num: int = 16  # steps of each drone between updates
    batch_size: int = 256  # transitions in an update
    replay_ratio: float = 4.0  # transitions learnt from per transition collected
    capacity: int = 1_000_000  # of the replay buffer, in transitions
    warmup: int = 20_000  # transitions with random actions before the first update
    gamma: float = 0.98  # discount of a decision
    n_step: int = 3  # steps of the return before the critics' value
    tau: float = 0.01  # Polyak factor of the target critics
    actor_interval: int = 4  # updates of the critics per update of the actor
    actor_rate: float = 5e-4  # learning rate at the start
    critic_rate: float = 5e-4  # learning rate at the start
    temperature_rate: float = 3e-3  # learning rate of the entropy's weight
    first_temperature: float = 0.01  # weight of the entropy at the start
    target_entropy: float = -3.0  # of the action in the cube from -1 to 1, in nats
    critic_width: int = 256  # units of the critics' hidden layers
    max_grad_norm: float = 10.0  # gradients are clipped to it
    final_learning_rate: float = 0.1  # at the end, as a fraction of the initial rates; linear decay
    # save the replay buffer in every checkpoint; without it a resumed run starts with an empty one
    save_replay: bool = True

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        for key, (low, high) in _LIMITS.items():
            if not low <= getattr(self, key) <= high:
                raise ConfigError(
                    f"sac.{key} is {getattr(self, key)!r}; expected {low:g} to {high:g}"
                )
        if self.batch_size > self.capacity:
            raise ConfigError(
                f"sac.batch_size is {self.batch_size}; expected at most sac.capacity, "
                f"{self.capacity}"
            )


_LIMITS: dict[str, tuple[float, float]] = {  # of each setting
    "training_frame_num": (1, 65536),
    "batch_size": (1, 1 << 20),
    "replay_ratio": (1e-6, 1e6),
    "capacity": (1, 1 << 40),
    "warmup": (0, 1 << 40),
    "gamma": (0, 1),
    "n_step": (1, 1000),
    "tau": (1e-9, 1),
    "actor_interval": (1, 1000),
    "actor_rate": (0, 1),
    "critic_rate": (0, 1),
    "temperature_rate": (0, 1),
    "first_temperature": (1e-9, 1e6),
    "target_entropy": (-1e3, 1e3),
    "critic_width": (1, 1 << 16),
    "max_grad_norm": (1e-9, 1e9),
    "final_learning_rate": (0, 1e3),
}


def _whole(batch: Mapping[str, Tensor], prefix: str) -> Tensor:
    """Return the observations of a batch that holds them as one tensor."""
    return batch[f"{prefix}observation"]


class SAC:
    """Updates an actor and its critics from batches of transitions.

    Args:
        actor: returns the heads of `navrl.rl.distributions.gaussian` for observations.
        applied: the same network in its fastest form.
        critic: see `TwinCritic`; the target critics are copies of it.
        settings: see `SACSettings`.
        generator: draws the noise of the actions in an update.
        observe: returns the actor's and critics' input from a batch and a prefix, "" or "next/".
    """

    def __init__(
        self,
        actor: nn.Module,
        applied: AppliedNetwork,
        critic: nn.Module,
        settings: SACSettings,
        generator: torch.Generator,
        observe: Callable[[Mapping[str, Tensor], str], Any] = _whole,
    ) -> None:
        settings.check()
        self.observe = observe
        self.actor = actor
        self.applied = applied
        self.critic = critic
        self.settings = settings
        self.generator = generator
        self.target = copy.deepcopy(critic).requires_grad_(False)
        first = torch.tensor(settings.first_temperature, device=generator.device)
        self.log_temperature = nn.Parameter(first.log())
        self.actor_optimizer = torch.optim.Adam(
            actor.parameters(), lr=settings.actor_rate, fused=True
        )
        self.critic_optimizer = torch.optim.Adam(
            critic.parameters(), lr=settings.critic_rate, fused=True
        )
        self.temperature_optimizer = torch.optim.Adam(
            [self.log_temperature], lr=settings.temperature_rate
        )
        self.updates = 0
        # non-finite updates in a row
        self._skipped = dict.fromkeys(map(id, self.optimizers), 0)
        self._target_parameters: list[Tensor] = [*self.target.parameters()]
        self._critic_parameters: list[Tensor] = [*critic.parameters()]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """All three, for a checkpoint saver."""
        return [self.actor_optimizer, self.critic_optimizer, self.temperature_optimizer]

    def update(self, batch: Mapping[str, Tensor], progress: float = 0.0) -> dict[str, float]:
        """Update from a batch and return metrics; `progress` from 0 to 1 sets the learning rates.

        The batch holds, by transition, `action` (in the unit cube), `reward`, `discount` (of the
        bootstrap value, 0 after a termination), and what `observe` reads: by default `observation`
        and `next/observation`.
        """
        settings = self.settings
        rate = 1 + (settings.final_learning_rate - 1) * progress
        first = (settings.actor_rate, settings.critic_rate, settings.temperature_rate)
        for optimizer, own in zip(self.optimizers, first, strict=True):
            optimizer.param_groups[0]["lr"] = own * rate
        observation = self.observe(batch, "")
        value_loss, value, norm = self._update_critics(batch, observation)
        report = {"value_loss": value_loss, "value_mean": value, "gradient_norm": norm}
        if self.updates % settings.actor_interval == 0:
            report |= self._update_actor(observation)
        self.updates += 1
        torch._foreach_lerp_(self._target_parameters, self._critic_parameters, settings.tau)
        return report | {
            "learning_rate": settings.actor_rate * rate,
            "temperature": float(self.log_temperature.detach().exp()),
        }

    def check_parameters(self) -> None:
        """Raise a DivergedError that names a parameter that is not finite, if there is one.

        Call it at least before a state is saved. `update` does not: the check costs a good part of
        its time.
        """
        refuse_bad_parameters(self.weights(), "sac.*_rate")

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by name; live tensors."""
        parts: dict[str, nn.Module] = {
            "actor": self.actor,
            "critic": self.critic,
            "target": self.target,
        }
        named: dict[str, Tensor] = {"log_temperature": self.log_temperature}
        for part, module in parts.items():
            named |= {f"{part}.{name}": value for name, value in module.named_parameters()}
        return named

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the critics' targets, (N,).

        y = r + discount * (min(Q1', Q2')(s', a') - temperature * log_prob(a')),  a' ~ policy
        """
        following = self.observe(batch, "next/")
        heads = self.applied.infer(following)
        action, log_prob = gaussian.sample(heads, self._noise(len(heads)))
        value = self.target(following, action).amin(0) - self.log_temperature.exp() * log_prob
        return batch["reward"] + batch["discount"] * value

    def _update_critics(
        self, batch: Mapping[str, Tensor], observation: Any
    ) -> tuple[float, float, float]:
        targets = self._targets(batch)
        values = self.critic(observation, batch["action"])
        loss = 0.5 * (values - targets).square().sum(0).mean()
        norm = self._step(self.critic_optimizer, loss)
        return float(loss.detach()), float(targets.mean()), norm

    def _update_actor(self, observation: Any) -> dict[str, float]:
        heads = self.applied(observation)
        action, log_prob = gaussian.sample(heads, self._noise(len(heads)))
        for parameter in self.critic.parameters():
            parameter.requires_grad_(False)  # only the gradient of the action is needed
        try:
            value = self.critic(observation, action).amin(0)
            loss = (self.log_temperature.detach().exp() * log_prob - value).mean()
            self._step(self.actor_optimizer, loss)
        finally:
            for parameter in self.critic.parameters():
                parameter.requires_grad_(True)
        entropy = -log_prob.detach().mean()
        temperature_loss = self.log_temperature * (entropy - self.settings.target_entropy)
        self._step(self.temperature_optimizer, temperature_loss)
        return {"policy_loss": float(loss.detach()), "entropy": float(entropy)}

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
        """Take a step with the clipped gradient; return its norm. Skip one that is not finite."""
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(parameters, self.settings.max_grad_norm))
        if norm < float("inf"):
            self._skipped[id(optimizer)] = 0
            optimizer.step()
            return norm
        self._skipped[id(optimizer)] += 1
        if self._skipped[id(optimizer)] >= SKIPS_ALLOWED:
            self.check_parameters()
            names = ("actor", "critics", "temperature")
            name = names[[each is optimizer for each in self.optimizers].index(True)]
            raise DivergedError(
                f"gradients of the {name} were not finite {SKIPS_ALLOWED} times in a row; the "
                "parameters are those of the last good update. Lower sac.*_rate or "
                "sac.max_grad_norm, or look for NaN in the rewards"
            )
        return norm

    def _noise(self, count: int) -> Tensor:
        return torch.randn(
            count, gaussian.AXES, generator=self.generator, device=self.generator.device
        )

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the actor's weights; live tensors."""
        return {
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "updates": self.updates,
            "noise": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(copy.deepcopy(saved))
        self.updates = state["updates"]
        self.generator.set_state(state["noise"])
