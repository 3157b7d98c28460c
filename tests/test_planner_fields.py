"""Every plan field that a planner sets does something: reset it, and evidence, context or calls change."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from server import Server, answering, ok_json

from adaptmr.llm import LLM
from adaptmr.planning.classifiers import RuleClassifier
from adaptmr.planning.qarp import QARP
from adaptmr.planning.routed import AdaptiveRAG, Routed
from adaptmr.reader import answer
from adaptmr.retrieval.fusion import fit_for
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.rounds import run_rounds
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS
from adaptmr.store.memory_store import MemoryStore
from adaptmr.systems.base import known_systems, make_system
from adaptmr.systems.llm_planned import MULTI_ROUND_PLAN
from adaptmr.types import Memory

SAID = [
    "I live in Beijing.",
    "My sister is called Nadia.",
    "I had soup for lunch.",
    "Nadia keeps bees behind the barn.",
    "The weather was fine.",
    "I moved to Hangzhou.",
    "I adopted a cat called Biscuit.",
    "My brother plays chess.",
    "I like soup.",
    "I started running.",
]
NOW, LINKED, SISTER = (
    "Where do I live now?",
    "Which animals does my sister keep?",
    "What is my sister called?",
)
APPLIES = replace(fit_for("hash"), seen={})  # a fit whose probability closes the gate on any store
PLANNED = {
    "needs_memory": True,
    "queries": ["Nadia", "soup"],
    "multi_step": True,
    "temporal_order": True,
    "prefer_latest": True,
    "relevance_threshold": 0.65,
    "hint": "the newest",
}


@pytest.fixture(scope="module")
def store():
    with MemoryStore(embedder="hash") as s:
        s.add(
            Memory(f"M{i}", text, "Maya", f"2024-0{i % 9 + 1}-05", session="S", step=i, source=f"T{i}")
            for i, text in enumerate(SAID)
        )
        yield s


def reply(body):
    """What the model says to each task, which the fields of its reply tell apart."""
    asked = set(body["response_format"]["json_schema"]["schema"]["properties"])
    replies = {
        "needs_memory": PLANNED,
        "drop": {"relevant": True, "drop": [{"number": 1, "why": "no"}], "updated": []},
        "relevant": {"relevant": False},
        "update": {"update": True},
        "best": {"best": [3, 2, 1]},
        "confidence": {"confidence": 0.5},
        "query": {"query": "chess"},
        "thought": {"thought": "Nadia", "done": False},
        "sentence": {"sentence": "bees", "answer": "bees", "sure": False},
        "abstain": {"answer": "bees", "abstain": False},
        "queries": {"queries": ["Nadia keeps bees", "chess"]},
        "answer": {"answer": "Nadia"},
        "level": {"level": "C"},
    }
    return ok_json(next(value for name, value in replies.items() if name in asked))


def outcome(plan, question, store):
    """What comes of a plan: what is returned, what the reader sees and says, and what the model was asked."""
    with Server(answering(reply)) as server:
        llm = LLM("m", base_url=server.url, sleep=lambda s: None, timeout=10)
        found = run_rounds(plan, question, store, llm=llm, fit=APPLIES)
        given = answer(question, found, llm)
        asked = [body["messages"] for body in server.requests]
    return found.sources, found.has_relevant, found.context, given.text, asked


WORDS = RetrievalPlan(weights={"content": 1.0, "lexical": 1.0}, k=3)
DOUBTED = replace(WORDS, relevance_threshold=1.0, check=True)
STEPS = replace(WORDS, queries=(SISTER, "Who keeps an animal?"), multi_step=True, merge="cover", k=2)
ROUNDS = replace(WORDS, max_rounds=3, confidence_threshold=0.7, merge="keep")
# field: (the plan that has it, the question, the value that it is reset to)
CASES = {
    "queries": (replace(WORDS, queries=(NOW, "soup")), NOW, ()),
    "multi_step": (replace(STEPS, k=1), LINKED, False),
    "interim": (replace(STEPS, interim=True), LINKED, False),
    "merge": (replace(WORDS, queries=(NOW, "soup", "chess"), merge="cover", k=4), NOW, "turns"),
    "merge best": (replace(WORDS, queries=("weather", "soup"), merge="best", k=3), NOW, "turns"),
    "merge keep": (replace(ROUNDS, k=8), LINKED, "best"),
    "weights": (replace(WORDS, weights=HYBRID_WEIGHTS, k=5), NOW, {"dense": 1.0}),
    "temporal_order": (replace(WORDS, temporal_order=True, k=10), NOW, False),
    "prefer_latest": (replace(WORDS, prefer_latest=True, k=10), NOW, False),
    "latest_rule": (replace(WORDS, prefer_latest=True, latest_rule="model", k=10), NOW, "attribute"),
    "gate": (
        replace(WORDS, gate="cosine", relevance_threshold=0.99, relevance_low=0.99),
        SISTER,
        "none",
    ),
    "relevance_threshold": (DOUBTED, NOW, 0.0),
    "relevance_low": (replace(DOUBTED, relevance_low=1.0), NOW, 0.0),
    "check": (replace(DOUBTED, relevance_threshold=0.999), SISTER, False),
    "max_rounds": (ROUNDS, LINKED, 1),
    "follow": (replace(ROUNDS, follow="thought"), LINKED, "gap"),
    "follow draft": (replace(ROUNDS, follow="draft"), LINKED, "gap"),
    "confidence_threshold": (ROUNDS, LINKED, 0.0),
    "expand": (replace(WORDS, expand=2), LINKED, 0),
    "refine": (replace(WORDS, refine=True), NOW, False),
    "hint": (replace(WORDS, refine=True, hint="the newest"), NOW, ""),
    "rerank_tokens": (replace(WORDS, rerank_tokens=1400), NOW, 0),
    "answer_as": (replace(WORDS, answer_as="directly"), NOW, ""),
    "k": (replace(WORDS, k=0), NOW, 10),
}


@pytest.mark.parametrize("case", CASES)
def test_a_field_that_is_reset_is_missed(store, case):
    plan, question, value = CASES[case]
    field = case.split()[0]
    without = replace(plan, **{field: value})
    assert plan != without
    assert outcome(plan, question, store) == outcome(plan, question, store), "the same twice"
    assert outcome(plan, question, store) != outcome(without, question, store)


LABELS = {"planner", "fallback"}  # what a plan says of its origin
BY_RULE = ("temporal", "update", "abstention", "qarp planned by rules", "qarp with fallback on rules")


def plans_of_the_planners(store):
    """Plans of every planner and system of this package that asks a model, for questions of all types."""
    asked = (NOW, LINKED, SISTER, "Did I ever tell you my blood type?", "Good morning!")
    with Server(answering(reply)) as server:
        llm = LLM("m", base_url=server.url, sleep=lambda s: None, timeout=10)
        systems = [make_system(name, llm, embedder="hash") for name in known_systems("ablation")]
        systems += [make_system(name, llm, embedder="hash") for name in ("multi_round", "ircot", "flare")]
        systems += [make_system("token_matched", llm, embedder="hash")]
        qarp_and_rounds = [s for s in systems if not s.name.startswith("adaptmr")]
        planners = [QARP(llm), AdaptiveRAG(), AdaptiveRAG(llm), Routed(llm, RuleClassifier())]
        planners += [s.planner for s in qarp_and_rounds]
        return [planner.plan(question, store) for planner in planners for question in asked]


def test_every_field_that_a_planner_sets_has_a_case(store):
    """Without a model the strategies of the rules plan, whose fields have tests of their own."""
    default = RetrievalPlan()
    set_by_planners = {
        f.name
        for plan in [*plans_of_the_planners(store), MULTI_ROUND_PLAN]
        for f in fields(RetrievalPlan)
        if plan.planner not in BY_RULE and getattr(plan, f.name) != getattr(default, f.name)
    }
    of_strategies = {"collect", "entity_boost"}  # tests/test_no_inert_field.py has a case of each
    assert set_by_planners - LABELS - of_strategies <= {case.split()[0] for case in CASES}
    assert {"merge", "check", "gate", "answer_as", "k", "max_rounds", "follow", "expand"} <= set_by_planners
