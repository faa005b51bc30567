"""The configuration: overrides, presets, what a mistake is told, and that every setting is read by
something.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import navrl
from navrl.commands.train import EPILOG
from navrl.config import (
    Config,
    FlightSettings,
    as_dict,
    as_yaml,
    from_dict,
    known_keys,
    load_config,
)
from navrl.errors import ConfigError
from navrl.sim.settings import REWARD_TERMS, NavigationSettings

SOURCES = Path(navrl.__file__).parent


def test_without_overrides_the_configuration_is_the_defaults():
    assert load_config() == Config()


@pytest.mark.parametrize(
    ("override", "group", "key", "value"),
    [
        ("env.num_envs=256", "env", "num_envs", 256),
        ("env.same_map=true", "env", "same_map", True),
        ("env.goal_radius=1", "env", "goal_radius", 1.0),
        ("env_dyn.num_obstacles=0", "env_dyn", "num_obstacles", 0),
        ("env_dyn.vel_range=[1.0,2.0]", "env_dyn", "vel_range", [1.0, 2.0]),
        ("env.world_files=[a.yaml,b.png]", "env", "world_files", ["a.yaml", "b.png"]),
        ("sensor.lidar_hres=5", "sensor", "lidar_hres", 5.0),
        ("drone.model_name=first_order", "drone", "model_name", "first_order"),
        ("reward.per_second=false", "reward", "per_second", False),
        ("sim.dt=0.02", "sim", "dt", 0.02),
        ("flight.worlds=2", "flight", "worlds", 2),
    ],
)
def test_an_override_sets_one_value_and_no_other(override, group, key, value):
    config, expected = load_config([override]), Config()
    setattr(getattr(expected, group), key, value)
    assert config == expected


def test_the_last_of_two_overrides_counts():
    assert load_config(["env.num_envs=3", "env.num_envs=4"]).env.num_envs == 4


def test_the_seed_is_a_setting_of_the_run():
    assert load_config(["seed=12"]).seed == 12


EXACT = {
    "env.num_worlds": 1,
    "env.map_seed": 0,
    "env.same_map": True,
    "env.num_obstacles": 350,
    "env.quantised_widths": True,
    "env.placement_attempts": 100_000,
    "env.change_world_at_reset": False,
    "env.goal_ends_episode": False,
    "env.max_episode_length": 2200,
    "env.action_repeat": 1,
    "env.action_frame": "world",
    "env.action_limit": 2.0,
    "env.collision": "rays",
    "env.collision_radius": 0.3,
    "env.num_observed": 5,
    "env.layout": "random",
    "env.world_files": [],
    "env.obstacles_per_world": [],
    "env_dyn.num_obstacles": 80,
    "env_dyn.vel_range": [0.5, 1.5],
    "env_dyn.local_range": [5.0, 5.0, 4.5],
    "env_dyn.asymmetric_goals": True,
    "env_dyn.visible_to_lidar": False,
    "sensor.lidar_range": 4.0,
    "sensor.lidar_vfov": [-10.0, 20.0],
    "sensor.lidar_vbeams": 4,
    "sensor.lidar_hres": 10.0,
    "sensor.noise": 0.0,
    "sensor.dropout": 0.0,
    "drone.model_name": "hummingbird",
    "drone.damping": 0.2,
    "drone.mass_variation": 0.0,
    "drone.thrust_variation": 0.0,
    "drone.wind": 0.0,
    "drone.delay": 0,
    "reward.progress": 1.0,
    "reward.alive": 1.0,
    "reward.static": 1.0,
    "reward.dynamic": 1.0,
    "reward.smoothness": 0.1,
    "reward.height": 8.0,
    "reward.goal": 0.0,
    "reward.collision": 0.0,
    "reward.log_reference": 1.0,
    "reward.per_second": False,
    "sim.dt": 0.016,
    "sim.gravity": 9.81,
}


@pytest.fixture(scope="module")
def exact():
    return load_config(["env=navrl_exact"])


@pytest.mark.parametrize("key", EXACT)
def test_the_originals_task_has_the_values_of_its_description(exact, key):
    group, name = key.split(".")
    assert getattr(getattr(exact, group), name) == EXACT[key]


def test_an_override_wins_over_a_preset():
    assert load_config(["env=navrl_exact", "env.num_worlds=4"]).env.num_worlds == 4
    assert load_config(["env.num_worlds=4", "env=navrl_exact"]).env.num_worlds == 4


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("env.num_env=8", "env.num_envs"),
        ("evn.num_envs=8", "env.num_envs"),
        ("sensor.lidar_rang=3", "sensor.lidar_range"),
        ("flight.episode=3", "flight.episodes"),
        ("sed=3", "seed"),
        ("+env.num_worlds_=3", "env.num_worlds"),
        ("env=navrl_exat", "navrl_exact"),
    ],
)
def test_a_name_that_is_mistyped_names_the_nearest(override, nearest):
    with pytest.raises(ConfigError, match=nearest) as caught:
        load_config([override])
    assert "\n" not in str(caught.value)


def test_the_mistyped_one_of_many_overrides_is_named():
    with pytest.raises(ConfigError, match=r"env\.num_wrlds.*env\.num_worlds"):
        load_config(["env.num_envs=8", "env.num_wrlds=3", "sim.dt=0.016"])


@pytest.mark.parametrize(
    ("override", "pieces"),
    [
        ("env.num_envs=many", ("num_envs", "many")),
        ("env.num_envs=1.5", ("num_envs", "1.5")),
        ("env.num_envs=", ("num_envs",)),
        ("env.same_map=perhaps", ("same_map", "perhaps")),
        ("env_dyn.vel_range=fast", ("vel_range", "fast")),
        ("sim.dt=[0.1]", ("dt",)),
        ("seed=first", ("seed", "first")),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(override, pieces):
    with pytest.raises(ConfigError) as caught:
        load_config([override])
    assert all(piece in str(caught.value) for piece in pieces), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["env.num_envs", "train", "--fast"])
def test_an_override_without_a_value_is_told_so(override):
    with pytest.raises(ConfigError, match="has no value"):
        load_config([override])


@pytest.mark.parametrize(
    "override", ["env.num_envs=[1", "=3", "env..num_envs=3", "env.num_envs=${nothing}"]
)
def test_an_override_that_is_no_override_is_refused(override):
    with pytest.raises(ConfigError):
        load_config([override])


@pytest.mark.parametrize(
    "override", ["env.num_envs=0", "sim.dt=-1", "env.layout=circle", "sensor.lidar_hres=7"]
)
def test_an_impossible_value_is_refused_with_its_key(override):
    with pytest.raises(ConfigError, match=override.split("=")[0].replace(".", r"\.")):
        load_config([override])


@pytest.mark.parametrize("chain", ["1", "65", "8 compress_checkpoint=false"])
def test_a_chain_of_differences_that_saves_nothing_is_refused(chain):
    with pytest.raises(ConfigError, match="checkpoint_delta_chain is"):
        load_config(f"checkpoint_delta_chain={chain}".split())


def test_a_mistake_does_not_spoil_the_next_configuration():
    with pytest.raises(ConfigError):
        load_config(["env.nothing=1"])
    assert load_config() == Config()


def test_the_yaml_of_a_configuration_is_the_configuration():
    config = load_config(["env=navrl_exact", "env.num_envs=17"])
    loaded = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(as_yaml(config)))
    )
    assert loaded == config


@functools.cache
def attributes_read():
    """Return every attribute that is read somewhere in the package, except in the dataclasses of
    settings themselves.
    """
    found = set()
    for path in SOURCES.rglob("*.py"):
        left: list[ast.AST] = [ast.parse(path.read_text())]
        while left:
            node = left.pop()
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            if not defines_settings(node):
                left += ast.iter_child_nodes(node)
    return found


def defines_settings(node):
    return isinstance(node, ast.ClassDef) and (
        node.name == "Config" or node.name.endswith("Settings")
    )


@pytest.mark.parametrize("key", known_keys())
def test_every_setting_is_read_by_something(key):
    name = key.split(".")[-1]
    is_weight = key in {
        f"reward.{term.name}" for term in REWARD_TERMS
    }  # kernels read weight_<name>
    assert (f"weight_{name}" if is_weight else name) in attributes_read()


def test_a_setting_that_nothing_reads_would_be_found():
    assert {"num_envs", "gamma", "keep_last_n"} <= attributes_read()
    assert "number_of_wishes" not in attributes_read()


def test_every_key_of_the_tasks_groups_is_among_the_known_ones():
    assert set(NavigationSettings.keys()) <= set(known_keys())
    assert {f"flight.{field.name}" for field in dataclasses.fields(FlightSettings)} <= set(
        known_keys()
    )


CHOICES = sorted(
    f"{path.parent.name}={path.stem}" for path in (SOURCES / "conf").glob("*/[!_]*.yaml")
)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_preset_and_every_part_composes_and_survives_being_saved(choice):
    config = load_config([choice])
    config.check()
    assert from_dict(as_dict(config)) == config


def test_the_help_names_every_preset():
    named = re.findall(r"(?m)^  (preset=\w+) ", EPILOG)
    assert {*named, "preset=none"} == {each for each in CHOICES if each.startswith("preset=")}


def test_the_command_of_the_original_is_accepted():
    """The keys that users of the original type, and those of its checkpoints."""
    config = load_config(
        [
            "env.num_envs=1024",
            "env.num_obstacles=350",
            "env_dyn.num_obstacles=80",
            "compress_checkpoint=True",
            "headless=True",
            "async_checkpoint_queue_size=2",
            "save_compression_level=3",
            "save_interval=10",
            "keep_last_n=2",
            "wandb.mode=online",
        ]
    )
    assert (config.env.num_envs, config.env.num_obstacles, config.env_dyn.num_obstacles) == (
        1024,
        350,
        80,
    )
    assert (config.compress_checkpoint, config.headless) == (True, True)
    assert (config.async_checkpoint_queue_size, config.save_compression_level) == (2, 3)
    assert (config.save_interval, config.keep_last_n, config.wandb.mode) == (10, 2, "online")


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("keep_last=2", "keep_last_n"),
        ("save_intervall=10", "save_interval"),
        ("compress_checkpoints=True", "compress_checkpoint"),
        ("async_checkpoint_queue=2", "async_checkpoint_queue_size"),
        ("algo.actor.learning_rat=1e-4", "algo.actor.learning_rate"),
        ("curriculum.final_colision=3", "curriculum.final_collision"),
        ("wandb.mod=online", "wandb.mode"),
        ("preset=quik", "quick"),
    ],
)
def test_a_mistyped_setting_of_the_run_names_the_nearest(override, nearest):
    with pytest.raises(ConfigError, match=nearest):
        load_config([override])


# What Hydra, a script or a file can say that a training cannot do


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("hydra.run.dir=x", r"'hydra\.run\.dir=x' is a setting of Hydra.*run_folder=PATH"),
        ("hydra/launcher=x", "a setting of Hydra"),
        ("--multirun", "start one run for each value"),
        ("seed=1,2", r"'seed=1,2' has several values; expected one"),
        ("seed=range(1,3)", "has several values; expected one"),
        ("tracker=wandb,mlflow", r"write \[a,b\] for a setting that is a list"),
        (
            "preset=fast",
            "preset is 'fast'; expected one of best, navrl_exact, none, quick, robust, sac, smoke",
        ),
        ("preset=[best,quick]", "expected one of best"),
        ("env=1", "env is '1'; expected one of default, gymnasium, navigation, navrl_exact"),
        ("algo=td3", "algo is 'td3'; expected one of ppo, ppo_exact, sac"),
        ("device=meta", "device is 'meta'; expected cpu, cuda or cuda:0"),
        ("device=mps", "expected cpu, cuda or cuda:0"),
        ("device=xla", "expected cpu, cuda or cuda:0"),
        ("device=cpu:1", "expected cpu, cuda or cuda:0"),
        ("device=cuda:-1", "expected cpu, cuda or cuda:0"),
        ("max_frame_num=1.5", "max_frame_num is 1.5; expected a whole number, such as 40000000"),
        (
            "env.same_map=perhaps",
            "env.same_map is 'perhaps'; expected true or false, such as False",
        ),
        ("curriculum.final_collision=a", "expected a number or null"),
        (
            "algo.actor=3",
            r"algo\.actor is 3; expected its settings one by one, such as algo\.actor\.learning_rate=",
        ),
        ("seed=" + "9" * 5000, "cannot be read"),
        (
            "seed=" + "9" * 4000,
            "seed is a number of 13288 bits; expected a number of at most 64 bits",
        ),
        ("env.num_envs=" + "x" * 5000, r"env\.num_envs is 'xxx"),
        ("x" * 5000 + "=1", "unknown setting 'xxx"),
        ("env.num_envs=[1", "cannot be read; expected key=value, with quotes"),
        ("mlflow.uri='http://ada:secret@h", "cannot be read"),
        ("env.num_envs=训练", "cannot be read; expected key=value, with quotes"),
        ("env.num_envs=0", "expected a value from 1 to 1048576"),
    ],
)
def test_a_mistake_is_told_in_one_short_sentence_of_ours(override, told):
    with pytest.raises(ConfigError, match=told) as caught:
        load_config([override])
    message = str(caught.value)
    assert len(message) < 300
    assert not any(
        word in message for word in ("\n", "hydra.cc", "full_key", "Config search path", "secret@")
    )


@pytest.mark.parametrize(
    "typed", ["runs/训练", "runs/my run ü", "runs/a (2)", "runs/a#b", "2024", "1e3", "true", "a:b"]
)
def test_a_path_needs_no_quotes_within_quotes(typed):
    assert load_config([f"run_folder={typed}"]).run_folder == typed
    assert load_config([f"run_folder='{typed}'"]).run_folder == typed


def test_only_names_that_are_like_the_mistyped_one_are_suggested():
    with pytest.raises(ConfigError) as caught:
        load_config(["frames_per_batch=3"])
    assert "Did you mean" not in str(caught.value)


def test_a_setting_without_its_group_is_found():
    with pytest.raises(ConfigError, match=r"Did you mean 'env\.num_envs'\?"):
        load_config(["num_envs=3"])


def test_a_cuda_device_that_is_not_there_is_named_with_those_that_are(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert load_config(["device=cuda:1"]).device == "cuda:1"
    with pytest.raises(
        ConfigError,
        match="device is 'cuda:7', but this machine has cuda:0 to cuda:1; use those or cpu",
    ):
        load_config(["device=cuda:7"])


@pytest.mark.parametrize("overrides", ["env.num_envs=3", [3], [None], [["seed=1"]]])
def test_overrides_that_are_no_list_of_text_are_refused(overrides):
    with pytest.raises(ConfigError, match="expected"):
        load_config(overrides)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "3"),
        ("seed", None),
        ("seed", True),
        ("device", 3),
        ("tracker_patience", "long"),
        ("env", 3),
        ("algo", {}),
        ("headless", 1),
        ("keep_last_n", 2.5),
        ("tracker_deadline", None),
        ("run_folder", b"x"),
    ],
)
def test_a_script_that_sets_a_value_of_another_type_is_told_the_key(key, value):
    config = Config()
    setattr(config, key, value)
    with pytest.raises(ConfigError, match=rf"^{key} is "):
        config.check()


@pytest.mark.parametrize(
    "values",
    [
        3,
        None,
        [],
        "seed",
        {3: 4},
        {"env": 3},
        {"env": None},
        {"seed": "x" * 9000},
        {"nothing": 1},
        {"env": {"num_envs": []}},
    ],
)
def test_saved_settings_that_are_none_are_refused(values):
    with pytest.raises(ConfigError) as caught:
        from_dict(values)
    assert len(str(caught.value)) < 500


# ---------------------------------------------------------------------- other environments


def test_an_environment_of_another_library_brings_settings_that_suit_it():
    config = load_config(["env=gymnasium", "env.id=Pendulum-v1", "env.options.g=9.5"])
    assert (config.env.name, config.env.id, config.env.options) == (
        "gymnasium",
        "Pendulum-v1",
        {"g": 9.5},
    )
    assert config.env.num_envs == 16
    assert config.registry.best_model_metric == "mean_reward"
    assert from_dict(as_dict(config)) == config


def test_the_navigation_task_is_one_entry_of_the_table():
    from navrl.environments.table import ENVIRONMENTS

    assert load_config(["env=navigation"]) == load_config([])
    assert load_config([]).env.name in ENVIRONMENTS


def test_encoders_are_chosen_by_the_names_of_parts():
    config = load_config(["network.encoders.camera=mlp", "network.hidden=[32,32]"])
    assert config.network.encoders == {"camera": "mlp"}
    assert config.network.hidden == [32, 32]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["env=gymnasium", "env.num_obstacles=3"],
            "env.num_obstacles=3' belongs to the navigation",
        ),
        (["env=python", "reward.goal=3"], "reward.goal=3' belongs to the navigation"),
        (["env=gymnasium", "algo=sac"], "algo=sac trains the navigation task"),
        (["env.options=3"], "env.options is 3; expected its settings"),
        (["network.hidden=[0]"], "network.hidden is"),
        (["network.encoder.camera=mlp"], "Did you mean"),
    ],
)
def test_settings_of_another_task_are_refused(overrides, told):
    with pytest.raises(ConfigError, match=told):
        load_config(overrides)


@pytest.mark.parametrize(
    ("typed", "preset"),
    [
        ([], ["preset=quick"]),
        (["algo=sac"], ["preset=sac"]),
        (["env=navrl_exact"], ["preset=quick"]),
        (["env=gymnasium"], []),
        (["preset=smoke"], []),
    ],
)
def test_only_the_navigation_task_has_a_preset_by_default(typed, preset):
    from navrl.config import with_default_preset

    assert with_default_preset(typed) == [*preset, *typed]


@pytest.mark.parametrize("value", ["[1, [2, [3]]]", "[{a: 1}]", "[0]"])
def test_widths_of_layers_that_are_no_numbers_are_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"network\.hidden is .*; expected up to 64 widths"):
        load_config([f"network.hidden={value}"])
