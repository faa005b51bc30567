"""Names of models and aliases, and references to versions: what is legal, and errors that say why.

Names end up in tables, commands, trackers and file names. The alphabet is one that all of them
accept, and in which no two names look the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from navrl.errors import RegistryError

__all__ = ["MAX_LENGTH", "Reference", "check_alias", "check_name", "parse_reference", "shown"]

MAX_LENGTH = 128  # of the strictest tracker

_LEGAL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?", re.ASCII)
_VERSION = re.compile(r"[vV][0-9]+", re.ASCII)
_CANONICAL_VERSION = re.compile(r"v(?:0|[1-9][0-9]{0,8})", re.ASCII)
_DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)),
}
_RULE = f"1 to {MAX_LENGTH} of the characters A-Z a-z 0-9 _ . -, neither first . or - nor last ."


class Reference(NamedTuple):
    """The parts of a reference: where in a tracker, the model, and which version of it.

    >>> from navrl.registry import parse_reference
    >>> reference = parse_reference("drones/policy:v3")
    >>> reference.project, reference.name, reference.version
    ('drones', 'policy', 3)
    """

    entity: str | None
    project: str | None
    name: str
    label: str | None

    @property
    def version(self) -> int | None:
        """The version's number if the label is one (`v3` -> 3)."""
        return (
            int(self.label[1:])
            if self.label is not None and _VERSION.fullmatch(self.label)
            else None
        )

    @property
    def alias(self) -> str | None:
        """The label if it is an alias; `latest` where there is no label."""
        if self.label is None:
            return "latest"
        return None if self.version is not None else self.label

    def __str__(self) -> str:
        place = "/".join(
            part for part in (self.entity, self.project, self.name) if part is not None
        )
        return place if self.label is None else f"{place}:{self.label}"


def check_name(name: str, what: str = "model") -> str:
    """Return `name` if it is legal.

    Raises:
        RegistryError: it is not a string, empty, too long, reserved, or has a character outside the
            alphabet.

    >>> from navrl.registry import check_name
    >>> check_name("policy")
    'policy'
    """
    if not isinstance(name, str):
        raise RegistryError(
            f"{what} name is {shown(name)}, a {type(name).__name__}; expected text: {_RULE}"
        )
    if (
        _LEGAL.fullmatch(name)
        and len(name) <= MAX_LENGTH
        and name.split(".")[0].lower() not in _DEVICES
    ):
        return name
    raise RegistryError(f"{what} name {shown(name)} {_fault(name)}; legal are {_RULE}")


def check_alias(alias: str) -> str:
    """Return `alias` if it is legal: a legal name that is not a version number such as `v3`.

    Raises:
        RegistryError: it is not.

    >>> from navrl.registry import check_alias
    >>> check_alias("stable")
    'stable'
    """
    if check_name(alias, "alias") and _VERSION.fullmatch(alias):
        raise RegistryError(
            f"alias name {alias!r} is a version number: v and digits always mean that version; "
            "choose another, such as latest, best, stable, prod or v1.0"
        )
    return alias


def parse_reference(text: str) -> Reference:
    """Return the parts of `name`, `name:alias`, `name:v3` or `user/project/name:alias`.

    The user may be left out.

    Raises:
        RegistryError: the text has another form, or one of its parts is illegal.

    >>> from navrl.registry import parse_reference
    >>> parse_reference("ada/drones/policy:best").alias
    'best'
    """
    if not isinstance(text, str):
        raise RegistryError(
            f"model reference is {shown(text)}, a {type(text).__name__}; expected {_FORMS}"
        )
    place, colon, label = text.partition(":")
    parts = place.split("/")
    if len(parts) > 3 or ":" in label:
        raise RegistryError(f"model reference {shown(text)} has too many parts; expected {_FORMS}")
    try:
        name = check_name(parts[-1])
        project = check_name(parts[-2], "project") if len(parts) > 1 else None
        entity = check_name(parts[-3], "user") if len(parts) > 2 else None
        if colon:
            _check_label(label)
    except RegistryError as error:
        raise RegistryError(
            f"model reference {shown(text)}: {error} (a reference is {_FORMS})"
        ) from None
    return Reference(entity, project, name, label if colon else None)


_FORMS = "NAME, NAME:ALIAS, NAME:v3 or USER/PROJECT/NAME:ALIAS"


def _check_label(label: str) -> None:
    if _VERSION.fullmatch(label) and not _CANONICAL_VERSION.fullmatch(label):
        raise RegistryError(
            f"version {shown(label)} is malformed; expected v1, v2, up to v999999999"
        )
    if not _VERSION.fullmatch(label):
        check_alias(label)


def _fault(name: str) -> str:
    """Return what is wrong with an illegal name."""
    if not name:
        return "is empty"
    if len(name) > MAX_LENGTH:
        return f"has {len(name)} characters"
    if name in (".", ".."):
        return "means a folder"
    if name.split(".")[0].lower() in _DEVICES:
        return "is a device on some systems"
    for character in name:
        if not re.fullmatch(r"[A-Za-z0-9_.-]", character, re.ASCII):
            return f"holds the character {character!a}"
    return f"begins with {name[0]!r}" if name[0] in ".-" else "ends with '.'"


def shown(value: object) -> str:
    """Return a value as one short line of ASCII."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
