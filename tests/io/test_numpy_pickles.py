"""NumPy in old `torch.save` files: numbers and text load without trust, and nothing else does."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from navrl.io import load_checkpoint
from navrl.io.checkpoint.torch_files import UnsafePickleError

dtypes = (
    npst.boolean_dtypes()
    | npst.integer_dtypes(endianness="?")
    | npst.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | npst.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | npst.unicode_string_dtypes(endianness="?")
)


@given(
    array=npst.arrays(dtypes, npst.array_shapes(min_dims=0, min_side=0)),
    order=st.sampled_from("CF"),
)
@settings(max_examples=100)
def test_an_array_comes_back_as_it_was(tmp_path_factory, array, order):
    array = np.array(array, order=order)
    path = tmp_path_factory.mktemp("numpy") / "old.pt"
    torch.save({"weights": torch.ones(2), "nested": [(array,)]}, path)
    back = load_checkpoint(path)["nested"][0][0]
    assert back.dtype == array.dtype
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "value", [np.float64(0.5), np.int32(-3), np.bool_(True), np.complex64(1j), np.str_("ab")]
)
def test_a_number_comes_back_with_its_type(tmp_path, value):
    torch.save({"best": value}, tmp_path / "old.pt")
    back = load_checkpoint(tmp_path / "old.pt")["best"]
    assert back == value
    assert type(back) is type(value)


class Marker:
    """Leaves a file behind if it is ever unpickled."""

    def __reduce__(self):
        return open, ("ran", "w")


REFUSED = {
    "objects": np.array([Marker()], dtype=object),
    "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "records": np.zeros(2, dtype=[("a", "i4")]),
    "code": Marker(),
}


@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_would_need_code_is_refused_and_does_not_run(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    torch.save({"value": value}, "old.pt")
    with pytest.raises(UnsafePickleError, match=r"old\.pt.*trusted=True"):
        load_checkpoint("old.pt")
    assert not (tmp_path / "ran").exists()


class Crafted:
    """Pickles as a call that a real array never makes."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


float64 = np.dtype("f8")
reconstruct = np._core.multiarray._reconstruct
CALLS = {
    "too few bytes": (
        reconstruct,
        (np.ndarray, (0,), b"b"),
        (1, (1 << 40,), float64, False, b"\0" * 8),
    ),
    "a state that is no tuple": (reconstruct, (np.ndarray, (0,), b"b"), 3),
    "a number without bytes": (np._core.multiarray.scalar, (float64, b"")),
    "a dtype of fields": (np.dtype, ("i4,i4", False, True)),
    "an absurd dtype": (np.dtype, ("V999999999999",)),
    "bytes of a size": (bytes, (1 << 40,)),
}


@pytest.mark.usefixtures("one_fault")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_crafted_array_is_refused_before_memory_is_taken(tmp_path, call):
    torch.save({"value": Crafted(*call)}, tmp_path / "old.pt")
    with pytest.raises(UnsafePickleError, match=r"old\.pt"):
        load_checkpoint(tmp_path / "old.pt")


def test_loading_leaves_the_allowed_names_of_torch_alone(tmp_path):
    torch.save({"table": np.arange(3)}, tmp_path / "old.pt")
    load_checkpoint(tmp_path / "old.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "old.pt", weights_only=True)


def test_a_value_that_is_named_often_is_looked_at_once(tmp_path):
    shared = [np.arange(3)]
    for _ in range(60):  # doubles with each level, if it is followed every time
        shared = [shared, shared]
    torch.save({"shared": shared}, tmp_path / "old.pt")
    back = load_checkpoint(tmp_path / "old.pt")["shared"]
    while len(back) == 2:
        assert back[0] is back[1]
        back = back[0]
    assert np.array_equal(back[0], np.arange(3))


def test_a_list_that_holds_itself_comes_back_so(tmp_path):
    ring = [np.float32(1)]
    ring.append(ring)
    torch.save({"ring": ring}, tmp_path / "old.pt")
    back = load_checkpoint(tmp_path / "old.pt")["ring"]
    assert back[1] is back
