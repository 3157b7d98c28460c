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


@pytest.fixture(params=[whole, earlier], ids=["MemoryStore", "StorePart"])
def store(request) -> Store:
    return request.param()


def test_the_two_stores_are_different_classes():
    assert isinstance(whole(), MemoryStore) and isinstance(earlier(), StorePart)


def test_every_member_of_the_protocol_is_there(store):
    assert isinstance(store, Store)
    assert len(MEMBERS) >= 12
    assert [name for name in MEMBERS if not hasattr(store, name)] == []


@pytest.mark.parametrize("implementation", [MemoryStore, StorePart])
def test_parameters_are_those_of_the_protocol(implementation):
    for name in MEMBERS:
        wanted = inspect.getattr_static(Store, name)
        if isinstance(wanted, property):
            continue
        parameters = {
            cls: [(p.name, p.default) for p in inspect.signature(getattr(cls, name)).parameters.values()]
            for cls in (Store, implementation)
        }
        assert parameters[implementation] == parameters[Store], name


def test_rows_and_arrays_belong_together(store):
    n, dim = len(store), store.embedder.dim
    assert n == len(store.memories) == 4
    assert [m.id for m in store.memories] == ["m0", "m1", "m2", "m3"]
    assert store.matrix.shape == (n, dim)
    assert store.matrix.dtype == np.float32 and not store.matrix.flags.writeable
    assert store.speakers == ("Tom", "Maya")
    assert [m.id for m in store.recent(2)] == ["m3", "m2"]
    assert (store.lexical, store.k1, store.b) == ("bm25s", 1.5, 0.75)


def test_scores_have_the_shapes_of_the_protocol(store):
    rows = np.array([2, 0])
    cosines = store.dense("a cat")
    assert cosines.shape == (4,) and cosines.dtype == np.float32
    assert (store.dense("a cat", rows) == cosines[rows]).all()
    vector = store.embedder.encode(["a cat"], kind="query")[0]
    assert (store.dense(vector) == cosines).all()

    best, scores = store.nearest("a cat", 3, np.array([True, True, True, False]))
    assert set(best.tolist()) == {0, 1, 2}
    assert (scores == cosines[best]).all() and (np.diff(scores) <= 0).all()

    words, shares = store.by_word("cat Hangzhou")
    assert len(words) == 2 and words[0] == "cat" and shares.shape == (2, 4)
    assert store.by_word("cat Hangzhou", rows)[1].tolist() == shares[:, rows].tolist()
    assert store.bm25("cat Hangzhou") == pytest.approx(shares.sum(0), abs=1e-5)

    similarity = store.similarity([0, 1], [1, 2, 3])
    assert similarity.shape == (2, 3) and similarity[1, 0] == pytest.approx(1, abs=1e-3)


def test_both_stores_rank_the_same_memories_alike():
    one, other = whole(), earlier()
    assert (one.dense("a cat") == other.dense("a cat")).all()
    assert (one.bm25("a cat") == other.bm25("a cat")).all()
    assert (one.similarity([0], [1, 2]) == other.similarity([0], [1, 2])).all()


def test_rows_stay_within_a_snapshot(store):
    with store.snapshot() as held:
        before = held.version
        if isinstance(store, MemoryStore):
            store.add([Memory("new", "Something else.", step=-1)])
        assert held.version == before and held.memories[0].id == "m0" and len(held.matrix) == 4
