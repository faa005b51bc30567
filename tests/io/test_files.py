"""Files under construction: every byte arrives, in order, in portions that the system takes well."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from navrl.io.container import atomic_files as files
from navrl.io.container.atomic_files import AtomicFile


@given(
    sizes=st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=4),
    takes=st.lists(st.integers(1, 16), min_size=1, max_size=5),
)
def test_whatever_is_written_arrives_in_order_and_in_portions(tmp_path_factory, sizes, takes):
    path = tmp_path_factory.mktemp("files") / "x"
    numbers = iter(range(10**6))
    writes = [
        [np.array([next(numbers) % 251 for _ in range(size)], np.uint8) for size in some]
        for some in sizes
    ]
    given_at_once, writev = [], os.writev

    def take_some(descriptor, views):
        """Take less than all, as a system under load or a full disk may."""
        given_at_once.append((len(views), sum(view.nbytes for view in views)))
        return writev(descriptor, [b"".join(views)[: takes[len(given_at_once) % len(takes)]]])

    with (
        mock.patch.object(files, "_BYTES_AT_ONCE", 16),
        mock.patch.object(files, "_BUFFERS_AT_ONCE", 3),
        mock.patch.object(files.os, "writev", take_some),
        AtomicFile(path) as file,
    ):
        for buffers in writes:
            file.write(buffers)
        file.commit()
    expected = b"".join(buffer.tobytes() for buffers in writes for buffer in buffers)
    assert path.read_bytes() == expected
    assert file.size == len(expected)
    assert all(count <= 3 and size <= 16 for count, size in given_at_once)
