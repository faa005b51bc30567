"""What the benchmark of checkpoints promises."""

from __future__ import annotations

from collections.abc import Callable

from _checkpoint_writers import WRITERS
from navrl.benchmark import Gate, Results

DISTRIBUTED = [name for name in WRITERS if name.startswith("DCP")]
TORCH, OURS, RAW = "torch.save", "navrl", "navrl raw"

# What a save may take from training, as a fraction of what torch.save takes, by size.
ADDED_LIMITS = {"1 MB": 0.8, "20 MB": 0.6, "200 MB": 0.25}
STALL_LIMITS = {"1 MB": 0.1, "20 MB": 1 / 30, "200 MB": 1 / 400}


def gates(sizes: list[str]) -> list[Gate]:
    """Return what is promised: size and identity always, times unless this is a smoke test."""
    everywhere = [
        *(Gate(f"size at {size}", _median(_ours(size), "size"), at_most=0.85) for size in sizes),
        *(
            Gate(f"identical at {size}", _median(_ours(size), "identical"), at_least=1)
            for size in sizes
        ),
    ]
    if "200 MB" not in sizes:
        return everywhere
    return [*_training_gates(), *everywhere, *_disk_gates(), *_stretches()]


def _training_gates() -> list[Gate]:
    """Return the limits on what a save takes from training."""
    limits = {"stall": STALL_LIMITS, "added": ADDED_LIMITS}
    return [
        *(
            Gate(
                f"{metric} / torch.save at {size}",
                _over(metric, _ours(size), f"{TORCH}, {size}"),
                at_most=limit,
            )
            for metric, by_size in limits.items()
            for size, limit in by_size.items()
        ),
        Gate("stall / best DCP at 200 MB", _over_best_distributed("stall"), at_most=1 / 50),
        Gate(
            "stall p99 / torch.save at 200 MB",
            lambda r: _last(r, _ours("200 MB")) / _last(r, f"{TORCH}, 200 MB"),
            at_most=1 / 20,
        ),
    ]


def _disk_gates() -> list[Gate]:
    """Return the limits on writing and reading files, at 200 MB."""
    ours, raw, blocking = (f"{name}, 200 MB" for name in (OURS, RAW, TORCH))
    return [
        Gate("durable raw / torch.save + fsync", _over("durable", raw, blocking), at_most=0.7),
        Gate(
            "durable compressed / torch.save + fsync",
            _over("durable", ours, blocking),
            at_most=0.85,
        ),
        *(
            Gate(
                f"load {what} into live tensors, times torch.load, {where}",
                _over(metric, blocking, case),
                at_least=limit,
            )
            for metric, where in (
                ("resume", "in a new process"),
                ("load_live", "in the one that saved"),
            )
            for what, case, limit in (("raw", raw, 4), ("compressed", ours, 1.6))
        ),
    ]


def _stretches() -> list[Gate]:
    cores = "200 MB, all cores"
    return [
        Gate(
            "stall at 2 GB / at 1 MB",
            lambda r: r.median(f"{RAW}, 2 GB", "stall") / r.median(f"{RAW}, 1 MB", "stall"),
            at_most=2,
            stretch=True,
        ),
        Gate(
            "added / torch.save, all cores",
            _over("added", f"{OURS}, {cores}", f"{TORCH}, {cores}"),
            at_most=0.5,
            stretch=True,
        ),
    ]


def _ours(size: str) -> str:
    return f"{OURS}, {size}"


def _over(metric: str, case: str, peer: str) -> Callable[[Results], float]:
    return lambda results: results.ratio(metric, case, peer)


def _over_best_distributed(metric: str) -> Callable[[Results], float]:
    return lambda results: max(
        results.ratio(metric, _ours("200 MB"), f"{name}, 200 MB") for name in DISTRIBUTED
    )


def _last(results: Results, case: str) -> float:
    """Return the p99 of the stall over all saves of all rounds."""
    return results.rounds[case]["stall_p99"][-1]


def _median(case: str, metric: str) -> Callable[[Results], float]:
    return lambda results: results.median(case, metric)
