"""A store in a busy service: threads, tasks and processes that write, erase and ask at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

START = datetime(2024, 1, 1, tzinfo=UTC)


def said(n: int) -> list[Memory]:
    """Return what two users said in turn."""
    return [
        Memory(
            f"m{i}",
            f"I bought a {('cat', 'boat', 'piano')[i % 3]} in Oslo, number {i}.",
            "me",
            START + timedelta(hours=i),
            session=f"S{i // 5}",
            step=i,
            owner=("ann", "bob")[i % 2],
        )
        for i in range(n)
    ]


def test_an_erasure_that_waits_for_a_reader_holds_up_nobody_who_writes(tmp_path: Path) -> None:
    """Another program erases while this one reads a snapshot, within which it writes: no deadlock."""
    path = tmp_path / "m.db"
    with (
        MemoryStore(path, embedder="hash", approximate_from=1) as one,
        MemoryStore(path, embedder="hash", timeout=5) as other,
        MemoryStore(path, embedder="hash") as third,
        ThreadPoolExecutor(1) as pool,
    ):
        one.add(said(10))
        with one.snapshot():
            erased = pool.submit(other.delete, "m0", soft=False)
            while third.get("m0") is not None:
                pass  # until it is deleted, and only its words in the log are left
            assert one.add("I sold the boat.", user="ann") == 1
            assert not erased.done(), "the snapshot still keeps the words"
            assert other.get("m1") is not None, "who waits for a reader answers others meanwhile"
        assert erased.result() is True
        assert one.check() == [] and "m0" not in [m.id for m in one.memories]
