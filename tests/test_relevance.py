"""Test relevance: its features and probability by hand, and the measures of calibration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.retrieval.candidates import select_candidates
from adaptmr.retrieval.fusion import Fit, fit_for
from adaptmr.retrieval.gate import (
    FEATURES,
    fit_applicability,
    probability,
    relevance,
    relevance_features,
)
from adaptmr.retrieval.query import ParsedQuery, parse_query
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

pytestmark = pytest.mark.numbers

DAY0 = datetime(2024, 5, 1, tzinfo=UTC)


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, float)))


def stored(*rows):
    store = MemoryStore(embedder="hash")
    store.add(
        [
            Memory(f"m{i:02}", text, who, DAY0 + timedelta(days=i), session="s", step=i)
            for i, (who, text) in enumerate(rows)
        ]
    )
    return store


def facts(c, weights):
    return dict(zip(FEATURES, relevance_features(c, Fit("hash", weights={"hybrid": weights}))))


# --- the facts, by hand


def six(speakers=frozenset({"Ann"}), words=("red", "bicycl")):
    """Six memories with given scores; two words, of which the best two memories have one each."""
    store = stored(
        ("Ann", "a red thing"),
        ("Bob", "a bicycle"),
        ("Ann", "a pond"),
        ("Bob", "some tea"),
        ("Ann", "a bicycle again"),
        ("Bob", "a moon"),
    )
    c = select_candidates(ParsedQuery("x", "x", speakers, frozenset(words)), store, 50)
    c.content, c.lexical = np.array([6.0, 5, 4, 3, 2, 1]), np.array([0.0, 0, 0, 0, 0, 1])
    c.signals["dense"] = np.array([2.0, 1.0, 0.0, -1.0, -2.0, -3.0])
    return c


def test_every_fact_by_hand():
    got = facts(six(), {"dense": 1.0, "speaker": 10.0, "intercept": -4.0})
    assert got == pytest.approx(
        {
            "speaker": 3 / 5,  # the five best without regard to who speaks: Ann, Bob, Ann, Bob, Ann
            "contrast": (2 + 0 - 2) / 3
            - (1 - 1 - 3) / 3,  # Ann's three against Bob's, the ten for the speaker taken off again
            "answer": 0.0,  # "x" asks for nothing in particular
            "standout": got["standout"],
            "coverage": 1.0,
        }
    )
    other = facts(six(frozenset({"Bob"})), {"dense": 1.0, "speaker": 10.0, "intercept": -4.0})
    assert other["speaker"] == 2 / 5
    assert other["contrast"] == pytest.approx(-got["contrast"])


# --- the probability


def test_the_probability_by_hand():
    x = np.array([1.0, 2.0, -0.5, 0.25, 0.0])
    coefficients = {"speaker": 0.5, "contrast": -0.25, "answer": 2.0, "standout": 4.0, "intercept": -0.5}
    assert probability(x, coefficients) == round(float(sigmoid(0.5 - 0.5 - 1 + 1 - 0.5)), 6)
    assert probability(x, {}) == 0.5
    assert probability(x, {"intercept": np.log(3)}) == 0.75
    assert probability(x, {"no such fact": 9.0}) == 0.5


SAID = st.text(max_size=20) | st.sampled_from(["", "\ud800", "猫", "a red bicycle", "Why? When?"])
TEXTS = st.lists(st.tuples(st.sampled_from(["Ann", "Bob", "", "小林"]), SAID), max_size=12)


@given(TEXTS, st.text(max_size=20) | st.sampled_from(["What did Ann buy?", "小林的猫", "\ud800", "", "Bob"]))
@settings(max_examples=60, deadline=None)
def test_bounds_for_any_texts(rows, text):
    store = stored(*rows)
    one, two = (select_candidates(parse_query(text, store.speakers), store, 50) for _ in range(2))
    x = relevance_features(one, fit_for("hash"))
    assert x.shape == (5,)
    assert np.isfinite(x).all()
    assert x.tobytes() == relevance_features(two, fit_for("hash")).tobytes()
    got = dict(zip(FEATURES, x))
    assert 0 <= got["speaker"] <= 1 + 1e-9
    assert abs(got["answer"]) <= 0.5
    assert 0 <= relevance(one, fit_for("hash")) <= 1


def test_what_the_other_one_did_is_less_likely_to_be_there():
    store = stored(
        ("Ann", "I called the boat Kittiwake, a favourite bird."),
        ("Bob", "Lovely name for a boat!"),
        ("Bob", "My oven arrived, it is enormous."),
        ("Ann", "Send photos of the oven please."),
    )
    for encoder in ("hash", "an encoder without a fit"):
        for own, other in (
            ("What did Ann call her boat?", "What did Bob call his boat?"),
            ("When did Bob's oven arrive?", "When did Ann's oven arrive?"),
        ):
            right, wrong = (
                relevance(select_candidates(parse_query(q, store.speakers), store, 50), fit_for(encoder))
                for q in (own, other)
            )
            assert right > wrong, (encoder, own)


# --- where it is known

SEEN = {"fewest": 100, "most": 600, "speakers": 2, "base": 0.8}


def crowd(n, speakers=("Ann", "Bob")):
    return select_candidates(
        parse_query("tea", speakers),
        stored(*((speakers[i % len(speakers)], f"text {i}") for i in range(n))),
        50,
    )


@pytest.mark.parametrize(
    "n, speakers, share, why",
    [
        (100, ("Ann", "Bob"), 1.0, ""),
        (50, ("Ann", "Bob"), 1.0, ""),
        (10, ("Ann", "Bob"), 0.2, "10 memories: fewer than the 100 it was fitted on"),
        (60, ("Ann",), 0.5, "1 speaker: fewer than the 2 it was fitted on"),
        (60, ("",), 0.0, "no speakers: fewer than the 2 it was fitted on"),
        (
            1,
            ("Ann",),
            0.01,
            "1 memory: fewer than the 100 it was fitted on; 1 speaker: fewer than the 2 it was fitted on",
        ),
        (1201, ("Ann", "Bob"), 1.0, "1201 memories: more than the 600 it was fitted on"),
    ],
)
def test_the_applicability_of_a_fit_by_hand(n, speakers, share, why):
    assert fit_applicability(crowd(n, speakers), Fit("hash", seen=SEEN)) == (pytest.approx(share), why)
    assert fit_applicability(crowd(n, speakers), Fit("hash")) == (1.0, ""), "nothing is known against it"


# --- how honest it is
