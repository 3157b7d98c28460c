"""The registry and LoCoMo: finding, downloading and labelling the official file, or a part of it."""

from __future__ import annotations

import hashlib
import http.server
import json
import socket
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.data import registry
from adaptmr.data.locomo import parse_evidence_ids, parse_session_time
from adaptmr.data.registry import (
    DatasetEntry,
    DatasetUnavailable,
    datasets,
    download,
    load,
    register_dataset,
)
from adaptmr.types import Conversation, Dataset, Memory, QueryType, Question

OFFICIAL = json.dumps({"c1": 4, "c2": 6, "c3": 1}).encode() + b"\n" * 200_000  # more than one block
TYPES = ["multi_hop", "abstention", "temporal_reasoning"]


def parse_toy(path: Path | None) -> Dataset:
    raw = registry.read_json(path)
    turn = {"at": "2024-01-01", "source": "S1:1"}
    talks = [Conversation(c, ("A",), [Memory(f"{c}/1", "hello", "A", **turn)]) for c in raw]
    questions = [
        Question(f"{c}/q{i}", f"{c}? {i}", ["x"], TYPES[i % 3], evidence=["S1:1"], conversation=c)
        for c, n in raw.items()
        for i in range(n)
    ]
    return Dataset("", talks, questions, notes={"corrected": 1})


@pytest.fixture
def entry(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTMR_DATA", raising=False)
    made = {
        "sha256": hashlib.sha256(OFFICIAL).hexdigest(),
        "size": len(OFFICIAL),
        "splits": {"dev": ("c1", "c3"), "gone": ("c1", "c7")},
    }
    files = ("toy.json", "toy_dev.json")
    yield register_dataset(DatasetEntry("toy", parse_toy, "CC0", "a toy", files, **made))
    del registry._ENTRIES["toy"]


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("ADAPTMR_DATA", str(folder))
    return folder


@pytest.fixture
def server():
    """A server on the loopback; a request's path selects its behaviour. Yields its address and the paths."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/404":
                return self.send_error(404)
            body = {"/other": b"<html>sign in first</html>"}.get(self.path, OFFICIAL)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)
            return None

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}", asked
        httpd.shutdown()


def names_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---------------------------------------------------------------- downloading


def test_without_a_network_or_an_address(entry, tmp_path):
    with socket.socket() as s:  # bound, not listening: connections are refused
        s.bind(("127.0.0.1", 0))
        register_dataset(replace(entry, url=f"http://127.0.0.1:{s.getsockname()[1]}/toy.json"))
        with pytest.raises(DatasetUnavailable, match=r"refused.*and save it as toy.json in .*cache/data"):
            load("toy")
    with pytest.raises(DatasetUnavailable, match="no address"):
        download(entry)


def test_a_download_with_another_hash_is_never_used(entry, server, tmp_path):
    register_dataset(replace(entry, url=server[0] + "/other"))
    told = rf"sha256 [0-9a-f]{{64}}, not {entry.sha256}: download"
    for _ in range(2):
        with pytest.raises(DatasetUnavailable, match=told):
            load("toy")
    assert names_in(tmp_path / "cache" / "data") == []
    register_dataset(replace(entry, url=server[0] + "/ok"))
    load("toy")
    (tmp_path / "cache" / "data" / "toy.json").write_bytes(OFFICIAL[:-1])
    with pytest.raises(DatasetUnavailable, match=r"damaged, or another version\. Delete it"):
        load("toy")


# ---------------------------------------------------------------- finding


def test_own_folder_comes_first_and_a_part_is_labelled_as_a_part(entry, own_folder, server, tmp_path):
    whole, part = "toy: 3 conversations, 11 questions", b'{"c1": 2}'
    register_dataset(replace(entry, url=server[0] + "/ok"))
    assert load("toy").complete
    (own_folder / "toy_dev.json").write_bytes(part)
    data = load("toy")
    assert data.label == "part of toy: 1 conversations, 2 questions" and data.notes == {"corrected": 1}
    assert data.sha256 == hashlib.sha256(part).hexdigest()
    (own_folder / "toy.json").write_bytes(OFFICIAL)
    assert load("toy").label == whole, "the official name comes before the others"
    (own_folder / "toy.json").write_bytes(OFFICIAL + b" ")
    assert load("toy").label == f"part of {whole}", "with one more byte it isn't the official file"


def test_an_unknown_name_lists_the_known_ones(entry):
    assert {"demo", "locomo", "toy"} <= set(datasets()) and datasets() == sorted(datasets())
    assert "CC BY-NC 4.0" in datasets()._repr_html_()
    with pytest.raises(KeyError, match=r"no data set 'locomoo' \(did you mean 'locomo'\?\); .*demo"):
        load("locomoo")


# ---------------------------------------------------------------- parts


def test_split(entry, own_folder):
    (own_folder / "toy.json").write_bytes(OFFICIAL)
    for split in (["c1", "c3"], "dev", " c1 , dev"):
        part = load("toy", split=split)
        assert [c.id for c in part.conversations] == ["c1", "c3"] and not part.complete
        assert {q.conversation for q in part.questions} == {"c1", "c3"}
    assert load("toy", split="c1,c2,c3").complete
    for split, told in (("c1,c9", "no conversation 'c9' in this file; there are c1,"), ("gone", "'c7'")):
        with pytest.raises(KeyError, match=told):
            load("toy", split=split)


def test_limit_samples_evenly_and_a_smaller_sample_is_a_subset(entry, own_folder):
    (own_folder / "toy.json").write_bytes(OFFICIAL)
    whole = load("toy")
    ids = [{q.id for q in load("toy", limit=n).questions} for n in range(1, 13)]
    assert [len(i) for i in ids] == [*range(1, 12), 11] and all(a <= b for a, b in pairwise(ids))
    three = load("toy", limit=3)
    assert {q.conversation for q in three.questions} == {"c1", "c2", "c3"} and not three.complete
    begins = {q.conversation: str(q.type) for q in three.questions}
    assert begins["c1"] == "abstention" and begins["c2"] == "multi_hop", "each begins with another type"
    assert {q.type for q in load("toy", split="c2", limit=3).questions} == set(map(QueryType, TYPES))
    assert [c.id for c in load("toy", limit=1).conversations] == ["c1"]
    seven = [q.id for q in load("toy", limit=7).questions]
    assert seven == [q.id for q in whole.questions if q.id in ids[6]], "in the order of the file"
    assert load("toy", limit=11).complete and load("toy", limit=99) == whole


# ---------------------------------------------------------------- LoCoMo


@given(st.text(max_size=60))
def test_evidence_ids_and_times_of_sessions(text):
    assert all(e.startswith("D") and ":" in e for e in parse_evidence_ids(text))
    for written, ids in {
        "D1:3": ["D1:3"],
        "D8:6; D9:17": ["D8:6", "D9:17"],
        "D9:1 D4:4 D4:6": ["D9:1", "D4:4", "D4:6"],
        "D:11:26": ["D11:26"],
        "D30:05": ["D30:5"],
        "D": [],
    }.items():
        assert parse_evidence_ids(written) == ids
    assert parse_session_time("1:56 pm on 8 May, 2023") == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert parse_session_time("12:30 am on 1 January, 2024") == datetime(2024, 1, 1, 0, 30, tzinfo=UTC)


def check_locomo(data: Dataset) -> None:
    for c in data.conversations:
        turns = {m.source: m for m in c.turns}
        assert [m.step for m in c.turns] == list(range(len(turns)))
        assert all(m.id == f"{c.id}/{m.source}" for m in c.turns)
        assert {m.speaker for m in c.turns} == set(c.speakers)
        assert all(a.at <= b.at for a, b in pairwise(c.turns))
        assert all(m.text.endswith(f"[image: {m.meta['caption']}]") for m in c.turns if m.meta)
        for q in data.questions_on(c.id):
            assert all(e in turns for e in q.evidence) and q.asked_at == c.turns[-1].at
            assert q.answerable == (q.category != "5") and (q.answers or not q.answerable)


def sizes(data: Dataset) -> tuple[int, ...]:
    turns = [m for c in data for m in c.turns]
    captions = sum("caption" in m.meta for m in turns)
    categories = Counter(q.category for q in data.questions)
    return len(turns), sum(len(c.sessions) for c in data), captions, *(categories[c] for c in "12345")


def test_the_real_file(locomo_file):
    data = load("locomo")
    check_locomo(data)
    gold = [q.answers for q in data.questions if not q.answerable]
    assert all(g in ([], ["No"]) for g in gold), "the adversarial answer is never gold"
    if data.complete:
        assert sizes(data) == (5882, 272, 1226, 282, 321, 96, 841, 446)
        counts = {"abstention_without_answer": 444, "questions_without_evidence": 4}
    else:
        assert sizes(data) == (2760, 128, 602, 142, 156, 46, 418, 237)
        counts = {"abstention_without_answer": 235, "questions_without_evidence": 2}
    assert {**data.notes, **counts} == data.notes
