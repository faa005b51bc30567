"""`navrl export REF -o DIR`: a policy for a robot, with its contract and a proof that it flies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.deploy.verify import Verdict
EPILOG = """examples:
  navrl export pretrained -o out                    policy.onnx, policy.pt2, a C header, a contract
  navrl export runs/mine -o out --format onnx,c     some of them
  navrl export --verify out                         compare commands and fly the exported files
  navrl export --verify out --policy runs/mine      ... against this policy

out/contract.yaml says what each input means; out/runner.py runs it with numpy and onnxruntime.
"""


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "export",
        help="write a policy for a robot, and prove that it flies the same",
        description="Write a policy as ONNX, torch.export and C, with its contract.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("policy", nargs="?", help="pretrained, a model file, a run, NAME:ALIAS")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--format", default="onnx,pt2,c", help="comma-separated: onnx, pt2, c (default: all)"
    )
    _add_verification(parser)
    parser.set_defaults(run=run)


def _add_verification(parser: Any) -> None:
    parser.add_argument("--verify", type=Path, metavar="DIR", help="check the files of an export")
    parser.add_argument(
        "--policy",
        dest="against",
        metavar="REF",
        help="the policy that DIR was exported from (default: the one it names)",
    )
    parser.add_argument(
        "--observations",
        type=int,
        default=10_000,
        metavar="N",
        help="observations compared per file (default: %(default)s)",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=256,
        metavar="N",
        help="episodes flown with each file (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Export, or verify; return 1 if a file does not fly as the policy does."""
    from navrl.errors import ConfigError

    if arguments.verify is not None:
        return _verify(arguments)
    if arguments.policy is None or arguments.out is None:
        raise ConfigError(
            "expected a policy and a folder: navrl export pretrained -o out; or navrl export "
            "--verify out"
        )
    from navrl.deploy.policy_export import export_policy

    formats = [name for name in arguments.format.split(",") if name]
    folder = export_policy(
        arguments.policy,
        arguments.out,
        formats=formats,
        progress=lambda name: print(f"writing {name}", flush=True),
    )
    (folder / "source.txt").write_text(f"{arguments.policy}\n")
    for path in sorted(folder.iterdir()):
        print(f"  {path}  {path.stat().st_size / 1000:,.0f} kB")
    print(f"next: navrl export --verify {folder}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from navrl.deploy.verify import verify_export
    from navrl.errors import ConfigError
    from navrl.evaluation.policy_lookup import load_policy

    folder, source = arguments.verify, arguments.verify / "source.txt"
    reference = arguments.against or (source.read_text().strip() if source.exists() else "")
    if not reference:
        raise ConfigError(f"{folder} does not say what it was exported from; add --policy REF")
    verdicts = verify_export(
        folder,
        load_policy(reference),
        observations=arguments.observations,
        episodes=arguments.episodes,
        progress=lambda name: print(f"checking {name}", flush=True),
    )
    _print_verdicts(verdicts)
    _print_meaning(arguments, max(verdict.allowed for verdict in verdicts))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def _print_verdicts(verdicts: Sequence[Verdict]) -> None:
    print(
        f"\n{'file':6} {'vectors':>10} {'parity':>10} {'crossing':>10} {'torch':>8} {'differ':>7}"
    )
    for verdict in verdicts:
        if verdict.skipped:
            print(f"{verdict.name:6} not tried: {verdict.skipped}")
            continue
        print(
            f"{verdict.name:6} {verdict.golden:10.1e} {verdict.parity:10.1e} "
            f"{100 * verdict.exported_success:9.1f}% {100 * verdict.torch_success:7.1f}% "
            f"{verdict.differing:7d}{'' if verdict.holds else '   FAILS'}"
        )


def _print_meaning(arguments: argparse.Namespace, allowed: float) -> None:
    """Say what the columns of the verdicts mean, and the most that each may be."""
    from navrl.deploy.verify import TOLERANCE

    because = " (twice the policy's own rounding)" if allowed > TOLERANCE else ""
    print(
        f"vectors: largest difference in m/s on the test vectors, at most {TOLERANCE:g} allowed\n"
        f"parity: on {arguments.observations:,} observations, at most {allowed:.2g}{because}\n"
        f"crossing: success of {arguments.episodes} flights, the same for both"
    )
