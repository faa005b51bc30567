"""The navigation network in CPU kernels: the same function as `NavigationNetwork`, much faster.

    fused = FusedNetwork(network)
    heads = fused.infer(rows)  # without gradients
    heads = fused(rows, index)  # of rows[index]; heads.backward(...) fills network's gradients

Parameters are those of the network and are read at every call. While one of them is not finite, all
heads and gradients are NaN; a row that is not finite has heads of NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.errors import StateError
from navrl.rl.fused.buffer_layout import GROUP, HEADS
from navrl.rl.fused.finite_check import all_finite, spoil_bad_rows
from navrl.rl.fused.fused_kernels import fused_kernels
from navrl.rl.networks.navigation import NavigationNetwork
from navrl.simd import aligned_zeros


def supports(network: Any, rows: Tensor) -> bool:
    """Return whether the kernels can compute this network on such rows."""
    return (
        type(network) is NavigationNetwork
        and rows.ndim == 2
        and rows.shape[1] >= network.layout.width
        and rows.stride(1) == 1
        and all(
            t.dtype == torch.float32 and t.device.type == "cpu"
            for t in (rows, network.scale, *network.parameters())
        )
        and all(parameter.is_contiguous() for parameter in network.parameters())
    )


def _plain(rows: Tensor) -> bool:
    return rows.dtype == torch.float32 and rows.stride(-1) == 1 and not rows.is_cuda


class _Pass:
    """What a forward pass keeps for the backward pass: the packed weights and the activations."""

    def __init__(self, samples: int, at: Any) -> None:
        self.capacity = _whole(samples)
        self.weights = aligned_zeros((at.WEIGHTS,))
        self.activations = aligned_zeros((self.capacity * at.ACTIVATIONS,))
        self.samples = 0
        self.finite = True  # parameters and rows


def _whole(samples: int) -> int:
    return -(-samples // GROUP) * GROUP


class FusedNetwork:
    """Computes a `NavigationNetwork`, forward and backward; see `supports`.

    Kernels are compiled for each shape of the observation, on its first use, and kept on disk.
    Every thread computes a fixed slice of the samples, so the same input gives the same bits.
    Buffers are reused. An instance must not be called by two threads at once.
    """

    def __init__(self, network: NavigationNetwork, threads: int | None = None) -> None:
        self.network = network
        self._kernels = fused_kernels(
            *network.layout.shapes["lidar"][-2:],
            network.layout.shapes["dynamic_obstacle"][-2],
            network.relative_motion,
        )
        at = self._kernels.at
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
        """Return the heads, (N, 7), of all rows, or of rows[index], without gradients."""
        self._check(rows, index)
        if not self._pack(self._weights):
            return self._nothing(rows, index)
        heads, _ = self._run(rows.detach(), index, self._weights, None)
        return heads

    def packed(self) -> Callable[[Tensor], Tensor]:
        """Return `infer` for a network that flies: its weights are packed once, not at every call.

        They are packed again after a change that PyTorch made in place, or another tensor in their
        place. What writes through raw memory must ask for a new function.
        """
        weights = aligned_zeros((self._kernels.at.WEIGHTS,))
        known: list[tuple[int, int]] = []
        finite, shape = False, (self.network.layout.width,)

        def infer(rows: Tensor) -> Tensor:
            nonlocal known, finite
            now = [(one.data_ptr(), one._version) for one in self._parameters]
            if now != known or rows.shape[1:] != shape or not _plain(rows):
                self._check(rows, None)
                finite, known = self._pack(weights), now
            if not finite:
                return self._nothing(rows, None)
            return self._run(rows.detach(), None, weights, None)[0]

        return infer

    def __call__(self, rows: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the heads, (N, 7), differentiable in the network's parameters, not in the rows."""
        if not torch.is_grad_enabled():
            return self.infer(rows, index)
        self._check(rows, index)
        return _Fused.apply(self, rows.detach(), index, *self._parameters)  # type: ignore[no-untyped-call]

    def _check(self, rows: Tensor, index: Tensor | None) -> None:
        if not supports(self.network, rows):
            raise StateError(
                f"rows are {tuple(rows.shape)} {rows.dtype} on {rows.device}; the fused network "
                f"takes float32 rows of at least {self.network.layout.width} contiguous numbers, "
                "and parameters, on the CPU"
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
        """Pack the parameters in the kernels' order; return False if one is not finite."""
        addresses = np.array([parameter.data_ptr() for parameter in self._parameters], np.int64)
        if not all_finite(addresses, self._sizes):
            return False
        kernels, scale = self._kernels, self.network.scale.data_ptr()
        kernels.pack(addresses, scale, kernels.packed, weights.ctypes.data)
        return True

    def _nothing(self, rows: Tensor, index: Tensor | None) -> Tensor:
        """Return the heads of a network whose parameters are not finite."""
        return torch.full((len(rows) if index is None else len(index), HEADS), torch.nan)

    def _run(
        self, rows: Tensor, index: Tensor | None, weights: Any, kept: _Pass | None
    ) -> tuple[Tensor, bool]:
        """Return the heads, and whether all rows were finite."""
        index = None if index is None else index.contiguous()
        samples = len(rows) if index is None else len(index)
        heads = torch.empty(samples, HEADS)
        forward, block = self._kernels.forward, self._kernels.at.BLOCK
        listed = 0 if index is None or samples == 0 else index.data_ptr()

        def part(thread: int, begin: int, end: int) -> None:
            activations = self._blocks[thread] if kept is None else kept.activations
            capacity = block if kept is None else kept.capacity
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
            self.network.layout.width,
            samples,
            heads.data_ptr(),
            HEADS,
        )
        return heads, spoiled == 0

    def _split(self, samples: int, part: Callable[[int, int, int], None]) -> int:
        """Call `part(thread, begin, end)` in each thread for its slice; return how many had any."""
        size = max(_whole(-(-samples // self.threads)), GROUP)
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
        # a second pass before the backward of this one gets its own buffers
        kept, self._spare = (self._spare, None)
        if kept is None or kept.capacity < samples:
            kept = _Pass(samples, self._kernels.at)
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
            self._kernels.backward(
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
        self._kernels.unpack(
            self._gradients.ctypes.data,
            used,
            self._kernels.gradients,
            kept.weights.ctypes.data,
            addresses,
        )
        self._spare = kept
        return gradients


class _Fused(torch.autograd.Function):
    """The kernels as one operation of PyTorch."""

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
                "the activations of this pass were freed; call backward once, or compute the "
                "heads again"
            )
        return (None, None, None, *context.fused._finish(kept, heads))
