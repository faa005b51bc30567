"""The display: everything is shown, at any width, with anything missing, cheaply; and nothing about
it stops training.
"""

from __future__ import annotations

import io
import math
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from counting import count_calls
from navrl.training import display as module
from navrl.training.display import LiveDisplay, PlainDisplay, open_display
from navrl.training.panel import HISTORY, draw, sparkline
from navrl.training.saving.checkpoints import SaveStatus
from navrl.training.status import Status, plain_line

FULL = Status(
    iteration=930,
    iterations=1500,
    frames=30_474_240,
    total_frames=49_152_000,
    seconds=372.0,
    frames_per_second=44_812.0,
    success=0.918,
    collision=0.074,
    out_of_bounds=0.002,
    time_out=0.007,
    episode_return=27.5,
    episode_length=757.0,
    policy_loss=-0.00467,
    value_loss=0.0456,
    kl=0.0113,
    entropy=-0.744,
    learning_rate=3.8e-4,
    gradient_norm=0.41,
    explained_variance=0.826,
    phases={"data_collection": 0.28, "policy_training": 0.63, "checkpoint_save": 0.004},
    stall_ms=0.54,
    evaluation={"350 static": 0.938, "350 static + 80 moving": 0.762},
    seconds_left=228.0,
    saves=SaveStatus(iteration=900, at=time.monotonic()),
)
EMPTY = Status(iteration=0, iterations=0, frames=0, total_frames=0, seconds=0.0)
BROKEN = Status(
    iteration=1,
    iterations=1,
    frames=7,
    total_frames=5,
    seconds=math.nan,
    success=math.inf,
    kl=-math.inf,
    value_loss=1e30,
    phases={"a": math.nan, "b": 0.9, "c": 0.9, "d": -1.0},
    stall_ms=math.nan,
    evaluation={},
    seconds_left=math.inf,
)


def drawn(status: Status, history: list[float] = [0.1, 0.5, 0.9], width: int = 100) -> str:  # noqa: B006
    console = Console(file=io.StringIO(), width=width)
    console.print(draw(status, history, width))
    return console.file.getvalue()


def terminal(width: int = 100) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system=None,
        width=width,
        height=40,
        _environ={"TERM": "xterm"},
    )


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def test_everything_is_shown():
    shown = drawn(FULL)
    for piece in (
        "62 %",
        "6:12 gone",
        "3:48 left",
        "930 of 1,500",
        "30.5 M of 49.2 M",
        "44.8 k",
        "91.8 %",
        "7.4 %",
        "0.2 %",
        "0.7 %",
        "27.5",
        "757",
        "-0.00467",
        "0.0456",
        "0.0113",
        "-0.744",
        "0.00038",
        "0.41",
        "82.6 %",
        "data collection 28 %",
        "policy training 63 %",
        "checkpoint save 0.4 %",
        "0.54 ms",
        "350 static 93.8 %",
        "350 static + 80 moving 76.2 %",
    ):
        assert piece in shown


@pytest.mark.parametrize("width", [30, 46, 76, 106])
@pytest.mark.parametrize("status", [FULL, EMPTY, BROKEN], ids=["full", "empty", "broken"])
def test_no_width_and_no_missing_number_spoils_the_panel(status, width):
    lines = drawn(status, [], width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 30


FAILING = replace(
    FULL,
    saves=SaveStatus(900, time.monotonic(), "No space left on device", failed_in_row=2, failed=2),
    unwritten=3,
)


@pytest.mark.parametrize("shown", [drawn(FULL), plain_line(FULL)], ids=["panel", "line"])
def test_the_last_checkpoint_is_shown_with_its_age(shown):
    assert re.search(r"checkpoint iteration 900, \d+:\d\d ago", shown)
    assert "NOT" not in shown


@pytest.mark.parametrize("shown", [drawn(FAILING), plain_line(FAILING)], ids=["panel", "line"])
def test_checkpoints_that_fail_are_shown_with_the_reason_and_the_last_good_one(shown):
    assert "checkpoint FAILED 2 times: No space left on device; last: iteration 900" in shown
    assert re.search(r"3 files NOT written|files not written 3", shown)


def test_a_long_reason_stays_within_the_panel():
    failing = replace(FULL, saves=SaveStatus(failure="x" * 160, failed_in_row=1))
    assert all(len(line) <= 46 for line in drawn(failing, width=46).splitlines())


def test_remote_workers_have_a_line_in_the_panel_and_a_piece_of_the_plain_line():
    status = replace(FULL, collection="3 of 4 workers, staleness 1.0")
    assert "collection 3 of 4 workers, staleness 1.0" in drawn(status)
    assert "3 of 4 workers, staleness 1.0" in plain_line(status)
    assert "workers" not in drawn(FULL)


def test_nothing_is_cut_at_eighty_columns():
    assert "…" not in drawn(FULL, [0.5] * 500, 76)


def test_the_curve_is_two_lines_high_with_the_oldest_to_the_left():
    assert sparkline([0.0, 0.25, 0.5, 0.75, 1.0], 10) == ("   ▄█", "▁▄███")
    assert sparkline([], 10) == ("", "")
    high, low = sparkline([i / 1000 for i in range(1000)], 40)
    assert len(high) == len(low) == 40
    assert (low[0], high[-1]) == ("▁", "█")


def test_a_line_without_a_terminal_has_the_numbers_that_matter():
    line = plain_line(FULL)
    for piece in (
        "iteration 930/1500",
        "30.5 M frames",
        "44.8 k frames/s",
        "success 91.8 %",
        "350 static 93.8 %",
        "3:48 left",
    ):
        assert piece in line
    assert "\n" not in line
    assert plain_line(EMPTY).isascii()


def test_without_a_terminal_the_first_and_the_last_status_and_the_notes_are_printed():
    console = pipe()
    with open_display(console, "a title") as display:
        assert isinstance(display, PlainDisplay)
        for iteration in range(100):
            display.update(Status(iteration, 100, iteration, 100, 0.0))
        display.note("checkpoint [saved]")
    lines = console.file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "a title",
        "iteration 0/100",
        "checkpoint [saved]",
        "iteration 99/100",
    ]


def test_without_a_terminal_a_line_comes_every_ten_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console = pipe()
    with open_display(console, "title") as display:
        for second in range(35):
            now[0] = float(second)
            display.update(Status(second, 35, 0, 0, 0.0))
    told = [line.split("  ")[0] for line in console.file.getvalue().splitlines()[1:]]
    assert told == [f"iteration {i}/35" for i in (0, 10, 20, 30, 34)]


def test_on_a_terminal_the_last_status_stays_with_the_notes_above_it():
    console = terminal()
    with open_display(console, "a title") as display:
        assert isinstance(display, LiveDisplay)
        display.update(FULL)
        display.note("checkpoint saved")
    shown = console.file.getvalue()
    assert "a title" in shown
    assert shown.index("checkpoint saved") < shown.rindex("91.8 %")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm"}])
def test_a_terminal_that_cannot_draw_gets_lines(environment):
    file = (
        io.StringIO()
        if environment["TERM"] == "dumb"
        else io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    )
    with open_display(
        Console(file=file, force_terminal=True, _environ=environment), "title ·"
    ) as display:
        assert isinstance(display, PlainDisplay)
        display.update(FULL)


class GoneAway(io.StringIO):
    """A terminal that was closed, or a pipe whose reader went."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error: OSError | None = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_terminal_that_goes_away_does_not_stop_training(is_terminal, error):
    console = Console(file=GoneAway(error), force_terminal=is_terminal, _environ={"TERM": "xterm"})
    with open_display(console, "title") as display:
        display.update(FULL)
        display.note("still here")
        display.update(FULL)


def test_an_error_inside_passes_through_and_the_display_ends():
    with pytest.raises(KeyError), open_display(terminal(), "title") as display:
        raise KeyError
    assert not display._live.is_started


def test_the_clocks_go_on_during_a_long_iteration(monkeypatch):
    console = terminal()
    display = LiveDisplay(console, "title")
    display.update(FULL)
    monkeypatch.setattr(display, "_updated", time.monotonic() - 60.0)
    console.print(display)
    display.close()
    shown = console.file.getvalue()
    assert "7:12 gone, 2:47 left" in shown
    # the last drawing is of the last status
    assert shown.rindex("6:12 gone, 3:48 left") > shown.rindex("7:12 gone")


def test_a_long_run_keeps_its_whole_curve_in_little_memory():
    display = LiveDisplay(terminal(), "title")
    for i in range(20_000):
        display.update(Status(i, 20_000, i, 20_000, 0.0, success=i / 20_000))
    display.close()
    values = display._history.values
    assert len(values) <= HISTORY
    assert values == pytest.approx([(i + 0.5) / len(values) for i in range(len(values))], abs=0.02)


@pytest.mark.parametrize("console", [terminal(), pipe()], ids=["terminal", "pipe"])
def test_an_update_makes_few_calls_and_draws_nothing(console, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with open_display(console, "title") as display:
        display.update(FULL)
        drawing = count_calls(lambda: draw(FULL, [0.5], 100))
        updates = [count_calls(lambda: display.update(FULL)) for _ in range(100)]
    assert max(updates) <= 12 < drawing
