"""The first query after a change: what is kept of the state before gives what a new store finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptmr as am
from adaptmr.perf.synthetic import SyntheticEmbedder, synthetic_memories, synthetic_questions
from adaptmr.retrieval.columns import columns_of, spread_rows
from adaptmr.store import indexed_view, view
from adaptmr.store.index_file import read_arrays, write_arrays
from adaptmr.store.lazy_list import LazyMemories
from adaptmr.store.view_cache import IndexFileWarning
from adaptmr.types import Memory

EMBEDDER = SyntheticEmbedder(dim=32, topics=20)
LARGE = 30  # memories from which the store is held as arrays
QUESTIONS = synthetic_questions(3)


def opened(path: Path) -> am.MemoryStore:
    return am.MemoryStore(path, embedder=EMBEDDER, approximate_from=LARGE)


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


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the columns were read of, each time."""
    counts: list[int] = []
    read_fields = LazyMemories._read_fields

    def counting(self: LazyMemories, rows: np.ndarray, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
        if len(rows):
            counts.append(len(rows))
        return read_fields(self, rows, names)

    monkeypatch.setattr(LazyMemories, "_read_fields", counting)
    return counts


@pytest.fixture
def cut_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the memories whose words were counted."""
    ids: list[str] = []
    make = view.indexed_text

    def counting(m: Memory) -> str:
        ids.append(m.id)
        return make(m)

    monkeypatch.setattr(indexed_view, "indexed_text", counting)
    return ids


def test_a_query_after_an_append_reads_the_new_memories_only(
    tmp_path: Path, read_rows: list[int], cut_texts: list[str]
) -> None:
    with opened(tmp_path / "m.db") as store:
        store.add(synthetic_memories(0, 40))
        found(store)
        assert set(read_rows) == {40} and len(cut_texts) == 40
        read_rows.clear()
        cut_texts.clear()
        store.add(later(store))
        assert len(found(store)[-1][0]) == 45
        assert set(read_rows) == {5} and sorted(cut_texts) == [f"1000-{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("name", "ids"), [("updated", ["m00000003"]), ("deleted", []), ("in between", ["between"])]
)
def test_a_query_after_another_change_reads_what_changed_only(
    name: str, ids: list[str], tmp_path: Path, read_rows: list[int], cut_texts: list[str]
) -> None:
    with opened(tmp_path / "m.db") as store:
        store.add(synthetic_memories(0, 40))
        found(store)
        read_rows.clear()
        cut_texts.clear()
        CHANGES[name](store)
        found(store)
        assert cut_texts == ids and set(read_rows) <= {1}


@pytest.mark.parametrize("how", ["closed", "warmed, not closed"])
def test_a_store_that_is_opened_again_counts_no_words_and_reads_no_columns(
    how: str, tmp_path: Path, read_rows: list[int], cut_texts: list[str]
) -> None:
    path = tmp_path / "m.db"
    store = opened(path)
    store.add(synthetic_memories(0, 40))
    if how == "closed":
        before = found(store)
        store.close()
    else:
        store.warm()
        before = None
    wanted, _ = len(cut_texts), read_rows.clear()
    cut_texts.clear()
    with opened(path) as again:
        for question in QUESTIONS:
            am.retrieve(question, again)
        assert again.search(QUESTIONS[0], mode="hybrid", where=am.Filter(speaker="Ana"))
        assert not cut_texts and not read_rows and wanted == 40
        assert before is None or found(again) == before
        again.add(later(again))
    cut_texts.clear()
    with opened(path) as once_more:
        once_more.bm25("a word")
        assert sorted(cut_texts) == [f"1000-{i}" for i in range(5)], "few changes don't write the file anew"
    store.close()


def test_after_each_change_and_opening_the_file_gives_what_the_database_gives(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    saved = Path(f"{path}.ann")
    with opened(path) as store:
        store.add(synthetic_memories(0, 40))
        found(store)
    for name, change in CHANGES.items():
        with opened(path) as store:
            assert change(store), name
            from_file = found(store)
        assert saved.exists(), name
        with opened(path) as again:
            assert found(again) == from_file, name
        saved.unlink()
        with opened(path) as anew:
            assert found(anew) == from_file, name


def test_words_and_names_of_an_erased_memory_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    saved = Path(f"{path}.ann")
    secret = Memory("s", "the plover nests", "Zerlina", "2023-05-05", session="tryst", step=99, owner="zoe")
    with opened(path) as store:
        store.add([*synthetic_memories(0, 40), secret])
        found(store)
    there = saved.read_bytes()
    assert all(word in there for word in (b"plover", b"Zerlina", b"tryst", b"zoe"))
    with opened(path) as store:
        found(store)
        store.delete("s", soft=False)
        assert not saved.exists()
        assert "plover" not in store._views.active.lexical.words
        assert "Zerlina" not in store.memories.column("speaker")[0]
        found(store)
    after = saved.read_bytes()
    assert not any(word in after for word in (b"plover", b"Zerlina", b"tryst", b"zoe"))


def test_words_that_were_cut_by_other_rules_are_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_texts: list[str]
) -> None:
    path = tmp_path / "m.db"
    with opened(path) as store:
        store.add(synthetic_memories(0, 40))
        before = found(store)
    cut_texts.clear()
    monkeypatch.setattr(indexed_view, "text_rules", lambda: "those of another version")
    with opened(path) as store:
        assert found(store) == before and len(cut_texts) == 40
    cut_texts.clear()
    with opened(path) as store:
        assert found(store) == before and not cut_texts


def words_with_a_hole(arrays: dict[str, np.ndarray]) -> None:
    arrays["word starts"] = arrays["word starts"][:-1]


def texts_beyond_the_last(arrays: dict[str, np.ndarray]) -> None:
    arrays["word texts"] = arrays["word texts"] + np.int32(100)


def words_of_fewer_memories(arrays: dict[str, np.ndarray]) -> None:
    arrays["text lengths"] = np.append(arrays["text lengths"], 1)


def a_word_twice(arrays: dict[str, np.ndarray]) -> None:
    words = arrays["words"].tobytes().split(b"\n")
    arrays["words"] = np.frombuffer(b"\n".join([words[1], *words[1:]]), np.uint8)


def counts_of_another_type(arrays: dict[str, np.ndarray]) -> None:
    arrays["word counts"] = arrays["word counts"].astype(np.float32)


def a_speaker_that_is_not_there(arrays: dict[str, np.ndarray]) -> None:
    arrays["rows of speaker"] = arrays["rows of speaker"] + 100


def a_column_of_fewer_rows(arrays: dict[str, np.ndarray]) -> None:
    arrays["rows of instant"] = arrays["rows of instant"][1:]


def values_that_are_no_json(arrays: dict[str, np.ndarray]) -> None:
    arrays["values of session"] = arrays["values of session"][1:]


def a_value_twice(arrays: dict[str, np.ndarray]) -> None:
    values = json.loads(arrays["values of speaker"].tobytes())
    arrays["values of speaker"] = np.frombuffer(json.dumps([values[0], *values[:-1]]).encode(), np.uint8)


@pytest.mark.parametrize(
    "fault",
    [
        words_with_a_hole,
        texts_beyond_the_last,
        words_of_fewer_memories,
        a_word_twice,
        counts_of_another_type,
        a_speaker_that_is_not_there,
        a_column_of_fewer_rows,
        values_that_are_no_json,
        a_value_twice,
    ],
)
def test_a_faulty_file_is_reported_and_made_again(
    fault: Callable[[dict[str, np.ndarray]], None], tmp_path: Path
) -> None:
    path = tmp_path / "m.db"
    saved = Path(f"{path}.ann")
    with opened(path) as store:
        store.add(synthetic_memories(0, 40))
        before = found(store)
    about, mapped = read_arrays(saved)
    arrays = {name: a.copy() for name, a in mapped.items()}
    fault(arrays)
    write_arrays(saved, about, arrays)
    with opened(path) as store, pytest.warns(IndexFileWarning, match="is not used, because"):
        assert found(store) == before
    with opened(path) as store:
        assert found(store) == before


def test_warming_makes_what_retrieve_needs_of_a_small_store() -> None:
    encoder = SyntheticEmbedder(dim=32, topics=20)
    encoded: list[str] = []
    encode = encoder.encode

    def counting(texts: Sequence[str], kind: str = "passage") -> np.ndarray:
        encoded.extend(texts if kind == "passage" else ())
        return encode(texts, kind)

    encoder.encode = counting  # type: ignore[method-assign]
    with am.MemoryStore(embedder=encoder) as store:
        store.add([Memory(f"m{i}", f"One sentence {i}. Another one.", step=i) for i in range(5)])
        encoded.clear()
        am.warm(store)
        assert len(encoded) == 6
        encoded.clear()
        am.retrieve("Which sentence?", store)
        assert not encoded and len(store._views.active.lexical) == 5


def test_spread_rows_of_a_growing_store_stay_known() -> None:
    for most in (2, 7, 100):
        before = np.zeros(0, np.int64)
        for n in range(1, 500):
            rows = spread_rows(n, most)
            assert min(n, most // 2 - 1) <= len(rows) <= most
            assert set(rows.tolist()) <= {*before.tolist(), n - 1}, "only a new row can be chosen anew"
            before = rows
    assert set((spread_rows(10_000, 100) % 2).tolist()) == {0, 1}, "whoever takes turns"
