"""The node of a rehearsal, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from navrl.errors import TransportError

READY = "ready"  # the line that a node prints when it receives


class NodeProcess:
    """Starts `navrl node` armed, in simulated time, and ends it at the end of the block."""

    def __init__(self, folder: str | Path, options: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        command = [sys.executable, "-m", "navrl.cli", "node", "--policy", str(folder)]
        flying = ["--sim-time", "--no-dry-run", "--arm"]
        self.process = subprocess.Popen(
            [*command, *flying, *options], stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def wait_until_ready(self) -> str:
        """Return what the node says when it is ready: the address it receives at."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(READY):
                return line.removeprefix(READY).strip()
        self.check()
        raise TransportError("the node ended before it was ready")

    def check(self) -> None:
        """Raise a TransportError if the process has ended."""
        code = self.process.poll()
        if code is not None:
            self._errors.seek(0)
            told = self._errors.read().decode(errors="replace").strip()[-400:]
            raise TransportError(
                f"the node has ended with exit code {code}{': ' if told else ''}{told}"
            )

    def close(self) -> None:
        """End the node."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    def __enter__(self) -> NodeProcess:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the node."""
        self.close()
