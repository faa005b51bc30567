"""A process that has imported and compiled everything once, and forks a real `navrl` process for
each request.

    {"arguments": ["train", ...], "output": PATH} -> {"pid": PID}    stdout and stderr go to the file
    ... "terminal": PATH                                             or to this terminal, in a session of its own
    ... "ignore": [1]                                                signals that are ignored at the start, as by nohup
    ... "folder": PATH                                               the current folder
    {"poll": PID} -> {"code": CODE}                                  null while it runs, negative for a signal

One JSON object a line, on stdin and stdout. It ends with its stdin; what it forked dies with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def warm_up(overrides: list[str]) -> None:
    """Load all that `navrl train` loads on its way: modules, and the compiled kernels of simulator
    and network.
    """
    import torch

    import navrl.api.evaluate_policy
    import navrl.api.train_policy  # noqa: F401
    from navrl.config import load_config
    from navrl.evaluation import evaluate as fly
    from navrl.training import display, loop, resume  # noqa: F401
    from navrl.training.compile_kernels import compile_kernels
    from navrl.training.distributed.team import Team
    from navrl.training.ppo_trainer import PPOTrainer
    from navrl.view.flight_pictures import draw_flights

    torch.set_flush_denormal(True)
    compile_kernels(load_config(overrides))
    trainer = PPOTrainer(load_config(overrides), Team())
    trainer.learn(trainer.collect())
    trainer.evaluate()
    *_, env = trainer.task._environments.values()
    recording = fly(env, lambda observation: torch.zeros(env.num_envs, 3), recorded=1).recording
    with tempfile.TemporaryDirectory() as folder:
        draw_flights(Path(folder), recording, animation=False)


def be_navrl(
    arguments: list[str],
    output: str,
    terminal: str = "",
    ignore: Sequence[int] = (),
    folder: str = ".",
) -> None:
    """Become a `navrl` process that writes to a file or a terminal; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        for number in ignore:
            signal.signal(number, signal.SIG_IGN)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        if terminal:
            os.setsid()
            file = os.open(terminal, os.O_RDWR)  # becomes the session's terminal
            os.dup2(file, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        from navrl.cli import main

        code = main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = {"code": os.waitstatus_to_exitcode(status) if ended else None}
        else:
            pid = os.fork()
            if pid == 0:
                be_navrl(**request)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    warm_up(sys.argv[1:])
    print(json.dumps({"ready": True}), flush=True)
    serve()
