"""examples/isaac_checkpoint.py does what it says: it trains, saves, stops, and goes on bit for bit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from io_states import assert_same

import forked
from navrl.io import load_checkpoint
from navrl.io.checkpoint.listing import list_entries

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "isaac_checkpoint.py"


SCRIPT = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def typed(folder: Path, iterations: int) -> list[str]:
    words = ("--folder", folder, "--iterations", iterations, "--save-interval", 5)
    return [str(word) for word in (EXAMPLE, *words)]


def run(folder: Path, iterations: int) -> str:
    done = forked.run(SCRIPT, *typed(folder, iterations))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two folders after 25 iterations, trained in one go and in two, and what the two runs of the
    second said.
    """
    folder = tmp_path_factory.mktemp("runs")
    subprocess.run([sys.executable, *typed(folder / "one", 25)], check=True, capture_output=True)
    return folder, [run(folder / "two", 10), run(folder / "two", 25)]


def test_the_second_run_goes_on_where_the_first_stopped(runs):
    _, (first, second) = runs
    assert re.findall(r"iteration (\d+):", first) == ["5", "10"]
    assert re.findall(r"iteration (\d+):", second) == ["15", "20", "25"]
    assert "2 saves held training up" in first


def test_old_checkpoints_go_and_the_newest_stay(runs):
    steps = [entry.step for entry in list_entries(runs[0] / "one")]
    assert steps[-3:] == [15, 20, 25]
    assert len(steps) <= 4


def test_a_run_in_two_parts_ends_where_a_run_in_one_does_bit_for_bit(runs):
    states = [load_checkpoint(runs[0] / name / "latest") for name in ("one", "two")]
    for state in states:
        # the script seeds and uses torch's generator alone
        state["random"] = state["random"]["torch"]
    assert_same(states[1], states[0])


def test_five_lines_are_marked():
    marks = re.findall(r"# \((\d)\)", EXAMPLE.read_text())
    assert marks == ["1", "2", "3", "4", "5"]
