"""Really trained networks of a few sizes, trained once and kept: random weights would mislead a
compressor.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import nn

# Width of the hidden layers and steps of Adam, by the size of weights and moments together.
SIZES = {"1 MB": (136, 2000), "20 MB": (640, 800), "200 MB": (2048, 400), "2 GB": (6560, 2)}
BATCH = 48
INPUTS, FACTORS, OUTPUTS = 64, 24, 8


class Training:
    """A network in training: `step()` is one update, `state()` all that is needed to go on."""

    def __init__(self, size: str) -> None:
        width, self.steps = SIZES[size]
        generator = torch.Generator().manual_seed(0)
        self._mix = torch.randn(INPUTS, FACTORS, generator=generator) / 5
        hidden: list[nn.Module] = [nn.Linear(INPUTS, width), nn.ELU(), nn.LayerNorm(width)]
        for _ in range(3):
            hidden += [nn.Linear(width, width), nn.ELU(), nn.LayerNorm(width)]
        torch.manual_seed(0)
        self.model = nn.Sequential(
            *hidden, nn.Linear(width, width), nn.ELU(), nn.Linear(width, OUTPUTS)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 3e-4)
        self.iteration = 0

    def step(self, batch: int = BATCH) -> float:
        """Make one update on a fresh batch and return the loss."""
        factors = torch.randn(batch, FACTORS)
        inputs = factors @ self._mix.T + 0.05 * torch.randn(batch, INPUTS)
        i = torch.arange(OUTPUTS)
        targets = (factors[:, i] * factors[:, i + 1]).sin() + factors[:, i + 2].abs().sqrt()
        targets -= (factors[:, i + 3] > 0) * factors[:, i + 4]
        self.optimizer.zero_grad()
        loss = (self.model(inputs) - targets).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.iteration += 1
        return loss.item()

    def state(self) -> dict[str, object]:
        """Return model, optimiser and iteration."""
        return {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "iteration": self.iteration,
        }


def trained(size: str) -> Training:
    """Return a training of this size at its last step, from the cache where there is one."""
    training = Training(size)
    folder = Path(
        os.environ.get(
            "NAVRL_BENCHMARK_CACHE", Path(tempfile.gettempdir()) / "navrl-benchmark-states"
        )
    )
    cached = folder / f"{size.replace(' ', '')}-{training.steps}-{torch.__version__}.pt"
    if cached.exists():
        state = torch.load(cached, weights_only=True)
        training.model.load_state_dict(state["model_state_dict"])
        training.optimizer.load_state_dict(state["optimizer_state_dict"])
        training.iteration = state["iteration"]
        return training
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    for _ in range(training.steps):
        training.step()
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(training.state(), cached.with_suffix(".part"))
    cached.with_suffix(".part").replace(cached)
    return training
