"""What a disk may hold after a power loss: record file operations, and replay every prefix of them.

The model is that of POSIX, which promises less than most file systems keep:

- What was written to a file and not flushed since (`fsync` of the file) is there in part: any of
  its blocks of 4 KiB, each whole, cut at a sector, as zeros, or not at all.
- A name that was created, renamed or removed and not flushed since (`fsync` of the folder) is there
  or not, whatever became of the changes before and after it. A rename within a folder is atomic.
- What was flushed stays.

`power_loss_shim.record` patches the functions of `os`, and so sees what Python code does with them,
in every thread of this process; `power_loss_trace.record_with_strace` sees what any program does,
such as SQLite. Both check at the end that replaying everything gives what is really there, so that
no operation goes unnoticed.

The program marks what it takes for durable. `Recording.crashes` then gives every distinct state of
the disk with the last mark before it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, SECTOR = 4096, 512
Keep = Callable[[bytes], bytes | None]  # what becomes of a block that was not flushed


@dataclass(eq=False)
class File:
    """A file: what it holds for those who read it now, what is flushed, and what is not."""

    now: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: a new size
    position: int = 0

    def write(self, offset: int, data: bytes) -> None:
        _put(self.now, offset, data)
        self.pending.append((offset, data))

    def resize(self, size: int) -> None:
        _resize(self.now, size)
        self.pending.append((size, None))

    def flush(self) -> None:
        self.flushed, self.pending = bytes(self.now), []

    def after(self, keep: Keep) -> bytes:
        """Return what is left, if `keep` says what becomes of each block that is not flushed."""
        content = bytearray(self.flushed)
        for offset, data in self.pending:
            if data is None:
                _resize(content, offset)
                continue
            for start, block in _blocks(offset, data):
                kept = keep(block)
                if kept is not None:
                    _put(content, start, kept)
        return bytes(content)


@dataclass(eq=False)
class Folder:
    """A folder: its names as they are seen now, those that are flushed, and unflushed changes."""

    now: dict[str, Any] = field(default_factory=dict)
    flushed: dict[str, Any] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)  # each atomic; None removes a name

    def change(self, names: dict[str, Any]) -> None:
        _rename(self.now, names)
        self.pending.append(names)

    def flush(self) -> None:
        self.flushed, self.pending = dict(self.now), []


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _blocks(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start < len(data):
        size = BLOCK - (offset + start) % BLOCK
        yield offset + start, data[start : start + size]
        start += size


def _rename(names: dict[str, Any], change: dict[str, Any]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """Files and folders below a root, to which recorded operations are applied one after the other."""

    def __init__(self, root: Path, before: dict[str, Any]) -> None:
        self.root = Path(root)
        self.top = Folder()
        self.mark: Any = None
        for name, content in sorted(before.items()):
            folder, last = self._place(name)
            folder.now[last] = _flushed_node(content)
            folder.flush()

    def _node(self, name: str) -> Any:
        node: Any = self.top
        for part in Path(name).parts:
            node = node.now[part]
        return node

    def _place(self, name: str) -> tuple[Folder, str]:
        *folders, last = Path(name).parts
        return self._node("/".join(folders)), last

    def _target(self, name: str) -> Any:
        """Return the node that a path leads to, through a link in the same folder too."""
        node = self._node(name)
        return (
            self._target(str(Path(name).parent / node.target)) if isinstance(node, Link) else node
        )

    def has(self, name: str) -> bool:
        try:
            self._node(name)
        except KeyError:
            return False
        return True

    def apply(self, operation: tuple[Any, ...]) -> None:
        """Do what was recorded: the name of a method and its arguments."""
        getattr(self, operation[0])(*operation[1:])

    def create(self, name: str) -> None:
        folder, last = self._place(name)
        folder.change({last: File()})

    def write(self, name: str, offset: int | None, data: bytes) -> None:
        """Write at an offset; None goes on where the last such write ended."""
        file = self._target(name)
        if offset is None:
            offset = file.position
            file.position += len(data)
        file.write(offset, data)

    def opened(self, name: str, append: bool) -> None:
        """Let the next write without an offset begin at the beginning, or at the end."""
        file = self._target(name)
        if isinstance(file, File):
            file.position = len(file.now) if append else 0

    def resize(self, name: str, size: int) -> None:
        self._target(name).resize(size)

    def sync(self, name: str) -> None:
        self._target(name).flush()

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        (one, last), (other, name) = self._place(source), self._place(target)
        if one is other:
            one.change({last: None, name: node})
        else:
            other.change({name: node})
            one.change({last: None})

    def link(self, source: str, target: str) -> None:
        folder, last = self._place(target)
        folder.change({last: self._node(source)})

    def symlink(self, target: str, name: str) -> None:
        folder, last = self._place(name)
        folder.change({last: Link(target)})

    def mkdir(self, name: str) -> None:
        folder, last = self._place(name)
        folder.change({last: Folder()})

    def unlink(self, name: str) -> None:
        folder, last = self._place(name)
        folder.change({last: None})

    def durable(self, value: Any) -> None:
        self.mark = value

    def tree(self, names: Callable[[int], bool], keep: Keep) -> dict[str, Any]:
        """Return what a crash leaves; `names` says of each pending change of a name whether it
        stays.
        """
        number = iter(range(10**9))
        kept: dict[int, dict[str, Any]] = {}
        for folder in self._folders():
            found = dict(folder.flushed)
            for change in folder.pending:
                if names(next(number)):
                    _rename(found, change)
            kept[id(folder)] = found
        return dict(_flat(self.top, "", kept, keep))

    def now(self) -> dict[str, Any]:
        """Return what is seen without a crash."""
        return self.tree(lambda number: True, lambda block: block)

    def pending_names(self) -> int:
        return sum(len(folder.pending) for folder in self._folders())

    def _folders(self) -> list[Folder]:
        """Return every folder that a crash may leave, in an order that does not depend on it."""
        found, left = [], [self.top]
        while left:
            folder = left.pop()
            if folder in found:
                continue
            found.append(folder)
            nodes = [
                *folder.flushed.values(),
                *(node for change in folder.pending for node in change.values()),
            ]
            left += [node for node in nodes if isinstance(node, Folder)]
        return found


def _flushed_node(content: Any) -> Any:
    if content is None:
        return Folder()
    return content if isinstance(content, Link) else File(bytearray(content), bytes(content))


def _flat(
    folder: Folder, place: str, kept: dict[int, dict[str, Any]], keep: Keep
) -> Iterator[tuple[str, Any]]:
    for name, node in sorted(kept[id(folder)].items()):
        if isinstance(node, Folder):
            yield place + name, None
            yield from _flat(node, f"{place}{name}/", kept, keep)
        else:
            yield place + name, node if isinstance(node, Link) else node.after(keep)


def read_tree(root: Path) -> dict[str, Any]:
    """Return what is below a folder: bytes of files, links, and None for folders, by path."""
    found: dict[str, Any] = {}
    for path in sorted(Path(root).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = Link(os.readlink(path))
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def write_tree(tree: dict[str, Any], root: Path) -> Path:
    """Make a folder that holds a tree, and return it."""
    root.mkdir(parents=True)
    for name, content in sorted(tree.items()):
        if content is None:
            (root / name).mkdir()
        elif isinstance(content, Link):
            (root / name).symlink_to(content.target)
        else:
            (root / name).write_bytes(content)
    return root


# What may be left.


@dataclass
class Recording:
    """The operations of a program below a folder, and what was there before."""

    root: Path
    before: dict[str, Any]
    operations: list[tuple[Any, ...]] = field(default_factory=list)

    def mark(self, value: Any) -> None:
        """Note that the program takes everything up to here for durable."""
        self.operations.append(("durable", value))

    def crashes(self, *, randomly: int = 0, seed: int = 0) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the last mark and what is left, for a power loss after every operation.

        Args:
            randomly: so many further states a crash, of random blocks and names.
            seed: of those.
        """
        generator = random.Random(seed)
        disk, seen = Disk(self.root, self.before), set()
        for operation in [None, *self.operations]:
            if operation is not None:
                disk.apply(operation)
            for tree in _left(disk, randomly, generator):
                state = (disk.mark, *tree.items())
                if state not in seen:
                    seen.add(state)
                    yield disk.mark, tree

    def check_complete(self, ignored: str = "\0") -> None:
        """Raise unless the operations lead to what is really there; `ignored` ends names to skip."""
        disk = Disk(self.root, self.before)
        for operation in self.operations:
            disk.apply(operation)
        found, expected = disk.now(), read_tree(self.root)
        names = [name for name in {*found, *expected} if not name.endswith(ignored)]
        different = [name for name in names if found.get(name, "") != expected.get(name, "")]
        if different:
            raise AssertionError(f"not recorded: what changed {', '.join(sorted(different))}")


def _left(disk: Disk, randomly: int, generator: random.Random) -> Iterator[dict[str, Any]]:
    """Yield what may be left: the plain cases, each name alone, each name missing, random ones."""
    count = disk.pending_names()
    contents: list[Keep] = [
        lambda block: block,
        lambda block: None,
        lambda block: bytes(len(block)),
    ]
    for keep in contents:
        yield disk.tree(lambda number: True, keep)
        yield disk.tree(lambda number: False, keep)
    for one in range(count) if count > 1 else ():
        for keep in contents[:2]:
            yield disk.tree(lambda number, one=one: number == one, keep)
            yield disk.tree(lambda number, one=one: number != one, keep)
    for _ in range(randomly):
        yield disk.tree(
            lambda number: generator.random() < 0.5, lambda block: _torn(block, generator)
        )


def _torn(block: bytes, generator: random.Random) -> bytes | None:
    sectors = generator.randrange(1 + len(block) // SECTOR)
    return generator.choice((block, None, bytes(len(block)), block[: sectors * SECTOR]))
