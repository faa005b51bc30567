"""Records by strace what a program does to a folder, for `power_loss`: SQLite, or several
processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from power_loss import Disk, Recording, read_tree

STRACE = shutil.which("strace")
CALLS = (
    "openat,open,creat,write,writev,pwrite64,pwritev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,symlink,symlinkat,"
    "link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)
LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
UNFINISHED = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>")


def record_with_strace(command: Sequence[str], root: Path, ignored: str = "-shm") -> Recording:
    """Run a program to its end and return what it did below a folder.

    Args:
        command: the program and its arguments. One more is added: a file for its marks, each of
            which is one write of JSON.
        root: the folder.
        ignored: the end of the names of files that do not matter after a crash: by default those of
            SQLite's shared memory.
    """
    root = Path(root).absolute()
    marks, trace = root.with_name(f"{root.name}.marks"), root.with_name(f"{root.name}.trace")
    recording = Recording(root, read_tree(root))
    options = [
        "-f",
        "-qq",
        "-y",
        "-xx",
        "-s",
        str(1 << 26),
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
        "-o",
        str(trace),
    ]
    subprocess.run([str(STRACE), *options, *command, str(marks)], check=True)
    reader = _TraceReader(recording, str(marks), ignored)
    with open(trace) as lines:
        for line in lines:
            reader.read(line)
    trace.unlink()
    recording.check_complete(ignored)
    return recording


class _TraceReader:
    """Turns the lines of strace into operations; what failed, or happened elsewhere, is left out."""

    def __init__(self, recording: Recording, marks: str, ignored: str) -> None:
        self._recording = recording
        self._marks, self._ignored = marks, ignored
        self._disk = Disk(recording.root, recording.before)
        self._begun: dict[
            str, str
        ] = {}  # calls that another thread interrupted in the log, by thread

    def read(self, line: str) -> None:
        if begun := UNFINISHED.match(line):
            self._begun[begun[1]] = begun[2]
            return
        if resumed := RESUMED.match(line):
            line = f"{resumed[1]} {self._begun.pop(resumed[1], '')}{resumed[2]}"
        call = LINE.match(line)
        if call is not None and int(call[4]) >= 0:
            texts = [bytes.fromhex(text.replace("\\x", "")) for text in TEXT.findall(call[3])]
            places = [
                bytes.fromhex(text.replace("\\x", "")).decode()
                for text in DESCRIPTOR.findall(call[3])
            ]
            self._call(call[2], call[3], texts, places, int(call[4]))

    def _name(self, path: str) -> str | None:
        root = str(self._recording.root)
        if path == root:
            return ""
        inside = path.startswith(f"{root}/") and not path.endswith(self._ignored)
        return os.path.relpath(path, root) if inside else None

    def _note(self, *operation: Any) -> None:
        if None not in operation[1:2]:
            self._disk.apply(operation)
            self._recording.operations.append(operation)

    def _call(
        self, call: str, arguments: str, texts: list[bytes], places: list[str], result: int
    ) -> None:
        if call in ("write", "writev", "pwrite64", "pwritev"):
            data = b"".join(texts)[:result]
            if places[0] == self._marks:
                self._note("durable", json.loads(data))
            elif (name := self._name(places[0])) is not None:
                offset = int(arguments.rsplit(",", 1)[1]) if call.startswith("p") else None
                self._note("write", name, offset, data)
        elif call in ("fsync", "fdatasync"):
            self._note("sync", self._name(places[0]))
        elif call == "ftruncate":
            self._note("resize", self._name(places[0]), int(arguments.rsplit(",", 1)[1]))
        else:
            self._named_call(call, arguments, [self._whole(text, places) for text in texts], texts)

    def _whole(self, text: bytes, places: list[str]) -> str:
        return os.path.join(places[0] if places else "/", text.decode())

    def _named_call(self, call: str, arguments: str, paths: list[str], texts: list[bytes]) -> None:
        names = [self._name(path) for path in paths]
        if call in ("open", "openat", "creat"):
            self._opened(names[0], arguments if call != "creat" else "O_WRONLY|O_CREAT|O_TRUNC")
        elif call.startswith("rename"):
            self._note("rename", *names)
        elif call.startswith("symlink"):
            if names[1] is not None:
                self._note("symlink", texts[0].decode(), names[1])
        elif call.startswith("link"):
            self._note("link", *names)
        else:
            self._note("mkdir" if call.startswith("mkdir") else "unlink", names[0])

    def _opened(self, name: str | None, flags: str) -> None:
        if name is None or not ("O_CREAT" in flags or self._disk.has(name)):
            return
        if not self._disk.has(name):
            self._note("create", name)
        elif "O_TRUNC" in flags:
            self._note("resize", name, 0)
        if "O_RDONLY" not in flags:
            self._note("opened", name, "O_APPEND" in flags)
