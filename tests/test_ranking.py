"""Retrieval and abstention metrics: official scores, agreement with scikit-learn, properties, wrong input."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.metrics import ranking as r

IDS = st.lists(st.sampled_from([f"D{i}" for i in range(12)]), max_size=12)
RANKED = (r.recall_any, r.recall_all, r.recall_fraction, r.precision, r.ndcg, r.mrr)


def test_longmemeval_metrics_agree_with_official_scores(official_cases):
    cases = official_cases("longmemeval_official_retrieval.jsonl")
    assert len(cases) == 120
    for case in cases:
        ranked = [case["ids"][i] for i in case["ranking"]]
        for corpus in (None, case["ids"]):
            got = r.longmemeval_metrics(ranked, case["gold"], case["k"], corpus)
            assert got == pytest.approx({m: case[m] for m in got}, abs=1e-6)
        if "turn2session" in case:
            assert r.longmemeval_turn_to_session(ranked, case["gold"], case["k"]) == pytest.approx(
                case["turn2session"], abs=1e-6
            )


@pytest.mark.parametrize(
    ("found", "gold", "k", "want"),
    [
        # recall_any, recall_all, recall_fraction, precision, ndcg, mrr
        (["a", "b", "c"], ["b"], 3, (1, 1, 1, 1 / 3, 1 / math.log2(3), 1 / 2)),
        (["a", "b", "c"], ["b"], 1, (0, 0, 0, 0, 0, 0)),
        (["a", "b"], ["a", "b", "z"], 2, (1, 0, 2 / 3, 1, 1, 1)),
        (["b", "b", "a"], ["a", "b"], 2, (1, 0, 1 / 2, 1 / 2, 1 / (1 + 1 / math.log2(3)), 1)),
        ([], ["a"], 5, (0, 0, 0, 0, 0, 0)),
        (["a"], ["a"], 5, (1, 1, 1, 1 / 5, 1, 1)),
        (["a"], ["a", "a"], None, (1, 1, 1, 1, 1, 1)),
    ],
)
def test_ranking_metrics_agree_with_hand_computed_ones(found, gold, k, want):
    assert tuple(r.ranking_metrics(found, gold, k).values()) == pytest.approx(want)


def test_scores_without_gold_are_nan_and_left_out_of_means():
    assert all(map(math.isnan, r.ranking_metrics(["a"], [], 3).values()))
    assert all(map(math.isnan, r.longmemeval_metrics(["a"], [], 3).values()))
    assert all(map(math.isnan, r.longmemeval_turn_to_session(["a_1"], [], 3).values()))
    assert r.nanmean_count([1, math.nan, 0, 0.5]) == (0.5, 3)


@given(IDS, IDS.filter(bool), st.integers(1, 14))
@settings(max_examples=200, deadline=None)
def test_bounds_and_relations_of_ranking_metrics(found, gold, k):
    at = r.ranking_metrics(found, gold, k)
    assert all(0 <= v <= 1 + 1e-12 for v in at.values())
    assert at["recall_all"] <= at["recall_fraction"] <= at["recall_any"]
    assert (at["mrr"] > 0) == (at["recall_any"] == 1) == (at["ndcg"] > 0) == (at["precision"] > 0)
    assert r.recall_fraction(found, gold, k) <= r.recall_fraction(found, gold, k + 1)
    assert at == r.ranking_metrics(found, list(reversed(gold)), k)  # the order of the gold ids doesn't matter
    assert r.ranking_metrics(list(dict.fromkeys(gold)), gold, len(set(gold))) == pytest.approx(
        dict.fromkeys(at, 1.0)
    )


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])), min_size=2, max_size=40)
)
@settings(max_examples=100, deadline=None)
def test_auroc_agrees_with_sklearn(pairs):
    from sklearn.metrics import roc_auc_score

    y, s = [p[0] for p in pairs], [p[1] for p in pairs]
    if len(set(y)) < 2:
        assert math.isnan(r.auroc(y, s))
    else:
        assert r.auroc(y, s) == pytest.approx(roc_auc_score(y, s))
        assert r.auroc(y, s) + r.auroc([not v for v in y], s) == pytest.approx(1)
        assert r.auroc(y, [v * 3 - 7 for v in s]) == r.auroc(y, s)  # only the order counts


def test_auroc_of_ties_extremes_and_wrong_input():
    assert (
        r.auroc([True, False], [1, 0]) == 1
        and r.auroc([True, False], [0, 1]) == 0
        and r.auroc([True, False, True], [2, 2, 2]) == 0.5
    )
    assert math.isnan(r.auroc([], []))
    with pytest.raises(ValueError, match="nan"):
        r.auroc([True, False], [math.nan, 1])
    with pytest.raises(ValueError, match="2 labels but 1 scores"):
        r.auroc([True, False], [1])
    big = np.random.default_rng(0).random(200_000)
    assert abs(r.auroc(big > 0.5, np.random.default_rng(1).random(200_000)) - 0.5) < 0.01


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
@settings(max_examples=100, deadline=None)
def test_abstention_agrees_with_sklearn(pairs):
    from sklearn.metrics import f1_score, precision_score, recall_score

    can, did = [p[0] for p in pairs], [p[1] for p in pairs]
    got = r.abstention_metrics(can, did)
    should = [not c for c in can]
    assert math.isnan(got["auroc"]) and got["n"] == len(pairs) and got["n_unanswerable"] == sum(should)
    assert math.isnan(got["precision"]) == (not any(did)) and math.isnan(got["recall"]) == (not any(should))
    if any(did):
        assert got["precision"] == pytest.approx(precision_score(should, did, zero_division=0))
    if any(should):
        assert got["recall"] == pytest.approx(recall_score(should, did, zero_division=0))
    if any(did) or any(should):
        assert got["f1"] == pytest.approx(f1_score(should, did, zero_division=0))


def test_turns_map_to_sessions():
    assert r.to_sessions(["D3:7", "D1:1", "D3:2"], {"D3:7": "s3", "D3:2": "s3", "D1:1": "s1"}) == ["s3", "s1"]
    with pytest.raises(KeyError, match="D9:9"):
        r.to_sessions(["D9:9"], {})
    ranked = ["s1_1", "s1_2", "s1_3"]  # fewer sessions than k: the whole list, no error
    assert r.longmemeval_turn_to_session(ranked, ["s1_9"], 5)["recall_all"] == 1
    assert r.longmemeval_turn_to_session([], ["s1_9"], 5) == {"recall_any": 0, "recall_all": 0, "ndcg_any": 0}
    assert (
        r.longmemeval_metrics(["a"], ["z"], 1, corpus_ids=["a"])["ndcg_any"] == 0
    )  # gold that isn't in the corpus
