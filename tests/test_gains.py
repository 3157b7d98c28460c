"""What strategies are worth: the matrix, the combination held out, the rule of 10 and 5 points."""

from __future__ import annotations

import pandas as pd
import pytest

from adaptmr.eval.analysis import gains as sv

TIME, NEW = "temporal_reasoning", "knowledge_update"


def rows(system, scores, question_type):
    """Two questions of a type on each conversation, in order."""
    return [
        {"system": system, "type": question_type, "conversation": f"c{i // 2}"}
        | {"question": f"{question_type}{i}", "f1": float(score)}
        for i, score in enumerate(scores)
    ]


TOY = pd.DataFrame(
    [
        *rows("a", [1, 1, 0, 0, 0, 0], TIME),
        *rows("b", [0, 0, 1, 0, 1, 0], TIME),
        *rows("a", [1, 0, 1, 0, 1, 0], NEW),
        *rows("b", [1, 0, 1, 0, 1, 0], NEW),
    ]
)


def test_the_best_of_each_type_is_marked_and_ties_are_not_decided():
    matrix = sv.strategy_matrix(TOY, ["b", "a"])
    assert list(dict.fromkeys(matrix["system"])) == ["b", "a"], "in the order that was asked for"
    means = {(r.system, r.type): (r.mean, r.best) for r in matrix.itertuples()}
    assert means["a", TIME] == (pytest.approx(1 / 3), False) == means["b", TIME], "equal: neither is best"
    worse = TOY.assign(f1=TOY["f1"].where(TOY["system"].eq("b") | TOY["type"].eq(NEW), 0.0))
    best = {(r.system, r.label): r.best for r in sv.strategy_matrix(worse, ["a", "b"]).itertuples()}
    assert [cell for cell, is_best in best.items() if is_best] == [("b", "temporal"), ("b", "overall")]
    table = sv.strategy_matrix_table(sv.strategy_matrix(worse, ["a", "b"]))
    assert table.loc["b", "temporal (n=6)"].endswith(" best")
    assert not table.loc["a", "temporal (n=6)"].endswith(" best")


def test_the_best_strategy_is_chosen_on_other_conversations():
    # time: a wins c0 by 2:0, b wins c1 and c2 by 1:0 each; without c0 b is better, without c1 or c2 a is
    held_out = sv.combine_best(TOY, ["a", "b"])
    of_time = held_out[held_out["type"] == TIME]
    assert of_time["f1"].tolist() == [0, 0, 0, 0, 0, 0], "on every conversation the other one is chosen"
    assert set(held_out["system"]) == {sv.COMBINED} and len(held_out) == 12
    on_all = sv.combine_best(TOY, ["a", "b"], held_out=False)
    assert on_all[on_all["type"] == TIME]["f1"].tolist() == [1, 1, 0, 0, 0, 0], "equal means: the first"
    with pytest.raises(ValueError, match="one conversation can't be held out"):
        sv.combine_best(TOY[TOY["conversation"] == "c0"], ["a", "b"])


def test_the_gap_by_hand():
    frame = pd.concat([TOY, TOY[TOY["system"] == "a"].assign(system="oracle", f1=1.0)])
    gap = sv.oracle_gap(frame, "oracle", "a").set_index("label")
    assert gap["gap"].round(9).tolist() == [round(4 / 6, 9), 0.5, round(7 / 12, 9)]
    assert gap["n"].tolist() == [6, 6, 12] and set(gap["verdict"]) == {"worth it"}
    with pytest.raises(ValueError, match="no rows of 'nobody'"):
        sv.oracle_gap(frame, "nobody", "a")
    with pytest.raises(ValueError, match="not asked the same questions"):
        sv.oracle_gap(frame[:-1], "oracle", "a")


def test_controls_are_compared_one_by_one_with_one_correction():
    frame = pd.concat([TOY, TOY.assign(system=TOY["system"] + "2")])
    compared = sv.compare_with_controls(frame, "a", ["b", "b2", "a"])
    assert list(dict.fromkeys(compared["system"])) == ["a less b", "a less b2"], "not with itself"
    overall = compared[compared["type"] == "overall"]
    assert overall["difference"].tolist() == [0, 0] and overall["n"].tolist() == [12, 12]


def test_a_part_acts_where_the_evidence_or_the_answer_is_another():
    full = TOY[TOY["system"] == "a"].assign(retrieved="m1 m2", context_tokens=9, prediction="yes")
    other = full.assign(system="other").reset_index(drop=True)
    other.loc[0, "retrieved"] = "m2 m1"
    other.loc[1, "context_tokens"] = 8
    other.loc[[1, 6], "prediction"] = "no"
    frame = pd.concat([full, full.assign(system="same"), other.iloc[::-1]])
    same, acting = sv.acting_table(frame, "a", ["same", "other"]).to_dict("records")
    assert (same["evidence"], same["answer"], same["share"], same["most"]) == (0, 0, 0, "–")
    assert (acting["evidence"], acting["answer"], acting["n"]) == (2, 2, 12)
    assert acting["share"] == pytest.approx(3 / 12) and acting["most"] == "temporal"
