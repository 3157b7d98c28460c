"""Intervals and tests: agreement with scipy, properties, determinism, wrong input."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from adaptmr.eval.report import tables
from adaptmr.eval.stats import intervals as s
from adaptmr.eval.stats.intervals import resample_counts

FEW_RESAMPLES = 200
METHODS = ("percentile", "t")
PAIRS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1), st.floats(0, 1), st.sampled_from("abcdefg")
    ),
    min_size=1,
    max_size=40,
)


@given(PAIRS, st.sampled_from(METHODS))
@settings(max_examples=100, deadline=None)
def test_swapping_systems_changes_only_the_sign(pairs, method):
    a, b, g = zip(*pairs)
    how = {"resamples": FEW_RESAMPLES, "method": method}
    d, e, same = (s.paired_difference(x, y, g, **how) for x, y in ((a, b), (b, a), (a, a)))
    assert same.mean == 0 and math.isnan(same.low) and math.isnan(same.p) and same.level == "too few"
    assert d.mean == -e.mean and (d.n, d.level) == (e.n, e.level)
    if d.level == "too few":
        gaps = [round(x - y, 12) for x, y in zip(a, b)]
        assert len(set(g)) < 4 or sum(gap != 0 for gap in gaps) < 5 or len(set(gaps)) == 1
        assert all(map(math.isnan, (d.low, d.high, d.p)))
        return
    assert (d.low, d.high, d.p) == (-e.high, -e.low, e.p) and 0 < d.p <= 1 and d.low <= d.mean <= d.high
    if d.level == "conversations":
        assert (d.p < 0.05) == (not d.low <= 0 <= d.high) or abs(d.p - 0.05) < 1e-6
    elif d.low > 0:
        assert d.p < 0.1


@given(PAIRS, st.sampled_from(METHODS))
@settings(max_examples=60, deadline=None)
def test_an_interval_holds_its_mean_and_no_order_matters(pairs, method):
    a, _, g = zip(*pairs)
    it = s.mean_ci(a, g, method=method, resamples=99)
    assert it == s.mean_ci(a[::-1], g[::-1], method=method, resamples=99)
    if len(set(g)) < 4:
        assert math.isnan(it.low) and math.isnan(it.high) and it.level == "too few"
        return
    assert it.low <= it.mean <= it.high and min(0, *a) <= it.low + 1e-9 and it.high <= max(a) + 1e-9


def test_resamples_keep_the_sizes_of_conversations():
    """Every resample draws as many conversations as there are, and each one's number of questions."""
    sizes = (3, 5, 1)
    draws = resample_counts(sizes, 2500, 1)
    parts = np.split(draws, np.cumsum(sizes)[:-1], axis=1)
    times = np.stack([p.sum(1) / n for p, n in zip(parts, sizes)], axis=1)
    assert (times == times.round()).all() and (times.sum(1) == 3).all()
    assert np.allclose(draws.mean(0), 1, atol=0.1)  # each question once on average
    assert not draws.flags.writeable


def test_one_level_bootstrap_agrees_with_scipy():
    from scipy.stats import bootstrap

    values = np.random.default_rng(5).beta(2, 1, 300)
    ours = s.mean_ci(values)
    theirs = bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.002)


def test_two_level_bootstrap_agrees_with_a_plain_loop():
    rng = np.random.default_rng(0)
    values, groups = rng.random(80) + np.repeat([0, 0.2, 0.4, 0.6], 20), np.repeat([0, 1, 2, 3], 20)
    slow = []
    for _ in range(4000):
        drawn = [rng.choice(values[groups == g], 20) for g in rng.integers(0, 4, 4)]
        slow.append(np.concatenate(drawn).mean())
    it = s.mean_ci(values, groups, method="percentile")
    assert (it.low, it.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=0.02)


def test_conversations_are_weighted_by_their_questions():
    groups = ["big"] * 90 + [g for g in ("small", "tiny", "least") for _ in range(10)]
    it = s.mean_ci([1.0] * 90 + [0.0] * 30, groups, method="percentile")
    assert it.mean == 0.75 and it.low == 0 and it.high > 0.95 and it.level == "conversations and questions"


def test_without_groups_each_question_is_a_group():
    values = np.random.default_rng(0).random(50)
    it, t = s.mean_ci(values), s.mean_ci(values, range(50))
    assert (it.level, it.groups) == ("questions", 50) and "questions" in str(it)
    assert it.low < it.mean < it.high and (it.low, it.high) == pytest.approx([t.low, t.high])


SCORES_OF_60 = np.random.default_rng(0).random(60)
SIX = list("abcdef") * 10
TOO_SMALL = {
    "one question": ([1.0], [0.5], None),
    "three questions": ([1.0, 0.9, 0.8], [0.5, 0.3, 0.1], None),
    "one conversation": (SCORES_OF_60, SCORES_OF_60 / 2, ["c"] * 60),
    "three conversations": (SCORES_OF_60, SCORES_OF_60 / 2, ["a", "b", "c"] * 20),
    "all differences the same": (SCORES_OF_60 + 0.5, SCORES_OF_60, SIX),
    "no difference": (SCORES_OF_60, SCORES_OF_60, SIX),
    "four differences": (SCORES_OF_60, np.where(np.arange(60) < 4, SCORES_OF_60 / 2, SCORES_OF_60), SIX),
}


def test_too_small_samples_have_no_interval_p_value_or_verdict():
    for (case, (a, b, groups)), method in product(TOO_SMALL.items(), METHODS):
        d = s.paired_difference(a, b, groups, resamples=FEW_RESAMPLES, method=method)
        assert d.mean == pytest.approx(float(np.mean(np.asarray(a) - np.asarray(b)))), case
        assert d.n == len(a) and d.level == "too few" and all(map(math.isnan, (d.low, d.high, d.p)))
        assert "– too few" in str(d) and "nan" not in str(d) and "[" not in str(d)
        where = {"conversation": groups or range(len(a)), "question": range(len(a))}
        both = [pd.DataFrame({"system": n, **where, "f1": v}) for n, v in (("new", a), ("base", b))]
        row = s.compare_systems(pd.concat(both), "f1", "base", resamples=FEW_RESAMPLES).iloc[0]
        assert row["level"] == "too few" and row[["low", "high"]].isna().all(), case


def test_report_tables_show_too_few():
    rng, names = np.random.default_rng(0), ("base", "good", "same")
    types = ["temporal_reasoning", "factual_extraction"] * 20
    asked = {"conversation": "c1", "question": range(40), "type": types, "recall_fraction": 0.5}
    used = {"prompt_tokens": 0, "completion_tokens": 0, "context_tokens": 9}
    one = pd.concat(pd.DataFrame({"system": name, **asked, **used, "f1": rng.random(40)}) for name in names)
    table = tables.paired_gains(one, "base")
    shown = tables.gain_table(table)
    assert table["low"].isna().all()
    assert not shown.map(lambda c: "*" in c or "[" in c or "nan" in c).any(axis=None)
    assert tables.gain_sentences(table, "f1") == ["F1 against base: 6 differences not shown."]
    assert all(c.endswith(" – too few") for c in tables.main_table(one).to_numpy().ravel().tolist())


def test_gain_sentences_name_what_leaves_zero_out():
    rows = [("a", "multi_hop", 0.29, 0.2, 0.4), ("a", "overall", 0.1, math.nan, math.nan)]
    rows += [("c", "multi_hop", -0.2, -0.3, -0.1), ("c", "overall", 0.01, -0.1, 0.1)]
    table = pd.DataFrame(rows, columns=["system", "type", "difference", "low", "high"]).assign(baseline="u")
    assert tables.gain_sentences(table, "recall_fraction") == [
        "Recall against u: more by a (multi-hop +0.29); less by c (multi-hop -0.20); "
        "2 other differences not shown."
    ]
    assert tables.gain_sentences(table[:0], "f1") == ["F1: nothing to compare."]


def test_comparisons_are_stratified_by_language():
    """A gain of .3 in English and of 0 in Chinese: what differs between the languages is no error."""
    rng = np.random.default_rng(4)
    where = np.repeat([f"{lang}{i}" for lang in ("en", "zh") for i in range(3)], 20)
    base = rng.random(120)
    gain = np.where(np.char.startswith(where, "en"), 0.3, 0.0) + rng.normal(0, 0.01, 120)
    spoken = [w[:2] for w in where]
    apart = s.paired_difference(base + gain, base, where, spoken)
    together = s.paired_difference(base + gain, base, where)
    assert apart.mean == together.mean and apart.high - apart.low < 0.2 * (together.high - together.low)
    assert s.paired_difference(base + gain, base, where, ["en"] * 120) == together
    back = s.paired_difference(base, base + gain, where, spoken)
    assert (back.low, back.high) == (-apart.high, -apart.low)
    asked = {"conversation": where, "question": range(120), "language": spoken}
    both = (("new", base + gain), ("base", base))
    frame = pd.concat(pd.DataFrame({"system": n, **asked, "f1": v}) for n, v in both)
    row = s.compare_systems(frame, "f1", "base").iloc[0]
    assert (row["low"], row["high"]) == (apart.low, apart.high)
    plain = s.compare_systems(frame.drop(columns="language"), "f1", "base").iloc[0]
    assert (plain["low"], plain["high"]) == (together.low, together.high)
    with pytest.raises(ValueError, match="conversation 'en0' is in the strata"):
        s.paired_difference(base + gain, base, where, ["en", "zh"] * 60)


def test_pair_with_nan_is_left_out():
    a, b, g = [1, 0, math.nan, 1], [0, 0, 1, math.nan], ["a", "a", "b", "b"]
    d = s.paired_difference(a, b, g, resamples=FEW_RESAMPLES)
    assert d.n == 2 and d.groups == 1 and d.mean == 0.5 and d.level == "too few"


def test_bootstrap_depends_on_the_seed_only():
    values = np.random.default_rng(0).random(40)
    assert s.mean_ci(values, seed=1, method="percentile") == s.mean_ci(values, seed=1, method="percentile")
    assert s.mean_ci(values, seed=1, method="percentile") != s.mean_ci(values, seed=2, method="percentile")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_holm_is_monotone_and_bounded(pvalues):
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02]), "as on Wikipedia"
    adjusted = s.holm(pvalues)
    assert ((adjusted >= np.asarray(pvalues)) & (adjusted <= 1)).all()
    assert (np.diff(adjusted[np.argsort(pvalues, kind="stable")]) >= 0).all(), "the order is kept"
    assert adjusted.min() == pytest.approx(min(1, min(pvalues) * len(pvalues)))
    assert s.holm([*pvalues, math.nan])[:-1].tolist() == adjusted.tolist()


def test_cluster_mean_by_hand():
    it = s.cluster_mean([1, 1, 0, 0, 1, 0], [2, 2, 2])
    assert (it.mean, it.df) == (0.5, pytest.approx(2))
    assert it.se == pytest.approx(np.std([1, 0, 0.5], ddof=1) / math.sqrt(3))
    v = np.random.default_rng(0).random(9)
    ours, theirs = s.cluster_mean(v, [1] * 9), ttest_1samp(v, 0.3)
    assert ours.p_value(0.3) == pytest.approx(theirs.pvalue)
    assert ours.interval() == pytest.approx(tuple(theirs.confidence_interval(0.95)))


RATIOS = st.tuples(st.floats(0, 1), st.integers(0, 900), st.sampled_from("abcdef"))


@given(st.lists(RATIOS, min_size=1, max_size=30), st.sampled_from(METHODS))
@settings(max_examples=60, deadline=None)
def test_ratios(items, method):
    v, x, g = zip(*items)
    it = s.ratio_ci(v, x, g, method=method, resamples=99)
    if not sum(x):
        assert math.isnan(it.mean) and it.n == 0
        return
    assert it.mean == pytest.approx(sum(v) / sum(x), abs=1e-8)
    assert (it.n, it.groups) == (len(items), len(set(g)))
    assert s.ratio_ci(v[::-1], x[::-1], g[::-1], method=method, resamples=99).mean == it.mean
    if len(set(g)) < 4:
        assert math.isnan(it.low) and math.isnan(it.high) and it.level == "too few"
        return
    assert it.low <= it.mean <= it.high
    assert it == s.ratio_ci(v[::-1], x[::-1], g[::-1], method=method, resamples=99)
