"""Rollouts on disk beside pickle + LZ4, HDF5, NumPy and torch: the same real flights, written
durably and read in parts.

1024 drones fly 32 steps under the scripted pilot among 350 static and 80 moving obstacles; what
they see is stored. All writers flush their file to the disk. `stall` is how long the call holds the
caller up, `durable` how long until the file is there. Peers that can only read a whole file read it
whole to give one environment, one key or a window.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import torch

from navrl.benchmark import Case, Column, Gate, Results, Suite
from navrl.io.rollouts.storage import RolloutStorage
from navrl.rl.scripted import scripted_pilot
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

Data = dict[str, np.ndarray]
WARM_UP = 10  # steps until the drones have left the places where they were set down
WINDOW = slice(8, 16)


def fly(drones: int, steps: int) -> Data:
    """Return what drones that are spread over the arena see, do and earn, (drones, steps, ...)."""
    env = NavigationEnv(NavigationSettings.of(env__num_envs=drones, env__num_worlds=4), seed=0)
    places = np.random.default_rng(0)
    low, high = (-20.0, -20.0, 0.5), (20.0, 20.0, 2.5)
    seen = env.place(places.uniform(low, high, (drones, 3)), places.uniform(low, high, (drones, 3)))
    step, noise, rows = env.make_step(), torch.Generator().manual_seed(0), []
    for number in range(WARM_UP + steps):
        action = scripted_pilot(seen) + 0.3 * torch.randn(drones, 3, generator=noise)
        before = {name: value.flatten(1).clone() for name, value in seen.items()}
        env.step(action, out=step)
        seen = step.observation
        if number >= WARM_UP:
            earned = {
                "action": action,
                "reward": step.reward,
                "terminated": step.terminated,
                "truncated": step.truncated,
            }
            rows.append(before | {name: value.clone() for name, value in earned.items()})
    return {name: torch.stack([row[name] for row in rows], 1).numpy() for name in rows[0]}


def write_durably(path: Path, data: bytes | memoryview) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Peer(ABC):
    """A way to store a rollout that blocks until the file is there."""

    def __init__(self, name: str, data: Data, folder: Path) -> None:
        self.data, self.path = data, folder / name
        self.env = 0

    @abstractmethod
    def write(self) -> None:
        """Store the rollout durably."""

    @abstractmethod
    def read(self) -> Data:
        """Return all of it."""

    def read_env(self, env: int) -> Data:
        return {name: array[env] for name, array in self.read().items()}

    def read_key(self, key: str) -> np.ndarray:
        return self.read()[key]

    def read_window(self, key: str) -> np.ndarray:
        return self.read_key(key)[:, WINDOW]

    def size(self) -> int:
        return self.path.stat().st_size

    def store(self) -> tuple[float, float]:
        """Return seconds until the call returned, and until the file was on the disk."""
        start = time.perf_counter()
        self.write()
        seconds = time.perf_counter() - start
        return seconds, seconds

    def measure(self) -> Mapping[str, float]:
        self.env = (self.env + 377) % len(self.data["reward"])
        stall, durable = self.store()
        whole, read = timed(self.read)
        one, one_env = timed(lambda: self.read_env(self.env))
        key, one_key = timed(lambda: self.read_key("reward"))
        window, a_window = timed(lambda: self.read_window("lidar"))
        same = all(np.array_equal(whole[name], array) for name, array in self.data.items())
        same &= all(np.array_equal(one[name], array[self.env]) for name, array in self.data.items())
        same &= np.array_equal(key, self.data["reward"]) and np.array_equal(
            window, self.data["lidar"][:, WINDOW]
        )
        return {
            "bytes": self.size(),
            "stall": stall,
            "durable": durable,
            "read": read,
            "one_env": one_env,
            "one_key": one_key,
            "window": a_window,
            "identical": float(same),
        }


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a function returns, and the least of the times that it took: of three, or all
    within a tenth of a second.
    """
    times: list[float] = []
    while len(times) < 3 or sum(times) < 0.1:
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return result, min(times)


class Ours(Peer):
    """RolloutStorage."""

    def __init__(self, name: str, data: Data, folder: Path, *, level: int = 9) -> None:
        super().__init__(name, data, folder)
        self.storage = RolloutStorage(self.path, level)

    def write(self) -> None:
        self.storage.save(self.data, 0)

    def store(self) -> tuple[float, float]:
        start = time.perf_counter()
        self.write()
        stall = time.perf_counter() - start
        self.storage.flush()
        return stall, time.perf_counter() - start

    def read(self) -> Data:
        return self.storage.load(0)

    def read_env(self, env: int) -> Data:
        return self.storage.load(0, envs=env)

    def read_key(self, key: str) -> np.ndarray:
        return self.storage.load(0, keys=[key])[key]

    def read_window(self, key: str) -> np.ndarray:
        return self.storage.load(0, keys=[key], steps=WINDOW)[key]

    def size(self) -> int:
        return self.storage.size(0)


class PickleLz4(Peer):
    """What the design that this replaces did: pickle, LZ4 at level 9."""

    def write(self) -> None:
        write_durably(
            self.path, lz4.frame.compress(pickle.dumps(self.data, protocol=5), compression_level=9)
        )

    def read(self) -> Data:
        return pickle.loads(lz4.frame.decompress(self.path.read_bytes()))


class TorchSave(Peer):
    """torch.save, which does not compress."""

    def write(self) -> None:
        buffer = io.BytesIO()
        torch.save({name: torch.from_numpy(array) for name, array in self.data.items()}, buffer)
        write_durably(self.path, buffer.getbuffer())

    def read(self) -> Data:
        return {
            name: tensor.numpy()
            for name, tensor in torch.load(self.path, weights_only=True).items()
        }


class Savez(Peer):
    """numpy.savez_compressed; it reads single keys."""

    def write(self) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **self.data)
        write_durably(self.path, buffer.getbuffer())

    def read(self) -> Data:
        with np.load(self.path) as file:
            return {name: file[name] for name in file.files}

    def read_key(self, key: str) -> np.ndarray:
        with np.load(self.path) as file:
            return file[key]


class Hdf5(Peer):
    """HDF5 with shuffle and gzip, in chunks of 16 environments; it reads any part."""

    def write(self) -> None:
        import h5py

        with h5py.File(self.path, "w") as file:
            for name, array in self.data.items():
                file.create_dataset(
                    name,
                    data=array,
                    chunks=(min(16, len(array)), *array.shape[1:]),
                    compression="gzip",
                    shuffle=True,
                )
        descriptor = os.open(self.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def _part(self, key: str, where: Any) -> np.ndarray:
        import h5py

        with h5py.File(self.path) as file:
            return file[key][where]

    def read(self) -> Data:
        import h5py

        with h5py.File(self.path) as file:
            return {name: file[name][...] for name in self.data}

    def read_env(self, env: int) -> Data:
        import h5py

        with h5py.File(self.path) as file:
            return {name: file[name][env] for name in self.data}

    def read_key(self, key: str) -> np.ndarray:
        return self._part(key, ...)

    def read_window(self, key: str) -> np.ndarray:
        return self._part(key, (slice(None), WINDOW))


def suite(*, smoke: bool) -> Suite:
    """Return the benchmark."""
    drones, steps = (64, 32) if smoke else (1024, 32)
    data = fly(drones, steps)
    folder = Path(tempfile.mkdtemp(prefix="navrl-rollouts-"))
    kinds: dict[str, Peer] = {
        "navrl": Ours("navrl", data, folder),
        "navrl, level 12": Ours("small", data, folder, level=12),
    }
    for name, kind in (
        ("pickle + LZ4-9", PickleLz4),
        ("numpy.savez_compressed", Savez),
        ("torch.save", TorchSave),
    ):
        kinds[name] = kind(name, data, folder)
    try:
        import h5py  # noqa: F401

        kinds["HDF5, gzip"] = Hdf5("hdf5", data, folder)
    except ImportError:
        pass

    def close() -> None:
        for kind in kinds.values():
            if isinstance(kind, Ours):
                kind.storage.close()
        shutil.rmtree(folder, ignore_errors=True)

    peer, raw = "pickle + LZ4-9", sum(array.nbytes for array in data.values())

    def faster(metric: str, than: str) -> Callable[[Results], float]:
        return lambda results: _times(results, metric, than, peer)

    gates = [
        Gate(
            "identical",
            lambda results: min(results.median(name, "identical") for name in kinds),
            at_least=1.0,
        )
    ]
    if not smoke:
        gates += [
            Gate(
                "size / pickle + LZ4-9",
                lambda results: results.ratio("bytes", "navrl", peer),
                at_most=0.65,
            ),
            Gate("durable write, times faster", faster("durable", "durable"), at_least=5.0),
            Gate(
                "one environment, times faster than a whole read",
                faster("one_env", "read"),
                at_least=50.0,
            ),
            Gate(
                "size, MB",
                lambda results: results.median("navrl", "bytes") / 1e6,
                at_most=5.57,
                stretch=True,
            ),
            Gate("whole read, times faster", faster("read", "read"), at_least=1.0, stretch=True),
        ]
    columns = [
        Column("bytes", "MB", ".2f", 1e-6),
        Column("stall", "stall ms", ".1f", 1e3),
        Column("durable", "durable ms", ".0f", 1e3),
        Column("read", "read ms", ".1f", 1e3),
        Column("one_env", "one env ms", ".2f", 1e3),
        Column("one_key", "one key ms", ".2f", 1e3),
        Column("window", "window ms", ".1f", 1e3),
        Column("identical", "identical", ".0f"),
    ]
    zeros = float((data["lidar"] == 0).mean())
    settings = {"drones": drones, "steps": steps, "raw_bytes": raw, "lidar_zeros": round(zeros, 3)}
    cases = [Case(name, kind.measure, type(kind).__doc__ or "") for name, kind in kinds.items()]
    title = f"A rollout of {drones} x {steps} steps, {raw / 1e6:.1f} MB"
    return Suite(
        "rollouts", title, cases, columns, gates, ("lz4", "zstandard", "h5py"), 7, settings, close
    )


def _times(results: Results, ours: str, theirs: str, peer: str) -> float:
    """Return how many times longer the peer takes for `theirs` than we for `ours`: the median over
    the rounds.
    """
    pairs = zip(results.rounds["navrl"][ours], results.rounds[peer][theirs], strict=True)
    return float(np.median([other / mine for mine, other in pairs]))
