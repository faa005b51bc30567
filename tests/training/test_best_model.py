"""The best model of a resumed run is compared with scores of its own condition only."""

from __future__ import annotations

import pytest

from navrl.metrics_log import MetricsLog
from navrl.training.run_log import _comparable

BEST = {"iteration": 3.0, "success_100": 0.9}


@pytest.mark.parametrize(
    ("chosen_in", "expected"), [("crossing", BEST), ("350 static", None), (None, BEST)]
)
def test_a_best_model_that_was_chosen_in_another_condition_is_no_measure(
    tmp_path, chosen_in, expected
):
    metrics = tmp_path / "metrics.jsonl"
    with MetricsLog(metrics) as log:
        if chosen_in is not None:
            log.write("eval", 3, conditions={"static": {}, chosen_in: {}})
        log.write("eval", 6, conditions={"static": {}, "other": {}})
    assert _comparable(BEST, metrics, "crossing") == expected
