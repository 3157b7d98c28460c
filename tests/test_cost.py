"""Costs: quantiles, unknown prices, paired overheads, ratios and calls by component."""

import json
import math
import re
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from server import Server, answering, ok

from adaptmr.eval.analysis import cost as e
from adaptmr.llm.tasks import OUTCOMES, TASKS

SYSTEMS = {"unified": (1, 500, 10.0), "rules": (1, 510, 12.0), "planner": (2, 900, 50.0)}


def rows(n=40, asked=True, clock=True, talks=4, seed=0):
    rng, out = np.random.default_rng(seed), []
    for i in range(n):
        hard = rng.random()
        for name, (calls, tokens, ms) in SYSTEMS.items():
            times = {"ms_retrieve": ms + rng.random() + 5000 * (i < talks), "ms_answer": 5.0} if clock else {}
            kind = "multi_hop" if i % 2 else "temporal_reasoning"
            row = {
                "system": name,
                "conversation": f"c{i % talks}",
                "question": f"q{i}",
                "type": kind,
                "f1": hard,
            }
            row |= {"calls": calls * asked, "prompt_tokens": (tokens - 20) * asked, "context_tokens": 300 + i}
            row |= {"completion_tokens": 20 * asked, "retrieval_calls": (calls - 1) * asked}
            row |= {"retrieval_tokens": 300 * (name == "planner") * asked, "cost_usd": 0.001 * calls * asked}
            row["ways"] = ("answer:model" + " plan:model" * (calls == 2)) * asked
            out.append(row | times)
    return pd.DataFrame(out)


# --- time ---------------------------------------------------------------------------------------------------


def test_percentiles_by_hand():
    it = e.quantile_ci([4, 1, 3, 2, 5], 0.5)
    assert (it.mean, it.low, it.high, it.n) == (3, 1, 5, 5)
    it = e.quantile_ci([*range(1, 1001), math.nan], 0.95)
    assert it.mean == pytest.approx(950.05) and (it.low, it.high, it.n) == (936, 964, 1000)
    assert math.isnan(e.quantile_ci([math.nan], 0.5).mean) and e.quantile_ci([], 0.5).n == 0


def test_the_first_question_is_left_out_of_times_only():
    frame = rows()
    table = e.latency_table(frame).set_index(["system", "type"])
    assert table.loc[("unified", "overall"), "n"] == 36
    assert float(table.loc[("unified", "overall"), "ms_both_p95"].split()[0]) < 17
    assert table.loc[("planner", "overall"), "ms_retrieve_p50"].startswith("50.")
    assert table.loc[("planner", "multi_hop"), "n"] == 18
    assert (e.spending_table(frame)["n"].max(), e.accuracy_per_1000(frame)["n"].max()) == (40, 40)
    slower = e.overhead(frame, measures=e.TIME_MEASURES).set_index("system")
    assert slower.loc["planner", "difference"] == pytest.approx(40, abs=0.5)
    assert slower.loc["planner", "n"] == 36
    assert set(slower["measure"]) == {"ms_both"}  # a name that comparisons of runs pass over


# --- tokens and money ---------------------------------------------------------------------------------------


def test_an_unknown_cost_stays_unknown():
    frame = rows()
    frame.loc[frame[frame["system"] == "planner"].index[3], "cost_usd"] = None
    table = e.spending_table(frame).set_index(["system", "type"])["usd per 1000"]
    assert math.isnan(table["planner", "overall"])
    assert math.isnan(table["planner", "multi_hop"])
    assert table["planner", "temporal_reasoning"] == 2
    assert e.spending_table(frame).set_index(["system", "type"])["price known"]["planner", "overall"] == 0.975
    nothing = e.spending_table(rows().assign(cost_usd=None), by_type=False)
    assert nothing["usd per 1000"].isna().all() and nothing["price known"].eq(0).all()
    assert (
        e.spending_table(rows(asked=False), by_type=False)["usd per 1000"].eq(0).all()
    )  # no model was asked: that is known


def test_overhead_is_paired():
    frame = rows()
    table = e.overhead(frame).set_index(["system", "measure"])
    assert table.loc[("planner", "tokens"), "difference"] == 400
    assert table.loc[("planner", "tokens"), ["low", "high", "share_low", "share_high"]].isna().all(), (
        "the same on every question: nothing varies"
    )
    assert not {"p", "p_holm", "verdict"} & set(table), "no table of costs makes a test"
    uneven = frame.assign(
        prompt_tokens=frame["prompt_tokens"] + (frame["system"] == "planner") * np.arange(len(frame)) % 5
    )
    shown = e.overhead(uneven).set_index(["system", "measure"]).loc[("planner", "tokens")]
    assert 0 < shown["low"] < shown["difference"] < shown["high"]
    assert table.loc[("planner", "tokens"), "share"] == pytest.approx(0.8)
    assert table.loc[("planner", "calls"), "share"] == pytest.approx(1)
    assert math.isnan(table.loc[("rules", "calls"), "low"]) and table["n"].eq(40).all()
    less = e.overhead(uneven, "planner", ["unified"]).set_index("measure")
    assert less.loc["tokens", "difference"] == -shown["difference"] and less.loc["tokens", "high"] < 0
    same = frame.sample(frac=1, random_state=2)
    pd.testing.assert_frame_equal(
        e.overhead(same).sort_values(["system", "measure"], ignore_index=True),
        e.overhead(frame).sort_values(["system", "measure"], ignore_index=True),
    )
    assert len(e.overhead(frame, by_type=True)) == 3 * len(e.overhead(frame))
    nothing = e.overhead(rows(asked=False)).set_index(["system", "measure"])
    assert nothing.loc[("rules", "calls"), "difference"] == 0
    assert math.isnan(nothing.loc[("rules", "calls"), "share"])
    with pytest.raises(ValueError, match="same questions"):
        e.overhead(frame.iloc[1:])


# --- parts --------------------------------------------------------------------------------------------------


def test_every_task_and_every_way_has_its_place():
    for name in ("planning.routed", "planning.qarp", "planning.classifiers", "reader", "retrieval.rounds"):
        import_module(f"adaptmr.{name}")
    placed = [t for tasks in e.COMPONENT_TASKS.values() for t in tasks]
    retrieval = {
        name
        for name, task in TASKS.items()
        if task.rule.__module__.startswith(("adaptmr.planning", "adaptmr.retrieval", "adaptmr.reader"))
    }
    assert len(placed) == len(set(placed))
    assert len(retrieval) > 10
    assert retrieval <= set(placed), retrieval - set(placed)
    assert set(e.CALLS_PER_OUTCOME) == set(OUTCOMES) - {"offline"}


def test_calls_are_counted_as_they_were_made():
    frame = rows(4)
    frame.loc[frame["system"] == "planner", "ways"] = [
        "answer:model plan:retried",
        "answer:model×2 confidence:repaired follow_up:fallback",
        "answer:model",
        "",
    ]
    frame.loc[frame["system"] == "planner", "calls"] = [3, 5, 1, 2]
    table = e.calls_by_component(frame)
    planner = table[table["system"] == "planner"].set_index("part")
    assert planner["all calls"].to_dict() == {"plan": 2, "rounds": 3, "answer": 4, "other": 2}
    assert planner["all calls"].sum() == 11
    assert planner.loc["rounds", ["tasks", "calls", "share of questions"]].tolist() == [
        "confidence, follow_up",
        0.75,
        0.25,
    ]
    assert e.calls_by_component(rows(asked=False)).empty
    assert list(e.calls_by_component(rows(asked=False)).columns)[:2] == ["system", "part"]
    strange = frame.assign(ways="somebody-else:model", calls=1)
    assert set(e.calls_by_component(strange)["part"]) == {"other"}
    assert set(e.calls_by_component(strange)["tasks"]) == {"somebody-else"}


def test_part_costs():
    pairs = {"the plan": ("planner", "rules"), "nobody": ("planner", "missing")}
    costs = e.component_costs(rows(), pairs)
    assert costs.set_index("measure")["difference"].to_dict() == {"tokens": 390, "calls": 1, "F1": 0}
    assert set(costs["part"]) == {"the plan"}
    times = e.component_costs(rows(), pairs, measures=e.TIME_MEASURES)
    assert times["measure"].tolist() == ["ms_both"] and e.component_costs(rows(), {}).empty
    shown = e.wide_table("part", costs)
    assert shown.loc["the plan", "tokens"] == "+390.0 – too few"
    assert e.wide_table("system", e.overhead(rows())).loc["planner", "tokens"].endswith("– too few (+80 %)")
    assert (
        e.wide_table("system", e.overhead(rows(), measures=e.TIME_MEASURES))
        .loc["planner", "ms_both"]
        .endswith(" %)")
    )


@pytest.mark.slow
def test_calls_by_part_add_up_to_what_a_server_saw():
    """Every call that a local server received is in the table under its component, and none under `other`."""
    import adaptmr as am

    filling = {"string": "words", "number": 0.2, "integer": 1, "boolean": False, "array": []}

    def fill(schema):
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "object":
            return {k: fill(v) for k, v in schema.get("properties", {}).items()}
        if schema.get("type") == "array" and schema.get("minItems"):
            return [fill(schema["items"])] * schema["minItems"]
        kind = schema.get("type", "string")
        return filling.get(kind if isinstance(kind, str) else kind[0])

    seen = []

    def reply(body):
        seen.append(body)
        return ok(
            "that is not JSON at all"
            if len(seen) % 11 in (4, 7, 8)
            else json.dumps(fill(body["response_format"]["json_schema"]["schema"]))
        )

    data = am.load("demo", split="en1", limit=3)
    with Server(answering(reply)) as server:
        llm = am.LLM("m", base_url=server.url, sleep=lambda s: None, timeout=10, concurrency=1)
        frame = am.evaluate(
            ["hybrid", "qarp", "multi_round", "adaptive_rag", "rounds + expansion"],
            data,
            llm,
            embedder="hash",
            progress=False,
        )
    table = e.calls_by_component(frame)
    assert table["all calls"].sum() == frame["calls"].sum() == len(seen) > 30
    assert "other" not in set(table["part"])
    assert {"plan", "rounds", "expansion", "answer", "classifier"} <= set(table["part"])
    assert {"fallback", "retried", "model"} <= set(re.findall(r":(\w+)", " ".join(frame["ways"])))
    assert (
        e.spending_table(frame, by_type=False)["usd per 1000"].isna().all()
    )  # the price of "m" is not known
    places = e.tokens_by_stage(frame).set_index("system")
    assert places.loc["qarp", "retrieval"] > 0 and places.loc["hybrid", "retrieval"] == 0


# --- promised costs


def promised(system, measure, difference, share, question_type="overall"):
    about = {"system": system, "type": question_type, "measure": measure, "n": 40}
    about |= {"difference": difference, "low": difference - 10, "high": difference + 10}
    return about | {"share": share, "share_low": share - 0.05, "share_high": share + 0.05}


def test_each_promise_reads_its_own_measure_and_type():
    overheads = pd.DataFrame(
        [
            promised("x", "tokens", 95, 0.1),
            promised("x", "ms_both", 200, 0.26),
            promised("x", "ms_both", 900, 2.5, "multi_hop"),
            promised("y", "tokens", 1000, 9),
        ]
    )
    table = e.promise_table(overheads, ["x"])
    assert table["verdict"].tolist() == ["open", "kept", "broken", "open", "broken"]
    assert table["label"].tolist() == ["overall"] * 4 + ["multi-hop"] and set(table["system"]) == {"x"}
    assert table.iloc[1][["found", "low", "high"]].tolist() == pytest.approx([0.1, 0.05, 0.15])
    assert e.promise_table(overheads, ["unasked"]).empty


def test_what_the_report_says():
    table = e.promise_table(pd.DataFrame([promised("x", "tokens", 400, 0.8)]), ["x"])
    tokens = "x over the baseline: +400.0 [+390.0, +410.0], promise broken; n = 40"
    share = "x over the baseline: +80 % [+75, +85], promise broken; n = 40"
    assert e.promise_answers(table, "x") == [
        ("At most 100 tokens more a question?", "No.", tokens),
        ("Less than 30 % more tokens?", "No.", share),
    ]
    whole = {"system": "x", "type": "overall"}
    waited = pd.DataFrame([whole | {"ms_both_p50": "4.2 [4.0, 4.5]"}])
    spent = pd.DataFrame([whole | {"tokens": 51.2, "low": 40.0, "high": 60.0}])
    assert e.spending_numbers(waited, spent, ("x", "y")) == [
        ("ms a question of x, median", "4.2 [4.0, 4.5]"),
        ("tokens a question of x, mean", "51 [40, 60]"),
    ]
