"""The compiled functions of the fused network for each layout of the observation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from navrl.rl.fused.backward_pass import make_backward
from navrl.rl.fused.buffer_layout import buffer_layout
from navrl.rl.fused.forward_pass import make_forward
from navrl.rl.fused.weight_packing import make_pack, make_unpack, maps

__all__ = ["FusedKernels", "fused_kernels"]


@dataclass(frozen=True)
class FusedKernels:
    """The functions and the buffer layout for one shape of the LiDAR image and the obstacles."""

    at: Any  # sizes and places; see `buffer_layout`
    forward: Any
    backward: Any
    pack: Any
    unpack: Any
    packed: int  # address of the map of packed weights
    gradients: int  # address of the map of gradients


@cache
def fused_kernels(azimuths: int, beams: int, observed: int, related: bool) -> FusedKernels:
    """Return the kernels of a layout; each is compiled on its first call and kept on disk."""
    at = buffer_layout(azimuths, beams, observed, related)
    variant = f"{azimuths}x{beams}x{observed}{'_related' * related}"
    packed, gradients = maps(azimuths, beams)  # cached, so their addresses stay valid
    return FusedKernels(
        at,
        make_forward(at, variant),
        make_backward(at, variant),
        make_pack(at, variant),
        make_unpack(at, variant),
        packed.ctypes.data,
        gradients.ctypes.data,
    )
