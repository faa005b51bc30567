"""Segment trees against plain arrays: sums and minima of ranges, and which leaf a mass falls on."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from navrl.errors import ConfigError, ReplayIndexError
from navrl.io.replay.segment_trees import MinTree, SumTree

dtypes = st.sampled_from([torch.float32, torch.float64])
writes = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1000)), max_size=60)


@settings(max_examples=60)
@given(size=st.integers(1, 70), writes=writes, dtype=dtypes, data=st.data())
def test_trees_agree_with_plain_arrays(size, writes, dtype, data):
    sums, least = SumTree(size, dtype), MinTree(size, dtype)
    plain, smallest = np.zeros(size), np.full(size, np.inf)
    if writes:
        places, values = (np.array(column) for column in zip(*writes, strict=True))
        places %= size
        for tree in (sums, least):
            tree[places] = values  # of several for one place the last counts
        for place, value in zip(places, values, strict=True):
            plain[place] = smallest[place] = value
    begin = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(begin + 1, size))
    assert sums.query(begin, end) == plain[begin:end].sum()  # exact, of whole numbers
    assert min(least.query(begin, end), 1e9) == min(smallest[begin:end].min(), 1e9)
    assert np.array_equal(sums[np.arange(size)], plain)
    masses = np.arange(int(plain.sum()) + 1)[1:200]
    assert np.array_equal(sums.scan_lower_bound(masses), np.searchsorted(np.cumsum(plain), masses))


def test_values_come_in_the_form_that_is_asked_for():
    tree = SumTree(4)
    tree[0] = 1.5
    tree[torch.tensor([1, 2])] = torch.tensor([2.0, 3.0])
    tree[[3]] = 4
    assert tree[0] == 1.5
    assert tree[torch.tensor([2, 1])].tolist() == [3.0, 2.0]
    assert tree[np.array([[3, 0]])].shape == (1, 2)
    assert tree.scan_lower_bound(3.0) == 1
    assert tree.scan_lower_bound(torch.tensor([0.0, 100.0])).tolist() == [0, 4]
    assert len(tree) == 4


def test_copies_and_pickles_are_independent():
    tree = SumTree(5)
    tree[np.arange(5)] = 2.0
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        other[0] = 7.0
        assert (tree.query(0, 5), other.query(0, 5)) == (10.0, 15.0)


def test_what_is_outside_is_refused():
    tree = MinTree(5)
    for index in (-1, 8, [0, 99]):
        with pytest.raises(ReplayIndexError, match="out of range"):
            tree[index]
        with pytest.raises(ReplayIndexError, match="out of range"):
            tree[index] = 1.0
    with pytest.raises(ReplayIndexError, match="2 values for 3 indices"):
        tree[[0, 1, 2]] = [1.0, 2.0]
    with pytest.raises(ConfigError, match="size is 0"):
        SumTree(0)
