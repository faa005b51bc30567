"""Other spellings of settings: those of the model-management guide and of the original NavRL.

They are rewritten to ours before anything is checked, so that there is one setting behind each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from omegaconf import DictConfig, OmegaConf

from navrl.errors import ConfigError

GROUPS = {"model_management": "registry"}
RENAMED = {
    "algo.feature_extractor.dyn_obs_num": "env.num_observed",
    "algo.actor.action_limit": "env.action_limit",
}
_PHYSX = "of PhysX, the physics engine of Isaac Sim; navrl has its own simulator"
REFUSED = {
    "env.env_spacing": "worlds do not lie side by side here",
    "viewer": "there is no Isaac Sim window; headless=false shows the training, RUN/flights.gif "
    "the flights",
    "sim.device": "the simulator runs on the CPU; device=cuda:0 puts the network on a GPU",
    **dict.fromkeys(
        (
            "sim.replicate_physics",
            "sim.use_flatcache",
            "sim.use_gpu_pipeline",
            "sim.use_gpu",
            "sim.solver_type",
            "sim.bounce_threshold_velocity",
            "sim.friction_offset_threshold",
            "sim.friction_correlation_distance",
            "sim.enable_stabilization",
            "sim.enable_scene_query_support",
            "sim.gpu_",
        ),
        _PHYSX,
    ),
}
_NUMBER = re.compile(r"[+-]?\d[\d_]*(\.\d*)?([eE][+-]?\d{1,3})?")
_GRAVITY = re.compile(r"\[\s*-?0*\.?0*\s*,\s*-?0*\.?0*\s*,\s*-(\d+\.?\d*)\s*\]")
_NULLS = ("null", "Null", "NULL", "None", "~")


def with_our_spelling(overrides: Sequence[str], schema: DictConfig) -> list[str]:
    """Return overrides with our names and values for those of others; the rest stays as it is.

    `max_frame_num=12e8` becomes a whole number. `key=null` is dropped where the setting has a
    default that is not null: it asks for that default.

    Raises:
        ConfigError: some are settings of the original that mean nothing here; all are named.
    """
    refused: dict[str, list[str]] = {}
    for override in overrides:
        if reason := _refusal(override):
            refused.setdefault(reason, []).append(override.partition("=")[0])
    if refused:
        told = "; ".join(f"{', '.join(keys)}: {reason}" for reason, keys in refused.items())
        raise ConfigError(f"settings without meaning here, leave them out: {told}")
    renamed = [_renamed(override) for override in overrides]
    return [
        _whole(override, schema) for override in renamed if not _asks_for_default(override, schema)
    ]


def _refusal(override: object) -> str:
    """Return why a setting of the original means nothing here; nothing if it does."""
    if not isinstance(override, str):
        return ""
    key = override.partition("=")[0]
    if key == "sim.substeps" and override.partition("=")[2].strip() != "1":
        return "a step integrates once, so that only 1 is possible; use a smaller sim.dt"
    for name, reason in REFUSED.items():
        if key == name or key.startswith(name if name.endswith("_") else f"{name}."):
            return reason
    return ""


def _renamed(override: str) -> str:
    if not isinstance(override, str):
        return override  # told by the checks that follow
    key, equals, value = override.partition("=")
    first, dot, rest = key.partition(".")
    if first in GROUPS and dot:
        key = f"{GROUPS[first]}.{rest}"
    if key == "sim.gravity" and (vector := _GRAVITY.fullmatch(value.strip())):
        value = vector[1]
    return f"{RENAMED.get(key, key)}{equals}{value}"


def _default(override: str, schema: DictConfig) -> object:
    """Return the default of the setting that an override names; None if there is no such
    setting.
    """
    key = override.partition("=")[0] if isinstance(override, str) else ""
    if not re.fullmatch(r"\w+(\.\w+)*", key):
        return None
    return OmegaConf.select(schema, key, default=None)


def _asks_for_default(override: str, schema: DictConfig) -> bool:
    if not isinstance(override, str):
        return False
    if override == "sim.substeps=1":
        return True
    default = _default(override, schema)
    null = override.partition("=")[2].strip() in _NULLS
    return null and default is not None and not isinstance(default, DictConfig)


def _whole(override: str, schema: DictConfig) -> str:
    """Return an override of a whole number that was typed as 12e8 or 1000.0 without exponent and
    point.
    """
    if type(_default(override, schema)) is not int:
        return override
    key, _, value = override.partition("=")
    if not _NUMBER.fullmatch(value.strip()) or not re.search("[.eE]", value):
        return override
    number = Decimal(value.strip().replace("_", ""))
    return f"{key}={int(number)}" if abs(number) < 1 << 63 and number == int(number) else override
