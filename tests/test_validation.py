"""Validation of data sets: all faults at once, each with its row, quoting ids only; oddities are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from adaptmr.data import registry
from adaptmr.data.registry import DatasetEntry, load, register_dataset
from adaptmr.data.validation import MAX_LISTED_ROWS, DatasetError, validate
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.reader import answer, render_line
from adaptmr.reader.extract import event_date
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, Question

DAY = datetime(2024, 1, 1, tzinfo=UTC)
SECRET = "marmalade"


def turn(n, **more):
    about = {"at": DAY + timedelta(days=n), "session": f"S{n}", "step": n, "source": f"S{n}:1", **more}
    speaker = about.pop("speaker", "Ann")
    return Memory(about.pop("id", f"c/{n}"), f"I ate {SECRET} {n} times.", speaker, **about)


def asked(**more):
    given = {"id": "q1", "text": f"Who eats {SECRET}?", "answers": ["Ann"], "evidence": ["S1:1"]}
    return Question(**{**given, "conversation": "c", **more})


def data(turns=None, questions=None, **more):
    turns = [turn(1), turn(2), turn(3)] if turns is None else turns
    return Dataset(
        "toy", [Conversation("c", ("Ann",), turns)], [asked()] if questions is None else questions, **more
    )


def error_for(wrong):
    """The error that `validate` raises for a data set, and `evaluate` too."""
    with pytest.raises(DatasetError) as one:
        validate(wrong)
    with pytest.raises(DatasetError) as two:
        evaluate(["lexical"], wrong, embedder="hash", progress=False)
    assert str(one.value) == str(two.value)
    return one.value


def two(**more):
    return [turn(1), turn(2, **more)]


FAULTS = (
    ("evidence that names no turn", data(questions=[asked(evidence=["S9:9"])]), "'S9:9' is not a turn of"),
    ("evidence given twice", data(questions=[asked(evidence=["S1:1", "S1:1"])]), "'S1:1'"),
    ("questions with a wrong evidence", data(questions=[asked(evidence="S1:1")]), "should be a valid list"),
    ("questions with a wrong answers", data(questions=[asked(answers=["Ann", None])]), "answers[1] is None"),
    ("answerable questions without an answer", data(questions=[asked(answers=[])]), "set answerable=False"),
    ("questions with a wrong text", data(questions=[asked(text=" ")]), "text is ' ': it must not be empty"),
    ("questions with a wrong id", data(questions=[asked(id=None)]), "question number 1: id is None"),
    ("question ids given twice", data(questions=[asked(), asked()]), "'c': 'q1' occurs 2 times"),
    ("questions on an unknown conversation", data(questions=[asked(conversation="d")]), "'q1': 'd'"),
    ("turns with a wrong source", data(two(source="S2 1")), "must be a text without white space"),
    ("sources given twice", data(two(source="S1:1")), "conversation 'c': 'S1:1' occurs 2 times"),
    ("memory ids given twice", data(two(id="c/1")), "'c/1' occurs 2 times"),
    ("steps that don't increase", data(two(step=1)), "turn 2 ('S2:1'): step 1 after step 1"),
    ("turns with a wrong speaker", data(two(speaker=None)), "turn 2: speaker is None"),
    ("turns without a date among dated ones", data(two(at=None)), "turn 2 ('S2:1'): at is not given"),
    ("conversation ids given twice", Dataset("toy", [Conversation("c")] * 2, []), "'c' occurs 2 times"),
)


def test_validate_and_evaluate_name_a_fault_with_its_row_and_quote_ids_only():
    for fault_type, wrong, row in FAULTS:
        error = error_for(wrong)
        assert f"- {fault_type} (1): " in str(error) and row in str(error), str(error)
        assert error.counts == {fault_type: 1} and str(error).startswith("toy has ")
        assert SECRET not in str(error), "messages are copied into logs"


def test_all_faults_are_reported_at_once_in_a_short_message():
    many = 500
    turns = [turn(n, step=0) for n in range(many)]
    questions = [asked(id=f"q{n}", evidence=["nowhere"]) for n in range(many)]
    questions += [asked(id=f"r{n}", answers="Ann") for n in range(many)]
    error = error_for(data(turns, questions))
    assert error.counts == {
        "questions with a wrong answers": many,
        "steps that don't increase": many - 1,
        "evidence that names no turn": many,
    }
    lines = str(error).split("\n")
    assert lines[0] == "toy has 1,499 faults:" and len(lines) == 4 and len(str(error)) < 2500
    assert all(line.count("; ") >= MAX_LISTED_ROWS and line.endswith("more") for line in lines[1:])
    assert len(error.check.rows()) == 1_499, "and all are in the check"


# --- loading


@pytest.fixture
def put(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path))

    def write(content, name="locomo10.json"):
        (tmp_path / name).write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )

    return write


def locomo(qa=(), sample="conv-1", **of_turn):
    turn_ = {"speaker": "A", "dia_id": "D1:1", "text": "I live in Oslo.", **of_turn}
    talk = {"speaker_a": "A", "speaker_b": "B", "session_1_date_time": "1:00 pm on 1 May, 2023"}
    return {"sample_id": sample, "conversation": {**talk, "session_1": [turn_]}, "qa": list(qa)}


def qa(**more):
    return {"question": "Where?", "answer": "Oslo", "category": 4, "evidence": ["D1:1"], **more}


def test_load_validates_and_counts_oddities(put):
    put([locomo([qa(), qa(evidence=["D7:7"]), qa(evidence=[])])])
    assert load("locomo").notes == {"evidence_unresolved": 1, "questions_without_evidence": 1}
    made = data(questions=[asked(answers="Ann")])
    register_dataset(DatasetEntry("mine", lambda path: made, "CC0"))
    try:
        with pytest.raises(DatasetError, match=r"^mine has 1 fault:\n.*question 'q1': answers is 'Ann'"):
            load("mine")
        made = replace(data([turn(1, at=None)]), notes={"corrected": 1})
        assert load("mine").notes == {"conversations_without_dates": 1, "corrected": 1}
    finally:
        del registry._ENTRIES["mine"]


# --- undated memories

UNDATED = Memory("u", "I moved to Oslo yesterday, in May 2021 I lived in Rome.", "Ann", source="S1:1")


def test_an_undated_memory_is_shown_without_a_date_and_the_reader_abstains_on_it():
    assert not UNDATED.dated and turn(1).dated
    told = "Ann: I moved to Oslo yesterday, in May 2021 I lived in Rome."
    assert Hit(UNDATED, 1.0, note="newest").context_line == f"{told} (newest)"
    assert render_line(Hit(UNDATED, 1.0)) == told, "without a date, 'yesterday' can't be resolved"
    assert "undated" in UNDATED._repr_html_() and "1970" not in UNDATED._repr_html_()
    for text, date in (
        ("I moved to Oslo yesterday.", ""),
        ("I moved to Oslo on 8 May 2023.", "8 May 2023"),
        ("I have had a cat for three years.", ""),
        ("我昨天搬到了杭州。", ""),
        ("我2021年5月8日搬到了杭州。", "2021年5月8日"),
    ):
        assert event_date(Memory("m", text), lang="zh" if "我" in text else "en") == date
    found = answer("When did Ann adopt a cat?", Evidence([Hit(Memory("m", "I adopted a cat.", "Ann"), 1.0)]))
    assert found.abstained and "1970" not in found.text
