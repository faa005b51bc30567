"""The simulator's step is compiled in a second process, once, and only where that helps."""

from __future__ import annotations

import pytest
import torch

from navrl import NavigationEnv, NavigationSettings, kernel_cache
from navrl.evaluation import simulator_compiler
from navrl.sim.kernels import step_kernel


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A cache without kernels, and a compiler that only says that it was there."""
    folder = tmp_path / kernel_cache.key()
    folder.mkdir()
    monkeypatch.setattr(kernel_cache, "_roots", lambda: [tmp_path])
    monkeypatch.setattr(kernel_cache, "storage", lambda: folder)
    program = f"open({str(tmp_path / 'compiled')!r}, 'a').write('x')"
    monkeypatch.setattr(simulator_compiler, "PROGRAM", program)
    monkeypatch.setattr(simulator_compiler, "usable_cores", lambda: 2)
    return folder


def test_one_process_is_started_however_often_it_is_asked_for(empty_cache):
    assert simulator_compiler.start()
    assert simulator_compiler.start()
    simulator_compiler.wait()
    assert (empty_cache.parent / "compiled").read_text() == "x"


def test_nothing_is_started_once_the_step_is_on_disk(empty_cache):
    (empty_cache / "sim.kernels.step_kernel.reset_where-0123.nbc").touch()
    assert not simulator_compiler.start()


def test_nothing_is_started_on_one_core_or_where_compiling_is_forbidden(empty_cache, monkeypatch):
    with kernel_cache.loading_only():
        assert not simulator_compiler.start()
    monkeypatch.setattr(simulator_compiler, "usable_cores", lambda: 1)
    assert not simulator_compiler.start()


def test_a_compiler_that_fails_is_no_error(empty_cache, monkeypatch):
    monkeypatch.setattr(simulator_compiler, "PROGRAM", "raise SystemExit(1)")
    assert simulator_compiler.start()
    simulator_compiler.wait()


def test_what_is_compiled_is_on_disk_under_the_name_that_is_looked_for():
    simulator_compiler.compile_step()
    assert simulator_compiler.is_on_disk()


def test_a_flight_calls_what_was_compiled_and_nothing_more():
    kernels = [
        getattr(step_kernel, name)
        for name in (
            "begin_worlds",
            "first_bad_action",
            "reset_where",
            "step_parallel",
            "step_serial",
        )
    ]
    simulator_compiler.compile_step()
    compiled = [kernel.signatures for kernel in kernels]
    env = NavigationEnv(NavigationSettings.of(env__num_envs=40, env__num_worlds=1))
    env.reset()
    env.step(torch.zeros(40, 3))
    assert [kernel.signatures for kernel in kernels] == compiled
