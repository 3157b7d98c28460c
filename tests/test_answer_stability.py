"""The form and the stability of answers, by hand-computed values."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.analysis.answer_form import FORMS, add_forms, answer_form, form_table, usual_forms
from adaptmr.eval.analysis.answer_stability import (
    answerable_at_half,
    ask_at_half,
    first_half,
    pair_answers,
    stability_table,
)
from adaptmr.eval.analysis.cost import writing_per_turn
from adaptmr.types import Conversation, Memory, Question


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", "no answer"),
        ("?!", "no answer"),
        ("7 May 2023", "date"),
        ("in the summer of 2022", "date"),
        ("二〇二三年五月", "date"),
        ("pottery, swimming and a camping trip", "list"),
        ("苹果、香蕉", "list"),
        ("a half marathon", "phrase"),
        ("Leeds", "phrase"),
        ("She moved to Leeds.", "sentence"),
        ("one line\nand another", "sentence"),
        ("她住在利兹。", "sentence"),
        ("we met in 2023 when the whole street had been flooded", "phrase"),
    ],
)
def test_the_form_is_read_from_the_text(text, form):
    assert answer_form(text) == form and form in FORMS
    assert answer_form(text, abstained=True) == "no answer"


def said(system: str, *answers: str, types: str = "aabb") -> list[dict]:
    return [
        {
            "system": system,
            "conversation": f"c{n}",
            "question": f"q{n}",
            "type": kind,
            "prediction": text,
            "abstained": not text,
            "f1": float(bool(text)),
        }
        for n, (text, kind) in enumerate(zip(answers, types))
    ]


def test_the_usual_form_is_that_of_the_type():
    rows = add_forms(pd.DataFrame(said("x", "Leeds", "York", "Bath", "She lives in Bath.")))
    assert usual_forms(rows) == [1, 1, 0, 1], "of two equally frequent forms the first of FORMS"
    assert rows["answer_tokens"].notna().all()
    silent = add_forms(pd.DataFrame(said("x", "", "York")))
    assert math.isnan(silent["answer_tokens"][0]) and silent["form"].tolist() == ["no answer", "phrase"]


def test_the_table_of_forms():
    table = form_table(pd.DataFrame([*said("x", "Leeds", "York", "", "7 May 2023"), *said("y", *[""] * 4)]))
    x, y = table.to_dict("records")
    assert (x["n"], x["phrase"], x["date"], x["list"]) == (4, 0.5, 0.25, 0.0)
    assert x["no answer"].startswith("0.25 [") and x["usual form"].startswith("0.75 [")
    assert y["no answer"] == "1.00 [1.00, 1.00]" and y["tokens"] == "–"


TURNS = [
    Memory(f"c/{i}", f"Turn {i}.", "Ann", "2024-01-01", session="S", step=i, source=f"S:{i}")
    for i in range(1, 6)
]
TALK = Conversation("c", ("Ann", "Bob"), TURNS)


def test_only_what_needs_nothing_later_is_asked_at_half():
    assert [m.step for m in first_half(TALK).turns] == [1, 2]
    asked = [
        Question("early", "?", ["a"], evidence=["S:1", "S:2"]),
        Question("both", "?", ["a"], evidence=["S:2", "S:3"]),
        Question("late", "?", ["a"], evidence=["S:5"]),
        Question("no gold", "?", ["a"]),
        Question("not answerable", "?", [], evidence=["S:1"], answerable=False),
    ]
    assert [q.id for q in answerable_at_half(TALK, asked)] == ["early"]


def test_answers_are_the_same_by_their_words():
    before = pd.DataFrame(said("x", "The Leeds", "7 May 2023", "", "York"))
    after = pd.DataFrame(said("x", "leeds", "8 May 2023", "Bath", ""))
    pairs = pair_answers(before, after)
    assert pairs["same"].tolist() == [1, 0, 0, 0] and pairs["same_form"].tolist() == [1, 1, 0, 0]
    assert pairs["found"].tolist() == [0, 0, 1, 0] and pairs["lost"].tolist() == [0, 0, 0, 1]
    assert pairs["f1_after"].tolist() == [1, 1, 1, 0]
    row = stability_table(pairs).iloc[0]
    assert (row["n"], row["lost"], row["found"], row["F1 before"], row["F1 after"]) == (
        4,
        0.25,
        0.25,
        0.75,
        0.75,
    )
    assert row["same answer"].startswith("0.25 [") and row["F1 change"] == "+0.000 – too few"


def test_two_abstentions_are_the_same_in_whatever_words():
    silent = said("x", "", "", "", "")
    worded = [{**row, "prediction": "No information available"} for row in silent]
    assert (pair_answers(pd.DataFrame(silent), pd.DataFrame(worded))["same"] == 1).all()


def test_a_question_without_a_second_answer_is_an_error():
    before = pd.DataFrame(said("x", "Leeds", "York"))
    with pytest.raises(ValueError, match=r"\['x', 'c1', 'q1'\] was asked before and not after"):
        pair_answers(before, before[:1])


def test_half_a_conversation_is_stored_and_asked_about():
    data = am.load("demo", split="en1")
    (talk,) = data.conversations
    asked = answerable_at_half(talk, data.questions)
    half = replace(data, conversations=[first_half(talk)], questions=asked)
    early = ask_at_half(["unified", "pmemo"], data, embedder="hash")
    assert early["question"].tolist() == [q.id for q in asked] * 2
    whole = am.evaluate(["unified", "pmemo"], half, embedder="hash", progress=False)
    pairs = pair_answers(early, whole)
    assert (pairs["same"] == 1).all() and (pairs["f1_before"] == pairs["f1_after"]).all()
    assert {row["turns"] for row in early.attrs["ingest"]} == {len(talk) // 2}
    per_turn = writing_per_turn(whole, early).set_index("system")
    assert (per_turn["turns"] == len(talk) // 2).all() and (per_turn["calls a turn"] == 0).all()
    assert per_turn.loc["pmemo", "ms_a_turn"] > per_turn.loc["unified", "ms_a_turn"] > 0
