"""Hostile names, settings and world files: each is refused with an error of navrl, or harmless.

The long mode runs as many as asked for: `NAVRL_HOSTILE=100000 pytest tests/test_hostile_input.py`.
"""

from __future__ import annotations

import os
import random
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from navrl.config import Config, load_config
from navrl.errors import NavrlError, RegistryError, WorldError
from navrl.registry.model_names import check_alias, check_name, parse_reference
from navrl.sim.worlds.world_file import load_world

COUNT = int(os.environ.get("NAVRL_HOSTILE", 300))
GATE = Path(__file__).parents[1] / "examples" / "worlds" / "gate.yaml"
PIECES = (
    *("..", "/", "\\", "\0", "\n", "\r", "\x1b[2J", " ", "~", "$(id)", "`id`", ";", "|", "&&"),
    *("-rf", "--help", "con", "nul", "v1", "V2", "latest", ":", "::", "%2e%2e", "%00", "'", '"'),
    *("<script>", "${x}", "{{7*7}}", "!!python/object", "\ud800", "é", "e\u0301", "ａ", "\u202e"),
    *("\ufeff", "0", "1e999", "nan", "inf", "-1", "null", "[]", "{}", "x" * 300, ".", "_", "a"),
)
VALUES = (
    *PIECES,
    *("1" * 400, "[" * 200, "{a: [", "0x10", "1_000", "true", "${oc.env:HOME}", "${env.num_envs}"),
    *("1e-320", "-0.0", "9" * 20, "*id", "&id", "2026-11-18", "null,null", "[1, [2, [3]]]"),
)


def hostile_text(generator: random.Random) -> str:
    return "".join(generator.choice(PIECES) for _ in range(generator.randint(0, 4)))


def test_a_name_is_refused_or_is_a_plain_file_name(injected):
    generator, refused = random.Random(0), []
    for _ in range(COUNT):
        text = hostile_text(generator)
        for check in (check_name, check_alias, parse_reference):
            try:
                found = check(text)
            except RegistryError as error:
                refused.append(str(error))
                continue
            parts = [found] if isinstance(found, str) else [part for part in found if part]
            for part in parts:
                assert os.path.basename(part) == part, repr(text)
                assert part.isascii()
                assert part.isprintable()
                assert not part.startswith((".", "-"))
    assert all(message.isprintable() for message in refused)
    injected.add(COUNT)


def dotted_keys(kind: type, prefix: str = "") -> list[str]:
    """Return every setting, with the groups it is in."""
    found = []
    for one in fields(kind):
        value = getattr(kind(), one.name)
        name = f"{prefix}{one.name}"
        found += dotted_keys(type(value), f"{name}.") if is_dataclass(value) else [name]
    return found


@pytest.mark.slow
def test_a_setting_is_refused_by_name_or_gives_a_valid_config(injected):
    generator, keys = random.Random(1), dotted_keys(Config)
    count = COUNT // 10  # composing takes milliseconds
    for _ in range(count):
        key = generator.choice(keys)
        if generator.random() < 0.2:
            key = f"{generator.choice(('', '+', '++', '~'))}{key}{hostile_text(generator)[:40]}"
        word = f"{key}={generator.choice(VALUES)}"
        try:
            assert isinstance(load_config([word]), Config)
        except NavrlError:
            pass
        except Exception as error:
            pytest.fail(f"{word!r}: {type(error).__name__}: {error}")
    injected.add(count)


def mutated(text: str, generator: random.Random) -> str:
    """Return a world file with words cut, repeated, moved or replaced."""
    for _ in range(generator.choice((1, 1, 2, 4))):
        start = generator.randrange(len(text) + 1)
        end = start + generator.choice((0, 1, 3, 10, 40))
        piece = generator.choice((*VALUES, text[start:end] * 2, "", "\n  - ", ": ", "]", "- [1, 2"))
        text = text[:start] + piece + text[end:]
    return text


@pytest.mark.slow
def test_a_world_file_is_refused_by_name_or_gives_a_world(memory_folder, injected):
    generator, path, refused = random.Random(2), memory_folder / "world.yaml", []
    original, count = GATE.read_text(), COUNT // 2
    for _ in range(count):
        text = mutated(original, generator)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            load_world(path)
        except WorldError as error:
            refused.append(str(error))
        except Exception as error:
            pytest.fail(f"{text!r}: {type(error).__name__}: {error}")
    assert all(path.name in message for message in refused)
    injected.add(count)
