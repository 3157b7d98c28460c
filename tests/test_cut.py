"""Test the token budget: its limits, what it keeps beyond the prefix, determinism."""

from itertools import combinations
from math import ceil

import numpy as np
import pytest
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
@given(TEXTS, st.integers(0, 120), st.integers(0, 14), st.sampled_from((0.0, 0.5, 1.0)), st.integers(0, 99))
def test_no_rendered_context_is_over_its_budget(texts, budget, k, cost_exponent, seed):
    hits = [
        Hit(Memory(str(i), text, "小林" if i % 3 else "Maya", "2024-04-20", source=f"D{i}"), float(-i))
        for i, text in enumerate(texts)
    ]
    tokens = [line_tokens(render_context([h])) for h in hits]
    kept = cut_to_budget(
        hit_probabilities([h.score for h in hits]),
        tokens,
        budget,
        k,
        cosines(seed, len(hits)),
        cost_exponent=cost_exponent,
    )
    assert count_tokens(render_context([hits[i] for i in kept])) <= budget and len(kept) <= k


# --- the rule


@given(
    HITS,
    st.integers(0, 300),
    st.one_of(st.none(), st.integers(0, 30)),
    st.sampled_from((0.0, 0.5, 1.0)),
    st.integers(0, 99),
)
def test_budget_and_k_hold_and_order_is_by_rank(hits, budget, k, cost_exponent, seed):
    p, tokens = split(hits, falling=False)
    kept = cut_to_budget(p, tokens, budget, k, cosines(seed, len(p)), cost_exponent=cost_exponent)
    assert tokens[kept].sum() <= budget + 0.25 and len(kept) <= (len(p) if k is None else k)
    assert (np.diff(kept) > 0).all(), "each once, in rank order"
    again = cut_to_budget(
        list(p), list(tokens), budget, k, cosines(seed, len(p)), cost_exponent=cost_exponent
    )
    assert again.tolist() == kept.tolist()


@given(HITS, st.integers(0, 300), st.one_of(st.none(), st.integers(0, 30)))
def test_everything_that_the_prefix_keeps_is_kept(hits, budget, k):
    p, tokens = split(hits)
    prefix, kept = (rule(p, tokens, budget, k).tolist() for rule in (rank_prefix, cut_to_budget))
    assert set(prefix) <= set(kept)
    room = budget + 0.25 - tokens[kept].sum()
    if k is None or len(kept) < k:
        assert all(tokens[i] > room for i in range(len(p)) if i not in kept), "what is left out doesn't fit"


@given(HITS, st.integers(0, 300))
def test_the_prefix_grows_with_the_budget(hits, budget):
    p, tokens = split(hits)
    assert set(rank_prefix(p, tokens, budget)) <= set(rank_prefix(p, tokens, budget + 7)), (
        "the prefix is monotonic in the budget"
    )


def test_a_larger_budget_may_keep_less():
    """A known weakness of the greedy choice: the best that fits is taken, and may displace two others."""
    p, tokens = [0.6, 0.5, 0.4], [8.0, 4.0, 3.0]
    assert cut_to_budget(p, tokens, 7).tolist() == [1, 2] and cut_to_budget(p, tokens, 8).tolist() == [0]
    assert cut_to_budget(p, tokens, 8, cost_exponent=1.0).tolist() == [1, 2], (
        "with cost_exponent = 1 the better pair is found"
    )


@given(HITS, st.integers(0, 30), st.integers(0, 99))
def test_a_budget_for_the_k_best_keeps_the_k_best(hits, k, seed):
    p, tokens = split(hits, falling=False)
    enough = ceil(tokens[:k].sum())
    for rule in (cut_to_budget, rank_prefix):
        for budget in (enough, None):
            assert rule(p, tokens, budget, k, cosines(seed, len(p))).tolist() == list(range(min(k, len(p))))


@given(st.lists(QUARTERS, max_size=20), st.integers(0, 200))
def test_ties_go_by_rank(tokens, budget):
    kept, room = [], budget + 0.25
    for i, t in enumerate(tokens):
        if t <= room:
            kept.append(i)
            room -= t
    assert cut_to_budget([0.5] * len(tokens), tokens, budget).tolist() == kept


@given(HITS, st.integers(0, 300), st.randoms(use_true_random=False))
def test_the_order_of_hits_matters_for_ties_only(hits, budget, random):
    p, tokens = split(hits, falling=False)
    p = p + np.arange(len(p)) * 1e-6  # no ties
    p = np.clip(p, 0, 1) if len(p) else p
    if len(set(p)) < len(p) or tokens.sum() <= budget + 0.25:
        return
    order = list(range(len(p)))
    random.shuffle(order)
    assert (
        sorted(order[i] for i in cut_to_budget(p[order], tokens[order], budget))
        == cut_to_budget(p, tokens, budget).tolist()
    )


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


def test_a_duplicated_turn_does_not_displace_a_better_one():
    same = np.array([[1, 0.1, 0.1], [0.1, 1, 1], [0.1, 1, 1]], dtype=float)
    assert cut_to_budget([0.6, 0.5, 0.5], [50.0] * 3, 50, similarity=same).tolist() == [0]
    assert cut_to_budget([0.6, 0.5, 0.5], [50.0] * 3, 100, similarity=same).tolist() == [0, 1]


def test_of_two_duplicates_the_one_that_fits_is_kept():
    same = np.ones((2, 2))
    assert cut_to_budget([0.9, 0.8], [90.0, 30.0], 50, similarity=same).tolist() == [1]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.just(10.0)), min_size=1, max_size=9),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_lines_of_one_length_reach_the_greedy_bound(hits, m, seed):
    """With lines of one length the greedy choice covers at least 1 - 1/e of the best (Nemhauser, Wolsey and
    Fisher 1978).
    """
    p, tokens = split(hits)
    similarity = cosines(seed, len(p))
    if tokens.sum() <= 10 * m + 0.25:
        return
    mine = covered(p, similarity, cut_to_budget(p, tokens, 10 * m, similarity=similarity))
    best = max(covered(p, similarity, s) for s in combinations(range(len(p)), min(m, len(p))))
    assert mine >= (1 - 1 / np.e) * best - 1e-6


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 1), QUARTERS), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(0, 99),
    st.sampled_from((0.0, 1.0)),
)
def test_the_heap_gives_the_greedy_choice(hits, budget, seed, cost_exponent):
    """The heap chooses what computing every candidate's gain in every step would."""
    p, tokens = split(hits)
    similarity = cosines(seed, len(p))
    if tokens.sum() <= budget + 0.25:
        return

    def plain(power):
        chosen, room = [], budget + 0.25
        while True:
            now = covered(p, similarity, chosen)
            gains = [
                ((covered(p, similarity, [*chosen, j]) - now) * tokens[j] ** -power, -j)
                for j in range(len(p))
                if j not in chosen and tokens[j] <= room
            ]
            if not gains:
                return chosen
            j = -max((round(g, 9), nj) for g, nj in gains)[1]
            chosen.append(j)
            room -= tokens[j]

    kept = cut_to_budget(p, tokens, budget, similarity=similarity, cost_exponent=cost_exponent)
    value, values = (
        covered(p, similarity, kept),
        [covered(p, similarity, plain(power)) for power in {0.0, cost_exponent}],
    )
    assert value >= max(values) - 1e-6
    if cost_exponent == 0 and not (np.triu(similarity > DUPLICATE_SIMILARITY, 1)).any():
        assert sorted(plain(0.0)) == kept.tolist()


# --- probabilities


@given(st.lists(st.floats(-1e308, 1e308), max_size=40))
def test_probabilities_fall_with_the_rank(scores):
    p = hit_probabilities(scores)
    assert p.shape == (len(scores),) and ((p >= 0) & (p <= 1)).all() and (np.diff(p) <= 0).all()


def test_probabilities_by_hand():
    assert hit_probabilities([np.log(3), 0.0, 5.0, -np.log(4)]).tolist() == [0.75, 0.5, 0.5, 0.2]
    assert hit_probabilities([np.inf, -np.inf]).round(6).tolist() == [1.0, 0.0]


# --- degenerate and invalid inputs


def test_degenerate_inputs():
    for rule in (cut_to_budget, rank_prefix):
        assert rule([], [], 100).tolist() == [] and rule([], [], None, 0, np.zeros((0, 0))).tolist() == []
        assert rule([0.9], [50.25], 49).tolist() == [], "one hit, larger than the budget"
        assert rule([0.9], [50.25], 50).tolist() == [0], "it fits exactly: the last line has no newline"
        assert rule([0.9, 0.1], [50.0, 1.0], 0).tolist() == []
        assert rule([0.9, 0.1], [5.0, 1.0], 100, 0).tolist() == []
    assert cut_to_budget([0.0, 0.0], [5.0, 4.0], 5).tolist() == [0], (
        "hits of probability 0 are kept in the order of rank"
    )
    assert cut_to_budget([0.5, 0.4], [0.0, 9.0], 5, cost_exponent=1.0).tolist() == [0], (
        "a line without tokens"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": [0.5, float("nan")]}, "p=nan is no probability"),
        ({"p": [0.5, 1.5]}, "p=1.5 is no probability"),
        ({"p": [-0.1, 0.5]}, "p=-0.1"),
        ({"p": [0.5]}, r"p has the shape \(1,\) and tokens \(2,\)"),
        ({"p": [[0.5], [0.4]]}, "one number per hit"),
        ({"tokens": [5.0, float("nan")]}, "tokens must be finite"),
        ({"tokens": [5.0, float("inf")]}, "tokens must be finite"),
        ({"tokens": [5.0, -1.0]}, "0 or more"),
        ({"budget": -1}, "budget=-1"),
        ({"budget": 1.5}, "budget=1.5"),
        ({"budget": True}, "budget=True"),
        ({"k": -1}, "k=-1"),
        ({"k": 2.0}, "k=2.0"),
        ({"similarity": np.ones((3, 3))}, r"the shape \(3, 3\); 2 hits need \(2, 2\)"),
        ({"similarity": np.full((2, 2), np.nan)}, "similarity holds nan"),
        ({"cost_exponent": -0.5}, "cost_exponent=-0.5"),
        ({"cost_exponent": float("nan")}, "cost_exponent=nan"),
        ({"cost_exponent": float("inf")}, "cost_exponent=inf"),
    ],
)
def test_invalid_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        cut_to_budget(**{"p": [0.5, 0.4], "tokens": [50.0, 40.0], "budget": 60, **change})


def test_scores_that_are_nan_are_refused():
    with pytest.raises(ValueError, match="1 of 2 scores are nan"):
        hit_probabilities([1.0, float("nan")])


def test_the_arguments_are_not_changed():
    p, tokens, similarity = np.array([0.9, 0.8]), np.array([50.0, 40.0]), np.ones((2, 2))
    cut_to_budget(p, tokens, 60, similarity=similarity)
    assert p.tolist() == [0.9, 0.8] and tokens.tolist() == [50.0, 40.0] and (similarity == 1).all()
