"""A policy frozen for the thread that acts with it, while another thread trains it."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FrozenPolicy"]


class FrozenPolicy:
    """A policy's frozen copy, used instead of it wherever the acting thread calls it.

    `publish()` belongs to the thread that trains: it copies the weights as they are now and numbers them. `install()`
    belongs to the acting thread: it loads the latest that was published into the frozen copy. Between two installs the
    copy does not change, whatever training does meanwhile. In the acting thread a call of the policy runs the copy; in
    every other thread it runs the policy itself. Buffers that acting itself changes are not carried back.
    """

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.copy = copy.deepcopy(policy).requires_grad_(False)
        self._published: tuple[int, list[Tensor]] = (-1, [])
        self._thread: int | None = None

    @torch.no_grad()
    def publish(self) -> int:
        """Copy the weights as they are now; return the number of this version, 0 for the first."""
        version = self._published[0] + 1
        self._published = version, [tensor.detach().clone() for tensor in _tensors(self.policy)]
        return version

    @torch.no_grad()
    def install(self) -> int:
        """Act with the latest published weights from now on, in this thread; return their version."""
        version, weights = self._published
        for frozen, published in zip(_tensors(self.copy), weights, strict=True):
            frozen.copy_(published)
        if self._thread is None:
            self._thread = threading.get_ident()
            _redirect(self.policy, self._thread, self.copy)
        return version

    def release(self) -> None:
        """Let the policy be itself in every thread again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            _direct(self.policy, thread)


def _tensors(policy: nn.Module) -> itertools.chain[Tensor]:
    return itertools.chain(policy.parameters(), policy.buffers())


class _ForwardByThread:
    """The `forward` of a policy: that of a frozen copy in the threads that have one, else the policy's own.

    The copy's `forward` is called, not the copy: hooks are the policy's own, and run once. A deep copy of the policy
    takes a deep copy of this along, which then belongs to it.
    """

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.copies: dict[int, nn.Module] = {}

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        frozen = self.copies.get(threading.get_ident())
        forward: Callable[..., Any] = type(self.policy).forward.__get__(self.policy) if frozen is None else frozen.forward
        return forward(*arguments, **options)


_redirecting = threading.Lock()


def _redirect(policy: nn.Module, thread: int, frozen: nn.Module) -> None:
    with _redirecting:
        forward = policy.__dict__.get("forward")
        if not isinstance(forward, _ForwardByThread):
            forward = policy.__dict__["forward"] = _ForwardByThread(policy)
        forward.copies[thread] = frozen


def _direct(policy: nn.Module, thread: int) -> None:
    with _redirecting:
        forward = policy.__dict__.get("forward")
        if isinstance(forward, _ForwardByThread):
            forward.copies.pop(thread, None)
            if not forward.copies:
                del policy.__dict__["forward"]
