"""Mutated files: every one is refused or loads exactly what was saved. Never anything in between,
never a crash.

The long mode runs as many as asked for: `NAVRL_FUZZ=100000 pytest tests/io/test_fuzz.py`.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from io_states import assert_same
from test_container import rewrite_index

from navrl.errors import CheckpointError, ContainerError
from navrl.io import load_checkpoint, save_checkpoint

MUTATIONS = int(os.environ.get("NAVRL_FUZZ", 1500))


def mutate(data: bytes, generator: random.Random) -> bytes:
    """Return a file with one to four kinds of damage that disks, networks and people do."""
    mutated = bytearray(data)
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        kind = generator.randrange(7)
        size = len(mutated) or 1
        start = generator.choice(
            (generator.randrange(size), max(0, size - 1 - generator.randrange(min(size, 900))))
        )
        length = generator.choice((1, 2, 8, 16, 512, 4096))
        if kind == 0 and mutated:
            mutated[start] ^= 1 << generator.randrange(8)
        elif kind == 1 and mutated:
            mutated[start] = generator.randrange(256)
        elif kind == 2:
            del mutated[start : start + length]
        elif kind == 3:
            mutated[start:start] = generator.randbytes(length)
        elif kind == 4:
            mutated[start : start + length] = bytes(len(mutated[start : start + length]))
        elif kind == 5:
            other = generator.randrange(size)
            one, two = mutated[start : start + length], mutated[other : other + length]
            if len(one) == len(two) and abs(start - other) >= length:
                mutated[start : start + length], mutated[other : other + length] = two, one
        else:
            del mutated[start:]
    return bytes(mutated)


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    weights = {f"layer{i}": torch.randn(40, 40) for i in range(3)}
    return {
        "weights": weights,
        "step": 7,
        "moments": [torch.rand(40, 40), torch.arange(5)],
        "tuple": (1.5, "x", b"y"),
    }


@pytest.mark.parametrize("codec", ["planes-zstd", "raw", "lz4"])
def test_no_mutated_file_loads_as_something_else(memory_folder, state, codec, injected):
    path = memory_folder / "x.pt"
    save_checkpoint(state, path, codec=codec)
    good = path.read_bytes()
    generator = random.Random(codec)
    refused = 0
    for _ in range(MUTATIONS // 3):
        bad = mutate(good, generator)
        path.write_bytes(bad)
        try:
            loaded = load_checkpoint(path, workers=1)
        except (ContainerError, CheckpointError) as error:
            assert path.name in str(error)  # noqa: PT017
            refused += 1
        else:
            assert_same(loaded, state)
            assert bad == good
    injected.add(MUTATIONS // 3)
    assert refused > MUTATIONS // 3 * 0.9


def test_no_mutated_index_with_a_valid_checksum_crashes(memory_folder, state, injected):
    """What malice can do: the checksum is made to fit. It may load something else, but only ever
    that or an error.
    """
    path = memory_folder / "x.pt"
    save_checkpoint(state, path)
    good = path.read_bytes()
    generator = random.Random(0)
    outcomes = set()
    for _ in range(MUTATIONS // 3):
        path.write_bytes(good)
        rewrite_index(path, lambda index: _mutate_json(index, generator))
        try:
            load_checkpoint(path, workers=1)
            outcomes.add("loaded")
        except (ContainerError, CheckpointError):
            outcomes.add("refused")
    injected.add(MUTATIONS // 3)
    assert outcomes == {"loaded", "refused"}


HOSTILE = (
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    "",
    "raw",
    "float64",
    None,
    True,
    [],
    {},
    [[]],
    {"tensor": 0},
    {"int": "z"},
)


def _mutate_json(node: object, generator: random.Random) -> None:
    """Walk down at random and replace, remove or double what is found."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = generator.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and generator.random() < 0.85:
            node = inner
            continue
        action = generator.randrange(4)
        if action == 0:
            del node[key]
        elif action == 1 and isinstance(node, list):
            node.append(inner)
        else:
            node[key] = generator.choice(HOSTILE)
        return
