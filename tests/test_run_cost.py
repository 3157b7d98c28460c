"""What a run will cost: rates from recorded runs made by hand, and no call to any model."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import server

import adaptmr as am
from adaptmr.eval.analysis.run_cost import estimate, recorded_costs
from adaptmr.eval.runner.run import Journal
from adaptmr.types import Conversation, Dataset, Question

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
    assert [told.total(m).value for m in ("calls", "prompt_tokens", "completion_tokens")] == [40, 5000, 600]
    assert told.cost().value == pytest.approx((5000 * 2 + 600 * 8) / 1e6)
    assert told.minutes().value == pytest.approx(10 * 36 / 2 / 60)
    assert told.systems[0].origin == "recorded in exp3/one" and "recorded in exp3/one" in str(told)
    assert estimate(["unified"], DATA, llm, outputs=tmp_path, leave_out={"exp3/one"}).rows[0][2] == "unknown"


def test_what_another_system_sends_too_is_paid_once_with_a_cache(tmp_path):
    recorded(tmp_path, "one", {"hybrid": (1, 100, 10, 6.0), "gated": (1, 100, 10, 6.0)})
    both = ["hybrid", "gated"]
    assert estimate(both, DATA, model(), 5, outputs=tmp_path).total("calls").value == 20
    told = estimate(both, DATA, model(cache=am.ReplayCache()), 5, outputs=tmp_path)
    assert told.total("calls").value == 10 and "gated 100%" in str(told)


def test_answers_in_the_journal_and_calls_in_the_cache_cost_nothing(tmp_path):
    recorded(tmp_path, "one", {"unified": (1, 100, 10, 6.0)})
    journal = tmp_path / "j.jsonl"
    log = Journal(journal, {})
    for i in range(4):
        log.put(f"unified/c/q{i}", {})
    log.close()
    cache = am.ReplayCache()
    for i in (7, 8, 9):
        message = {"role": "user", "content": f"x\nQuestion: Where {i}?\nJSON:"}
        request = {"model": "m", "messages": [message]}
        cache.put(request, {"text": "x"})
    told = estimate(["unified"], DATA, model(cache=cache), 5, journal=journal, outputs=tmp_path)
    assert (told.systems[0].todo, told.systems[0].answered, told.cached) == (6, 4, 3)
    total = told.total("calls")
    assert (total.value, total.low, total.high) == (6, 3, 6)


def test_unknown_prices_and_systems_without_a_record_are_named(tmp_path):
    recorded(tmp_path, "one", {"unified": (1, 100, 10, 6.0)}, model="other", dataset="elsewhere")
    told = estimate(["hybrid"], DATA, am.LLM("my-own", base_url="http://127.0.0.1:9/v1"), 5, outputs=tmp_path)
    assert told.rows[-1][-2:] == ("unknown", "unknown")
    assert "assumed, as other systems in exp3/one" in str(told)
    assert told.total("prompt_tokens").high == pytest.approx(1000 * 1.25)
    with pytest.raises(ValueError, match="nonsense"):
        estimate(["nonsense"], DATA, outputs=tmp_path)


def test_offline_nothing_is_paid(tmp_path):
    recorded(tmp_path, "one", {"unified": (0, 0, 0, 0.5)}, model="offline")
    told = estimate(["unified"], DATA, outputs=tmp_path)
    assert told.total("calls").high == 0 and told.cost().high == 0 and told.minutes().value > 0


def test_workers_divide_the_minutes_of_a_run_without_a_model(tmp_path):
    recorded(tmp_path, "one", {"unified": (0, 0, 0, 6.0), "hybrid": (0, 0, 0, 6.0)}, model="offline")
    places = [Conversation(c, turns=[]) for c in ("c", "d")]
    data = Dataset("toy", places, DATA.questions)
    told = {n: estimate(["unified", "hybrid"], data, workers=n, outputs=tmp_path) for n in (1, 2, 4)}
    assert {n: t.minutes().value for n, t in told.items()} == {1: 2.0, 2: 1.0, 4: 0.5}
    assert "4 workers, each with one question at a time" in str(told[4])
    assert estimate(["unified"], data, outputs=tmp_path).workers == 1, "so few questions are asked here"
    with pytest.raises(ValueError, match="workers=0"):
        estimate(["unified"], data, workers=0, outputs=tmp_path)


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
    assert "by unified" not in told and "not included: the calls of a judge" in told
    without = str(estimate(["unified"], data, model(), 5, outputs=tmp_path))
    assert "not included: what systems ask a model while they store a conversation" in without
