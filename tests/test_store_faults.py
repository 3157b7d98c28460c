"""Real faults: killed processes, damaged files, full disks, other writers.

Nothing acknowledged is lost, nothing is half written, and nothing hangs.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import traceback
from pathlib import Path
from typing import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adaptmr.store.edits import Records
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.protocol import StoreCorrupt, StoreError
from adaptmr.types import Memory

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def child(work: Callable[[int], object]) -> tuple[int, int]:
    """Run `work(pipe)` in another process; return its id, and the end of the pipe to read from."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, read
    try:
        os.close(read)
        work(write)
        os._exit(0)
    except BaseException:
        os.write(write, traceback.format_exc().encode())
    os._exit(1)


def output_at_exit(pid: int, pipe: int) -> str:
    """Wait until the process has ended; return what it wrote."""
    with os.fdopen(pipe, "rb") as f:
        output = f.read().decode()
    os.waitpid(pid, 0)
    return output


def batch(name: str, n: int = 4) -> list[Memory]:
    return [Memory(f"{name}-{j}", f"batch {name} says {j} " + "word " * 40, "Maya", step=j) for j in range(n)]


def assert_complete(path: Path, acknowledged: set[str], begun: set[str]) -> None:
    """Assert that the file holds every acknowledged batch, and no part of a batch."""
    with MemoryStore(path, embedder="hash") as s:
        assert s.check() == []
        ids = {m.id for m in s.memories}
        present = {i.rpartition("-")[0] for i in ids}
        assert acknowledged <= present <= begun
        assert ids == {m.id for b in present for m in batch(b)}, "a batch is incomplete"
        added = [e.id for e in s.events()]
        assert len(added) == len(ids) == len(s.matrix) and set(added) == ids


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path):
    path, rng = tmp_path / "m.db", random.Random(0)
    acknowledged: set[str] = set()
    begun: set[str] = set()
    cut = 0
    for n in range(50):

        def work(pipe: int, n: int = n) -> None:
            with MemoryStore(path, embedder="hash") as s:
                for i in range(10_000):
                    os.write(pipe, f"begun {n}.{i}\n".encode())
                    s.add(batch(f"{n}.{i}"))
                    os.write(pipe, f"acknowledged {n}.{i}\n".encode())

        pid, pipe = child(work)
        wanted, output = rng.randrange(1, 16), b""
        while output.count(b"\n") < wanted:
            output += os.read(pipe, 4096)
        until = (
            time.perf_counter() + rng.random() * 0.004
        )  # a moment somewhere in an add, which takes 1 to 3 ms
        while time.perf_counter() < until:
            pass
        os.kill(pid, signal.SIGKILL)
        lines = [line.split() for line in (output.decode() + output_at_exit(pid, pipe)).splitlines()]
        assert all(len(line) == 2 and line[0] in ("begun", "acknowledged") for line in lines), lines
        before = len(acknowledged)
        acknowledged |= {b for what, b in lines if what == "acknowledged"}
        begun |= {b for what, b in lines if what == "begun"}
        cut += len(acknowledged) - before < len([1 for what, _ in lines if what == "begun"])
        assert_complete(path, acknowledged, begun)
    assert cut > 10, f"only {cut} of 50 kills fell into an add"


@pytest.mark.slow
def test_a_kill_before_each_statement_of_an_add(tmp_path):
    path = tmp_path / "m.db"
    acknowledged = {"first"}
    with MemoryStore(path, embedder="hash") as s:
        s.add(batch("first"))
    statements = 0
    for n in range(100):

        def work(pipe: int, n: int = n) -> None:
            left = [n]

            def count(sql: str) -> None:
                if sql.startswith(("BEGIN IMMEDIATE", "INSERT", "COMMIT")):
                    if not left[0]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1

            s = MemoryStore(path, embedder="hash")
            s._records._db.set_trace_callback(count)
            s.add(batch(f"kill{n}"))
            os.write(pipe, b"acknowledged")

        output = output_at_exit(*child(work))
        if output == "acknowledged":
            statements = n
            acknowledged.add(f"kill{n}")
        else:
            assert output == ""
        assert_complete(path, acknowledged, acknowledged)
        if statements:
            break
    assert (
        statements == 1 + 3 * 4 + 1
    )  # the transaction's begin and commit, and for each memory its row, its vector and its event


@pytest.mark.slow
def test_processes_that_write_at_once(tmp_path):
    path, n, each = tmp_path / "m.db", 3, 40

    def work(pipe: int) -> None:
        with MemoryStore(path, embedder="hash") as s:
            for i in range(each):
                assert s.add(Memory(f"{os.getpid()}-{i}", f"cat {i}", step=i)) == 1
                assert s.search(f"cat {i}", 1, "lexical")
            s.add([Memory("shared", "everybody adds this")])

    with MemoryStore(path, embedder="hash") as s:
        s.add(Memory("zero", "before"))
    running = [child(work) for _ in range(n)]
    with MemoryStore(path, embedder="hash") as s:
        seen = [0]
        while (
            select.select([p for _, p in running], [], [], 0)[0] == [] and seen[-1] < n * each + 2
        ):  # reading while they write
            seen.append(len(s.memories))
            assert len(s.memories) >= seen[-1] and len(s.search("cat", 5)) <= 5
        assert [output_at_exit(*r) for r in running] == [""] * n
        assert len(s.memories) == len(s) == n * each + 2 and seen == sorted(seen)
        assert [e.seq for e in s.events()] == list(range(1, n * each + 3)) and s.check() == []


@pytest.mark.slow
def test_processes_that_create_the_file_at_once(tmp_path):
    for attempt in range(10):
        path = tmp_path / f"{attempt}.db"
        go, start = os.pipe()

        def work(pipe: int, path: Path = path, go: int = go, start: int = start) -> None:
            os.close(start)
            os.read(go, 1)  # until all processes run
            with MemoryStore(path, embedder="hash") as s:
                s.add([Memory(str(os.getpid()), "me"), Memory("shared", "us")])

        running = [child(work) for _ in range(4)]
        os.close(start)
        os.close(go)
        assert [output_at_exit(*r) for r in running] == [""] * 4
        with MemoryStore(path, embedder="hash") as s:
            assert len(s) == 5 and s.check() == []


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
        db = s._records._db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + 3}")
        with pytest.raises(StoreError, match=r"m\.db.*full.*nothing was changed"):
            s.add([Memory(f"big{i}", "x" * 10_000) for i in range(9)])
        assert len(s) == 4 == len(s.memories) and s.check() == []
        db.execute("PRAGMA max_page_count=100000")
        assert s.add(batch("two")) == 4


SIBLINGS = """
import os, signal, tqdm

lock = tqdm.tqdm.get_lock()  # a bar was shown before the workers were forked: now all of them share its lock
if not (worker := os.fork()):
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(worker, 0)
if not (sibling := os.fork()):
    WORK
    os._exit(0)
os.waitpid(sibling, 0)
"""

SEARCH = """
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

with MemoryStore(embedder="hash", lexical=%r) as s:
    s.add([Memory("a", "a cat"), Memory("b", "two dogs"), Memory("c", "tea")])
    print(s.search("cat", 1, "lexical")[0].memory.id, s.search("dogs", 1, "hybrid")[0].memory.id, flush=True)
"""


BARS = """
import adaptmr as am

frame = am.evaluate(["unified"], am.load("demo", split="en1", limit=2), embedder="hash", progress=False)
print(frame["system"].tolist(), flush=True)
"""


def sibling(work: str) -> str:
    """Return a program whose first fork is killed while it holds tqdm's lock; its second does `work`."""
    return SIBLINGS.replace("    WORK\n", textwrap.indent(work.strip(), "    ") + "\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "wanted"),
    [(SEARCH % "bm25s", "a b\n"), (SEARCH % "rank_bm25", "a b\n"), (BARS, "['unified', 'unified']\n")],
    ids=["bm25s", "rank_bm25", "progress bars"],
)
def test_a_killed_worker_does_not_stop_its_siblings(work, wanted):
    running = subprocess.Popen(
        [sys.executable, "-c", sibling(work)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, _ = running.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        output = "hung"
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert output == wanted


def test_an_interrupted_add_is_rolled_back(tmp_path, monkeypatch):
    import adaptmr.store.edits as edits

    real = edits.event_row

    def interrupted(kind, id, *rest):
        if id == "two-2":
            raise KeyboardInterrupt
        return real(kind, id, *rest)

    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add(batch("one"))
        monkeypatch.setattr(edits, "event_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            s.add(batch("two"))
        monkeypatch.undo()
        assert len(s) == 4 and s.check() == [] and s.add(batch("two")) == 4


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


@pytest.mark.parametrize(
    "junk",
    [
        b"x",
        b"not a database " * 1000,
        b"SQLite format 3\0",
        b"SQLite format 3\0" + b"\xff" * 5000,
        bytes(8192),
        b"{}\n",
    ],
)
def test_garbage(tmp_path, junk):
    path = tmp_path / "junk.db"
    path.write_bytes(junk)
    with pytest.raises(StoreCorrupt, match=r"junk\.db.*import_jsonl"):
        MemoryStore(path, embedder="hash")
    assert path.read_bytes() == junk and os.listdir(tmp_path) == ["junk.db"], "it was left as it is"


def test_a_file_cut_short(tmp_path, stored):
    path = tmp_path / "cut.db"
    n = len(stored)
    for size in (1, 50, 99, 100, 511, 4095, 4096, 8192, n // 2, n - 4096, n - 1):
        path.write_bytes(stored[:size])
        with pytest.raises(StoreCorrupt, match=r"cut\.db"):
            use(path)
        for f in tmp_path.glob("cut.db-*"):
            f.unlink()


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=300)), min_size=1, max_size=4)
)
@example(damage=[(19684, b"\x00\x01")])  # two rows with one id
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.memories,
        lambda s: s.search("batch 3", mode="lexical"),
        lambda s: s.recent(200),
        lambda s: s.export_jsonl(s.path + ".jsonl"),
    ],
    ids=["memories", "search", "recent", "export"],
)
def test_two_rows_with_one_id_are_damage(tmp_path, stored, read):
    path = tmp_path / "m.db"
    path.write_bytes(stored.replace(b"0-1batch 0 says 1", b"0-2batch 0 says 1"))  # the row, not its index
    says = r"m\.db.*more than one memory with the id '0-2'"
    with (
        MemoryStore(path, embedder="hash") as s,
        pytest.raises(StoreCorrupt, match=says),
    ):
        read(s)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("memories", "at", "'soon'"),
        ("memories", "meta", "'{'"),
        ("memories", "tags", "x'ff'"),
        ("memories", "step", "'one'"),
        ("memories", "id", "x'ff'"),
        ("memories", "text", "x'ff'"),
        ("vectors", "vector", "x'00'"),
        ("vectors", "vector", "zeroblob(126) || x'007e'"),
        ("vectors", "vector", "'text'"),
        ("meta", "value", "'x'"),
        ("memories", "status", "'active'"),
    ],
)
def test_damaged_values_are_found(tmp_path, stored, table, column, value):
    path = tmp_path / "m.db"
    path.write_bytes(stored)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA ignore_check_constraints=ON")
        db.execute(
            f"UPDATE {table} SET {column} = {value}" + (" WHERE key = 3" if table == "memories" else "")
        )
    db.close()
    if column == "status":
        assert use(path) == []
    else:
        with pytest.raises(StoreError, match=r"m\.db"):
            use(path)


def test_check_finds_half_records(tmp_path, stored):
    for sql, says in (
        ("DELETE FROM vectors WHERE key = 3", "memories without a vector"),
        ("DELETE FROM memories WHERE key = 3", "vectors without a memory"),
        ("DROP TRIGGER events_last; DELETE FROM events WHERE seq = 3", "no event added"),
        ("UPDATE vectors SET vector = x'00' WHERE key = 3", "64 numbers long"),
    ):
        path = tmp_path / "m.db"
        path.write_bytes(stored)
        db = sqlite3.connect(path)
        db.executescript(sql)
        db.close()
        with MemoryStore(path, embedder="hash") as s:
            assert [says in w for w in s.check()] == [True]


def test_places_where_no_store_can_be(tmp_path):
    for path, says in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "m.db", "there is no folder"),
        ("", "not a path"),
        ("a\0b", "not a path"),
    ):
        with pytest.raises(StoreError, match=says):
            MemoryStore(path, embedder="hash")


def test_other_programs_databases_are_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE memories (id TEXT)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="some other program"):
        MemoryStore(path, embedder="hash")
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "m.db"
    Records(path).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '99' WHERE name = 'schema'")
    db.close()
    with pytest.raises(StoreError, match="schema 99"):
        MemoryStore(path, embedder="hash")
