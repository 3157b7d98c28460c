"""Errors a user meets in a notebook: a misspelt name, a wrong place, a wrong kind of value."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime

import pytest

import adaptmr as am
from adaptmr.checks import UnknownName
from adaptmr.systems.base import known_systems

TURNS = [
    am.Memory(f"c/{n}", f"I ate {n} plums.", "Ann", datetime(2024, 5, n, tzinfo=UTC), source=f"S1:{n}")
    for n in (1, 2, 3)
]
TALK = am.Conversation("c", ("Ann",), TURNS)
OTHER = am.Conversation("other")
QUESTION = am.Question("c/q1", "How many plums?", ["1"], conversation="c")
DATA = am.Dataset("toy", [TALK, OTHER], [QUESTION])
HIT = am.Hit(TURNS[0], 0.5)

# --- names


def test_values_are_copied_and_pickled():
    for value in (TURNS[0], TALK, QUESTION, DATA, HIT, am.Filter(user="ann"), am.RetrievalPlan(k=3)):
        assert copy.deepcopy(value) == value == pickle.loads(pickle.dumps(value)), value


# --- data read like lists


def test_a_data_set_is_read_like_a_list_of_conversations():
    assert len(DATA) == 2 and list(DATA) == [TALK, OTHER] and DATA[0] is DATA["c"] is TALK
    assert DATA[-1] is OTHER
    part = DATA[1:]
    assert isinstance(part, am.Dataset) and list(part) == [OTHER] and part.questions == []
    assert part.label == "part of toy: 1 conversations, 0 questions" and DATA[:].complete
    assert bool(am.Dataset("empty"))


def test_a_conversation_is_read_like_a_list_of_turns():
    assert len(TALK) == 3 and list(TALK) == TURNS and TALK[1] is TALK["S1:2"] is TALK["c/2"] is TURNS[1]
    assert TALK[:2] == am.Conversation("c", ("Ann",), TURNS[:2])


def test_questions_are_found_by_id():
    assert DATA.questions["c/q1"] is DATA.questions[0] is QUESTION and DATA.questions[:1] == [QUESTION]
    assert DATA.questions_on(TALK) == DATA.questions_on("c") == [QUESTION] and DATA.questions_on(OTHER) == []
    assert "How many plums?" in DATA.questions._repr_html_() and "How many plums?" in repr(DATA.questions)
    many = am.Dataset("many", questions=[am.Question(f"q{n}", "?") for n in range(500)]).questions
    assert "the first 20 of 500" in many._repr_html_() and "… and 490 more" in repr(many)


def test_hits_are_found_in_evidence():
    evidence = am.Evidence([HIT])
    assert evidence[0] is evidence["S1:1"] is evidence["c/1"] is HIT and evidence[:1] == [HIT]


@pytest.mark.parametrize(
    "look, kind, said",
    [
        (lambda: DATA[2], IndexError, "toy has no conversation 2: it has 2, from 0 on"),
        (lambda: DATA["othr"], UnknownName, r"'othr' \(did you mean 'other'\?\); there are c, other"),
        (lambda: DATA.questions["c/q2"], UnknownName, "no question 'c/q2' .*did you mean 'c/q1'"),
        (lambda: DATA.questions_on("othr"), UnknownName, "no conversation 'othr' in toy .*'other'"),
        (lambda: TALK[9], IndexError, "conversation 'c' has no turn 9: it has 3"),
        (lambda: TALK["S1:9"], UnknownName, "no turn 'S1:9' .*there are S1:1, S1:2, S1:3"),
        (lambda: OTHER["S1:1"], UnknownName, "there are none"),
        (lambda: am.Evidence()[0], IndexError, "the evidence has no hit 0: it has 0"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(look, kind, said):
    with pytest.raises(kind, match=said):
        look()


# --- kinds of values


@pytest.mark.parametrize(
    "make, error, said",
    [
        (lambda: am.Conversation.from_messages("hi"), TypeError, "messages is a str, 'hi', not a list"),
        (lambda: am.answer("x", am.Evidence(), asked_at=3), TypeError, "time 3 is an int"),
        (lambda: am.systems("ablatoin"), ValueError, r"did you mean 'ablation'\?\); there"),
        (lambda: am.estimate("lexicl", DATA), ValueError, "did you mean 'lexical'"),
        (lambda: am.QueryType("temporal"), ValueError, "did you mean 'temporal_reasoning'"),
    ],
)
def test_a_wrong_value_is_named_with_what_there_is(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize("name", known_systems(None))
def test_a_system_is_shown_by_what_it_consists_of(name):
    system = am.make_system(name, embedder="hash")
    assert name in repr(system) and " at 0x" not in repr(system)
    assert "<table" in system._repr_html_() and name in system._repr_html_()
