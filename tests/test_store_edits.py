"""Edits of a store: several in one transaction, based on a known state, with what they replace kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from adaptmr.embed import embedder
from adaptmr.store.database import StoreChanged
from adaptmr.store.edits import Add, Erase, SetStatus, Update
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter
from adaptmr.types import Memory

TURNS = [Memory(f"m{i}", f"turn {i} about tea", "Maya", step=i) for i in range(3)]
SUMMARY = Memory("s1", "Tea was discussed.", step=9, layer="summary", owner="u1", derived_from=["m0", "m1"])


class Counting:
    """The hash embedder, which records how many texts it gets in each call."""

    name, dim = "hash", 64

    def __init__(self) -> None:
        self.asked: list[int] = []

    def encode(self, texts, kind="passage"):
        self.asked.append(len(texts))
        return embedder("hash").encode(texts)


@pytest.fixture
def store(tmp_path):
    with MemoryStore(tmp_path / "m.db", embedder=Counting()) as s:
        s.add(TURNS)
        yield s


def encoded(m: Memory) -> np.ndarray:
    return embedder("hash").encode([m.text_with_speaker])[0]


# --- several changes at once


def test_edits_are_carried_out_in_order_with_a_line_of_the_log_each(store):
    better = replace(SUMMARY, text="Tea is liked.")
    edits = [
        Add(SUMMARY),
        Update(better),
        Update(replace(better, tags=["tea"])),
        SetStatus("m0", "deleted"),
        SetStatus("m1", "active"),
        Erase("m2"),
    ]
    assert store.apply(edits, who="ann", why="summarised") == store.last_event == store.version == 8
    done = [("add", "s1"), ("update", "s1"), ("update", "s1"), ("delete", "m0"), ("delete", "m2")]
    assert [(e.seq, e.kind, e.id, e.who) for e in store.events()[3:]] == [
        (n, kind, id, "ann") for n, (kind, id) in enumerate(done, 4)
    ], "m1 was active already"
    assert store.get("s1") == replace(better, tags=("tea",), version=3) and store.get("m2") is None
    assert [m.id for m in store.memories] == ["m1", "s1"]
    assert (store.matrix[1] == encoded(better)).all() and store.check() == []
    assert store.history("s1") == [SUMMARY, replace(better, version=2)]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Update(Memory("no", "x")), KeyError),
        (Erase("no"), KeyError),
        (Add(replace(TURNS[0], text="taken")), ValueError),
        (Add(replace(SUMMARY, id="s2"), np.ones(64, np.float32)), ValueError),
        (Add(replace(SUMMARY, id="s2", meta={"f": print})), TypeError),
    ],
)
def test_all_or_nothing(store, bad, error):
    before = (store.events(), list(store.memories), store.matrix.copy())
    with pytest.raises(error):
        store.apply([Add(SUMMARY), SetStatus("m1", "deleted"), bad])
    assert (store.events(), list(store.memories)) == before[:2] and (store.matrix == before[2]).all()
    assert store.apply([Add(SUMMARY)]) == store.apply([Add(SUMMARY), Add(TURNS[0])]) == 4, "stored once"
    assert store.check() == []


def test_threads_lose_no_update(store):
    def work(name: str) -> None:
        for i in range(10):
            while True:
                seen, counter = store.last_event, store.get("m0")
                more = replace(counter, meta={"n": counter.meta.get("n", 0) + 1})
                with suppress(StoreChanged):
                    store.apply([Update(more), Add(Memory(f"{name}-{i}", "done", step=i))], since=seen)
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert store.get("m0").meta == {"n": 40} and len(store) == 43
    assert [m.meta.get("n", 0) for m in store.history("m0")] == list(range(40)) and store.check() == []


# --- filters


def passes(m: Memory, where: Filter) -> bool:
    """Say whether a memory passes, condition by condition."""
    return all(
        (
            where.layers is None or m.layer in where.layers,
            where.owners is None or m.owner in where.owners,
            where.tags is None or any(t in where.tags for t in m.tags),
            where.sessions is None or m.session in where.sessions,
            where.speakers is None or m.speaker.casefold() in {s.casefold() for s in where.speakers},
        )
    )


def test_texts_are_encoded_together_only_where_they_change_and_before_the_file_is_locked(store, tmp_path):
    store.embedder.asked.clear()
    vector = encoded(Memory("x", "any text"))
    store.apply([Add(SUMMARY), Add(replace(SUMMARY, id="s2"), vector), Update(replace(TURNS[0], tags=["t"]))])
    store.apply(Update(replace(TURNS[1], text="other words")))
    assert store.embedder.asked == [1, 1]
    assert (store.matrix[[m.id for m in store.memories].index("s2")] == vector).all()

    class Watching(Counting):
        def encode(self, texts, kind="passage"):
            with MemoryStore(tmp_path / "m.db", embedder="hash", timeout=0.1) as other:
                other.add(Memory(f"seen{len(self.asked)}", "the file can be written"))
            return super().encode(texts)

    with MemoryStore(tmp_path / "m.db", embedder=Watching()) as s:
        s.apply([Add(replace(SUMMARY, id="s3")), Update(replace(TURNS[0], text="new"))])
        assert "seen0" in s and s.get("m0").version == 3
