"""Validation of data sets: all faults at once, each with its row, quoting ids only; oddities are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adaptmr as am
from adaptmr.data import registry
from adaptmr.data.registry import DatasetEntry, load, register_dataset
from adaptmr.data.validation import MAX_LISTED_ROWS, DatasetError, validate
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm.tasks import TASKS
from adaptmr.planning.qarp import PLAN
from adaptmr.reader import answer, render_line
from adaptmr.reader.extract import event_date
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, Question

DAY = datetime(2024, 1, 1, tzinfo=UTC)
SECRET = "marmalade"


def turn(n, **more):
    given_ = {
        "speaker": "Ann",
        "at": DAY + timedelta(days=n),
        "session": f"S{n}",
        "step": n,
        "source": f"S{n}:1",
        **more,
    }
    return Memory(given_.pop("id", f"c/{n}"), given_.pop("text", f"I ate {SECRET} {n} times."), **given_)


def asked(**more):
    return Question(
        **{
            "id": "q1",
            "text": f"Who eats {SECRET}?",
            "answers": ["Ann"],
            "evidence": ["S1:1"],
            "conversation": "c",
            **more,
        }
    )


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


@pytest.mark.parametrize(
    "wrong, fault_type, row",
    [
        (
            data(questions=[asked(evidence=["S9:9"])]),
            "evidence that names no turn",
            "question 'q1': 'S9:9' is not a turn of conversation 'c'",
        ),
        (
            data(questions=[asked(evidence="S1:1")]),
            "evidence that are not a list",
            "evidence is a str; write evidence=[…]",
        ),
        (data(questions=[asked(evidence=["S1:1", "S1:1"])]), "evidence given twice", "'S1:1'"),
        (
            data(questions=[asked(answers="Ann")]),
            "answers that are not a list",
            "question 'q1': answers is a str; write answers=[…]",
        ),
        (data(questions=[asked(answers=None)]), "answers that are not a list", "answers is a NoneType"),
        (data(questions=[asked(answers=["Ann", None])]), "answers that are not text", "answers holds None"),
        (data(questions=[asked(answers=[" "])]), "answers that are not text", "answers holds ' '"),
        (
            data(questions=[asked(answers=[])]),
            "answerable questions without an answer",
            "set answerable=False",
        ),
        (data(questions=[asked(text=None)]), "questions without a text", "question 'q1': text is None"),
        (data(questions=[asked(text="")]), "questions without a text", "text is empty"),
        (data(questions=[asked(id=None)]), "questions without an id", "question number 1: id None"),
        (data(questions=[asked(id="")]), "questions without an id", "question number 1: id ''"),
        (
            data(questions=[asked(), asked()]),
            "question ids given twice",
            "conversation 'c': 'q1' occurs 2 times",
        ),
        (
            data(questions=[asked(conversation="d")]),
            "questions on an unknown conversation",
            "question 'q1': 'd'",
        ),
        (
            data(questions=[asked(conversation=[])]),
            "questions on an unknown conversation",
            "question 'q1': []",
        ),
        (data(questions=["Who?"]), "questions that are not a Question", "question number 1 is a str"),
        (data(questions=[asked(answerable=None)]), "answerable that is not a bool", "answerable is None"),
        (
            data([turn(1), turn(2, source="")]),
            "turns without a source",
            "conversation 'c', turn 2: source ''",
        ),
        (data([turn(1), turn(2, source=None)]), "turns without a source", "source None"),
        (data([turn(1), turn(2, source="S2 1")]), "sources with white space", "turn 2: 'S2 1'"),
        (
            data([turn(1), turn(2, source="S1:1")]),
            "sources given twice",
            "conversation 'c': 'S1:1' occurs 2 times",
        ),
        (data([turn(1), turn(2, id="c/1")]), "memory ids given twice", "'c/1' occurs 2 times"),
        (
            data([turn(1), turn(2, step=1)]),
            "steps that don't increase",
            "turn 2 ('S2:1'): step 1 after step 1",
        ),
        (data([turn(1), turn(2, step=None)]), "a step that is not a whole number", "step is None"),
        (data([turn(1), turn(2, speaker=None)]), "a speaker that is not a string", "turn 2: speaker is None"),
        (
            data([turn(1), turn(2, at=None)]),
            "turns without a date among dated ones",
            "turn 2 ('S2:1'): at is not given",
        ),
        (data([turn(1), "hello"]), "turns that are not a Memory", "turn 2 is a str"),
        (
            Dataset("toy", [Conversation(None, (), [turn(1)])], []),
            "conversations without an id",
            "conversation number 1: id None",
        ),
        (
            Dataset("toy", [Conversation("c"), Conversation("c")], []),
            "conversation ids given twice",
            "'c' occurs 2 times",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_validate_and_evaluate_name_a_fault_with_its_row(wrong, fault_type, row):
    error = error_for(wrong)
    assert f"- {fault_type} (1): " in str(error) and row in str(error) and error.counts[fault_type] == 1
    assert str(error).startswith("toy has "), "the message names the data set"
    assert SECRET not in str(error), "it quotes ids only, because messages are copied into logs"


def test_all_faults_are_reported_at_once_in_a_short_message():
    many = 500
    turns = [turn(n, step=0, source="") for n in range(many)]
    questions = [asked(id=f"q{n}", answers="Ann", evidence=["nowhere"]) for n in range(many)]
    error = error_for(data(turns, questions))
    assert error.counts == {
        "answers that are not a list": many,
        "turns without a source": many,
        "steps that don't increase": many - 1,
        "evidence that names no turn": many,
    }
    lines = str(error).split("\n")
    assert lines[0] == "toy has 1,999 faults:" and len(lines) == 5 and len(str(error)) < 2500
    assert (
        all(line.count("; ") >= MAX_LISTED_ROWS and line.endswith("more") for line in lines[1:])
        and "and 497 more" in lines[1]
    )


@given(st.permutations(range(4)), st.sets(st.sampled_from(["text", "answers", "evidence", "id"]), min_size=1))
@settings(max_examples=25, deadline=None)
def test_every_faulty_row_is_counted_in_any_order(order, which):
    bad = {
        "text": {"text": ""},
        "answers": {"answers": "Ann"},
        "evidence": {"evidence": ["S7:7"]},
        "id": {"id": ""},
    }
    questions = [
        asked(**{"id": f"q{n}", **(bad[name] if name in which else {})}) for n, name in enumerate(bad)
    ]
    with pytest.raises(DatasetError) as caught:
        validate(data(questions=[questions[i] for i in order]))
    assert sum(caught.value.counts.values()) == len(which)


def test_oddities_are_counted_and_pass():
    late = [turn(1), turn(2, at=DAY), turn(3)]
    assert validate(data(late)) == {"turns_dated_before_the_previous": 1}
    assert validate(
        data(questions=[asked(evidence=[]), asked(id="q2", evidence=[], answers=[], answerable=False)])
    ) == {"questions_without_evidence": 1}
    assert validate(data(questions=[asked(asked_at=DAY)])) == {"questions_asked_before_their_evidence": 1}
    assert validate(data([turn(n, at=None) for n in (1, 2)])) == {"conversations_without_dates": 1}
    assert validate(data()) == {} and validate(Dataset("empty")) == {}
    frame = evaluate(["lexical"], data(late, notes={"corrected": 2}), embedder="hash", progress=False)
    assert frame.attrs["notes"] == {"turns_dated_before_the_previous": 1, "corrected": 2}


def test_the_demo_set_has_no_faults_and_no_oddities():
    assert validate(am.load("demo")) == {}


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
    talk = {
        "speaker_a": "A",
        "speaker_b": "B",
        "session_1": [turn_],
        "session_1_date_time": "1:00 pm on 1 May, 2023",
    }
    return {"sample_id": sample, "conversation": talk, "qa": list(qa)}


def qa(**more):
    return {"question": "Where?", "answer": "Oslo", "category": 4, "evidence": ["D1:1"], **more}


def test_load_validates_and_counts_oddities(put):
    put([locomo([qa(), qa(evidence=["D7:7"]), qa(evidence=[])])])
    assert load("locomo").notes == {"evidence_unresolved": 1, "questions_without_evidence": 1}
    made = data(questions=[asked(answers="Ann")])
    register_dataset(DatasetEntry("mine", lambda path: made, "CC0"))
    try:
        with pytest.raises(DatasetError, match=r"^mine has 1 fault:\n.*question 'q1': answers is a str"):
            load("mine")
        made = replace(data([turn(1, at=None)]), notes={"corrected": 1})
        assert load("mine").notes == {"conversations_without_dates": 1, "corrected": 1}
    finally:
        del registry._ENTRIES["mine"]


@pytest.mark.parametrize(
    "content, why",
    [
        ([locomo([qa(question=None)])], r"question 'conv-1/q0': text is None"),
        ([locomo([qa(), qa(question="")])], r"question 'conv-1/q1': text is empty"),
        ([locomo([qa()], sample=None)], r"conversation number 1: id None"),
        ([locomo([qa()], dia_id=None)], r"conversation 'conv-1', turn 1: source None"),
        ([locomo([qa()], speaker=None)], r"turn 1: speaker is None"),
        (
            [locomo([qa()], text=None)],
            r"conversation number 1 can't be read: TypeError: Memory.text of 'conv-1/D1:1' is a NoneType",
        ),
        (
            [locomo([qa(answer=None)])],
            r"question 'conv-1/q0': answers=\[\]; give one, or set answerable=False",
        ),
        ([locomo(), locomo([qa(), None], "conv-2")], r"question conv-2/q1 can't be read: TypeError"),
        ([locomo([{"question": "Where?"}])], r"question conv-1/q0 can't be read: KeyError: 'category'"),
        ([locomo(), {"sample_id": "x"}], r"conversation number 2 can't be read: KeyError: 'conversation'"),
        ("[" * 100_000, r"locomo10\.json.*nested too deeply"),
        ('{"a":' * 100_000, r"locomo10\.json.*nested too deeply"),
    ],
    ids=[
        "null question",
        "empty question",
        "null id",
        "null turn id",
        "null speaker",
        "null text",
        "null answer",
        "null row",
        "no category",
        "no conversation",
        "deep lists",
        "deep objects",
    ],
)
def test_a_bad_row_of_locomo_is_named(put, content, why):
    put(content)
    with pytest.raises(DatasetError, match=why):
        load("locomo")


def test_limit_counts_questions_whose_ids_are_unique_per_conversation():
    both = Dataset(
        "d",
        [Conversation("a"), Conversation("b")],
        [asked(id=f"q{n}", conversation=c) for c in "ab" for n in range(3)],
    )
    for n in range(1, 7):
        assert len(registry._sample_questions(both, n).questions) == n


# --- undated memories

UNDATED = Memory("u", "I moved to Oslo yesterday, in May 2021 I lived in Rome.", "Ann", source="S1:1")


def test_an_undated_memory_is_shown_without_a_date():
    assert not UNDATED.dated and turn(1).dated
    assert (
        Hit(UNDATED, 1.0, note="newest").context_line
        == "Ann: I moved to Oslo yesterday, in May 2021 I lived in Rome. (newest)"
    )
    assert render_line(Hit(UNDATED, 1.0)) == "Ann: I moved to Oslo yesterday, in May 2021 I lived in Rome.", (
        "without a date, 'yesterday' can't be resolved"
    )
    assert render_line(Hit(Memory("v", "1] 2] yesterday"), 1.0)) == "1] 2] yesterday"
    assert "undated" in UNDATED._repr_html_() and "1970" not in UNDATED._repr_html_()


@pytest.mark.parametrize(
    "text, date",
    [
        ("I moved to Oslo yesterday.", ""),
        ("I moved to Oslo.", ""),
        ("I moved to Oslo on 8 May 2023.", "8 May 2023"),
        ("I have had a cat for three years.", ""),
        ("我昨天搬到了杭州。", ""),
        ("我2021年5月8日搬到了杭州。", "2021年5月8日"),
    ],
)
def test_the_event_date_of_an_undated_memory_is_one_written_in_it(text, date):
    assert event_date(Memory("m", text), lang="zh" if "我" in text else "en") == date


def test_the_reader_abstains_when_the_date_is_unknown():
    found = answer("When did Ann adopt a cat?", Evidence([Hit(Memory("m", "I adopted a cat.", "Ann"), 1.0)]))
    assert found.abstained and "1970" not in found.text


def test_no_prompt_has_a_date_for_an_undated_memory():
    undated = data(
        [
            Memory(f"c/{n}", f"I moved to {place} yesterday.", "Ann", session="S1", step=n, source=f"S1:{n}")
            for n, place in enumerate(("Oslo", "Rome", "Bergen"))
        ],
        [asked(evidence=["S1:0"])],
    )
    system = am.make_system("hybrid", embedder="hash")
    system.ingest(undated.conversations[0])
    found = system.retrieve(undated.questions[0], 3)
    assert len(found.hits) == 3 and "1970" not in found.context and "1969" not in found.context
    prompts = [
        TASKS["answer"].messages("en", question="Where?", evidence=found),
        PLAN.messages(
            "en",
            question="Where?",
            memories=undated.conversations[0].turns,
            today=Memory("m", "").at,
            offline=None,
        ),
    ]
    assert all("1970" not in str(p) and "1969" not in str(p) for p in prompts) and "not known" in str(
        prompts[1]
    )
