"""Where batches of experience are collected: in the training's own processes, or by Ray workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from navrl.errors import ConfigError, shown

__all__ = ["LOCAL", "RAY", "CollectSettings", "check_collection"]

LOCAL, RAY = "local", "ray"


@dataclass
class CollectSettings:
    """Keys `collect.*`: collection by Ray workers on other machines (docs/remote.md)."""

    name: str = LOCAL  # local or ray; set with collect=ray
    workers: int = 2  # each runs its part of the environments in a process of its own
    cpus: int = 1  # cores that Ray reserves for a worker; torch has as many threads there
    # of the Ray cluster: auto, the one that this machine belongs to; HOST:PORT; or local, a new one
    # on this machine
    address: str = "auto"
    max_staleness: int = 4  # updates of the policy after which a batch is dropped
    ahead: int = 1  # finished batches of a worker that may wait while it collects the next
    compress: bool = True  # send batches compressed, without loss
    # seconds that an iteration waits for batches; it then learns from those that are there
    deadline: float = 60.0
    # seconds to wait for the first batch: machines join and compile kernels
    first_deadline: float = 600.0
    worker_timeout: float = 600.0  # seconds for a batch before its worker is restarted

    def check(self) -> None:
        """Raise a ConfigError that names the first setting with an impossible value."""
        if self.name not in (LOCAL, RAY):
            raise ConfigError(f"collect.name is {shown(self.name)}; expected {LOCAL} or {RAY}")
        limits: dict[str, tuple[float, float]] = {
            "workers": (1, 65536),
            "cpus": (1, 1024),
            "max_staleness": (0, 1 << 31),
            "ahead": (0, 1024),
            "deadline": (0.01, 1e9),
            "first_deadline": (0.01, 1e9),
            "worker_timeout": (0.01, 1e9),
        }
        for key, (low, high) in limits.items():
            if not low <= getattr(self, key) <= high:
                raise ConfigError(
                    f"collect.{key} is {getattr(self, key)}; expected {low:g} to {high:g}"
                )
        if not self.address:
            raise ConfigError("collect.address is empty; expected auto, local or HOST:PORT")


def check_collection(config: Any) -> None:
    """Raise a ConfigError if the other settings of a `Config` do not go with remote workers."""
    collect = config.collect
    collect.check()
    if collect.name == LOCAL:
        return
    if config.algorithm != "ppo":
        raise ConfigError(f"collect=ray trains with algo=ppo, not {config.algorithm}")
    if config.processes > 1:
        raise ConfigError(
            f"processes is {config.processes}; with collect=ray one process learns, with all cores "
            "of its machine: leave it out"
        )
    if config.use_pipelined_collector:
        raise ConfigError(
            "use_pipelined_collector is true; with collect=ray batches are collected while the "
            "policy learns in any case: leave it out"
        )
    if config.env.num_envs % collect.workers:
        raise ConfigError(
            f"env.num_envs is {config.env.num_envs}; expected a multiple of the {collect.workers} "
            "workers (collect.workers)"
        )
