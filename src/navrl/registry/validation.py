"""Validation of what callers give to the registry: metrics, tags, lineage, notes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from navrl.errors import ConfigError, RegistryError
from navrl.registry.model_names import check_name

MAX_TEXT = 100_000  # characters of notes; of mappings as JSON ten times as many
MAX_KEY = 200


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return metrics as JSON text; values that are not finite become null.

    Tensors and arrays of one element count as numbers.
    """
    values = _plain(metrics, "metrics")
    for key, value in values.items():
        if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
            raise RegistryError(f"metric {key!a} is {value!r:.80}; expected a number")
    return json_text(values, "metrics")


def tags_of(tags: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return tags as a mapping; a list of words becomes tags without values."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise RegistryError(
            f"tags is {tags!a:.80}; expected a list of words, or a mapping of texts"
        )
    values = dict(tags) if isinstance(tags, Mapping) else dict.fromkeys(tags, "")
    for key, value in values.items():
        check_name(key, "tag")
        check_text(value, f"tag {key!r}", 1000)
    return values


def json_text(values: Mapping[str, Any], what: str) -> str:
    """Return a mapping as JSON text."""
    return check_text(json.dumps(_plain(values, what), allow_nan=False), what, 10 * MAX_TEXT)


def check_text(value: Any, what: str, most: int = MAX_TEXT) -> str:
    """Return a text if it can be stored: not too long, and valid Unicode without NUL."""
    if not isinstance(value, str):
        raise RegistryError(f"{what} is a {type(value).__name__}; expected text")
    if len(value) > most:
        raise RegistryError(f"{what} has {len(value)} characters; expected at most {most}")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RegistryError(
            f"{what} is {ascii(value)[:80]}; expected text without NUL and lone surrogates"
        )
    return value


def _plain(values: Any, what: str) -> dict[str, Any]:
    from navrl.metrics_log import plain_value

    if not isinstance(values, Mapping):
        raise RegistryError(f"{what} is a {type(values).__name__}; expected a mapping")
    for key in values:
        check_text(key, f"a key of {what}", MAX_KEY)
        if not key.isprintable() or not key:
            raise RegistryError(f"{what} has the key {key!a}; expected printable text")
    try:
        return dict(plain_value(values, what))
    except ConfigError as error:
        raise RegistryError(str(error)) from error
