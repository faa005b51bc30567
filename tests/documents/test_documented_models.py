"""Models that are uploaded, downloaded and kept, called as the user's documents call them; W&B is
offline.
"""

from __future__ import annotations

import pytest
import torch

from navrl import (
    create_navrl_model,
    download_model_from_wandb,
    save_and_upload_best_model,
    upload_model_to_wandb,
)
from navrl.config import load_config
from navrl.tracking.tracker import current_tracking


@pytest.fixture(autouse=True)
def closed(here):
    """Close the queue that the functions open by themselves: it is in the folder of the test."""
    yield
    if (tracking := current_tracking()) is not None:
        tracking.close()


def test_what_was_uploaded_is_downloaded_for_torch_load(network):
    state = network.state_dict()
    upload_model_to_wandb(model_state_dict=state, step=100, model_alias="best")
    path = download_model_from_wandb("username/project/model:best")
    assert torch.equal(torch.load(path, weights_only=True)["0.weight"], state["0.weight"])


def test_the_best_model_is_uploaded_and_the_tracker_updated(network):
    tracker = {"best_value": float("-inf"), "best_step": 0}
    metrics = {"mean_reward": 85.2, "success_rate": 0.95}
    better = save_and_upload_best_model(
        model_state_dict=network.state_dict(),
        step=200,
        eval_metrics=metrics,
        threshold_metric="mean_reward",
        best_value_tracker=tracker,
    )
    assert better is True
    assert tracker == {"best_value": 85.2, "best_step": 200}


def test_a_worse_model_is_not_uploaded(network):
    tracker = {"best_value": 85.2, "best_step": 200}
    state = network.state_dict()
    assert (
        save_and_upload_best_model(state, 300, {"mean_reward": 80.0}, "mean_reward", tracker)
        is False
    )
    assert tracker["best_step"] == 200


def test_a_model_saves_uploads_and_loads_itself():
    model = create_navrl_model(load_config([]), None, None, "cpu")
    weights = {name: value.clone() for name, value in model.network.state_dict().items()}
    model.save_checkpoint(
        filepath="checkpoint.pt", step=1000, upload_to_wandb=True, wandb_alias="best"
    )
    for load in (
        lambda: model.load_from_wandb("user/project/model:best"),
        lambda: model.load_checkpoint("checkpoint.pt"),
    ):
        with torch.no_grad():
            for parameter in model.network.parameters():
                parameter.zero_()
        load()
        assert all(
            torch.equal(value, weights[name]) for name, value in model.network.state_dict().items()
        )
