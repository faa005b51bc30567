"""`navrl train`: the main job. Train a policy, watch it learn, evaluate it on unseen worlds, leave
a model and pictures.
"""

from __future__ import annotations

import argparse
import signal
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from navrl.training.signals import StopRequest
    from navrl.training.terminal import Output

EPILOG = """settings:
  navrl settings                                       the groups; navrl settings GROUP shows one
  navrl settings lidar                                 every setting that mentions a word
  navrl train --cfg job                                every setting, its value and its meaning

presets:
  preset=quick         a good policy in about twelve minutes on two cores (the default)
  preset=best          the long recipe, 20 to 50 minutes
  preset=robust        on top of a trained policy: noise, missed detections, delay, wind
  preset=sac           soft actor-critic among few obstacles (the default with algo=sac)
  preset=navrl_exact   the original's task, network and algorithm
  preset=smoke         seconds

examples:
  navrl train
  navrl train env.num_envs=1024 env.num_obstacles=350 env_dyn.num_obstacles=80 headless=True
  navrl train robot=my_robot.yaml                      for your robot (navrl robot new), or robot=ground
  navrl train preset=best seed=3 run_folder=runs/mine
  navrl train preset=robust resume_checkpoint=navigation:best
  navrl train resume=auto                              resume the newest unfinished run, bit for bit
  navrl train resume_checkpoint=runs/mine run_folder=runs/longer max_frame_num=48e6
  navrl train resume_checkpoint=policy:best            resumes from a checkpoint, starts anew from a model
  navrl train resume_checkpoint=ada/drones/policy:best fetched from W&B if it is not here
  navrl train network=vit algo.actor.learning_rate=5e-4
  navrl train --config-path cfg --config-name mine     settings of cfg/mine.yaml, overrides on top
"""  # noqa: E501


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "train",
        help="train a policy, evaluate it on unseen worlds, leave a model and pictures",
        description="Train a policy to fly to its goal. Everything goes into a folder below "
        "runs/: settings, metrics, "
        "checkpoints, evaluations, the best model, pictures. Ctrl+C saves and stops; "
        "resume=auto continues. "
        "Closing the terminal saves too, and the training continues.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings, such as env.num_obstacles=200; `navrl settings` lists them",
    )
    _add_configuration(parser)
    parser.set_defaults(run=run)


def _add_configuration(parser: Any) -> None:
    parser.add_argument(
        "--cfg", nargs="?", const="job", metavar="job", help="print every setting and stop"
    )
    parser.add_argument(
        "--config-path", metavar="DIR", help="folder of your own configuration file (default: here)"
    )
    parser.add_argument(
        "--config-name",
        metavar="NAME",
        help="its name without .yaml (default: config); overrides go on top of it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, evaluate, draw.

    Returns:
        0: finished; 1: something could not be saved; 128 and the signal that stopped it.
    """
    from navrl.training.distributed.launched import place_of_this_process
    from navrl.training.signals import Stopped, StopRequest
    from navrl.training.terminal import surviving_output

    launched = place_of_this_process() is not None
    with surviving_output() as output, StopRequest(launched) as stop:
        try:
            return _run(arguments, output, stop, launched)
        except Stopped:
            output.write(
                f"\nnavrl: stopped by {signal.Signals(stop.signal or signal.SIGINT).name}\n"
            )
            return stop.exit_code


def _run(arguments: argparse.Namespace, output: Output, stop: StopRequest, launched: bool) -> int:
    from rich.console import Console

    from navrl.api.train_policy import run_training
    from navrl.config import as_yaml, load_config, our_overrides, with_default_preset
    from navrl.settings_reference import setting_groups, with_meanings

    typed = our_overrides(_typed(arguments))
    config = load_config(with_default_preset(typed))
    if arguments.cfg:
        print(with_meanings(as_yaml(config), setting_groups(config)), end="")
        return 0
    console = Console(file=cast(IO[str], output), force_terminal=False if config.headless else None)
    outcome = run_training(config, typed, console, stop)
    if outcome.problems:
        return 1
    # a launcher takes anything but 0 for a failure, and would start this process again
    return 0 if outcome.finished or launched else stop.exit_code


def _typed(arguments: argparse.Namespace) -> list[str]:
    """Return all overrides: those of the user's configuration file first."""
    from navrl.conf.user_file import file_overrides

    words = [*arguments.overrides, *([arguments.cfg] if arguments.cfg not in (None, "job") else [])]
    if arguments.config_path is None and arguments.config_name is None:
        return words
    return [
        *file_overrides(arguments.config_path or ".", arguments.config_name or "config"),
        *words,
    ]
