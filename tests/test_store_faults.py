"""Real faults: killed processes, damaged files, full disks, other writers.

Nothing acknowledged is lost, nothing is half written, and nothing hangs.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from killing import ended, in_child, needs_fork

from adaptmr.store.database import StoreCorrupt, StoreError
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory


def batch(name: str, n: int = 4) -> list[Memory]:
    return [Memory(f"{name}-{j}", f"batch {name} says {j} " + "word " * 40, "Maya", step=j) for j in range(n)]


@pytest.mark.slow
@needs_fork
def test_processes_that_write_at_once(tmp_path):
    path, n, each = tmp_path / "m.db", 3, 40

    def work(tell) -> None:
        with MemoryStore(path, embedder="hash") as s:
            for i in range(each):
                assert s.add(Memory(f"{os.getpid()}-{i}", f"cat {i}", step=i)) == 1
                assert s.search(f"cat {i}", 1, "lexical")
            s.add([Memory("shared", "everybody adds this")])

    with MemoryStore(path, embedder="hash") as s:
        s.add(Memory("zero", "before"))
        running, seen, until = [in_child(work) for _ in range(n)], [0], time.monotonic() + 60
        while seen[-1] < n * each + 2 and time.monotonic() < until:  # reading while they write
            seen.append(len(s.memories))
            assert len(s.memories) >= seen[-1] and len(s.search("cat", 5)) <= 5
        assert [ended(*r) for r in running] == [(0, [])] * n
        assert len(s.memories) == len(s) == n * each + 2 and seen == sorted(seen)
        assert [e.seq for e in s.events()] == list(range(1, n * each + 3)) and s.check() == []


def test_a_writer_that_keeps_the_lock(tmp_path):
    path = tmp_path / "m.db"
    with MemoryStore(path, embedder="hash", timeout=0.05) as s:
        s.add(batch("one"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for write in (
            lambda: s.add(batch("two")),
            lambda: s.delete("one-1"),
            lambda: s.update(Memory("one-1", "x")),
        ):
            with pytest.raises(StoreError, match=r"m\.db.*another process.*0\.05 s"):
                write()
        assert len(s.search("batch", 9)) == 4, "reading goes on"
        other.execute("ROLLBACK")
        other.close()
        assert s.add(batch("two")) == 4 and s.check() == []


def test_a_full_disk(tmp_path):
    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add(batch("one"))
        db = s._db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + 3}")
        with pytest.raises(StoreError, match=r"m\.db.*full.*nothing was changed"):
            s.add([Memory(f"big{i}", "x" * 10_000) for i in range(9)])
        assert len(s) == 4 == len(s.memories) and s.check() == []
        db.execute("PRAGMA max_page_count=100000")
        assert s.add(batch("two")) == 4


# --- files that are no store, or no longer one


@pytest.fixture(scope="module")
def store_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "m.db"
    with MemoryStore(path, embedder="hash") as s:
        s.add([m for i in range(30) for m in batch(str(i))])
        s.delete("3-1")
    return path


@pytest.fixture
def stored(store_file) -> bytes:
    return store_file.read_bytes()


def use(path: Path) -> list[str]:
    """Do everything with a file that a store can do; return what `check` finds."""
    with MemoryStore(path, embedder="hash") as s:
        s.memories, s.recent(3), s.events(), len(s)
        for mode in ("dense", "lexical", "hybrid"):
            s.search("batch 3", mode=mode)
        s.export_jsonl(path.with_suffix(".jsonl"))
        wrong = s.check()
        s.add(Memory("one more", "after all"))
        s.delete("one more")
    return wrong


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=300)), min_size=1, max_size=4)
)
@example(damage=[(19684, b"\x00\x01")])  # two rows with one id
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_works_or_says_so(tmp_path_factory, store_file, damage):
    path = tmp_path_factory.mktemp("damaged") / "m.db"
    data = bytearray(store_file.read_bytes())
    for at, junk in damage:
        at %= len(data)
        data[at : at + len(junk)] = junk[: len(data) - at]
    path.write_bytes(data)
    try:
        use(path)
    except StoreError as e:
        assert str(path) in str(e)


def test_damaged_values_are_found(tmp_path, stored):
    path = tmp_path / "m.db"
    for table, column, value in (
        ("memories", "at", "'soon'"),
        ("memories", "meta", "'{'"),
        ("memories", "step", "'one'"),
        ("memories", "text", "x'ff'"),
        ("vectors", "vector", "x'00'"),
        ("vectors", "vector", "zeroblob(126) || x'007e'"),
        ("meta", "value", "'x'"),
    ):
        path.write_bytes(stored)
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA ignore_check_constraints=ON")
            where = " WHERE key = 3" if table == "memories" else ""
            db.execute(f"UPDATE {table} SET {column} = {value}{where}")
        db.close()
        with pytest.raises(StoreError, match=r"m\.db"):
            use(path)


def test_what_is_no_store_is_left_as_it_is(tmp_path):
    path = tmp_path / "junk.db"
    for junk in (b"x", b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5000, bytes(8192)):
        path.write_bytes(junk)
        with pytest.raises(StoreCorrupt, match=r"junk\.db.*import_jsonl"):
            MemoryStore(path, embedder="hash")
        assert path.read_bytes() == junk and os.listdir(tmp_path) == ["junk.db"]
    other, newer = tmp_path / "other.db", tmp_path / "newer.db"
    MemoryStore(newer, embedder="hash").close()
    for file, sql, says in (
        (other, "CREATE TABLE memories (id TEXT)", "some other program"),
        (newer, "UPDATE meta SET value = '99' WHERE name = 'schema'", "schema 99"),
    ):
        with sqlite3.connect(file) as db:
            db.execute(sql)
        db.close()
        before = file.read_bytes()
        with pytest.raises(StoreError, match=says):
            MemoryStore(file, embedder="hash")
        assert file.read_bytes() == before
    for place, says in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "m.db", "no folder"),
        ("a\0b", "not a"),
    ):
        with pytest.raises(StoreError, match=says):
            MemoryStore(place, embedder="hash")
