"""The policy's network on a CPU in one kernel: the same result as `NavigationNetwork`, several
times faster.

    fused = FusedNetwork(network)
    heads = fused.infer(rows)          # no gradients: collection
    heads = fused(rows, index)           # of rows[index]; heads.backward(...) fills the gradients of network's parameters

The parameters stay those of the network; they are read anew at every call. While one of them is not
finite, all heads and gradients are NaN; a row that is not finite has heads of NaN.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.errors import StateError
from navrl.navigation_observation import navigation_layout
from navrl.rl.fused import buffer_layout as at
from navrl.rl.fused.backward_pass import backward
from navrl.rl.fused.finite_check import all_finite, spoil_bad_rows
from navrl.rl.fused.forward_pass import forward
from navrl.rl.fused.weight_packing import maps, pack, unpack
from navrl.rl.networks.navigation import INPUTS, NavigationNetwork
from navrl.simd import aligned_zeros

_LAYOUT = navigation_layout(at.AZIMUTHS, at.BEAMS, at.OBSERVED).leading(*INPUTS)


def supports(network: Any, rows: Tensor) -> bool:
    """Return whether the kernel can compute this network on such rows."""
    return (
        isinstance(network, NavigationNetwork)
        and network.layout.shapes == _LAYOUT.shapes
        and rows.ndim == 2
        and rows.shape[1] >= _LAYOUT.width
        and rows.stride(1) == 1
        and all(
            t.dtype == torch.float32 and t.device.type == "cpu"
            for t in (rows, network.scale, *network.parameters())
        )
        and all(parameter.is_contiguous() for parameter in network.parameters())
    )


class _Pass:
    """What a forward pass leaves for the backward pass: weights as they were, and activations."""

    def __init__(self, samples: int) -> None:
        self.capacity = _whole(samples)
        self.weights = aligned_zeros((at.WEIGHTS,))
        self.activations = aligned_zeros((self.capacity * at.ACTIVATIONS,))
        self.samples = 0
        self.finite = True  # parameters and rows


def _whole(samples: int) -> int:
    return -(-samples // at.GROUP) * at.GROUP


class FusedNetwork:
    """Computes a `NavigationNetwork`, forward and backward; ask `supports` first.

    Every thread computes a fixed slice of the samples, so the same input gives the same bits.
    Buffers are kept between calls. One instance is for one caller at a time.
    """

    def __init__(self, network: NavigationNetwork, threads: int | None = None) -> None:
        self.network = network
        self.threads = threads or torch.get_num_threads()
        self._parameters = list(network.parameters())
        self._sizes = np.array([parameter.numel() for parameter in self._parameters])
        self._workers = (
            ThreadPoolExecutor(self.threads - 1, "navrl-network") if self.threads > 1 else None
        )
        self._weights = aligned_zeros((at.WEIGHTS,))
        self._blocks = [aligned_zeros((at.BLOCK * at.ACTIVATIONS,)) for _ in range(self.threads)]
        self._scratch = [aligned_zeros((at.SCRATCH,)) for _ in range(self.threads)]
        self._gradients = aligned_zeros((self.threads, at.GRADIENTS))
        self._spare: _Pass | None = None

    def infer(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads, (N, 7), of all rows, or of those that `index` lists; without
        gradients.
        """
        self._check(rows, index)
        if not self._pack(self._weights):
            return self._nothing(rows, index)
        heads, _ = self._run(rows.detach(), index, self._weights, None)
        return heads

    def __call__(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads, (N, 7), through which gradients reach the network's parameters; none
        reach the rows.
        """
        if not torch.is_grad_enabled():
            return self.infer(rows, index)
        self._check(rows, index)
        return _Fused.apply(self, rows.detach(), index, *self._parameters)  # type: ignore[no-untyped-call]

    def _check(self, rows: Tensor, index: Tensor | None) -> None:
        if not supports(self.network, rows):
            raise StateError(
                "the fused network takes float32 rows on the CPU, (N, at least "
                f"{_LAYOUT.width}), and a network of layout "
                f"{_LAYOUT.shapes}; got rows {tuple(rows.shape)} {rows.dtype} on {rows.device}, "
                f"layout {self.network.layout.shapes}"
            )
        if index is None or len(index) == 0:
            return
        if index.dtype != torch.int64 or index.ndim != 1 or index.device.type != "cpu":
            raise StateError(
                f"index is {index.dtype} of shape {tuple(index.shape)}; expected int64, one "
                "dimension, on the CPU"
            )
        low, high = torch.aminmax(index)
        if low < 0 or high >= len(rows):
            raise StateError(
                f"index goes from {int(low)} to {int(high)}; the rows are 0 to {len(rows) - 1}"
            )

    def _pack(self, weights: Any) -> bool:
        """Bring the parameters into the order the kernels read them in; False, and nothing done, if
        one is not finite.
        """
        addresses = np.array([parameter.data_ptr() for parameter in self._parameters], np.int64)
        if not all_finite(addresses, self._sizes):
            return False
        pack(addresses, self.network.scale.data_ptr(), maps()[0].ctypes.data, weights.ctypes.data)
        return True

    def _nothing(self, rows: Tensor, index: Tensor | None) -> Tensor:
        """Return the heads that a network with bad parameters has."""
        return torch.full((len(rows) if index is None else len(index), at.HEADS), torch.nan)

    def _run(
        self, rows: Tensor, index: Tensor | None, weights: Any, kept: _Pass | None
    ) -> tuple[Tensor, bool]:
        """Return the heads, and whether all rows were finite."""
        index = None if index is None else index.contiguous()
        samples = len(rows) if index is None else len(index)
        heads = torch.empty(samples, at.HEADS)
        listed = 0 if index is None or samples == 0 else index.data_ptr()

        def part(thread: int, begin: int, end: int) -> None:
            activations = self._blocks[thread] if kept is None else kept.activations
            capacity = at.BLOCK if kept is None else kept.capacity
            forward(
                rows.data_ptr(),
                rows.stride(0),
                listed,
                begin,
                end,
                weights.ctypes.data,
                activations.ctypes.data,
                capacity,
                kept is not None,
                self.network.circular,
                self._scratch[thread].ctypes.data,
                heads.data_ptr(),
            )

        self._split(samples, part)
        spoiled = spoil_bad_rows(
            rows.data_ptr(),
            rows.stride(0),
            listed,
            _LAYOUT.width,
            samples,
            heads.data_ptr(),
            at.HEADS,
        )
        return heads, spoiled == 0

    def _split(self, samples: int, part: Callable[[int, int, int], None]) -> int:
        """Call `part(thread, begin, end)` for a slice of the samples in each thread; return how
        many had any.
        """
        size = max(_whole(-(-samples // self.threads)), at.GROUP)
        slices = [(begin, min(begin + size, samples)) for begin in range(0, samples, size)]
        if self._workers is None or len(slices) < 2:
            for thread, (begin, end) in enumerate(slices):
                part(thread, begin, end)
        else:
            others = [
                self._workers.submit(part, thread, *bounds)
                for thread, bounds in enumerate(slices)
                if thread
            ]
            part(0, *slices[0])
            for other in others:
                other.result()
        return len(slices)

    def _begin(self, rows: Tensor, index: Tensor | None) -> tuple[Tensor, _Pass]:
        """Compute the heads and return them with what the backward pass needs."""
        samples = len(rows) if index is None else len(index)
        # a second pass before this one has gone back gets buffers of its own
        kept, self._spare = (self._spare, None)
        if kept is None or kept.capacity < samples:
            kept = _Pass(samples)
        kept.samples = samples
        kept.finite = self._pack(kept.weights)
        if not kept.finite:
            return self._nothing(rows, index), kept
        heads, kept.finite = self._run(rows, index, kept.weights, kept)
        return heads, kept

    def _finish(self, kept: _Pass, heads: Tensor) -> list[Tensor]:
        """Return the gradients of all parameters."""
        heads = heads.contiguous()
        if not kept.finite or not all_finite(
            np.array([heads.data_ptr()]), np.array([heads.numel()])
        ):
            self._spare = kept
            return [torch.full_like(parameter, torch.nan) for parameter in self._parameters]

        def part(thread: int, begin: int, end: int) -> None:
            backward(
                heads.data_ptr(),
                begin,
                end,
                kept.weights.ctypes.data,
                kept.activations.ctypes.data,
                kept.capacity,
                self.network.circular,
                self._scratch[thread].ctypes.data,
                self._gradients[thread].ctypes.data,
            )

        used = self._split(kept.samples, part)
        if used == 0:
            return [torch.zeros_like(parameter) for parameter in self._parameters]
        flat = torch.empty(sum(parameter.numel() for parameter in self._parameters))
        parts = flat.split([parameter.numel() for parameter in self._parameters])
        gradients = [
            part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)
        ]
        addresses = np.array([gradient.data_ptr() for gradient in gradients], np.int64)
        unpack(
            self._gradients.ctypes.data,
            used,
            maps()[1].ctypes.data,
            kept.weights.ctypes.data,
            addresses,
        )
        self._spare = kept
        return gradients


class _Fused(torch.autograd.Function):
    """The kernel as one operation of PyTorch."""

    @staticmethod
    def forward(
        context: Any, fused: FusedNetwork, rows: Tensor, index: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        heads, kept = fused._begin(rows, index)
        context.fused, context.kept = fused, kept
        return heads

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, heads: Tensor) -> Any:
        kept, context.kept = context.kept, None
        if kept is None:
            raise StateError(
                "the activations of this pass are gone; call backward once, or compute the "
                "heads again"
            )
        return (None, None, None, *context.fused._finish(kept, heads))
