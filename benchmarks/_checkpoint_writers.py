"""The writers that are compared: each saves a training's state its own way, and reads it back."""

from __future__ import annotations

import io
import logging
import os
import queue
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lz4.frame
import torch

from _trained_states import Training
from navrl.io import AsyncCheckpointSaver, load_checkpoint


def named_tensors(state: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a state with its place."""
    if isinstance(state, torch.Tensor):
        yield place, state.detach()
    elif isinstance(state, dict | list):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from named_tensors(value, f"{place}/{key}")


def copy_into(state: Any, loaded: dict[str, torch.Tensor]) -> None:
    """Copy loaded tensors into the live ones."""
    for name, tensor in named_tensors(state):
        tensor.copy_(loaded[name])


def sync(path: Path) -> None:
    """Wait until a file, or every file of a folder, is on the disk."""
    for one in path.iterdir() if path.is_dir() else [path]:
        descriptor = os.open(one, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Writer:
    """A blocking writer; the others override what differs."""

    writes = True

    def __init__(self, training: Training, path: Path) -> None:
        self.training = training
        self.path = path

    def save(self, state: dict[str, Any]) -> None:
        """Start to save; what this takes is taken from training."""
        torch.save(state, self.path)

    def before_step(self) -> None:
        """Wait until the optimiser may write to the tensors again."""

    def busy(self) -> bool:
        """Tell whether the writer still works in the background."""
        return False

    def wait(self) -> None:
        """Wait until the file is on the disk."""
        sync(self.path)

    def load(self) -> dict[str, torch.Tensor]:
        """Return the tensors as fresh ones."""
        return dict(named_tensors(torch.load(self.path, weights_only=True)))

    def load_live(self, state: dict[str, Any]) -> None:
        """Load into live tensors."""
        copy_into(state, self.load())

    def size(self) -> int:
        """Return the bytes on the disk."""
        return sum(
            one.stat().st_size
            for one in (self.path.iterdir() if self.path.is_dir() else [self.path])
        )

    def close(self) -> None:
        """Stop what runs in the background."""


class NoSave(Writer):
    """No save at all, for as long as one takes: what it seems to add is what cannot be told from
    nothing.
    """

    writes = False
    _SECONDS = 0.4

    def save(self, state: dict[str, Any]) -> None:
        self._begun = time.perf_counter()

    def busy(self) -> bool:
        return time.perf_counter() - self._begun < self._SECONDS

    def wait(self) -> None:
        pass


class Safetensors(Writer):
    """safetensors, blocking: tensors by name."""

    def __init__(self, training: Training, path: Path) -> None:
        import safetensors.torch

        super().__init__(training, path)
        self._library = safetensors.torch

    def save(self, state: dict[str, Any]) -> None:
        self._library.save_file(dict(named_tensors(state)), self.path)

    def load(self) -> dict[str, torch.Tensor]:
        return self._library.load_file(self.path)


class CloneAndQueue(Writer):
    """The design of the documents: clone every tensor, queue it; a thread runs torch.save into
    memory and LZ4 at 9.
    """

    def __init__(self, training: Training, path: Path) -> None:
        super().__init__(training, path)
        self._queue: queue.Queue[Any] = queue.Queue(3)
        threading.Thread(target=self._work, daemon=True).start()

    def save(self, state: dict[str, Any]) -> None:
        self._queue.put(self._clone(state))

    def _clone(self, state: Any) -> Any:
        if isinstance(state, torch.Tensor):
            return state.detach().clone()
        if isinstance(state, dict):
            return {key: self._clone(value) for key, value in state.items()}
        return [self._clone(value) for value in state] if isinstance(state, list) else state

    def _work(self) -> None:
        while (state := self._queue.get()) is not None:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            self.path.write_bytes(lz4.frame.compress(buffer.getvalue(), compression_level=9))
            self._queue.task_done()

    def busy(self) -> bool:
        return self._queue.unfinished_tasks > 0

    def wait(self) -> None:
        self._queue.join()
        sync(self.path)

    def load(self) -> dict[str, torch.Tensor]:
        content = io.BytesIO(lz4.frame.decompress(self.path.read_bytes()))
        return dict(named_tensors(torch.load(content, weights_only=True)))

    def close(self) -> None:
        self._queue.put(None)


class CopyOnly(Writer):
    """A copy of the bytes beside the training, and nothing else: a yardstick for those who take a
    snapshot.
    """

    writes = False

    def __init__(self, training: Training, path: Path) -> None:
        super().__init__(training, path)
        self._thread = ThreadPoolExecutor(1, initializer=lambda: os.nice(10))
        self._copy = bytearray(sum(tensor.nbytes for _, tensor in named_tensors(training.state())))
        self._copied: Any = None
        self._done: Any = None

    def save(self, state: dict[str, Any]) -> None:
        self._copied = self._thread.submit(
            self._take, [tensor for _, tensor in named_tensors(state)]
        )
        self._done = self._copied

    def _take(self, tensors: list[torch.Tensor]) -> None:
        flat, place = torch.frombuffer(self._copy, dtype=torch.uint8), 0
        for tensor in tensors:
            flat[place : place + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
            place += tensor.nbytes

    def before_step(self) -> None:
        if self._copied is not None:
            self._copied.result()

    def busy(self) -> bool:
        return not self._done.done()

    def wait(self) -> None:
        self._done.result()

    def close(self) -> None:
        self._thread.shutdown()


class CopyAndWrite(CopyOnly):
    """A plain writer beside the training: copy the bytes, write and flush them; no names, no
    checksums.
    """

    writes = True

    def __init__(self, training: Training, path: Path) -> None:
        super().__init__(training, path)
        self._shapes = [
            (name, tensor.shape, tensor.dtype) for name, tensor in named_tensors(training.state())
        ]

    def save(self, state: dict[str, Any]) -> None:
        super().save(state)
        self._done = self._thread.submit(self._write)

    def _write(self) -> None:
        self.path.write_bytes(self._copy)
        sync(self.path)

    def load(self) -> dict[str, torch.Tensor]:
        flat = torch.frombuffer(bytearray(self.path.read_bytes()), dtype=torch.uint8)
        place = 0
        found = {}
        for name, shape, dtype in self._shapes:
            size = shape.numel() * dtype.itemsize
            found[name] = flat[place : place + size].view(dtype).reshape(shape)
            place += size
        return found


class Lightning(Writer):
    """Lightning's AsyncCheckpointIO."""

    def __init__(self, training: Training, path: Path) -> None:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        super().__init__(training, path)
        self._io = AsyncCheckpointIO(TorchCheckpointIO())
        self._io._ensure_setup()
        self._done: Any = None

    def save(self, state: dict[str, Any]) -> None:
        self._io.save_checkpoint(state, self.path)
        self._done = self._io._executor.submit(lambda: None)

    def busy(self) -> bool:
        return self._done is not None and not self._done.done()

    def wait(self) -> None:
        self._done.result()
        sync(self.path)

    def close(self) -> None:
        self._io.teardown()


class Distributed(Writer):
    """torch.distributed.checkpoint.async_save, in a thread or a process, with one of its
    stagers.
    """

    kind = "thread"
    staging: Callable[[], Any] = staticmethod(lambda: None)

    def __init__(self, training: Training, path: Path) -> None:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        super().__init__(training, path)
        self._library = dcp
        logging.getLogger().setLevel(logging.WARNING)  # its processes report every request
        warnings.filterwarnings("ignore", module="torch.distributed")
        if not dist.is_initialized():
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
            dist.init_process_group("gloo", rank=0, world_size=1)
        self._stager = self.staging()
        self._staged: Any = None
        self._done: Any = None

    def save(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        response = self._library.async_save(
            state,
            storage_writer=self._library.FileSystemWriter(self.path, overwrite=True),
            async_checkpointer_type=AsyncCheckpointerType(self.kind),
            async_stager=self._stager,
        )
        self._staged = getattr(response, "staging_completion", None)
        self._done = getattr(response, "upload_completion", response)

    def before_step(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def busy(self) -> bool:
        return not self._done.done()

    def wait(self) -> None:
        self._done.result()  # its FileSystemWriter flushes by itself

    def load_live(self, state: dict[str, Any]) -> None:
        self._library.load(
            state, storage_reader=self._library.FileSystemReader(self.path), no_dist=True
        )

    def load(self) -> dict[str, torch.Tensor]:
        state = Training.state(self.training)
        fresh = _empty_like(state)
        self.load_live(fresh)
        return dict(named_tensors(fresh))

    def close(self) -> None:
        if self._stager is not None and hasattr(self._stager, "close"):
            self._stager.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _empty_like(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return torch.empty_like(state)
    if isinstance(state, dict):
        return {key: _empty_like(value) for key, value in state.items()}
    return [_empty_like(value) for value in state] if isinstance(state, list) else state


class DistributedCached(Distributed):
    """The same with a stager that keeps its copy between saves."""

    @staticmethod
    def staging() -> Any:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        # pinned memory would need a GPU
        return DefaultStager(StagingOptions(False, False, False, False))


class DistributedStaged(Distributed):
    """The same with a stager that copies in the background."""

    @staticmethod
    def staging() -> Any:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        return DefaultStager(StagingOptions(False, False, True, False))


class DistributedProcess(Distributed):
    """The same, written by a process of its own."""

    kind = "process"


class Navrl(Writer):
    """AsyncCheckpointSaver as in the README."""

    compress = True
    lazy = True
    options: Mapping[str, Any] = {}

    def __init__(self, training: Training, path: Path) -> None:
        super().__init__(training, path)
        self.saver = AsyncCheckpointSaver(
            optimizers=[training.optimizer] if self.lazy else [], **self.options
        )

    def save(self, state: dict[str, Any]) -> None:
        self.saver.save_async(state, self.path, compress=self.compress)

    def before_step(self) -> None:
        self.saver.barrier()

    def busy(self) -> bool:
        return self.saver.queue_size > 0

    def wait(self) -> None:
        self.saver.flush()

    def load(self) -> dict[str, torch.Tensor]:
        return dict(named_tensors(load_checkpoint(self.path)))

    def load_live(self, state: dict[str, Any]) -> None:
        load_checkpoint(self.path, into=state)

    def close(self) -> None:
        self.saver.shutdown()


class NavrlRaw(Navrl):
    """The same without compression."""

    compress = False


class NavrlEager(Navrl):
    """The same without registered optimisers: the copy is made in the call."""

    lazy = False


class NavrlLossy(Navrl):
    """The same with Adam's moments rounded to bfloat16: not identical, and said so in the file."""

    options: Mapping[str, Any] = {"lossy_moments": True}


class NavrlDelta(Navrl):
    """The same as differences to the save before, a few steps of training ago; a whole file after
    eight.
    """

    options: Mapping[str, Any] = {"delta_chain": 8}

    def __init__(self, training: Training, path: Path) -> None:
        super().__init__(training, path)
        self._files: list[Path] = []
        self._stem = path

    def save(self, state: dict[str, Any]) -> None:
        self._files.append(self.path)
        self.path = self._stem.with_name(f"{self._stem.stem}-{len(self._files)}.pt")
        super().save(state)

    def wait(self) -> None:
        super().wait()
        for old in self._files[:-9]:  # what the chain being written no longer needs
            old.unlink(missing_ok=True)


# In the order in which they are measured: close to ours what ours are compared with.
WRITERS: dict[str, type[Writer]] = {
    "safetensors": Safetensors,
    "clone, queue, LZ4-9": CloneAndQueue,
    "Lightning async": Lightning,
    "DCP thread": Distributed,
    "DCP thread, cached staging": DistributedCached,
    "DCP thread, async staging": DistributedStaged,
    "DCP process": DistributedProcess,
    "torch.save": Writer,
    "no save": NoSave,
    "copy only": CopyOnly,
    "copy and write": CopyAndWrite,
    "navrl": Navrl,
    "navrl raw": NavrlRaw,
    "navrl, copy in call": NavrlEager,
    "navrl, lossy moments": NavrlLossy,
    "navrl, delta": NavrlDelta,
}
