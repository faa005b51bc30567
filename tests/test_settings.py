"""`navrl settings`: the reference of settings, read from the code."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from navrl.cli import main
from navrl.conf.overrides import keys_of
from navrl.config import Config, load_config, with_default_preset
from navrl.errors import ConfigError
from navrl.settings_reference import _comments, find_settings, setting_groups

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"


@pytest.fixture(scope="module")
def groups():
    return setting_groups(load_config())


def test_every_setting_that_can_be_typed_is_listed_once(groups):
    listed = [setting.key for group in groups for setting in group.settings]
    assert sorted(listed) == sorted(keys_of(OmegaConf.structured(Config())))


def test_every_group_and_every_setting_says_what_it_sets(groups):
    assert [group.name for group in groups if not group.about] == []
    assert [s.key for group in groups for s in group.settings if not s.meaning] == []


def test_a_meaning_is_the_comment_above_and_beside_the_field():
    source = '''
class Settings:
    """Keys."""

    # first line,
    # second line
    speed: float = 2.0  # m/s
    plain: int = 1
    listed: list = field(
        default_factory=list  # inside
    )

    def check(self):
        # not a field
        value: int = 3
'''
    comments = _comments(source)
    assert comments["speed"] == "first line, second line m/s"
    assert comments["plain"] == ""
    assert comments["listed"] == "inside"


def test_every_default_can_be_typed_as_it_is_shown(groups):
    refused = ("sac", "collect")  # they have no effect without algo=sac and collect=ray
    shown = [s for group in groups if group.name not in refused for s in group.settings]
    typed = [f"{s.key}={s.default}" for s in shown if not s.type.startswith("dict")]
    assert load_config(typed) == load_config()


def test_a_word_finds_settings_by_name_and_by_meaning(groups):
    found = [s.key for group in find_settings(groups, "LiDAR") for s in group.settings]
    assert "sensor.lidar_range" in found
    assert "env.collision" in found  # its comment speaks of rays of the LiDAR
    assert "seed" not in found


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("learning rate", "algo.actor.learning_rate"),
        ("lr", "algo.critic.learning_rate"),
        ("gpu", "device"),
        ("speed", "env_dyn.vel_range"),
    ],
)
def test_a_search_finds_what_people_call_a_setting(groups, word, key):
    assert key in [s.key for group in find_settings(groups, word) for s in group.settings]


@pytest.mark.parametrize(
    ("word", "near"), [("env.num_env_s", "env.num_envs"), ("lidr", "lidar"), ("gama", "gamma")]
)
def test_a_word_that_nothing_contains_suggests_the_nearest(groups, word, near):
    with pytest.raises(ConfigError, match=rf"Did you mean '{near}'"):
        find_settings(groups, word)


def test_a_mistyped_setting_suggests_one_or_names_all_of_that_name():
    with pytest.raises(ConfigError, match=r"unknown setting 'gama'\. Did you mean 'algo.gamma'"):
        load_config(["gama=0.9"])
    every = "algo.feature_extractor.learning_rate, algo.actor.learning_rate, algo.critic"
    with pytest.raises(ConfigError, match=f"Settings of that name: {every}"):
        load_config(["learning_rate=1"])


@pytest.mark.parametrize(
    "typed", [[], ["algo=sac"], ["env=gymnasium", "env.id=CartPole-v1"], ["preset=best"]]
)
def test_the_values_shown_are_those_that_a_training_takes(capsys, typed):
    assert main(["settings", "--json", *typed]) == 0
    groups = json.loads(capsys.readouterr().out)
    values = {each["key"]: each["value"] for group in groups for each in group["settings"]}
    taken = load_config(with_default_preset(typed))
    assert values["max_frame_num"] == str(taken.max_frame_num)
    assert values["env.num_envs"] == str(taken.env.num_envs)
    assert values["algo.gamma"] == str(taken.algo.gamma)


def test_the_command_lists_groups_searches_and_takes_a_preset(capsys):
    assert main(["settings"]) == 0
    assert "env_dyn" in capsys.readouterr().out
    assert main(["settings", "num_worlds", "preset=best", "--json"]) == 0
    [group] = json.loads(capsys.readouterr().out)
    assert group["settings"][0]["value"] == "256"
    assert main(["settings", "num_worlds", "--markdown"]) == 0
    assert "| `env.num_worlds` | int | `64`, `128` |" in capsys.readouterr().out


def test_the_page_is_what_the_command_prints(capsys):
    main(["settings", "--markdown"])
    expected = "run: navrl settings --markdown > docs/settings.md"
    assert capsys.readouterr().out == PAGE.read_text(), expected
