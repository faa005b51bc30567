"""Settings of trackers: keys `tracker*`, `wandb.*` and `mlflow.*`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from navrl.credentials import check_address
from navrl.errors import ConfigError, nearest_name

MODES = ("disabled", "offline", "online")
TRACKERS = ("wandb", "trackio", "mlflow", "tensorboard", "hf")


@dataclass
class WandbSettings:
    """Keys `wandb.*`: the run in Weights & Biases.

    The run's folder has everything in any case.
    """

    # or offline (everything waits in the run's folder for `navrl sync`), or online
    mode: str = "disabled"
    project: str = "NavRL"  # of every tracker
    name: str = ""  # of the run; default: its folder's
    entity: str = ""  # user or team; default: the account's
    run_id: str = ""  # continue this run

    def check(self) -> None:
        """Raise a ConfigError that names the first invalid setting."""
        if self.mode not in MODES:
            raise ConfigError(f"wandb.mode is {self.mode!r}; expected one of {', '.join(MODES)}")


@dataclass
class MlflowSettings:
    """Keys `mlflow.*`: where MLflow keeps the run."""

    uri: str = ""  # of the server, http://...; default: an SQLite store in the run's folder

    def check(self) -> None:
        """Raise a ConfigError that names the first invalid setting."""
        check_address("mlflow.uri", self.uri)


@dataclass
class TrackingSettings:
    """All settings of trackers."""

    trackers: tuple[str, ...] = ()
    wandb: WandbSettings = field(default_factory=WandbSettings)
    mlflow: MlflowSettings = field(default_factory=MlflowSettings)
    patience: float = 8.0  # s that the end of a run waits for its trackers
    # s that a call to a tracker may take before its delivery worker is restarted
    deadline: float = 60.0

    def check(self) -> None:
        """Raise a ConfigError that names the first invalid setting."""
        self.wandb.check()
        self.mlflow.check()
        for name in self.trackers:
            if name not in TRACKERS:
                raise ConfigError(
                    f"tracker {name!r} is unknown; there are "
                    f"{', '.join(TRACKERS)}.{nearest_name(name, TRACKERS)}"
                )
        if "wandb" in self.trackers and self.wandb.mode == "disabled":
            raise ConfigError(
                "tracker names wandb, but wandb.mode is disabled; add wandb.mode=online or "
                "wandb.mode=offline"
            )
        if not 0 <= self.patience <= 3600:
            raise ConfigError(f"tracker_patience is {self.patience}; expected 0 to 3600 seconds")
        if not 0.1 <= self.deadline <= 3600:
            raise ConfigError(f"tracker_deadline is {self.deadline}; expected 0.1 to 3600 seconds")


def tracker_names(value: object) -> tuple[str, ...]:
    """Return the names of trackers, given as a list, or as text with commas.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable) or not all(isinstance(name, str) for name in value):
        raise ConfigError(
            f"tracker is {value!r}; expected names such as tracker=mlflow or tracker=[wandb,mlflow]"
        )
    return tuple(dict.fromkeys(name.strip() for name in value if name.strip()))
