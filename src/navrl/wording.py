"""Numbers with their nouns, for what is printed."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: `1 world`, `32 worlds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
