"""Rounded moments, opt-in and lossy: the moments of optimisers in half the bytes.

Adam's moments are running averages of noisy gradients. The file holds them as bfloat16 and says so;
they are widened to float32 when it is loaded. Weights are never rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from navrl.io.container.container_writer import ArraySource
from navrl.io.container.state_tree import Packed

__all__ = ["MOMENTS", "narrow_moments"]

# the names that torch's optimisers use for their running averages
MOMENTS = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
    }
)


def narrow_moments(sources: Sequence[ArraySource], packed: Packed) -> list[ArraySource]:
    """Return the arrays with float32 moments as bfloat16, and mark them in the tree.

    A moment is a tensor with the name of one that is in the `state` of an optimiser and nowhere
    else.
    """
    places: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    for name, node, _ in packed.leaves:
        if "tensor" in node:
            places.setdefault(node["tensor"], []).append((name, node))
    narrowed = []
    for number, source in enumerate(sources):
        if (
            source.element == "float32"
            and number in places
            and all(_is_moment(name) for name, _ in places[number])
        ):
            for _, node in places[number]:
                node["widen"] = source.element
            data = (
                torch.from_numpy(source.data)
                .view(torch.float32)
                .to(torch.bfloat16)
                .view(torch.uint8)
                .numpy()
            )
            source = replace(source, element="bfloat16", data=data)
        narrowed.append(source)
    return narrowed


def _is_moment(name: str) -> bool:
    *parents, last = name.split("/")
    return last in MOMENTS and "state" in parents
