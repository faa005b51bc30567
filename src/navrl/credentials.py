"""Passwords and tokens in addresses: hidden in files, read from the environment when needed.

A run records `http://ada:***@host:5000` where `http://ada:PASSWORD@host:5000` was given. The
training process keeps the whole address in memory and hands it to its delivery workers in their
environment, which other users cannot read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from navrl.errors import ConfigError, TrackingError

__all__ = [
    "HIDDEN",
    "PASSWORD",
    "URI",
    "USER",
    "check_address",
    "check_secret",
    "has_secret",
    "redact",
    "redacted",
    "sign_in",
]

HIDDEN = "***"
URI, USER, PASSWORD = (f"MLFLOW_TRACKING_{name}" for name in ("URI", "USERNAME", "PASSWORD"))

_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*://\S*", re.IGNORECASE)
_USER = re.compile(r"(?P<scheme>^[^:]+://)(?P<user>[^/?#:@]*)(?P<password>:[^/?#]*)?@")
_FIELD = re.compile(
    r"(?P<name>[?&;#][^=&;#]*(?:token|key|secret|passw|pwd|auth|sig|credential)[^=&;#]*=)[^&;#]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return a text with `***` for the passwords and tokens in its addresses."""
    return _ADDRESS.sub(lambda found: _FIELD.sub(rf"\g<name>{HIDDEN}", _hide_user(found[0])), text)


def redacted(value: Any) -> Any:
    """Return a copy of nested plain values with every text redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: redacted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redacted(inner) for inner in value)
    return value


def has_secret(address: str) -> bool:
    """Return whether an address holds a password or token that `redact` would hide."""
    return redact(address) != address


def _hide_user(address: str) -> str:
    """Hide the password; a user name without one is most often a token."""

    def hidden(found: re.Match[str]) -> str:
        shown = f"{found['user']}:" if len(found["password"] or "") > 1 else ""
        return f"{found['scheme']}{shown}{HIDDEN}@"

    return _USER.sub(hidden, address)


def check_address(key: str, address: str) -> None:
    """Raise a ConfigError for a malformed address, or one with an ambiguous password."""
    if not _is_unambiguous(address):
        raise ConfigError(
            f"{key} is not an address; expected scheme://[user:password@]host[:port]/path, with "
            "/ ? # @ and spaces in a password percent-encoded, or the password in the environment "
            f"({PASSWORD})"
        )


def _is_unambiguous(address: str) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:  # the port is not a number
        return False
    if re.search(r"\s", address) or port == 0:
        return False
    if not parts.netloc:  # a path, a word such as databricks, or a file
        return parts.scheme in ("", "file", "sqlite")
    return "@" not in address.partition(parts.netloc)[2]


def check_secret(address: str) -> None:
    """Raise a TrackingError if an address was redacted and the environment lacks its password."""
    if HIDDEN in address and _whole(address) is None:
        raise TrackingError(
            f"{address} was saved without its password; set {USER} and {PASSWORD}, or {URI} to the "
            "whole address, in the environment"
        )


def sign_in(address: str) -> str:
    """Return the address to connect to, without credentials.

    Credentials go into the environment of this process, where MLflow's client looks for them: what
    the client prints then cannot show them. A redacted address is completed from there.

    Raises:
        TrackingError: the address was redacted, and the environment lacks its password.
    """
    check_secret(address)
    whole = (_whole(address) if HIDDEN in address else None) or address
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not (parts.username and parts.password):
        return whole
    os.environ[USER], os.environ[PASSWORD] = unquote(parts.username), unquote(parts.password)
    return _without_user(whole)


def _whole(address: str) -> str | None:
    """Return a redacted address completed from the environment, or None."""
    typed = os.environ.get(URI, "")
    if typed and redact(typed) == address:
        return typed
    bare = _without_user(address)
    web = address.startswith(("http://", "https://"))
    if web and HIDDEN not in bare and os.environ.get(USER) and os.environ.get(PASSWORD):
        return bare
    return None


def _without_user(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
