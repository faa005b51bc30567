"""The robustness card: conditions over a scenario, the same trips in every row, files."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from navrl.cli import main
from navrl.config import load_config
from navrl.evaluation import Policy
from navrl.evaluation.card.card_rows import fly_card
from navrl.evaluation.card.conditions import CONDITIONS, NOMINAL, Condition
from navrl.sim.settings import NavigationSettings

TINY = ["flight.episodes=8", "flight.worlds=2", "env.max_episode_length=40"]


def straight(observation: dict[str, torch.Tensor]) -> torch.Tensor:
    return 2.0 * observation["state"][:, :3]


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: f"{c.group}: {c.name}")
def test_every_condition_has_valid_settings(condition):
    task = NavigationSettings()
    for key, value in condition.settings.items():
        task.set(key, value)
    task.check()
    assert condition.group == NOMINAL or task != NavigationSettings()


def test_conditions_are_told_apart_and_the_first_is_nominal():
    assert CONDITIONS[0].settings == {}
    assert len({(each.group, each.name) for each in CONDITIONS}) == len(CONDITIONS)


def test_every_row_flies_the_same_trips_and_the_commands_obey_a_speed_limit():
    rows = fly_card(
        Policy("straight", straight),
        "light",
        load_config(TINY),
        {"env.max_episode_length"},
        conditions=(
            CONDITIONS[0],
            Condition("speed limit", "0.5 m/s", {"env.action_limit": 0.5}),
            Condition("moving obstacles", "none", {"env_dyn.num_obstacles": 0}),
        ),
    )
    nominal, slow, calm = (row.flights.statistics for row in rows)
    for other in (slow, calm):
        assert torch.equal(nominal["distance"], other["distance"])
    assert (slow["mean_speed"] < 0.5 * nominal["mean_speed"]).all()
    assert rows[0].change.mean == 0.0


@pytest.mark.slow
def test_a_card_leaves_a_table_numbers_and_a_picture(tmp_path, capsys, monkeypatch):
    shown = (CONDITIONS[0], CONDITIONS[2], CONDITIONS[-1])
    monkeypatch.setattr("navrl.evaluation.card.conditions.CONDITIONS", shown)
    words = ["eval", "scripted", "--card", *TINY, "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "8 episodes in 2 worlds a row" in printed
    assert "30 % missed + noise" in printed
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["scenario"], card["episodes"], card["worlds"]) == ("standard", 8, 2)
    assert [row["settings"] for row in card["rows"]] == [dict(each.settings) for each in shown]
    for row in card["rows"]:
        assert row["success_100"]["low"] <= row["success_100"]["mean"]
    with Image.open(tmp_path / "card.png") as picture:
        assert picture.width > 800


MISTAKES = {
    "two policies": (["eval", "scripted", "orca", "--card"], "one policy"),
    "a shield": (["eval", "scripted", "--card", "--shield"], "--shield"),
    "a grid": (["eval", "scripted", "--card", "--scenario", "grid"], "one scenario"),
    "two scenarios": (["eval", "scripted", "--card", "--scenario", "static,light"], "one scenario"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_told_before_anything_flies(capsys, kind):
    arguments, piece = MISTAKES[kind]
    assert main(arguments) == 2
    assert piece in capsys.readouterr().err
