"""HotpotQA: sentences as memories, gold by sentence, the official scores of answer, support and both."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.data.hotpotqa import HOTPOTQA, HotpotQuestion
from adaptmr.data.registry import attribution, datasets, find_file, load
from adaptmr.data.validation import DatasetError
from adaptmr.eval.metrics import hotpotqa as m
from adaptmr.eval.runner.asking import score_answer
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.types import Answer, QueryType, Question

HAS_HOTPOTQA = bool(os.environ.get("ADAPTMR_DATA")) and find_file(HOTPOTQA) is not None
SALT = ["Old Salt Tower", ["The Old Salt Tower is a lighthouse.", " It was designed by Ida Moser."]]
IDA = ["Ida Moser", ["Ida Moser, born in Lindau, was an architect.", " She built three lighthouses."]]
HILL = ["Hill", ["A hill is a landform.", ""]]
BRIDGE = {
    "_id": "q1",
    **{"question": "In which town was the architect of the Old Salt Tower born?", "answer": "Lindau"},
    **{"type": "bridge", "level": "hard", "context": [SALT, HILL, IDA]},
    "supporting_facts": [["Old Salt Tower", 1], ["Ida Moser", 0]],
}
COMPARISON = {
    **BRIDGE,
    **{"_id": "q2", "question": "Are both lighthouses?", "answer": "no", "type": "comparison"},
    "supporting_facts": [["Old Salt Tower", 0], ["Ida Moser", 0]],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path))
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write(folder: Path, questions: Any, name: str = "hotpotqa_distractor_50.json") -> None:
    (folder / name).write_text(json.dumps(questions), encoding="utf-8")


def test_a_file_that_is_not_the_official_one_is_a_part_and_the_larger_is_preferred(folder: Path) -> None:
    write(folder, [BRIDGE], "hotpotqa_distractor_50.json")
    write(folder, [BRIDGE, COMPARISON], "hotpotqa_distractor_200.json")
    data = load("hotpotqa")
    assert "hotpotqa" in datasets() and data.licence == "CC BY-SA 4.0" and not data.complete
    assert data.label == "part of hotpotqa: 2 conversations, 2 questions"


def test_each_sentence_is_a_memory_that_begins_with_its_title(folder: Path) -> None:
    write(folder, [{**BRIDGE, "_id": 37}])
    data = load("hotpotqa")
    (conversation,) = data.conversations
    assert conversation.id == data.questions[0].id == "37" and data.notes["ids_that_are_numbers"] == 1
    titles = ["Old Salt Tower", "Hill", "Ida Moser"]
    assert conversation.sessions == titles
    sources = [f"{title.replace(' ', '_')}#{n}" for title in titles for n in (0, 1)]
    assert [(t.source, t.step) for t in conversation.turns] == [(s, n) for n, s in enumerate(sources)]
    assert conversation.turns[1].text == "Old Salt Tower: It was designed by Ida Moser."
    assert conversation.turns[3].text == "" and not any(t.dated for t in conversation.turns)


def test_both_types_are_multi_hop_and_a_system_sees_neither_answer_nor_support(folder: Path) -> None:
    write(folder, [BRIDGE, COMPARISON])
    bridge, comparison = load("hotpotqa").questions
    assert isinstance(bridge, HotpotQuestion) and bridge.level == "hard"
    assert bridge.type is comparison.type is QueryType.multi_hop
    assert (bridge.category, comparison.category) == ("bridge", "comparison")
    assert bridge.evidence == ["Old_Salt_Tower#1", "Ida_Moser#0"] and bridge.answers == ["Lindau"]
    blind = bridge.blind()
    assert not isinstance(blind, HotpotQuestion) and not blind.answers + blind.evidence
    assert blind.type is QueryType.factual_extraction and not blind.category


def test_gold_that_names_no_sentence_is_left_out_and_counted(folder: Path) -> None:
    write(folder, [{**BRIDGE, "supporting_facts": [["Hill", 0], ["Hill", 0], ["Hill", 2], ["Dale", 0]]}])
    data = load("hotpotqa")
    assert data.questions[0].evidence == ["Hill#0"]
    assert data.notes["evidence_ids_without_a_sentence"] == 2 and data.notes["sentences_empty"] == 1


def test_a_faulty_question_and_a_file_of_another_form_are_named(folder: Path) -> None:
    for change, message in (
        ({"type": "riddle"}, "question 'q1' can't be read.*unknown question type 'riddle'"),
        ({"context": [SALT, SALT, IDA]}, "sources given twice"),
    ):
        write(folder, [{**BRIDGE, **change}])
        with pytest.raises(DatasetError, match=message):
            load("hotpotqa")
    for content in ({"data": []}, [{"question": "?"}]):
        write(folder, content)
        with pytest.raises(DatasetError, match=r"hotpotqa_distractor_50\.json|question number 1"):
            load("hotpotqa")


def test_answers_are_scored_by_the_official_rule(folder: Path) -> None:
    write(folder, [BRIDGE, COMPARISON])
    frame = evaluate(["lexical"], load("hotpotqa"), k=4, embedder="hash", progress=False)
    assert frame["recall_fraction"].between(0, 1).all() and list(frame["category"]) == [
        "bridge",
        "comparison",
    ]
    no = Question("q", "?", ["no"])
    assert score_answer(no, Answer("no one"), "hotpotqa") == 0 < score_answer(no, Answer("no one"), "demo")
    assert score_answer(no, Answer("No."), "hotpotqa") == 1


def test_answers_by_hand() -> None:
    for prediction, answer, em, f1 in (
        ("The Danube.", "danube", 1, 1),
        ("blue blue", "blue", 0, 2 / 3),  # P = 1/2, R = 1
        ("in May 1990", "May 1990 in Rome", 0, 6 / 7),  # P = 3/3, R = 3/4
        ("yes it is", "yes", 0, 0),
        ("noanswer", "no answer", 0, 0),
        ("an", "the", 1, 0),  # no words on either side: the official code gives EM 1 and F1 0
    ):
        agreement = m.answer_agreement(prediction, answer)
        assert agreement.em == em and agreement.f1 == pytest.approx(f1)
        assert m.hotpot_f1(prediction, answer) == pytest.approx(f1)


WORDS = st.lists(st.sampled_from(["yes", "no", "the", "red", "van", "1865"]), max_size=5).map(" ".join)
IDS = st.sets(st.sampled_from("abcde"))


def official(prediction: str, answer: str) -> tuple[float, float, float]:
    """Precision, recall and F1 as the paper's appendix describes them, written out plainly."""
    said, gold = ([w for w in t.split() if w != "the"] for t in (prediction, answer))
    if said != gold and {"yes", "no"} & {" ".join(said), " ".join(gold)}:
        return 0, 0, 0
    common = sum((Counter(said) & Counter(gold)).values())
    if not common:
        return 0, 0, 0
    p, r = common / len(said), common / len(gold)
    return p, r, 2 * p * r / (p + r)


@given(WORDS, WORDS, IDS, IDS)
def test_scores_follow_from_precision_and_recall(
    said: str, gold: str, found: set[str], right: set[str]
) -> None:
    p, r, f1 = official(said, gold)
    scores = m.hotpotqa_scores(said, gold, found, right)
    assert scores["f1"] == pytest.approx(f1) and all(0 <= s <= 1 for s in scores.values())
    sp_p, sp_r = (len(found & right) / len(s) if s else 0 for s in (found, right))
    joint_p, joint_r = p * sp_p, r * sp_r
    expected = 2 * joint_p * joint_r / (joint_p + joint_r) if joint_p + joint_r else 0
    assert scores["joint_f1"] == pytest.approx(expected)
    assert scores["joint_em"] == scores["em"] * scores["sp_em"]


@pytest.mark.skipif(not HAS_HOTPOTQA, reason="ADAPTMR_DATA names no folder with a file of HotpotQA")
def test_a_real_file_has_ten_paragraphs_and_two_with_gold_for_each_question() -> None:
    data = load("hotpotqa")
    assert data.label.endswith(f"{len(data.questions)} conversations, {len(data.questions)} questions")
    for conversation, question in zip(data.conversations, data.questions):
        session = {t.source: t.session for t in conversation.turns}
        assert len(conversation.sessions) <= 10 and question.conversation == conversation.id
        assert len({session[s] for s in question.evidence}) == 2, question.id


def test_forty_questions_are_in_the_package_with_their_attribution() -> None:
    data = load("hotpotqa_40")
    assert len(data.questions) == len(data.conversations) == 40 and data.complete and data.ours
    assert all(q.evidence and q.answers[0] for q in data.questions)
    assert data.licence == "CC BY-SA 4.0" and "CC BY-SA" in attribution("hotpotqa_40")
