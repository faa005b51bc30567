"""Loads a model file of navrl for MLflow:
`mlflow.pyfunc.load_model("models:/navigation@best").predict(observations)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navrl.errors import ActionError
from navrl.models import load_model
from navrl.rl.networks.navigation import INPUTS
from navrl.rl.policy import NetworkPilot

__all__ = ["NavigationModel"]


class NavigationModel:
    """A policy as MLflow calls it."""

    def __init__(self, path: Path) -> None:
        network, self.task, self.card = load_model(path)
        limit = self.task.env.action_limit
        climb = 0.0 if self.task.env.planar else self.task.drone.vertical_speed or limit
        self._pilot = NetworkPilot(network, limit, vertical_limit=climb)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> np.ndarray:
        """Return velocity commands in the goal frame, (N, 3), in m/s, for N observations.

        `model_input` has `lidar`, `dynamic_obstacle` and `state`: arrays by name, or columns of a
        DataFrame whose cells are the parts of one observation.

        Raises:
            ActionError: a part is missing, or its shape is not the one that the policy was trained
                on.
        """
        missing = [name for name in INPUTS if name not in model_input]
        if missing:
            raise ActionError(
                f"the input has no {missing[0]!r}; expected {', '.join(INPUTS)}, each with a row "
                "for a drone"
            )
        arrays = (np.asarray(list(model_input[name]), dtype=np.float32) for name in INPUTS)
        observation = {
            name: torch.from_numpy(array) for name, array in zip(INPUTS, arrays, strict=True)
        }
        with torch.no_grad():
            return self._pilot(observation).numpy()


def _load_pyfunc(path: str) -> NavigationModel:
    """Return the model in a file; MLflow calls this by its name."""
    return NavigationModel(Path(path))
