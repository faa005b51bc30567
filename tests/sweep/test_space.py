"""The file of a sweep: what it may say, and what is said about mistakes."""

import pytest
import yaml

from navrl.cli import main
from navrl.errors import ConfigError
from navrl.sweep.space import TEMPLATE, Choice, Range, load_space

GOOD = {"space": {"algo.gamma": [0.98, 0.99], "seed": {"low": 0, "high": 4}}}


def written(tmp_path, content):
    path = tmp_path / "space.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_lists_and_ranges_are_read(tmp_path):
    space = load_space(written(tmp_path, {**GOOD, "settings": ["preset=quick"], "trials": 3}))
    assert space.space == {"algo.gamma": Choice((0.98, 0.99)), "seed": Range(0, 4)}
    assert space.space["seed"].whole
    assert space.config({"algo.gamma": 0.98, "seed": 3}).seed == 3
    assert space.overrides({"seed": 3}) == ["preset=quick", "seed=3"]


def test_a_list_of_lists_is_typed_as_a_user_would(tmp_path):
    space = load_space(written(tmp_path, {"space": {"env_dyn.obstacles_per_world": [[0, 80], []]}}))
    assert space.config({"env_dyn.obstacles_per_world": "[0,80]"}).env_dyn.obstacles_per_world == [
        0,
        80,
    ]


def test_a_grid_has_every_combination(tmp_path):
    content = {"space": {"algo.gamma": [0.9, 0.99], "seed": {"low": 0, "high": 4, "step": 2}}}
    space = load_space(written(tmp_path, {**content, "sampler": "grid", "trials": 2}))
    assert space.count == 6
    assert {"algo.gamma": 0.99, "seed": 4} in space.grid()


MISTAKES = {
    "no space": ({"trials": 3}, "no `space`"),
    "empty space": ({"space": {}}, "at least one"),
    "unknown key": ({**GOOD, "trails": 3}, "Did you mean 'trials'?"),
    "unknown setting": ({"space": {"algo.gama": [1]}}, "Did you mean 'algo.gamma'?"),
    "impossible value": ({"space": {"algo.gamma": [7]}}, "algo.gamma is 7"),
    "one number": ({"space": {"algo.gamma": 0.9}}, "expected a list of values"),
    "empty list": ({"space": {"algo.gamma": []}}, "expected a list of values"),
    "backwards": ({"space": {"seed": {"low": 4, "high": 1}}}, "low < high"),
    "logarithm of zero": ({"space": {"seed": {"low": 0, "high": 1, "log": True}}}, "above 0"),
    "log and step": ({"space": {"seed": {"low": 1, "high": 9, "log": True, "step": 2}}}, "one of"),
    "unknown word": ({"space": {"seed": {"low": 1, "high": 9, "lag": 2}}}, "expected a list"),
    "unknown sampler": ({**GOOD, "sampler": "randon"}, "Did you mean 'random'?"),
    "no trials": ({**GOOD, "trials": 0}, "trials is 0"),
    "settings as text": ({**GOOD, "settings": "seed=1"}, "expected a list"),
    "endless grid": ({"space": {"seed": {"low": 1, "high": 9}}, "sampler": "grid"}, "no step"),
    "not YAML": ("space: [", "not a YAML file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_the_file(tmp_path, mistake):
    content, told = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        load_space(written(tmp_path, content))
    assert told in str(caught.value)
    assert "space.yaml" in str(caught.value)


def test_the_template_is_a_sweep_and_replaces_no_file(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    assert main(["sweep", "new", str(path)]) == 0
    assert path.read_text() == TEMPLATE
    assert load_space(path).trials == 20
    assert main(["sweep", "new", str(path)]) == 2
    assert "exists" in capsys.readouterr().err
