"""What people put into checkpoints beside tensors: paths, sets, defaultdicts, TensorDicts,
OmegaConf.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict

from navrl.errors import ContainerError, UnsupportedStateError
from navrl.io import AsyncCheckpointSaver, load_checkpoint, read_index, save_checkpoint
from navrl.io.container.tree_reader import unpack_state


def save_now(state, path):
    save_checkpoint(state, path)


def save_in_background(state, path):
    with AsyncCheckpointSaver() as saver:
        saver.save_async(state, path)


@pytest.fixture(params=[save_now, save_in_background])
def round_trip(request, tmp_path):
    def run(value):
        request.param({"value": value}, tmp_path / "x.pt")
        return load_checkpoint(tmp_path / "x.pt")["value"]

    return run


hashable = st.integers() | st.text(max_size=4) | st.builds(Path, st.sampled_from(["a", "runs/b"]))
values = st.recursive(
    hashable | st.frozensets(hashable, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3).map(lambda items: defaultdict(list, items))
    ),
    max_leaves=8,
)


@given(value=values)
@settings(max_examples=60)
def test_any_nesting_of_paths_sets_and_defaultdicts_comes_back_as_it_was(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("foreign") / "x.pt"
    save_checkpoint(value, path, codec="raw")
    back = load_checkpoint(path)
    assert back == value
    assert type(back) is type(value)


def test_a_defaultdict_still_makes_its_defaults(round_trip):
    back = round_trip(defaultdict(list, {"seen": [torch.ones(2)]}))
    assert torch.equal(back["seen"][0], torch.ones(2))
    assert back["unseen"] == []


def test_a_defaultdict_whose_default_is_code_is_refused_by_its_place(tmp_path):
    with pytest.raises(UnsupportedStateError, match=r"counts: .*plain dict"):
        save_checkpoint({"counts": defaultdict(lambda: 3)}, tmp_path / "x.pt")


def test_a_config_comes_back_with_its_interpolations(round_trip):
    back = round_trip(OmegaConf.create({"env": {"num_envs": 4, "twice": ["${env.num_envs}"]}}))
    assert back.env.num_envs == 4
    assert back.env.twice[0] == 4
    back.env.num_envs = 5
    assert back.env.twice[0] == 5


def test_a_tensordict_comes_back_with_nested_batch_sizes_and_names(round_trip):
    inner = TensorDict({"lidar": torch.rand(4, 3, 2)}, [4, 3])
    data = TensorDict(
        {("agents", "observation"): inner, "action": torch.rand(4, 2)}, [4], names=["env"]
    )
    back = round_trip(data)
    assert isinstance(back, TensorDict)
    assert (back == data).all()
    assert back.batch_size == (4,)
    assert back.names == ["env"]
    assert back["agents", "observation"].batch_size == (4, 3)


def test_non_tensor_data_in_a_tensordict_is_kept(round_trip):
    data = TensorDict(
        {"x": torch.zeros(2), "rows": NonTensorStack("a", "b"), "one": NonTensorData(7, [2])}, [2]
    )
    back = round_trip(data)
    assert back.get("rows").tolist() == ["a", "b"]
    assert back.get("one").data == 7
    assert back.get("one").batch_size == (2,)


def test_tensors_in_a_tensordict_can_be_changed_after_the_call(tmp_path):
    data = TensorDict({"x": torch.zeros(1000)}, [1000])
    with AsyncCheckpointSaver() as saver:
        saver.save_async({"data": data}, tmp_path / "x.pt")
        data["x"].fill_(1)
        data["y"] = torch.ones(1000)
    back = load_checkpoint(tmp_path / "x.pt")["data"]
    assert list(back.keys()) == ["x"]
    assert not back["x"].any()


def test_the_tensors_of_a_tensordict_are_named_by_their_keys(tmp_path):
    data = TensorDict({("agents", "lidar"): torch.rand(3)}, [3])
    save_checkpoint({"batch": data}, tmp_path / "x.pt")
    assert [entry.name for entry in read_index(tmp_path / "x.pt").arrays] == ["batch/agents/lidar"]


def test_a_tensor_that_cannot_be_stored_is_found_inside_a_tensordict(tmp_path):
    data = TensorDict({("agents", "sparse"): torch.eye(3).to_sparse()}, [3])
    with pytest.raises(UnsupportedStateError, match=r"batch/agents/sparse: .*dense"):
        save_checkpoint({"batch": data}, tmp_path / "x.pt")


@pytest.mark.slow
def test_without_their_libraries_they_come_back_as_plain_dicts(tmp_path):
    state = {
        "data": TensorDict({"x": torch.ones(2), "s": "word"}, [2]),
        "cfg": OmegaConf.create({"a": [1]}),
    }
    save_checkpoint(state, tmp_path / "x.pt")
    program = f"""
import sys
sys.modules["tensordict"] = sys.modules["omegaconf"] = None
from navrl import load_checkpoint
back = load_checkpoint({str(tmp_path / "x.pt")!r})
assert type(back["data"]) is dict and back["data"]["s"] == "word" and back["data"]["x"].sum() == 2
assert back["cfg"] == {{"a": [1]}} and type(back["cfg"]) is dict
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CRAFTED = [
    {"path": 3},
    {"path": {"dict": []}},
    {"set": 3},
    {"set": [[1]]},
    {"defaultdict": {"dict": []}},
    {"defaultdict": {"dict": []}, "factory": "eval"},
    {"defaultdict": 3, "factory": "int"},
    {"config": "text"},
    {"config": {"dict": [["a", "${"]]}},
    {"tensordict": {"dict": [["x", {"tensor": 0}]]}, "batch_size": [7]},
    {"tensordict": {"dict": []}, "batch_size": "many"},
    {"tensordict": {"dict": []}},
    {"tensordict": [1]},
    {"non_tensor": 1},
]


@pytest.mark.parametrize("tree", CRAFTED, ids=str)
def test_a_crafted_tree_is_refused(tree):
    with pytest.raises(ContainerError, match="invalid state tree"):
        unpack_state(tree, lambda number: torch.zeros(3), lambda number: torch.zeros(3).numpy())
