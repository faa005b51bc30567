"""Names of checkpoints and sizes of models."""

from __future__ import annotations

import io

import pytest
import torch

from navrl import format_checkpoint_name, get_model_size, print_model_info
from navrl.errors import ConfigError


def test_names_sort_like_their_steps():
    names = [format_checkpoint_name(step) for step in (2, 10, 1000, 123_456_789)]
    assert names == sorted(names)
    assert names[2] == "checkpoint_000001000.pt"


@pytest.mark.parametrize(("step", "prefix"), [(-1, "checkpoint"), (1, "../x"), (1, ".x")])
def test_a_name_that_leaves_the_folder_is_refused(step, prefix):
    with pytest.raises(ConfigError):
        format_checkpoint_name(step, prefix)


def test_shared_parameters_count_once():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    )
    model[1].weight = model[0].weight
    assert get_model_size(model)["bytes"] == get_model_size(model)["parameters"] * 4 == 64


def test_the_line_on_a_model_tells_parameters_and_size():
    model = torch.nn.Linear(999, 1)
    model.bias.requires_grad_(False)
    out = io.StringIO()
    print_model_info(model, "actor", file=out)
    assert out.getvalue() == "actor: 1,000 parameters, 999 trainable, 0.00 MB\n"
