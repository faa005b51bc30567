"""Compiled segment trees: a heap of nodes, root at 1, leaves from `capacity` on."""

from __future__ import annotations

from typing import Any

from navrl.kernel_cache import kernel

__all__ = ["find", "reduce", "write"]

_entry = kernel(nogil=True, error_model="numpy")


@_entry
def write(nodes: Any, capacity: int, indices: Any, values: Any, smallest: bool) -> None:
    """Write leaves one after the other, and the nodes above them; one value may be for all."""
    for i in range(len(indices)):
        node = indices[i] + capacity
        nodes[node] = values[i] if len(values) > 1 else values[0]
        while node > 1:
            one, other = nodes[node], nodes[node ^ 1]
            nodes[node >> 1] = min(one, other) if smallest else one + other
            node >>= 1


@_entry
def reduce(nodes: Any, capacity: int, begin: int, end: int, smallest: bool) -> Any:
    """Return the sum, or the minimum, of the leaves from `begin` up to `end`."""
    found = nodes[0]  # unused by the tree: the neutral element
    left, right = begin + capacity, end + capacity
    while left < right:
        if left & 1:
            found = min(found, nodes[left]) if smallest else found + nodes[left]
            left += 1
        if right & 1:
            right -= 1
            found = min(found, nodes[right]) if smallest else found + nodes[right]
        left >>= 1
        right >>= 1
    return found


@_entry
def find(nodes: Any, capacity: int, size: int, masses: Any, found: Any) -> None:
    """Fill in the first leaf at which the cumulative sum reaches each mass."""
    for i in range(len(masses)):
        mass, node = masses[i], 1
        if mass > nodes[1]:
            found[i] = size
            continue
        while node < capacity:
            node <<= 1
            if mass > nodes[node]:
                mass -= nodes[node]
                node |= 1
        found[i] = node ^ capacity
