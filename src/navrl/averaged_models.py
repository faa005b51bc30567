"""One policy out of several: the mean of their weights.

Policies that were fine-tuned from the same weights lie in one valley of the loss. Their mean is as
fast as one of them and can be better than each ("model soups", Wortsman et al., 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navrl.errors import ConfigError
from navrl.models import KIND, check_weights, load_model, model_contents, network_settings
from navrl.sim.robots import MEASURING, differences, robot_of
from navrl.sim.settings import NavigationSettings
from navrl.wording import counted

__all__ = ["average_models"]


def average_models(files: Sequence[Path]) -> dict[str, Any]:
    """Return the content of a model file whose weights are the mean of those of several.

    Settings, task, iteration and seed are those of the first file; it has no evaluation. Average
    models that have a training in common, such as two fine-tuned from the same one; the mean of
    unrelated ones does not fly.

    Args:
        files: two models or more of the navigation task, or checkpoints of trainings, with the
            same network and robot.

    Raises:
        ConfigError: a file is no model, or does not fit the first; the message says why.
        ContainerError: a file is damaged.

    >>> import navrl
    >>> from navrl.averaged_models import average_models
    >>> one, other = navrl.create_navrl_model(), navrl.create_navrl_model()
    >>> files = [one.save_checkpoint("one.pt", 1), other.save_checkpoint("other.pt", 1)]
    >>> average_models(files)["card"]["average_of"]
    ['one.pt', 'other.pt']
    """
    if len(files) < 2:
        raise ConfigError(f"{counted(len(files), 'model')} to average; expected two or more")
    states = [_model(Path(path)) for path in files]
    for path, state in zip(files[1:], states[1:], strict=True):
        _check_alike(states[0], state, f"{path} does not fit {files[0]}")
    weights = [state["parameters"] for state in states]
    return states[0] | {
        "parameters": {name: _mean([each[name] for each in weights]) for name in weights[0]},
        "card": {key: value for key, value in states[0]["card"].items() if key != "evaluation"}
        | {
            "average_of": [Path(path).name for path in files],
            "frames": sum(int(state["card"].get("frames", 0)) for state in states),
        },
    }


def _model(path: Path) -> dict[str, Any]:
    """Return the content of a model file, checked."""
    load_model(path)
    state = model_contents(path)
    if not isinstance(state, dict) or state.get("kind") != KIND:
        raise ConfigError(
            f"{path} is not a model of navrl; expected a file such as RUN/model.pt, or a checkpoint"
        )
    return state


def _check_alike(first: dict[str, Any], other: dict[str, Any], subject: str) -> None:
    """Refuse a model with another network or robot than the first."""
    network, another = (vars(network_settings(state["network"])) for state in (first, other))
    for name, value in network.items():
        if another[name] != value:
            raise ConfigError(f"{subject}: network.{name} is {another[name]!r}; expected {value!r}")
    check_weights(first["parameters"], other["parameters"], subject)
    own, theirs = (
        robot_of(NavigationSettings.from_mapping(state["task"])) for state in (first, other)
    )
    differ = [each for each in differences(own, theirs) if not each.startswith(tuple(MEASURING))]
    if differ:
        raise ConfigError(
            f"{subject}: it was trained for another robot, {'; '.join(differ)}; expected the same"
        )


def _mean(tensors: list[Tensor]) -> Tensor:
    """Return the mean of weights in their own type; what is no weight is that of the first."""
    first = tensors[0]
    if not first.is_floating_point():
        return first
    return torch.stack(tensors).double().mean(0).to(first.dtype)
