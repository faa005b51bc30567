"""`navrl replay`, `video` and `report`: from an evaluation, from a policy, and mistakes named."""

from __future__ import annotations

import pytest
from made_flights import made_recording
from made_runs import made_run
from PIL import Image

from navrl.cli import main
from navrl.view.recordings import fly_recordings, saved_recordings

QUICK = ["env.max_episode_length=20", "env.num_obstacles=20", "env_dyn.num_obstacles=8"]


@pytest.fixture
def evaluation(tmp_path):
    """The folder of an evaluation with flights of two scenarios."""
    folder = tmp_path / "evaluation"
    (folder / "recordings").mkdir(parents=True)
    for name in ("standard", "crossing"):
        made_recording(scenario=name).save(folder / "recordings" / f"{name}.npz")
    (folder / "evaluation.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["", "evaluation.json", "recordings/crossing.npz"])
def test_an_evaluation_is_found_by_its_folder_or_a_file_of_it(evaluation, tmp_path, capsys, name):
    page = tmp_path / "pages" / "flight.html"
    assert main(["replay", str(evaluation / name), "-o", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    assert "crossing" in page.read_text()


def test_one_scenario_of_an_evaluation_is_chosen_by_name(evaluation):
    (chosen,) = saved_recordings(str(evaluation), ["crossing"])
    assert chosen.scenario == "crossing"
    assert {one.scenario for one in saved_recordings(str(evaluation))} == {"standard", "crossing"}


def test_a_scenario_that_was_not_recorded_is_refused(evaluation, capsys):
    assert main(["replay", str(evaluation), "--scenario", "dense"]) == 2
    assert "it has crossing, standard" in capsys.readouterr().err


def test_a_policy_is_flown_in_each_scenario(tmp_path):
    recordings = fly_recordings("scripted", ["static", "crossing"], QUICK, flights=3)
    assert [recording.scenario for recording in recordings] == ["static", "crossing"]
    assert [recording.flights for recording in recordings] == [3, 3]
    assert len(recordings[1].moving_width) == 8


def test_another_world_has_other_obstacles():
    first, second = (
        fly_recordings("scripted", ["static"], QUICK, flights=1, world=world)[0].boxes
        for world in (0, 1)
    )
    assert first.shape != second.shape or (first != second).any()


def test_a_policy_can_be_replayed_without_an_evaluation(tmp_path):
    page = tmp_path / "flight.html"
    assert main(["replay", "scripted", *QUICK, "--flights", "2", "-o", str(page)]) == 0
    assert page.stat().st_size < 500_000


def test_a_video_of_an_evaluation_is_written(evaluation, tmp_path, capsys):
    film = tmp_path / "flight.gif"
    options = ["--scenario", "crossing", "--size", "96x64", "--fps", "2", "--follow", "3"]
    assert main(["video", str(evaluation), *options, "-o", str(film)]) == 0
    assert "scenario crossing" in capsys.readouterr().out
    with Image.open(film) as image:
        assert image.size == (96, 64)


def test_a_report_of_a_run_is_written(tmp_path, capsys):
    run = made_run(tmp_path / "run")
    assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    assert "Learning curves" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["replay", "scripted", "-o", "flight.txt"], "ends in .html"),
        (["replay", "no-such-policy"], "no policy"),
        (["video", "scripted", "-o", "flight.avi"], "ends in .mp4 or .gif"),
        (["video", "scripted", "--size", "large"], "such as 854x480"),
        (["report", "no-such-run"], "holds no metrics.jsonl"),
        (["report", "no-such-run", "-o", "report.pdf"], "ends in .html"),
    ],
)
def test_a_mistake_is_named_before_anything_is_flown(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_named(evaluation, capsys):
    assert main(["replay", str(evaluation), "-o", str(evaluation / "evaluation.json/a.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
