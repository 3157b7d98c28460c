"""Every analysis of a run makes its systems as the run did: with its encoder, its seed and its reranker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rerankers import SharedWords
from server import Behaviour, Server, answering, raw

import adaptmr as am
from adaptmr.eval.analysis.attribution import attribute_failures
from adaptmr.eval.analysis.budget_curves import measure_coverage
from adaptmr.eval.analysis.longmemeval import retrieval_rows
from adaptmr.eval.runner.asking import Making, declared_capabilities, make_given
from adaptmr.eval.runner.timings import time_systems
from adaptmr.experiments import Experiment

SYSTEM = ["hybrid_reranked"]


class Watched(SharedWords):
    """A reranker that is forgotten before each analysis."""

    def was_asked(self) -> bool:
        asked = bool(self.read)
        self.read.clear()
        return asked


def shared_words(body: dict[str, Any]) -> Behaviour:
    """Answer `/rerank` with the number of words that a document shares with the query."""
    asked = set(re.findall(r"\w+", body["query"].lower()))
    scores = [len(asked & set(re.findall(r"\w+", text.lower()))) for text in body["documents"]]
    return raw(200, {"results": [{"index": i, "relevance_score": s} for i, s in enumerate(scores)]})


def test_every_analysis_asks_the_reranker_of_the_run() -> None:
    data, own = am.load("demo", limit=4), Watched()
    making = Making(embedder="hash", seed=3, reranker=own)
    rows = am.evaluate(SYSTEM, data, progress=False, **making)
    assert own.was_asked()
    time_systems(rows, data, repeats=1, **making)
    assert own.was_asked()
    measure_coverage(SYSTEM, data, [100], **making)
    assert own.was_asked()
    retrieval_rows(SYSTEM, data, turns="all", **making)
    assert own.was_asked()
    # it raises where a system finds other memories than the rows say
    found = attribute_failures(rows.assign(f1=0.0), data, SYSTEM, **making)
    assert len(found) == len(rows) and own.was_asked()


def test_what_a_system_declares_is_read_with_the_reranker_and_without_the_encoder() -> None:
    own = SharedWords()
    declared = declared_capabilities(SYSTEM, embedder="a/model-that-is-not-there", reranker=own)
    assert list(declared) == SYSTEM
    made = make_given("hybrid_reranked", embedder="hash", reranker=own)
    assert made.reranker is own and make_given(made, seed=9) is made


def test_the_sections_of_an_experiment_are_repeated_without_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"limit": 4, "embedder": "hash", "systems": ["hybrid"], "reranker": "endpoint:toy"}

    def go(out: Path) -> tuple[Experiment, Any, Any]:
        experiment = Experiment("exp1", params, out)
        experiment.evaluate()
        causes = experiment.causes("hybrid_reranked", threshold=2.0)
        experiment.coverage()
        timed = experiment.time_again(repeats=1, per_type=1)
        experiment.finish()
        return experiment, causes, timed

    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    with Server(answering(shared_words)) as server:
        monkeypatch.setenv("RERANK_BASE_URL", server.url)
        first, causes, timed = go(tmp_path / "first")
        assert set(server.paths) == {"/v1/rerank"}
    assert set(causes["system"]) == {"hybrid_reranked"} and len(causes) == 4
    assert set(timed["system"]) == {"hybrid", "hybrid_reranked"}
    assert (first.run.path / "calls.jsonl.gz").is_file()
    monkeypatch.delenv("RERANK_BASE_URL")
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("ADAPTMR_REPLAY", str(first.run.path))
    again, same, _ = go(tmp_path / "again")
    assert same.drop(columns="cost_usd").equals(causes.drop(columns="cost_usd"))
    for name in ("coverage", "diagnoses"):
        tables = [(e.run.path / "tables" / f"{name}.csv").read_bytes() for e in (first, again)]
        assert tables[0] == tables[1]
