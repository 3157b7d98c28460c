"""Fusion: sums and reciprocal ranks by hand, ties, named sets of weights, and which fit serves whom."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from adaptmr.retrieval import fusion
from adaptmr.retrieval.candidates import select_candidates
from adaptmr.retrieval.fusion import (
    ANY_EMBEDDER,
    RRF_K,
    Fit,
    FitError,
    fit_for,
    fuse_signals,
    score_candidates,
)
from adaptmr.retrieval.query import ParsedQuery, parse_query
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

pytestmark = pytest.mark.numbers

DAY0 = datetime(2024, 5, 1, tzinfo=UTC)
SIX = [
    Memory(f"m{i}", text, who, DAY0 + timedelta(days=i), session="s", step=i)
    for i, (text, who) in enumerate(
        [
            ("I bought a red bicycle", "Ann"),
            ("A bicycle, how nice", "Bob"),
            ("The pond is frozen", "Ann"),
            ("I sold the bicycle", "Ann"),
            ("Good morning", "Bob"),
            ("My trip was lovely", "Ann"),
        ]
    )
]


@pytest.fixture(scope="module")
def store():
    with MemoryStore(embedder="hash") as s:
        s.add(SIX)
        yield s


def given_(store, **values):
    """Candidates whose signals are what is given here, so that what is added up is known."""
    c = select_candidates(ParsedQuery("x", "x", frozenset(), frozenset()), store, 50)
    c.signals.update({name: np.array(v, float) for name, v in values.items()})
    return c


# --- sums


def test_a_sum_by_hand(store):
    c = given_(store, dense=[1, 2, 3, 4, 5, 6], speaker=[0, 1, 0, 0, 1, 0], time=[0.5] * 6)
    total, values = fuse_signals(c, {"dense": 0.5, "speaker": -2.0, "intercept": 10.0})
    assert total.tolist() == [10.5, 9.0, 11.5, 12.0, 10.5, 13.0]
    assert {n: v.tolist() for n, v in values.items()} == {
        "dense": [1, 2, 3, 4, 5, 6],
        "speaker": [0, 1, 0, 0, 1, 0],
    }
    assert fuse_signals(c, {"intercept": -3.0})[0].tolist() == [-3.0] * 6
    assert fuse_signals(c, {})[0].tolist() == [0.0] * 6
    assert fuse_signals(given_(store, dense=[1 / 3] * 6), {"dense": 1.0})[0].tolist() == [0.333333] * 6, (
        "rounded to 1e-6"
    )


# --- reciprocal ranks


def test_reciprocal_ranks_by_hand(store):
    c = given_(store, dense=[10, 50, 30, 30, 20, 30], time=[0, 0, 0, 1, 0, 0])
    total, _ = fuse_signals(c, {"dense": 1.0, "time": 0.5}, "rrf")
    # places by dense: 6 1 2 2 5 2 (who ties shares the better place); by time: 2 2 2 1 2 2
    by_hand = [
        1 / 66 + 0.5 / 62,
        1 / 61 + 0.5 / 62,
        1 / 62 + 0.5 / 62,
        1 / 62 + 0.5 / 61,
        1 / 65 + 0.5 / 62,
        1 / 62 + 0.5 / 62,
    ]
    assert RRF_K == 60 and total == pytest.approx(by_hand, abs=6e-7)
    assert score_candidates(c, {"dense": 1.0, "time": 0.5}, 9, fusion="rrf").rows.tolist() == [
        1,
        3,
        2,
        5,
        4,
        0,
    ], "2 and 5 tie, so by id"
    assert fuse_signals(c, {"dense": 1.0, "intercept": 5.0}, "rrf")[0].max() == round(1 / 61, 6), (
        "ranks know no intercept"
    )


# --- ties, and the order in which things were put in


@pytest.mark.parametrize("how", ["sum", "rrf"])
def test_ties_go_by_id_whatever_the_order_of_insertion(how):
    memories = [Memory(f"m{i:02}", "the same words", "Ann", DAY0, session="s", step=0) for i in range(30)]
    weights = {k: v for k, v in fit_for("hash").weights["hybrid"].items() if k != "intercept"}
    for seed in range(4):
        shuffled = random.Random(seed).sample(memories, 30)
        with MemoryStore(embedder="hash") as s:
            for m in shuffled:
                s.add(m)
            c = select_candidates(parse_query("the same words", s.speakers), s, 50)
            for pool in (5, 30):
                scored = score_candidates(c, weights, pool, fusion=how)
                ids = [s.memories[i].id for i in scored.rows]
                assert len(ids) == pool and (pool < 30 or sorted(ids) == [m.id for m in memories])
                # neighbours differ at the ends only, so among equals the order is that of the ids
                for value in set(scored.scores):
                    assert (same := [i for i, v in zip(ids, scored.scores) if v == value]) == sorted(same)
            assert [s.memories[i].id for i in score_candidates(c, {"dense": 1.0}, 5, fusion=how).rows] == [
                f"m{i:02}" for i in range(5)
            ]


# --- named sets

FIT = Fit(
    "x", weights={"hybrid": {"dense": 2.0, "time": 1.0, "intercept": -3.0}, "multi_hop": {"lexical": 1.0}}
)


def test_named_sets_are_replaced_by_what_was_fitted():
    assert FIT.expand_weights({"hybrid": 1.0}) == {"dense": 2.0, "time": 1.0, "intercept": -3.0}
    assert FIT.expand_weights({"hybrid": 0.5, "time": 1.5, "cue": 1.0}) == {
        "dense": 1.0,
        "time": 2.0,
        "cue": 1.0,
        "intercept": -1.5,
    }
    assert FIT.expand_weights({"multi_hop": 2.0, "hybrid": 1.0}) == {
        "lexical": 2.0,
        "dense": 2.0,
        "time": 1.0,
        "intercept": -3.0,
    }
    assert FIT.expand_weights({"dense": 1.0}) == {"dense": 1.0}
    assert FIT.expand_weights({}) == {}, "signals alone need no fit"


def test_nothing_fitted_is_an_error_that_names_it():
    with pytest.raises(FitError, match=r"fit for x, without c has no weights 'hybrid'"):
        Fit("x", "c").expand_weights({"hybrid": 1.0})
    for name in ("temporal_reasoning", "nonsense", ""):
        with pytest.raises(FitError, match=f"fit for any encoder has no weights '{name}'"):
            Fit(ANY_EMBEDDER, weights={"multi_hop": {"dense": 1.0}}).expand_weights({name: 1.0})
    assert issubclass(FitError, ValueError)


# --- which fit


def test_the_fit_that_never_saw_the_conversation(monkeypatch):
    made = (Fit("a"), Fit("a", "c1"), Fit(ANY_EMBEDDER), Fit(ANY_EMBEDDER, "c1"), Fit(ANY_EMBEDDER, "c2"))
    fits = {(f.embedder, f.without): f for f in made}
    monkeypatch.setattr(fusion, "shipped_fits", lambda: fits)
    served = {
        ("a",): ("a", ""),
        ("a", "c1"): ("a", "c1"),
        ("a", "c2"): ("a", ""),
        ("b",): (ANY_EMBEDDER, ""),
        ("b", "c1"): (ANY_EMBEDDER, "c1"),
        ("b", "c9"): (ANY_EMBEDDER, ""),
        ("a:bfloat16", "c1"): ("a", "c1"),
        ("a:int8",): (ANY_EMBEDDER, ""),
    }
    for asked, key in served.items():
        assert fit_for(*asked) is fits[key], asked
    own = Fit("a:bfloat16")
    monkeypatch.setattr(fusion, "shipped_fits", lambda: fits | {("a:bfloat16", ""): own})
    assert fit_for("a:bfloat16", "c1") is own, "one of its own comes first"
    monkeypatch.setattr(fusion, "shipped_fits", lambda: {("a", ""): Fit("a")})
    with pytest.raises(FitError, match="no fit for any encoder; run `make fit`"):
        fit_for("b")
    assert fit_for("a", "c1").without == ""
