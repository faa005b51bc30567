"""RIHS01 hashes: how ROS 2 distinguishes versions of an interface."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from navrl.deploy.ros.interfaces import Field, dependencies_of, fields_of

# Numbers of type_description_interfaces/msg/FieldType; `char` is an unsigned byte in ROS 2.
IDS = {
    "int8": 2,
    "uint8": 3,
    "char": 3,
    "int16": 4,
    "uint16": 5,
    "int32": 6,
    "uint32": 7,
    "int64": 8,
    "uint64": 9,
    "float32": 10,
    "float64": 11,
    "bool": 15,
    "byte": 16,
    "string": 17,
}
NESTED, ARRAY, BOUNDED, UNBOUNDED = 1, 48, 96, 144


@functools.cache
def type_hash(name: str) -> str:
    """Return `RIHS01_` and the hash of an interface, such as `geometry_msgs/msg/Twist`."""
    described = {
        "type_description": _description(name),
        "referenced_type_descriptions": [_description(one) for one in dependencies_of(name)],
    }
    text = json.dumps(described, separators=(", ", ": "))
    return f"RIHS01_{hashlib.sha256(text.encode()).hexdigest()}"


def _description(name: str) -> dict[str, Any]:
    return {"type_name": name, "fields": [_field(field) for field in fields_of(name)]}


def _field(field: Field) -> dict[str, Any]:
    number = NESTED if field.nested else IDS[field.type]
    if field.kind == "array":
        number += ARRAY
    elif field.kind == "sequence":
        number += BOUNDED if field.size else UNBOUNDED
    return {
        "name": field.name,
        "type": {
            "type_id": number,
            "capacity": field.size,
            "string_capacity": 0,
            "nested_type_name": field.type if field.nested else "",
        },
    }
