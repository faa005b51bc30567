"""The report of runs: read from their folders, opened in a browser, leading to the replays."""

from __future__ import annotations

import json
import math

import pytest
from browser import Opened, started_browser
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_run

from navrl.errors import ConfigError, ContainerError
from navrl.view.report import read_run, report_page, write_report
from navrl.view.report.charts import nice_ticks, number
from navrl.view.report.run_data import differing, group_by_settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    seeds = [made_run(folder / f"seed{seed}", seed=seed) for seed in range(3)]
    other = made_run(folder / "few", seed=0, env={"num_obstacles": 100})
    return [*seeds, other]


@pytest.fixture(scope="module")
def written(runs):
    path = runs[0].parent / "report.html"
    write_report(runs, path)
    return path


@pytest.fixture(scope="module")
def opened(written):
    with started_browser() as browser:
        page = Opened(browser, written, viewport={"width": 1100, "height": 800})
        yield page
        page.page.close()


def test_the_page_logs_no_error_and_requests_nothing_but_itself(opened, written):
    assert opened.complaints == []
    assert opened.requests == [written.as_uri()]


def test_every_section_is_there(opened):
    titles = opened.page.locator("h2").all_inner_texts()
    assert titles == [
        "Result",
        "Learning curves",
        "Failures",
        "Training",
        "Where the time goes",
        "Speed and memory",
        "Checkpoints",
        "Settings that differ",
        "Runs",
    ]


def test_curves_are_drawn(opened):
    picture = opened.pixels("figure >> nth=0").reshape(-1, 3)
    blue = (abs(picture.astype(int) - [0, 114, 178]).max(1) < 30).sum()
    assert blue > 40


def test_seeds_of_an_experiment_have_a_mean_with_an_interval(opened):
    first = opened.page.locator("figure").first
    assert first.locator("polyline").count() == 5  # three seeds, their mean, the other run
    assert first.locator(".faint-line").count() == 3
    assert first.locator("polygon").count() == 2
    assert "mean of 3 seeds" in first.locator("title").all_text_contents()[0]


def test_a_failure_leads_to_its_replay(opened):
    opened.page.locator(".links a", has_text="crossing 3").first.click()
    opened.wait("!!window.replay && replay.drawn > 0")
    assert opened.page.evaluate("replay.scene.flights[replay.chosen].episode") == 3
    opened.page.go_back()


def test_the_page_is_dark_where_the_system_is(opened):
    opened.page.emulate_media(color_scheme="dark")
    assert opened.pixels("body").mean() < 80
    opened.page.emulate_media(color_scheme="light")
    assert opened.pixels("body").mean() > 200


def test_a_narrow_window_does_not_scroll_sideways(opened):
    opened.page.set_viewport_size({"width": 390, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.page.set_viewport_size({"width": 1100, "height": 800})


def test_the_numbers_are_those_of_the_files(written):
    page = written.read_text()
    for words in ("90.0 %", "86.0–94.0", "0.25 ms", "1,234 MB", "20.0 %"):
        assert words in page


def test_four_runs_fit_into_a_quarter_of_a_megabyte(written):
    assert written.stat().st_size <= 250_000


def test_only_settings_that_differ_are_listed(runs):
    found = differing([read_run(run) for run in runs])
    assert found == {"seed": [0, 1, 2, 0], "env.num_obstacles": [350, 350, 350, 100]}


def test_runs_that_differ_by_their_seed_belong_together(runs):
    assert group_by_settings([read_run(run) for run in runs]) == [[0, 1, 2], [3]]


def test_a_run_in_progress_has_a_report_of_what_is_there(tmp_path):
    run = made_run(tmp_path / "young", iterations=3, ended=False)
    page = report_page([read_run(run)], tmp_path)
    assert "not finished, iteration 3" in page
    assert "No run has its final evaluation yet" in page


def test_a_run_outside_of_a_repository_has_a_report(tmp_path):
    run = made_run(tmp_path / "run")
    about = json.loads((run / "run.json").read_text()) | {"git": None, "machine": None}
    (run / "run.json").write_text(json.dumps(about))
    assert "navrl 0.1.0" in report_page([read_run(run)], tmp_path)


def test_times_of_phases_are_taken_from_totals_where_they_were_logged(tmp_path):
    run = made_run(tmp_path / "run", iterations=100)
    assert read_run(run).phase_seconds() == {
        "policy_training": 100.0,
        "data_collection": 50.0,
        "evaluation": 8.0,
        "checkpoint_save": 0.02,
    }
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"seconds/evaluation": 7.5, "seconds/data_collection": 40.0}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert read_run(run).phase_seconds() == {"data_collection": 40.0, "evaluation": 7.5}


def test_names_in_files_cannot_add_markup(tmp_path):
    run = made_run(tmp_path / "run", note="<img src=x onerror=alert(1)>")
    other = made_run(tmp_path / "a<b>", note="&")
    page = report_page([read_run(run), read_run(other)], tmp_path)
    assert "<img" not in page
    assert "a<b>" not in page
    assert "a&lt;b&gt;" in page


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("name", "text"), [("run.json", "{"), ("evaluation.json", "[1]")])
def test_a_damaged_file_of_a_run_is_named(tmp_path, name, text):
    run = made_run(tmp_path / "run")
    (run / name).write_text(text)
    with pytest.raises(ContainerError, match=name):
        read_run(run)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_few_round_and_cover_the_interval(low, span, count):
    ticks = nice_ticks(low, low + span, count)
    assert ticks[0] <= low + span * 1e-6
    assert ticks[-1] >= (low + span) - span * 1e-6
    assert 2 <= len(ticks) <= count + 2
    step = ticks[1] - ticks[0]
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - nice) for nice in (1, 2, 2.5, 5, 10)) < 0.01


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (999, "999"), (2004.0, "2,004"), (24.1e6, "24.1 M"), (math.nan, "–")],
)
def test_numbers_are_written_for_people(value, text):
    assert number(value) == text
