"""How a robot moves on by the commands that were already sent to it.

Its velocity follows a command with a time constant, some time after the command has arrived: a
multirotor tilts first.

    sent = SentCommands(delay=0.08)
    sent.add(now, command)
    position, velocity = Response(lag=0.45).moved(position, velocity, sent.between(begin, end))
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
KEPT_S = 2.0  # s: commands that are older act no more


@dataclass(frozen=True)
class Piece:
    """A time during which one command acts; None if nothing is known to have been sent."""

    duration: float  # s
    command: Array | None  # (..., 3) m/s


@dataclass(frozen=True)
class Response:
    """How a robot's velocity v follows a command c: v' = (c - v) / lag - damping * v."""

    lag: float  # s
    damping: float = 0.0  # 1/s
    turning: float = 0.0  # s after a command's arrival until the robot answers

    def moved(
        self, position: Array, velocity: Array, pieces: Iterable[Piece]
    ) -> tuple[Array, Array]:
        """Return where a robot is and how fast, (..., 3), after all pieces, one after the other.

        Where no command is known, it keeps its velocity.
        """
        for piece in pieces:
            if piece.command is None:
                position = position + piece.duration * velocity
                continue
            if self.lag <= 0:
                velocity = piece.command
                position = position + piece.duration * velocity
                continue
            rate = 1 / self.lag + self.damping  # 1/s
            final = piece.command / (self.lag * rate)
            left = math.exp(-rate * piece.duration)
            position = position + piece.duration * final + (1 - left) / rate * (velocity - final)
            velocity = final + left * (velocity - final)
        return position, velocity


class SentCommands:
    """The commands of the last seconds, and when each of them acts.

    Args:
        delay: s from sending a command until the robot answers to it.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self._sent: deque[tuple[float, Array]] = deque()

    def add(self, now: float, command: ArrayLike) -> None:
        """Note that a command, (..., 3) m/s in the world, was sent; times must not decrease."""
        if self._sent and now < self._sent[-1][0]:
            self._sent.clear()  # the clock was set back: nothing is known any more
        self._sent.append((now, np.array(command, np.float64)))
        while len(self._sent) > 1 and self._sent[1][0] <= now - KEPT_S:
            self._sent.popleft()

    def between(self, begin: float, end: float) -> list[Piece]:
        """Return which commands act from one time to another, in order."""
        pieces: list[Piece] = []
        command: Array | None = None
        for sent, following in self._sent:
            acts = sent + self.delay
            if acts >= end:
                break
            if acts > begin:
                pieces.append(Piece(acts - begin, command))
                begin = acts
            command = following
        if end > begin:
            pieces.append(Piece(end - begin, command))
        return pieces
