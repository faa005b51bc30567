"""PipelinedDataCollector: the next batch is collected in the background while training uses this
one.
"""

from __future__ import annotations

import atexit
import dataclasses
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from navrl.adapters.acting_policy import acting_policy, acts_with_a_copy
from navrl.adapters.forwarding import ForwardsToBase, FrameRate
from navrl.adapters.frozen import FrozenPolicy
from navrl.adapters.thread_modes import own_modes
from navrl.arguments import whole_number
from navrl.errors import CollectorError, ConfigError
from navrl.io.container.devices import usable_device

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PipelinedDataCollector"]

_EXIT_SECONDS = 10.0  # how long a leaving interpreter waits for the batch that is being collected


class PipelinedDataCollector(ForwardsToBase):
    """The batches of a collector, collected ahead in a background thread.

    Works around TorchRL's collectors, `NavigationCollector`, and anything else that can be
    iterated. The thread starts with the first batch asked for. At most `prefetch_count` batches are
    ahead of the consumer, the one being collected included, so a batch was collected by a policy at
    most that many iterations old.

    Every batch comes from one version of the weights. Whenever the consumer asks for a batch, the
    weights of the base collector's policy are copied as they are then, between two updates. Before
    each batch the thread loads the latest of these copies into a frozen twin, and acts with the
    twin until the batch is complete. So the log-probabilities of a batch are those of the weights
    that acted, whatever training does meanwhile. The number of the version, 0 for the weights at
    the first request, 1 for those at the second, is in the batch, `("collector",
    "policy_version")`, and in `policy_version`.

    Batches are copied before they wait, unless the collector says that it hands out new ones
    (`return_same_td` is False). Attributes that this class lacks are those of the base collector.

    Args:
        base_collector: gives the batches, and is shut down with this.
        device: where batches are put.
        prefetch_count: the most batches that are ahead of the consumer.
        policy: the policy that is trained while it acts. By default the base collector's own; where
            that cannot be found (a generator, a plain function) the module whose weights it uses,
            or None if no weights change meanwhile.
        push_weights: the collector has a copy of the policy of its own (in other processes, on
            another device), which is given the weights with `update_policy_weights_` before each
            batch.
        copy: whether batches are copied; found out by default.

    Raises:
        ConfigError: the policy of the base collector cannot be found or cannot be frozen; the
            message says what to pass.
        CollectorError: at the next request, with the original error as its cause, when collecting
            failed.

    >>> import torch, navrl
    >>> batches = ({"reward": torch.full((4,), float(number))} for number in range(3))
    >>> collector = navrl.PipelinedDataCollector(batches, prefetch_count=2, policy=None)
    >>> [batch["reward"][0].item() for batch in collector]
    [0.0, 1.0, 2.0]
    >>> collector.shutdown()
    True
    """

    return_same_td = False

    def __init__(
        self,
        base_collector: Iterable[Any],
        device: torch.device | str | None = None,
        prefetch_count: int = 2,
        *,
        policy: nn.Module | Literal["auto"] | None = "auto",
        push_weights: bool = False,
        copy: bool | None = None,
    ) -> None:
        prefetch_count = whole_number("prefetch_count", prefetch_count, 1)
        if not isinstance(base_collector, Iterable):
            raise ConfigError(
                f"base_collector is a {type(base_collector).__name__}; expected something that "
                "can be iterated"
            )
        acting = acting_policy(base_collector, policy, push_weights)
        self.base_collector, self.prefetch_count = base_collector, prefetch_count
        self.policy_version: int | None = None  # of the batch that was handed out last
        # or the weights are those of `policy`
        self._takes_weights = not isinstance(policy, nn.Module)
        copies = getattr(base_collector, "return_same_td", True) if copy is None else copy
        # as tensors name it: cuda:0, not cuda
        target = None if device is None else torch.empty(0, device=usable_device(device)).device
        self._pipeline = _Pipeline(
            base_collector, target, prefetch_count, copies, acting, push_weights
        )
        self._rate = self._pipeline.rate
        # The thread knows the pipeline, not this object, so that this one can be collected as
        # garbage, which ends it.
        self._abandoned = weakref.finalize(self, self._pipeline.stop)
        self._abandoned.atexit = False

    def __iter__(self) -> Iterator[Any]:
        if self._pipeline.stopping:
            raise CollectorError("the collector was shut down; make a new one")
        return self

    def __next__(self) -> Any:
        pipeline = self._pipeline
        if pipeline.stopping:
            raise StopIteration
        if pipeline.frozen is not None:
            pipeline.frozen.publish()
        pipeline.start()
        batch, self.policy_version = pipeline.take()
        return batch

    def next(self) -> Any:
        """Return the next batch, or None after the last, as TorchRL's collectors do."""
        return next(self, None)

    def __bool__(self) -> bool:
        return True  # whatever the base collector's length, if it has one

    def __len__(self) -> int:
        return len(self.base_collector)

    @property
    def ready(self) -> int:
        """How many batches are waiting."""
        return len(self._pipeline.ready)

    def shutdown(self, timeout: float | None = None, **_: Any) -> bool:
        """End the thread after the batch it is collecting, drop what waits, and shut the base
        collector down.

        Returns:
            False if the thread was still collecting after `timeout` seconds; call again to wait on.
        """
        self._pipeline.stop()
        if not self._pipeline.join(timeout):
            return False
        if self._abandoned.detach() is not None:  # only once
            close = getattr(self.base_collector, "shutdown", None) or getattr(
                self.base_collector, "close", None
            )
            if close is not None:
                close()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the base collector's state between two batches; batches that wait are not part of
        it.
        """
        with self._pipeline.collecting:
            return dict(self.base_collector.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the base collector from a saved state, also after its end or an error; batches
        that wait are dropped.
        """
        with self._pipeline.collecting:
            self.base_collector.load_state_dict(state)
            self._pipeline.begin_anew()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the base collector between two batches."""
        with self._pipeline.collecting:
            return int(self.base_collector.set_seed(seed, static_seed))

    def update_policy_weights_(self, *arguments: Any, **options: Any) -> None:
        """Hand weights to the base collector; batches begun after the next request act with them.

        Without an argument there is nothing to do where the collector acts with the policy that is
        trained.

        Raises:
            ConfigError: weights were given although the collector was made with policy=, and acts
                with its weights.
        """
        given = any(value is not None for value in (*arguments, *options.values()))
        if given and not self._takes_weights:
            raise ConfigError(
                "update_policy_weights_ was given weights, but the collector was made with "
                "policy= and acts with its weights; "
                "load them into the policy instead, and call this without an argument or not at all"
            )
        if self._pipeline.frozen is None:
            with self._pipeline.collecting:
                self.base_collector.update_policy_weights_(*arguments, **options)
        elif given or (self._takes_weights and acts_with_a_copy(self.base_collector)):
            # the thread acts with the frozen twin
            self.base_collector.update_policy_weights_(*arguments, **options)

    def start(self) -> None:
        """Start the base collector's own thread, which fills its replay buffer.

        Raises:
            CollectorError: this one collects already.
        """
        if self._pipeline.thread is not None:
            raise CollectorError(
                "start: batches are being collected already; iterate over the collector or "
                "start it, not both"
            )
        self.base_collector.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


class _Pipeline:
    """What the thread and the consumer share."""

    def __init__(
        self,
        base: Iterable[Any],
        device: torch.device | None,
        prefetch: int,
        copies: bool,
        policy: nn.Module | None,
        push_weights: bool,
    ) -> None:
        self.base = base
        self.device = device
        self.prefetch = prefetch
        self.copies = copies
        self.push_weights = push_weights
        self.frozen = None if policy is None else FrozenPolicy(policy)
        self.rate = FrameRate()
        self.changed = threading.Condition()  # guards the next four
        self.ready: deque[tuple[Any, int | None]] = deque()
        self.stopping = False
        self.ended = False
        self.error: BaseException | None = None
        self.collecting = threading.Lock()  # held by the thread while the base collector works
        # guarded by `collecting`: the thread came to the end of the base, or to an error
        self.finished = False
        self.thread: threading.Thread | None = None

    # Of the consumer.

    def start(self) -> None:
        """Start the thread, once."""
        with self.changed:
            if self.thread is None and not self.stopping:
                self.thread = threading.Thread(
                    target=self._run, name="navrl-collector", daemon=True
                )
                atexit.register(self._finish_at_exit)
                self.thread.start()

    def take(self) -> tuple[Any, int | None]:
        """Wait for a batch; raise what went wrong, or StopIteration after the last."""
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self.ended or self.stopping)
            if self.ready and not self.stopping:
                self.changed.notify_all()
                return self.ready.popleft()
            error = None if self.stopping else self.error
        if error is not None:
            raise CollectorError(
                f"collecting in the background failed: {type(error).__name__}: {error}"
            ) from error
        raise StopIteration

    def stop(self) -> None:
        """Ask the thread to end. Called by the garbage collector too, in any thread: it must not
        wait for anything.
        """
        with self.changed:
            self.stopping = True
            self.ready.clear()
            self.changed.notify_all()

    def begin_anew(self) -> None:
        """Forget the batches that wait, and the end if the thread came to it: the next request
        starts another thread.
        """
        if self.finished:
            self.join(None)
        with self.changed:
            self.ready.clear()
            if self.finished:
                self.thread, self.error, self.ended, self.finished = None, None, False, False
            self.changed.notify_all()

    def join(self, timeout: float | None) -> bool:
        """Wait for the thread; tell whether it has ended."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout)
            return not self.thread.is_alive()
        return True

    def _finish_at_exit(self) -> None:
        self.stop()
        self.join(_EXIT_SECONDS)

    # Of the thread.

    def _run(self) -> None:
        try:
            with own_modes():
                self._collect()
        except BaseException as error:
            self.error = error
        finally:
            if self.frozen is not None:
                self.frozen.release()
            atexit.unregister(self._finish_at_exit)
            with self.changed:
                self.ended = True
                self.changed.notify_all()

    def _collect(self) -> None:
        iterator = None
        while self._wait_for_room():
            with self.collecting:
                self.finished = True  # unless there is a batch
                iterator = iter(self.base) if iterator is None else iterator
                version = self._next_version()
                start = time.perf_counter()
                for batch in iterator:
                    self.rate.add(batch, time.perf_counter() - start)
                    self._refuse_other_weights()
                    self._hand_over(batch, version)
                    del batch  # or a batch more would live while the next one is made
                    self.finished = False
                    break
                else:
                    return

    def _wait_for_room(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.stopping or len(self.ready) < self.prefetch)
            return not self.stopping

    def _next_version(self) -> int | None:
        if self.frozen is None:
            return None
        version = self.frozen.install()
        if self.push_weights:
            self.base.update_policy_weights_(_weights(self.frozen.copy))  # type: ignore[attr-defined]
        return version

    def _refuse_other_weights(self) -> None:
        """Raise a CollectorError if a batch was made without calling the frozen policy."""
        if (
            self.frozen is None
            or self.push_weights
            or self.frozen.acted
            or getattr(self.base, "init_random_frames", None)
        ):
            return
        raise CollectorError(
            f"the {type(self.base).__name__} made a batch without calling the policy in the "
            "thread that collects, so its "
            "weights cannot be frozen: it acts in threads of its own, or calls other methods "
            "than forward. Pass policy=MODULE, "
            "the module that it calls, or policy=None if no weights change while it collects"
        )

    def _hand_over(self, batch: Any, version: int | None) -> None:
        batch = _owned(batch, self.device, self.copies)
        if version is not None and hasattr(batch, "batch_size") and hasattr(batch, "set"):
            if getattr(batch, "is_locked", False):
                batch = batch.copy()
            batch.set(("collector", "policy_version"), torch.full(batch.batch_size, version))
        with self.changed:
            if not self.stopping:
                self.ready.append((batch, version))
                self.changed.notify_all()


def _weights(policy: nn.Module) -> Any:
    """Return weights as TorchRL's collectors take them; where there is no TensorDict, as a
    state_dict.
    """
    if "tensordict" not in sys.modules:
        return policy.state_dict()
    from tensordict import TensorDict

    return TensorDict.from_module(policy).data


def _owned(value: Any, device: torch.device | None, copies: bool) -> Any:
    """Return a batch on a device, in memory of its own if asked for: tensors, TensorDicts, and
    nests of them.
    """
    if isinstance(value, Tensor) or (hasattr(value, "clone") and hasattr(value, "to")):
        moved = value if device is None else value.to(device)
        return (
            moved.clone()
            if copies and (moved is value or value.device in (None, device))
            else moved
        )
    if isinstance(value, Mapping):
        return {key: _owned(inner, device, copies) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_owned(inner, device, copies) for inner in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(
            value, **{name: _owned(getattr(value, name), device, copies) for name in names}
        )
    if copies and hasattr(value, "copy") and hasattr(value, "dtype"):  # a NumPy array
        return value.copy()
    return value
