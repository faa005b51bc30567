"""The local registry of models: versions, aliases, stages, and where each model came from."""

from navrl.registry.maintenance import Damage, Garbage
from navrl.registry.model_names import Reference, check_alias, check_name, parse_reference
from navrl.registry.registry import Registry, default_root
from navrl.registry.repair import Repair
from navrl.registry.resolve import find_model
from navrl.registry.schema import STAGES, AliasMove, ModelSummary, ModelVersion

__all__ = [
    "STAGES",
    "AliasMove",
    "Damage",
    "Garbage",
    "ModelSummary",
    "ModelVersion",
    "Reference",
    "Registry",
    "Repair",
    "check_alias",
    "check_name",
    "default_root",
    "find_model",
    "parse_reference",
]
