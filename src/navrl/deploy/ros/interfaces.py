"""Interfaces as lists of typed fields, parsed from their definitions."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from navrl.deploy.ros.definitions import MESSAGES, SERVICES
from navrl.errors import MessageError

PRIMITIVES = {  # name -> struct character, bytes
    "bool": ("?", 1),
    "byte": ("B", 1),
    "char": ("B", 1),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
    "float32": ("f", 4),
    "float64": ("d", 8),
}
LINE = re.compile(r"^([\w/]+)(\[(<=)?(\d*)\])?\s+(\w+)$")
EMPTY = "uint8 structure_needs_at_least_one_member\n"


@dataclass(frozen=True)
class Field:
    """One field: of a primitive type, `string`, or another interface."""

    name: str
    type: str  # `float64`, `string`, `geometry_msgs/msg/Point`
    kind: str = "one"  # one, array (fixed size), sequence
    size: int = 0  # of an array, or the bound of a sequence; 0: unbounded

    @property
    def nested(self) -> bool:
        """Whether the type is another interface."""
        return "/" in self.type


@functools.cache
def fields_of(name: str) -> tuple[Field, ...]:
    """Return the fields of an interface, by its full name, `geometry_msgs/msg/Twist`.

    A service has three parts: `pkg/srv/Name_Request`, `_Response` and `_Event`.

    Raises:
        MessageError: no such interface is bundled.
    """
    package = name.split("/")[0]
    return tuple(
        _parse(line, package) for line in definition_of(name).splitlines() if _is_field(line)
    )


def definition_of(name: str) -> str:
    """Return the text of an interface."""
    if name in MESSAGES:
        return MESSAGES[name]
    service, _, part = name.rpartition("_")
    if service in SERVICES and part in ("Request", "Response"):
        return SERVICES[service][part == "Response"] or EMPTY
    if service in SERVICES and part == "Event":
        return (
            "service_msgs/ServiceEventInfo info\n"
            f"{service}_Request[<=1] request\n{service}_Response[<=1] response\n"
        )
    if name in SERVICES:
        return "".join(
            f"{name}_{part} {part.lower()}_message\n" for part in ("Request", "Response", "Event")
        )
    raise MessageError(f"no definition of {name!r} is bundled")


def _is_field(line: str) -> bool:
    return bool(line.strip()) and "=" not in line.replace("<=", "")


def _parse(line: str, package: str) -> Field:
    found = LINE.match(line.strip())
    if found is None:
        raise MessageError(f"cannot read the line {line!r} of a definition")
    kind, bracket, _, size, name = found.groups()
    if bracket is None:
        return Field(name, _full(kind, package))
    bounded = bracket.startswith("[<=") or not size
    return Field(name, _full(kind, package), "sequence" if bounded else "array", int(size or 0))


def _full(kind: str, package: str) -> str:
    if kind in PRIMITIVES or kind == "string":
        return kind
    pieces = kind.split("/")
    if len(pieces) == 1:
        return f"{package}/msg/{kind}"
    return kind if len(pieces) == 3 else f"{pieces[0]}/msg/{pieces[1]}"


def dependencies_of(name: str) -> list[str]:
    """Return all interfaces that one is made of, itself left out, sorted."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for part in fields_of(todo.pop()):
            if part.nested and part.type not in found:
                found.add(part.type)
                todo.append(part.type)
    return sorted(found)


def dds_name(name: str) -> str:
    """Return the name on the wire: `geometry_msgs::msg::dds_::Twist_`."""
    package, kind, short = name.split("/")
    return f"{package}::{kind}::dds_::{short}_"


def whole_definition(name: str) -> str:
    """Return a definition followed by those it needs, as rosbag2 and MCAP store them."""
    rule = "=" * 80
    parts = [definition_of(name)]
    for other in dependencies_of(name):
        package, _, short = other.split("/")
        parts.append(f"{rule}\nMSG: {package}/{short}\n{definition_of(other)}")
    return "".join(parts)
