"""Test that every vector index conforms to `VectorIndex`, and that the exact one agrees with sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.store.approximate import ApproximateIndex, faiss_version
from adaptmr.store.vectors import ExactIndex, VectorIndex, top_k

needs_library = pytest.mark.skipif(
    faiss_version() is None, reason="needs the optional library faiss: pip install 'adaptmr[scale]'"
)
IMPLEMENTATIONS = [ExactIndex, pytest.param(ApproximateIndex, marks=needs_library)]
DIM = 8


def unit(n: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    v = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


def names(n: int, start: int = 0) -> list[str]:
    return [f"m{i:04}" for i in range(start, start + n)]


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
class TestConformance:
    """What every index must do. At these sizes an approximate index must be exact too."""

    def test_is_a_vector_index(self, make):
        assert isinstance(make(DIM), VectorIndex)

    def test_empty(self, make):
        index = make(DIM)
        ids, scores = index.search(unit(1)[0], 5)
        assert len(index) == 0 and list(ids) == [] and scores.shape == (0,)
        ids, scores = index.search(unit(3), 5)
        assert [list(i) for i in ids] == [[], [], []] and scores.shape == (3, 0)
        index.add([], np.empty((0, DIM), np.float32))
        index.remove([])
        assert len(index) == 0

    def test_finds_the_best_in_order(self, make):
        index, v = make(DIM), unit(50)
        index.add(names(50), v)
        ids, scores = index.search(v[7], 10)
        exact = np.round(v @ v[7], 6)
        assert ids[0] == "m0007" and len(ids) == 10
        assert np.allclose(scores, np.sort(exact)[::-1][:10], atol=1e-5)
        assert [exact[int(i[1:])] for i in ids] == pytest.approx(scores.tolist(), abs=1e-5)

    def test_a_batch_gives_the_results_of_its_queries(self, make):
        index, v = make(DIM), unit(50)
        index.add(names(50), v)
        ids, scores = index.search(v[:4], 3)
        assert scores.shape == (4, 3)
        for i in range(4):
            one, s = index.search(v[i], 3)
            assert list(one) == list(ids[i]) and np.allclose(s, scores[i], atol=1e-6)

    @pytest.mark.parametrize("k", [0, 1, 49, 50, 51, 10_000])
    def test_k(self, make, k):
        index = make(DIM)
        index.add(names(50), unit(50))
        ids, scores = index.search(unit(1)[0], k)
        assert len(ids) == len(scores) == min(k, 50) and len(set(ids)) == len(ids)

    def test_ties_are_ordered_by_id(self, make):
        one, two, same = make(DIM), make(DIM), np.repeat(unit(1), 20, axis=0)
        one.add(names(20), same)
        two.add(names(20)[::-1], same)
        assert list(one.search(same[0], 7)[0]) == list(two.search(same[0], 7)[0]) == names(7)

    def test_where(self, make):
        index, v = make(DIM), unit(50)
        index.add(names(50), v)
        mask = np.zeros(50, bool)
        mask[[3, 9, 30]] = True
        ids, _ = index.search(v[9], 10, where=mask)
        assert ids[0] == "m0009" and set(ids) == {"m0003", "m0009", "m0030"}
        assert list(index.search(v[9], 10, where=np.zeros(50, bool))[0]) == []

    def test_remove_keeps_the_order_of_the_rest(self, make):
        index, v = make(DIM), unit(10)
        index.add(names(10), v)
        index.remove(["m0000", "m0004"])
        assert list(index.ids) == [n for n in names(10) if n not in ("m0000", "m0004")] and len(index) == 8
        assert "m0004" not in index.search(v[4], 8)[0] and index.search(v[5], 1)[0] == ["m0005"]
        index.add(["m0004"], v[4:5])
        assert list(index.ids)[-1] == "m0004" and index.search(v[4], 1)[0] == ["m0004"]

    def test_removing_an_unknown_id_removes_nothing(self, make):
        index = make(DIM)
        index.add(names(5), unit(5))
        with pytest.raises(KeyError, match="nobody"):
            index.remove(["m0001", "nobody"])
        assert len(index) == 5

    def test_adding_again_replaces_in_place(self, make):
        index, v = make(DIM), unit(10)
        index.add(names(5), v[:5])
        index.add(["m0002", "new"], v[[8, 9]])
        assert list(index.ids) == [*names(5), "new"]
        assert index.search(v[8], 1)[0] == ["m0002"] and index.search(v[9], 1)[0] == ["new"]

    @pytest.mark.parametrize("k", [-1, 2.5, "3", None])
    def test_bad_k(self, make, k):
        index = make(DIM)
        index.add(names(3), unit(3))
        with pytest.raises(ValueError, match="k ="):
            index.search(unit(1)[0], k)

    def test_bad_vectors_change_nothing(self, make):
        index = make(DIM)
        index.add(names(3), unit(3))
        nan = unit(2)
        nan[1, 2] = np.nan
        for ids, v, what in (
            (["a"], unit(1, dim=5), "shape"),
            (["a", "b"], unit(1), "shape"),
            (["a", "b"], nan, "'b'"),
            (["a", "a"], unit(2), "'a'"),
        ):
            with pytest.raises(ValueError, match=what):
                index.add(ids, v)
        with pytest.raises(ValueError, match="shape"):
            index.search(np.ones(5, np.float32), 1)
        with pytest.raises(ValueError, match="query"):
            index.search(nan[1], 1)
        with pytest.raises(ValueError, match="where"):
            index.search(unit(1)[0], 1, where=np.ones(4, bool))
        with pytest.raises(ValueError, match="where"):
            index.search(unit(1)[0], 1, where=np.array([0, 1, 2]))
        assert list(index.ids) == names(3)

    def test_adding_one_by_one_or_all_at_once_is_the_same(self, make):
        one, all_, v = make(DIM), make(DIM), unit(40)
        for i in range(40):
            one.add(names(1, i), v[i : i + 1])
        all_.add(names(40), v)
        assert list(one.ids) == list(all_.ids)
        a, b = one.search(v[:5], 9), all_.search(v[:5], 9)
        assert a[0] == b[0] and (a[1] == b[1]).all()


def test_a_returned_matrix_never_changes():
    index, v = ExactIndex(DIM), unit(20)
    index.add(names(5), v[:5])
    held = index.vectors
    before = held.copy()
    index.add(names(1, 5), v[5:6])
    index.remove(["m0000"])
    index.add(["m0001"], v[10:11])
    index.add(names(10, 6), v[6:16])
    assert (held == before).all() and index.vectors.flags.c_contiguous and index.vectors.dtype == np.float32
    with pytest.raises(ValueError):
        held[0, 0] = 1


def test_large_and_small_products_agree():
    small, large, v = ExactIndex(384), ExactIndex(384), unit(3000, dim=384)
    small.add(names(100), v[:100])
    large.add(names(3000), v)
    assert np.abs(small.scores(v[0]) - large.scores(v[0])[:100]).max() <= 2e-6  # one digit of the rounding
    assert large.search(v[1], 1)[0] == ["m0001"]


@given(
    st.lists(st.sampled_from([0.0, -0.0, 0.1, 0.1000001, 0.2, -0.5, 0.9]), max_size=30),
    st.integers(0, 35),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_top_k_agrees_with_sorting_everything(values, k, data):
    scores = np.array(values, np.float32)
    ids = data.draw(st.permutations(names(len(values))))
    where = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), bool)
    plain = sorted(np.flatnonzero(where), key=lambda i: (-round(float(np.round(scores, 6)[i]), 6), ids[i]))[
        :k
    ]
    assert top_k(scores, k, ids, where).tolist() == plain


def test_top_k_refuses_a_score_that_is_nan():
    with pytest.raises(ValueError, match="'b'"):
        top_k(np.array([1.0, np.nan]), 1, ["a", "b"])
