"""A small model of a training on many machines, fitted to what `navrl bench scaling` measures.

    iteration  = compute(drones of a rank) + reductions * all_reduce
    all_reduce = steps * (overhead + hops * delay) + 2 (P - 1) / P * bytes / rate

gloo reduces in a ring: 2 (P - 1) steps, in which each rank sends a P-th of the bytes to the next.
Fitted: the software's overhead of a step, how many one-way delays a step waits for (`hops`), the
rate of loopback, and the compute of an iteration for a few numbers of drones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from _scaling_link import Link

SMALL = 40  # bytes of an all-reduce of statistics
DIRECT, FORWARDED = Link("loopback"), Link("forwarder")
# what the forwarder can imitate, and networks to predict for
LINKS = (
    FORWARDED,
    Link("1 ms", delay=1e-3),
    Link("3 ms", delay=3e-3),
    Link("1 Gbit/s, 0.2 ms", delay=2e-4, rate=1e9),
    Link("100 Mbit/s, 0.2 ms", delay=2e-4, rate=1e8),
)
NETWORKS = (
    DIRECT,
    Link("10 Gbit/s, 0.05 ms", delay=5e-5, rate=1e10),
    Link("1 Gbit/s, 0.2 ms", delay=2e-4, rate=1e9),
)
MOST = 4096  # ranks that are looked at

Value = Callable[[str, str], float]  # the median of a metric of a case


def link_case(link: Link, ranks: int) -> str:
    """Return the name of the case that measures all-reduces."""
    return f"{link.name}: {ranks} ranks"


def steps(ranks: int) -> int:
    """Return the steps of a ring all-reduce."""
    return 2 * (ranks - 1)


def sent(ranks: int, size: float) -> float:
    """Return the bytes that each rank sends in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * size


@dataclass(frozen=True)
class Reduction:
    """What an all-reduce takes, fitted to measured ones."""

    overhead: float  # s for each step, of the software
    forwarder_overhead: float  # the same with a forwarder in between
    hops: float  # one-way delays for each step
    byte: float  # s for each byte that loopback carries
    forwarder_byte: float

    def seconds(self, ranks: int, size: float, link: Link, *, forwarded: bool = False) -> float:
        """Return the seconds of an all-reduce."""
        if ranks == 1:
            return 0.0
        overhead = self.forwarder_overhead if forwarded else self.overhead
        byte = self.forwarder_byte if forwarded else self.byte
        byte = max(byte, 8 / link.rate if link.rate else 0.0)
        return steps(ranks) * (overhead + self.hops * link.delay) + sent(ranks, size) * byte


def fit_reduction(
    value: Value, team_sizes: Sequence[int], links: Sequence[Link], gradient: float, cores: int
) -> Reduction:
    """Fit the model of an all-reduce: small ones give overhead and hops, large ones the rates.

    Loopback counts only for teams with a core for each rank.
    """
    own = [ranks for ranks in team_sizes if 1 < ranks <= max(cores, 2)]
    small = [(DIRECT, ranks) for ranks in own]
    small += [(link, ranks) for link in links for ranks in team_sizes]
    rows = [
        [steps(p) * (link is DIRECT), steps(p) * (link is not DIRECT), steps(p) * link.delay]
        for link, p in small
    ]
    # each measurement counts by its relative error
    times = np.array([value(link_case(link, p), "small") for link, p in small])
    fitted, *_ = np.linalg.lstsq(np.array(rows) / times[:, None], np.ones(len(times)), rcond=None)

    def byte(link: Link, sizes: Sequence[int]) -> float:
        each = [
            (value(link_case(link, p), "gradient") - value(link_case(link, p), "small"))
            / sent(p, gradient)
            for p in sizes
        ]
        return max(float(np.median(each)), 0.0)

    overhead, forwarder_overhead, hops = (max(float(one), 0.0) for one in fitted)
    return Reduction(
        overhead, forwarder_overhead, hops, byte(DIRECT, own), byte(FORWARDED, team_sizes)
    )


@dataclass(frozen=True)
class Training:
    """A training by the model: what an iteration takes with any number of ranks."""

    reduction: Reduction
    drones: Sequence[int]  # of one rank, ascending
    compute: Sequence[float]  # s of an iteration with so many drones
    whole: int  # drones of the measured training
    steps: int  # decisions of a drone in an iteration
    gradients: float  # all-reduces of gradients in an iteration
    gradient: float  # bytes of one
    others: float  # all-reduces of statistics in an iteration

    def compute_of(self, drones: float) -> float:
        """Return the compute of an iteration: on the line between the nearest measurements."""
        at = min(max(bisect_right(self.drones, drones), 1), len(self.drones) - 1)
        (d0, d1), (t0, t1) = self.drones[at - 1 : at + 1], self.compute[at - 1 : at + 1]
        return max(t0 + (t1 - t0) * (drones - d0) / (d1 - d0), self.compute[0] / self.drones[0])

    def communication(self, ranks: int, link: Link) -> float:
        """Return the seconds of all all-reduces of an iteration."""
        large = self.reduction.seconds(ranks, self.gradient, link)
        return self.gradients * large + self.others * self.reduction.seconds(ranks, SMALL, link)

    def share(self, ranks: int, *, weak: bool) -> float:
        """Return the drones of a rank: all of them each, or its part of a fixed number."""
        return self.whole if weak else self.whole / ranks

    def frames_per_second(self, ranks: int, link: Link, *, weak: bool) -> float:
        """Return the decisions of all drones in a second."""
        share = self.share(ranks, weak=weak)
        seconds = self.compute_of(share) + self.communication(ranks, link)
        return ranks * share * self.steps / seconds

    def efficiency(self, ranks: int, link: Link, *, weak: bool) -> float:
        """Return the speed as a fraction of what so many ranks would have if nothing was lost."""
        alone = self.frames_per_second(1, link, weak=weak)
        return self.frames_per_second(ranks, link, weak=weak) / (ranks * alone)

    def fastest(self, link: Link) -> int:
        """Return with how many ranks a fixed batch is fastest: a power of two."""
        numbers = [2**n for n in range(MOST.bit_length()) if 2**n <= self.whole]
        return max(numbers, key=lambda n: self.frames_per_second(n, link, weak=False))

    def half(self, link: Link, *, weak: bool) -> int:
        """Return up to how many ranks the efficiency is at least a half: a power of two."""
        numbers = [2**n for n in range(MOST.bit_length())]
        if not weak:
            numbers = [number for number in numbers if number <= self.whole]
        return max(n for n in numbers if self.efficiency(n, link, weak=weak) >= 0.5)

    def parts(self, ranks: int, link: Link) -> dict[str, float]:
        """Return what all-reduces spend on latency and on bytes, in s of an iteration."""
        number = self.gradients + self.others
        latency = number * self.reduction.seconds(ranks, 0.0, link)
        return {"latency": latency, "bytes": self.communication(ranks, link) - latency}
