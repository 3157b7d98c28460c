"""What a run will cost: rates from recorded runs made by hand, and no call to any model."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import server

import adaptmr as am
from adaptmr.eval.analysis.run_cost import estimate, recorded_costs
from adaptmr.eval.runner.run import Journal
from adaptmr.types import Dataset, Question

PRICES = {"m": {"prompt": 2.0, "completion": 8.0}}
DATA = Dataset("toy", [], [Question(f"q{i}", f"Where {i}?", conversation="c") for i in range(10)])


def recorded(outputs, run, rows, model="m", k=5, dataset="toy"):
    """Write a finished run; `rows` maps a system to its calls, prompt and completion tokens, and seconds."""
    folder = outputs / "exp3" / run
    folder.mkdir(parents=True)
    about = {"models": [model], "params": {"k": k}, "data": {"name": dataset}}
    (folder / "manifest.json").write_text(json.dumps(about))
    counts = [
        {"system": s, "conversation": "c", "question": f"q{i}", "calls": c, "prompt_tokens": p}
        | {"completion_tokens": r, "context_tokens": 50, "ms_retrieve": 0.0, "ms_answer": 1000.0 * t}
        for s, (c, p, r, t) in rows.items()
        for i in range(4)
    ]
    pd.DataFrame(counts).drop(columns=["ms_retrieve", "ms_answer"]).to_parquet(folder / "results.parquet")
    keys = ["system", "conversation", "question", "ms_retrieve", "ms_answer"]
    pd.DataFrame(counts)[keys].to_parquet(folder / "timings.parquet")


def model(**more):
    return am.LLM("m", base_url="http://127.0.0.1:9/v1", prices=PRICES, concurrency=2, **more)


def test_totals_by_hand_and_no_call(tmp_path):
    recorded(tmp_path, "one", {"unified": (1, 100, 10, 6.0), "qarp": (3, 400, 50, 30.0)})
    with server.Server(server.status(500)) as s:
        llm = am.LLM("m", base_url=s.url, prices=PRICES, concurrency=2)
        told = estimate(["unified", "qarp"], DATA, llm, 5, outputs=tmp_path)
        assert s.requests == []
    assert [told.total(m)[0] for m in ("calls", "prompt_tokens", "completion_tokens")] == [40, 5000, 600]
    assert told.cost()[0] == pytest.approx((5000 * 2 + 600 * 8) / 1e6)
    assert told.minutes()[0] == pytest.approx(10 * 36 / 2 / 60)
    assert "unified, qarp: recorded in exp3/one" in str(told)
    assert estimate(["unified"], DATA, llm, outputs=tmp_path, leave_out={"exp3/one"}).rows[0][2] == "unknown"


def test_answers_in_the_journal_cost_nothing(tmp_path):
    recorded(tmp_path, "one", {"unified": (1, 100, 10, 6.0)})
    journal = tmp_path / "j.jsonl"
    log = Journal(journal, {})
    for i in range(4):
        log.put(f"unified/c/q{i}", {})
    log.close()
    told = estimate(["unified"], DATA, model(), 5, journal=journal, outputs=tmp_path)
    assert told.questions == {"unified": 6} and told.total("calls").tolist() == [6, 6, 6]
    assert "4 answers are in the journal, and free" in str(told)


def test_unknown_prices_and_systems_without_a_record_are_named(tmp_path):
    recorded(tmp_path, "one", {"unified": (1, 100, 10, 6.0)}, model="other", dataset="elsewhere")
    told = estimate(["hybrid"], DATA, am.LLM("my-own", base_url="http://127.0.0.1:9/v1"), 5, outputs=tmp_path)
    assert told.rows[-1][-2:] == ("unknown", "unknown")
    assert "assumed, as other systems in exp3/one" in str(told)
    assert told.total("prompt_tokens")[2] == pytest.approx(1000 * 1.25)
    with pytest.raises(ValueError, match="nonsense"):
        estimate(["nonsense"], DATA, outputs=tmp_path)


def test_offline_nothing_is_paid_and_workers_divide_the_minutes(tmp_path):
    recorded(tmp_path, "one", {"unified": (0, 0, 0, 6.0)}, model="offline")
    told = {n: estimate(["unified"], DATA, workers=n, outputs=tmp_path) for n in (1, 2)}
    assert told[1].total("calls")[2] == 0 and told[1].cost()[2] == 0
    assert {n: t.minutes()[0] for n, t in told.items()} == {1: 1.0, 2: 0.5}


def test_the_committed_runs_can_be_read():
    assert recorded_costs()


def test_what_is_not_included_is_named_with_what_storing_cost(tmp_path):
    recorded(tmp_path, "one", {"unified": (1, 100, 10, 6.0), "layered": (1, 100, 10, 6.0)})
    manifest = tmp_path / "exp3" / "one" / "manifest.json"
    writing = {"conversations": 2, "prompt_tokens": 300, "completion_tokens": 100}
    rows = [{"system": "layered", "calls": 6, **writing}, {"system": "unified", **writing, "calls": 0}]
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "writing": rows}))
    data = am.load("demo", split="en1,zh1")
    told = str(estimate(["unified", "layered"], data, model(), 5, outputs=tmp_path))
    said = "storing 2 conversations with a model, by layered: about 6 calls and 400 tokens"
    assert f"not included: {said}" in told
    assert "by unified" not in told and "the calls of a judge" in told
