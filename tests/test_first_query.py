"""The first query after a change: what is kept of the state before gives what a new store finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adaptmr as am
from adaptmr.perf.synthetic import SyntheticEmbedder, synthetic_memories, synthetic_questions
from adaptmr.retrieval.columns import columns_of
from adaptmr.store.lazy_list import LazyMemories
from adaptmr.types import Memory

LARGE = 30  # memories from which the store is held as arrays
QUESTIONS = synthetic_questions(3)


def opened(path: Path) -> am.MemoryStore:
    return am.MemoryStore(path, embedder=SyntheticEmbedder(), approximate_from=LARGE)


def found(store: am.MemoryStore) -> list[Any]:
    """Everything that queries find, with their scores, and every column that filters and plans read."""
    columns = columns_of(store)
    evidence = [am.retrieve(question, store) for question in QUESTIONS]
    searches = [store.search(q, mode=mode) for q in QUESTIONS for mode in ("lexical", "hybrid", "dense")]
    filters = (
        am.Filter(speakers=["Ana", "Eve"]),
        am.Filter(session="new"),
        am.Filter(tags=["a", "b"]),
        am.Filter(layers=[""]),
        am.Filter(agent="bot"),
        am.Filter(since="2023-01-02"),
    )
    names = [list(columns.session_code), list(columns.speaker_code)]
    rows = [columns.session, columns.speaker, columns.said_at, columns.happened_at, columns.previous]
    masks = [store.mask(where) for where in filters]
    return [
        [(e.hits, e.relevance, e.context) for e in evidence],
        searches,
        names,
        [r.tolist() for r in (*rows, *masks)],
        [store.bm25(q).tolist() for q in QUESTIONS],
    ]


def later(store: am.MemoryStore, n: int = 5, step: int = 1000, **more: Any) -> list[Memory]:
    said = synthetic_memories(500, 500 + n)
    return [replace(m, id=f"{step}-{i}", step=step + i, **more) for i, m in enumerate(said)]


CHANGES: dict[str, Callable[[am.MemoryStore], Any]] = {
    "appended": lambda s: s.add(later(s)),
    "by somebody new": lambda s: s.add(later(s, 3, 1100, speaker="Eve", session="new", tags=("b",))),
    "an agent's": lambda s: s.add(later(s, 2, 1200, meta={"agent": "bot"}, layer="summary")),
    "in between": lambda s: s.add([Memory("between", "a b c", "Ana", step=7)]),
    "appended again": lambda s: s.add(later(s, 4, 1300)),
    "updated": lambda s: s.update(replace(s.get("m00000003"), text="quite another text")),
    "deleted": lambda s: s.delete("m00000010"),
    "appended after a deletion": lambda s: s.add(later(s, 2, 1400)),
    "restored": lambda s: s.restore("m00000010"),
    "erased": lambda s: s.delete("m00000011", soft=False),
    "erased, the last": lambda s: s.delete("1400-1", soft=False),
    "appended at the end": lambda s: s.add(later(s, 6, 1500)),
}


def test_after_each_change_a_store_finds_what_one_that_is_opened_anew_finds(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with opened(path) as store:
        store.add(synthetic_memories(0, 40))
        found(store)
        for name, change in CHANGES.items():
            assert change(store), name
            with opened(path) as new:
                assert found(store) == found(new), name


def test_a_store_that_another_process_appends_to_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with opened(path) as store, opened(path) as other:
        store.add(synthetic_memories(0, 40))
        found(store)
        other.add(later(other))
        with opened(path) as new:
            assert found(store) == found(new)


CONTINUED = {
    "appended": True,
    "by somebody new": True,
    "in between": False,
    "updated": False,
    "deleted": False,
    "erased": False,
}


@pytest.mark.parametrize("name", CONTINUED)
def test_only_a_list_with_further_memories_behind_continues_another(name: str, tmp_path: Path) -> None:
    with opened(tmp_path / "m.db") as store:
        store.add(synthetic_memories(0, 40))
        before = store.memories
        CHANGES[name](store)
        after = store.memories
        assert after.continues(before) == CONTINUED[name]
        assert not before.continues(after) and before.continues(before)


def test_a_query_after_an_append_reads_the_columns_of_new_memories_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "m.db") as store:
        store.add(synthetic_memories(0, 40))
        found(store)
        store.add(later(store))

        def refuse(*_: Any) -> None:
            raise AssertionError("all rows are read again")

        monkeypatch.setattr(LazyMemories, "_all_rows", refuse)
        assert len(found(store)[-1][0]) == 45
