"""The demo set: its size, language, evidence and annotations, and the check of files of the same form."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from importlib import resources

import numpy as np
import pytest

from adaptmr.data.demo import demo_traps, parse_demo
from adaptmr.data.registry import load
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.retrieval.query import ASSISTANTS
from adaptmr.text import count_words, detect_language
from adaptmr.types import QueryType


TYPES = {"factual_extraction", "temporal_reasoning", "knowledge_update", "multi_hop", "abstention"}


def raw_files(folder: str) -> list[dict]:
    place = resources.files("adaptmr.data").joinpath(folder)
    return [json.loads(f.read_text(encoding="utf-8")) for f in sorted(place.iterdir(), key=lambda f: f.name)]


@pytest.mark.parametrize(
    "folder, ids, least",
    [
        ("demo", ["en1", "en2", "en3", "en4", "zh1", "zh2"], (12, 150, 30, 30)),
        ("demo_assistant", ["en5", "zh3"], (12, 80, 50, 20)),
    ],
)
def test_the_annotations_are_sound_and_the_sets_large_enough(folder, ids, least):
    """What every data set must hold is checked by `load`; this is what these sets promise besides."""
    raws = raw_files(folder)
    min_sessions, min_turns, min_questions, min_of_type = least
    assert [raw["id"] for raw in raws] == ids
    found = missed = 0
    for raw in raws:
        texts = {t["id"]: t["text"].casefold() for s in raw["sessions"] for t in s["turns"]}
        assert len(raw["sessions"]) >= min_sessions and len(texts) >= min_turns
        assert len(raw["questions"]) >= min_questions
        assert len({q["text"] for q in raw["questions"]}) == len(raw["questions"]), "no question twice"
        times = [s["at"] for s in raw["sessions"]]
        assert times == sorted(set(times)), "each session is later than the one before"
        for s in raw["sessions"]:
            assert {t["speaker"] for t in s["turns"]} == set(raw["speakers"])
            assert all(t["id"].startswith(s["id"] + ":") and t["text"].strip() for t in s["turns"])
        for q in raw["questions"]:
            evidence, distractors, stale = set(q["evidence"]), set(q["distractors"]), set(q.get("stale", ()))
            assert evidence | distractors <= set(texts) and not evidence & distractors, q["id"]
            assert stale <= distractors and (not stale or q["type"] == "knowledge_update"), q["id"]
            assert len(evidence) >= {"abstention": 0, "multi_hop": 2}.get(q["type"], 1), q["id"]
            if q["type"] in ("factual_extraction", "knowledge_update"):
                said = " ".join(texts[e] for e in evidence)
                literal = any(a.casefold() in said for a in q["answers"])
                found, missed = found + literal, missed + (not literal)
    types = Counter(q["type"] for raw in raws for q in raw["questions"])
    assert set(types) == TYPES and min(types.values()) >= min_of_type
    assert found >= 0.9 * (found + missed), "most answers are in the words of their evidence"


def test_each_split_is_in_its_language():
    for split, lang in (("en", "en"), ("zh", "zh")):
        data = load("demo", split=split)
        assert not data.complete and all(c.id.startswith(lang) for c in data)
        texts = [m.text for c in data for m in c.turns] + [q.text for q in data.questions]
        assert sum(detect_language(t) == lang for t in texts) > 0.97 * len(texts)


def test_every_question_has_a_trap_and_some_abstention_questions_an_answer():
    data, traps = load("demo"), demo_traps()
    assert set(traps) == {q.id for q in data.questions} and all(t.why for t in traps.values())
    assert sum(bool(t.distractors) for t in traps.values()) > 0.9 * len(traps)
    answerable = Counter(q.answerable for q in data.questions if q.type is QueryType.abstention)
    assert answerable[True] >= 6 and answerable[False] >= 30


def test_a_valid_file_of_ones_own(tmp_path):
    turns = (("A", "My cat is Mochi."), ("B", "Nice."))
    sessions = [
        {
            **{"id": f"S{i}", "at": f"2024-01-0{i}T09:00:00"},
            "turns": [{"id": f"S{i}:{n}", "speaker": s, "text": t} for n, (s, t) in enumerate(turns, 1)],
        }
        for i in (1, 2)
    ]
    cat = {"answers": ["mochi"], "type": "factual_extraction", "evidence": ["S1:1"], "distractors": ["S1:2"]}
    dog = {"answers": ["not mentioned"], "type": "abstention", "evidence": [], "distractors": []}
    questions = [
        {"id": "x1-q01", "text": "Cat?", "trap": "t", **cat},
        {"id": "x1-q02", "text": "Dog?", "trap": "t", **dog, "asked_at": "2024-02-01"},
    ]
    about = {"id": "x1", "language": "en", "title": "t", "speakers": ["A", "B"]}
    own = {**about, "sessions": sessions, "questions": questions}
    (tmp_path / "x1.json").write_text(json.dumps(own), encoding="utf-8")
    data = parse_demo(tmp_path)
    times = [datetime(2024, 1, 3, 9, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC)]
    assert [q.asked_at for q in data.questions] == times
    assert not data.complete and [q.id for q in data.questions] == ["x1/q01", "x1/q02"]


# --- the chats with an assistant


def test_messages_of_an_assistant_are_long():
    data = load("demo_assistant")
    assert data.ours and data.complete and data.label == "demo_assistant: 2 conversations, 116 questions"
    for talk in data.conversations:
        words = {True: [], False: []}
        for m in talk.turns:
            words[m.speaker.lower() in ASSISTANTS].append(count_words(m.text))
        assert np.mean(words[True]) > 200 > 2 * np.mean(words[False])


@pytest.mark.slow
def test_the_fitted_fusion_is_no_worse_than_any_plain_search_on_them():
    """No weight was fitted to these chats, nor chosen by them."""
    frame = evaluate(["unified", "lexical", "zscore", "hybrid"], load("demo_assistant"), progress=False)
    recall = frame.groupby(["conversation", "system"])["recall_fraction"].mean().unstack()
    for _, row in recall.iterrows():
        assert row["hybrid"] > row.drop("hybrid").max()
