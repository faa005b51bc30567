"""A reader of containers, written from docs/format.md alone: it shares no code with the library."""

import json
import math
import struct

import lz4.block
import numpy as np
import xxhash
import zstandard

WIDTHS = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


def read(path):
    """Return the document, and the bytes of every array by name."""
    data = path.read_bytes()
    header, footer = data[:16], data[-24:]
    assert header == b"\x89NavRL\r\n" + struct.pack("<II", 1, 0)
    length, checksum = struct.unpack("<QQ", footer[:16])
    assert footer[16:] == b"\n\x1aNavRL\x98"
    text = data[-24 - length : -24]
    assert xxhash.xxh3_64_intdigest(header + footer[:8] + text) == checksum
    index = json.loads(text)
    position, arrays = 16, {}
    for array in index["arrays"]:
        size = math.prod(array["shape"]) * WIDTHS[array["element"]]
        chunks = []
        for number, (stored, expected) in enumerate(
            zip(array["stored"], array["checksums"], strict=True)
        ):
            chunk = data[position : position + stored]
            position += stored
            assert f"{xxhash.xxh3_64_intdigest(chunk):016x}" == expected
            want = min(array["chunk_bytes"], size - number * array["chunk_bytes"])
            if "part_rows" in array:
                chunks.append(decode_rows(chunk, want, array, number))
            else:
                chunks.append(decode(chunk, want, array["codec"], array["element"]))
        arrays[array["name"]] = b"".join(chunks)
        assert len(arrays[array["name"]]) == size
    assert position + length + 24 == len(data)
    return index["document"], arrays


def decode(chunk, size, codec, element):
    if codec == "raw":
        return chunk
    width = WIDTHS[element] // (2 if element.startswith("complex") else 1)
    widths = [1]
    if codec == "planes-zstd":
        widths = [1, 3] if element in ("float32", "complex64") else [1] * width
    count = size // sum(widths)
    parts, position = [], 4 * len(widths)
    for word, part_width in zip(
        struct.unpack(f"<{len(widths)}I", chunk[:position]), widths, strict=True
    ):
        part = chunk[position : position + (word & 0x7FFFFFFF)]
        position += len(part)
        if word >> 31:
            decompress = (
                lz4.block.decompress if codec == "lz4" else zstandard.ZstdDecompressor().decompress
            )
            part = decompress(part, count * part_width)
        parts.append(np.frombuffer(part, np.uint8).reshape(count, part_width))
    assert not any(chunk[position:])
    return np.concatenate(
        parts[::-1], axis=1
    ).tobytes()  # the most significant plane is the last in memory


def decode_rows(chunk, size, array, number):
    """Decode a chunk whose rows are stored in groups."""
    element, steps = array["element"], array["shape"][1]
    width = WIDTHS[element] // (2 if element.startswith("complex") else 1)
    row = math.prod(array["shape"][2:]) * WIDTHS[element]
    first, rows = number * array["chunk_bytes"] // row, size // row
    groups = [min(array["part_rows"], rows - start) for start in range(0, rows, array["part_rows"])]
    delta = array["codec"] == "time-delta-zstd"
    count = len(groups) * (width + 1 if delta else 1)
    words, position, output = struct.unpack(f"<{count}I", chunk[: 4 * count]), 4 * count, b""
    parts = []
    for word in words:
        part = chunk[position : position + (word & 0x7FFFFFFF)]
        position += len(part)
        parts.append(zstandard.ZstdDecompressor().decompress(part) if word >> 31 else part)
    assert not any(chunk[position:])
    for group in groups:
        if not delta:
            assert len(parts[0]) == group * row
            output += parts.pop(0)
            continue
        numbers = group * row // width
        bits = [parts[0][place // 8] >> (7 - place % 8) & 1 for place in range(numbers)]
        planes = [iter(plane) for plane in parts[1 : width + 1]]
        parts = parts[width + 1 :]
        changes = [
            int.from_bytes(bytes(next(plane) for plane in planes), "big") if bit else 0
            for bit in bits
        ]
        # (rows, numbers of a row)
        table = np.array(changes, dtype=f"<u{width}").reshape(-1, group).T.copy()
        for place in range(1, group):
            if (first + place) % steps:
                table[place] += table[place - 1]
        first += group
        output += table.tobytes()
    return output
