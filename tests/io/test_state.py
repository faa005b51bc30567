"""States: every supported object comes back as it was; everything else is refused by its place."""

from __future__ import annotations

import dataclasses
import enum
import random
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from io_states import TinyTraining, assert_same, everything

from navrl.errors import CheckpointError, UnsupportedStateError
from navrl.io import (
    get_random_state,
    load_checkpoint,
    read_index,
    save_checkpoint,
    set_random_state,
)
from navrl.io.container.codecs import CODECS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_one_of_each_comes_back_as_it_was(tmp_path, codec):
    state = everything()
    save_checkpoint(state, tmp_path / "x.pt", codec=codec)
    assert_same(load_checkpoint(tmp_path / "x.pt"), state)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.complex_numbers()
)
keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.tuples(st.integers(), st.text(max_size=3))
)
states = st.recursive(
    scalars
    | st.builds(
        lambda n, s: torch.arange(n * s).reshape(n, s).float(), st.integers(0, 3), st.integers(0, 3)
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(state=states)
@settings(max_examples=150, deadline=None)
def test_any_nesting_of_supported_objects_comes_back_as_it_was(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("nested") / "x.pt"
    save_checkpoint(state, path, codec="raw")
    assert_same(load_checkpoint(path), state)


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    shared = torch.randn(100, 100)
    save_checkpoint({"a": shared, "b": [shared], "c": shared.T}, tmp_path / "x.pt")
    assert len(read_index(tmp_path / "x.pt").arrays) == 2
    loaded = load_checkpoint(tmp_path / "x.pt")
    assert loaded["a"].data_ptr() == loaded["b"][0].data_ptr()


def test_a_slice_of_a_large_tensor_stores_the_slice(tmp_path):
    save_checkpoint({"x": torch.randn(1_000_000)[:10]}, tmp_path / "x.pt", codec="raw")
    assert (tmp_path / "x.pt").stat().st_size < 1000


def test_a_module_loads_its_state_again_with_its_versions(tmp_path):
    training = TinyTraining()
    training.step()
    state = training.state()
    save_checkpoint(state, tmp_path / "x.pt")
    loaded = load_checkpoint(tmp_path / "x.pt")
    assert loaded["model"]._metadata == state["model"]._metadata
    other = TinyTraining()
    other.model.load_state_dict(loaded["model"])
    other.adam.load_state_dict(loaded["adam"])
    assert_same(other.adam.state_dict(), state["adam"])


def test_random_generators_go_on_where_they_were(tmp_path):
    generator = np.random.default_rng(3)
    state = {"global": get_random_state(), "generator": generator.bit_generator.state}
    save_checkpoint(state, tmp_path / "x.pt")
    expected = random.random(), np.random.rand(), torch.rand(1).item(), generator.random()
    loaded = load_checkpoint(tmp_path / "x.pt")
    set_random_state(loaded["global"])
    again = np.random.default_rng()
    again.bit_generator.state = loaded["generator"]
    assert (random.random(), np.random.rand(), torch.rand(1).item(), again.random()) == expected


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


Point = namedtuple("Point", "x y")
UNSUPPORTED = {
    "a dataclass": (Settings(), "asdict"),
    "a function": (len, "state_dict"),
    "a module": (torch.nn.Linear(1, 1), "state_dict"),
    "an enum": (enum.Enum("E", "a").a, "state_dict"),
    "a defaultdict of code": (defaultdict(lambda: 1), "plain dict"),
    "a named tuple": (Point(1, 2), "plain tuple"),
    "a sparse tensor": (torch.eye(3).to_sparse(), "dense"),
    "a tensor without memory": (torch.empty(3, device="meta"), "dense"),
    "an array of objects": (np.array([None]), "numbers"),
    "an array of texts": (np.array(["a"]), "numbers"),
    "an array in foreign byte order": (np.arange(3, dtype=">i4"), "byte order"),
}


@pytest.mark.parametrize(("value", "advice"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_cannot_be_stored_is_refused_by_its_place_with_advice(tmp_path, value, advice):
    with pytest.raises(UnsupportedStateError, match=rf"deep/\[1\]/here: .*{advice}"):
        save_checkpoint({"deep": [0, {"here": value}]}, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_is_a_checkpoint_error_and_a_type_error():
    assert issubclass(UnsupportedStateError, CheckpointError)
    assert issubclass(UnsupportedStateError, TypeError)


def test_a_state_that_holds_itself_is_refused(tmp_path):
    state: dict = {}
    state["self"] = state
    with pytest.raises(UnsupportedStateError, match="contain itself"):
        save_checkpoint(state, tmp_path / "x.pt")


def test_metadata_that_is_no_json_is_refused(tmp_path):
    with pytest.raises(UnsupportedStateError, match="metadata"):
        save_checkpoint({}, tmp_path / "x.pt", metadata={"x": torch.ones(1)})


def test_keys_that_look_alike_get_different_names(tmp_path):
    state = {0: torch.ones(1), "[0]": torch.zeros(1)}
    save_checkpoint(state, tmp_path / "x.pt")
    assert_same(load_checkpoint(tmp_path / "x.pt"), state)
