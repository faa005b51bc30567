"""Compiles all kernels of a training before it starts, in a child process.

All processes of the training then load the same machine code from disk, instead of each compiling
it, and none of them keeps the compiler's memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from navrl.config import Config, as_yaml, from_dict
from navrl.environments.table import find_task
from navrl.kernel_cache import KernelMissingError, compile_alone, loading_only, storage

POLL = 0.5  # seconds between looks at what the child has compiled


def compile_kernels(config: Config, progress: Callable[[int], None] = lambda done: None) -> None:
    """Load all kernels of a training; if one is missing, compile them in a child process first.

    What the child fails to compile is compiled here.

    Args:
        config: of the training.
        progress: called now and then with the number of kernels compiled so far.
    """
    try:
        with loading_only():
            run_kernels(config)
    except KernelMissingError:
        _compile_in_child(config, progress)
        run_kernels(config)


def _compile_in_child(config: Config, progress: Callable[[int], None]) -> None:
    folder = storage()  # chosen here, so that the child writes to the same folder
    before = len([*folder.glob("*.nbc")])
    command = [sys.executable, "-m", "navrl.training.compile_kernels"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as child:
        settings: str | None = as_yaml(config)
        try:
            while child.poll() is None:
                progress(len([*folder.glob("*.nbc")]) - before)
                try:
                    child.communicate(settings, timeout=POLL)
                except subprocess.TimeoutExpired:
                    settings = None  # they are on their way
        except BaseException:
            child.kill()
            raise


def run_kernels(config: Config) -> None:
    """Run every kernel of a training once."""
    find_task(config).compile()


def main() -> None:
    """Compile the kernels for the settings on standard input, as YAML."""
    import yaml

    config = from_dict(yaml.safe_load(sys.stdin.read()))
    with compile_alone():
        run_kernels(config)


if __name__ == "__main__":
    main()
