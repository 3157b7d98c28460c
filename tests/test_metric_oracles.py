"""Metrics compared with independent implementations: trec_eval (by ir-measures) and rouge-score."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.metrics import answers, ranking

ir_measures = pytest.importorskip("ir_measures")
rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")

IDS = [f"D{i}" for i in range(15)]
RANKINGS = st.lists(st.sampled_from(IDS), unique=True, min_size=1, max_size=12)
GOLD = st.sets(st.sampled_from([*IDS, "missing"]), min_size=1, max_size=6)
WORDS = st.lists(st.sampled_from("tea milk rum gin ale cider".split()), min_size=1, max_size=12)


def trec(measure, ranked, gold):
    """The score of one ranking by ir-measures, best id first."""
    qrels = [ir_measures.Qrel("q", id, 1) for id in sorted(gold)]
    run = [ir_measures.ScoredDoc("q", id, -float(rank)) for rank, id in enumerate(ranked)]
    (metric,) = ir_measures.iter_calc([measure], qrels, run)
    return metric.value


@settings(max_examples=60, deadline=None)
@given(RANKINGS, GOLD, st.integers(1, 15))
def test_ranking_metrics_agree_with_trec_eval_at_k(ranked, gold, k):
    assert ranking.ndcg(ranked, gold, k) == pytest.approx(trec(ir_measures.nDCG @ k, ranked, gold))
    assert ranking.precision(ranked, gold, k) == pytest.approx(trec(ir_measures.P @ k, ranked, gold))
    assert ranking.recall_fraction(ranked, gold, k) == pytest.approx(trec(ir_measures.R @ k, ranked, gold))
    assert ranking.mrr(ranked, gold, k) == pytest.approx(trec(ir_measures.RR @ k, ranked, gold))
    assert ranking.recall_any(ranked, gold, k) == trec(ir_measures.Success @ k, ranked, gold)


@settings(max_examples=60, deadline=None)
@given(RANKINGS, GOLD)
def test_ranking_metrics_agree_with_trec_eval_on_whole_lists(ranked, gold):
    assert ranking.ndcg(ranked, gold) == pytest.approx(trec(ir_measures.nDCG, ranked, gold))
    assert ranking.mrr(ranked, gold) == pytest.approx(trec(ir_measures.RR, ranked, gold))


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS)
def test_rouge_l_agrees_with_rouge_score(prediction, gold):
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    theirs = scorer.score(" ".join(gold), " ".join(prediction))["rougeL"].fmeasure
    assert answers.rouge_l(" ".join(prediction), " ".join(gold)) == pytest.approx(theirs)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_rouge_l_of_several_answers_agrees_with_rouge_score(prediction, golds):
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    texts = [" ".join(gold) for gold in golds]
    theirs = scorer.score_multi(texts, " ".join(prediction))["rougeL"].fmeasure
    assert answers.rouge_l(" ".join(prediction), texts) == pytest.approx(theirs)
