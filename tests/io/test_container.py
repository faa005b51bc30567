"""The file: damage anywhere is an error that names the file, and a hostile file gets nothing but an
error.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time

import numpy as np
import pytest
import torch
import xxhash

import forked
from navrl.errors import CheckpointError, ContainerError
from navrl.io import load_checkpoint, read_index, save_checkpoint, verify_checkpoint
from navrl.io.container import container_writer as container_module
from navrl.io.container.index import FOOTER, HEADER, index_checksum


@pytest.fixture
def state():
    torch.manual_seed(0)
    return {
        "first": torch.randn(300, 7),
        "second": torch.randn(700_000),
        "name": "x",
        "third": torch.arange(9),
    }


@pytest.fixture(params=["planes-zstd", "raw"])
def saved(request, tmp_path, state):
    save_checkpoint(state, tmp_path / "state.pt", codec=request.param)
    return tmp_path / "state.pt"


def rewrite_index(path, change):
    """Change the index of a file and give it the checksum that it then needs, as only malice would."""
    data = path.read_bytes()
    length = FOOTER.unpack(data[-FOOTER.size :])[0]
    start = len(data) - FOOTER.size - length
    index = json.loads(data[start : -FOOTER.size])
    text = change(index)
    text = text if isinstance(text, bytes) else json.dumps(index).encode()
    footer = FOOTER.pack(len(text), index_checksum(data[: HEADER.size], text), data[-8:])
    path.write_bytes(data[:start] + text + footer)


def test_the_index_is_read_without_the_arrays(saved, state):
    data = bytearray(saved.read_bytes())
    index = read_index(saved)
    for entry in index.arrays:
        data[entry.offsets[0] : entry.offsets[0] + entry.stored_bytes] = bytes(entry.stored_bytes)
    saved.write_bytes(data)
    assert [entry.name for entry in read_index(saved).arrays] == ["first", "second", "third"]


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 15, 16, 40, 1000, -1, -8, -24, -25])
def test_a_file_cut_anywhere_is_refused_by_name(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(ContainerError, match=saved.name):
        read_index(saved)


def test_bytes_appended_are_refused(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    with pytest.raises(ContainerError, match=saved.name):
        read_index(saved)


def test_every_flipped_bit_of_header_and_footer_is_refused(saved):
    good = saved.read_bytes()
    for position in [*range(HEADER.size), *range(len(good) - FOOTER.size, len(good))]:
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            saved.write_bytes(bad)
            with pytest.raises(ContainerError, match=saved.name):
                read_index(saved)


def test_a_flipped_bit_in_an_array_names_the_file_and_the_array(saved):
    entry = read_index(saved).arrays[1]
    bad = bytearray(saved.read_bytes())
    bad[entry.offsets[1] + 12345] ^= 4
    saved.write_bytes(bad)
    for attempt in (load_checkpoint, verify_checkpoint):
        with pytest.raises(
            ContainerError, match=r"state\.pt: array 'second' is damaged: .* chunk 1"
        ):
            attempt(saved)


def test_two_chunks_swapped_are_refused(tmp_path):
    size = container_module.CHUNK_BYTES
    save_checkpoint({"x": torch.randn(size // 2)}, tmp_path / "x.pt", codec="raw")
    data = bytearray((tmp_path / "x.pt").read_bytes())
    one, other = slice(16, 16 + size), slice(16 + size, 16 + 2 * size)
    data[one], data[other] = data[other], data[one]
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(ContainerError, match="array 'x' is damaged"):
        load_checkpoint(tmp_path / "x.pt")


def test_a_version_of_the_future_says_so(saved):
    data = bytearray(saved.read_bytes())
    data[8:12] = struct.pack("<I", 2)
    saved.write_bytes(data)
    with pytest.raises(ContainerError, match=r"version 2; .* upgrade"):
        read_index(saved)


HOSTILE = {
    "a million million elements": lambda index: index["arrays"][0].update(shape=[10**12]),
    "elements beyond any machine": lambda index: index["arrays"][0].update(shape=[2**63, 2**63]),
    "no elements, but impossible strides": lambda index: index["arrays"][0].update(
        shape=[2**62, 2**62, 0]
    ),
    "a negative length": lambda index: index["arrays"][0].update(shape=[-1, -2100]),
    "a length that is true": lambda index: index["arrays"][0].update(shape=[True, 2100]),
    "too many dimensions": lambda index: index["arrays"][0].update(shape=[1] * 100 + [2100]),
    "chunks of no bytes": lambda index: index["arrays"][0].update(chunk_bytes=0),
    "chunks of a gigabyte": lambda index: index["arrays"][0].update(chunk_bytes=1 << 30),
    "chunks that end inside a number": lambda index: index["arrays"][0].update(chunk_bytes=1000),
    "a bomb": lambda index: index["arrays"][0].update(
        shape=[1 << 28], stored=[1] * 1024, checksums=["0" * 16] * 1024
    ),
    "stored bytes below zero": lambda index: index["arrays"][0].update(stored=[-5]),
    "a chunk less": lambda index: index["arrays"][1]["stored"].pop(),
    "a checksum less": lambda index: index["arrays"][1]["checksums"].pop(),
    "a checksum that is no text": lambda index: index["arrays"][1].update(checksums=[7, 7]),
    "an unknown element type": lambda index: index["arrays"][0].update(element="object"),
    "an unknown codec": lambda index: index["arrays"][0].update(codec="pickle"),
    "a name twice": lambda index: index["arrays"][0].update(name="second"),
    "a name that is a list": lambda index: index["arrays"][0].update(name=[]),
    "an array that is a number": lambda index: index["arrays"].append(7),
    "no arrays": lambda index: index.pop("arrays"),
    "a document that is a list": lambda index: index.update(document=[]),
    "not JSON": lambda index: b"{",
    "JSON of something else": lambda index: b"[]",
    "NaN": lambda index: b'{"arrays": [], "document": {"x": NaN}}',
    "a tower of brackets": lambda index: b"[" * 100_000,
    "a number of a million digits": lambda index: b'{"arrays": ' + b"9" * 1_000_000 + b"}",
    "bytes that are no text": lambda index: b"\xff\xfe\xfd",
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_index_with_a_valid_checksum_is_refused_by_name(saved, change):
    rewrite_index(saved, change)
    with pytest.raises(ContainerError, match=saved.name):
        read_index(saved)


HOSTILE_TREES = {
    "an array that is not there": {"tensor": 99},
    "an array before the first": {"tensor": -1},
    "an array counted by a text": {"tensor": "0"},
    "an unknown tag": {"pickle": "cos\nsystem"},
    "no tag": {},
    "a dict with a list as key": {"dict": [[[1], 2]]},
    "a dict with a key twice": {"dict": [["a", 1], ["a", 2]]},
    "a dict of no pairs": {"dict": [1, 2, 3]},
    "a method replaced": {"ordered": [], "attributes": [["update", 1]]},
    "a class replaced": {"ordered": [], "attributes": [["__class__", {"dict": []}]]},
    "a size below zero": {"size": [-1]},
    "a number that is none": {"int": "x"},
    "a float that is none": {"float": []},
}


@pytest.mark.parametrize("tree", HOSTILE_TREES.values(), ids=HOSTILE_TREES.keys())
def test_a_hostile_tree_is_refused_by_name(saved, tree):
    rewrite_index(saved, lambda index: index["document"].update(state=tree))
    with pytest.raises(ContainerError, match=saved.name):
        load_checkpoint(saved)


def test_a_tree_nested_too_deep_is_refused_by_name(saved):
    tree = 1
    for _ in range(500):
        tree = [tree]
    rewrite_index(saved, lambda index: index["document"].update(state=tree))
    with pytest.raises(ContainerError, match=saved.name):
        load_checkpoint(saved)


@pytest.mark.slow
def test_a_hostile_claim_costs_no_memory(saved):
    """Load with hardly more memory than the file needs: a claim that was believed would end in a
    MemoryError.
    """
    rewrite_index(saved, HOSTILE["a million million elements"])
    program = (
        "import resource, sys; from navrl.io import load_checkpoint; from navrl.errors import "
        "ContainerError\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "try: load_checkpoint(sys.argv[1], workers=1)\n"
        "except ContainerError: sys.exit(7)\n"
    )
    assert forked.run(program, saved).returncode == 7


def test_saving_over_a_file_leaves_neither_its_memory_nor_a_descriptor_behind(saved, state):
    def settled():
        deadline = time.monotonic() + 10
        while (
            any(thread.name == "navrl-free" for thread in threading.enumerate())
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        return len(os.listdir("/proc/self/fd"))

    before = settled()
    for _ in range(5):
        save_checkpoint(state, saved)
    assert settled() == before


@pytest.mark.slow
def test_a_writer_that_fails_leaves_the_old_file_and_no_other(saved, state):
    before = saved.read_bytes()
    program = (
        "import resource, signal, sys, torch; from navrl.io import save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)\n"
        "try: save_checkpoint({'x': torch.randn(1 << 20)}, sys.argv[1], codec='raw')\n"
        "except OSError: sys.exit(7)\n"
    )
    assert forked.run(program, saved).returncode == 7
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_an_index_that_no_reader_would_accept_is_not_written(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr(container_module, "MAX_INDEX_BYTES", 1000)
    with pytest.raises(
        CheckpointError, match=r"state\.pt: an index of \d+ bytes, expected at most 1000"
    ):
        save_checkpoint({"numbers": list(range(1000))}, saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_bytes_that_a_tree_names_a_thousand_times_take_their_memory_once(tmp_path):
    path = tmp_path / "x.pt"
    save_checkpoint(b"x" * 100_000, path)
    rewrite_index(path, lambda index: index["document"].update(state=[{"bytes": 0}] * 1000))
    loaded = load_checkpoint(path)
    assert len(loaded) == 1000
    assert len({id(one) for one in loaded}) == 1


@pytest.mark.parametrize(
    ("element", "widened"),
    [("float32", "float64"), ("uint8", "complex128"), ("bfloat16", "float64")],
)
def test_only_bfloat16_is_widened_and_only_to_float32(tmp_path, element, widened):
    path = tmp_path / "x.pt"
    save_checkpoint(torch.ones(10).to(getattr(torch, element)), path)
    rewrite_index(path, lambda index: index["document"]["state"].update(widen=widened))
    with pytest.raises(
        ContainerError, match=rf"x\.pt: state is {element}, to be widened to {widened}"
    ):
        load_checkpoint(path)


@pytest.mark.parametrize("codec", ["planes-zstd", "raw", "lz4"])
def test_arrays_of_many_chunks_and_of_few_come_back_whatever_threads_take_at_once(tmp_path, codec):
    torch.manual_seed(0)
    state = {
        "floats": torch.randn(2_500_001),
        "small": torch.randn(5000),
        "halves": torch.randn(3_000_000).bfloat16(),
        "wide": torch.randn(700_000, dtype=torch.float64),
        "numbers": torch.arange(900_000),
    }
    save_checkpoint(state, tmp_path / "state.pt", codec=codec)
    loaded = load_checkpoint(tmp_path / "state.pt")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_the_checksums_are_xxh3_of_the_stored_bytes(tmp_path):
    array = np.arange(5, dtype=np.float32)
    save_checkpoint({"x": array}, tmp_path / "x.pt", codec="raw")
    assert read_index(tmp_path / "x.pt").arrays[0].checksums == (
        xxhash.xxh3_64_intdigest(array.tobytes()),
    )


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_index(tmp_path / "nothing.pt")


def test_a_file_has_the_permissions_of_any_new_file(saved, tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    assert saved.stat().st_mode == (tmp_path / "plain").stat().st_mode
