"""`navrl settings [WORD]`: what can be set, and what it means."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from navrl.settings_reference import Group

EPILOG = """examples:
  navrl settings                  the groups of settings
  navrl settings env              every setting of a group, with its value and meaning
  navrl settings lidar            every setting whose name or meaning contains a word
  navrl settings env preset=best  with the values of a preset

Values are those that navrl train takes, with preset=quick unless told otherwise.
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "settings",
        help="list the settings of `navrl train` with values and meanings",
        description="List the groups of settings, one group, or the settings that mention a word.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD | key=value",
        help="a group or a word to look for; settings such as preset=best change the values shown",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print a page of all of them")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings."""
    from navrl.config import load_config, with_default_preset
    from navrl.settings_reference import find_settings, setting_groups

    words = [word for word in arguments.words if "=" not in word]
    typed = [word for word in arguments.words if "=" in word]
    trained = setting_groups(load_config(with_default_preset(typed)))
    values = {setting.key: setting.default for group in trained for setting in group.settings}
    shown = setting_groups(load_config(typed))
    for word in words:
        shown = find_settings(shown, word)
    if arguments.json:
        print(json.dumps([_as_dict(group, values) for group in shown], indent=1))
    elif arguments.markdown:
        print(_page(shown, values), end="")
    elif words:
        _print_settings(shown, values)
    else:
        _print_groups(shown)
    return 0


def _print_groups(groups: list[Group]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("group", "settings", "what they set", box=None, pad_edge=False)
    for group in groups:
        table.add_row(group.name, str(len(group.settings)), group.about)
    console = Console()
    console.print(table)
    console.print(
        "\nnavrl settings GROUP shows one, navrl settings WORD searches; type them as "
        "navrl train env.num_envs=512"
    )


def _as_dict(group: Group, values: Mapping[str, str]) -> dict[str, Any]:
    """Return a group for JSON: each setting with its default and what `navrl train` takes."""
    settings = [dataclasses.asdict(each) | {"value": values[each.key]} for each in group.settings]
    return dataclasses.asdict(group) | {"settings": settings}


def _print_settings(groups: list[Group], values: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console()
    for group in groups:
        table = Table(
            Column("setting", no_wrap=True, overflow="fold"),
            "value",
            "meaning",
            title=group.name,
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for setting in group.settings:
            words = (setting.key, values[setting.key], setting.meaning)
            table.add_row(*(Text(word) for word in words))
        console.print(table)


def _page(groups: list[Group], values: Mapping[str, str]) -> str:
    """Return docs/settings.md: the defaults, and what `navrl train` has instead of some."""
    lines = [
        "# Settings",
        "",
        "Every setting of `navrl train`, `navrl world` and `navrl eval`, written as `key=value`. "
        "`navrl settings WORD` searches them.",
        "`navrl train` takes `preset=quick` unless told otherwise, so its values differ from the "
        "defaults where the third column says so.",
        "This page is written by `navrl settings --markdown`.",
    ]
    for group in groups:
        lines += ["", f"## {group.name}", "", f"{group.about[:1].upper()}{group.about[1:]}.", ""]
        lines += ["| setting | type | default, `navrl train` | meaning |", "|---|---|---|---|"]
        for setting in group.settings:
            kind, meaning = setting.type.replace("|", "\\|"), setting.meaning.replace("|", "\\|")
            default = f"`{setting.default}`".replace("|", "\\|")
            if values[setting.key] != setting.default:
                default += f", `{values[setting.key]}`"
            lines.append(f"| `{setting.key}` | {kind} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"
