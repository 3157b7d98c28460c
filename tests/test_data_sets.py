"""The loaders of BEAM, MSC and HotpotQA, and what the demo sets promise."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import timedelta
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.data.beam import CATEGORY_TO_TYPE
from adaptmr.data.hotpotqa import HotpotQuestion
from adaptmr.data.msc import LAST_SESSION_TIME, parse_msc
from adaptmr.data.registry import find_file, get_entry, load
from adaptmr.eval.metrics import answers as m
from adaptmr.eval.runner.asking import score_answer
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.text import detect_language
from adaptmr.types import Answer, QueryType, Question

# --- BEAM

HAS_BEAM = bool(os.environ.get("ADAPTMR_DATA")) and Path(os.environ["ADAPTMR_DATA"], "beam_100k").is_dir()


def message(id: int, content: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, **more}


FIRST = message(0, "The sprint ends on 1 April. ->-> 1,1", time_anchor="March-01-2024")
EARLY = [[FIRST, message(1, "Noted.", "assistant")], [message(2, "I prefer a -> b. ->-> 1,2")]]
LATE = [[message(3, "The sprint now ends on 5 April.", time_anchor="March-20-2024")]]
CHAT = [{"turns": EARLY}, {"turns": LATE}]
UPDATED = {"original_info": [0, 0], "updated_info": [[3], 77]}
UPDATE = {"question": "When does the sprint end?", "answer": "5 April", "source_chat_ids": UPDATED}
SUMMARY = {"question": "Summarize the sprint.", "ideal_summary": "It was moved from 1 to 5 April."}
QUESTIONS = {
    "knowledge_update": [{**UPDATE, "rubric": ["states 5 April"]}],
    "summarization": [{**SUMMARY, "source_chat_ids": [0, [3]], "rubric": []}],
    "abstention": [{"question": "Who leads the sprint?", "ideal_response": "Not said.", "rubric": ["no"]}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path))
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write_chat(folder: Path, nested: bool = False, chat: Any = CHAT, questions: Any = QUESTIONS) -> None:
    (folder / "probing_questions").mkdir(parents=True)
    place = "probing_questions/probing_questions.json" if nested else "probing_questions.json"
    (folder / "chat.json").write_text(json.dumps(chat), encoding="utf-8")
    (folder / place).write_text(json.dumps(questions), encoding="utf-8")


def test_a_chat_is_read_from_the_official_folders_and_from_flat_ones(folder: Path) -> None:
    for place, nested in (("beam_100k", False), ("chats/100K", True)):
        write_chat(folder / place / "10", nested)
        write_chat(folder / place / "2", nested)
        data = load("beam_100k")
        assert [c.id for c in data.conversations] == ["beam-2", "beam-10"]
        assert data.label == "part of beam_100k: 2 conversations, 6 questions"


def test_messages_and_questions_are_read(folder: Path) -> None:
    write_chat(folder / "beam_100k" / "1")
    data = load("beam_100k")
    turns = data.conversations[0].turns
    assert [(m.source, m.session, m.step) for m in turns] == [
        ("0", "S1", 0),
        ("1", "S1", 1),
        ("2", "S1", 2),
        ("3", "S2", 3),
    ]
    assert [m.speaker for m in turns] == ["user", "assistant", "user", "user"]
    assert turns[0].text == "The sprint ends on 1 April." and turns[2].text == "I prefer a -> b."
    assert turns[2].at - turns[0].at == timedelta(minutes=2) and f"{turns[3].at:%Y-%m-%d}" == "2024-03-20"
    update, summary, unsaid = data.questions
    assert update.evidence == ["0", "3"] and update.rubric == ("states 5 April",)
    assert update.parts == {"stale": ("0", "0"), "current": ("3",)}
    assert summary.answers == ["It was moved from 1 to 5 April."] and summary.evidence == ["0", "3"]
    assert summary.type is QueryType.multi_hop and summary.category == "summarization"
    assert not unsaid.answerable and unsaid.evidence == []
    assert data.notes == {"evidence_ids_without_a_message": 1}
    before = data.sha256
    (folder / "beam_100k" / "1" / "chat.json").write_text(json.dumps(CHAT[:1]), encoding="utf-8")
    assert load("beam_100k").sha256 != before


@pytest.mark.skipif(not HAS_BEAM, reason="ADAPTMR_DATA names no folder with beam_100k")
def test_the_real_chats_have_two_questions_of_each_type() -> None:
    data = load("beam_100k")
    assert len(data.conversations) == 10 and len(data.questions) == 200
    for talk in data.conversations:
        categories = [q.category for q in data.questions_on(talk.id)]
        assert sorted(categories) == sorted([*CATEGORY_TO_TYPE, *CATEGORY_TO_TYPE])
        assert not any("->->" in m.text[-20:] for m in talk.turns)
    assert sum(bool(q.evidence) for q in data.questions) == 179


# --- MSC


def row(*earlier, last=("Hello again.", "Hi!")):
    return {
        "personas": [["I keep bees."], ["I row."]],
        "init_personas": [[], []],
        "metadata": {"initial_data_id": "train:ordinary_1", "session_id": len(earlier)},
        "previous_dialogs": [
            {"personas": [[], []], "dialog": [{"text": t} for t in said], **when} for said, when in earlier
        ],
        "dialog": [{"text": t, "id": f"Speaker {i % 2 + 1}", "convai2_id": "x"} for i, t in enumerate(last)],
    }


TWO = row(
    (("One.", "Two.", "Three."), {"time_num": 5, "time_unit": "hours", "time_back": "7 days 5 hours ago"}),
    (("Four.",), {"time_num": 7, "time_unit": "days", "time_back": "7 days ago"}),
)


def test_the_file_is_found_wherever_the_archive_was_unpacked(folder):
    for place in ("msc_session_5.jsonl", "session_5/test.txt", "msc/msc_dialogue/session_5/test.txt"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(json.dumps(TWO) + "\n\n" + json.dumps(row()) + "\n", encoding="utf-8")
        data = load("msc")
        assert data.label == "part of msc: 2 conversations, 0 questions" and not data.complete
        (folder / place).unlink()
    one, two = data.conversations
    assert (one.id, two.id, one.speakers) == ("msc-0", "msc-1", ("Speaker 1", "Speaker 2"))
    assert one.sessions == ["S1", "S2", "S3"] and "bees" not in repr(one.turns), "personas are not read"
    said = {
        "S1:1": "One.",
        "S1:2": "Two.",
        "S1:3": "Three.",
        "S2:1": "Four.",
        "S3:1": "Hello again.",
        "S3:2": "Hi!",
    }
    assert {m.source: m.text for m in one.turns} == said
    assert [m.speaker[-1] for m in one.turns] == list("121112")
    week = timedelta(days=7)
    assert [LAST_SESSION_TIME - m.at for m in one.turns][::3] == [week + timedelta(hours=5), week]
    assert one.turns[-1].at == LAST_SESSION_TIME and [m.step for m in one.turns] == list(range(6))
    assert evaluate(["lexical"], data, embedder="hash", progress=False).empty


def test_missing_times_are_filled_in_and_counted(tmp_path):
    path = tmp_path / "x.jsonl"
    told = ({}, {"time_num": 3, "time_unit": "hours"}, {"time_back": "long ago"})
    path.write_text(json.dumps(row(*zip((("a",), ("b",), ("c", "__SILENCE__")), told))))
    data = parse_msc(path)
    assert data.notes == {"sessions_without_a_time": 2, "turns_of_silence": 1}
    assert [LAST_SESSION_TIME - m.at for m in data.conversations[0].turns][:3] == [
        timedelta(days=2, hours=3),
        timedelta(days=1, hours=3),
        timedelta(days=1),
    ]
    assert all(a.at <= b.at for a, b in pairwise(data.conversations[0].turns))


# --- HotpotQA

HAS_HOTPOTQA = bool(os.environ.get("ADAPTMR_DATA")) and find_file(get_entry("hotpotqa")) is not None
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


def write(folder: Path, questions: Any, name: str = "hotpotqa_distractor_50.json") -> None:
    (folder / name).write_text(json.dumps(questions), encoding="utf-8")


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
    write(folder, [{**BRIDGE, "supporting_facts": [["Hill", 0], ["Hill", 0], ["Hill", 2], ["Dale", 0]]}])
    data = load("hotpotqa")
    assert data.questions[0].evidence == ["Hill#0"]
    assert data.notes["evidence_ids_without_a_sentence"] == 2 and data.notes["sentences_empty"] == 1


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
    answer, support = m.answer_agreement(said, gold), m.support_agreement(found, right)
    joint = m.joint_agreement(answer, support)
    assert answer.f1 == pytest.approx(f1)
    sp_p, sp_r = (len(found & right) / len(s) if s else 0 for s in (found, right))
    joint_p, joint_r = p * sp_p, r * sp_r
    expected = 2 * joint_p * joint_r / (joint_p + joint_r) if joint_p + joint_r else 0
    assert joint.f1 == pytest.approx(expected) and joint.em == answer.em * support.em


@pytest.mark.skipif(not HAS_HOTPOTQA, reason="ADAPTMR_DATA names no folder with a file of HotpotQA")
def test_a_real_file_has_ten_paragraphs_and_two_with_gold_for_each_question() -> None:
    data = load("hotpotqa")
    assert data.label.endswith(f"{len(data.questions)} conversations, {len(data.questions)} questions")
    for conversation, question in zip(data.conversations, data.questions):
        session = {t.source: t.session for t in conversation.turns}
        assert len(conversation.sessions) <= 10 and question.conversation == conversation.id
        assert len({session[s] for s in question.evidence}) == 2, question.id


# --- the demo sets


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


# --- the chats with an assistant
