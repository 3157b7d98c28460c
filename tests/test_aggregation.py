"""Test what a question wants collected, what a list includes, and how it is written."""

from __future__ import annotations

import numpy as np

from adaptmr.retrieval.aggregation import (
    SAME_SESSION,
    collect_items,
    collection_asked,
    count_values,
    cover_order,
    included,
    item_values,
    list_finding,
    merge_items,
)
from adaptmr.types import Hit, Memory


ASKED = {
    "count": "How many restaurants have I mentioned?|How often did Ann run?|我提到过几家餐厅？"
    "|小李一共参加过多少次比赛？",
    "list": "Which cities did Ann visit?|What kinds of birds have I seen?|List all my pets.|我去过哪些城市？",
    "most": "Which cuisine did I mention most often?|哪种菜系我提到的次数最多？",
    "": "How many weeks did the move take?|How much did it cost?|Which bus did I take?|What is his name?"
    "|Where does Ann live?|搬家花了几个月？|我一共花了多少钱？|小李住在哪里？",
}


def test_what_is_asked():
    for asked, questions in ASKED.items():
        assert {collection_asked(question) for question in questions.split("|")} == {asked}


# --- inclusion


def test_the_likely_ones_with_the_words_are_included():
    assert included([0.5, 0.36, 0.34], [0.8, 0.4, 0.8], [1, 0, 0]) == [0, 1], ".34 is below .7 of .5"
    assert included([0.5, 0.4], [0.8, 0.3], [1, 0]) == [0], "too few of the question's words"


# --- duplicates


def test_near_duplicates_are_one_item_and_other_numbers_are_another():
    texts = ["I ran 5 km today.", "I ran 10 km today.", "Today I ran 5 km.", "We swam."]
    assert merge_items(texts, np.zeros((4, 4))) == [[0, 2], [1], [3]]
    assert merge_items(["a red kite", "my kite"], np.full((2, 2), 0.99)) == [[0, 1]]
    assert merge_items(["the Sichuan place", "the Japanese bar"], np.full((2, 2), 0.97)) == [[0], [1]]


# --- values


def test_a_value_stands_before_the_thing_that_is_counted():
    assert item_values("We tried the Thai restaurant near Ann", ["restaur"]) == ["Thai"]
    assert item_values("I was in Rome with Ann again", ["citi"], exclude=["Ann"]) == ["Rome"]
    assert item_values("我参观了铁路博物馆", ["博物"]) == ["铁路"]
    assert item_values("推荐一下杭州的川菜馆", []) == ["川菜"]


def test_values_are_counted_by_item_and_by_how_often_it_counts():
    assert count_values([["a", "a"], ["b"], ["a"]]) == [("a", 2), ("b", 1)]
    assert count_values([["a"], ["b"]], [1, 3]) == [("b", 3), ("a", 1)]
    assert count_values([["b"], ["a"]]) == [("a", 1), ("b", 1)], "equal ones by name"


# --- the finding


def hit(i, text, at=None):
    return Hit(Memory(f"m{i}", text, "Maya", at or f"2024-0{i + 1}-05", step=i), 0.0)


def finding(question, asked, hits, **more):
    n = len(hits)
    return list_finding(question, asked, collect_items(hits, [0.5] * n, [1.0] * n, np.eye(n)), **more)


def test_a_list_in_order_of_time_with_dates():
    hits = [
        hit(2, "We cooked ramen. It rained."),
        hit(0, "It rained. We cooked soup."),
        hit(1, "We cooked pasta."),
    ]
    found = finding("Which dishes did we cook?", "list", hits)
    assert (
        found.text
        == "3 found: 2024-01-05 We cooked soup; 2024-02-05 We cooked pasta; 2024-03-05 We cooked ramen"
    )
    assert found.answer == ""


# --- hits that cover most


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
