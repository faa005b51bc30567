"""World files that ask for more than a world can be: refused quickly, in little memory, in one
short sentence.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from navrl.errors import WorldError
from navrl.sim.worlds.world_file import load_world

LONGEST_MESSAGE = 600  # characters beside the path
# bytes that reading a bad file may take beside the interpreter and its libraries
MEMORY = 600 << 20

LAUGHS = "a0: &a0 [0,0,0,0,0,0,0,0,0]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    size = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + version + size + header.encode("latin1") + content


def header(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def encrypted() -> bytes:
    content = bytearray(zipped({"heights.npy": npy(header("(2, 2)"), bytes(16))}))
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(signature) + place] |= 1
    return bytes(content)


def claiming(size: int) -> bytes:
    """Return an archive whose directory gives a file another size than it has."""
    content = bytearray(zipped({"heights.npy": npy(header("(2, 2)"), bytes(16))}))
    place = content.find(b"PK\x01\x02") + 24
    content[place : place + 4] = struct.pack("<I", size)
    return bytes(content)


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    parts = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in (head, *chunks, (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, kind)
    return stream.getvalue()


def bomb() -> bytes:
    return zipped({"heights.npy": npy(header("(1000000, 100)"), bytes(100 << 20))})


def text_bomb() -> bytes:
    return png(2, 2, (b"zTXt", b"k\0\0" + zlib.compress(bytes(90 << 20))))


# The contents, or what makes those that take long, which every test process would when it collects.
CRAFTED = {
    "aliases.yaml": (LAUGHS.encode(), "the alias"),
    "base_60.yaml": (b"boxes: " + b"1:" * 500_000 + b"1", "has a value of 1000001 characters"),
    "one_alias.yaml": (b"boxes: &a []\ncylinders: *a", "line 2 has the alias *'a'"),
    "nodes.yaml": (b"boxes: [" + b"[]," * 800_000 + b"]", "more than 700000 values"),
    "deep.yaml": (b"boxes: " + b"[" * 100_000, "nested deeper than 8"),
    "large.yaml": (b"#" * (17 << 20), "bytes; expected at most"),
    "long_number.yaml": (
        b"boxes: [{center: 0x" + b"f" * 90_000 + b"}]",
        "expected a number or a word",
    ),
    "long_name.yaml": (
        b"name: 0x" + b"f" * 90_000 + b"\nboxes: [1]",
        "expected a number or a word",
    ),
    "long_key.yaml": (b"? " + b"k" * 900 + b"\n: 1", "unknown key"),
    "list_key.yaml": (b"? [1, 2]\n: 1", "not valid YAML"),
    "long_value.yaml": (b"boxes: ['" + b"v" * 90_000 + b"']", "expected a number or a word"),
    "wide_value.yaml": (b"boxes: [[" + b"1," * 90_000 + b"]]", "boxes[0] is [1, 1"),
    "long_tag.yaml": (b"boxes: !<" + b"t" * 5_000 + b"> 1", "not valid YAML"),
    "bomb.npz": (bomb, "unpacks to"),
    "shape.npz": (
        zipped({"heights.npy": npy(header("(100000, 100000)"))}),
        "at most 4000000 cells",
    ),
    "huge_shape.npz": (zipped({"heights.npy": npy(header(f"(1{'0' * 4000}, 2)"))}), "cells"),
    "negative_shape.npz": (zipped({"heights.npy": npy(header("(-2, 2)"))}), "not a readable NPZ"),
    "wide_type.npz": (zipped({"heights.npy": npy(header("(2, 2)", "'<U90000000'"))}), "cells"),
    "pickled.npz": (
        zipped({"heights.npy": npy(header("(2, 2)", "'|O'"), b"cos\n_exit\n")}),
        "not a",
    ),
    "long_header.npz": (
        zipped({"heights.npy": npy(header("(2, 2)") + " " * 60_000)}),
        "not a readable",
    ),
    "deep_header.npz": (zipped({"heights.npy": npy("(" * 5_000)}), "not a readable NPZ"),
    "other_version.npz": (
        zipped({"heights.npy": npy(header("(2, 2)"), bytes(16), b"\x09\x00")}),
        "version",
    ),
    "short.npz": (zipped({"heights.npy": npy(header("(2, 2)"), bytes(15))}), "another size"),
    "long.npz": (zipped({"heights.npy": npy(header("(2, 2)"), bytes(17))}), "another size"),
    "encrypted.npz": (encrypted(), "heights is encrypted"),
    "claims_much.npz": (claiming(0xFFFFFFF0), "unpacks to 4294967280 bytes"),
    "claims_little.npz": (claiming(20), "not a readable NPZ"),
    "lzma.npz": (zipped({"heights.npy": bytes(90)}, zipfile.ZIP_LZMA), "not a readable NPZ"),
    "many.npz": (
        zipped({f"{i}.npy": b"" for i in range(2_000)}, zipfile.ZIP_STORED),
        "long list of files",
    ),
    "long_names.npz": (
        zipped({f"{i}" * 9_000: b"" for i in range(5)}),
        "and 2 more; expected an array",
    ),
    "wide_half_width.npz": (
        zipped(
            {
                "heights.npy": npy(header("(2, 2)"), bytes(16)),
                "half_width.npy": npy(header("(99,)"), bytes(396)),
            }
        ),
        "half_width is [0.0",
    ),
    "wide.png": (png(2**31 - 1, 2**31 - 1), "pixels; expected at most"),
    "two_headers.png": (
        png(2, 2, (b"IHDR", struct.pack(">IIBBBBB", 9**9, 9**9, 8, 0, 0, 0, 0))),
        "two_headers",
    ),
    "text_bomb.png": (text_bomb, "not a readable PNG"),
    **{
        f"{kind}.png": (picture(kind), "expected a PNG image")
        for kind in ("gif", "bmp", "tiff", "jpeg", "webp", "ico")
    },
    "eps.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "expected a PNG image"),
}

# Reads every file below a folder with a limit on memory; prints the name and the message, or what
# was raised instead.
READER = """
import resource, sys
from pathlib import Path
from navrl.errors import WorldError
from navrl.sim.worlds.world_file import load_world
import numpy, yaml, PIL.Image, PIL.PngImagePlugin
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[2]),) * 2)
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        load_world(path)
        print(path.name, "was read", sep="\\t")
    except WorldError as error:
        print(path.name, " ".join(str(error).split()), sep="\\t")
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each crafted file is told, by its name, in a process that cannot take much memory."""
    folder = tmp_path_factory.mktemp("crafted")
    for name, (content, _) in CRAFTED.items():
        (folder / name).write_bytes(content() if callable(content) else content)
    command = [sys.executable, "-c", READER, str(folder), str(MEMORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (line.split("\t", 1) for line in done.stdout.splitlines())
    return {name: message.replace(f"{folder}/", "") for name, message in lines}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_refused_in_one_short_sentence_and_little_memory(told, name):
    assert name in told[name]
    assert CRAFTED[name][1] in told[name]
    assert len(told[name]) < LONGEST_MESSAGE


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_changed_bytes_is_refused_or_read_but_never_breaks(tmp_path, injected, data):
    injected.add()
    kind = data.draw(st.sampled_from(["yaml", "npz", "png"]))
    whole = {
        "yaml": b"boxes: [{center: [0, 6.5, 2], size: [0.5, 11, 4]}]\nstarts: [[-8, 0, 1.5]]\n",
        "npz": zipped({"heights.npy": npy(header("(4, 4)"), bytes(64))}),
        "png": picture("png"),
    }[kind]
    content = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    path = Path(tmp_path) / f"changed.{kind}"
    path.write_bytes(content)
    try:
        load_world(path)
    except WorldError as error:
        assert "changed" in str(error)  # noqa: PT017


def test_numbers_stored_by_columns_are_read_as_they_were_saved(tmp_path):
    heights = np.asfortranarray(np.array([[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]))
    np.savez_compressed(tmp_path / "columns.npz", heights=heights)
    np.savez(tmp_path / "rows.npz", heights=np.ascontiguousarray(heights))
    columns, rows = (load_world(tmp_path / f"{name}.npz") for name in ("columns", "rows"))
    np.testing.assert_array_equal(columns.boxes, rows.boxes)
    assert len(rows.boxes) == 1
