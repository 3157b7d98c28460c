"""The package's own questions over two passages: sound, in HotpotQA's form, and of no use for each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptmr.agents.hotpot import Corpus, HotpotEnv
from adaptmr.data.hotpotqa import HotpotQuestion, parse_demo_multihop
from adaptmr.data.registry import load
from adaptmr.data.validation import DatasetError


@pytest.fixture(scope="module")
def data():
    return load("demo_multihop")


def gold_titles(question: HotpotQuestion) -> set[str]:
    return {source.rpartition("#")[0].replace("_", " ") for source in question.evidence}


def test_it_is_part_of_the_package_and_whole(data):
    assert data.label == "demo_multihop: 14 conversations, 14 questions"
    assert data.ours and data.complete and data.licence == "Apache-2.0"
    assert [len(load("demo_multihop", split=name).questions) for name in ("en", "zh")] == [8, 6]
    assert {c.id: len(c.sessions) for c in data.conversations} == {q.id: 8 for q in data.questions}


def test_every_question_needs_two_passages_and_one_of_them_holds_its_answer(data):
    for question in data.questions:
        said = {m.source: m.text for m in data.conversation(question.conversation).turns}
        assert len(gold_titles(question)) == 2 and set(question.evidence) <= set(said), question.id
        held = any(question.answers[0] in said[source] for source in question.evidence)
        assert held or question.answers[0] in ("yes", "no"), question.id


def test_the_second_passage_of_a_bridge_is_not_named_in_its_question(data):
    for question in data.questions:
        named = sum(title in question.text for title in gold_titles(question))
        assert named == (1 if question.category == "bridge" else 2), question.id


def test_no_task_holds_the_gold_passages_of_another(data):
    for question in data.questions:
        others = {s for c in data.conversations if c.id != question.conversation for s in c.sessions}
        assert not gold_titles(question) & others, question.id


def test_an_answer_in_a_wrong_passage_would_be_another_one(data):
    for question in data.questions:
        gold = set(question.evidence)
        turns = data.conversation(question.conversation).turns
        wrong = [m.text for m in turns if m.source not in gold and m.session not in gold_titles(question)]
        if question.answers[0] not in ("yes", "no"):
            assert not any(question.answers[0] in text for text in wrong), question.id


def test_each_gold_passage_can_be_searched_by_its_title(data):
    for question in data.questions:
        corpus = Corpus.from_conversation(data.conversation(question.conversation))
        for title in gold_titles(question):
            found = HotpotEnv(corpus, question.text).step(f"Search[{title}]")
            assert found.valid and found.observation.startswith(title), (question.id, title)


def test_a_folder_without_questions_and_a_file_of_another_form_are_errors(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="holds no questions"):
        parse_demo_multihop(tmp_path)
    (tmp_path / "en.json").write_text(json.dumps([{"_id": "x", "question": "?"}]), encoding="utf-8")
    with pytest.raises(DatasetError, match="'x'"):
        parse_demo_multihop(tmp_path)
