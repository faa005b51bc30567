"""The connection to a Ray cluster; Ray is imported when a training asks for it."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from navrl.conf.collect_settings import RAY, CollectSettings
from navrl.errors import CollectorError, missing_extra

__all__ = ["connect", "describe_cluster", "require_ray"]

NEW = "local"  # `collect.address`: a new cluster on this machine, for this training alone


def require_ray(settings: CollectSettings) -> None:
    """Raise a MissingExtraError if the settings ask for Ray and it is not installed."""
    if settings.name == RAY and importlib.util.find_spec("ray") is None:
        raise missing_extra("collect=ray needs Ray", "ray")


def connect(settings: CollectSettings) -> bool:
    """Connect this process to the cluster that the settings name; return whether it was not before.

    Whoever gets True disconnects with `ray.shutdown()`.

    Raises:
        MissingExtraError: Ray is not installed.
        CollectorError: there is no such cluster, or it cannot be reached.
    """
    require_ray(settings)
    # Ray may otherwise report its use over the network, from clusters that it starts here
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if settings.address == NEW:
        quiet |= {"include_dashboard": False, "num_cpus": settings.workers * settings.cpus}
    with _signal_handlers_kept():
        try:
            ray.init(address=settings.address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CollectorError(
                f"collect.address is {settings.address!r}, where no Ray cluster was found: {reason}"
                ". Start one with `ray start --head` and join it from the other machines with `ray "
                "start --address=HOST:6379`, or use collect.address=local"
            ) from error
    return True


def describe_cluster() -> str:
    """Return one sentence about the cluster that this process is connected to."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    cores = ray.cluster_resources().get("CPU", 0)
    plural = "s" if len(nodes) > 1 else ""
    return f"Ray {ray.__version__}: {len(nodes)} machine{plural} with {cores:.0f} cores for workers"


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handlers of signals: `ray.init` replaces that of SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
