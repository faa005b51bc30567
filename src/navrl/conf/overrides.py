"""Overrides typed by the user, such as `env.num_envs=256`, checked before Hydra sees them.

Hydra's own messages are for people who use Hydra: these name the setting, what was typed, and what
is expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from navrl.credentials import redact
from navrl.errors import ConfigError, nearest_name, shown

GROUPS = ("preset", "env", "algo", "network", "collect")  # what can be chosen whole: `preset=best`
OPEN = ("env.options.", "network.encoders.")  # what may follow is the user's to name
SEARCH = "`navrl settings WORD` searches the settings"
_MISTYPED = re.compile(r"""^['"[{]|\$\{""")  # a quotation, list or interpolation that is not whole
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
}


def keys_of(schema: DictConfig) -> list[str]:
    """Return every dotted key of a configuration that can be set."""

    def walk(node: DictConfig, prefix: str) -> Iterator[str]:
        for name, value in node.items_ex(resolve=False):
            if isinstance(value, DictConfig) and f"{prefix}{name!s}." not in OPEN:
                yield from walk(value, f"{prefix}{name!s}.")
            else:
                yield f"{prefix}{name!s}"

    return [*walk(schema, "")]


def options_of(group: str) -> list[str]:
    """Return what can be chosen for a group, such as the presets."""
    found = (file.name for file in files("navrl.conf").joinpath(group).iterdir())
    chosen = (name for name in found if name.endswith(".yaml") and not name.startswith("_"))
    return sorted(name.removesuffix(".yaml") for name in chosen)


def is_open(key: str) -> bool:
    """Return whether a key is in a group whose names are the user's, such as `env.options`."""
    return key.startswith(OPEN) and bool(key.rpartition(".")[2])


def check_overrides(overrides: Sequence[str], schema: DictConfig) -> None:
    """Raise a ConfigError for the first override that is malformed or names no setting."""
    if isinstance(overrides, str):
        raise ConfigError(f"overrides are {_typed(overrides)}; expected a list, such as ['seed=1']")
    known = keys_of(schema)
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(
                f"an override is {shown(override)}; expected text, such as 'env.num_envs=256'"
            )
        _check_form(override, known)
        key, _, value = override.partition("=")
        if key in GROUPS:
            _check_option(key, value)
        elif not is_open(key):
            _check_key(key, known)


def apply_override(override: str, config: DictConfig, schema: DictConfig) -> None:
    """Set what a checked override says.

    Raises:
        ConfigError: its value cannot be parsed, is several, or does not fit the setting.
    """
    key = override.partition("=")[0]
    value = _value(override, isinstance(OmegaConf.select(schema, key), str))
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise ConfigError(f"{key} is {_typed(value)}; expected a number of at most 64 bits")
    try:
        OmegaConf.update(config, key, value, force_add=is_open(key))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{key} is {_typed(value)}; expected {_expected(schema, key)}") from error


def _check_form(override: str, known: Sequence[str]) -> None:
    key = override.lstrip("+~").partition("=")[0]
    if override.startswith(("+", "~", "=")):
        raise ConfigError(
            f"override {_typed(override)} adds or removes a setting; expected key=value of a known "
            f"one.{nearest_name(key, known)}"
        )
    if key in ("--multirun", "-m"):
        raise ConfigError(
            f"{key} is an option of Hydra; a call trains once: start one run for each value"
        )
    if "=" not in override:
        raise ConfigError(
            f"override {_typed(override)} has no value; expected key=value, such as "
            "env.num_envs=256"
        )
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        raise ConfigError(
            f"override {_typed(override)} is a setting of Hydra, which only reads the "
            "configuration "
            "here; run_folder=PATH says where a run goes"
        )


def _check_option(group: str, value: str) -> None:
    options, chosen = options_of(group), value.strip("'\"")
    if chosen not in options:
        raise ConfigError(
            f"{group} is {_typed(chosen)}; expected one of "
            f"{', '.join(options)}.{nearest_name(chosen, options)}"
        )


def _check_key(key: str, known: Sequence[str]) -> None:
    whole = any(name == key or name.startswith(f"{key}.") for name in known)
    if not whole:
        last = key.rpartition(".")[2]
        same = [name for name in known if name.rpartition(".")[2] == last]
        near = (
            f" Settings of that name: {', '.join(same)}."
            if len(same) > 1
            else nearest_name(key, [*known, *GROUPS])
        )
        raise ConfigError(f"unknown setting {_typed(key)}.{near} {SEARCH}")


def _value(override: str, is_text: bool = False) -> Any:
    """Return the value of an override in Hydra's syntax.

    Text that this syntax has no place for, such as `run_folder=runs/训练`, is taken as it was
    typed, and so is text that looks like a number: `run_folder=1e3`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    typed = override.partition("=")[2]
    try:
        parsed = OverridesParser.create().parse_override(override)
    except (HydraException, ValueError) as error:
        if is_text and typed.isprintable() and not _MISTYPED.search(typed):
            return typed
        raise ConfigError(
            f"override {_typed(override)} cannot be read; expected key=value, with quotes around a "
            "value of special characters: key='a b#c'"
        ) from error
    if parsed.is_sweep_override():
        raise ConfigError(
            f"override {_typed(override)} has several values; expected one: start one run for "
            "each, "
            "or write [a,b] for a setting that is a list"
        )
    value = parsed.value()
    return typed if is_text and isinstance(value, int | float) else value


def _expected(schema: DictConfig, key: str) -> str:
    example = OmegaConf.select(schema, key)
    if isinstance(example, DictConfig):
        return f"its settings one by one, such as {key}.{next(iter(example), 'NAME')!s}=..."
    if example is None:
        return "a number or null"
    plain = OmegaConf.to_object(example) if OmegaConf.is_config(example) else example
    return f"{_KINDS.get(type(plain), type(plain).__name__)}, such as {plain!r}"


def _typed(value: Any) -> str:
    """Return what the user typed, as an error message shows it: short, and without passwords."""
    return shown(redact(value) if isinstance(value, str) else value)
