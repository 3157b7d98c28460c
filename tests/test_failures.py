"""Failure rates, the gate, headroom, their figures, and the oracle of plans."""

import math

import numpy as np
import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.analysis import failures as fa
from adaptmr.eval.analysis import gains as ce
from adaptmr.systems.oracles import OraclePlan
from adaptmr.types import QueryType, Question

FIVE = ("factual_extraction", "temporal_reasoning", "knowledge_update", "multi_hop", "abstention")


def answers(levels, n=60, conversations=6, system="unified", seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {
                "system": system,
                "conversation": f"c{i % conversations}",
                "question": f"{question_type}{i}",
                "type": question_type,
                "f1": float(rng.random() < level),
            }
            for question_type, level in levels.items()
            for i in range(n)
        ]
    )


def exact(levels, n=1000):
    """Rows whose means are exactly so."""
    i = np.arange(n)
    parts = [
        pd.DataFrame(
            {
                "conversation": np.char.add("c", (i % 4).astype(str)),
                "type": question_type,
                "f1": (i // 4 < round(level * n) // 4).astype(float),
            }
        )
        for question_type, level in levels.items()
    ]
    return pd.concat(parts, ignore_index=True).assign(system="s")


# --- failures


def test_rates_by_hand():
    frame = pd.DataFrame(
        {
            "system": ["u"] * 4,
            "conversation": ["a", "a", "b", "b"],
            "question": list("wxyz"),
            "type": ["multi_hop"] * 3 + ["abstention"],
            "f1": [0.29, 0.3, 0.31, 0.0],
        }
    )
    rates = fa.failure_rates(frame).set_index("type")["mean"].round(6).to_dict()
    assert rates == {"multi_hop": round(1 / 3, 6), "abstention": 1, "overall": 0.5}
    assert fa.failure_rates(frame, 0.31).set_index("type").loc["overall", "mean"] == 0.75
    table = fa.failure_table(frame)
    assert list(table.index) == ["u"]
    assert table[("failures: F1 below 0.3", "overall (n=4)")].iloc[0] == "0.500 – too few", (
        "two conversations"
    )


# --- the gate


@pytest.mark.parametrize(
    ("levels", "n", "verdict"),
    [
        ({"multi_hop": 0.8, "abstention": 0.4}, 200, "≥ 10 points"),
        ({"multi_hop": 0.576, "abstention": 0.5}, 12_000, "5–10 points"),
        ({"multi_hop": 0.5, "abstention": 0.508}, 12_000, "< 5 points"),
        ({"multi_hop": 0.6, "abstention": 0.5}, 400, "undecided"),
        (dict.fromkeys(FIVE, 0.5), 60, "undecided"),
    ],
)
def test_verdicts(levels, n, verdict):
    frame = exact(levels, n)
    gate = fa.decision_gate(frame, "s", resamples=400)
    means = frame.groupby("type")["f1"].mean()
    assert gate.verdict == verdict
    assert gate.gap == pytest.approx(means.max() - means.min())
    assert gate.low <= gate.gap <= gate.high
    assert fa.GATE_VERDICTS[verdict][1] in gate.sentence and gate.n == len(frame) and gate.groups == 4


def test_a_type_in_one_conversation_only():
    frame = answers({"multi_hop": 0.9, "abstention": 0.2}, n=30)
    few = pd.concat([frame, answers({"preference": 0.5}, n=2, conversations=1)])
    gate = fa.decision_gate(few, "unified", resamples=300)
    assert gate.low <= gate.gap <= gate.high and not math.isnan(gate.low + gate.high)
    assert gate.left_out == ("preference",)
    assert gate.n == 60
    assert gate.sentence.endswith("fewer than 4 conversations ask for it: preference.")
    assert fa.gate_table(few).loc[0, "left_out"] == "preference"


# --- ceilings


def rows(system, scores, question_type="multi_hop"):
    return [
        {
            "system": system,
            "conversation": f"c{i % 2}",
            "question": f"{question_type}{i}",
            "type": question_type,
            "f1": float(v),
        }
        for i, v in enumerate(scores)
    ]


def many(frame, times=3):
    """Return the same rows in `times` as many conversations."""
    parts = [
        frame.assign(conversation=frame["conversation"] + f"-{i}", question=frame["question"] + f"-{i}")
        for i in range(times)
    ]
    return pd.concat(parts, ignore_index=True)


TOY = pd.DataFrame(
    [
        *rows("u", [1, 1, 0, 0]),
        *rows("oracle_evidence", [1, 1, 1, 0]),
        *rows("u", [0, 1, 1, 1], "preference"),
        *rows("oracle_evidence", [1, 1, 0, 0], "preference"),
    ]
)


def test_headroom_by_hand():
    table = ce.measure_headroom(TOY, "u").set_index("type")
    hop, like = table.loc["multi_hop"], table.loc["preference"]
    columns = ["base", "retrieval", "reader", "retrieval_share", "reader_share"]
    assert hop[columns].round(9).tolist() == [0.5, 0.25, 0.25, 0.5, 0.5]
    shown = like[columns[:4]].round(9).tolist()
    assert shown == [0.75, -0.25, 0.5, -1.0], "less than nothing is shown as it is"
    for r in table.itertuples():
        assert r.base + r.retrieval + r.reader == pytest.approx(1)
        assert math.isnan(r.retrieval_low + r.share_low + r.reader_high)
    for r in ce.measure_headroom(many(TOY, 10), "u").itertuples():
        assert r.retrieval_low <= r.retrieval <= r.retrieval_high and r.reader_low <= r.reader
    assert "– too few" in ce.headroom_table(TOY, ["u"]).loc[0, "retrieval could close"]
    assert table.loc["overall", "n"] == 8 and len(ce.headroom_table(TOY, ["u"])) == 3


# --- the oracle of plans


@pytest.fixture(scope="module")
def frame():
    data = am.load("demo", split="en2,zh2", limit=20)
    return am.evaluate(
        ["unified", "hybrid", "adaptmr", "oracle_type", "oracle_plan", "oracle_evidence"],
        data,
        embedder="hash",
        progress=False,
    )


def test_no_plan_finds_more(frame):
    recall = frame.pivot(index="question", columns="system", values="recall_fraction").dropna()
    for other in ("unified", "hybrid", "adaptmr", "oracle_type"):
        assert (recall["oracle_plan"] >= recall[other] - 1e-9).all()
    assert recall["oracle_plan"].mean() > recall["unified"].mean()
    mine = frame[frame["system"] == "oracle_plan"]
    assert (mine[~mine["answerable"]]["hits"] == 0).any()
    assert mine["calls"].sum() == 0
    assert mine["hits"].max() <= 10


def test_ties_go_to_the_cheapest_then_to_the_first():
    from test_systems import talk

    system = OraclePlan(embedder="hash")
    system.ingest(talk())
    q = Question("q", "What is the cat called?", ["Snowy"], evidence=["D1:2"])
    best, each = system.retrieve(q, 3), {}
    for name, planner in system.planners.items():
        system.planner = planner
        each[name] = super(OraclePlan, system).retrieve(q.blind(), 3)
    hit = [e for e in each.values() if "D1:2" in e.sources]
    assert "D1:2" in best.sources and len(best.context) <= min(len(e.context) for e in hit) + 20
    assert best.trace[-1].step == "plans"
    assert best.trace[-1].reason.startswith(f"by the gold turns: {best.plan.planner} found 1 of 1")
    blank = Question("q", "What is the cat called?", ["Snowy"], type=QueryType.open_domain)
    assert system.retrieve(blank, 3).plan.planner == "hybrid", (
        "answerable, with no gold to choose by: the first"
    )
    with pytest.raises(TypeError, match="oracle_plan needs a Question"):
        system.retrieve("What?", 3)
    system.reset()
    assert system.retrieve(q, 3).hits == []


# --- the controls of the gate


def test_the_controls_must_come_out_as_they_should():
    for gaps, wrong in (
        ({"unified": 0.4, "random": 0.02, "full_context": 0.0, "oracle_evidence": 0.0}, []),
        ({"random": 0.099, "full_context": 0.049}, []),
        ({"random": 0.1}, ["random"]),
        ({"full_context": 0.05, "oracle_evidence": 0.2}, ["full_context", "oracle_evidence"]),
    ):
        gates = pd.DataFrame({"system": list(gaps), "gap": list(gaps.values())})
        assert fa.failed_controls(gates) == wrong
        said = fa.control_sentences(gates)
        assert len(said) == len(set(gaps) - {"unified"}) + bool(wrong)
        assert sum("NOT as it must be" in sentence for sentence in said) == len(wrong)
        assert ("don't count" in " ".join(said)) == bool(wrong)


# --- whose failure: evidence complete or not, by reader right or wrong with the gold evidence


def grid_frame(cases) -> pd.DataFrame:
    """Make a frame of `search` and the gold system; cases: question, type, recall, F1, F1 with gold."""
    rows = []
    for i, (question, kind, recall, f1, with_gold) in enumerate(cases):
        shared = {"conversation": f"c{i % 4}", "question": question, "type": kind}
        rows.append(shared | {"system": "search", "recall_fraction": recall, "f1": f1})
        gold = 1.0 if recall == recall else math.nan
        rows.append(shared | {"system": "oracle_evidence", "recall_fraction": gold, "f1": with_gold})
    return pd.DataFrame(rows)


CASES = [
    ("q0", "multi_hop", 0.5, 0.1, 0.9),  # only the search failed
    ("q1", "multi_hop", 0.0, 0.0, 0.8),  # the same
    ("q2", "multi_hop", 0.5, 0.2, 0.1),  # both
    ("q3", "factual_extraction", 1.0, 0.0, 0.0),  # only the reader
    ("q4", "factual_extraction", 1.0, 0.29, 0.3),  # right from 0.3 on, with gold: overload
    ("q5", "factual_extraction", 1.0, 0.3, 0.0),  # no failure
    ("q6", "abstention", math.nan, 0.0, 0.0),  # has no evidence
]


def test_each_failure_has_its_cell():
    found = fa.assign_failures(grid_frame(CASES)).set_index("question")
    whose = ["retrieval", "retrieval", "both", "reader", "overload"]
    assert dict(found["responsible"]) == {f"q{i}": name for i, name in enumerate(whose)}


def test_shares_are_of_the_failures_and_add_up():
    grid = fa.failure_grid(grid_frame(CASES))
    overall = grid[grid["type"] == "overall"].set_index("responsible")
    assert dict(overall["count"]) == {"retrieval": 2, "both": 1, "reader": 1, "overload": 1}
    assert set(overall["n"]) == {5} and overall["mean"].sum() == pytest.approx(1)
    hops = grid[grid["type"] == "multi_hop"].set_index("responsible")
    assert hops.loc["retrieval", "mean"] == pytest.approx(2 / 3) and hops.loc["reader", "count"] == 0
    assert list(dict.fromkeys(grid["responsible"])) == list(fa.RESPONSIBLE)


def test_answers_on_the_grid():
    frame = grid_frame(CASES)
    reader, whose = fa.failure_answers(frame, fa.failure_grid(frame), "search")
    assert reader[1].startswith("50 %") and "n = 6 answerable" in reader[2]
    assert whose[1] == "First of all: retrieval."
    assert whose[2].startswith("40 % retrieval, 20 % both, 20 % reader, 20 % overload; n = 5")
    without = frame[frame["system"] == "search"]
    with pytest.raises(ValueError, match="no 'oracle_evidence'"):
        fa.assign_failures(without)
