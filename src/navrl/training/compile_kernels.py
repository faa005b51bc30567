"""Compiles all kernels of a training before it starts, in a child process.

All processes of the training then load the same machine code from disk, instead of each compiling
it, and none of them keeps the compiler's memory.
"""

from __future__ import annotations

import subprocess
import sys

from navrl.config import Config, as_yaml, from_dict
from navrl.environments.table import find_task
from navrl.kernel_cache import KernelMissingError, compile_alone, loading_only, storage


def compile_kernels(config: Config) -> None:
    """Load all kernels of a training; if one is missing, compile them in a child process first.

    What the child fails to compile is compiled here.
    """
    try:
        with loading_only():
            run_kernels(config)
    except KernelMissingError:
        storage()  # chosen here, so that the child writes to the same folder
        subprocess.run(
            [sys.executable, "-m", "navrl.training.compile_kernels"],
            input=as_yaml(config),
            text=True,
            check=False,
        )
        run_kernels(config)


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
