"""Whose failure: evidence complete or not, by reader right or wrong with the gold evidence."""

from __future__ import annotations

import pandas as pd
import pytest

from adaptmr.eval.analysis.failures import (
    RESPONSIBLE,
    assign_failures,
    failure_answers,
    failure_grid,
    grid_sentence,
    reader_sentence,
)

NAN = float("nan")


def _frame(cases) -> pd.DataFrame:
    """Make a frame of `search` and the gold system; cases: question, type, recall, F1, F1 with gold."""
    rows = []
    for i, (question, kind, recall, f1, with_gold) in enumerate(cases):
        shared = {"conversation": f"c{i % 4}", "question": question, "type": kind}
        rows.append(shared | {"system": "search", "recall_fraction": recall, "f1": f1})
        gold = 1.0 if recall == recall else NAN
        rows.append(shared | {"system": "oracle_evidence", "recall_fraction": gold, "f1": with_gold})
    return pd.DataFrame(rows)


CASES = [
    ("q0", "multi_hop", 0.5, 0.1, 0.9),  # only the search failed
    ("q1", "multi_hop", 0.0, 0.0, 0.8),  # the same
    ("q2", "multi_hop", 0.5, 0.2, 0.1),  # both
    ("q3", "factual_extraction", 1.0, 0.0, 0.0),  # only the reader
    ("q4", "factual_extraction", 1.0, 0.29, 0.3),  # right from 0.3 on, with gold: overload
    ("q5", "factual_extraction", 1.0, 0.3, 0.0),  # no failure
    ("q6", "abstention", NAN, 0.0, 0.0),  # has no evidence
]


def test_each_failure_has_its_cell():
    found = assign_failures(_frame(CASES)).set_index("question")
    assert dict(found["responsible"]) == {
        "q0": "retrieval",
        "q1": "retrieval",
        "q2": "both",
        "q3": "reader",
        "q4": "overload",
    }


def test_shares_are_of_the_failures_and_add_up():
    grid = failure_grid(_frame(CASES))
    overall = grid[grid["type"] == "overall"].set_index("responsible")
    assert dict(overall["count"]) == {"retrieval": 2, "both": 1, "reader": 1, "overload": 1}
    assert set(overall["n"]) == {5} and overall["mean"].sum() == pytest.approx(1)
    hops = grid[grid["type"] == "multi_hop"].set_index("responsible")
    assert hops.loc["retrieval", "mean"] == pytest.approx(2 / 3) and hops.loc["reader", "count"] == 0
    assert list(dict.fromkeys(grid["responsible"])) == list(RESPONSIBLE)


def test_another_threshold_moves_the_line():
    found = assign_failures(_frame(CASES), threshold=0.9).set_index("question")
    assert found.loc["q1", "responsible"] == "both" and found.loc["q5", "responsible"] == "reader"


def test_sentences():
    frame = _frame(CASES)
    assert grid_sentence(failure_grid(frame), "search") == (
        "search: of 5 failures on answerable questions, "
        "40 % retrieval, 20 % both, 20 % reader, 20 % overload."
    )
    assert reader_sentence(frame).startswith("With the gold evidence in hand, the reader fails 50 %")
    assert "(n = 6)" in reader_sentence(frame)
    without = frame[frame["system"] == "search"]
    assert "is not in this run" in reader_sentence(without)
    with pytest.raises(ValueError, match="no 'oracle_evidence'"):
        assign_failures(without)


def test_a_system_without_failures():
    grid = failure_grid(_frame([("q0", "multi_hop", 1.0, 1.0, 1.0)]))
    assert grid.empty and grid_sentence(grid, "search") == "search has no failure on an answerable question."


def test_the_answers_of_the_box_by_hand():
    frame = _frame(CASES)
    answers = failure_answers(frame, failure_grid(frame), "search")
    asked = [short for _, short, _ in answers]
    assert asked == ["50 %.", "First of all: retrieval."]
    assert "40 % retrieval" in answers[1][2] and "n = 5" in answers[1][2]
    without_gold = frame[frame["system"] == "search"]
    assert failure_answers(without_gold, failure_grid(frame).iloc[:0], "search") == []
