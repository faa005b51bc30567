"""How long a training is, and how far it has come."""

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
    """Counts the iterations and steps of a trainer."""

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
