"""Settings as the user's guides and the original NavRL spell them, and configuration files of the
user's own.
"""

from __future__ import annotations

import pytest

from navrl.conf.user_file import file_overrides
from navrl.config import load_config, our_overrides
from navrl.errors import ConfigError

MODEL_MANAGEMENT = {
    "model_management.upload_frequency=5": lambda config: config.registry.upload_frequency == 5,
    "model_management.save_best_models=false": lambda config: (
        config.registry.save_best_models is False
    ),
    "model_management.best_model_metric=success_100": lambda config: (
        config.registry.best_model_metric == "success_100"
    ),
    "model_management.upload_conditions.min_reward_threshold=50.0": (
        lambda config: config.registry.upload_conditions.min_reward_threshold == 50
    ),
    "model_management.upload_conditions.min_success_rate=0.8": (
        lambda config: config.registry.upload_conditions.min_success_rate == 0.8
    ),
    "model_management.upload_final_model=false": lambda config: (
        config.registry.upload_final_model is False
    ),
    "model_management.keep_last_n=3": lambda config: config.registry.keep_last_n == 3,
    "model_management.continue_on_upload_failure=false": (
        lambda config: config.registry.continue_on_upload_failure is False
    ),
}
ORIGINAL = {
    "max_frame_num=12e8": lambda config: config.max_frame_num == 1_200_000_000,
    "max_frame_num=1.5e3": lambda config: config.max_frame_num == 1500,
    "env.num_envs=64.0": lambda config: config.env.num_envs == 64,
    "algo.feature_extractor.dyn_obs_num=7": lambda config: config.env.num_observed == 7,
    "algo.actor.action_limit=1.5": lambda config: config.env.action_limit == 1.5,
    "sim.gravity=[0,0,-9.5]": lambda config: config.sim.gravity == 9.5,
    "sim.gravity=[0., 0.0, -9.5]": lambda config: config.sim.gravity == 9.5,
    "sim.substeps=1": lambda config: config.sim.dt == 0.016,
    "drone.model_name=hummingbird": lambda config: config.drone.model_name == "hummingbird",
    "wandb.run_id=null": lambda config: config.wandb.run_id == "",
    "wandb.name=null": lambda config: config.wandb.name == "",
    "seed=null": lambda config: config.seed == 0,
    "curriculum.final_collision=null": lambda config: config.curriculum.final_collision is None,
}


@pytest.mark.parametrize("override", [*MODEL_MANAGEMENT, *ORIGINAL])
def test_another_spelling_sets_our_setting(override):
    assert (MODEL_MANAGEMENT | ORIGINAL)[override](load_config([override]))


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("viewer.eye=[0,40,40]", "flights.gif"),
        ("env.env_spacing=8", "side by side"),
        ("sim.gpu_heap_capacity=3", "PhysX"),
        ("sim.use_gpu=true", "PhysX"),
        ("sim.device=cuda:0", "device=cuda:0"),
        ("sim.substeps=2", "sim.dt"),
    ],
)
def test_a_setting_of_the_original_without_meaning_is_refused_with_the_reason(override, reason):
    with pytest.raises(ConfigError, match=f"{override.partition('=')[0]}.*{reason}"):
        load_config([override])


def test_all_settings_without_meaning_are_named_at_once():
    with pytest.raises(ConfigError, match=r"viewer\.eye, viewer\.lookat: .*sim\.solver_type: "):
        load_config(["viewer.eye=1", "viewer.lookat=2", "seed=1", "sim.solver_type=1"])


@pytest.mark.parametrize(
    "override", ["max_frame_num=12.5", "max_frame_num=1e300", "env.num_envs=1e-3"]
)
def test_a_number_that_is_not_whole_is_refused_by_its_setting(override):
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_config([override])


def test_a_misspelt_key_of_the_other_spelling_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean 'registry\.upload_frequency'"):
        load_config(["model_management.upload_frequancy=5"])


def test_translating_twice_changes_nothing():
    once = our_overrides([*MODEL_MANAGEMENT, *ORIGINAL])
    assert our_overrides(once) == once


def write(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)


def test_a_file_of_the_users_own_goes_over_our_defaults_and_overrides_go_over_it(tmp_path):
    text = (
        "defaults: [config, _self_]\nseed: 7\nwandb: {project: mine}\nmodel_management: "
        "{keep_last_n: 3}\nmax_frame_num: 12e8\n"
    )
    write(tmp_path, "own", text)
    config = load_config([*file_overrides(tmp_path, "own"), "seed=9"])
    assert (config.seed, config.wandb.project, config.registry.keep_last_n) == (9, "mine", 3)
    assert config.max_frame_num == 1_200_000_000


def test_a_file_can_choose_groups_and_build_on_files_beside_it(tmp_path):
    write(tmp_path, "base", "seed: 1\nkeep_last_n: 9\n")
    write(
        tmp_path,
        "own",
        "defaults: [base, {preset: smoke}, {override network: vit}, _self_]\nseed: 2\n",
    )
    config = load_config([*file_overrides(tmp_path, "own")])
    assert (config.seed, config.keep_last_n, config.network.extractor) == (2, 9, "vit")
    assert config.max_frame_num == load_config(["preset=smoke"]).max_frame_num


def test_what_is_built_on_wins_over_a_file_that_puts_itself_first(tmp_path):
    write(tmp_path, "base", "seed: 1\n")
    write(tmp_path, "own", "defaults: [_self_, base]\nseed: 2\n")
    assert load_config(file_overrides(tmp_path, "own")).seed == 1


@pytest.mark.parametrize(
    "name", ["it's", 'say "hi"', "a\\b", "end\\", "a,b", "x=y", "${seed}x", "with space", "true"]
)
def test_any_text_in_a_file_arrives_as_it_is(tmp_path, name):
    import yaml

    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"wandb": {"name": name}}))
    expected = "0x" if name == "${seed}x" else name
    assert load_config(file_overrides(tmp_path, "own")).wandb.name == expected


BAD = {
    "no settings": ("- 1\n", "holds list"),
    "no YAML": ("a: [", "cannot be read"),
    "an unknown option": ("defaults: [{preset: bst}]", "defaults has"),
    "a file that is not there": ("defaults: [bose]", "bose.yaml: no such"),
    "a circle": ("defaults: [own]", "leads? back to itself"),
    "an odd name": ("'a b': 1", "no name of a setting"),
    "defaults of the wrong kind": ("defaults: config", "expected a list"),
    "nesting without end": (
        "".join(f"{'  ' * n}a:\n" for n in range(30)),
        "nested too deeply|unknown",
    ),
}


@pytest.mark.parametrize(("text", "match"), BAD.values(), ids=BAD.keys())
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path, text, match):
    write(tmp_path, "own", text)
    with pytest.raises(ConfigError, match=match):
        load_config(file_overrides(tmp_path, "own"))


def test_a_missing_file_is_told_with_those_that_are_there(tmp_path):
    write(tmp_path, "mine", "seed: 1")
    with pytest.raises(
        ConfigError,
        match=r"main\.yaml: no such configuration file; there are mine\. Did you mean 'mine'",
    ):
        file_overrides(tmp_path, "main")


def test_aliases_that_stand_for_millions_of_settings_are_refused(tmp_path):
    lines = ["a0: &a0 {x: 1}"] + [
        f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}" for n in range(1, 8)
    ]
    write(tmp_path, "own", "\n".join(lines))
    with pytest.raises(ConfigError, match="more than 10000 settings"):
        file_overrides(tmp_path, "own")
