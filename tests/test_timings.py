"""Times of runs with a model: a repeated run shows those of the first; a call without a record is unknown."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from server import Server, minimal

import adaptmr as am
from adaptmr.eval.analysis import cost
from adaptmr.eval.report import tables
from adaptmr.eval.runner.timings import timed_calls, timing_sentence
from adaptmr.experiments import Experiment
from adaptmr.llm import LLM
from adaptmr.llm.replay import ReplayCache
from adaptmr.llm.tasks import meter_usage

DELAY = 0.08  # seconds that the model takes for each reply
HELLO = [{"role": "user", "content": "Where do I live now?"}]
PARAMS = {"model": "m", "split": "en1", "limit": 4, "embedder": "hash", "systems": "unified,qarp"}
CLOCK = ["ms_retrieve", "ms_answer"]


def run(cache: ReplayCache, url: str, concurrency: int = 1) -> pd.DataFrame:
    llm = LLM("m", base_url=url, cache=cache, concurrency=concurrency)
    return am.evaluate(
        ["unified", "qarp"], am.load("demo", split="en1", limit=4), llm, embedder="hash", progress=False
    )


def without_times(cache: ReplayCache, path: Path, every: int = 1) -> ReplayCache:
    """Return a cache of the same calls in which every `every`-th has no time, as in older records."""
    lines = [
        json.dumps({**r, "reply": {k: v for k, v in r["reply"].items() if k != "seconds" or i % every}})
        for i, r in enumerate(cache.records())
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    return ReplayCache.from_file(path)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_replay_has_the_times_of_the_run(concurrency: int) -> None:
    cache = ReplayCache()
    with Server(minimal(DELAY)) as server:
        first = run(cache, server.url, concurrency)
        cache.mode = "replay"
        asked = len(server.requests)
    again = run(cache, "http://127.0.0.1:9/v1", concurrency)
    calls = again["calls"].to_numpy()
    assert calls.sum() >= asked > 8
    assert timed_calls(first)["measured"] == asked
    assert timed_calls(again) == {"measured": 0, "recorded": calls.sum(), "unknown": 0}
    for frame in (first, again):
        assert (frame[CLOCK].sum(axis=1) >= 1000 * DELAY * 0.99 * calls).all(), (
            "each call counts with the time that the model took"
        )
    recorded = {r["key"]: 1000 * r["reply"]["seconds"] for r in cache.records()}
    assert again["ms_recorded"].sum() >= sum(recorded.values()) - 0.01
    medians = [f.groupby("system")["ms_retrieve"].median() for f in (first, again)]
    assert medians[1]["qarp"] == pytest.approx(medians[0]["qarp"], rel=0.5)
    assert medians[1]["qarp"] > 1000 * DELAY


def test_a_record_without_a_time_makes_a_time_unknown(tmp_path: Path) -> None:
    cache = ReplayCache()
    with Server(minimal()) as server:
        run(cache, server.url)
    old = run(without_times(cache, tmp_path / "old.jsonl.gz"), "http://127.0.0.1:9/v1")
    assert old["ms_answer"].isna().all() and old.loc[old["system"] == "unified", "ms_retrieve"].notna().all()
    assert timed_calls(old) == {"measured": 0, "recorded": 0, "unknown": old["calls"].sum()}
    mixed = run(without_times(cache, tmp_path / "mixed.jsonl.gz", 3), "http://127.0.0.1:9/v1")
    counts = timed_calls(mixed)
    assert counts["recorded"]
    assert counts["unknown"]
    assert mixed.loc[mixed["ms_calls_unknown"] == 0, CLOCK].notna().all(axis=None)
    assert mixed.loc[mixed["ms_calls_unknown"] > 0, "ms_recorded"].isna().all()
    for frame in (old, mixed):  # tables of times accept unknown ones
        spent = tables.system_costs(frame)["ms"]
        assert math.isnan(spent["qarp"]) and spent["unified"] > 0
        assert len(cost.latency_table(frame)) and len(cost.overhead(frame, measures=cost.TIME_MEASURES))
    assert set(cost.latency_table(old)["ms_both_p50"]) == {"–"}


def test_usage_of_a_recorded_call_has_its_seconds() -> None:
    cache = ReplayCache()
    request = {"model": "m", "messages": HELLO, "max_tokens": 512, "temperature": 0.0}
    reply = {"text": "x", "finish": "stop", "prompt_tokens": 9, "completion_tokens": 1}
    cache.put(request, {**reply, "seconds": 29.497})
    cache.put({**request, "max_tokens": 9}, reply)
    cache.put({**request, "max_tokens": 8}, {**reply, "seconds": -3})
    llm = LLM("m", cache=cache)
    with meter_usage() as meter:
        assert 29.497 <= llm.complete(HELLO).usage.seconds < 30.5
        assert llm.usage.seconds == pytest.approx(29.5, abs=1)
        assert meter.times.seconds(1.0) == pytest.approx(30.497)
        for tokens in (9, 8):
            assert math.isnan(llm.complete(HELLO, max_tokens=tokens).usage.seconds)
    assert math.isnan(llm.usage.seconds)
    assert (meter.times.recorded, meter.times.unknown) == (1, 2)
    assert math.isnan(meter.times.seconds(1.0))


@pytest.mark.slow
def test_a_repeated_experiment_states_the_source_of_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))

    def run_experiment(folder: str) -> tuple[dict[str, Any], pd.DataFrame, str, bytes]:
        experiment = Experiment("timed", PARAMS, out_dir=tmp_path / folder)
        experiment.evaluate()
        experiment.comparison_tables()
        path = experiment.finish().path
        manifest, caption = path / "manifest.json", path / "tables" / "costs.txt"
        times, calls = pd.read_parquet(path / "timings.parquet"), (path / "calls.jsonl.gz").read_bytes()
        return json.loads(manifest.read_text()), times, caption.read_text(), calls

    with Server(minimal(DELAY)) as s:
        monkeypatch.setenv("OPENAI_BASE_URL", s.url)
        manifest, timings, caption, calls = run_experiment("first")
    n = manifest["timed_calls"]["measured"]
    assert n == manifest["wire"]["sent"] > 8
    assert manifest["timed_calls"]["unknown"] == 0
    assert f"{n} calls to the model were measured in this run" in caption
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    again, timings_again, caption_again, calls_again = run_experiment("again")
    assert again["timed_calls"] == {"measured": 0, "recorded": manifest["usage"]["calls"], "unknown": 0}
    assert calls_again == calls
    assert (
        f"{manifest['usage']['calls']} were answered from the record and count as long as they took"
        in caption_again
    )
    assert again["when"]["model_seconds"] >= 0.9 * DELAY * n and again["usage"] == manifest["usage"]
    assert timings_again[CLOCK].sum(axis=None) > 0.6 * timings[CLOCK].sum(axis=None), (
        "a replay has the times of the run"
    )


def test_a_caption_says_how_many_questions_were_asked_at_once() -> None:
    assert timing_sentence(pd.DataFrame({"ms_at_once": [2, 2]})) == (
        "Times: 2 questions were asked at once, and each took longer than alone"
    )
    mixed = timing_sentence(pd.DataFrame({"ms_at_once": [2, 1, 2]}))
    assert "(1 with 1, 2 with 2): don't compare them" in mixed
