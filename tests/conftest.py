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
from collections.abc import Generator
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
    """Begin with what takes longest, so that no worker is left alone with it at the end."""
    slow = Counter(_scope(item.nodeid) for item in items if item.get_closest_marker("slow"))
    order = {scope: (LONG.index(scope) if scope in LONG else len(LONG)) for scope in slow}

    def place(item: pytest.Item) -> tuple[int, int]:
        scope = _scope(item.nodeid)
        return order.get(scope, len(LONG)), -slow[scope]

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for garbage again once the tests are collected, in xdist's controller too."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# What runs in one process: its tests share servers, trained runs and exported policies, which take
# seconds to make. The other files of tests/training share nothing.
TRAINED = "tests that share a warm server and a trained run"
TOGETHER = {f"tests/{folder}/": f"tests/{folder}" for folder in ("deploy", "documents", "tracking")}
for _name in (
    "failing_disk",
    "hangup",
    "machines",
    "metric_names",
    "resume",
    "source",
    "terminal_size",
):
    TOGETHER[f"tests/training/test_{_name}.py"] = TRAINED
# What takes longest, longest first; the rest is in order of its number of slow tests. Those of
# tests/tracking mostly wait, beside others that compute.
LONG = (
    TRAINED,
    "tests/tracking",
    "tests/deploy",
    "tests/training/test_elastic.py",
    "tests/rl/test_fused.py",
    "tests/training/test_compile_kernels.py",
    "tests/sim/test_new_reward_term.py",
    "tests/test_cli.py",
    "tests/test_robot_command.py",
    "tests/io/test_replay_docs.py",
    "tests/sweep/test_sweep.py",
    "tests/test_training_benchmark.py",
    "tests/test_evaluation_benchmarks.py",
    "tests/training/test_launcher.py",
    "tests/training/test_ray.py",
    "tests/io/test_crash.py",
    "tests/registry/test_killed.py",
)


def _scope(nodeid: str) -> str:
    """Return what runs in one process: a file, or what `TOGETHER` puts together."""
    path = nodeid.split("::")[0]
    return next((scope for start, scope in TOGETHER.items() if path.startswith(start)), path)


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


@pytest.fixture(scope="module")
def one_torch_thread() -> Generator[None]:
    """Limit torch to one thread: for tests of tiny networks, where more only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
