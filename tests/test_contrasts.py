"""Declared contrasts: the test of one difference, its verdict, and the table that a run keeps."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adaptmr.eval.stats.contrasts import (
    CONTRAST_COLUMNS,
    Contrast,
    contrast_table,
    paired_test,
    read_contrasts,
    verdict,
)
from adaptmr.eval.stats.intervals import cluster_mean, paired_difference, stratified_mean

TEN = [f"c{i}" for i in range(10)]


def test_equal_conversations_give_students_t():
    means = np.array([0.10, 0.02, 0.07, -0.01, 0.05, 0.04, 0.09, 0.0, 0.03, 0.06])
    found = paired_test(np.repeat(means, 3), np.repeat(TEN, 3), margin=0.02)
    by_scipy = stats.ttest_1samp(means, 0.0)
    assert found.difference == pytest.approx(means.mean()) and found.p == pytest.approx(by_scipy.pvalue)
    interval = by_scipy.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    one_sided = stats.ttest_1samp(means, 0.02, alternative="less").pvalue
    assert found.p_equivalence == pytest.approx(one_sided)
    assert (found.n, found.conversations) == (30, 10)


def test_the_detectable_difference_is_the_one_that_is_found_four_times_in_five():
    """With a known spread: ten means of standard deviation 1 have the error 1 / sqrt(10) and df 9."""
    means = np.array([-1.0, 1.0] * 5) * math.sqrt(9 / 10)
    found = paired_test(np.repeat(means, 2), np.repeat(TEN, 2))
    reach = stats.t.ppf(0.975, 9) + stats.t.ppf(0.8, 9)
    assert found.detectable == pytest.approx(reach / math.sqrt(10), abs=1e-6)


def test_flipped_signs_are_counted_exactly_from_eight_conversations():
    sums = [0.5, 0.25, -0.125, 1.0, 0.75, 0.0, 0.25, -0.5, 1.25, 0.5]
    found = paired_test(np.repeat(np.array(sums) / 2, 2), np.repeat(TEN, 2))
    totals = [abs(sum(s * x for s, x in zip(signs, sums))) for signs in product((1, -1), repeat=10)]
    assert found.p_flip == pytest.approx(np.mean([t >= abs(sum(sums)) - 1e-9 for t in totals]))
    seven = paired_test([0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1], list("abcdefg"))
    assert math.isnan(seven.p_flip) and not math.isnan(seven.p)
    three = paired_test([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], list("aabbcc"), margin=0.5)
    assert three.difference == pytest.approx(0.35)
    assert all(map(math.isnan, (three.low, three.high, three.p, three.p_flip, three.p_equivalence)))


@given(st.permutations(range(24)))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_questions_changes_nothing(order):
    gaps = np.tile([0.0, 0.25, -0.125, 0.5, 0.0, 1.0], 4)
    names = np.repeat(list("abcd"), 6)
    expected = paired_test(gaps, names, margin=0.02)
    assert paired_test(gaps[list(order)], names[list(order)], margin=0.02) == expected


def test_it_agrees_with_the_intervals_of_all_other_tables():
    rng = np.random.default_rng(3)
    a, b, names = rng.random(60), rng.random(60), np.repeat(list("abcdef"), 10)
    found, table = paired_test(a - b, names), paired_difference(a, b, names.tolist(), method="t")
    assert (found.difference, found.low, found.high) == pytest.approx((table.mean, table.low, table.high))
    assert found.p == pytest.approx(table.p, abs=1e-8)


def test_a_stratum_of_one_conversation_is_not_told_apart():
    gaps = [0.1, 0.2, 0.4, 0.3]
    assert stratified_mean(gaps, [1] * 4, ["en", "en", "en", "zh"]) == cluster_mean(gaps, [1] * 4)


def test_systems_that_hardly_differ_are_equivalent_by_counting():
    for differ, expected in ((0, 0.98**200), (2, stats.binom.cdf(2, 200, 0.02))):
        gaps = (np.arange(200) < differ).astype(float)
        found = paired_test(gaps, np.repeat(TEN, 20), margin=0.02)
        assert found.p == 1 and found.p_equivalence == pytest.approx(expected, abs=1e-8)
        assert math.isnan(found.low) and math.isnan(found.detectable)


def test_verdicts():
    words = {"different": [(0.01, 0.5)], "equivalent": [(0.01, 0.01), (0.5, 0.01)]}
    words |= {"undecided": [(0.5, 0.5), (0.05, 0.05)], "too few": [(math.nan, 0.01), (0.01, math.nan)]}
    for word, pairs in words.items():
        assert [verdict(p, q) for p, q in pairs] == [word] * len(pairs)


def _frame(gains: dict[str, np.ndarray], n: int = 20) -> pd.DataFrame:
    """Return a frame of systems that score .5 plus their gains, on ten conversations of `n` questions."""
    base = pd.DataFrame(
        {"conversation": np.repeat(TEN, n), "question": [f"q{i}" for i in range(10 * n)], "f1": 0.5}
    )
    parts = [base.assign(system=name, f1=0.5 + gain) for name, gain in gains.items()]
    return pd.concat(parts, ignore_index=True)


GAIN = np.where(np.arange(200) % 4 == 0, 0.4, 0.0) - np.where(np.arange(200) % 20 == 3, 0.2, 0.0)


def test_the_table_corrects_for_the_contrasts_that_could_be_tested():
    noisy = np.where(np.arange(200) % 2 == 0, 0.3, -0.3)
    noisy[:20] = 0.3
    frame = _frame({"a": 0.0 * GAIN, "b": GAIN + 0.01 * (np.arange(200) // 20), "c": noisy})
    declared = [
        Contrast("b", "a", "f1", 0.02),
        Contrast("c", "a", "f1", 0.02),
        Contrast("d", "a", "f1", 0.02),  # no such system here
        Contrast("b", "a", "recall", 0.02),  # no such measure here
    ]
    table = contrast_table(frame, declared)
    assert tuple(table.columns) == CONTRAST_COLUMNS and list(table["contrast"]) == ["b − a", "c − a"]
    assert list(table["verdict"]) == ["different", "undecided"]
    smaller = table["p"].min()
    assert table["p_holm"].min() == pytest.approx(2 * smaller)
    assert (table["detectable"] > 0).all()
    with pytest.raises(ValueError, match="b − a: the two systems were not asked the same questions"):
        contrast_table(_frame({"a": 0 * GAIN, "b": GAIN}).iloc[:-1], declared)


def test_the_declared_contrasts_can_be_read():
    declared = read_contrasts()
    assert 3 <= len(declared) <= 6, "few, or Holm's correction hides what they show"
    assert {c.label for c in declared} >= {"adaptmr − gated", "gated − hybrid", "hybrid − zscore"}
    assert len({(c.label, c.measure) for c in declared}) == len(declared)
    assert all(c.asks.endswith("?") and 0 < c.margin <= 0.05 for c in declared)


def test_a_wrong_declaration_is_named(tmp_path):
    file = tmp_path / "contrasts.yaml"
    for text, message in (
        ("- {system: a, baseline: b}", "contrast 1 needs baseline, margin, measure, system"),
        ("- {system: a, baseline: a, measure: f1, margin: 0.1}", "with itself"),
        ("- {system: a, baseline: b, measure: f1, margin: -1}", "margin=-1"),
        ("- {system: a, baseline: b, measure: f1, margin: 0.1, star: true}", "contrast 1 needs"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_contrasts(file)
    with pytest.raises(FileNotFoundError, match="no declared contrasts"):
        read_contrasts(tmp_path / "none.yaml")


def test_contrasts_of_one_data_set_are_tested_there_and_nowhere_else(tmp_path):
    every, there = read_contrasts(), read_contrasts(dataset="hotpotqa_40")
    own = [c for c in there if c.dataset]
    assert {c.dataset for c in own} == {"hotpotqa_40"} and there == [*every, *own]
    assert 3 <= len(own) <= 6 and all(c.asks.endswith("?") and 0 < c.margin <= 0.05 for c in own)
    assert read_contrasts(dataset="demo_multihop") == every
    others = {s for c in every for s in (c.system, c.baseline)}
    assert others.isdisjoint({s for c in own for s in (c.system, c.baseline)}), "Holm counts one family"
    file = tmp_path / "contrasts.yaml"
    file.write_text("- {system: a, baseline: b, measure: f1, margin: 0.1, dataset: mine}", encoding="utf-8")
    assert read_contrasts(file) == [] and [c.label for c in read_contrasts(file, "mine")] == ["a − b"]


def test_a_team_is_tested_under_its_name_and_a_plan_by_rule_is_not():
    rows = [
        {"system": s, "conversation": f"q{i}", "question": f"q{i}", "f1": (i % 3) / 4 + gain * (i % 2)}
        for s, gain in (("team_full", 0.5), ("team_bare", 0.0), ("qarp by rule", 0.5), ("hybrid", 0.0))
        for i in range(12)
    ]
    table = contrast_table(pd.DataFrame(rows), read_contrasts(dataset="hotpotqa_40"))
    assert table["contrast"].tolist() == ["team_full − team_bare"]
    assert table["verdict"].tolist() == ["different"]
