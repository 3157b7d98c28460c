"""BEAM: chats in folders, messages without the generator's marker, questions with parts and rubrics."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from adaptmr.data.beam import CATEGORY_TO_TYPE, RubricQuestion, strip_marker
from adaptmr.data.registry import DatasetUnavailable, load
from adaptmr.data.validation import DatasetError
from adaptmr.systems.base import PlannedSystem, make_system
from adaptmr.types import QueryType

HAS_BEAM = bool(os.environ.get("ADAPTMR_DATA")) and Path(os.environ["ADAPTMR_DATA"], "beam_100k").is_dir()


def message(id: int, role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, **more}


EARLY = [
    message(0, "user", "The sprint ends on 1 April. ->-> 1,1", time_anchor="March-01-2024"),
    message(1, "assistant", "Noted."),
]
LATE = [message(3, "user", "The sprint now ends on 5 April.", time_anchor="March-20-2024")]
CHAT = [
    {"batch_number": 1, "turns": [EARLY, [message(2, "user", "I prefer short answers. ->-> 1,2")]]},
    {"batch_number": 2, "turns": [LATE]},
]
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


def test_chats_of_each_size_have_ids_and_fits_of_their_own(folder: Path) -> None:
    """Otherwise chat 3 of 500k would get the fit that was made without chat 3 of 100k."""
    for size, id_, without in (
        ("beam_100k", "beam-3", "beam-3"),
        ("beam_500k", "beam-500k-3", ""),
        ("beam_1m", "beam-1m-3", ""),
    ):
        write_chat(folder / size / "3")
        data = load(size)
        (conversation,) = data.conversations
        assert conversation.id == id_ and conversation.turns[0].id == f"{id_}/0"
        assert data.questions[0].id == f"{id_}/knowledge_update-1"
        system = make_system("hybrid", embedder="hash")
        system.ingest(conversation)
        assert isinstance(system, PlannedSystem) and system.fit.without == without
        blind = data.questions[0].blind()
        assert not isinstance(blind, RubricQuestion) and not blind.evidence


def test_messages_and_questions_are_read(folder: Path) -> None:
    write_chat(folder / "beam_100k" / "1")
    data = load("beam_100k")
    turns = data.conversations[0].turns
    assert [(m.source, m.session, m.speaker, m.step) for m in turns] == [
        ("0", "S1", "user", 0),
        ("1", "S1", "assistant", 1),
        ("2", "S1", "user", 2),
        ("3", "S2", "user", 3),
    ]
    assert turns[0].text == "The sprint ends on 1 April." and turns[2].text == "I prefer short answers."
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


def test_a_file_of_another_form_and_no_file_are_named(folder: Path) -> None:
    with pytest.raises(DatasetUnavailable, match="chats/1M"):
        load("beam_1m")
    (folder / "beam_100k").mkdir()
    with pytest.raises(DatasetError, match="has no folder 1, 2"):
        load("beam_100k")
    undated = [{"turns": [[message(0, "user", "Hi.", time_anchor="15 March")]]}]
    for chat, questions, why in (
        ([{"turns": [[message(0, "user", "Hi.")]]}], QUESTIONS, "batch 1 has no time_anchor"),
        (undated, QUESTIONS, "does not match"),
        (CHAT, {"riddles": [{"question": "?"}]}, "unknown question type 'riddles'"),
        (CHAT, {"abstention": [{}]}, "probing_questions.json can't be read: KeyError: 'question'"),
    ):
        shutil.rmtree(folder / "beam_100k")
        write_chat(folder / "beam_100k" / "1", chat=chat, questions=questions)
        with pytest.raises(DatasetError, match=why):
            load("beam_100k")


def test_only_a_marker_at_the_end_is_removed() -> None:
    for text in ("Yes. ->-> 1,14", "Yes.\n->->  2,N/A", "Yes. ->-> 2,3)"):
        assert strip_marker(text) == "Yes."
    for text in ("a ->-> b", "->-> 1,2 is a marker"):
        assert strip_marker(text) == text


@pytest.mark.skipif(not HAS_BEAM, reason="ADAPTMR_DATA names no folder with beam_100k")
def test_the_real_chats_have_two_questions_of_each_type() -> None:
    data = load("beam_100k")
    assert len(data.conversations) == 10 and len(data.questions) == 200
    for talk in data.conversations:
        categories = [q.category for q in data.questions_on(talk.id)]
        assert sorted(categories) == sorted([*CATEGORY_TO_TYPE, *CATEGORY_TO_TYPE])
        assert not any("->->" in m.text[-20:] for m in talk.turns)
    assert sum(bool(q.evidence) for q in data.questions) == 179
