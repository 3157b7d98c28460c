"""MSC: conversations in order of time, from a file or a folder, and no questions."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.data.msc import LAST_SESSION_TIME, parse_msc, parse_time_ago
from adaptmr.data.registry import DatasetUnavailable, load
from adaptmr.eval.runner.evaluate import evaluate


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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path))
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    return tmp_path


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
    assert [(m.source, m.speaker, m.text) for m in one.turns] == [
        ("S1:1", "Speaker 1", "One."),
        ("S1:2", "Speaker 2", "Two."),
        ("S1:3", "Speaker 1", "Three."),
        ("S2:1", "Speaker 1", "Four."),
        ("S3:1", "Speaker 1", "Hello again."),
        ("S3:2", "Speaker 2", "Hi!"),
    ]
    week = timedelta(days=7)
    assert [LAST_SESSION_TIME - m.at for m in one.turns][::3] == [week + timedelta(hours=5), week]
    assert one.turns[-1].at == LAST_SESSION_TIME and [m.step for m in one.turns] == list(range(6))
    assert evaluate(["lexical"], data, embedder="hash", progress=False).empty


def test_a_folder_is_read_file_by_file(tmp_path):
    (tmp_path / "b.txt").write_text(json.dumps(row(last=("Later.",))))
    (tmp_path / "a.jsonl").write_text(json.dumps(TWO))
    (tmp_path / "README.md").write_text("not data")
    assert [c.turns[-1].text for c in parse_msc(tmp_path)] == ["Hi!", "Later."]


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


def test_a_file_of_another_form_and_no_file_are_named(folder):
    with pytest.raises(DatasetUnavailable, match=r"save it as msc/msc_dialogue/session_5/test\.txt in "):
        load("msc")
    for content, why in {
        '{"dialog": []}': "previous_dialogs",
        json.dumps(TWO) + "\n[": "line 2 is not JSON",
    }.items():
        (folder / "msc_session_5.jsonl").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"msc_session_5\.jsonl.*{why}"):
            load("msc")


@given(st.text(max_size=80))
def test_any_time_ago_is_read_or_none(text):
    assert (found := parse_time_ago(text)) is None or found >= timedelta(0)
    assert parse_time_ago("2 weeks 3 days ago") == timedelta(days=17)
