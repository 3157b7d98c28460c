"""The index in Chroma: the results of the exact index, in this process, in a folder, and on a real server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.memory.team.meta import MetaMemory
from adaptmr.memory.team.steps import Step, Transcript
from adaptmr.store import chroma
from adaptmr.store.chroma import INSTALL_CHROMA, ChromaIndex, chroma_version, connect
from adaptmr.store.errors import StoreError
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.vectors import ExactIndex, VectorIndex

needs_chroma = pytest.mark.skipif(
    chroma_version() is None, reason=f"needs the optional library chromadb: {INSTALL_CHROMA}"
)
DIM = 24
RUN = "import sys, chromadb_rust_bindings as c; c.cli(['chroma', *sys.argv[1:]])"  # what `chroma` does


def unit_vectors(n, seed=0, dim=DIM):
    v = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def names(n):
    return [f"m{i:04d}" for i in range(n)]


def assert_same(mine, theirs):
    """Assert the same ids, and scores that differ by a rounding at most."""
    assert mine[0] == theirs[0]
    assert mine[1].shape == theirs[1].shape and mine[1].dtype == theirs[1].dtype == np.float32
    assert np.abs(mine[1] - theirs[1]).max(initial=0) < 2e-6


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real `chroma run` on loopback: its address."""
    if chroma_version() is None:
        pytest.skip(f"needs the optional library chromadb: {INSTALL_CHROMA}")
    folder = tmp_path_factory.mktemp("chroma")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, ready = [], threading.Event()

    def read():  # to the end, or the server would wait for a reader
        for line in process.stdout:
            said.append(line)
            if "listening" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert ready.wait(120) and process.poll() is None, f"no server: {''.join(said)[-500:]}"
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=30)
    reader.join(timeout=30)


# -- without the library


def test_without_the_library_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "chromadb", None)
    assert chroma.chroma_version() is None
    with pytest.raises(ImportError, match=r"pip install 'adaptmr\[chroma\]'"):
        ChromaIndex(DIM)


def test_the_library_is_imported_late():
    code = "import sys, adaptmr.store.chroma, adaptmr.memory.team.meta; print('chromadb' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


# -- in this process


@needs_chroma
def test_it_is_an_index_with_the_results_of_brute_force():
    index, vectors = ChromaIndex(DIM), unit_vectors(2_000)
    index.add(names(2_000), vectors)
    assert isinstance(index, VectorIndex) and len(index) == 2_000
    queries = unit_vectors(50, seed=1)
    found, scores = index.search(queries, 10)
    by_force = vectors @ queries.T
    for q in range(50):
        best = np.argsort(-by_force[:, q], kind="stable")[:10]
        assert found[q] == [f"m{i:04d}" for i in best]
        assert np.abs(scores[q] - by_force[best, q]).max() < 2e-6, "cosines, not distances"


@needs_chroma
@pytest.mark.parametrize("every", [2, 100, 2_000])
def test_a_mask_restricts_the_search(every):
    exact, index, vectors = ExactIndex(DIM), ChromaIndex(DIM), unit_vectors(2_000)
    for one in (exact, index):
        one.add(names(2_000), vectors)
    mask = np.arange(2_000) % every == 0
    queries = unit_vectors(5, seed=2)
    assert_same(index.search(queries, 7, mask), exact.search(queries, 7, mask))
    assert index.search(queries[0], 3, np.zeros(2_000, bool))[0] == []
    with pytest.raises(ValueError, match="where"):
        index.search(queries[0], 3, mask[:-1])


@needs_chroma
def test_ties_go_by_id_and_equal_vectors_are_all_found():
    exact, index = ExactIndex(DIM), ChromaIndex(DIM)
    vectors = np.repeat(unit_vectors(4), 10, axis=0)
    for one in (exact, index):
        one.add(names(40)[::-1], vectors)
    for k in (1, 10, 15, 40, 100):
        assert_same(index.search(vectors[0], k), exact.search(vectors[0], k))


@needs_chroma
@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove"]), st.lists(st.integers(0, 30), unique=True, max_size=8)),
        max_size=6,
    )
)
def test_any_order_of_adding_and_removing_ends_as_the_exact_index(steps):
    exact, index = ExactIndex(DIM), ChromaIndex(DIM)
    for seed, (what, numbers) in enumerate(steps):
        ids = [f"m{n:04d}" for n in numbers]
        if what == "add":
            for one in (exact, index):
                one.add(ids, unit_vectors(len(ids), seed))
        else:
            ids = [id for id in ids if id in exact]
            for one in (exact, index):
                one.remove(ids)
    assert index.ids == exact.ids and len(index) == len(exact)
    query = unit_vectors(3, seed=99)
    for k in (0, 1, 5):
        assert_same(index.search(query[0], k), exact.search(query[0], k))
        assert_same(index.search(query, k), exact.search(query, k))


@needs_chroma
def test_bad_input_is_refused_and_nothing_changes():
    index, vectors = ChromaIndex(DIM), unit_vectors(3)
    index.add(names(2), vectors[:2])
    bad = vectors[2:].copy()
    bad[0, 0] = np.nan
    for ids, v, named in (
        (["x"], bad, "'x'"),
        (["x"], vectors[2:, :5], "shape"),
        (["x", "x"], vectors[:2], "'x' is given twice"),
    ):
        with pytest.raises(ValueError, match=named):
            index.add(ids, v)
    with pytest.raises(KeyError, match="unknown"):
        index.remove(["m0000", "unknown"])
    with pytest.raises(ValueError, match="k = -1"):
        index.search(vectors[0], -1)
    with pytest.raises(ValueError, match="dim"):
        ChromaIndex(0)
    assert index.ids == names(2) and index.search(vectors[0], 5)[0][0] == "m0000"


@needs_chroma
def test_two_indexes_in_memory_do_not_mix():
    first, second = ChromaIndex(DIM), ChromaIndex(DIM)
    first.add(["a"], unit_vectors(1))
    assert len(second) == 0 and second.search(unit_vectors(1)[0], 3)[0] == []


# -- in a folder


@needs_chroma
def test_a_folder_keeps_it_in_its_order(tmp_path):
    index, vectors = ChromaIndex(DIM, tmp_path), unit_vectors(50)
    index.add(names(50)[::-1], vectors)
    index.remove(["m0007"])
    index.add(["m0003", "new"], vectors[[1, 2]])
    again = ChromaIndex(DIM, tmp_path)
    assert again.ids == index.ids and again.ids[-1] == "new"
    assert_same(again.search(vectors[:5], 4), index.search(vectors[:5], 4))


@needs_chroma
def test_another_distance_or_dimension_is_refused(tmp_path):
    """By default Chroma compares by squared distance: 1 − distance is no cosine then."""
    connect(tmp_path).create_collection("euclid", embedding_function=None)
    with pytest.raises(ValueError, match=r"'euclid'.*'l2'"):
        ChromaIndex(DIM, tmp_path, "euclid")
    ChromaIndex(DIM, tmp_path).add(["a"], unit_vectors(1))
    with pytest.raises(ValueError, match=f"{DIM} numbers, not of 8"):
        ChromaIndex(8, tmp_path)


# -- on a server


@needs_chroma
def test_a_real_server_gives_the_same(server):
    exact, index, vectors = ExactIndex(DIM), ChromaIndex(DIM, server, "served"), unit_vectors(500)
    for one in (exact, index):
        one.add(names(500), vectors)
        one.remove(["m0001", "m0002"])
    queries, mask = unit_vectors(20, seed=3), np.arange(498) % 3 == 0
    for where in (None, mask):
        assert_same(index.search(queries, 10, where), exact.search(queries, 10, where))
    other = ChromaIndex(DIM, server, "served")
    assert other.ids == exact.ids, "another program finds the same"
    assert_same(other.search(queries[0], 5), exact.search(queries[0], 5))


@needs_chroma
def test_meta_memory_finds_tasks_through_a_server(server):
    plain = MetaMemory(MemoryStore())
    served = MetaMemory(MemoryStore(), index=ChromaIndex(plain.store.embedder.dim, server, "tasks"))
    for film in ("Salt Roads", "Winter Bells", "Harbour Lights"):
        question = f"Who is married to the director of {film}?"
        steps = (Step("Search", film, f"{film} is a film directed by Ana Petrov."), Step("Finish", "Lin Wei"))
        for meta in (plain, served):
            meta.remember(Transcript(question, steps), True)
    question = "Who is married to the director of Paper Moons?"
    assert served.recall(question) == plain.recall(question) and served.recall(question).successes
    served.forget(1)
    assert ChromaIndex(plain.store.embedder.dim, server, "tasks").ids == [t.id for t in served.tasks]


@needs_chroma
def test_a_server_that_does_not_answer_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(StoreError, match=rf"{address}.*chroma run"):
        ChromaIndex(DIM, address)


@needs_chroma
def test_a_collection_that_is_gone_is_named(server):
    index = ChromaIndex(DIM, server, "gone")
    index.add(["a"], unit_vectors(1))
    connect(server).delete_collection("gone")
    with pytest.raises(StoreError, match=r"'gone'.*open the index again"):
        index.search(unit_vectors(1)[0], 1)
    with pytest.raises(StoreError, match="'gone'"):
        index.add(["b"], unit_vectors(1))
    assert index.ids == ["a"]
