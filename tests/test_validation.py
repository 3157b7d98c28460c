"""Validation of data sets: all faults at once, each with its row, quoting ids only; oddities are counted."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

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


FAULTS = {
    "evidence that names no turn": (
        data(questions=[asked(evidence=["S9:9"])]),
        "question 'q1': 'S9:9' is not a turn of conversation 'c'",
    ),
    "evidence given twice": (data(questions=[asked(evidence=["S1:1", "S1:1"])]), "'S1:1'"),
    "questions with a wrong evidence": (
        data(questions=[asked(evidence="S1:1")]),
        "question 'q1': evidence is 'S1:1': it should be a valid list",
    ),
    "questions with a wrong answers": (
        data(questions=[asked(answers=["Ann", None])]),
        "question 'q1': answers[1] is None: it should be a valid string",
    ),
    "answerable questions without an answer": (data(questions=[asked(answers=[])]), "set answerable=False"),
    "questions with a wrong text": (data(questions=[asked(text=" ")]), "text is ' ': it must not be empty"),
    "questions with a wrong id": (data(questions=[asked(id=None)]), "question number 1: id is None"),
    "question ids given twice": (data(questions=[asked(), asked()]), "conversation 'c': 'q1' occurs 2 times"),
    "questions on an unknown conversation": (data(questions=[asked(conversation="d")]), "question 'q1': 'd'"),
    "questions with a wrong answerable": (
        data(questions=[asked(answerable=None)]),
        "answerable is None: it should be a valid boolean",
    ),
    "turns with a wrong source": (
        data([turn(1), turn(2, source="S2 1")]),
        "conversation 'c', turn 2: source is 'S2 1': it must be a text without white space",
    ),
    "sources given twice": (
        data([turn(1), turn(2, source="S1:1")]),
        "conversation 'c': 'S1:1' occurs 2 times",
    ),
    "memory ids given twice": (data([turn(1), turn(2, id="c/1")]), "'c/1' occurs 2 times"),
    "steps that don't increase": (data([turn(1), turn(2, step=1)]), "turn 2 ('S2:1'): step 1 after step 1"),
    "turns with a wrong step": (data([turn(1), turn(2, step=None)]), "step is None"),
    "turns with a wrong speaker": (data([turn(1), turn(2, speaker=None)]), "turn 2: speaker is None"),
    "turns without a date among dated ones": (
        data([turn(1), turn(2, at=None)]),
        "turn 2 ('S2:1'): at is not given",
    ),
    "conversations with a wrong id": (
        Dataset("toy", [Conversation(None, (), [turn(1)])], []),
        "conversation number 1: id is None",
    ),
    "conversation ids given twice": (
        Dataset("toy", [Conversation("c"), Conversation("c")], []),
        "'c' occurs 2 times",
    ),
}


@pytest.mark.parametrize("fault_type", FAULTS)
def test_validate_and_evaluate_name_a_fault_with_its_row(fault_type):
    wrong, row = FAULTS[fault_type]
    error = error_for(wrong)
    assert f"- {fault_type} (1): " in str(error) and row in str(error) and error.counts == {fault_type: 1}
    assert str(error).startswith("toy has "), "the message names the data set"
    assert SECRET not in str(error), "it quotes ids only, because messages are copied into logs"


def test_what_is_no_question_and_no_memory_is_named_and_not_quoted():
    with pytest.raises(DatasetError, match="question number 1 is a str") as caught:
        validate(data([turn(1), SECRET], [SECRET]))
    assert caught.value.counts == {"questions of another type": 1, "turns of another type": 1}
    assert SECRET not in str(caught.value)


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
        with pytest.raises(DatasetError, match=r"^mine has 1 fault:\n.*question 'q1': answers is 'Ann'"):
            load("mine")
        made = replace(data([turn(1, at=None)]), notes={"corrected": 1})
        assert load("mine").notes == {"conversations_without_dates": 1, "corrected": 1}
    finally:
        del registry._ENTRIES["mine"]


def test_a_bad_row_of_locomo_is_named(put):
    for content, why in (
        ([locomo([qa(question=None)])], r"question 'conv-1/q0': text is None"),
        ([locomo([qa()], sample=None)], r"conversation number 1: id is None"),
        ([locomo([qa()], dia_id=None)], r"conversation 'conv-1', turn 1: source is None"),
        ([locomo([qa(answer=None)])], r"question 'conv-1/q0': answers=\[\]; give one"),
        ([locomo(), locomo([qa(), None], "conv-2")], r"question conv-2/q1 can't be read: TypeError"),
        ([locomo([{"question": "Where?"}])], r"question conv-1/q0 can't be read: KeyError: 'category'"),
        ([locomo(), {"sample_id": "x"}], r"conversation number 2 can't be read: KeyError: 'conversation'"),
        ("[" * 100_000, r"locomo10\.json.*nested too deeply"),
    ):
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
