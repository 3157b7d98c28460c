"""Test that nothing said after a question is used: by search, planner, rounds or any system."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rerankers import SharedWords
from scripted import ScriptedLLM
from server import Server, answering, ok, ok_json

from adaptmr.llm import LLM
from adaptmr.planning.qarp import QARP
from adaptmr.planning.routed import Mixture, Routed
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.plan import FixedPlanner, RetrievalPlan
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS, retrieve
from adaptmr.store.memory_store import MemoryStore
from adaptmr.systems.base import known_systems, make_system
from adaptmr.types import Conversation, Memory, Question

MARCH = datetime(2024, 3, 1, tzinfo=UTC)
LATER = datetime(2024, 5, 10, tzinfo=UTC)
WORDS = RetrievalPlan(weights=HYBRID_WEIGHTS)
ROWS = [
    ("2024-01-05", "Maya", "I live in Beijing, near the drum tower."),
    ("2024-02-10", "Maya", "I adopted a cat called Snowy."),
    ("2024-02-20", "Tom", "What colour is the cat, and where do you live?"),
    ("2024-03-01", "Maya", "Snowy is white."),
    ("2024-05-02", "Zoltan", "I moved to Hangzhou, I live in a flat by the lake now."),
    ("2024-05-03", "Maya", "Where do I live now? In Hangzhou."),
    ("2024-05-04", "Maya", "The cat called Snowy broke a bowl."),
]


def turns(rows=ROWS):
    return [
        Memory(f"m{i}", text, who, at, session=f"S{i // 4}", step=i, source=f"D{i}")
        for i, (at, who, text) in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def store():
    with MemoryStore(embedder="hash") as s:
        s.add(turns())
        yield s


def ids(found):
    return [h.memory.id for h in found.hits]


def summary(found):
    """Describe a result without times, the plan, and the row that says what was hidden."""
    hits = [(h.memory.id, h.score, sorted(h.signals.items()), h.note) for h in found.hits]
    rows = [(t.step, t.n_in, t.n_out, t.reason) for t in found.trace if t.step != "as of"]
    return repr((hits, rows, found.has_relevant, found.relevance, found.context))


# --- the moment


def test_a_question_of_march_does_not_see_may(store):
    question = Question("", "Where do I live now?", asked_at=MARCH)
    found = retrieve(question, store)
    assert ids(found) and set(ids(found)) <= {"m0", "m1", "m2", "m3"}
    assert "Hangzhou" not in found.context and "Beijing" in found.context
    assert {"m4", "m5"} <= set(ids(retrieve(replace(question, asked_at=LATER), store))), "in May, it does"
    at = store.memories[3].at  # the moment itself is visible

    def seen(moment):
        return set(ids(execute(replace(WORDS, k=99), Question("", "cat", asked_at=moment), store)))

    assert "m3" in seen(at) and "m3" not in seen(at - timedelta(microseconds=1))
    assert "m4" not in seen(at + timedelta(microseconds=1))


# --- hidden memories change no result


@st.composite
def talks(draw):
    """Draw memories over ten days, some at one moment, in interleaved sessions, and a moment among them."""
    n = draw(st.integers(1, 14))
    words = ["cat", "bowl", "lake", "live", "Snowy", "Hangzhou", "moved", "now", "yesterday", "?"]
    rows = [
        Memory(
            f"m{i:02}",
            " ".join(draw(st.lists(st.sampled_from(words), min_size=1, max_size=5))),
            draw(st.sampled_from(["Maya", "Tom", ""])),
            MARCH + timedelta(days=draw(st.integers(0, 9))),
            session=draw(st.sampled_from("ab")),
            step=draw(st.integers(0, 20)),
        )
        for i in range(n)
    ]
    return rows, MARCH + timedelta(days=draw(st.integers(0, 9)))


@given(
    talks(),
    st.sampled_from(["Where does Tom live now?", "What did I say about the lake on 4 March 2024?"]),
)
@settings(max_examples=12, deadline=None)
def test_any_store_at_any_moment_equals_its_earlier_part(talk, text):
    rows, moment = talk
    with MemoryStore(embedder="hash") as whole, MemoryStore(embedder="hash") as part:
        whole.add(rows)
        part.add([m for m in rows if m.at <= moment])
        question = Question("", text, asked_at=moment)
        weights = {**HYBRID_WEIGHTS, "session": 1.0, "window": 1.0, "following2": 1.0}
        for planner in (None, Mixture(), FixedPlanner(replace(WORDS, weights=weights, k=99))):
            one, two = (summary(retrieve(question, s, planner=planner)) for s in (whole, part))
            assert one == two


# --- the view of the earlier part


# --- planners


def scripted():
    """Make a server that asks for more searches about the future, never with confidence."""
    by_type = {"boolean": True, "number": 0.0, "integer": 1, "string": "the lake", "array": []}
    chosen = {"queries": ["Hangzhou lake", "cat"], "query": "Hangzhou flat", "type": "multi_hop"}

    def decide(body):
        if "response_format" not in body:
            return ok("I don't know.")
        properties = body["response_format"]["json_schema"]["schema"]["properties"]
        values = {n: s["enum"][-1] if "enum" in s else by_type[s["type"]] for n, s in properties.items()}
        return ok_json({**values, **{n: v for n, v in chosen.items() if n in properties}})

    return Server(answering(decide))


@pytest.mark.parametrize("planner", ["qarp", "routed", "mixture", "rounds", "thought", "draft", "rerank"])
def test_no_model_is_shown_what_was_said_later(store, planner):
    asked = Question(
        "", "Tell me about the white cat and the flat.", asked_at=MARCH
    )  # the rules leave it open
    rounds = replace(
        WORDS, max_rounds=3, confidence_threshold=1.0, expand=2, interim=True, multi_step=True, refine=True
    )
    plans = {
        "rounds": rounds,
        "thought": replace(rounds, follow="thought"),
        "draft": replace(rounds, follow="draft"),
        "rerank": replace(WORDS, rerank_tokens=2_000, refine=True, latest_rule="model", prefer_latest=True),
    }
    with scripted() as s:
        llm = LLM("m", base_url=s.url, sleep=lambda _: None, timeout=10)
        planners = {"qarp": QARP, "routed": Routed, "mixture": Mixture}
        made = FixedPlanner(plans[planner]) if planner in plans else planners[planner](llm)
        found = retrieve(asked, store, planner=made, llm=llm)
        prompts = json.dumps(s.requests, ensure_ascii=False)
    assert "broke a bowl" not in prompts and "flat by the lake" not in prompts and "Zoltan" not in prompts
    assert "Snowy is white" in prompts, "it is shown what had been said"
    assert not {"m4", "m5", "m6"} & set(ids(found))


# --- systems


def talk():
    return Conversation("c1", ("Maya", "Tom"), turns())


ASKED = [
    Question(id, text, answers, kind, "", evidence, MARCH, bool(evidence), "c1")
    for id, text, answers, kind, evidence in (
        ("q1", "Where do I live now?", ["Beijing"], "knowledge_update", ["D0"]),
        ("q2", "Which cat broke a bowl by the lake?", ["Snowy"], "factual_extraction", ["D1"]),
        ("q3", "Did I ever mention a bowl?", [], "abstention", []),
        ("q4", "How many cats and flats did Zoltan mention?", ["1"], "multi_hop", ["D1", "D3"]),
    )
]


@pytest.mark.parametrize("name", list(known_systems(None)))
def test_no_system_shows_what_was_said_later(name):
    llm = ScriptedLLM() if name in known_systems("team") else None
    system = make_system(name, llm, embedder="hash", reranker=SharedWords())
    system.ingest(talk())
    if hasattr(system, "prepare"):
        system.prepare(ASKED)
    found = [system.solve(q).evidence if hasattr(system, "solve") else system.retrieve(q, 10) for q in ASKED]
    for one in found:
        assert not {f"D{i}" for i in (4, 5, 6)} & set(one.sources)
        assert "broke a bowl" not in one.context and "flat by the lake" not in one.context
    if name != "oracle_evidence":
        assert any(one.hits for one in found)


def test_a_planner_is_shown_nothing_later_and_a_write_meanwhile_is_not_seen():
    seen = {}

    class Spy:
        name = "spy"

        def plan(self, query, store):
            seen.update(memories=[m.id for m in store.memories], recent=[m.id for m in store.recent(99)])
            seen.update(speakers=store.speakers, n=len(store))
            s.add(Memory("late", "Where do I live? In Rome.", "Maya", LATER, step=50))
            return replace(WORDS, k=99)

    known = ["m0", "m1", "m2", "m3"]
    for rows in (turns(), turns()[:4]):
        with MemoryStore(embedder="hash") as s:
            s.add(rows)
            found = retrieve(Question("", "Where do I live?", asked_at=MARCH), s, planner=Spy())
        assert set(ids(found)) == set(known)
        assert seen == {"memories": known, "recent": known[::-1], "speakers": ("Maya", "Tom"), "n": 4}
