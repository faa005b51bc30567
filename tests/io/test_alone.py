"""navrl.io stands alone: torch, NumPy and three codecs are all that a foreign script needs."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import sys, json
for name in {blocked!r}:
    sys.modules[name] = None  # importing it fails
import torch
before = set(sys.modules)
from navrl import AsyncCheckpointSaver, load_checkpoint
with AsyncCheckpointSaver() as saver:
    saver.save_async({{"x": torch.ones(300_000)}}, {path!r})
assert load_checkpoint({path!r})["x"].sum() == 300_000
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}})))
"""
BLOCKED = (
    "numba",
    "hydra",
    "omegaconf",
    "rich",
    "matplotlib",
    "safetensors",
    "torchrl",
    "tensordict",
    "gymnasium",
)


def test_a_save_and_a_load_need_torch_numpy_and_three_codecs(tmp_path):
    program = PROGRAM.format(blocked=BLOCKED, path=str(tmp_path / "x.pt"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    foreign = (
        set(json.loads(done.stdout)) - set(sys.stdlib_module_names) - {"navrl", "torch", "numpy"}
    )
    assert {name for name in foreign if not name.startswith("_")} <= {"lz4", "zstandard", "xxhash"}
