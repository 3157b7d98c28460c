"""What a store offers to retrieval: the memory store and its part as of a moment keep the same protocol."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime

import numpy as np
import pytest

from adaptmr.retrieval.visible import StorePart, store_as_of
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.protocol import Store
from adaptmr.types import Memory

MEMBERS = sorted(name for name in vars(Store) if not name.startswith("_"))
TEXTS = ("I live in Beijing.", "We have a cat.", "I moved to Hangzhou.", "The cat likes it there.")


def whole() -> Store:
    """A memory store with the four memories."""
    store = MemoryStore(embedder="hash")
    store.add(memories())
    return store


def earlier() -> Store:
    """The four memories as the earlier part of a store that holds a fifth one."""
    store = MemoryStore(embedder="hash")
    store.add([*memories(), Memory("m9", "Later.", "Tom", "2025-01-01", step=9)])
    return store_as_of(store, datetime(2024, 12, 31, tzinfo=UTC))


def memories() -> list[Memory]:
    return [
        Memory(f"m{i}", text, "Maya" if i % 2 else "Tom", f"2024-0{i + 1}-01", step=i)
        for i, text in enumerate(TEXTS)
    ]


@pytest.mark.parametrize("make", [whole, earlier], ids=["MemoryStore", "StorePart"])
class TestStores:
    """What every store must do."""

    def test_its_members_are_those_of_the_protocol(self, make):
        store = make()
        assert isinstance(store, Store) and type(store) is {whole: MemoryStore, earlier: StorePart}[make]
        for name in MEMBERS:
            wanted = inspect.getattr_static(Store, name)
            if not isinstance(wanted, property):
                own = inspect.signature(getattr(type(store), name)).parameters.values()
                theirs = inspect.signature(wanted).parameters.values()
                assert [(p.name, p.default) for p in own] == [(p.name, p.default) for p in theirs], name

    def test_rows_and_arrays_belong_together(self, make):
        store = make()
        assert len(store) == len(store.memories) == 4
        assert [m.id for m in store.memories] == ["m0", "m1", "m2", "m3"]
        assert store.matrix.shape == (4, store.embedder.dim) and not store.matrix.flags.writeable
        assert store.speakers == ("Tom", "Maya") and [m.id for m in store.recent(2)] == ["m3", "m2"]
        assert (store.k1, store.b) == (1.5, 0.75)

    def test_scores(self, make):
        store, rows = make(), np.array([2, 0])
        cosines = store.dense("a cat")
        assert cosines.shape == (4,) and cosines.dtype == np.float32
        assert (store.dense("a cat", rows) == cosines[rows]).all()
        assert (store.dense(store.embedder.encode(["a cat"], kind="query")[0]) == cosines).all()
        best, scores = store.nearest("a cat", 3, np.array([True, True, True, False]))
        assert set(best.tolist()) == {0, 1, 2}
        assert (scores == cosines[best]).all() and (np.diff(scores) <= 0).all()
        words, shares = store.by_word("cat Hangzhou")
        assert len(words) == 2 and words[0] == "cat" and shares.shape == (2, 4)
        assert store.by_word("cat Hangzhou", rows)[1].tolist() == shares[:, rows].tolist()
        assert store.bm25("cat Hangzhou") == pytest.approx(shares.sum(0), abs=1e-5)
        similarity = store.similarity([0, 1], [1, 2, 3])
        assert similarity.shape == (2, 3) and similarity[1, 0] == pytest.approx(1, abs=1e-3)
        other = whole()
        assert (cosines == other.dense("a cat")).all() and (store.bm25("a cat") == other.bm25("a cat")).all()

    def test_rows_stay_within_a_snapshot(self, make):
        store = make()
        with store.snapshot() as held:
            before = held.version
            if isinstance(store, MemoryStore):
                store.add([Memory("new", "Something else.", step=-1)])
            assert held.version == before and held.memories[0].id == "m0" and len(held.matrix) == 4
