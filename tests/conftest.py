"""Before the tests: a share of the cores, and no registry or tracker's folder of the user's."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import settings

from injected import injected, one_fault  # noqa: F401  fixtures

settings.register_profile("navrl", deadline=None)  # a busy machine is not a failure
settings.load_profile("navrl")

# Each of the processes that share the tests would use every core: on two cores test_ppo.py and
# test_sac.py side by side took 152 s with two threads of torch each, and 17 s with one. Torch reads
# this when it is imported, here and in what tests start.
SHARE = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) or 1
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", str(SHARE))


def pytest_sessionstart(session: pytest.Session) -> None:
    for name in (
        "NAVRL_REGISTRY",
        "TRACKIO_DIR",
    ):  # also of the processes that tests start; trackio reads its own on import
        os.environ[name] = tempfile.mkdtemp(prefix="navrl-tests-")
        atexit.register(shutil.rmtree, os.environ[name], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have torch use this process's share again: tests of benchmarks leave it with every core, and
    what follows is slower.

    Before the fixtures are made: those of a module would else compute with other threads than its
    tests, and round differently.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > SHARE:
        torch.set_num_threads(SHARE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders whose files take longest, so that no process is left alone with one at
    the end.
    """
    items.sort(key=lambda item: not {"training", "tracking"} & set(item.path.parts))
