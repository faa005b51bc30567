"""The limit of any implementation: the network's matrix products alone, in the form in which
`torch.mm` is fastest.

A layer is three products: its output, the gradient of its weights, the gradient of its input (which
the first layers do not need). A convolution is a product over gathered patches, or, with the
image's height folded into the channels, a larger but better shaped one; whichever is faster here
counts. So does the faster of whole minibatches and blocks that stay in the cache. Nothing else is
done: no gathering, no activations, no normalisation, no loss, no optimiser, no simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from _training_peers.task import Task

Work = Callable[[], None]


@dataclass(frozen=True)
class Layer:
    """The shapes in which a layer can be computed, (rows a sample, inputs, outputs), and whether
    its input has a gradient.
    """

    shapes: tuple[tuple[int, int, int], ...]
    first: bool = False


LAYERS = (
    Layer(((36 * 4, 15, 4), (36, 5 * 4, 4 * 4)), first=True),
    Layer(((18 * 4, 4 * 15, 16), (18, 5 * 4 * 4, 4 * 16))),
    Layer(((9 * 2, 16 * 15, 16), (9, 5 * 4 * 16, 2 * 16))),
    Layer(((1, 16 * 9 * 2, 128),)),
    Layer(((1, 50, 128),), first=True),
    Layer(((1, 128, 64),)),
    Layer(((1, 128 + 64 + 8, 256),)),
    Layer(((1, 256, 256),)),
    Layer(((1, 256, 7),)),
)
BLOCKS = (64, 256, 1 << 30)


def products(
    shape: tuple[int, int, int], samples: int, block: int, *, backward: bool, first: bool
) -> Work:
    """Return a function that computes the products of a layer for so many samples, block after
    block.
    """
    rows, inputs, outputs = shape
    block = min(block, samples)
    height = rows * block
    value, weight = torch.rand(height, inputs) - 0.5, torch.rand(inputs, outputs) - 0.5
    slope, result = torch.rand(height, outputs) - 0.5, torch.empty(height, outputs)
    weight_slope, value_slope = torch.empty(inputs, outputs), torch.empty(height, inputs)
    repeats = -(-samples // block)

    def work() -> None:
        for _ in range(repeats):
            torch.mm(value, weight, out=result)
            if backward:
                torch.mm(value.T, slope, out=weight_slope)
                if not first:
                    torch.mm(slope, weight.T, out=value_slope)

    return work


def fastest(candidates: Sequence[Work], repeats: int = 5) -> Work:
    """Return the candidate whose best time is the least."""

    def best(work: Work) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times[1:])

    return min(candidates, key=best) if len(candidates) > 1 else candidates[0]


def whole_network(samples: int, *, backward: bool) -> list[Work]:
    """Return the work of every layer in its fastest form."""
    blocks = sorted({min(block, samples) for block in BLOCKS})
    return [
        fastest(
            [
                products(shape, samples, block, backward=backward, first=layer.first)
                for shape in layer.shapes
                for block in blocks
            ]
        )
        for layer in LAYERS
    ]


class MatrixProducts:
    """The products of one iteration: forward for every step of all drones, forward and backward for
    every minibatch.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        with torch.no_grad():
            self.forward = whole_network(task.drones, backward=False)
            self.both = whole_network(task.minibatch, backward=True)

    @torch.no_grad()
    def iterate(self) -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(self.task.steps):
            for work in self.forward:
                work()
        collected = time.perf_counter()
        for _ in range(self.task.epochs * self.task.minibatches):
            for work in self.both:
                work()
        return collected - start, time.perf_counter() - collected


def make(task: Task) -> MatrixProducts:
    return MatrixProducts(task)
