"""Test the token budget: its limits, what it keeps beyond the prefix, determinism."""

from math import ceil

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.llm.spending import count_tokens
from adaptmr.retrieval.evidence import (
    DUPLICATE_SIMILARITY,
    cut_to_budget,
    hit_probabilities,
    line_tokens,
    rank_prefix,
    render_context,
)
from adaptmr.types import Hit, Memory

QUARTERS = st.integers(1, 400).map(lambda q: q / 4)
HITS = st.lists(st.tuples(st.floats(0, 1).map(lambda v: round(v, 3)), QUARTERS), max_size=30)
TEXTS = st.lists(st.text(alphabet="ab .我搬家😀é\u200f\n", max_size=60), max_size=12)


def split(hits, falling=True):
    p, tokens = (np.array([h[i] for h in hits], dtype=float) for i in (0, 1))
    return (np.sort(p)[::-1] if falling else p), tokens


def cosines(seed, n, dim=3):
    x = np.random.default_rng(seed).integers(-1, 2, (n, dim)) + 1e-3  # few directions: many are alike
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def covered(p, similarity, chosen):
    """Compute F(S), the objective of the notebook, from its formula."""
    n = len(p)
    c = np.clip((similarity - DUPLICATE_SIMILARITY) / (1 - DUPLICATE_SIMILARITY), 0, 1)
    np.fill_diagonal(c, 1)
    return float((p / c.sum(1) * (c[:, list(chosen)].max(1) if len(chosen) else np.zeros(n))).sum())


# --- what a line costs


def test_tokens_of_a_line_and_its_newline_by_hand():
    assert line_tokens("") == 0.25 and line_tokens("abc") == 1.0 and line_tokens("abcd") == 1.25
    assert line_tokens("我搬家") == 3.25 and line_tokens("我ab") == 1.75


@given(TEXTS)
def test_line_tokens_add_up_to_the_whole_context(lines):
    whole = sum(map(line_tokens, lines)) - (line_tokens("") if lines else 0)
    assert ceil(whole) == count_tokens("\n".join(lines))


@settings(max_examples=60)
@given(TEXTS, st.integers(0, 120), st.integers(0, 14), st.integers(0, 99))
def test_no_rendered_context_is_over_its_budget(texts, budget, k, seed):
    hits = [
        Hit(Memory(str(i), text, "小林" if i % 3 else "Maya", "2024-04-20", source=f"D{i}"), float(-i))
        for i, text in enumerate(texts)
    ]
    tokens = [line_tokens(render_context([h])) for h in hits]
    p = hit_probabilities([h.score for h in hits])
    kept = cut_to_budget(p, tokens, budget, k, cosines(seed, len(hits)))
    assert count_tokens(render_context([hits[i] for i in kept])) <= budget and len(kept) <= k


# --- the rule


@given(HITS, st.integers(0, 300), st.none() | st.integers(0, 30), st.integers(0, 99))
def test_budget_and_k_hold_and_order_is_by_rank(hits, budget, k, seed):
    p, tokens = split(hits, falling=False)
    kept = cut_to_budget(p, tokens, budget, k, cosines(seed, len(p)))
    assert tokens[kept].sum() <= budget + 0.25 and len(kept) <= (len(p) if k is None else k)
    assert (np.diff(kept) > 0).all(), "each once, in rank order"


@given(HITS, st.integers(0, 300), st.one_of(st.none(), st.integers(0, 30)))
def test_everything_that_the_prefix_keeps_is_kept(hits, budget, k):
    p, tokens = split(hits)
    prefix, kept = (rule(p, tokens, budget, k).tolist() for rule in (rank_prefix, cut_to_budget))
    assert set(prefix) <= set(kept)
    room = budget + 0.25 - tokens[kept].sum()
    if k is None or len(kept) < k:
        assert all(tokens[i] > room for i in range(len(p)) if i not in kept), "what is left out doesn't fit"


# --- duplicates


def test_a_duplicate_is_kept_last():
    same = np.array([[1, 1, 0.2, 0.1], [1, 1, 0.2, 0.1], [0.2, 0.2, 1, 0.1], [0.1, 0.1, 0.1, 1]])
    p, tokens = [0.9, 0.9, 0.2, 0.1], [50.0] * 4
    assert [cut_to_budget(p, tokens, b, similarity=same).tolist() for b in (50, 100, 150, 200)] == [
        [0],
        [0, 2],
        [0, 2, 3],
        [0, 1, 2, 3],
    ]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 1), QUARTERS), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(0, 99),
)
def test_the_heap_gives_the_greedy_choice(hits, budget, seed):
    """The heap chooses what computing every candidate's gain in every step would."""
    p, tokens = split(hits)
    similarity = cosines(seed, len(p))
    if tokens.sum() <= budget + 0.25:
        return
    plain: list[int] = []
    room = budget + 0.25
    while left := [j for j in range(len(p)) if j not in plain and tokens[j] <= room]:
        now = covered(p, similarity, plain)
        gains = {j: round(covered(p, similarity, [*plain, j]) - now, 9) for j in left}
        plain.append(max(left, key=lambda j: (gains[j], -j)))
        room -= tokens[plain[-1]]
    kept = cut_to_budget(p, tokens, budget, similarity=similarity)
    assert covered(p, similarity, kept) >= covered(p, similarity, plain) - 1e-6
    if not (np.triu(similarity > DUPLICATE_SIMILARITY, 1)).any():
        assert sorted(plain) == kept.tolist()


# --- probabilities


@given(st.lists(st.floats(-1e308, 1e308), max_size=40))
def test_probabilities_fall_with_the_rank(scores):
    p = hit_probabilities(scores)
    assert p.shape == (len(scores),) and ((p >= 0) & (p <= 1)).all() and (np.diff(p) <= 0).all()
