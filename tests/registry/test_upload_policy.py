"""The upload policy over arbitrary trainings."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.errors import ConfigError
from navrl.registry.metric_names import KNOWN_METRICS, evaluation_metrics, metric_value
from navrl.registry.upload_policy import Action, UploadConditions, UploadPolicy, decide, is_better

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
METRICS = st.dictionaries(
    st.sampled_from(["success_100", "mean_return", "eval/success_rate", "time_out"]),
    NUMBERS | st.none(),
)
POLICIES = st.builds(
    UploadPolicy,
    upload_frequency=st.integers(0, 7),
    save_best_models=st.booleans(),
    best_model_metric=st.sampled_from(["mean_return", "time_out"]),
    best_model_mode=st.sampled_from(["max", "min"]),
    upload_conditions=st.builds(
        UploadConditions,
        min_reward_threshold=st.none() | st.floats(-10, 10),
        min_success_rate=st.none() | st.floats(0, 1),
    ),
    upload_final_model=st.booleans(),
    keep_last_n=st.integers(0, 3),
)


def uploads(actions: list[Action]) -> list[Action]:
    return [action for action in actions if action.what == "upload"]


@settings(deadline=None)
@given(POLICIES, st.lists(METRICS, max_size=30))
def test_over_a_training_every_best_model_was_better_than_all_before_it(policy, evaluations):
    policy.check()
    best, bests = None, []
    for iteration, metrics in enumerate(evaluations, 1):
        actions = decide(policy, iteration, metrics, best)
        assert len(uploads(actions)) <= 1
        if any("best" in action.aliases for action in actions):
            value = metrics[policy.best_model_metric]
            assert math.isfinite(value)
            assert all(
                value > earlier if policy.best_model_mode == "max" else value < earlier
                for earlier in bests
            )
            bests.append(value)
            best = value
    assert policy.save_best_models or not bests


@settings(deadline=None)
@given(POLICIES, METRICS, st.integers(0, 1000), st.none() | NUMBERS, st.booleans())
def test_what_is_uploaded_reached_the_conditions_or_is_the_final_model(
    policy, metrics, iteration, best, final
):
    actions = decide(policy, iteration, metrics, best, final)
    asked = policy.upload_conditions
    for action in uploads(actions):
        assert action.aliases[0] == "latest"
        assert action.reason
        if "final" in action.aliases:
            assert final
            assert policy.upload_final_model
            if len(action.aliases) == 2:
                continue
        if asked.min_reward_threshold is not None:
            assert metrics["mean_return"] >= asked.min_reward_threshold
        if asked.min_success_rate is not None:
            success = [metrics.get(name) for name in ("success_100", "eval/success_rate")]
            assert any(value is not None and value >= asked.min_success_rate for value in success)
    if final and policy.upload_final_model:
        assert len(uploads(actions)) == 1
    assert [action.what for action in actions] in ([], ["upload"], ["upload", "prune"])
    assert (len(actions) == 2) == (bool(actions) and policy.keep_last_n > 0)


@settings(deadline=None)
@given(POLICIES, st.integers(0, 1000))
def test_without_conditions_every_nth_checkpoint_is_uploaded(policy, save):
    policy.upload_conditions, policy.save_best_models = UploadConditions(), False
    due = policy.upload_frequency > 0 and save > 0 and save % policy.upload_frequency == 0
    assert bool(decide(policy, save, {})) == due


def test_a_model_that_is_best_and_due_and_final_is_uploaded_once_with_all_its_names():
    policy = UploadPolicy(upload_frequency=10)
    actions = decide(policy, 20, {"success_100": 0.9}, best=0.8, final=True)
    assert actions[0].aliases == ("latest", "best", "final")
    assert actions[0].reason == "every 10 checkpoints, best success_100 0.9, end of the training"
    assert actions[1].what == "prune"


def test_a_model_as_good_as_the_best_is_not_uploaded_again():
    assert decide(UploadPolicy(), 5, {"success_100": 0.9}, best=0.9) == []


def test_the_reward_goes_by_the_name_that_other_settings_use_too():
    policy = UploadPolicy(upload_conditions=UploadConditions(min_reward_threshold=10.0))
    assert decide(policy, 5, {"success_100": 0.9, "mean_reward": 11.0})
    assert decide(policy, 5, {"success_100": 0.9, "mean_reward": 9.0}) == []
    assert decide(policy, 5, {"success_100": 0.9}) == []


def test_of_two_models_with_the_same_value_the_one_with_more_clearance_is_better_then_the_one_with_more_return():
    best = {"success_100": 0.9, "min_clearance": 0.3, "mean_return": 5.0}
    assert is_better(UploadPolicy(), best | {"min_clearance": 0.4, "mean_return": 4.0}, best)
    assert not is_better(UploadPolicy(), best | {"min_clearance": 0.2, "mean_return": 6.0}, best)
    assert is_better(UploadPolicy(), best | {"mean_return": 5.1}, best)
    assert not is_better(UploadPolicy(), best, best)


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ("mean_reward", "mean_return"),
        ("success_rate", "success_100"),
        ("episode_length", "mean_length"),
        ("mean_return", "reward"),
    ],
)
def test_a_metric_is_found_under_each_of_its_names(asked, stored):
    assert metric_value({stored: 3.0}, asked) == 3.0
    assert metric_value({f"eval/{stored}": 3.0}, asked) == 3.0
    assert metric_value({"mean_speed": 3.0}, asked) is None


def test_the_numbers_of_an_evaluation_have_the_names_of_the_settings_beside_ours():
    row = {
        "mean_return": 5.0,
        "outcomes": {"success_100": {"share": 0.5}},
        "of_successes": {"min_clearance": math.nan},
    }
    assert evaluation_metrics(row) == {
        "mean_reward": 5.0,
        "success_rate": 0.5,
        "mean_return": 5.0,
        "success_100": 0.5,
    }


@pytest.mark.parametrize("metric", KNOWN_METRICS)
def test_every_known_metric_can_choose_the_best_model(metric):
    UploadPolicy(best_model_metric=metric).check()


def test_an_unknown_metric_is_refused_with_the_known_ones_and_the_nearest():
    with pytest.raises(
        ConfigError,
        match=r"'mean_rewrd'; expected one of success_rate, .*Did you mean 'mean_reward'\?",
    ):
        UploadPolicy(best_model_metric="mean_rewrd", save_best_models=False).check()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("upload_frequency", -1),
        ("keep_last_n", -1),
        ("max_retries", -1),
        ("best_model_mode", "most"),
        ("best_model_metric", ""),
    ],
)
def test_an_impossible_setting_is_named(key, value):
    with pytest.raises(ConfigError, match=f"registry.{key}"):
        UploadPolicy(**{key: value}).check()


@pytest.mark.parametrize(
    ("key", "value"),
    [("min_success_rate", 80.0), ("min_success_rate", -0.1), ("min_reward_threshold", math.nan)],
)
def test_an_impossible_condition_is_named(key, value):
    with pytest.raises(ConfigError, match=f"upload_conditions.{key}"):
        UploadPolicy(upload_conditions=UploadConditions(**{key: value})).check()


def test_the_policy_has_every_setting_that_was_asked_for():
    names = {field.name for field in fields(UploadPolicy)}
    assert names >= {
        "upload_frequency",
        "save_best_models",
        "best_model_metric",
        "upload_conditions",
        "upload_final_model",
        "keep_last_n",
        "max_retries",
        "continue_on_upload_failure",
    }
