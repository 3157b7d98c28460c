"""Promised costs: verdicts by intervals and limits, and what a report says of them."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from adaptmr.eval.analysis.cost import (
    VERDICTS,
    Promise,
    promise_answers,
    promise_table,
    spending_numbers,
)


def row(system: str, measure: str, difference: float, share: float, question_type: str = "overall") -> dict:
    return {
        "system": system,
        "type": question_type,
        "measure": measure,
        "difference": difference,
        "low": difference - 10,
        "high": difference + 10,
        "share": share,
        "share_low": share - 0.05,
        "share_high": share + 0.05,
        "n": 40,
    }


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0, 99.9, "kept"),
        (0, 100, "open"),
        (99, 101, "open"),
        (100, 120, "broken"),
        (-9, -1, "kept"),
        (math.nan, math.nan, "too few"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(low, high, verdict):
    assert VERDICTS.at_most(low, high, 100) == verdict


def test_each_promise_reads_its_own_measure_and_type():
    overheads = pd.DataFrame(
        [
            row("x", "tokens", 95, 0.1),
            row("x", "ms_both", 200, 0.26),
            row("x", "ms_both", 900, 2.5, "multi_hop"),
            row("y", "tokens", 1000, 9),
        ]
    )
    table = promise_table(overheads, ["x"])
    assert table["verdict"].tolist() == ["open", "kept", "broken", "open", "broken"]
    assert table["label"].tolist() == ["overall"] * 4 + ["multi-hop"] and set(table["system"]) == {"x"}
    assert table.iloc[1][["found", "low", "high"]].tolist() == pytest.approx([0.1, 0.05, 0.15])
    assert promise_table(overheads, ["unasked"]).empty
    mine = [Promise("Cheaper?", "tokens", "difference", 0)]
    assert promise_table(overheads, ["y"], mine)["verdict"].tolist() == ["broken"]


def test_what_the_report_says():
    table = promise_table(pd.DataFrame([row("x", "tokens", 400, 0.8)]), ["x"])
    assert promise_answers(table, "x") == [
        (
            "At most 100 tokens more a question?",
            "No.",
            "x over the baseline: +400.0 [+390.0, +410.0], promise broken; n = 40",
        ),
        (
            "Less than 30 % more tokens?",
            "No.",
            "x over the baseline: +80 % [+75, +85], promise broken; n = 40",
        ),
    ]
    whole = {"system": "x", "type": "overall"}
    waited = pd.DataFrame([whole | {"ms_both_p50": "4.2 [4.0, 4.5]"}])
    spent = pd.DataFrame([whole | {"tokens": 51.2, "low": 40.0, "high": 60.0}])
    assert spending_numbers(waited, spent, ("x", "y")) == [
        ("ms a question of x, median", "4.2 [4.0, 4.5]"),
        ("tokens a question of x, mean", "51 [40, 60]"),
    ]
