"""`navrl doctor`: what a bug report needs, and whether this installation works."""

from __future__ import annotations

import argparse
import json
from typing import Any

from navrl.wording import counted

EPILOG = """examples:
  navrl doctor            versions, folders, extras, and a trial of each part
  navrl doctor --json     the same for a bug report
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this installation; paste its output into bug reports",
        description="Show versions, folders and extras, and try the simulator, the policy in the "
        "package and a checkpoint. Exit code 1 if anything does not work.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    from rich.console import Console

    from navrl.machine import machine
    from navrl.self_test import extras, places, trials

    with Console(stderr=True).status("trying each part (the first run compiles the simulator)"):
        found = [*places(), *trials()]
    missing, about = extras(), machine()
    if arguments.json:
        checks = {finding.name: {"ok": finding.ok, "detail": finding.detail} for finding in found}
        print(json.dumps({"machine": about, "checks": checks, "extras": missing}, indent=1))
    else:
        _print(about, found, missing)
    return 0 if all(finding.ok for finding in found) else 1


def _print(about: dict[str, Any], found: list[Any], missing: dict[str, list[str]]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    print(f"{versions}, Python {about['python']}")
    print(f"{about['system']}, {about['processor']}, {counted(about['cores'], 'core')}, ", end="")
    print(f"{about['memory_gib']} GiB, commit {about['commit']}")
    for finding in found:
        print(f"{'ok    ' if finding.ok else 'FAILED'}  {finding.name}: {finding.detail}")
    installed = [extra for extra, names in missing.items() if not names]
    print(f"extras installed: {', '.join(installed) or 'none'}")
    for extra, names in missing.items():
        if names:
            print(f"not installed: navrl[{extra}], which needs {', '.join(names)}")
