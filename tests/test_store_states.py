"""States of a store: a reader holds one, a change makes the next, and what is saved beside the file fits."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killing import ended, in_child, needs_fork

import adaptmr as am
from adaptmr.bench import SyntheticEmbedder, synthetic_memories, synthetic_questions
from adaptmr.store import backup, memory_store, view
from adaptmr.store.backup import IndexFileWarning
from adaptmr.types import Memory

EMBEDDER = SyntheticEmbedder(dim=32)
QUESTIONS = synthetic_questions(3)


@pytest.fixture(autouse=True)
def _small_stores_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_store, "SAVED_FROM", 30)


def opened(path: Path) -> am.MemoryStore:
    return am.MemoryStore(path, embedder=EMBEDDER)


def searched(store: am.MemoryStore) -> list[Any]:
    """What searches find, with their scores."""
    hits = [store.search(q, mode=mode) for q in QUESTIONS for mode in ("lexical", "hybrid", "dense")]
    return [[(h.memory.id, h.memory.text, h.score, h.signals) for h in some] for some in hits]


def later(n: int = 5, step: int = 1000, **more: Any) -> list[Memory]:
    said = synthetic_memories(500, 500 + n)
    return [replace(m, id=f"{step}-{i}", step=step + i, **more) for i, m in enumerate(said)]


CHANGES: dict[str, Callable[[am.MemoryStore], Any]] = {
    "appended": lambda s: s.add(later()),
    "by somebody new": lambda s: s.add(later(3, 1100, speaker="Eve", session="new", tags=("b",))),
    "an agent's": lambda s: s.add(later(2, 1200, meta={"agent": "bot"}, layer="summary")),
    "in between": lambda s: s.add([Memory("between", "a b c", "Ana", step=7)]),
    "updated": lambda s: s.update(replace(s.get("m00000003"), text="quite another text")),
    "deleted": lambda s: s.delete("m00000010"),
    "appended after a deletion": lambda s: s.add(later(2, 1400)),
    "restored": lambda s: s.restore("m00000010"),
    "erased": lambda s: s.delete("m00000011", soft=False),
    "erased, the last": lambda s: s.delete("1400-1", soft=False),
    "an id again": lambda s: s.add(Memory("1400-1", "what has this id now", step=1401)),
    "rolled back": lambda s: s.rollback(s.last_event - 1).event,
    "appended at the end": lambda s: s.add(later(6, 1500)),
}


def test_nothing_of_an_erased_memory_is_in_the_index_file(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    saved = Path(f"{path}.index")
    with opened(path) as store:
        store.add([*synthetic_memories(0, 40), Memory("s", "the plover nests", "Zerlina", step=99)])
        store.warm()
        assert all(word in saved.read_bytes() for word in (b"plover", b"zerlina"))
        vector = store.matrix[-1].astype(np.float16).tobytes()
        assert vector in saved.read_bytes()
        with opened(path) as other:
            other.delete("s", soft=False)
        assert not saved.exists()
        searched(store)
        assert "plover" not in store._latest.view.words.counts.numbers
    after = saved.read_bytes()
    assert not any(word in after for word in (b"plover", b"zerlina", vector))


def damaged(saved: Path, path: Path) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[:2000] + bytes([whole[2000] ^ 255]) + whole[2001:])


def no_index(saved: Path, path: Path) -> None:
    saved.write_text("this is not an index file")


def of_another_store(saved: Path, path: Path) -> None:
    with opened(path.with_name("other.db")) as other:
        other.add(synthetic_memories(100, 140))
        other.warm()
    os.replace(f"{path.with_name('other.db')}.index", saved)


def of_a_later_state(saved: Path, path: Path) -> None:
    copy = path.read_bytes()
    with opened(path) as store:
        store.delete(where=am.Filter(speaker="Ana"))
        store.add(later(200))
        store.warm()
    path.write_bytes(copy)


@pytest.mark.parametrize("fault", [damaged, no_index, of_another_store, of_a_later_state])
def test_an_index_file_that_does_not_fit_is_reported_and_made_again(
    fault: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "m.db"
    with opened(path) as store:
        store.add(synthetic_memories(0, 40))
        store.warm()
        before = searched(store)
    fault(Path(f"{path}.index"), path)
    with opened(path) as store, pytest.warns(IndexFileWarning, match="is not used, because"):
        assert searched(store) == before
    with opened(path) as store:
        assert searched(store) == before


# --- snapshots


def test_each_of_many_threads_sees_one_state(tmp_path: Path) -> None:
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            with store.snapshot():
                n, version = len(store.memories), store.version
                sizes = {len(store.matrix), len(store.bm25("a")), len(store.mask(am.Filter()))}
                if sizes != {n} or store.version != version or store.memories[-1].step != n - 1:
                    wrong.append((n, sizes))

    with opened(tmp_path / "m.db") as store, ThreadPoolExecutor(3) as pool:
        store.add(synthetic_memories(0, 40))
        reads = [pool.submit(read) for _ in range(3)]
        for i in range(40, 60):
            store.add(synthetic_memories(i, i + 1))
            assert store.memories[-1].step == i, "the writer sees its own addition"
        stop.set()
        assert [r.result() for r in reads] == [None] * 3 and not wrong


# --- histories and kills

WORDS = "cat dog tea boat Oslo Rome yesterday 杭州 猫".split()


def change_at_random(store: am.MemoryStore, rng: random.Random) -> None:
    """Make one change of any kind, or read."""
    ids = [m.id for m in store.memories]
    what = rng.choice("add add add between update delete erase rollback search warm".split())
    text = " ".join(rng.choices(WORDS, k=5)) + f" {rng.random():.6f}"
    if what in ("add", "between") or not ids:
        step = rng.randrange(1000) if what == "between" else store.last_step() + 1
        new = range(rng.randrange(1, 4))
        store.add([Memory(f"{rng.random()}", f"{text} {i}", step=step + i) for i in new])
    elif what == "update":
        store.update(replace(store.get(rng.choice(ids)), text=text))
    elif what in ("delete", "erase"):
        store.delete(rng.choice(ids), soft=what == "delete")
    elif what == "rollback":
        store.rollback(max(0, store.last_event - rng.randrange(4)))
    elif what == "search":
        store.search(text, mode=rng.choice(["dense", "lexical", "hybrid"]))
    else:
        store.warm()


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_and_kill_a_search_returns_what_a_fresh_store_returns(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_store, "SAVED_FROM", 3)
    path, rng = tmp_path / "m.db", random.Random(seed)
    for n in range(12):

        def live(tell: Any, n: int = n) -> None:
            mine = random.Random(1000 * seed + n)
            while True:
                with am.MemoryStore(path, embedder="hash") as store:
                    for _ in range(mine.randrange(1, 30)):
                        change_at_random(store, mine)

        pid, pipe = in_child(live)
        time.sleep(0.05 + 0.3 * rng.random())
        os.kill(pid, signal.SIGKILL)
        assert ended(pid, pipe) == (-signal.SIGKILL, [])
        with am.MemoryStore(path, embedder="hash") as store, am.MemoryStore(embedder="hash") as fresh:
            assert store.check() == []
            for _ in range(3):
                fresh.add(m for m in store.memories if m.id not in fresh)
                for query in ("a cat and a dog", "tea in Oslo", "杭州的猫"):
                    for mode in ("dense", "lexical", "hybrid"):
                        assert store.search(query, mode=mode) == fresh.search(query, mode=mode)
                text = f"{rng.choice(WORDS)} after the kill"
                store.add(Memory(f"after {n} {rng.random()}", text, step=10**6))


# --- what retrieval keeps of a store


def test_adding_many_memories_or_warming_makes_what_retrieve_needs_of_a_small_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, encoded = SyntheticEmbedder(dim=32), []
    encode = encoder.encode

    def counting(texts: Sequence[str], kind: str = "passage") -> np.ndarray:
        encoded.extend(texts if kind == "passage" else ())
        return encode(texts, kind)

    monkeypatch.setattr(encoder, "encode", counting)
    with am.MemoryStore(embedder=encoder) as store:
        memories = [Memory(f"m{i}", f"One sentence {i}. Another one.", step=i) for i in range(65)]
        for new, makes_it in ((memories[:5], am.warm), (memories[5:], lambda _: None)):
            store.add(new)
            makes_it(store)
            assert store._latest.view.has_words
            encoded.clear()
            am.retrieve("Which sentence?", store)
            assert not encoded


@pytest.fixture
def cut_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the memories whose words were counted."""
    ids: list[str] = []
    make = view.indexed_text
    monkeypatch.setattr(view, "indexed_text", lambda m: ids.append(m.id) or make(m))
    return ids


def test_only_what_is_new_is_read_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_texts: list[str]
) -> None:
    path = tmp_path / "m.db"
    with opened(path) as store:
        store.add(synthetic_memories(0, 40))
        searched(store)
        store.add(later())
        searched(store)
        before, kept = store.matrix, store.memories
        cut_texts.clear()
        store.add(later(6, 1500))
        searched(store)
        assert cut_texts == [f"1500-{i}" for i in range(6)]
        assert np.shares_memory(before, store.matrix) and all(a is b for a, b in zip(kept, store.memories))
        cut_texts.clear()
        CHANGES["updated"](store)
        CHANGES["deleted"](store)
        wanted = searched(store)
        assert cut_texts == ["m00000003"]
    cut_texts.clear()
    with opened(path) as again:
        assert searched(again) == wanted and not cut_texts
        again.add(later(2, 1700))
    with opened(path) as once_more:
        wanted = searched(once_more)
        assert cut_texts == ["1700-0", "1700-1"], "few changes don't write the file anew"
    monkeypatch.setattr(backup, "text_rules", lambda: "those of another version")
    for everything in (True, False):
        cut_texts.clear()
        with opened(path) as store:
            assert searched(store) == wanted and (len(cut_texts) == len(store)) == everything
