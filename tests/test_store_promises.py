"""What a store promises of its file.

What is acknowledged is in it, what is erased is in no file, and an invalid memory harms no other.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from adaptmr.store.database import ErasePending, StoreMoved, StoreWarning
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

SECRET = "xyzzy-4711"


@pytest.fixture
def path(tmp_path) -> Path:
    """Make a file with one secret memory and two others."""
    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add(
            [
                Memory("a", f"the secret is {SECRET} and more", step=1),
                Memory("b", "a cat", step=2),
                Memory("c", "two dogs", step=3),
            ]
        )
    return tmp_path / "m.db"


READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
print(db.execute("SELECT count(*) FROM memories").fetchone()[0], flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process_reads(path: Path):
    """Let another process read one state of the store within the block."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout.readline().strip() == "3"
        try:
            yield
        finally:
            reader.stdin.close()


FIND_WORD = """
import pathlib, sys
files = pathlib.Path(sys.argv[1]).iterdir()
print(*sorted(f.name for f in files if sys.argv[2].encode() in f.read_bytes()))
"""


def files_with(folder: Path, word: str = SECRET) -> list[str]:
    """List the files that hold the word.

    Another process reads them, because closing a database file would drop this process's locks on it.
    """
    return subprocess.run(
        [sys.executable, "-S", "-c", FIND_WORD, str(folder), word],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()


# --- what is erased is in no file


def test_an_erasure_that_a_reader_holds_up_says_so_and_is_completed_by_the_next_change(path):
    with MemoryStore(path, embedder="hash", timeout=0.05) as s:
        with another_process_reads(path):
            with pytest.raises(ErasePending, match=r"m\.db.*'a' is deleted.*m\.db-wal"):
                s.delete("a", soft=False)
            assert s.get("a") is None and [m.id for m in s.memories] == ["b", "c"]
            assert s.search("secret", 3, "lexical")[0].memory.id != "a"
            assert files_with(path.parent), "the reader still needs it"
            assert any("erasure is not complete" in w for w in s.check())
            with pytest.raises(ErasePending):
                s.delete("a", soft=False)
        s.add(Memory("d", "anything"))
        assert files_with(path.parent) == [] and s.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closing", "another store"])
def test_a_pending_erasure_is_completed(path, how):
    s = MemoryStore(path, embedder="hash", timeout=0.05)
    idle = sqlite3.connect(path)  # keeps the log there when a store is closed
    idle.execute("SELECT count(*) FROM memories").fetchall()
    with another_process_reads(path), pytest.raises(ErasePending):
        s.delete("a", soft=False)
    assert files_with(path.parent)
    if how == "another store":
        MemoryStore(path, embedder="hash").close()
        assert files_with(path.parent) == []
    s.close()
    assert files_with(path.parent) == []
    idle.close()
    with MemoryStore(path, embedder="hash") as s:
        assert s.check() == [] and [e.kind for e in s.events() if e.id == "a"] == ["add", "delete"], "once"


@pytest.mark.parametrize("length", [10, 60_000])
def test_an_erased_memory_and_all_its_versions_are_in_no_page(tmp_path, length):
    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add([Memory(f"m{i}", f"word{i}x " * (1 + (i * 7) % 50), step=i) for i in range(40)])
        s.add(Memory("a", f"{SECRET} " * (length // 10), meta={"note": SECRET}))
        s.update(Memory("a", "shorter", tags=[SECRET]))
        s.update(Memory("a", f"and {SECRET} longer " * (length // 5)))
        for i in range(0, 40, 3):
            s.update(Memory(f"m{i}", f"word{i}x " * 90, step=i))
        assert files_with(tmp_path)
        assert s.delete("a", soft=False) is True and files_with(tmp_path) == []


def reachable(root: object) -> list[str]:
    """Return the strings that an object refers to, through containers and objects of this package."""
    seen: set[int] = set()
    todo, out = [root], []
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ in ("module", "function", "method"):
            continue
        seen.add(id(one))
        if isinstance(one, str):
            out.append(one)
        elif isinstance(one, (dict, list, tuple, set, frozenset)) or type(one).__module__.startswith(
            ("adaptmr", "bm25s", "rank_bm25")
        ):
            todo += gc.get_referents(one)
    return out


@pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
def test_erased_words_leave_the_memory(path, engine):
    with MemoryStore(path, embedder="hash", lexical=engine) as s:
        assert s.search("xyzzy", 1, "lexical")[0].memory.id == "a"
        s.update(Memory("a", f"another plugh {SECRET}", step=1))
        s.search("plugh", 1, "hybrid")
        assert any("plugh" in t for t in reachable(s)), "there is something to look for"
        with s.snapshot():
            s.delete("a", soft=False)
            assert len(s.memories) == 3, "a snapshot stays as it is"
        assert [t for t in reachable(s) if "xyzz" in t or "plugh" in t or SECRET in t] == []
        assert s.search("cat", 1, "lexical")[0].memory.id == "b" and s.bm25("plugh").tolist() == [0, 0]


# --- what is acknowledged is in the file at that path


def ids_in(path: Path) -> list[str]:
    """Return the ids in the file, which is in order."""
    with MemoryStore(path, embedder="hash") as s:
        assert s.check() == []
        return [m.id for m in s.memories]


@pytest.fixture
def backup(path) -> Path:
    """Copy the file, as a backup does."""
    shutil.copyfile(path, path.with_name("backup.db"))
    return path.with_name("backup.db")


def test_a_backup_moved_over_an_open_store_is_left_alone(path, backup):
    s = MemoryStore(path, embedder="hash")
    s.add(Memory("new", "only in the first file"))
    before = backup.read_bytes()
    os.replace(backup, path)
    moved = r"m\.db: another file has taken its place.*nothing was changed.*close it"
    for write in (
        lambda: s.add(Memory("lost", "x")),
        lambda: s.delete("b"),
        lambda: s.delete("b", soft=False),
    ):
        with pytest.raises(StoreMoved, match=moved):
            write()
    with pytest.warns(StoreWarning, match=r"m\.db.*another file"):
        assert len(s.search("cat", 9)) == 4, "what it had is still read"
    assert s.export_jsonl(path.with_name("rescued.jsonl")) == 4
    s.close()
    assert path.read_bytes() == before and ids_in(path) == ["a", "b", "c"]


def test_a_log_that_others_have_written_into_is_not_emptied(path, backup):
    s = MemoryStore(path, embedder="hash")
    s.add(Memory("new", "only in the first file"))
    os.replace(backup, path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("INSERT INTO meta VALUES ('who', 'other')")
    with pytest.raises(StoreMoved, match=r"m\.db-wal doesn't belong"):
        s.add(Memory("lost", "x"))
    with pytest.warns(StoreWarning, match="remove it"):
        s.close()
    assert path.with_name("m.db-wal").stat().st_size > 0
    other.close()


def test_what_is_written_while_the_file_is_replaced_is_not_acknowledged(path, backup):
    s = MemoryStore(path, embedder="hash")
    s._db.set_trace_callback(
        lambda sql: os.replace(backup, path) if sql == "COMMIT" and backup.exists() else None
    )
    with pytest.raises(StoreMoved, match="just written went into the file that was there before"):
        s.add(Memory("new", "x"))
    s.close()
    assert ids_in(path) == ["a", "b", "c"]


# --- nothing half-written stays


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path):
    name = "odd [1].db"
    stale, fresh = tmp_path / f"{name}.jsonl.999.part", tmp_path / f"{name}.jsonl.998.part"
    index = tmp_path / f"{name}.index.999.part"
    for part in (stale, fresh, index):
        part.write_text(f"half of {SECRET}")
    os.utime(stale, (0, 0))
    os.utime(fresh, (time.time(), time.time()))  # by the clock of the process: a file system may have another
    with MemoryStore(tmp_path / name, embedder="hash") as s:
        s.add([Memory("a", "x"), Memory("b", "y")])
        s.delete("a", soft=False)
        assert not index.exists(), "it may hold the vector of what was erased"
        s.export_jsonl(tmp_path / f"{name}.jsonl")
    assert not stale.exists() and fresh.exists(), "a process may be writing the newer one now"


def test_a_file_or_log_that_is_moved_away_is_noticed_and_one_that_is_back_is_written_again(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with MemoryStore("m.db", embedder="hash") as s:
        monkeypatch.chdir("/")
        s.add(Memory("d", "another working folder is no other file"))
        path.rename(path.with_name("elsewhere.db"))
        with pytest.raises(StoreMoved, match=r"m\.db: the file was removed.*rescued\.jsonl"):
            s.add(Memory("e", "meanwhile"))
        with pytest.warns(StoreWarning, match="removed"):
            assert len(s.memories) == 4
        path.with_name("elsewhere.db").rename(path)
        assert s.add(Memory("e", "after")) == 1
    assert ids_in(path) == ["d", "e", "a", "b", "c"]
    with MemoryStore(path, embedder="hash") as s:
        s.add(Memory("f", "x"))
        path.with_name("m.db-wal").unlink()
        with pytest.raises(StoreMoved, match=r"its log .*m\.db-wal was removed"):
            s.add(Memory("g", "x"))


def test_what_would_not_come_back_as_it_went_in_is_refused():
    good = {"1": "a", "nested": {"list": [1, 2.5, None, True, {"k": "v"}]}}
    for values in (
        {"tags": [["x"]]},
        {"owner": 5},
        {"meta": {1: "a", "1": "b"}},
        {"meta": {"x": {"y": [{None: 0}]}}},
        {"meta": {"pair": (1, 2)}},
        {"meta": {"deep": json.loads("[" * 500 + "]" * 500)}},
    ):
        field = next(iter(values))
        with MemoryStore(embedder="hash") as s:
            with pytest.raises(TypeError, match=rf"Memory\.{field} of 'm1'"):
                s.add([Memory("m0", "x"), Memory("m1", "x", **values)])
            assert len(s) == 0
            s.add(Memory("m1", "x", meta=good))
            assert s.get("m1").meta == good
            with pytest.raises(TypeError, match="'m1'"):
                s.update(Memory("m1", "x", **values))
