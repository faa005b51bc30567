"""The file format: named arrays and a JSON document in one file, verified when it is read.

Index, writer, reader, atomic files, codecs, state trees, thread pool: what the rest of io shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from navrl.lazy import lazy_names

_PUBLIC = {
    "AtomicFile": "navrl.io.container.atomic_files",
    "CODECS": "navrl.io.container.codecs",
    "Container": "navrl.io.container.container_reader",
    "Index": "navrl.io.container.index",
    "Written": "navrl.io.container.container_writer",
    "pack_state": "navrl.io.container.state_tree",
    "read_index": "navrl.io.container.index",
    "unpack_state": "navrl.io.container.tree_reader",
    "write_container": "navrl.io.container.container_writer",
}

if TYPE_CHECKING:
    from navrl.io.container.atomic_files import AtomicFile as AtomicFile
    from navrl.io.container.codecs import CODECS as CODECS
    from navrl.io.container.container_reader import Container as Container
    from navrl.io.container.container_writer import Written as Written
    from navrl.io.container.container_writer import write_container as write_container
    from navrl.io.container.index import Index as Index
    from navrl.io.container.index import read_index as read_index
    from navrl.io.container.state_tree import pack_state as pack_state
    from navrl.io.container.tree_reader import unpack_state as unpack_state

__all__ = [*_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)
