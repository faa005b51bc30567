"""Retention: which checkpoints, rollouts and models are pruned, and which never are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from navrl.errors import ConfigError
from navrl.io.retention import Item, Retention, rank


def items(*steps, **metrics):
    """Return items saved in this order; each metric is a list, one value an item."""
    return [
        Item(
            step,
            order=place,
            step=step,
            metrics={name: values[place] for name, values in metrics.items()},
        )
        for place, step in enumerate(steps)
    ]


def kept(retention, candidates):
    prunable = retention.prunable(candidates)
    return [item.stored for item in candidates if item.stored not in prunable]


def test_without_rules_everything_is_kept():
    assert Retention().prunable(items(*range(9))) == []


def test_the_last_saved_are_kept_whatever_their_steps():
    assert kept(Retention(keep_last_n=2), items(5, 100, 9, 3)) == [9, 3]


def test_the_oldest_is_pruned_first():
    shuffled = [Item(order, order=order) for order in (3, 1, 4, 2)]
    assert Retention(keep_last_n=1).prunable(shuffled) == [1, 2, 3]


def test_the_best_are_kept_beside_the_last():
    candidates = items(*range(5), reward=[1.0, 9.0, 3.0, 8.0, 2.0])
    assert kept(Retention(keep_last_n=1, keep_best=2, metric="reward"), candidates) == [1, 3, 4]


def test_the_lowest_are_best_when_asked_to():
    rules = Retention(keep_last_n=1, keep_best=1, metric="loss", mode="min")
    assert kept(rules, items(0, 1, 2, loss=[1.0, 9.0, 3.0])) == [0, 2]


def test_every_kth_step_is_kept_for_good():
    rules = Retention(keep_last_n=1, keep_every=20)
    assert kept(rules, items(*range(0, 100, 5))) == [0, 20, 40, 60, 80, 95]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "9", 10**400])
def test_a_value_that_is_not_a_finite_number_is_never_best(value):
    rules = Retention(keep_last_n=1, keep_best=3, metric="reward")
    assert kept(rules, items(1, 2, 3, reward=[value, -5.0, value])) == [2, 3]


def test_an_item_without_the_metric_is_never_best():
    rules = Retention(keep_last_n=1, keep_best=2, metric="reward")
    assert kept(rules, items(1, 2, 3)) == [3]


def test_of_equally_good_items_the_newer_ranks_first():
    ranked = rank(items(1, 2, 3, reward=[5.0, 5.0, 4.0]), "reward")
    assert [item.stored for item in ranked] == [2, 1, 3]


def test_what_is_pinned_is_kept():
    candidates = [Item("old", order=0, pinned=True), Item("older", order=-1), Item("new", order=1)]
    assert Retention(keep_last_n=1).prunable(candidates) == ["older"]


def test_the_whole_chain_that_a_kept_item_builds_on_is_kept():
    chain = [
        Item("a", order=0, name="a"),
        Item("other", order=1, name="other"),
        Item("b", order=2, name="b", base="a"),
        Item("c", order=3, name="c", base="b"),
    ]
    assert Retention(keep_last_n=1).prunable(chain) == ["other"]


def test_bases_that_form_a_circle_end():
    circle = [
        Item("a", order=0, name="a", base="b"),
        Item("b", order=1, name="b", base="a"),
        Item("c", order=2, name="c", base="missing"),
    ]
    assert Retention(keep_last_n=1).prunable(circle) == ["a", "b"]
    assert Retention(keep_last_n=2).prunable(circle) == []


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"keep_last_n": 0}, "keep_last_n is 0"),
        ({"keep_last_n": True}, "keep_last_n is True"),
        ({"keep_best": 1}, "metric"),
        ({"keep_best": -1, "metric": "reward"}, "keep_best is -1"),
        ({"keep_every": -1}, "keep_every is -1"),
        ({"mode": "most"}, "mode is 'most'"),
    ],
)
def test_impossible_rules_are_refused_by_name(rules, named):
    with pytest.raises(ConfigError, match=named):
        Retention(**rules)


# Any rules on any items.

POLICIES = st.builds(
    Retention,
    keep_last_n=st.integers(1, 5),
    keep_best=st.integers(0, 4),
    metric=st.just("score"),
    mode=st.sampled_from(["max", "min"]),
    keep_every=st.integers(0, 6),
)


@st.composite
def stored_items(draw):
    """Return items in any order, some pinned, each a difference to one saved before it or whole."""
    found = []
    for order in range(draw(st.integers(0, 12))):
        found.append(
            Item(
                order,
                order=order,
                step=draw(st.integers(0, 30)),
                metrics={"score": draw(st.none() | st.floats(width=16))},
                pinned=draw(st.booleans()),
                name=str(order),
                base=draw(st.none() | st.sampled_from([str(n) for n in range(order)] or [None])),
            )
        )
    return draw(st.permutations(found))


@given(POLICIES, stored_items())
def test_what_is_pruned_is_what_no_rule_no_pin_and_no_chain_keeps(policy, candidates):
    pruned = policy.prunable(candidates)
    by_order = {item.order: item for item in candidates}
    left = {order for order in by_order if order not in pruned}
    sign = 1 if policy.mode == "max" else -1
    scores = [
        (sign * item.metrics["score"], item.order)
        for item in candidates
        if item.metrics["score"] is not None and math.isfinite(item.metrics["score"])
    ]
    wanted = set(sorted(by_order)[-policy.keep_last_n :])
    wanted |= {order for _, order in sorted(scores, reverse=True)[: policy.keep_best]}
    wanted |= {item.order for item in candidates if item.pinned}
    if policy.keep_every:
        wanted |= {item.order for item in candidates if item.step % policy.keep_every == 0}
    # a base was saved before what builds on it, so one pass from the newest finds whole chains
    for order in sorted(by_order, reverse=True):
        if order in wanted and by_order[order].base is not None:
            wanted.add(int(by_order[order].base))
    assert left == wanted
    assert pruned == sorted(pruned)


@given(POLICIES, stored_items())
def test_pruning_again_prunes_nothing(policy, candidates):
    pruned = policy.prunable(candidates)
    left = [item for item in candidates if item.stored not in pruned]
    assert policy.prunable(left) == []


@given(st.integers(1, 5), stored_items())
def test_what_is_pruned_does_not_depend_on_the_order_of_the_listing(count, candidates):
    policy = Retention(count, keep_best=2, metric="score", keep_every=7)
    assert policy.prunable(candidates) == policy.prunable(candidates[::-1])
