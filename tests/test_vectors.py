"""Test that a vector index conforms to `VectorIndex`, and that ranking agrees with sorting everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.store.vectors import ExactIndex, VectorIndex, dot_products, top_k

DIM = 8


def unit(n: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    v = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


def names(n: int, start: int = 0) -> list[str]:
    return [f"m{i:04}" for i in range(start, start + n)]


@pytest.mark.parametrize("make", [ExactIndex])
class TestConformance:
    """What every vector index must do."""

    def test_empty(self, make):
        index = make(DIM)
        assert isinstance(index, VectorIndex)
        index.add([], np.empty((0, DIM), np.float32))
        index.remove([])
        ids, scores = index.search(unit(3), 5)
        assert len(index) == 0 and [list(i) for i in ids] == [[], [], []] and scores.shape == (3, 0)

    def test_finds_the_best_in_order_ties_by_id(self, make):
        index, v = make(DIM), unit(50)
        for i in range(0, 50, 10):
            index.add(names(10, i), v[i : i + 10])
        exact = np.round(v @ v[7], 6)
        for k in (0, 1, 49, 10_000):
            ids, scores = index.search(v[7], k)
            assert len(ids) == min(k, 50) and np.allclose(scores, np.sort(exact)[::-1][:k], atol=1e-5)
            assert [exact[int(i[1:])] for i in ids] == pytest.approx(scores.tolist(), abs=1e-5)
        ids, scores = index.search(v[:4], 3)
        for i in range(4):
            one, s = index.search(v[i], 3)
            assert list(one) == list(ids[i]) and np.allclose(s, scores[i], atol=1e-6)
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

    def test_adding_removing_and_replacing(self, make):
        index, v = make(DIM), unit(12)
        index.add(names(10), v[:10])
        index.remove(["m0000", "m0004"])
        assert "m0004" not in index.search(v[4], 8)[0] and index.search(v[5], 1)[0] == ["m0005"]
        index.add(["m0002", "m0004"], v[[10, 4]])
        assert list(index.ids) == [n for n in names(10) if n not in ("m0000", "m0004")] + ["m0004"]
        assert index.search(v[10], 1)[0] == ["m0002"] and index.search(v[4], 1)[0] == ["m0004"]

    def test_what_is_wrong_changes_nothing(self, make):
        index, nan = make(DIM), unit(2)
        index.add(names(3), unit(3))
        nan[1, 2] = np.nan
        for ids, v in ((["a"], unit(1, dim=5)), (["a", "b"], nan), (["a", "a"], unit(2))):
            with pytest.raises(ValueError):
                index.add(ids, v)
        with pytest.raises(KeyError, match="nobody"):
            index.remove(["m0001", "nobody"])
        with pytest.raises(ValueError, match="where"):
            index.search(unit(1)[0], 1, np.ones(4, bool))
        assert list(index.ids) == names(3)


def test_large_and_small_products_agree():
    v = unit(3000, dim=384)
    assert np.abs(dot_products(v[:100], v[0]) - dot_products(v, v[0])[:100]).max() <= 2e-6  # one digit
    assert np.abs(dot_products(v, v[:2])[0] - dot_products(v, v[0])).max() <= 2e-6


@given(
    st.lists(st.sampled_from([0.0, -0.0, 0.1, 0.1000001, 0.2, -0.5, 0.9]), max_size=30),
    st.integers(0, 35),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_top_k_agrees_with_sorting_everything(values, k, data):
    scores = np.array(values, np.float32)
    ids = data.draw(st.permutations(names(len(values))))
    where = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), bool)
    rounded = [round(float(x), 6) for x in np.round(scores, 6)]
    plain = sorted(np.flatnonzero(where), key=lambda i: (-rounded[i], ids[i]))[:k]
    assert top_k(scores, k, ids, where).tolist() == plain
    with pytest.raises(ValueError, match="'b'"):
        top_k(np.array([1.0, np.nan]), 1, ["a", "b"])
