"""What messages carry: a batch of experience to the learner, weights to the workers. No pickles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navrl.errors import ContainerError
from navrl.io.rollouts.in_memory import compress_rollout, decompress_rollout
from navrl.observation import ObservationLayout
from navrl.rl.collect import Rollout
from navrl.training.distributed.messages import decode, encode

__all__ = ["pack_batch", "pack_value", "read_batch", "read_value"]


def pack_value(value: Any) -> bytes:
    """Return tensors, plain values, and dicts and lists of them as bytes."""
    return encode(value).numpy().tobytes()


def read_value(contents: bytes | memoryview) -> Any:
    """Return a value that `pack_value` made.

    Raises:
        ContainerError: the bytes are not those of a value.
    """
    return decode(torch.from_numpy(np.frombuffer(contents, np.uint8).copy()))


def pack_batch(batch: Rollout, layout: ObservationLayout, *, compress: bool) -> bytes:
    """Return a batch as bytes; values are left out, since the learner computes its own.

    Args:
        batch: of one worker.
        layout: of the observations, whose parts are compressed each in its own way.
        compress: False: the numbers as they are.
    """
    seen = layout.split(batch.rows)  # (T + 1, N, *shape) each
    arrays = {
        "observation": {name: part[:-1].contiguous() for name, part in seen.items()},
        "last_observation": {name: part[-1].contiguous() for name, part in seen.items()},
        "action": batch.action,
        "log_prob": batch.log_prob,
        "reward": batch.reward,
        "done": batch.done.bool(),
        "episodes": batch.episodes,
        "final_rows": batch.final_rows,
        "final_places": batch.final_places,
    }
    if batch.advice is not None:
        arrays["advice"] = batch.advice
    return compress_rollout(arrays, time_first=True) if compress else pack_value(arrays)


def read_batch(contents: bytes | memoryview, layout: ObservationLayout, *, compress: bool) -> Any:
    """Return a batch that `pack_batch` made, without values.

    Raises:
        ContainerError: the bytes are damaged, or are not a batch of this observation.
    """
    arrays = decompress_rollout(bytes(contents)) if compress else read_value(contents)
    try:
        return _rollout(arrays, layout)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ContainerError(
            f"a batch does not fit the observation of this training: {error}; expected the parts "
            f"{layout.shapes}"
        ) from error


def _rollout(arrays: Mapping[str, Any], layout: ObservationLayout) -> Rollout:
    reward: Tensor = arrays["reward"]
    steps, envs = reward.shape
    rows = torch.zeros(steps + 1, envs, layout.width)
    seen, last = arrays["observation"], arrays["last_observation"]
    flat = {name: part.reshape(steps * envs, -1) for name, part in seen.items()}
    layout.pack(flat, rows[:steps].view(steps * envs, layout.width))
    layout.pack(last, rows[steps])
    return Rollout(
        rows=rows,
        action=arrays["action"],
        log_prob=arrays["log_prob"],
        value=rows.new_zeros(steps + 1, envs),
        reward=reward,
        done=arrays["done"].float(),
        truncated_value=torch.zeros_like(reward),
        episodes=arrays["episodes"],
        final_rows=arrays["final_rows"],
        final_places=arrays["final_places"],
        advice=arrays.get("advice"),
    )
