"""Large stores: approximate search finds what exact search finds, and filters are exact.

The index file is checked before it is used.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from adaptmr.store.approximate import (
    ApproximateIndex,
    IVFIndex,
    MissingLibraryWarning,
    faiss_version,
    single_threaded,
)
from adaptmr.store.errors import StoreError
from adaptmr.store.index_file import read_arrays, write_arrays
from adaptmr.store.lazy_list import LazyMemories
from adaptmr.store.memory_store import Filter, MemoryStore
from adaptmr.store.vectors import ExactIndex
from adaptmr.store.view_cache import IndexFileWarning
from adaptmr.types import Memory

needs_library = pytest.mark.skipif(
    faiss_version() is None, reason="needs the optional library faiss: pip install 'adaptmr[scale]'"
)
DIM, MANY = 32, 3000


def clusters(n: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    rng = np.random.default_rng(seed)
    v = np.random.default_rng(99).standard_normal((30, dim))[
        rng.integers(0, 30, n)
    ] + 0.7 * rng.standard_normal((n, dim))
    return (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


class Known:
    """An embedder of numbers: the text "… 17" has vector 17."""

    name, dim, vectors = "known", DIM, clusters(2 * MANY)

    def encode(self, texts, kind="passage"):
        return self.vectors[[int(t.split()[-1]) for t in texts]]


def turns(first: int, last: int) -> list[Memory]:
    return [
        Memory(
            f"m{(i * 7) % 9973:04}",
            f"number {i}",
            "Maya" if i % 3 else "Tom",
            f"2024-{1 + i % 12:02}-01",
            session=f"s{i // 100}",
            step=i // 2,
        )
        for i in range(first, last)
    ]


def make(path: Path | str, large: int = 2500) -> MemoryStore:
    return MemoryStore(path, embedder=Known(), approximate_from=large)


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "m.db"
    with make(path) as s:
        s.add(turns(0, MANY))
    return path


@pytest.fixture
def path(filled, tmp_path) -> Path:
    """A store of `MANY` memories in a file of its own."""
    (tmp_path / "m.db").write_bytes(filled.read_bytes())
    return tmp_path / "m.db"


def recall(found, best) -> float:
    return sum(len(set(f) & set(b)) for f, b in zip(found, best)) / max(1, sum(len(b) for b in best))


def assert_same_as_small(s: MemoryStore, n: int = 12) -> None:
    """Check that a store opened as large gives what the same file gives when it is opened as small."""
    with MemoryStore(s.path, embedder=Known()) as small:
        assert not isinstance(small.memories, LazyMemories) and isinstance(s.memories, LazyMemories)
        assert (
            s.memories == small.memories
            and (s.matrix == small.matrix).all()
            and s.version == small.version
            and len(s) == len(small)
        )
        queries = [f"? {i}" for i in range(0, 2 * MANY, 2 * MANY // n)]
        assert (
            recall(
                [[h.memory.id for h in s.search(q)] for q in queries],
                [[h.memory.id for h in small.search(q)] for q in queries],
            )
            >= 0.99
        )
        for where in (
            Filter(speakers="tom"),
            Filter(sessions=["s3", "s11"]),
            Filter(since="2024-03-01", until="2024-05-01"),
            Filter(sessions=[]),
        ):
            assert (s.mask(where) == small.mask(where)).all()
            few = small.mask(where).sum() <= 2048
            for q in queries[:3]:
                assert not few or s.search(q, where=where) == small.search(q, where=where)
        assert s.search(queries[1], mode="hybrid") == small.search(queries[1], mode="hybrid")


# --- the index


@needs_library
@pytest.mark.parametrize("dim", [16, 33, 64])
def test_recall_and_exact_scores(dim):
    v, q = clusters(4000, dim=dim), clusters(60, seed=1, dim=dim)
    ids = [f"m{i:04}" for i in range(4000)]
    index, exact = ApproximateIndex(dim, exact_below=0), ExactIndex(dim)
    for each in (index, exact):
        each.add(ids, v)
    found, scores = index.search(q, 10)
    assert recall(found, exact.search(q, 10)[0]) >= 0.99
    for i, s, one in zip(found, scores, q):
        assert (
            np.allclose(s, exact.scores(one)[[int(x[1:]) for x in i]], atol=1e-6) and (np.diff(s) <= 0).all()
        )


@needs_library
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(share=st.sampled_from([0.9, 0.7, 0.3, 0.02, 0.0]), k=st.integers(1, 60), seed=st.integers(0, 99))
def test_only_rows_that_pass_a_filter_are_found(share, k, seed):
    v, q, where = clusters(5000), clusters(10, seed), np.random.default_rng(seed).random(5000) < share
    exact, index = _pair(v)
    found, best = (
        index.search(q, k, where)[0],
        [exact.search(one, k, where)[0] for one in q],  # separately: a batch's product has other last digits
    )
    assert all(where[int(i)] for f in found for i in f) and [len(f) for f in found] == [len(b) for b in best]
    assert recall(found, best) >= 0.98 if where.sum() > 2048 else found == best


_PAIR: list = []


def _pair(v: np.ndarray) -> list:
    if not _PAIR:
        _PAIR.extend([ExactIndex(DIM), ApproximateIndex(DIM, exact_below=0)])
        for each in _PAIR:
            each.add([str(i) for i in range(len(v))], v)
    return _PAIR


@needs_library
def test_a_filter_that_passes_only_distant_rows_still_finds_k():
    """Only rows far away from the query pass, and the nearest cells contain none of them."""
    v = clusters(6000)
    v[:3000] = clusters(1)  # half of all is the query itself
    v[:3000, 0] += np.linspace(0, 0.05, 3000)
    v = (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
    far = np.arange(6000) >= 3000
    index, exact = ApproximateIndex(DIM, exact_below=0), ExactIndex(DIM)
    for each in (index, exact):
        each.add([f"{i:04}" for i in range(6000)], v)
    assert (
        len(index.search(v[0], 10, far)[0]) == 10
        and recall([index.search(v[0], 10, far)[0]], [exact.search(v[0], 10, far)[0]]) >= 0.9
    )


@needs_library
def test_ties_go_by_id():
    v = clusters(3000)
    v[1000:1030] = v[5]
    index = ApproximateIndex(DIM, exact_below=0)
    index.add([f"m{(i * 7) % 3001:04}" for i in range(3000)], v)
    same = sorted(f"m{(i * 7) % 3001:04}" for i in [5, *range(1000, 1030)])
    assert index.search(v[5], 12)[0] == same[:12]


@needs_library
def test_the_same_vectors_give_the_same_cells():
    v = clusters(3000).astype(np.float16)
    one, two = IVFIndex(DIM, v), IVFIndex(DIM)
    for part in (v[:1234], v[1234:]):
        two.vectors.append(part.astype(np.float32))
    assert (one.serialize() == two.serialize()).all()


@needs_library
def test_growing_and_shrinking():
    v, q = clusters(9000), clusters(30, 5)
    index, exact = ApproximateIndex(DIM, exact_below=0), ExactIndex(DIM)
    ids = np.array([f"m{i:04}" for i in range(9000)])
    for add, gone in (
        (range(3000), range(100)),
        (range(3000, 3050), range(100, 200)),
        (range(3050, 9000), range(200, 5200)),
    ):
        for each in (index, exact):
            each.add(ids[list(add)].tolist(), v[list(add)])
            each.remove(ids[list(gone)].tolist())
            each.add(["m5500"], v[7:8]) if len(each) > 3500 else None
        assert (
            list(index.ids) == list(exact.ids)
            and recall(index.search(q, 10)[0], exact.search(q, 10)[0]) >= 0.99
        )


def test_without_the_library_the_error_names_the_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"adaptmr\[scale\]"):
        ApproximateIndex(8)


# --- the store


@needs_library
def test_a_large_store_gives_what_a_small_one_gives(path):
    with make(path) as s:
        assert s.search("? 17")[0].memory.text == "number 17" and s.approximate and "approximate" in repr(s)
        rows, cosines = s.nearest("? 17", 10)
        assert (
            rows.dtype == np.int64
            and cosines.dtype == np.float32
            and [s.memories[r] for r in rows] == [h.memory for h in s.search("? 17")]
        )
        assert np.allclose(cosines, (s.matrix @ Known.vectors[17])[rows], atol=1e-6) and s.similarity(
            rows[0], rows[:2]
        )[0, 0] == pytest.approx(1, abs=2e-3)
        assert s.nearest(Known.vectors[17], 10)[0].tolist() == rows.tolist()
        assert len(s.nearest("? 17", 0)[0]) == 0 and len(s.nearest("? 1", MANY + 5)[0]) == MANY
        assert_same_as_small(s)


def test_a_small_store_is_exact_and_has_no_file(tmp_path):
    with make(tmp_path / "m.db") as s:
        assert s.nearest("? 1", 5)[0].tolist() == [] and not s.approximate
        s.add(turns(0, 50))
        rows, cosines = s.nearest("? 1", 5)
        assert (
            not s.approximate
            and len(rows) == 5
            and s.memories[rows[0]].text == "number 1"
            and (np.diff(cosines) <= 0).all()
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.db"]


@needs_library
def test_a_large_store_in_memory():
    with make(":memory:") as s:
        s.add(turns(0, MANY))
        assert s.search("? 17")[0].memory.text == "number 17" and s.approximate
        held = s.memories
        s.delete(held[0].id), s.delete(held[5].id, soft=False), s.update(replace(held[9], text="number 4"))
        assert (
            held[5].step == 2
            and held[9].text == "number 9"
            and len(held) == MANY
            and len(s.memories) == MANY - 2
        )


@needs_library
def test_only_memories_that_are_found_are_read(path):
    with make(path) as s:
        s.search("? 1")
    with make(path) as s:
        s.search("? 17"), s.nearest("? 18", 200), s.search("? 3", where=Filter(speakers="tom"))
        assert len(s.memories.loaded) <= 25


@needs_library
def test_every_change_is_followed(path):
    with make(path) as s:
        s.search("? 1")
        cells = s._views.active.ivf
        (
            s.add(turns(MANY, MANY + 40)),
            s.add([Memory("early", "number 5000", step=-3), Memory("m0000b", "number 5001", step=0)]),
        )
        with pytest.raises(KeyError):
            s.delete("nobody", soft=False)
        assert index_file(path).exists()
        (
            s.delete("m0007"),
            s.delete("m0014", soft=False),
            s.delete("m0021"),
            s.restore("m0021"),
            s.update(replace(s.get("m0028"), text="number 5002")),
        )
        assert s.search("? 5002", 1)[0].memory.id == "m0028" and s.search("? 5000", 1)[0].memory.id == "early"
        assert s._views.active.ivf is cells, "the cells are kept after few changes"
        assert_same_as_small(s)
        s.add(turns(MANY + 40, 2 * MANY - 100))
        assert_same_as_small(s)
        assert s._views.active.ivf is not cells


@needs_library
def test_a_store_grows_large_and_shrinks_again(tmp_path):
    with make(tmp_path / "m.db") as s:
        s.add(turns(0, 2499))
        assert s.search("? 1") and not s.approximate
        s.add(turns(2499, MANY))
        assert s.search("? 2999")[0].memory.text == "number 2999" and s.approximate
        for m in list(s.memories)[: MANY - 1200]:
            s.delete(m.id)
        assert (
            s.search("? 2999")[0].memory.text == "number 2999"
            and not s.approximate
            and len(s.memories) == 1200
        )


@needs_library
def test_the_library_is_missing(path, monkeypatch):
    with make(path) as s:
        with_library = s.search("? 17")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with make(path) as s:
        with pytest.warns(MissingLibraryWarning, match=r"pip install 'adaptmr\[scale\]'"):
            found = s.search("? 17")
        assert found == with_library and not s.approximate and "adaptmr[scale]" in repr(s)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s.search("? 18"), s.nearest("? 19", 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingLibraryWarning)
            assert_same_as_small(s)


# --- the index file


def index_file(path: Path) -> Path:
    return path.with_name("m.db.ann")


@needs_library
def test_the_file_is_used_again(path, monkeypatch):
    with make(path) as s:
        found = s.search("? 17")
    assert index_file(path).exists() and not list(path.parent.glob("*.part"))
    monkeypatch.setattr(
        IVFIndex,
        "build",
        lambda self: None if self._indexed == len(self.vectors) else pytest.fail("the cells were made again"),
    )
    with make(path) as s:
        assert s.search("? 17") == found and s._views.active.unsaved == 0


@needs_library
def test_a_stale_file_is_brought_up_to_date(path):
    with make(path) as s:
        s.search("? 17")
    old = index_file(path).read_bytes()
    with make(path) as s:
        (
            s.add(turns(MANY, MANY + 50)),
            s.delete("m0007"),
            s.update(replace(s.get("m0014"), text="number 5000")),
        )
    assert index_file(path).read_bytes() == old
    with make(path) as s:
        assert (
            s.search("? 5000", 1)[0].memory.id == "m0014"
            and s.search("? 3010", 1)[0].memory.text == "number 3010"
            and s._views.active.unsaved == 52
        )
        assert_same_as_small(s)
    with make(path) as s:
        s.add(turns(MANY + 50, MANY + 300)), s.search("? 1")
    assert index_file(path).read_bytes() != old
    with make(path) as s:
        s.search("? 1"), assert_same_as_small(s)


DAMAGE = {
    "empty": lambda b: b"",
    "half": lambda b: b[: len(b) // 2],
    "the end is cut": lambda b: b[:-100],
    "another file": lambda b: b"SQLite format 3\0" * 400,
    "a bit in the header": lambda b: b[:60] + bytes([b[60] ^ 1]) + b[61:],
    "a bit in a vector": lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 1]) + b[len(b) // 2 + 1 :],
    "an empty header": lambda b: b[: b.index(b"\n") + 1] + b"2 0\n{}",
    "zeros": lambda b: bytes(len(b)),
}


@needs_library
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_reported_and_replaced(path, damage):
    with make(path) as s:
        found = s.search("? 17")
    good = index_file(path).read_bytes()
    index_file(path).write_bytes(DAMAGE[damage](good))
    with make(path) as s, pytest.warns(IndexFileWarning, match=r"m\.db\.ann.*is not used"):
        assert s.search("? 17") == found
    read_arrays(index_file(path))
    assert index_file(path).read_bytes() == good, "the new file is the same as the file before the damage"


def _serialized(make_index) -> np.ndarray:
    """Return the index that `make_index` makes with the module faiss, as the bytes that a file holds."""
    import faiss

    with single_threaded(faiss):
        return faiss.serialize_index(make_index(faiss))


def _other_ids(faiss):
    index = faiss.index_factory(DIM, f"IVF75,PQ{DIM // 2}x4fsr", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1
    index.cp.niter = 2
    index.train(Known.vectors[:MANY])
    index.add_with_ids(Known.vectors[:MANY], np.arange(MANY) + 7 * MANY)
    return index


def _flat(faiss):
    index = faiss.IndexFlatIP(DIM)
    index.add(Known.vectors[:MANY])
    return index


FORGED = {
    "slots that don't exist": lambda a: {**a, "slots": a["slots"] + MANY},
    "negative slots": lambda a: {**a, "slots": a["slots"] - 1},
    "a slot twice": lambda a: {**a, "slots": np.zeros_like(a["slots"])},
    "keys that don't exist": lambda a: {**a, "keys": a["keys"] + 10**6},
    "a key twice": lambda a: {**a, "keys": np.repeat(a["keys"][:1], len(a["keys"]))},
    "fewer memories": lambda a: {n: v[:-1] for n, v in a.items()},
    "fewer keys": lambda a: {**a, "keys": a["keys"][:-1]},
    "the wrong order": lambda a: {**a, "keys": a["keys"][::-1]},
    "other steps": lambda a: {**a, "steps": a["steps"] + 1},
    "flat vectors": lambda a: {**a, "vectors": a["vectors"].ravel()},
    "long vectors": lambda a: {**a, "vectors": np.hstack([a["vectors"]] * 2)},
    "no vectors": lambda a: {**a, "vectors": a["vectors"][:0]},
    "numbers that are not finite": lambda a: {
        **a,
        "vectors": np.where(np.arange(DIM) < 1, np.float16("nan"), a["vectors"]),
    },
    "words for keys": lambda a: {**a, "keys": a["keys"].astype("U8")},
    "no cells": lambda a: {n: v for n, v in a.items() if n != "cells"},
    "cells of other memories": lambda a: {**a, "cells": _serialized(_other_ids)},
    "an index without cells": lambda a: {**a, "cells": _serialized(_flat)},
    "bytes for cells": lambda a: {**a, "cells": np.arange(999).astype(np.uint8)},
    "cells cut short": lambda a: {**a, "cells": a["cells"][:-5000]},
}


@needs_library
@pytest.mark.parametrize(
    ("forged", "stale"),
    [
        *((name, False) for name in FORGED),
        *((name, True) for name in ("keys that don't exist", "the wrong order", "other steps")),
    ],
)
def test_a_forged_file_is_reported_and_replaced(path, forged, stale):
    with make(path) as s:
        found = s.search("? 17")
    about, arrays = read_arrays(index_file(path))
    if stale:
        with make(path) as s:
            s.add(turns(MANY, MANY + 5)), s.delete("m0007", soft=True)
    write_arrays(index_file(path), about, FORGED[forged](arrays))
    with make(path) as s:
        with pytest.warns(IndexFileWarning, match=r"m\.db\.ann.*is not used.*made again"):
            assert s.search("? 17") == found
        assert len(s.memories) == MANY + 4 * stale


@needs_library
def test_a_header_with_a_wrong_seq_is_reported(path):
    with make(path) as s:
        found = s.search("? 17")
    _, arrays = read_arrays(index_file(path))
    for about in ({"seq": "soon"}, {"seq": 2**80}, {"seq": None}, {}):
        write_arrays(index_file(path), about, arrays)
        with make(path) as s, pytest.warns(IndexFileWarning, match="is not used"):
            assert s.search("? 17") == found


@needs_library
def test_a_file_of_another_store_is_refused(path, tmp_path):
    with make(path) as s:
        s.search("? 17")
    (tmp_path / "n").mkdir()
    other = tmp_path / "n" / "m.db"
    with make(other) as s:
        s.add(turns(3, MANY + 3))
    index_file(other).write_bytes(index_file(path).read_bytes())
    with make(other) as s:
        with pytest.warns(IndexFileWarning, match="another store"):
            assert s.search("? 3001", 1)[0].memory.text == "number 3001"
        assert_same_as_small(s)


@needs_library
def test_a_file_of_another_branch_of_the_same_store_is_refused(path, tmp_path):
    """The database is copied, both copies change, and the index file of one is copied to the other."""
    with make(path) as s:
        s.search("? 17")
    (tmp_path / "n").mkdir()
    other = tmp_path / "n" / "m.db"
    other.write_bytes(path.read_bytes())
    with make(path) as s:
        s.add(turns(MANY, MANY + 500)), s.search("? 1")
    with make(other) as s:
        s.add(turns(MANY + 500, MANY + 1100))
    index_file(other).write_bytes(index_file(path).read_bytes())
    with make(other) as s:
        with pytest.warns(IndexFileWarning):
            s.search("? 1")
        assert_same_as_small(s)


@needs_library
def test_an_older_database_with_a_newer_index_file_is_noticed(path):
    with make(path) as s:
        s.search("? 17")
    backup = path.read_bytes()
    with make(path) as s:
        s.add(turns(MANY, MANY + 500)), s.search("? 1")
    path.write_bytes(backup)
    with make(path) as s:
        with pytest.warns(IndexFileWarning):
            s.search("? 1")
        assert_same_as_small(s)


@needs_library
def test_cells_of_another_version_are_made_again(path):
    with make(path) as s:
        found = s.search("? 17")
    about, arrays = read_arrays(index_file(path))
    write_arrays(
        index_file(path),
        {**about, "made by": {**about["made by"], "engine": "faiss 0.0.1"}},
        {**arrays, "cells": np.zeros(9, np.uint8)},
    )
    with make(path) as s:
        assert s.search("? 17") == found
    assert read_arrays(index_file(path))[0]["made by"]["engine"] == faiss_version()


@needs_library
def test_a_folder_that_can_not_be_written(path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("adaptmr.store.view_cache.write_arrays", full)
    with make(path) as s:
        with pytest.warns(IndexFileWarning, match="No space left"):
            assert s.search("? 17", 1)[0].memory.text == "number 17"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert s.search("? 18", 1)


def kill_this_process(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class KilledWriter:
    """A file whose process is killed at the third write to any of them, before that write."""

    writes = 0

    def __init__(self, real):
        self.real = real

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.real.close()

    def __getattr__(self, name):
        return getattr(self.real, name)

    def write(self, data):
        KilledWriter.writes += 1
        if KilledWriter.writes == 3:
            self.real.flush()
            kill_this_process()
        return self.real.write(data)


def open_to_be_killed(file, *how):
    real = open(file, *how)  # noqa: SIM115 the caller closes it
    return KilledWriter(real) if str(file).endswith(".part") else real


def save_and_be_killed(path, moment, before):
    """Search a store, which saves its index file; this process is killed while it does so."""
    import adaptmr.files as module

    if moment == "third write":
        module.open = open_to_be_killed
    s = make(path)
    if moment != "third write":
        if before:
            s.search("? 1")
        setattr(os, moment, kill_this_process)
    if before:
        s.add(turns(MANY, MANY + 400))
    s.search("? 1")
    s.close()
    os._exit(0)


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("moment", ["fsync", "replace", "third write"])
@pytest.mark.parametrize("before", [False, True])
def test_killed_while_saving(path, moment, before):
    """A process killed while it writes the file leaves the old file, or none; the next process works."""
    if before:
        with make(path) as s:
            s.search("? 17")
    old = index_file(path).read_bytes() if before else None
    if not (pid := os.fork()):
        save_and_be_killed(path, moment, before)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert (index_file(path).read_bytes() if index_file(path).exists() else None) == old
    parts = list(path.parent.glob("*.part"))
    assert len(parts) == 1
    os.utime(parts[0], (time.time() - 9999,) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make(path) as s:
            s.search("? 1"), assert_same_as_small(s)
    assert read_arrays(index_file(path)) and not list(path.parent.glob("*.part"))


@needs_library
def test_an_erased_memory_is_removed_from_the_index_file(path):
    vector = Known.vectors[777].astype("<f2").tobytes()
    m = turns(777, 778)[0]
    with make(path) as s:
        s.search("? 1")
        assert vector in index_file(path).read_bytes()
        s.delete(m.id, soft=False)
        assert not index_file(path).exists()
        assert m.id not in {h.memory.id for h in s.search("? 777", 30)}
    assert index_file(path).exists(), "the other memories are saved again"
    for file in path.parent.iterdir():
        assert vector not in file.read_bytes() and m.id.encode() not in read_ids(file)
    arrays = read_arrays(index_file(path))[1]
    assert (
        len(arrays["keys"]) == MANY - 1
        and not arrays["vectors"][np.setdiff1d(np.arange(MANY), arrays["slots"])].any()
    )
    with make(path) as s:
        s.search("? 1"), assert_same_as_small(s)


@needs_library
def test_closing_after_an_erasure_saves_the_other_memories(path):
    with make(path) as s:
        s.search("? 1")
        s.delete("m0007", soft=False)
    assert len(read_arrays(index_file(path))[1]["keys"]) == MANY - 1


@needs_library
def test_closing_a_store_that_was_not_searched_makes_no_file(path):
    with make(path) as s:
        assert len(s.memories) == MANY
    assert not index_file(path).exists()


def read_ids(file: Path) -> bytes:
    return file.read_bytes() if file.suffix == ".ann" else b""


# --- others write too


@needs_library
def test_two_connections(path):
    with make(path) as a, make(path) as b:
        a.search("? 1"), b.search("? 1")
        a.add(turns(MANY, MANY + 30)), a.delete("m0007"), a.delete("m0014", soft=False)
        assert b.search("? 3010", 1)[0].memory.text == "number 3010" and b.version == a.version
        assert_same_as_small(b), assert_same_as_small(a)


@needs_library
def test_a_snapshot_stays_the_same_when_others_write(path):
    with make(path) as a, make(path) as b:
        with b.snapshot() as held:
            memories = held.memories
            (
                a.update(replace(a.get("m0007"), text="number 5000")),
                a.delete("m0014"),
                a.add(turns(MANY, MANY + 10)),
            )
            b.delete("m0021"), b.update(replace(b.get("m0028"), text="number 5001"))
            assert [memories[i].text for i in (1, 2, 3, 4)] == [
                "number 1",
                "number 2",
                "number 3",
                "number 4",
            ] and len(held.memories) == len(memories) == MANY
            assert held.search("? 1", 1)[0].memory.text == "number 1" and held.nearest("? 2", 1)[
                0
            ].tolist() == [2]
            assert held.mask(Filter(speakers="tom")).sum() == MANY // 3
        assert len(b.memories) == MANY + 8 and b.search("? 5000", 1)[0].memory.id == "m0007"


@needs_library
def test_erasing_within_a_snapshot_does_not_wait_for_itself(path):
    with make(path) as s:
        begun = time.perf_counter()
        with s.snapshot():
            memories = s.memories
            s.delete("m0007", soft=False)
            assert memories[1].text == "number 1" and len(memories) == MANY
        assert time.perf_counter() - begun < 10 and len(s.memories) == MANY - 1
    assert "number 1\0" not in path.read_bytes().decode("latin1")


@needs_library
def test_a_list_that_was_handed_out_never_shows_a_later_change(path):
    with make(path) as a, make(path) as b:
        held = a.memories
        a.update(replace(a.get("m0007"), text="number 5000"))  # by this process: the list reads it first
        assert held[1].text == "number 1"
        b.delete("m0014"), b.delete("m0021", soft=False)  # by another
        for row in (2, 3):
            with pytest.raises(StoreError, match=r"snapshot\(\)"):
                held[row]
        assert held[4].text == "number 4" and len(held) == MANY and len(a.memories) == MANY - 2


@needs_library
def test_two_processes_make_the_same_file(path):
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    children = []
    for _ in range(3):
        if not (pid := os.fork()):
            try:
                with make(path) as s:
                    os._exit(0 if s.search("? 17", 1)[0].memory.text == "number 17" else 3)
            finally:
                os._exit(4)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0] and not list(path.parent.glob("*.part"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make(path) as s:
            s.search("? 1"), assert_same_as_small(s)


@needs_library
class Following(RuleBasedStateMachine):
    """Change a store at random through two connections that open it as a large store.

    The first must always show what a new connection shows that opens it as a small store.
    """

    base = None

    @initialize()
    def begin(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path, self.next = Path(self.folder.name, "m.db"), 400
        self.a, self.b = make(self.path, 100), make(self.path, 100)
        self.a.add(turns(0, 400))

    @rule(n=st.integers(1, 30), who=st.booleans())
    def add(self, n, who):
        (self.a if who else self.b).add(turns(self.next, self.next + n))
        self.next += n

    @rule(row=st.integers(0, 399), soft=st.booleans(), who=st.booleans())
    def delete(self, row, soft, who):
        i = turns(row, row + 1)[0].id
        if i in self.a:
            (self.a if who else self.b).delete(i, soft=soft)

    @rule(row=st.integers(0, 399), to=st.integers(0, 5999), step=st.integers(-5, 300), who=st.booleans())
    def update(self, row, to, step, who):
        if m := self.a.get(turns(row, row + 1)[0].id):
            (self.a if who else self.b).update(replace(m, text=f"number {to}", step=step))

    @rule()
    def reopen(self):
        self.a._views.saver.save()
        self.a.close()
        self.a = make(self.path, 100)

    @invariant()
    def shows_what_a_small_store_shows(self):
        with MemoryStore(self.path, embedder=Known()) as small:
            assert self.a.memories == small.memories and (self.a.matrix == small.matrix).all()
            assert (self.a.mask(Filter(speakers="tom")) == small.mask(Filter(speakers="tom"))).all()
            assert self.a.search("? 17") == small.search("? 17")

    def teardown(self):
        if hasattr(self, "a"):
            self.a.close(), self.b.close(), self.folder.cleanup()


TestFollowing = Following.TestCase
TestFollowing.settings = settings(
    max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
