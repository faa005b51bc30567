"""Compiles everything that a training runs before it starts, in a process of its own.

Numba optimises a function again when it links it into its callers. The process that compiles finds
both forms and runs one of them, a process that loads the result from disk runs the other, and their
last bits may differ. So that a run that was killed goes on as it began, none of its processes
compiles: a child does, once, and all of them load what it has left.
"""

from __future__ import annotations

import subprocess
import sys

from navrl.config import Config, as_yaml, from_dict
from navrl.environments.table import find_task
from navrl.kernel_cache import KernelMissingError, compile_alone, loading_only, storage


def compile_kernels(config: Config) -> None:
    """Load everything compiled that a training runs, and have a child process compile it first if
    something is missing.

    A child that fails is no reason to stop: the rest is compiled here.
    """
    try:
        with loading_only():
            run_kernels(config)
    except KernelMissingError:
        storage()  # chosen here, so that the child writes to the same place
        subprocess.run(
            [sys.executable, "-m", "navrl.train.compile_kernels"],
            input=as_yaml(config),
            text=True,
            check=False,
        )
        run_kernels(config)


def run_kernels(config: Config) -> None:
    """Run every kernel of a training once."""
    find_task(config).compile()


def main() -> None:
    """Compile for the settings that come as YAML."""
    import yaml

    config = from_dict(yaml.safe_load(sys.stdin.read()))
    with compile_alone():
        run_kernels(config)


if __name__ == "__main__":
    main()
