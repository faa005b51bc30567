"""`navrl view REF`: watch a policy fly in the browser, live."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.config import Config

EPILOG = """examples:
  navrl view pretrained                                 crossing flights; open the printed address
  navrl view runs/mine --scenario dense --world 3
  navrl view policy:best --shield env.num_obstacles=100
  navrl view --run runs/mine                            a training while it runs: its newest checkpoint, reloaded
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "view",
        help="watch a policy fly in the browser, live",
        description="Fly a policy in a simulator of its own and show it in the browser: choose "
        "policy, scenario and world, drag a goal, switch rays and the shield. Needs "
        "viser (extra view3d).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="REF | key=value",
        help="a policy as for `navrl eval`; settings, such as env.num_obstacles=200",
    )
    parser.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        dest="run_folder",
        help="the folder of a training, which may be running: fly its newest checkpoint",
    )
    _add_flight(parser)
    _add_server(parser)
    parser.set_defaults(run=run, overrides=[])


def _add_flight(parser: Any) -> None:
    parser.add_argument(
        "--scenario", default="", metavar="NAME", help="what is flown (default: crossing)"
    )
    parser.add_argument(
        "--world", type=int, default=0, metavar="N", help="unseen world (default: 0)"
    )
    parser.add_argument(
        "--drones", type=int, default=16, metavar="N", help="how many fly (default: %(default)s)"
    )
    parser.add_argument("--shield", action="store_true", help="fly behind the shield")


def _add_server(parser: Any) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve at (default: %(default)s, this machine only)",
    )
    parser.add_argument("--port", type=int, default=8080, help="to serve at (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Serve the view until Ctrl+C."""
    import torch

    from navrl.errors import ConfigError
    from navrl.view.live.server import serve

    view = _view(arguments)
    torch.set_num_threads(1)

    def opened(address: str) -> None:
        if view.run is not None:
            os.nice(10)  # the training has the processor first
        print(f"open {address} (Ctrl+C stops)", flush=True)

    try:
        serve(view, opened)
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        raise ConfigError(f"--port {view.port} cannot be used: {error.strerror}") from error
    return 0


def _view(arguments: argparse.Namespace) -> Any:
    """Return what is to be watched."""
    from navrl.commands.evaluate import split_words
    from navrl.config import load_config, our_overrides
    from navrl.errors import ConfigError
    from navrl.view.live.server import View

    references, settings = split_words([*arguments.words, *arguments.overrides])
    if len(references) + (arguments.run_folder is not None) != 1:
        found = ", ".join(references) or "none"
        raise ConfigError(f"navrl view needs one policy, or --run RUN; found {found}")
    overrides = our_overrides(settings)
    config = load_config(overrides)
    scenario = _scenario(arguments, config)
    for name, value in (("--drones", arguments.drones - 1), ("--world", arguments.world)):
        if not 0 <= value < 1024:
            raise ConfigError(f"{name} is out of range; expected at most 1024 drones and worlds")
    return View(
        reference=references[0] if references else f"newest of {arguments.run_folder}",
        run=arguments.run_folder,
        config=config,
        scenario=scenario,
        typed={override.split("=", 1)[0] for override in overrides},
        world=arguments.world,
        drones=arguments.drones,
        shield=arguments.shield,
        host=arguments.host,
        port=arguments.port,
    )


def _scenario(arguments: argparse.Namespace, config: Config) -> str:
    """Return the scenario that was named, or the one of the configuration."""
    from navrl.errors import ConfigError, nearest_name
    from navrl.view.live.flight import viewable_scenarios

    scenario: str = arguments.scenario or ("own" if config.env.world_files else "crossing")
    known = viewable_scenarios(config)
    if scenario not in known:
        raise ConfigError(
            f"--scenario {scenario!a:.60} cannot be watched; expected one of {', '.join(known)}."
            f"{nearest_name(scenario, known)}"
        )
    return scenario
