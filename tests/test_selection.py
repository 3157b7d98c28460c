"""Test the selection of hits by what each adds to those before it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.retrieval.aggregation import SAME_SESSION, cover_order

NO_WORDS = np.zeros((0, 3), bool)


def plain(scores, sessions, n, **more):
    return cover_order(scores, np.zeros((0, len(scores)), bool), np.ones(0), sessions, n, **more)


def test_another_session_comes_before_a_slightly_better_hit():
    cost = SAME_SESSION * np.log(2)  # of a second hit of the session
    assert plain([2.0, 1.9, 1.9 - cost + 0.01], ["a", "a", "b"], 2) == [0, 2]
    assert plain([2.0, 1.9, 1.9 - cost - 0.01], ["a", "a", "b"], 2) == [0, 1]
    assert plain([2.0, 1.9, 0.0], ["a", "a", "b"], 3, same_session=0.0) == [0, 1, 2]


def test_a_word_that_is_not_covered_yet_counts():
    words = np.array([[True, True, False], [False, False, True]])
    order = cover_order([2.0, 1.5, 1.0], words, np.array([1.0, 3.0]), ["a", "b", "c"], 3, same_session=0.0)
    # the rare word adds 2 · 3/4 to the third and 2 · 1/4 to the others: 2.5, 2.0, 2.5
    assert order == [0, 2, 1]
    assert cover_order([2.0, 1.5, 1.0], words, np.ones(2), ["a", "b", "c"], 2, new_words=0.0) == [0, 1]


def test_a_text_like_a_chosen_one_costs():
    similarity = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    more = {"similarity": similarity, "same_session": 0.0}
    assert plain([2.0, 1.5, 1.0], ["a", "b", "c"], 2, same_text=1.0, **more) == [0, 2]
    assert plain([2.0, 1.5, 1.0], ["a", "b", "c"], 2, **more) == [0, 1], "off unless it is asked for"


def test_ties_go_by_rank():
    assert plain([1.0, 1.0, 1.0], ["a", "b", "c"], 3) == [0, 1, 2]


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.sampled_from("abc"), st.booleans()), max_size=8),
    st.integers(0, 8),
)
def test_fewer_are_the_beginning_of_more(hits, n):
    scores = [score for score, _, _ in hits]
    sessions = [session for _, session, _ in hits]
    words = np.array([[has for _, _, has in hits]], bool).reshape(1, len(hits))
    whole = cover_order(scores, words, np.ones(1), sessions, len(hits))
    assert sorted(whole) == list(range(len(hits)))
    assert cover_order(scores, words, np.ones(1), sessions, n) == whole[:n]
