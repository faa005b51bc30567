"""The first training after an installation compiles, and ends with the same bits as those after it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

from navrl import kernel_cache
from navrl.config import load_config
from navrl.io.checkpoint.checkpoint_file import load_checkpoint
from navrl.training.compile_kernels import compile_kernels

SMALL = (
    "preset=smoke",
    "headless=true",
    "env.num_envs=32",
    "env.num_worlds=2",
    "env.num_obstacles=10",
    "max_frame_num=1024",
    "eval_interval=0",
    "flight.episodes=4",
    "flight.interim_episodes=4",
    "flight.worlds=1",
    "flight.recorded=0",
    "flight.animation=false",
    "processes=1",
)


@pytest.mark.slow
def test_a_training_that_has_to_compile_first_ends_as_one_that_has_not(tmp_path):
    # It compiles the forward pass and what begins episodes. The step is compiled and loaded by the
    # test of a new reward term; the others take long, or no sum in them can be rounded in two ways.
    compile_kernels(load_config(SMALL))
    kernels = tmp_path / "kernels" / "navrl-kernels" / kernel_cache.key()
    kernels.mkdir(parents=True)
    for path in kernel_cache.storage().glob("*.nbc"):
        if re.search("_step_chunk|[.]backward|pack-|[.]worlds[.]", path.name):
            shutil.copy(path, kernels)
    for name in ("first", "second"):
        command = [
            sys.executable,
            "-m",
            "navrl.cli",
            "train",
            *SMALL,
            f"run_folder={tmp_path / name}",
        ]
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
        )
    first, second = (
        load_checkpoint(tmp_path / name / "checkpoints" / "latest")["model_state_dict"]
        for name in ("first", "second")
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


START = """
import json, sys
started = []
sys.addaudithook(lambda event, arguments: started.append(event) if event == "subprocess.Popen" else None)
from numba.core import event
from navrl import kernel_cache
from navrl.config import load_config
from navrl.training.compile_kernels import compile_kernels
with event.install_recorder("numba:compile") as compiled:
    compile_kernels(load_config(sys.argv[1:]))
print(json.dumps({"compiled": len(compiled.buffer), "children": len(started), "package": str(kernel_cache.PACKAGE)}))
"""


@pytest.mark.slow
def test_a_read_only_package_starts_no_compiler_once_the_cache_of_the_user_has_the_kernels(
    tmp_path,
):
    compile_kernels(load_config(SMALL))
    package = tmp_path / "site" / "navrl"
    shutil.copytree(kernel_cache.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__pycache__").write_bytes(b"")  # nothing can be written there
    kernels = tmp_path / "cache" / "navrl" / "kernels" / kernel_cache.key()
    shutil.copytree(kernel_cache.storage(), kernels)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CACHE")
    }
    environment |= {"PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", START, *SMALL]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout) == {"compiled": 0, "children": 0, "package": str(package)}
