"""Lines of JSON with a checksum: read back as written, and damage is detected."""

from __future__ import annotations

import hashlib
import zlib

from hypothesis import given
from hypothesis import strategies as st

from navrl.io.container.checksums import decode_line, encode_line, sha256_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(values=OBJECTS)
def test_a_line_is_read_back_with_and_without_its_newline(values):
    line = encode_line(values)
    assert line.count(b"\n") == 1
    assert decode_line(line) == decode_line(line[:-1]) == values


def test_the_format_of_a_line_stays():
    assert encode_line({"number": 1, "kind": "end"}) == b'ca5f9488 {"number":1,"kind":"end"}\n'


@given(values=OBJECTS, data=st.data())
def test_a_line_with_a_changed_byte_is_damaged(values, data):
    line = bytearray(encode_line(values)[:-1])
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= data.draw(st.integers(1, 255))
    assert decode_line(bytes(line)) is None


@given(values=OBJECTS, data=st.data())
def test_a_line_that_was_cut_short_is_damaged(values, data):
    line = encode_line(values)[:-1]
    assert decode_line(line[: data.draw(st.integers(0, len(line) - 1))]) is None


def test_a_line_without_an_object_is_damaged():
    assert decode_line(b"%08x [1]" % zlib.crc32(b"[1]")) is None
    assert decode_line(b"%08x {1}" % zlib.crc32(b"{1}")) is None


def test_the_digest_of_a_file_is_its_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"weights")
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"weights").hexdigest()
