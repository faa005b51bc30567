"""Damaged and hostile model files are refused by an error that names the file and the part."""

from __future__ import annotations

import math

import pytest
import torch

from navrl.cli import main
from navrl.errors import ConfigError, StateError
from navrl.evaluation import PRETRAINED, load_policy
from navrl.io.checkpoint.checkpoint_file import load_checkpoint, save_checkpoint
from navrl.models import _model_of_training, create_navrl_model, load_model
from navrl.rl.networks.navigation import NavigationNetwork, to_upstream

WEIGHT = "lidar.0.weight"  # (4, 1, 5, 3)
MISSING = object()
LONG = "x" * 9000


@pytest.fixture
def crafted(tmp_path):
    """Write a model with other values at dotted places, and return its path."""

    def craft(*changes):
        state = load_checkpoint(PRETRAINED)
        for place, value in changes:
            *parts, name = place
            inner = state
            for part in parts:
                inner = inner[part]
            inner.pop(name) if value is MISSING else inner.update({name: value})
        save_checkpoint(state, tmp_path / "crafted.pt")
        return tmp_path / "crafted.pt"

    return craft


def with_value(value: float) -> torch.Tensor:
    weight = torch.zeros(4, 1, 5, 3)
    weight[1, 0, 2, 1] = value
    return weight


CASES = {
    **{
        f"no {name}": ((name,), MISSING, f"'{name}'")
        for name in ("network", "parameters", "task", "card")
    },
    **{
        f"{name} is a list": ((name,), [1], f"'{name}' is [1]")
        for name in ("network", "parameters", "task", "card")
    },
    **{
        f"{name} is text": ((name,), LONG, f"'{name}' is 'xxx")
        for name in ("network", "parameters", "task", "card")
    },
    "numbers for names": (("parameters",), {3: 4}, "'parameters' is {3: 4}"),
    "no kind": (("kind",), MISSING, "is not a model of navrl"),
    "another kind": (("kind",), torch.ones(2), "is not a model of navrl"),
    "a weight missing": (("parameters", WEIGHT), MISSING, f"no parameter '{WEIGHT}'"),
    "a weight too many": (("parameters", "more"), torch.ones(2), "an unknown parameter 'more'"),
    "a long name": (("parameters", LONG), torch.ones(2), "an unknown parameter 'xxx"),
    "another shape": (
        ("parameters", WEIGHT),
        torch.ones(2, 3),
        f"'{WEIGHT}' has the shape (2, 3); expected (4, 1, 5, 3)",
    ),
    "no elements": (("parameters", WEIGHT), torch.ones(4, 0), f"'{WEIGHT}' has the shape (4, 0)"),
    "whole numbers": (
        ("parameters", WEIGHT),
        torch.ones(4, 1, 5, 3).long(),
        f"'{WEIGHT}' is torch.strided torch.int64",
    ),
    "small floats": (
        ("parameters", WEIGHT),
        torch.ones(4, 1, 5, 3).to(torch.float8_e5m2),
        "expected a dense tensor",
    ),
    "no tensor": (("parameters", WEIGHT), None, f"'{WEIGHT}' is None"),
    "one NaN": (
        ("parameters", WEIGHT),
        with_value(math.nan),
        f"parameter '{WEIGHT}' holds NaN or infinite values (1 of 60)",
    ),
    "one infinity": (
        ("parameters", WEIGHT),
        with_value(-math.inf),
        f"parameter '{WEIGHT}' holds NaN or infinite",
    ),
    "very many rays": (
        ("task", "sensor", "lidar_hres"),
        1e-9,
        "sensor.lidar_hres is 1e-09; expected degrees",
    ),
    "no rays": (("task", "sensor", "lidar_hres"), 0, "sensor.lidar_hres is 0"),
    "no number of rays": (("task", "sensor", "lidar_hres"), math.nan, "sensor.lidar_hres is nan"),
    "very many beams": (
        ("task", "sensor", "lidar_vbeams"),
        10**12,
        "sensor.lidar_vbeams is 1000000000000",
    ),
    "a huge number": (
        ("task", "sensor", "lidar_vbeams"),
        10**5000,
        "sensor.lidar_vbeams is a number of 16610 bits",
    ),
    "a word for a number": (
        ("task", "sensor", "lidar_vbeams"),
        "four",
        "sensor.lidar_vbeams is 'four'",
    ),
    "very many neighbours": (
        ("task", "env", "num_observed"),
        10**12,
        "env.num_observed is 1000000000000",
    ),
    "an unknown setting": (("task", "env", "wings"), 2, "unknown setting 'env.wings'"),
    "a group that is none": (("task", "env"), 3, "env is 3; expected settings by name"),
    "hidden sizes": (("network", "hidden"), 10**12, "network.hidden is 1000000000000"),
    "an unknown network": (("network", "extractor"), "mlp", "network.extractor is 'mlp'"),
    "a long network": (("network", "extractor"), LONG, "network.extractor is 'xxx"),
    "a huge scale": (
        ("network", "distance_scale"),
        10**400,
        "network.distance_scale is a number of 1329 bits",
    ),
    "another network": (("network", "extractor"), "vit", "parameter"),
}


@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("case", CASES)
def test_a_crafted_model_is_refused_by_its_file_and_part(crafted, case):
    place, value, told = CASES[case]
    path = crafted((place, value))
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert told in message
    assert len(message) < 400


@pytest.mark.parametrize("case", ["no task", "one NaN", "another shape", "very many rays"])
def test_the_commands_refuse_a_crafted_model_in_one_line(crafted, case, capsys, tmp_path):
    path = crafted(CASES[case][:2])
    assert main(["eval", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"navrl: {path}")
    assert told.count("\n") == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_weights_of_another_precision_are_taken(crafted, dtype):
    weight = load_checkpoint(PRETRAINED)["parameters"][WEIGHT]
    load_model(crafted((("parameters", WEIGHT), weight.to(dtype))))


@pytest.mark.parametrize(
    "card",
    [
        {"iteration": 10**5000},
        {"iteration": "x", "evaluation": 3},
        {"note": b"\0\1", "evaluation": {"a": {"outcomes": {"s": {"share": math.nan}}}}},
        3,
    ],
    ids=["huge", "words", "bytes", "number"],
)
def test_a_model_with_an_odd_card_can_be_registered_and_shown(crafted, card, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    assert main(["models", "register", "odd", str(crafted((("card",), card)))]) == 0
    for command in (["show", "odd"], ["show", "odd", "--json"], ["card", "odd"], ["ls"]):
        assert main(["models", *command]) == 0


@pytest.mark.parametrize("value", [10**5000, b"bytes"], ids=["huge", "bytes"])
def test_a_model_whose_settings_cannot_be_written_is_not_registered(
    crafted, value, tmp_path, capsys
):
    path = crafted((("task", "env", "num_observed"), value))
    assert (
        main(["models", "register", "odd", str(path), "--registry", str(tmp_path / "registry")])
        == 2
    )
    assert "its settings are not plain values" in capsys.readouterr().err


ORIGINAL = "feature_extractor.module.0.module.0.weight"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (MISSING, "the state has no lidar.0.weight"),
        (torch.ones(2), "parameter 'lidar.0.weight' has the shape (2,)"),
        (with_value(math.nan), "parameter 'lidar.0.weight' holds NaN or infinite values (1 of 60)"),
        (torch.ones(4, 1, 5, 3).long(), "expected a dense tensor of floats"),
        (torch.ones(4, 1, 5, 3).to_sparse(), "expected a dense tensor of floats"),
        (None, "parameter 'lidar.0.weight' is None"),
    ],
)
def test_a_crafted_checkpoint_of_the_original_is_refused_by_its_file_and_weight(
    tmp_path, value, told
):
    state = {**to_upstream(NavigationNetwork()), 3: 4, "extra": "kept out"}
    assert ORIGINAL in state
    state = {key: tensor for key, tensor in state.items() if key != ORIGINAL}
    if value is not MISSING:
        state[ORIGINAL] = value
    torch.save(state, tmp_path / "original.pt")
    with pytest.raises(ConfigError) as caught:
        load_model(tmp_path / "original.pt")
    assert str(caught.value).startswith(str(tmp_path / "original.pt"))
    assert told in str(caught.value)


@pytest.mark.parametrize("case", ["one NaN", "another shape", "a weight missing", "no tensor"])
def test_a_model_of_a_script_keeps_its_weights_when_a_file_does_not_fit(crafted, case):
    model = create_navrl_model({"network": {"relative_motion": True}})
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    with pytest.raises(StateError, match=WEIGHT):
        model.load_checkpoint(crafted(CASES[case][:2]))
    assert all(
        torch.equal(value, before[name]) for name, value in model.network.state_dict().items()
    )


def test_a_model_of_another_network_is_refused_with_the_settings_that_differ():
    with pytest.raises(StateError, match="the file has relative_motion=True, not False"):
        create_navrl_model().load_checkpoint(PRETRAINED)


def test_a_training_checkpoint_is_read_without_the_settings_that_name_its_environment():
    from navrl.config import as_dict, load_config
    from navrl.sim.settings import NavigationSettings

    state = {"config": as_dict(load_config([])), "ranks": [], "model_state_dict": {}}
    task = _model_of_training(state)["task"]
    assert NavigationSettings.from_mapping(task) == load_config([]).task


def test_a_checkpoint_flies_with_the_averaged_weights_that_evaluations_measured(tmp_path):
    model = load_checkpoint(PRETRAINED)
    raw = {name: value + 1 for name, value in model["parameters"].items()}
    config = model["task"] | {"network": model["network"], "seed": 4}
    state = {"iteration": 7, "model_state_dict": raw, "ranks": [{}], "config": config}
    for name, more, expected in (
        ("raw.pt", {}, raw),
        ("averaged.pt", {"average": model["parameters"]}, model["parameters"]),
    ):
        save_checkpoint(state | more, tmp_path / name)
        managed = create_navrl_model({"network": {"relative_motion": True}})
        managed.load_checkpoint(tmp_path / name)
        for network in (load_policy(tmp_path / name).act.network.network, managed.network):
            flown = network.state_dict()
            assert all(torch.equal(flown[key], value) for key, value in expected.items())


def test_a_checkpoint_of_another_environment_flies_with_the_average_too():
    from navrl.general_models import _model_of

    state = {"config": {}, "record": {"observation": []}, "model_state_dict": {"weight": 1.0}}
    assert _model_of(state)["parameters"] == {"weight": 1.0}
    assert _model_of(state | {"average": {"weight": 2.0}})["parameters"] == {"weight": 2.0}


def test_decisions_of_a_checkpoint_are_those_of_its_algorithm():
    config = {"env": {"num_envs": 10}, "algo": {"training_frame_num": 32}}
    state = {"iteration": 3, "config": config | {"sac": {"training_frame_num": 16}}}
    assert policy_card(state)["frames"] == 960
    state["config"]["algorithm"] = "sac"
    assert policy_card(state)["frames"] == 480
    assert "frames" not in policy_card({"iteration": None, "config": config})


def policy_card(state):
    return _model_of_training(state)["card"]
