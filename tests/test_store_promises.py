"""What a store promises of its file.

What is acknowledged is in it, what is erased is in no file, and an invalid memory harms no other.
"""

from __future__ import annotations

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

from adaptmr.store.database import ErasePending, StoreMoved
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


def test_nothing_is_written_into_a_file_that_was_replaced(path, backup):
    s = MemoryStore(path, embedder="hash")
    os.replace(backup, path)
    with pytest.raises(StoreMoved, match="nothing was changed"):
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
