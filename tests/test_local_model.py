"""All tasks with a real model: a small llama.cpp server on loopback (tests/local_llm.py).

Its replies are recorded once and then replayed without the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_llm import NAME, Missing, local_server, require_installed

from adaptmr.llm import LLM, AuthError, ReplayCache, ServerError
from adaptmr.llm.tasks import OUTCOMES, TASKS, meter_usage
from adaptmr.planning.classifiers import FewShotClassifier
from adaptmr.planning.qarp import QARP
from adaptmr.reader import answer, render_line
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.steps import refine
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS, retrieve
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Evidence, Memory, QueryType, Usage

pytestmark = pytest.mark.slow

SAID = [
    ("2024-01-05", "I live in Beijing, in Chaoyang district."),
    ("2024-02-11", "My sister is called Nadia."),
    ("2024-03-15", "I adopted a cat called Biscuit."),
    ("2024-03-20", "Nadia keeps bees behind the barn."),
    ("2024-04-20", "I moved to Hangzhou, West Lake district."),
    ("2024-05-02", "I had soup for lunch."),
]
NOW, LINKED = "Where do I live now?", "Which animals does my sister keep?"
ROUNDS = RetrievalPlan(
    weights=HYBRID_WEIGHTS, merge="cover", max_rounds=3, follow="thought", k=3, planner="rounds"
)
RERANK = RetrievalPlan(weights=HYBRID_WEIGHTS, rerank_tokens=900, k=4, planner="rerank")


@pytest.fixture(scope="module")
def url():
    try:
        require_installed()
    except Missing as e:
        pytest.skip(f"no local model: {e}")
    with local_server() as base:
        yield base


@pytest.fixture(scope="module")
def store():
    with MemoryStore(embedder="hash") as s:
        for i, (at, text) in enumerate(SAID, 1):
            s.add(Memory(f"M{i}", text, "Maya", at, session=f"S{i}", step=i, source=f"T{i}"))
        yield s


@dataclass
class Pass:
    """The results of one pass over all tasks, and the outcomes of each task."""

    evidence: dict[str, Evidence]
    type_probabilities: dict[QueryType, float]
    answer: str
    outcomes: Counter
    usage: Usage


def ask_all(llm, store):
    with meter_usage() as meter:
        evidence = {
            "qarp": retrieve(NOW, store, 3, QARP(llm)),
            "rounds": execute(ROUNDS, LINKED, store, llm=llm),
            "rerank": execute(RERANK, NOW, store, llm=llm),
        }
        type_probabilities = FewShotClassifier(llm).probabilities(NOW)
        text = answer(NOW, evidence["rerank"], llm).text
    return Pass(evidence, type_probabilities, text, meter.outcomes, meter.usage)


@pytest.fixture(scope="module")
def cache():
    return ReplayCache()


@pytest.fixture(scope="module")
def first(url, store, cache):
    return ask_all(LLM(NAME, base_url=url, cache=cache, timeout=120), store)


def to_bytes(found):
    """Return the evidence without its times, as bytes."""
    u = found.usage
    hits = [(h.memory.id, h.memory.text, h.score, dict(h.signals), h.note) for h in found.hits]
    trace = [(t.step, t.n_in, t.n_out, t.reason) for t in found.trace]
    about = [found.has_relevant, found.relevance, found.plan.to_json(), found.context]
    return json.dumps([hits, trace, about, u.calls, u.prompt_tokens, u.completion_tokens]).encode()


def test_every_result_has_a_known_outcome(first):
    asked = {task for task, _ in first.outcomes}
    assert {task for task, outcome in first.outcomes if outcome == "offline"} <= {"check"}
    assert {"plan", "refine", "answer", "classify", "thought", "rerank"} <= asked <= set(TASKS)
    assert {outcome for _, outcome in first.outcomes} <= set(OUTCOMES)
    assert first.outcomes["plan", "fallback"] == 0, "the server follows the schema"


def test_plan_rounds_reranking_and_classification_are_valid(first, store):
    plan = first.evidence["qarp"].plan
    assert plan.planner == "qarp" and plan.refine and plan.fallback is None
    assert RetrievalPlan.from_json(plan.to_json()) == plan
    assert 1 <= len(plan.queries or (NOW,)) <= 5 and all(0 < len(q) <= 120 for q in plan.queries)
    for found in first.evidence.values():
        assert found.context == "\n".join(render_line(h) for h in found.hits)
        assert all(h.memory == store.get(h.memory.id) for h in found.hits)
        assert found.trace and found.has_relevant == bool(found.hits)
    found = first.evidence["rounds"]
    assert 1 <= len([t for t in found.trace if t.step.startswith("round ")]) <= 2
    assert len({h.memory.id for h in found.hits}) == len(found.hits) <= 3 >= len(found.plan.queries)
    reasons = " ".join(t.reason for t in found.trace if "round" in t.step)
    assert all(h.source in reasons for h in found.hits), "each hit is named in the round that found it"
    row = next(t for t in first.evidence["rerank"].trace if t.step == "rerank")
    assert row.n_in == row.n_out == len(SAID) and row.reason.startswith("read ")
    assert len({h.memory.id for h in first.evidence["rerank"].hits}) == 4
    chances = first.type_probabilities
    assert set(chances) == set(QueryType) and min(chances.values()) >= 0
    assert sum(chances.values()) == pytest.approx(1)


def test_usage_is_counted_by_the_server(first, cache):
    usage = first.usage
    assert usage.calls >= 6 and usage.prompt_tokens > 100 * usage.calls < 100 * usage.completion_tokens
    replies = [record["reply"] for record in cache.records()]
    assert all(r["prompt_tokens"] > 0 < r["completion_tokens"] for r in replies)
    assert len(replies) <= usage.calls
    assert all(found.usage.calls > 0 < found.usage.prompt_tokens for found in first.evidence.values())


def test_replayed_without_a_server_everything_is_the_same(first, store, cache, tmp_path):
    cache.dump(tmp_path / "calls.jsonl.gz")
    recorded = ReplayCache.from_file(tmp_path / "calls.jsonl.gz", "replay")
    llm = LLM(NAME, base_url="http://127.0.0.1:9/v1", cache=recorded, max_retries=0)
    again = ask_all(llm, store)
    for name, found in first.evidence.items():
        assert to_bytes(again.evidence[name]) == to_bytes(found), name
    assert again.type_probabilities == first.type_probabilities
    assert (again.answer, again.outcomes) == (first.answer, first.outcomes)
    assert again.usage.cached_calls == again.usage.calls == first.usage.calls


def test_refinement_drops_memories_and_adds_none(url, store, cache):
    hits = list(store.search(NOW, k=4))
    llm = LLM(NAME, base_url=url, cache=cache, timeout=120)
    left = refine(NOW, hits, [0.5] * len(hits), llm, "the latest address")
    assert left.how in OUTCOMES and left.relevant == bool(left.hits)
    assert {h.memory.id for h in left.hits} <= {h.memory.id for h in hits}


def say_hi(url, **more):
    return LLM(NAME, base_url=url, **more).complete([{"role": "user", "content": "Say hi."}], max_tokens=4)


def test_a_wrong_key_is_an_error_not_a_fallback_and_a_stopped_server_too(url, store):
    with local_server(key="right") as guarded:
        with pytest.raises(AuthError, match="OPENAI_API_KEY"):
            QARP(LLM(NAME, base_url=guarded, api_key="wrong")).plan(NOW, store)
        assert say_hi(guarded, api_key="right").usage.prompt_tokens > 0
    with pytest.raises(ServerError, match="connection refused"):
        QARP(LLM(NAME, base_url=guarded, api_key="right")).plan(NOW, store)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_the_server_ends_with_the_process_that_started_it(url):
    code = "from local_llm import *\nwith local_server() as url:\n    print(url, flush=True)\n    input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", code]
    owner = subprocess.Popen(command, cwd=Path(__file__).parent, text=True, **pipes)
    base = owner.stdout.readline().strip()
    assert say_hi(base).usage.calls == 1
    owner.kill()
    owner.communicate()
    end = time.monotonic() + 10
    with pytest.raises(ServerError):
        while time.monotonic() < end:
            say_hi(base, max_retries=0, timeout=2)
            time.sleep(0.05)
