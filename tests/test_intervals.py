"""Intervals and tests: agreement with scipy, properties, determinism, wrong input."""

import math

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
PAIRS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1), st.floats(0, 1), st.sampled_from("abcdefg")
    ),
    min_size=1,
    max_size=40,
)


@given(PAIRS)
@settings(max_examples=100, deadline=None)
def test_swapping_systems_changes_only_the_sign(pairs):
    a, b, g = zip(*pairs)
    d, e = (
        s.paired_difference(a, b, g, resamples=FEW_RESAMPLES),
        s.paired_difference(b, a, g, resamples=FEW_RESAMPLES),
    )
    same = s.paired_difference(a, a, g, resamples=FEW_RESAMPLES)
    assert same.mean == 0 and math.isnan(same.low) and math.isnan(same.p) and same.level == "too few", (
        "without differences nothing is tested"
    )
    assert (
        np.array_equal(
            [d.mean, d.low, d.high, d.p, d.n], [-e.mean, -e.high, -e.low, e.p, e.n], equal_nan=True
        )
        and d.level == e.level
    )
    if d.level == "too few":
        assert (
            len(set(g)) < 4
            or sum(round(x - y, 12) != 0 for x, y in zip(a, b)) < 5
            or len({round(x - y, 12) for x, y in zip(a, b)}) == 1
        )
        assert math.isnan(d.low) and math.isnan(d.high) and math.isnan(d.p)
        return
    assert 0 < d.p <= 1 and d.low <= d.mean <= d.high
    if 0 not in (d.low, d.high) and d.low > 0:
        assert d.p < 0.1


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
    values, groups = (
        [1.0] * 90 + [0.0] * 30,
        ["big"] * 90 + [g for g in ("small", "tiny", "least") for _ in range(10)],
    )
    it = s.mean_ci(values, groups, method="percentile")
    assert it.mean == 0.75 and it.low == 0 and it.high > 0.95 and it.level == "conversations and questions"


def test_without_groups_each_question_is_a_group():
    values = np.random.default_rng(0).random(50)
    it = s.mean_ci(values)
    assert (
        (it.level, it.groups) == ("questions", 50)
        and "questions" in str(it)
        and (it.low, it.high) != (it.mean, it.mean)
    )
    assert (it.low, it.high) == pytest.approx([(t := s.mean_ci(values, range(50))).low, t.high])


SCORES_OF_60 = np.random.default_rng(0).random(60)
TOO_SMALL = {
    "one question": ([1.0], [0.5], None),
    "three questions": ([1.0, 0.9, 0.8], [0.5, 0.3, 0.1], None),
    "one conversation": (SCORES_OF_60, SCORES_OF_60 / 2, ["c"] * 60),
    "three conversations": (SCORES_OF_60, SCORES_OF_60 / 2, ["a", "b", "c"] * 20),
    "all differences the same": (SCORES_OF_60 + 0.5, SCORES_OF_60, list("abcdef") * 10),
    "no difference": (SCORES_OF_60, SCORES_OF_60, list("abcdef") * 10),
    "four differences": (
        SCORES_OF_60,
        np.where(np.arange(60) < 4, SCORES_OF_60 / 2, SCORES_OF_60),
        list("abcdef") * 10,
    ),
}


@pytest.mark.parametrize("method", s.CI_METHODS)
@pytest.mark.parametrize("case", TOO_SMALL)
def test_too_small_samples_have_no_interval_p_value_or_verdict(case, method):
    a, b, groups = TOO_SMALL[case]
    d = s.paired_difference(a, b, groups, resamples=FEW_RESAMPLES, method=method)
    assert (
        d.mean == pytest.approx(float(np.mean(np.asarray(a) - np.asarray(b))))
        and d.n == len(a)
        and d.level == "too few"
    )
    assert (
        math.isnan(d.low)
        and math.isnan(d.high)
        and math.isnan(d.p)
        and "– too few" in str(d)
        and "nan" not in str(d)
        and "[" not in str(d)
    )
    frame = pd.DataFrame(
        [
            {"system": name, "conversation": c, "question": i, "f1": v}
            for name, values in (("new", a), ("base", b))
            for i, (c, v) in enumerate(zip(groups or range(len(a)), values))
        ]
    )
    row = s.compare_systems(frame, "f1", "base", resamples=FEW_RESAMPLES).iloc[0]
    assert row["level"] == "too few" and row[["low", "high"]].isna().all()


def test_report_tables_show_too_few():
    one = frame()[lambda f: f["conversation"] == "c1"].assign(
        recall_fraction=0.5, prompt_tokens=0, completion_tokens=0, context_tokens=9
    )
    one["type"] = one["type"].map({"temporal": "temporal_reasoning", "factual": "factual_extraction"})
    table = tables.paired_gains(one, "base")
    assert table["low"].isna().all() and not tables.gain_table(table).map(
        lambda c: "*" in c or "[" in c or "nan" in c
    ).any(axis=None)
    assert tables.gain_sentences(table, "f1") == [
        "F1: too few questions that differ, or conversations, for an interval: good, same."
    ]
    cells = tables.main_table(one).to_numpy().ravel().tolist()
    assert all(c.endswith(" – too few") for c in cells)


def gained(*rows):
    """Return a table of gains over "u" from rows of system, type, difference, low and high."""
    columns = ["system", "type", "difference", "low", "high"]
    return pd.DataFrame(rows, columns=columns).assign(baseline="u", n=9)


def test_gain_sentences_are_grouped():
    nan = math.nan
    table = gained(
        *(
            (s, t, g, g - 0.02, g + 0.02)
            for s, g in (("a", 0.29), ("b", 0.35))
            for t in ("multi_hop", "overall")
        ),
        ("c", "multi_hop", -0.2, -0.3, -0.1),
        ("c", "overall", 0.01, -0.1, 0.1),
        ("d", "multi_hop", 0.3, 0.2, 0.4),
        ("d", "overall", 0.1, nan, nan),
    )
    assert tables.gain_sentences(table, "recall_fraction") == [
        "Recall: a, b find more than u on every kind (+0.29 to +0.35); d on multi-hop (+0.30).",
        "Recall: c finds less than u on multi-hop (-0.20).",
        "Recall: the other differences to u: 1 with an interval around zero, "
        "1 with too few questions for an interval.",
    ]
    flat = gained(("a", "overall", 0.0, -0.1, 0.1))
    assert tables.gain_sentences(flat, "f1") == ["F1: the differences to u: 1 with an interval around zero."]
    assert tables.gain_sentences(gained(), "f1") == [
        "F1: too few questions that differ, or conversations, for an interval: no system."
    ]


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
    frame = pd.concat(
        pd.DataFrame(
            {"system": n, "conversation": where, "question": range(120), "f1": v, "language": spoken}
        )
        for n, v in (("new", base + gain), ("base", base))
    )
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


@given(st.lists(st.floats(0, 1), max_size=20))
@settings(max_examples=200, deadline=None)
def test_holm_is_monotone_and_bounded(pvalues):
    adjusted = s.holm(pvalues)
    assert ((adjusted >= np.asarray(pvalues)) & (adjusted <= 1)).all()
    order = np.argsort(pvalues, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()  # the order is kept
    if pvalues:
        assert adjusted.min() == pytest.approx(min(1, min(pvalues) * len(pvalues)))
    if len(pvalues):
        assert s.holm([*pvalues, math.nan])[:-1].tolist() == adjusted.tolist()


def test_holm_agrees_with_a_published_example():
    assert s.holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )  # Wikipedia's own example


def frame(seed=0, systems=("base", "good", "same")):
    rng = np.random.default_rng(seed)
    rows = []
    for c in ("c1", "c2", "c3", "c4"):
        for q in range(40):
            hard = rng.random()
            for name, gain in zip(systems, (0, 0.15, 0)):
                question_type, f1 = (
                    "temporal" if q % 2 else "factual",
                    hard * 0.8 + gain + rng.normal(0, 0.02),
                )
                rows.append(
                    {
                        "system": name,
                        "conversation": c,
                        "question": f"{c}-{q}",
                        "type": question_type,
                        "f1": f1,
                    }
                )
    return pd.DataFrame(rows)


def test_cluster_mean_by_hand():
    it = s.cluster_mean([1, 1, 0, 0, 1, 0], [2, 2, 2])
    assert (it.mean, it.df) == (0.5, pytest.approx(2)) and it.se == pytest.approx(
        np.std([1, 0, 0.5], ddof=1) / math.sqrt(3)
    )
    v = np.random.default_rng(0).random(9)
    ours, theirs = s.cluster_mean(v, [1] * 9), ttest_1samp(v, 0.3)
    assert ours.p_value(0.3) == pytest.approx(theirs.pvalue) and ours.interval() == pytest.approx(
        tuple(theirs.confidence_interval(0.95))
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0]), st.sampled_from("abcdef")),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=80, deadline=None)
def test_method_t_has_the_properties_of_the_other(items):
    a, b, g = zip(*items)
    it, d, back = (
        s.mean_ci(a, g, method="t", resamples=99),
        *(s.paired_difference(x, y, g, method="t", resamples=99) for x, y in ((a, b), (b, a))),
    )
    if len(set(g)) < 4:
        assert (
            all(math.isnan(v) for v in (it.low, it.high, d.low, d.high, d.p))
            and {it.level, d.level} == {"too few"}
            and d.mean == -back.mean
        )
        return
    assert it.low <= it.mean <= it.high and min(0, *a) <= it.low and it.high <= max(a)
    assert it == s.mean_ci(a[::-1], g[::-1], method="t", resamples=99)
    if d.level == "too few":
        assert sum(x != y for x, y in zip(a, b)) < 5 or len({x - y for x, y in zip(a, b)}) == 1
        assert d.mean == -back.mean and back.level == "too few" and math.isnan(d.p)
        return
    assert d.mean == -back.mean and 0 < d.p <= 1
    if "and" not in d.level:
        assert (d.low, d.high, d.p) == (
            -back.high,
            -back.low,
            back.p,
        )  # else the bootstrap is used, which samples at random
    if d.level == "conversations":
        assert (d.p < 0.05) == (not d.low <= 0 <= d.high) or abs(d.p - 0.05) < 1e-6
    assert it.level in ("conversations", "questions", "conversations and questions")


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 900), st.sampled_from("abcdef")), min_size=1, max_size=30
    ),
    st.sampled_from(s.CI_METHODS),
)
@settings(max_examples=60, deadline=None)
def test_ratios(items, method):
    v, x, g = zip(*items)
    it = s.ratio_ci(v, x, g, method=method, resamples=99)
    if not sum(x):
        assert math.isnan(it.mean) and it.n == 0
        return
    assert (
        it.mean == pytest.approx(sum(v) / sum(x), abs=1e-8)
        and it.n == len(items)
        and it.groups == len(set(g))
    )
    if len(set(g)) < 4:
        assert math.isnan(it.low) and math.isnan(it.high) and it.level == "too few"
        return
    assert it.low <= it.mean <= it.high
    assert it == s.ratio_ci(v[::-1], x[::-1], g[::-1], method=method, resamples=99)
