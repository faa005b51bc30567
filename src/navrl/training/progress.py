"""How long a training is, how far it has come, and what its trainer reports on the way."""

from __future__ import annotations

from navrl.config import Config

__all__ = ["Progress", "frames_per_iteration", "total_iterations"]


def frames_per_iteration(config: Config) -> int:
    """Return the steps of all environments, over all processes, in one iteration."""
    steps = (
        config.sac.training_frame_num
        if config.algorithm == "sac"
        else config.algo.training_frame_num
    )
    return config.env.num_envs * steps


def total_iterations(config: Config) -> int:
    """Return the number of iterations of the whole training."""
    return max(1, -(-config.max_frame_num // frames_per_iteration(config)))


class Progress:
    """Counts the iterations and steps of a trainer that collects by itself."""

    config: Config
    iteration: int  # finished ones

    @property
    def frames_per_iteration(self) -> int:
        """Steps of all environments, over all processes, in one batch."""
        return frames_per_iteration(self.config)

    @property
    def iterations(self) -> int:
        """Number of iterations of the whole training."""
        return total_iterations(self.config)

    @property
    def frames(self) -> int:
        """Steps of all environments so far."""
        return self.iteration * self.frames_per_iteration

    @property
    def collection(self) -> str:
        """The state of remote workers in one line; empty: there are none."""
        return ""

    def news(self) -> list[str]:
        """Return sentences for the display, once each."""
        return []

    def close(self) -> None:
        """End what the trainer has started."""
        return
