"""docs/format.md is true: a reader written from it reads every file, and the golden file never
changes.
"""

from __future__ import annotations

import re
from pathlib import Path

import independent_reader
import numpy as np
import pytest
import torch
from io_states import TinyTraining, bits, random_tensor
from navrl_golden import golden_rollout, write_golden

from navrl.io import load_checkpoint, read_index, save_checkpoint
from navrl.io.container.codecs import CODECS
from navrl.io.container.tensor_types import TORCH_DTYPES
from navrl.io.rollouts.storage import RolloutStorage

GOLDEN = Path(__file__).with_name("golden.navrl")
PAGE = Path(__file__).parents[2] / "docs" / "format.md"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_reader_written_from_the_page_reads_every_type(tmp_path, codec):
    state = {name: random_tensor(name, (3000, 3)) for name in TORCH_DTYPES}
    state.update(
        weights=torch.randn(700_000),
        zeros=torch.zeros(700_000),
        empty=torch.empty(0, 3),
        one=torch.tensor(1),
    )
    save_checkpoint(state, tmp_path / "x.pt", codec=codec)
    document, arrays = independent_reader.read(tmp_path / "x.pt")
    assert document["kind"] == "checkpoint"
    for name, tensor in state.items():
        assert arrays[name] == bits(tensor), name


@pytest.mark.parametrize(
    "shape", [(7, 5, 3), (40, 13, 30), (2, 300, 40), (1, 1, 5000), (3, 4, 9000)]
)
@pytest.mark.parametrize("element", ["float32", "uint8", "complex64"])
def test_a_reader_written_from_the_page_reads_rollouts(tmp_path, shape, element):
    noise = random_tensor(element, shape)
    still = noise[:, :1].expand(shape).clone()
    still[-1, -1] = noise[0, 0]
    with RolloutStorage(tmp_path) as storage:
        path = storage.save({"noise": noise, "still": still, "last": noise[0]}, 3, wait=True)
    document, arrays = independent_reader.read(path)
    assert document["rollout"] == {
        "iteration": 3,
        "envs": shape[0],
        "steps": shape[1],
        "time_first": False,
        "error_bounds": {},
        "tensordicts": None,
        "rows": [0, 1],
    }
    for name, tensor in (("noise", noise), ("still", still), ("last", noise[0])):
        assert arrays[name] == bits(tensor), name


def test_the_golden_rollout_is_read_for_ever():
    # what zstd makes of it may change with its version, not what it means
    golden = GOLDEN.with_name("rollout_000000000.navrl")
    _, arrays = independent_reader.read(golden)
    assert arrays["x"] == golden_rollout().tobytes()
    [entry] = read_index(golden).arrays
    assert (entry.codec, entry.part_rows) == ("time-delta-zstd", 12)
    storage = RolloutStorage(golden.parent)
    assert np.array_equal(storage.load(0)["x"], golden_rollout())
    assert np.array_equal(storage.load(0, envs=1, steps=slice(5, 9))["x"], golden_rollout()[1, 5:9])


def test_a_reader_written_from_the_page_reads_a_training(tmp_path):
    training = TinyTraining(200)
    training.step()
    save_checkpoint(training.state(), tmp_path / "x.pt")
    _, arrays = independent_reader.read(tmp_path / "x.pt")
    assert arrays["model/3.weight"] == training.model[3].weight.detach().numpy().tobytes()


def test_the_golden_file_is_written_byte_for_byte(tmp_path):
    write_golden(tmp_path / "golden.navrl")
    assert (tmp_path / "golden.navrl").read_bytes() == GOLDEN.read_bytes()


def test_the_golden_file_is_read():
    state = load_checkpoint(GOLDEN)
    assert state["x"].dtype == np.int16
    assert state["x"].tolist() == [1, -2, 3]
    assert read_index(GOLDEN).document["metadata"] == {"note": "golden"}


def test_the_golden_file_is_the_one_dumped_on_the_page():
    digits = "".join(re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} +)+)\|", PAGE.read_text(), re.M))
    assert bytes.fromhex(digits) == GOLDEN.read_bytes()
