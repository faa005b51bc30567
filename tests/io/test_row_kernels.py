"""The compiled row codecs against the readable ones: the same bytes, and the same rows, whatever is
stored.
"""

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.errors import ContainerError
from navrl.io.container.codecs import CODECS
from navrl.io.container.codecs.rows import Rows, compiled
from navrl.io.container.element_types import ITEM_BYTES

ELEMENTS = [
    "bool",
    "int8",
    "float16",
    "uint16",
    "float32",
    "int64",
    "float64",
    "complex64",
    "complex128",
]
CODEC_NAMES = ["time-delta-zstd", "rows-zstd"]


@st.composite
def chunks(draw):
    """Draw a chunk of rows, most of whose numbers stay as they are from row to row."""
    element = draw(st.sampled_from(ELEMENTS))
    steps, group, first = (
        draw(st.integers(low, high)) for low, high in ((1, 40), (1, 50), (0, 100))
    )
    count, length = draw(st.integers(1, 70)), draw(st.integers(1, 20))
    source = np.random.default_rng(draw(st.integers(0, 1000)))
    row_bytes = length * ITEM_BYTES[element]
    numbers = source.integers(0, 256, (count, row_bytes), dtype=np.uint8)
    stays = source.random((count, length)) < draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    for row in range(1, count):
        places = np.repeat(stays[row], ITEM_BYTES[element])
        numbers[row, places] = numbers[row - 1, places]
    return numbers.reshape(-1), element, Rows(row_bytes, steps, group, first)


def joined(buffers):
    return np.frombuffer(b"".join(memoryview(buffer).cast("B") for buffer in buffers), np.uint8)


def test_a_last_group_that_begins_within_an_environment_is_read_by_both():
    """23 rows a group are no whole environments of 3 steps, though the 21 rows of the last group
    could be.
    """
    chunk, rows = np.random.default_rng(0).integers(0, 256, 67, dtype=np.uint8), Rows(1, 3, 23, 0)
    codec = CODECS["time-delta-zstd"]
    stored = joined(codec.encode_readably(chunk, "int8", None, rows))
    for decode in (codec.decode, codec.decode_readably):
        found = np.zeros_like(chunk)
        decode(stored, found, "int8", rows, None)
        assert (found == chunk).all()


@settings(max_examples=150, deadline=None)
@given(
    drawn=chunks(),
    name=st.sampled_from(CODEC_NAMES),
    level=st.sampled_from([None, 1, 12]),
    choice=st.data(),
)
def test_compiled_and_readable_codecs_write_the_same_bytes_and_read_them(
    drawn, name, level, choice
):
    chunk, element, rows = drawn
    codec = CODECS[name]
    assert compiled() is not None
    stored = joined(
        codec.encode(
            chunk,
            element,
            level,
            np.empty(choice.draw(st.sampled_from([0, 1 << 16])), np.uint8),
            rows,
        )
    )
    assert stored.tobytes() == joined(codec.encode_readably(chunk, element, level, rows)).tobytes()
    count = rows.groups(chunk.size)
    groups = choice.draw(
        st.one_of(st.none(), st.lists(st.integers(0, count - 1), unique=True).map(sorted))
    )
    outputs = [np.full(chunk.size, 170, np.uint8) for _ in range(2)]
    codec.decode(stored, outputs[0], element, rows, groups)
    codec.decode_readably(stored, outputs[1], element, rows, groups)
    assert outputs[0].tobytes() == outputs[1].tobytes()
    size = rows.group * rows.row_bytes
    for number in range(count) if groups is None else groups:
        assert (outputs[0][number * size :][:size] == chunk[number * size :][:size]).all()


@settings(max_examples=150, deadline=None)
@given(drawn=chunks(), name=st.sampled_from(CODEC_NAMES), damage=st.data())
def test_a_damaged_chunk_is_refused_or_read_as_the_readable_codec_reads_it(drawn, name, damage):
    chunk, element, rows = drawn
    codec = CODECS[name]
    stored = joined(codec.encode(chunk, element, None, np.empty(0, np.uint8), rows)).copy()
    if damage.draw(st.booleans()):
        stored = stored[: damage.draw(st.integers(0, stored.size - 1))]
    for _ in range(damage.draw(st.integers(1, 3)) if stored.size else 0):
        stored[damage.draw(st.integers(0, min(stored.size, 60) - 1))] = damage.draw(
            st.integers(0, 255)
        )
    guarded = np.full(chunk.size + 128, 170, np.uint8)  # nothing may be written beside the chunk
    found, expected = guarded[64:-64], np.full(chunk.size, 170, np.uint8)
    try:
        codec.decode(stored, found, element, rows)
    except ContainerError:
        pass
    else:
        codec.decode_readably(stored, expected, element, rows, None)
        assert found.tobytes() == expected.tobytes()
    assert (guarded[:64] == 170).all()
    assert (guarded[-64:] == 170).all()


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import numpy as np
from navrl.io.rollouts.storage import RolloutStorage
from navrl.io.container.codecs.rows import compiled
assert compiled() is None
numbers = np.arange(64 * 32 * 4, dtype=np.float32).reshape(64, 32, 4)
with RolloutStorage(sys.argv[1]) as storage:
    storage.save({"x": numbers}, 0, wait=True)
    assert (storage.load(0, envs=5)["x"] == numbers[5]).all()
"""


@pytest.mark.slow
def test_rollouts_are_stored_without_numba_too(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_threads_that_come_and_go_write_the_same_bytes(name):
    chunk, rows = np.zeros(4096, np.uint8), Rows(64, 8, 8)
    stored = []

    def work():
        stored.append(
            joined(
                CODECS[name].encode(chunk, "float32", None, np.empty(0, np.uint8), rows)
            ).tobytes()
        )

    for _ in range(20):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(set(stored)) == 1
