"""A forked program has what one of its own interpreter has, and ends as that does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import forked

ABOUT = """
import atexit, json, os, sys
atexit.register(print, "ended")
print(json.dumps([sys.argv, os.getcwd(), dict(os.environ)["OWN"], sys.path[0], __name__, sorted(globals())]))
print("told", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def warm():
    """What imports nothing: these tests need no server that has imported torch."""
    return "pass"


def test_arguments_folder_environment_and_globals_are_those_of_an_interpreter(tmp_path, warm):
    environment = {**os.environ, "OWN": "here"}
    done = forked.run(ABOUT, "first", 2, cwd=tmp_path, env=environment, warm=warm)
    command = [sys.executable, "-c", ABOUT, "first", "2"]
    how = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    expected = subprocess.run(command, **how)
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr) == (0, "told\n")
    line, *others = done.stdout.splitlines()
    theirs, *_ = expected.stdout.splitlines()
    assert others == ["ended"]
    assert json.loads(line)[:5] == json.loads(theirs)[:5]
    assert {*json.loads(line)[5]} == {*json.loads(theirs)[5]} - {"__annotations__"}


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_a_program_ends_with_its_code_or_signal(program, code, told, warm):
    done = forked.run(program, warm=warm)
    assert done.returncode == code
    assert done.stderr.endswith(told)


def test_a_program_is_talked_to_and_sent_signals(warm):
    program = "import sys, time\nprint(sys.stdin.readline(), flush=True)\ntime.sleep(600)"
    with forked.start(program, warm=warm) as process:
        print("hello", file=process.stdin, flush=True)
        assert process.stdout.readline() == "hello\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1].endswith("KeyboardInterrupt\n")
    assert process.returncode == -signal.SIGINT


def test_a_program_that_takes_too_long_is_ended(warm, monkeypatch):
    ended = []
    monkeypatch.setattr(
        forked.Process,
        "kill",
        lambda self, kill=forked.Process.kill: (kill(self), ended.append(self)),
    )
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run("import time; time.sleep(600)", timeout=0.1, warm=warm)
    (process,) = ended
    assert process.wait() == -signal.SIGKILL
