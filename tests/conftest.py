"""Set up every test process: its share of the cores, and a registry and a tracker folder of its
own.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings

from injected import injected, memory_folder, one_fault  # noqa: F401  fixtures

# Where Python is told to write no bytecode, every test process would rewrite the assertions of all
# tests, and every one of the hundreds of processes that tests start compile the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Collecting makes objects by the million, and nearly all of them stay: Python need not look for
# garbage among them, now (3 of 18 s) or whenever a test makes many objects.
gc.disable()

settings.register_profile("navrl", deadline=None)  # a busy machine is not a failure
settings.load_profile("navrl")

# Each of the processes that share the tests would use every core: on two cores test_ppo.py and
# test_sac.py side by side took 152 s with two threads of torch each, and 17 s with one. Torch reads
# this when it is imported, here and in what tests start.
SHARE = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) or 1
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", str(SHARE))
# Threads that wait for each other sleep: spinning takes the core from the one that is waited for,
# and doubles the processor time of a short training.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_sessionstart(session: pytest.Session) -> None:
    # A shell starts background jobs with SIGINT ignored, nohup with SIGHUP; what tests start would
    # inherit that and sit out the signals that it is sent.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
    # inherited by the processes that tests start; trackio reads its variable on import
    for name in ("NAVRL_REGISTRY", "TRACKIO_DIR"):
        os.environ[name] = tempfile.mkdtemp(prefix="navrl-tests-")
        atexit.register(shutil.rmtree, os.environ[name], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reset torch to this process's share of threads, which benchmarks change.

    Before fixtures are set up: those of a module would otherwise compute with another number of
    threads than its tests, and round differently.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > SHARE:
        torch.set_num_threads(SHARE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what holds most slow tests, so that no worker is left alone with it at the end."""
    slow = Counter(_scope(item.nodeid) for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[_scope(item.nodeid)])


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


# Their tests share servers, trained runs and exported policies, which take seconds to make.
TOGETHER = ("tests/deploy", "tests/documents", "tests/tracking", "tests/training")


def _scope(nodeid: str) -> str:
    """Return what runs in one process: a file, or a folder of `TOGETHER`."""
    path = nodeid.split("::")[0]
    return next((folder for folder in TOGETHER if path.startswith(f"{folder}/")), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture
def run_benchmark(pytestconfig, monkeypatch, capsys):
    """A function that runs the smoke mode of a benchmark here, and returns what it printed."""
    from navrl.cli import main

    def run(name: str, *options: str) -> str:
        monkeypatch.chdir(pytestconfig.rootpath)
        code = main(["bench", name, "--smoke", *options])
        told = capsys.readouterr()
        assert code == 0, told.out + told.err
        return told.out

    return run
