"""A policy frozen for the thread that acts with it, while another thread trains it."""

from __future__ import annotations

import copy
import itertools
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FrozenPolicy"]


class FrozenPolicy:
    """A policy's frozen copy, used instead of it wherever the acting thread calls it.

    `publish()` belongs to the thread that trains: it copies the weights as they are now and numbers
    them. `install()` belongs to the acting thread: it loads the latest that was published into the
    frozen copy. Between two installs the copy does not change, whatever training does meanwhile. In
    the acting thread a call of the policy, or of any module within it, runs the copy's `forward`;
    in every other thread it runs the policy itself. Other methods are the policy's own in every
    thread. Buffers that acting itself changes are not carried back.
    """

    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.copy = copy.deepcopy(policy).requires_grad_(False)
        self._published: tuple[int, list[Tensor]] = (-1, [])
        self._redirected: list[nn.Module] = []

    @torch.no_grad()
    def publish(self) -> int:
        """Copy the weights as they are now; return the number of this version, 0 for the first."""
        version = self._published[0] + 1
        self._published = version, [tensor.detach().clone() for tensor in _tensors(self.policy)]
        return version

    @torch.no_grad()
    def install(self) -> int:
        """Act with the latest published weights from now on, in this thread; return their
        version.
        """
        version, weights = self._published
        for frozen, published in zip(_tensors(self.copy), weights, strict=True):
            frozen.copy_(published)
        if not self._redirected:
            # Every module, as what acts may be a part of the policy: the actor of an actor and a
            # critic.
            for module, twin in zip(self.policy.modules(), self.copy.modules(), strict=True):
                _redirect(module, twin)
                self._redirected.append(module)
        return version

    @property
    def acted(self) -> bool:
        """Whether the copy has been called in this thread; for the thread that installed."""
        forwards = (module.__dict__.get("forward") for module in self._redirected)
        return any(
            forward.acting.called for forward in forwards if isinstance(forward, _ForwardByThread)
        )

    def release(self) -> None:
        """Let the policy be itself in this thread again; for the thread that installed."""
        while self._redirected:
            _direct(self._redirected.pop())


def _tensors(policy: nn.Module) -> itertools.chain[Tensor]:
    return itertools.chain(policy.parameters(), policy.buffers())


class _ForwardByThread:
    """The `forward` of a module: that of a frozen twin in the threads that have one, else the
    module's own.

    The twin's `forward` is called, not the twin: hooks are the module's own, and run once. A copy
    of the module, deep or pickled, has the module's own `forward`, as no thread has a twin of the
    copy.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        # such as that of a compiled module
        self.own: Callable[..., Any] | None = module.__dict__.get("forward")
        # which torch.compile, unlike a thread's number, can look into
        self.acting = threading.local()
        self.threads = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if hasattr(self.acting, "twin"):
            if not self.acting.called:
                self.acting.called = True
            return self.acting.twin.forward(*arguments, **options)
        if self.own is not None:
            return self.own(*arguments, **options)
        return type(self.module).forward(self.module, *arguments, **options)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.own is not None:
            return _itself, (self.own,)
        return types.MethodType, (type(self.module).forward, self.module)


def _itself(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward


_redirecting = threading.Lock()


def _redirect(module: nn.Module, twin: nn.Module) -> None:
    with _redirecting:
        forward = module.__dict__.get("forward")
        if not isinstance(forward, _ForwardByThread):
            forward = module.__dict__["forward"] = _ForwardByThread(module)
        forward.acting.twin, forward.acting.called = twin, False
        forward.threads += 1


def _direct(module: nn.Module) -> None:
    with _redirecting:
        forward = module.__dict__.get("forward")
        if not isinstance(forward, _ForwardByThread):
            return  # another one was set meanwhile
        del forward.acting.twin
        forward.threads -= 1
        if not forward.threads:
            del module.__dict__["forward"]
            if forward.own is not None:
                module.__dict__["forward"] = forward.own
