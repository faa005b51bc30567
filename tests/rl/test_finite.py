"""Weights that are not finite are refused by name."""

from __future__ import annotations

import pytest
import torch

from navrl.errors import ConfigError
from navrl.rl.finite import check_finite


def test_finite_weights_pass():
    check_finite({"a.weight": torch.ones(3), "steps": torch.tensor(5)}, "model.nav")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_weight_is_named_with_the_number_of_bad_values(bad):
    weight = torch.zeros(2, 3)
    weight[1, 2] = bad
    with pytest.raises(ConfigError) as error:
        check_finite({"good": torch.ones(3), "conv.weight": weight}, "model.nav")
    assert str(error.value) == (
        "model.nav: parameter 'conv.weight' holds NaN or infinite values (1 of 6); expected "
        "finite weights; "
        "use an older checkpoint or model"
    )


def test_the_first_three_of_many_bad_weights_are_named():
    with pytest.raises(
        ConfigError, match=r"'p0'.*; also 'p1' \(2 of 2\), 'p2' \(2 of 2\) and 2 more; expected"
    ) as error:
        check_finite(
            {f"p{number}": torch.full((2,), torch.nan) for number in range(5)}, "model.nav"
        )
    assert "p3" not in str(error.value)
