"""The analyses of teams: measures, differences, one task turn by turn."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from adaptmr.data.registry import load
from adaptmr.eval.analysis.teams import (
    ANSWER_MEASURES,
    CONTROLS,
    add_team_columns,
    choose_task,
    cost_table,
    difference_table,
    different_searches,
    holding_table,
    measure_table,
    pair_differences,
    task_sentences,
    task_timeline,
    team_answers,
)

TURNS = [
    {"turn": 1, "agent": "retriever", "shown": {"role": 90, "task": 40}, "action": "Search[Salt Tower]"},
    {
        "turn": 1,
        "agent": "solver",
        "shown": {"role": 90, "task": 60, "shared": 30},
        "action": "Search[Salt Tower]",
        "observation": "Salt Tower: It was designed by Ida Moser.",
        "answer_read": "Ida Moser",
        "valid": True,
        "served": True,
    },
    {"turn": 2, "agent": "solver", "shown": {"role": 90, "insights": 20}, "action": "", "valid": False},
]


def rows_of(**f1):
    """Rows of systems with these F1, question by question."""
    return pd.DataFrame(
        [
            {"system": system, "conversation": f"q{i}", "question": f"q{i}", "f1": value}
            | {"em": float(value == 1)}
            | {"repeated_searches": 2.0 * (system == "team_private"), "turns": 3.0, "language": "en"}
            | {"prompt_tokens": 100, "completion_tokens": 10, "calls": 2, "transcript": json.dumps(TURNS)}
            | {"hops": 2.0, "hops_answered": 1.0, "facts": 1.0, "lessons": 0.0, "text": "In which town?"}
            for system, values in f1.items()
            for i, value in enumerate(values)
        ]
    )


def test_searches_are_counted_by_what_was_carried_out():
    turns = [TURNS[0], *[{**TURNS[1], "action": f"Search[{q}]"} for q in ("a tower", "Tower", "museum")]]
    assert different_searches(json.dumps(turns)) == 2 and math.isnan(different_searches(""))


def test_measures_leave_out_what_a_system_lacks_and_what_was_trained_on():
    rows = rows_of(team_bare=[0, 1, 0.5, 1], lexical=[0, 0, 0, 1]).assign(train=[True, *[False] * 7])
    rows.loc[rows["system"] == "lexical", "em"] = np.nan
    table = measure_table(rows, ANSWER_MEASURES).set_index("system")
    assert table.loc["lexical", "EM"] == "–" and table["n"].tolist() == [3, 4]
    assert table.loc["team_bare", "F1"].startswith("0.833") and "support F1" not in table


def test_what_memories_hold_and_what_a_task_costs():
    rows = add_team_columns(rows_of(team_full=[1] * 6))
    (held,) = holding_table(rows).to_dict("records")
    assert (held["hops"], held["different searches"], held["working"]) == (
        12,
        6,
        "hops, hops with an answer, facts, different searches",
    )
    assert held["answered"] == "0.50 [0.50, 0.50]"
    assert cost_table(rows)["model tokens"].tolist() == ["110 [110, 110]"]
    assert task_sentences(load("demo_multihop"))[0].startswith("14 tasks (")


def test_a_memory_is_compared_with_the_team_without_it_question_by_question():
    rows = rows_of(team_bare=[0, 0, 0, 0, 0, 0.5], team_private=[1, 1, 0.5, 0, 0.5, 1])
    found = pair_differences(rows)
    f1 = found[(found["step"] == "private memory") & (found["measure"] == "F1")].iloc[0]
    paired = np.array([1, 1, 0.5, 0, 0.5, 0.5])
    half = 2.5706 * paired.std(ddof=1) / math.sqrt(6)
    assert f1["difference"] == pytest.approx(paired.mean())
    assert f1["low"] == pytest.approx(paired.mean() - half, abs=1e-4)
    assert difference_table(found)["step"].tolist() == ["private memory"], "the others lack a team"


@pytest.mark.parametrize(
    ("full", "short"), [([1] * 6, "Yes."), ([0.0] * 5 + [0.5], "Not shown."), ([0.0] * 6, "Not shown.")]
)
def test_the_answer_at_the_top_follows_the_interval(full, short):
    rows = rows_of(team_bare=[0.0] * 5 + [0.5], team_full=full)
    answers = team_answers(pair_differences(rows), pair_differences(rows, CONTROLS))
    assert answers[0][1] == short


def test_a_task_turn_by_turn_and_without_the_datas_text():
    steps = task_timeline(json.dumps(TURNS))
    assert steps["notes"].tolist() == ["", "served from memory", "not allowed"]
    assert steps["shared memory tokens"].tolist() == [0, 30, 0] and steps["read"][1] == "Ida Moser"
    assert steps["memory across tasks tokens"].tolist() == [0, 0, 20]
    hidden = task_timeline(json.dumps(TURNS), texts=False)
    assert not {"Salt", "Ida"} & set(hidden.to_csv().replace("[", " ").split())
    assert hidden["read"][1] == "an answer"
    for damaged in ("", "{}", "[]"):
        with pytest.raises(ValueError, match="list of turns"):
            task_timeline(damaged)


def test_the_task_that_is_shown_is_that_of_the_largest_gain():
    rows = rows_of(team_bare=[0, 0, 1], team_full=[0.5, 1, 1])
    assert choose_task(rows, "team_full", "team_bare") == "q1"
    assert choose_task(rows.drop(columns="transcript"), "team_full", "team_bare") is None
