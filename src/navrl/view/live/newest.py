"""The newest policy of a run: its last checkpoint, or else its best model."""

from __future__ import annotations

from pathlib import Path

from navrl.errors import ConfigError, NavrlError
from navrl.evaluation.policy_lookup import Policy, load_policy

__all__ = ["NewestPolicy"]


class NewestPolicy:
    """Reads the policy of a run from its files whenever the training has written a newer one.

    Args:
        run: the folder of a run.
    """

    def __init__(self, run: Path) -> None:
        self._files = (run / "checkpoints" / "latest", run / "model.pt")
        self._seen: tuple[Path, int] | None = None
        if not run.is_dir():
            raise ConfigError(
                f"--run {run} is no folder; expected that of a run, such as runs/mine"
            )
        self._run = run

    def take(self) -> Policy | None:
        """Return the policy if it is newer than that of the last call.

        Raises:
            ConfigError: the run has written no policy yet.
            ContainerError: its file is damaged.
        """
        for file in self._files:
            try:
                path = file.resolve(strict=True)
                stamp = path, path.stat().st_mtime_ns
            except OSError:
                continue  # not there yet, or replaced at this moment
            if stamp == self._seen:
                return None
            policy = load_policy(path)
            self._seen = stamp
            return policy
        if self._seen is None:
            raise ConfigError(
                f"{self._run} has neither a checkpoint nor a model yet; a training writes its "
                "first checkpoint when it starts"
            )
        return None

    def take_quietly(self) -> Policy | None:
        """Return a newer policy, or nothing if its file cannot be read."""
        try:
            return self.take()
        except NavrlError:
            return None
