"""Shapley values: by hand, their axioms as properties, and against all orders."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.analysis.attribution import shapley_values

PLAYERS = "ABCD"
SETS = [frozenset(c) for size in range(5) for c in combinations(PLAYERS, size)]
GAMES = st.lists(st.floats(0, 1, width=32), min_size=len(SETS), max_size=len(SETS)).map(
    lambda worth: dict(zip(SETS, worth))
)


def test_by_hand():
    worth = {"": 0, "A": 12, "B": 6, "C": 0, "AB": 24, "AC": 12, "BC": 18, "ABC": 36}
    found = shapley_values("ABC", lambda names: worth["".join(sorted(names))])
    # orders ABC ACB BAC BCA CAB CBA: A adds 12 12 18 18 12 18, B 12 24 6 6 24 18, C 12 0 12 12 0 0
    assert found == pytest.approx({"A": 15, "B": 15, "C": 6})


def test_nobody_and_one():
    assert shapley_values((), lambda names: 7.0) == {}
    assert shapley_values(["A"], lambda names: 0.3 + 0.4 * len(names)) == pytest.approx({"A": 0.4})
    with pytest.raises(ValueError, match="twice"):
        shapley_values("AA", len)


@given(GAMES)
@settings(deadline=None)
def test_the_shares_add_up_to_the_whole_gain(worth):
    found = shapley_values(PLAYERS, worth.__getitem__)
    assert sum(found.values()) == pytest.approx(worth[frozenset(PLAYERS)] - worth[frozenset()], abs=1e-9)


@given(GAMES)
@settings(deadline=None)
def test_it_is_the_mean_over_all_orders(worth):
    def added(order, player):
        before = frozenset(order[: order.index(player)])
        return worth[before | {player}] - worth[before]

    orders = list(permutations(PLAYERS))
    found = shapley_values(PLAYERS, worth.__getitem__)
    for player in PLAYERS:
        mean = sum(added(order, player) for order in orders) / len(orders)
        assert found[player] == pytest.approx(mean, abs=1e-9)


@given(GAMES)
@settings(deadline=None)
def test_one_that_changes_nothing_gets_nothing(worth):
    found = shapley_values((*PLAYERS, "idle"), lambda names: worth[names - {"idle"}])
    assert found["idle"] == pytest.approx(0, abs=1e-12)
    assert found["A"] == pytest.approx(shapley_values(PLAYERS, worth.__getitem__)["A"], abs=1e-9)
