"""docs/format.md is true: a reader written from it reads every file, and the golden file never changes."""

from __future__ import annotations

import re
from pathlib import Path

import independent_reader
import numpy as np
import pytest
import torch
from io_states import TinyTraining, random_tensor
from navrl_golden import write_golden

from navrl.io import load_checkpoint, read_index, save_checkpoint
from navrl.io.codecs import CODECS
from navrl.io.element_types import TORCH_DTYPES

GOLDEN = Path(__file__).with_name("golden.navrl")
PAGE = Path(__file__).parents[2] / "docs" / "format.md"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_reader_written_from_the_page_reads_every_type(tmp_path, codec):
    state = {name: random_tensor(name, (3000, 3)) for name in TORCH_DTYPES}
    state.update(weights=torch.randn(700_000), zeros=torch.zeros(700_000), empty=torch.empty(0, 3), one=torch.tensor(1))
    save_checkpoint(state, tmp_path / "x.pt", codec=codec)
    document, arrays = independent_reader.read(tmp_path / "x.pt")
    assert document["kind"] == "checkpoint"
    for name, tensor in state.items():
        assert arrays[name] == tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), name


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
