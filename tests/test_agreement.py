"""Cohen's κ: worked examples, agreement with scikit-learn, properties, and undefined cases."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.stats.agreement import cohen_kappa, confusion_matrix

FEW_RESAMPLES = 200
PAIRS = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=1, max_size=30)


def annotators(table):
    """The labels of two annotators that give this table of counts."""
    both = [(a, b) for (a, b), n in table.items() for _ in range(n)]
    return [a for a, _ in both], [b for _, b in both]


def test_a_worked_example():
    a, b = annotators({("yes", "yes"): 20, ("yes", "no"): 5, ("no", "yes"): 10, ("no", "no"): 15})
    it = cohen_kappa(a, b)
    assert (it.kappa, it.observed, it.expected, it.n) == (
        0.4,
        0.7,
        0.5,
        50,
    ) and 0.1 < it.low < 0.4 < it.high < 0.7
    assert "κ = 0.40" in str(it) and "n = 50" in str(it)


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_kappa_and_confusion_agree_with_sklearn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    a, b = map(list, zip(*pairs))
    ours = cohen_kappa(a, b, "xyz", resamples=FEW_RESAMPLES)
    if len({*a, *b}) == 1:
        assert math.isnan(ours.kappa)
    else:
        assert ours.kappa == pytest.approx(metrics.cohen_kappa_score(a, b), abs=1e-8)
    assert ours.low <= ours.kappa <= ours.high or (
        math.isnan(ours.low) and math.isnan(ours.high) and (len(pairs) < 4 or math.isnan(ours.kappa))
    )
    assert (
        confusion_matrix(a, b, "xyz").to_numpy().tolist()
        == metrics.confusion_matrix(a, b, labels=list("xyz")).tolist()
    )


def test_full_opposite_and_undefined_agreement():
    a, b = annotators({("x", "y"): 10, ("y", "x"): 10})
    assert (
        cohen_kappa(a, a).kappa == 1
        and cohen_kappa(a, b).kappa == -1
        and cohen_kappa(a, a).low == cohen_kappa(a, a).high == 1
    )
    for it in (cohen_kappa([], []), cohen_kappa(["x"] * 4, ["x"] * 4)):
        assert math.isnan(it.kappa) and math.isnan(it.low) and math.isnan(it.high)
    assert cohen_kappa(["x"] * 4, ["x"] * 4).observed == 1 and cohen_kappa([], []).n == 0


def test_whole_conversations_are_resampled():
    a, b = ["x", "y"] * 20 + ["x", "y"] * 20, ["x", "y"] * 20 + ["y", "x"] * 20
    four = ["good"] * 20 + ["fine"] * 20 + ["bad"] * 20 + ["worse"] * 20
    wide, narrow = cohen_kappa(a, b, groups=four), cohen_kappa(a, b)
    assert wide.kappa == narrow.kappa == 0 and narrow.high < 0.5
    assert wide.low < -0.99 and wide.high > 0.99, (
        "the good conversations may be sampled four times, and the bad ones not at all"
    )


@pytest.mark.parametrize("groups", [["c"] * 80, ["a", "b"] * 40, ["a", "b", "c", "a"] * 20])
def test_too_few_conversations_have_no_interval(groups):
    a, b = ["x", "y"] * 40, ["x", "y", "y", "y"] * 20
    it = cohen_kappa(a, b, groups=groups)
    assert it.kappa == cohen_kappa(a, b).kappa > 0 and math.isnan(it.low) and math.isnan(it.high)
    assert "– too few" in str(it) and "[" not in str(it)
    assert math.isnan(cohen_kappa(["x", "y", "x"], ["x", "y", "y"]).low), "three items without conversations"
