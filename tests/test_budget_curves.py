"""Coverage curves: what is counted, for which systems, and the figure."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.analysis.budget_curves import (
    BUDGETS,
    coverage_curves,
    coverage_figure,
    hits_at_budgets,
    measure_coverage,
)
from adaptmr.llm.spending import count_tokens
from adaptmr.retrieval.evidence import render_context
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, Question, Usage

LINES = [
    "I adopted a puppy.",
    "The weather was " + "very " * 30 + "bad.",
    "He is called Biscuit.",
    "I like tea.",
]


def tiny(evidence=("D0", "D2"), more=()):
    turns = [
        Memory(f"m{i}", text, "Maya", "2023-05-08", session="s1", step=i, source=f"D{i}")
        for i, text in enumerate(LINES)
    ]
    questions = [
        Question("q1", "What is the puppy called?", ["Biscuit"], evidence=list(evidence), conversation="c1"),
        *more,
    ]
    return Dataset("tiny", [Conversation("c1", ["Maya"], turns)], questions)


class Listed:
    """Ranks the turns in their own order, with falling scores; `given` keeps what it was asked."""

    name, oracle, whole = "listed", False, False

    def __init__(self):
        self.given = []

    def reset(self):
        self.turns = []

    def ingest(self, conversation):
        self.turns = list(conversation.turns)
        return Usage()

    def retrieve(self, question, k=10):
        self.given.append((question, k))
        hits = [Hit(m, -float(i)) for i, m in enumerate(self.turns)]
        return Evidence(hits if self.whole else hits[:k])


# --- measured by hand


def test_rows_by_hand():
    # "[2023-05-08] Maya: I adopted a puppy." and its like: a fourth of their letters, begun
    def cost(*which):
        return count_tokens(
            render_context([Hit(Memory("x", LINES[i], "Maya", "2023-05-08"), 0) for i in which])
        )

    a, two, long = cost(0), cost(0, 2), cost(1)
    assert a < two < long
    frame = measure_coverage([Listed()], tiny(), budgets=(5, a, two, 500), embedder="hash")
    assert frame["recall"].tolist() == [0, 0.5, 1, 1]
    assert frame["kept"].tolist() == [0, 1, 2, 4]
    assert frame["tokens"].tolist() == [0, a, two, cost(0, 1, 2, 3)]
    assert set(frame["type"]) == {"factual_extraction"} and frame["budget"].dtype == float


def test_a_system_without_a_ranking_is_a_point():
    system = Listed()
    system.whole = True
    frame = measure_coverage([system], tiny(), budgets=(5, 500), embedder="hash")
    assert len(frame) == 1
    assert frame["budget"].isna().all()
    assert frame["recall"].item() == 1
    assert frame["kept"].item() == 4


def test_only_questions_with_gold_turns_count():
    more = [
        Question("q2", "Who won?", ["-"], evidence=["D1"], answerable=False, conversation="c1"),
        Question("q3", "Tea?", ["yes"], conversation="c1"),
    ]
    assert set(measure_coverage([Listed()], tiny(more=more), budgets=(50,), embedder="hash")["question"]) == {
        "q1"
    }
    with pytest.raises(ValueError, match="no question has gold turns"):
        measure_coverage([Listed()], tiny(evidence=()), budgets=(50,), embedder="hash")


def test_a_list_in_order_of_time_is_ranked_again():
    hits = [
        Hit(Memory(f"m{i}", f"Turn {i}.", "Maya", "2023-05-08"), score)
        for i, score in enumerate((0.1, 0.9, 0.5))
    ]
    one = count_tokens(render_context(hits[:1]))
    by_time = Evidence(hits, plan=RetrievalPlan(temporal_order=True))
    assert [[h.memory.id for h in kept] for kept in hits_at_budgets(by_time, (one, 1000))] == [
        ["m1"],
        ["m1", "m2", "m0"],
    ]
    in_turns = replace(by_time, plan=RetrievalPlan())
    assert [[h.memory.id for h in kept] for kept in hits_at_budgets(in_turns, (one, 1000))] == [
        ["m0"],
        ["m0", "m1", "m2"],
    ], "taking turns between queries is a ranking"
    assert list(hits_at_budgets(Evidence([]), (50, 100))) == [[], []]


# --- the real systems


@pytest.fixture(scope="module")
def measured():
    return measure_coverage(
        ["unified", "hybrid", "random", "full_context", "oracle_evidence"],
        am.load("demo", split="en1,zh1"),
        embedder="hash",
    )


def test_no_budget_is_exceeded_and_everyone_is_asked_the_same(measured):
    ranked = measured[measured["budget"].notna()]
    assert (ranked["tokens"] <= ranked["budget"]).all() and measured["recall"].between(0, 1).all()
    asked = measured.groupby("system", sort=False)["question"].agg(frozenset)
    assert asked.nunique() == 1
    assert list(asked.index) == ["unified", "hybrid", "random", "full_context", "oracle_evidence"]
    assert ranked.groupby(["system", "conversation", "question"]).size().eq(len(BUDGETS)).all()
    assert set(measured.loc[measured["budget"].isna(), "system"]) == {"full_context", "oracle_evidence"}
    assert measured.loc[measured["budget"].isna(), "recall"].eq(1).all()


# --- curves and the figure


def frame_of(**columns):
    frame = {"system": ["a"] * 4, "conversation": ["c1", "c1", "c2", "c2"], "budget": [50.0] * 4}
    return pd.DataFrame(frame | {"tokens": [40, 50, 30, 40], "recall": [0.0, 1.0, 0.5, 0.5]} | columns)


def test_curves_by_hand():
    point = frame_of(system=["all"] * 4, budget=[np.nan] * 4, recall=[1.0] * 4)
    curves = coverage_curves(pd.concat([frame_of(), point]))
    assert curves[["system", "tokens", "mean", "n", "groups"]].to_numpy().tolist() == [
        ["a", 40.0, 0.5, 4, 2],
        ["all", 40.0, 1.0, 4, 2],
    ]
    assert curves["budget"].isna().tolist() == [False, True]
    assert curves[["low", "high"]].isna().all(axis=None)
    assert set(curves["level"]) == {"too few"}
    four = coverage_curves(pd.concat([frame_of(), point]).assign(conversation=list("abcd") * 2))
    assert four["low"][0] <= 0.5 <= four["high"][0] and four["low"][1] == 1


def test_the_figure_shows_every_system_apart(measured):
    ax = coverage_figure(coverage_curves(measured)).axes[0]
    assert ax.get_xscale() == "log"
    drawn = [line for line in ax.lines if len(line.get_xdata()) == len(BUDGETS)]
    assert len(drawn) == 3 and len(ax.collections) >= 3, "a line and a band for each ranking"
    assert len([line for line in ax.lines if len(line.get_xdata()) == 1]) == 2, "a point for the others"
