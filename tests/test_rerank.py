"""Rerankers: their models, servers, caches and errors, and what a plan does with their scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerankers import SharedWords, make_tiny_cross_encoder
from server import Server, raw, status

import adaptmr as am
from adaptmr.experiments import Experiment
from adaptmr.llm.replay import ReplayCache, ReplayMiss
from adaptmr.llm.tasks import meter_usage
from adaptmr.llm.transport import AuthError, BadRequest, ServerError
from adaptmr.rerank import (
    EndpointScores,
    Reranker,
    metered,
    reranker,
)
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.fusion import fit_for
from adaptmr.retrieval.plan import PlanError, RetrievalPlan
from adaptmr.retrieval.search import reranker_signal
from adaptmr.retrieval.strategies import Router, retrieve
from adaptmr.store.memory_store import MemoryStore
from adaptmr.systems.base import make_system
from adaptmr.types import Memory

SAID = [
    "My sister keeps bees.",
    "Bees are dying out, says my sister.",
    "Bees again in the garden, says my sister.",
    "I live in Leeds.",
    "Good morning!",
    "My sister who keeps bees who keeps bees lives far away from Leeds and from me.",
]
QUERY = "Who keeps bees?"
PLAN = RetrievalPlan(weights={"lexical": 1.0}, k=6)


class Given:
    """Scores texts as it is told, by what they contain."""

    name = "given"

    def __init__(self, scores: dict[str, float], other: float = 0.0) -> None:
        self.by, self.other = scores, other

    def scores(self, query: str, texts: list[str]) -> np.ndarray:
        return np.array([next((s for part, s in self.by.items() if part in t), self.other) for t in texts])


class Failing:
    """A reranker that must not be asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def scores(self, query: str, texts: list[str]) -> list[float]:
        raise AssertionError("asked")


@pytest.fixture(scope="module")
def store():
    with MemoryStore(embedder="hash") as s:
        s.add(
            Memory(f"m{i}", text, "Maya", f"2024-01-0{i + 1}", session="s", step=i, source=f"m{i}")
            for i, text in enumerate(SAID)
        )
        yield s


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return make_tiny_cross_encoder(tmp_path_factory.mktemp("models") / "tiny-ce")


def sources(found) -> list[str]:
    return [h.memory.source for h in found.hits]


def reply(scores: list[float], **more: Any) -> Any:
    """A server's reply, best first."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return raw(200, {"results": [{"index": i, "relevance_score": scores[i]} for i in order], **more})


def at(server: Server, **options: Any) -> Reranker:
    options = {"api_key": "key-123456", "cache": False, "sleep": lambda s: None, "timeout": 5, **options}
    return reranker("endpoint:m", base_url=server.url, **options)


# --- the order


def test_without_a_weight_the_order_within_the_depth_is_the_rerankers(store):
    before = execute(PLAN, QUERY, store)
    first = sources(before)[:3]
    told = {SAID[int(source[1])]: score for source, score in zip(first, (0.1, 0.3, 0.2))}
    found = execute(replace(PLAN, reranker="given", rerank_depth=3), QUERY, store, reranker=Given(told, 99))
    assert sources(found) == [first[1], first[2], first[0], *sources(before)[3:]]
    assert [h.score for h in found.hits] == [h.score for h in before.hits], "dealt out in the new order"
    high = 1.224745  # (0.3 - 0.2) / standard deviation of 0.1, 0.2, 0.3
    assert [h.signals["reranker"] for h in found.hits] == [high, 0.0, -high, -high, -high, -high]
    (row,) = [row for row in found.trace if row.step == "reranker"]
    assert row.reason == "given read 3 of 6 candidates: its order" and (row.n_in, row.n_out) == (3, 6)


def test_a_weight_adds_the_signal_to_the_others(store):
    before = {h.memory.source: h.score for h in execute(PLAN, QUERY, store).hits}
    weighed = replace(PLAN, weights={"lexical": 1.0, "reranker": 0.5}, reranker="given", rerank_depth=6)
    found = execute(weighed, QUERY, store, reranker=Given({"Leeds.": 5.0}))
    assert {h.memory.source: h.score for h in found.hits} == pytest.approx(
        {source: before[source] + 0.5 * signal for source, signal in signals(found).items()}, abs=2e-6
    )
    leeds = 5**0.5  # one 5 and five 0: (5 - 5/6) / (5·√5 / 6)
    assert signals(found)["m3"] == pytest.approx(leeds, abs=1e-6)
    assert "weight 0.5" in next(row.reason for row in found.trace if row.step == "reranker")


def signals(found) -> dict[str, float]:
    return {h.memory.source: h.signals["reranker"] for h in found.hits}


def test_a_fit_can_have_a_weight(store):
    fit = fit_for("hash")
    learned = replace(fit, weights={**fit.weights, "hybrid": {**fit.weights["hybrid"], "reranker": 3.0}})
    learned = replace(learned, reranker="given")
    plan = RetrievalPlan(weights={"hybrid": 1.0}, reranker="given", k=6)
    by_order = execute(plan, QUERY, store, reranker=Given({"Good": 1.0}))
    fused = execute(plan, QUERY, store, fit=learned, reranker=Given({"Good": 1.0}))
    assert sources(by_order)[0] == "m4"
    assert "weight 3" in next(row.reason for row in fused.trace if row.step == "reranker")
    others = execute(plan, QUERY, store, fit=replace(learned, reranker="x"), reranker=Given({"Good": 1.0}))
    assert sources(others) == sources(by_order), "the weight is another reranker's"
    plain = replace(plan, reranker=None)
    without = execute(plain, QUERY, store, fit=learned)
    assert [(h.memory.id, h.score) for h in without.hits] == [
        (h.memory.id, h.score) for h in execute(plain, QUERY, store).hits
    ], "the weight of what was not read counts nothing"


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=30),
    st.integers(0, 20),
    st.floats(0.01, 100),
    st.floats(-100, 100),
)
def test_the_signal_keeps_the_order_and_knows_no_scale(scores, unread, factor, shift):
    scores = np.round(scores, 2)
    n = len(scores)
    signal = reranker_signal(scores, n + unread)
    assert len(signal) == n + unread and (signal[n:] == signal[:n].min()).all()
    assert all(signal[i] >= signal[j] for i in range(n) for j in range(n) if scores[i] > scores[j])
    assert signal[:n].mean() == pytest.approx(0, abs=1e-5)
    assert reranker_signal(scores * factor + shift, n + unread) == pytest.approx(signal, abs=1e-3)


def test_every_query_is_read_by_itself(store):
    own = SharedWords()
    plan = replace(PLAN, queries=(QUERY, "Who lives in Leeds?"), reranker=own.name, rerank_depth=2)
    found = execute(plan, "Who?", store, reranker=own)
    assert len(own.read) == 4 and {query for query, _ in own.read} == {QUERY, "Who lives in Leeds?"}
    assert all(text.startswith("Maya: ") for _, text in own.read)
    assert sources(found)[0] in ("m0", "m5") and "read 4 of" in found.trace[1].reason


# --- plans


def test_a_plan_without_a_reranker_asks_none(store):
    plans = (PLAN, RetrievalPlan(weights={"hybrid": 1.0}), replace(PLAN, fusion="rrf"))
    for plan in plans:
        given, none = (execute(plan, QUERY, store, reranker=r) for r in (Failing("x"), None))
        assert [(h.memory.id, h.score, h.signals, h.note) for h in given.hits] == [
            (h.memory.id, h.score, h.signals, h.note) for h in none.hits
        ]
        assert not any(row.step == "reranker" for row in given.trace)


def test_another_reranker_than_the_plan_names_is_refused(store):
    with pytest.raises(PlanError, match="the reranker given is 'given'; give the one named"):
        execute(replace(PLAN, reranker="mine"), QUERY, store, reranker=Given({}))


def test_retrieve_router_and_system_rerank(store):
    told = Given({"Good": 1.0})
    by_argument = retrieve(QUERY, store, 3, reranker=told)
    by_router = retrieve(QUERY, store, 3, Router(reranker=told))
    assert sources(by_argument) == sources(by_router) and sources(by_router)[0] == "m4"
    assert by_argument.plan.reranker == by_router.plan.reranker == "given"
    system = make_system("hybrid_reranked", embedder="hash", reranker=told)
    system.ingest(am.Conversation("c", ("Maya",), list(store.memories)))
    assert system.retrieve(QUERY, 3).sources[0] == "m4"
    rounds = execute(replace(PLAN, reranker="given", max_rounds=2), QUERY, store, reranker=told)
    assert rounds.sources[0] == "m4"


# --- one's own


def test_bad_scores_are_an_error():
    for scores in ([1.0], [[1.0], [2.0]], [1.0, float("nan")], ["high", "low"]):
        bad = Given({})
        bad.scores = lambda query, texts, scores=scores: scores
        with pytest.raises(ValueError, match=r"'given' returned .* for 2 texts"):
            metered(bad).scores("q", ["a", "b"])


# --- the cache


def test_a_score_is_kept_by_reranker_query_and_text():
    cache, own = ReplayCache(), SharedWords()
    one = metered(own, cache)
    assert one.scores("who keeps", ["i keep", "she keeps", "i keep"]).tolist() == [0, 1, 0]
    assert [text for _, text in own.read] == ["i keep", "she keeps"], "each text once"
    with meter_usage() as meter:
        assert one.scores("who keeps", ["she keeps", "who"]).tolist() == [1, 1]
    assert own.read[2:] == [("who keeps", "who")] and (meter.usage.calls, meter.usage.cached_calls) == (1, 0)
    one.scores("other", ["who"])
    other = SharedWords()
    other.name = "another"
    metered(other, cache).scores("who keeps", ["who"])
    assert own.read[3:] == [("other", "who")] and len(other.read) == 1 and len(cache) == 5


def test_a_deleted_text_is_not_left_in_the_cache(tmp_path: Path):
    with ReplayCache(tmp_path / "c.sqlite") as cache:
        metered(SharedWords(), cache).scores("where are the bees", ["the bees are in Leeds"])
    assert all(b"bees" not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_recorded_run_needs_no_model(store, tiny, tmp_path: Path):
    cache = ReplayCache()
    recorded = reranker(tiny, cache=cache)
    plan = replace(PLAN, reranker=recorded.name)
    before = execute(plan, QUERY, store, reranker=recorded)
    cache.dump(tmp_path / "calls.jsonl.gz")
    replayed = reranker(
        "tiny-ce", cache=ReplayCache.from_file(tmp_path / "calls.jsonl.gz"), revision=recorded.revision
    )
    again = execute(plan, QUERY, store, reranker=replayed)
    assert [(h.memory.id, h.score, h.signals) for h in again.hits] == [
        (h.memory.id, h.score, h.signals) for h in before.hits
    ]
    assert (again.usage.calls, again.usage.cached_calls) == (1, 1)
    with pytest.raises(ReplayMiss, match="task 'reranker', model 'tiny-ce'"):
        execute(plan, "Another question?", store, reranker=replayed)


def test_a_run_records_its_scores_and_is_repeated_without_the_model(tmp_path, monkeypatch):
    folder = Path(make_tiny_cross_encoder(tmp_path / "tiny-ce"))
    params = {"dataset": "demo", "systems": ["hybrid"], "limit": 3, "embedder": "hash"}
    first = Experiment("t", {**params, "reranker": str(folder)}, out_dir=tmp_path)
    made, done = first.evaluate(), first.finish().path
    assert made["system"].unique().tolist() == ["hybrid", "hybrid_reranked"]
    manifest = json.loads((done / "manifest.json").read_text(encoding="utf-8"))
    revision = reranker(str(folder)).revision
    assert manifest["reranker"] == {"name": "tiny-ce", "revision": revision}
    assert manifest["params"]["reranker"] == "tiny-ce" and str(tmp_path) not in json.dumps(manifest["params"])
    folder.rename(tmp_path / "gone")
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("ADAPTMR_REPLAY", str(done))
    monkeypatch.setattr("adaptmr.rerank._load", lambda *_: pytest.fail("the model was loaded"))
    again = Experiment("t", {**params, "reranker": "tiny-ce"}, out_dir=tmp_path / "again").evaluate()
    for column in ("retrieved", "prediction", "retrieval_calls"):
        assert again[column].map(str).tolist() == made[column].map(str).tolist()


# --- cross-encoders


def test_a_cross_encoder_gives_logits_of_truncated_pairs(tiny):
    from sentence_transformers import CrossEncoder

    texts = ["my sister keeps bees", "bees " * 9_000, "", "\ud800 leeds"]
    pairs = [("who keeps bees ?", t.replace("\ud800", "\ufffd")) for t in texts]
    found = reranker(tiny, cache=False, batch_size=2, device="cpu").scores("who keeps bees ?", texts)
    probability = CrossEncoder(tiny).predict(pairs)
    assert 1 / (1 + np.exp(-found)) == pytest.approx(probability, abs=1e-4)
    assert len(set(found.tolist())) > 1


def test_new_weights_under_an_old_name_get_new_scores(tmp_path: Path):
    cache, texts = ReplayCache(), ["my sister keeps bees"]
    folders = [make_tiny_cross_encoder(tmp_path / f"{seed}", seed) for seed in (0, 1)]
    names = [tmp_path / part / "ce" for part in ("a", "b")]
    for folder, name in zip(folders, names):
        name.parent.mkdir()
        Path(folder).rename(name)
    one, two = (reranker(str(name), cache=cache) for name in names)
    assert one.name == two.name == "ce" and one.revision != two.revision
    assert one.scores("who ?", texts) != two.scores("who ?", texts) and len(cache) == 2


def test_a_model_that_is_not_there_says_how_to_get_it(store, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match=r"`hf download nobody/none` gets a model(.|\n)*endpoint:MODEL"):
        execute(replace(PLAN, reranker="nobody/none"), QUERY, store)


# --- servers


def test_a_server_is_asked_for_all_documents_and_metered():
    with Server(reply([0.2, 0.9], usage={"total_tokens": 13})) as server, meter_usage() as meter:
        found = at(server, cache=ReplayCache()).scores("who?", ["a", "b"])
    assert found.tolist() == [0.2, 0.9] and server.paths == ["/v1/rerank"]
    assert server.requests == [{"model": "m", "query": "who?", "documents": ["a", "b"], "top_n": 2}]
    assert server.headers[0]["authorization"] == "Bearer key-123456"
    assert (meter.usage.calls, meter.usage.prompt_tokens, meter.usage.cost_usd) == (1, 13, None)
    assert str(meter) == "reranker:model"


def test_text_embeddings_inference_is_asked_in_its_own_words():
    refuses = raw(422, {"message": "Failed to deserialize: missing field `texts` at line 1"})
    found = raw(200, [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.1}])
    with Server(refuses, found) as server:
        one = at(server)
        assert one.scores("q", ["a", "b"]).tolist() == [0.1, 0.9] == one.scores("q", ["a", "b"]).tolist()
    assert [sorted(body) for body in server.requests] == [
        ["documents", "model", "query", "top_n"],
        *[["model", "query", "texts", "top_n"]] * 2,
    ]


def test_errors_are_those_of_model_calls(store):
    plan = replace(PLAN, reranker="endpoint:m")
    for code, error in ((401, AuthError), (400, BadRequest), (503, ServerError)):
        with Server(status(code, "says key-123456")) as server, pytest.raises(error) as e:
            execute(plan, QUERY, store, reranker=at(server, max_retries=1))
        assert "key-123456" not in str(e.value)
    with Server(status(404)) as server, pytest.raises(am.llm.ModelNotFound, match="often ends in /v1"):
        at(server).scores("q", ["a"])
    gone = Server(status(500))
    gone.server_close()
    with pytest.raises(ServerError, match="No server listens there"):
        at(gone).scores("q", ["a"])


def test_after_a_malformed_reply_the_order_stays_and_the_trace_says_so(store):
    with Server(raw(200, {"results": []})) as server:
        found = execute(replace(PLAN, reranker="endpoint:m"), QUERY, store, reranker=at(server))
    assert sources(found) == sources(execute(PLAN, QUERY, store))
    (row,) = [row for row in found.trace if row.step == "reranker"]
    assert "fallback in 1 of 1 searches, the order stays: m: the reply has no score" in row.reason


def test_no_server_gets_the_key_of_another(monkeypatch):
    for name in ("RERANK_BASE_URL", "RERANK_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-secret")
    with pytest.raises(ValueError, match="set RERANK_BASE_URL"):
        EndpointScores("m")("q", ["a"])
    with Server(reply([0.5])) as server:
        monkeypatch.setenv("RERANK_BASE_URL", server.url)
        EndpointScores("m")("q", ["a"])
        monkeypatch.setenv("RERANK_API_KEY", "rerank-key")
        EndpointScores("m")("q", ["a"])
        monkeypatch.delenv("RERANK_API_KEY")
        monkeypatch.delenv("RERANK_BASE_URL")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        EndpointScores("m")("q", ["a"])
    assert [h["authorization"] for h in server.headers] == [
        "Bearer none",
        "Bearer rerank-key",
        "Bearer sk-openai-secret",
    ]
