"""Which policy a collector acts with, and whether it can be frozen here while it is trained."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Literal

from torch import nn

from navrl.errors import ConfigError

__all__ = ["acting_policy", "acts_with_a_copy"]

_WHAT_TO_PASS = (
    "Pass policy=MODULE, the torch.nn.Module that it calls, to have its weights frozen for each "
    "batch, or policy=None "
    "if no weights change while it collects"
)


def acting_policy(
    base: Any, policy: nn.Module | Literal["auto"] | None, push_weights: bool
) -> nn.Module | None:
    """Return the policy to freeze for each batch of a collector; None if there is none.

    Raises:
        ConfigError: the policy cannot be found or cannot be frozen; the message says what to pass.
    """
    if push_weights:
        _check_pushing(base, policy)
    if policy is None:
        return None
    found = _policy_of(base) if isinstance(policy, str) and policy == "auto" else policy
    if found is None:
        return None
    if not isinstance(found, nn.Module):
        raise ConfigError(
            f"policy is a {type(found).__name__}; expected a torch.nn.Module, whose weights can "
            "be copied"
        )
    if not push_weights:
        _refuse_what_cannot_be_frozen(base, found)
    return found


def acts_with_a_copy(base: Any) -> bool:
    """Return whether a TorchRL collector acts with a copy of its policy, as on another device."""
    original, acting = getattr(base, "_orig_policy", None), getattr(base, "policy", None)
    if not isinstance(original, nn.Module) or not isinstance(acting, nn.Module):
        return False
    return not _share_memory(original, acting)


def _policy_of(base: Any) -> nn.Module | None:
    """Return the module that a collector acts with; None for random actions."""
    policy = getattr(base, "policy", None)
    if (
        isinstance(policy, nn.Module)
        and next(itertools.chain(policy.parameters(), policy.buffers()), None) is not None
    ):
        return policy
    if _is_random(policy):
        return None
    if policy is None:
        found = "it has no attribute `policy`"
    elif isinstance(policy, nn.Module):
        found = (
            f"its policy is a {type(policy).__name__} that has no weights of its own, but "
            "may call what has"
        )
    else:
        found = f"its policy is a {type(policy).__name__}, not a torch.nn.Module"
    name = type(base).__name__
    raise ConfigError(
        f"PipelinedDataCollector: cannot find the weights that the {name} acts with: {found}. "
        f"{_WHAT_TO_PASS}"
    )


def _is_random(policy: Any) -> bool:
    """Return whether this is TorchRL's policy of random actions."""
    # if it is not loaded, no RandomPolicy exists
    collectors = sys.modules.get("torchrl.collectors")
    return collectors is not None and isinstance(policy, collectors.RandomPolicy)


def _check_pushing(base: Any, policy: Any) -> None:
    if not isinstance(policy, nn.Module):
        raise ConfigError(
            "push_weights needs the policy whose weights are pushed: pass policy=MODULE as well"
        )
    if not hasattr(base, "update_policy_weights_"):
        raise ConfigError(
            f"push_weights: a {type(base).__name__} has no update_policy_weights_ to push "
            "weights with"
        )


def _refuse_what_cannot_be_frozen(base: Any, policy: nn.Module) -> None:
    name = type(base).__name__
    # TorchRL's collectors in other processes, which read shared memory
    if hasattr(base, "num_workers"):
        raise ConfigError(
            f"PipelinedDataCollector: the workers of a {name} read the weights while they are "
            f"trained. Give the {name} a copy, copy.deepcopy(policy), and pass policy=policy and "
            "push_weights=True here; or pass policy=None if no weights change while it collects"
        )
    if getattr(base, "cudagraphed_policy", False):
        raise ConfigError(
            f"PipelinedDataCollector: the {name} replays its policy from a CUDA graph, which "
            "reads the weights while they are trained; make it without cudagraph_policy"
        )
    theirs = getattr(base, "policy", None)
    if (
        isinstance(theirs, nn.Module)
        and next(policy.parameters(), None) is not None
        and not _share_memory(policy, theirs)
    ):
        raise ConfigError(
            "the base collector acts with another policy than the one given: their weights are "
            "not the same memory. Give both the same policy, or pass push_weights=True to have "
            "its copy updated before each batch"
        )


def _share_memory(first: nn.Module, second: nn.Module) -> bool:
    ours = {parameter.data_ptr() for parameter in first.parameters()}
    return not ours.isdisjoint(parameter.data_ptr() for parameter in second.parameters())
