"""No inert field: whatever a strategy or planner sets in a plan changes what is found in some scenario."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import pytest
from server import Server, answering, ok_json

from adaptmr.llm import LLM
from adaptmr.reader import ANSWER
from adaptmr.retrieval.execute import run_request
from adaptmr.retrieval.plan import FixedPlanner, RetrievalPlan, planner_llm, weighted_plans
from adaptmr.retrieval.strategies import STRATEGIES, StrategyPlanner, entity_rerank
from adaptmr.retrieval.visible import make_request
from adaptmr.store.memory_store import MemoryStore
from adaptmr.systems.base import get_capabilities, known_systems, make_system
from adaptmr.types import Memory, QueryType, Question

PROVENANCE = {"planner", "fallback"}  # they say who made a plan, and act on nothing
CHOICES = {"merge", "fusion", "window_rule", "latest_rule", "gate", "follow", "select", "answer_as"}
ASKED_AT = "2024-09-10"

# (speaker, day, session, what was said, when it happened if that is known)
EN = [
    ("Maya", "2024-01-05", "a", "I live in Leeds, near the canal.", None),
    ("Ravi", "2024-01-05", "a", "Do you like living in Leeds?", None),
    ("Maya", "2024-01-20", "b", "I started rowing on Sunday, twice a week.", None),
    ("Maya", "2024-02-02", "b", "My sister Nadia keeps bees behind her barn.", None),
    ("Ravi", "2024-02-11", "c", "I had dinner at a Thai restaurant called Lotus.", None),
    ("Maya", "2024-02-12", "c", "I ate at the Greek restaurant Delphi yesterday.", None),
    ("Maya", "2024-03-15", "d", "I adopted a cat called Biscuit.", None),
    ("Ravi", "2024-03-16", "d", "What colour is Biscuit?", None),
    ("Maya", "2024-03-16", "d", "Biscuit is grey, and she sleeps all day.", None),
    ("Maya", "2024-04-20", "e", "I moved to Bristol last week, into a small flat.", None),
    ("Maya", "2024-05-01", "e", "I ate at the Greek restaurant Olive in Bristol.", None),
    ("Ravi", "2024-05-03", "e", "I painted my kitchen yellow.", None),
    ("Maya", "2024-06-08", "f", "I row four times a week now.", None),
    ("Maya", "2024-07-12", "g", "I bought a red bicycle at the market.", None),
    ("Maya", "2024-07-28", "g", "I flew to Lisbon for a wedding.", None),
    ("Maya", "2024-08-03", "h", "I broke my arm falling off the bicycle.", "2024-07-30"),
    ("Ravi", "2024-08-04", "h", "Did the doctor say how long it takes?", None),
    ("Maya", "2024-08-04", "h", "Six weeks, says Doctor Okafor.", None),
    ("Maya", "2024-08-20", "i", "I ate at a Greek restaurant in Lisbon, and I want to go back.", None),
    ("Ravi", "2024-09-01", "i", "I work at the library now; before I was a postman.", None),
    (
        "Maya",
        "2024-09-05",
        "j",
        "Let me write down how the summer went, so that I remember it. We spent most mornings in the garden "
        "and planted beans, peas and two kinds of pumpkin, although the snails ate half of them. In the "
        "afternoons my neighbour taught me to bake bread with rye and seeds, and I burned the first three "
        "loaves. The bicycle that I bought at the market is red, with a basket in front and a bell that "
        "hardly rings. In the evenings we listened to old records, mended two chairs and a lamp, and wrote "
        "letters to everybody who had moved away, some of whom even answered within a month.",
        None,
    ),
]
ASK = [
    ("What is Maya's cat called?", QueryType.factual_extraction),
    ("What colour is the bicycle that Maya bought?", QueryType.factual_extraction),
    ("What did Maya do in July?", QueryType.temporal_reasoning),
    ("Did Maya adopt the cat before she moved to Bristol?", QueryType.temporal_reasoning),
    ("When did Maya break her arm?", QueryType.temporal_reasoning),
    ("Where does Maya live now?", QueryType.knowledge_update),
    ("How often does Maya row now?", QueryType.knowledge_update),
    ("Of the restaurants Maya mentioned, which cuisine did she mention most often?", QueryType.multi_hop),
    ("How many restaurants did Maya eat at?", QueryType.multi_hop),
    ("Which animals does the sister of Maya keep?", QueryType.multi_hop),
    ("Did Maya ever mention her blood type?", QueryType.abstention),
    ("Did Maya ever tell you about a pet?", QueryType.abstention),
    ("Would Maya enjoy a boat trip?", QueryType.open_domain),
    ("Which restaurant would Maya like?", QueryType.preference),
    ("Good morning!", QueryType.factual_extraction),
]
# values that no planner sets, so that the walk covers every field
BY_HAND = [
    *(
        RetrievalPlan(weights={"lexical": 1.0}, queries=("the red bicycle", "restaurant"), merge=merge)
        for merge in ("question", "keep")
    ),
    RetrievalPlan(weights={"content": 1.0, "lexical": 1.0}, pool=3),
    RetrievalPlan(weights={"hybrid": 1.0}, token_budget=40),
    RetrievalPlan(prefer_latest=True, latest_rule="similarity", latest_similarity=0.3),
    RetrievalPlan(weights={"hybrid": 1.0}, relevance_threshold=0.8, relevance_low=0.8, gate="cosine"),
    RetrievalPlan(weights={"hybrid": 1.0}, relevance_threshold=0.9, relevance_low=0.9, gate="none"),
    RetrievalPlan(
        weights={"content": 1.0},
        time_window=("2024-07-01", "2024-08-01"),
        window_rule="hard",
        window_grace=10,
    ),
    RetrievalPlan(weights={"hybrid": 1.0}, answer_as="directly", k=3),
    RetrievalPlan(weights={"hybrid": 1.0}, prefer_latest=True, latest_rule="pairs"),
    RetrievalPlan(weights={"hybrid": 1.0}, relate=True, collect=True, select="cover", k=3),
    RetrievalPlan(weights={"hybrid": 1.0}, layers=("key",)),
    RetrievalPlan(weights={"hybrid": 1.0}, owners=("Ravi",)),
    RetrievalPlan(weights={"hybrid": 1.0}, tags=("a", "b")),
    RetrievalPlan(weights={"hybrid": 1.0}, passages=1),
    RetrievalPlan(weights={"hybrid": 1.0}, reranker="shortest first", rerank_depth=6),
]


# ablations and baselines that set a field that no other system sets
ALSO = (
    *("rounds + expansion", "adaptmr w/o shared words", "adaptmr, update by attribute"),
    "longmemeval_rag",
)


class ShortestFirst:
    """A reranker without a model."""

    name = "shortest first"

    def scores(self, query: str, texts: list[str]) -> list[int]:
        return [-len(text) for text in texts]


class Case(NamedTuple):
    """A plan that a planner made, and the scenario that it was made for."""

    plan: RetrievalPlan
    question: Question


def memories() -> list[Memory]:
    return [
        Memory(
            f"m{i:02}",
            text,
            who,
            f"{day}T12:{i:02}",
            happened,
            session=session,
            step=i,
            source=f"m{i:02}",
            tags=(session,),
            owner=who,
        )
        for i, (who, day, session, text, happened) in enumerate(EN)
    ]


def invented(schema: dict[str, Any], words: list[str], draw: random.Random) -> Any:
    """Return a value that fits a JSON schema, with words of the prompt."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        return {name: invented(part, words, draw) for name, part in schema["properties"].items()}
    if kind == "array":
        n = draw.randrange(1, 1 + min(3, schema.get("maxItems", 3)))
        return [invented(schema["items"], words, draw) for _ in range(n)]
    if kind == "boolean":
        return draw.random() < 0.5
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 6)
        return draw.randint(low, min(high, 6)) if kind == "integer" else round(draw.uniform(low, high), 2)
    return " ".join(draw.sample(words, min(2, len(words))))[: schema.get("maxLength", 100)]


def sensitive_reply(body: dict[str, Any]) -> Any:
    """Reply by a draw that the whole prompt decides: whatever reaches the model changes what it says."""
    prompt = json.dumps(body["messages"], ensure_ascii=False, sort_keys=True)
    draw = random.Random(hashlib.sha256(prompt.encode()).digest())
    words = [w for w in body["messages"][1]["content"].split() if w.isalpha()] or ["word"]
    return ok_json(invented(body["response_format"]["json_schema"]["schema"], words, draw))


@pytest.fixture(scope="module")
def store() -> Iterator[MemoryStore]:
    with MemoryStore(embedder="hash") as made:
        made.add(memories())
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with Server(answering(sensitive_reply)) as server:
        yield LLM("m", base_url=server.url, sleep=lambda s: None, timeout=10)


def planners(llm: LLM) -> Iterator[Any]:
    """The planners of the package: of systems with and without a model, of each strategy, by hand."""
    for name in (*known_systems(), *ALSO):
        planner = get_capabilities(make_system(name, llm, embedder="hash")).planner
        if planner is not None:
            yield planner
        if planner_llm(planner) is not None:
            yield get_capabilities(make_system(name, embedder="hash")).planner
    for strategy in (*dict.fromkeys(STRATEGIES.values()), entity_rerank):
        yield StrategyPlanner(strategy)
    yield from (FixedPlanner(plan, "by hand") for plan in BY_HAND)


def set_fields(plan: RetrievalPlan) -> list[str]:
    """Return the fields that differ from a plan's defaults, those that are a choice with their value."""
    default = RetrievalPlan()
    changed = [f.name for f in fields(plan) if getattr(plan, f.name) != getattr(default, f.name)]
    return [f"{name}={getattr(plan, name)}" if name in CHOICES else name for name in changed]


def reset(plan: RetrievalPlan, name: str) -> RetrievalPlan:
    """Return the plan with a field at its default, or as near to it as a valid plan has it."""
    default = getattr(RetrievalPlan(), name)
    if name == "relevance_threshold":
        default = max(default, plan.relevance_low)  # the lower threshold may not lie above it
    return replace(plan, **{name: default})


def effect(case: Case, store: MemoryStore, llm: LLM) -> Any:
    """Return what a plan leads to: hits with their notes, findings, the context, the answer's prompt."""
    request = make_request(case.question, store, None)
    plan = case.plan.sized(4) if case.plan.k == RetrievalPlan().k else case.plan  # fewer than there are
    found = run_request(plan, request, llm=llm, reranker=ShortestFirst())
    asked = ANSWER.messages("en", question=case.question.text, evidence=found) if found.has_relevant else ""
    hits = [(h.memory.id, h.note) for h in found.hits]
    return hits, found.has_relevant, found.findings, found.context, asked


class Walk:
    """Runs plans on their scenarios, each plan once."""

    def __init__(self, store: MemoryStore, llm: LLM) -> None:
        self.store, self.llm = store, llm
        self.known: dict[Case, Any] = {}

    def effect(self, case: Case) -> Any:
        if case not in self.known:
            self.known[case] = effect(case, self.store, self.llm)
        return self.known[case]

    def acts(self, case: Case, name: str) -> bool:
        """Return whether the field changes something in this case."""
        other = case._replace(plan=reset(case.plan, name))
        return other.plan != case.plan and self.effect(case) != self.effect(other)


@pytest.fixture(scope="module")
def walked(store: MemoryStore, llm: LLM) -> dict[str, Case | None]:
    """The fields that planners set, each with a case in which resetting it changes something, or `None`."""
    cases: dict[str, dict[Case, None]] = {}
    for planner in planners(llm):
        for text, question_type in ASK:
            question = Question("", text, type=question_type, asked_at=ASKED_AT)
            for _, plan in weighted_plans(planner, question, store):
                case = Case(replace(plan, planner="", fallback=None), question)
                for key in set(set_fields(case.plan)) - PROVENANCE:
                    cases.setdefault(key, {})[case] = None
    walk = Walk(store, llm)
    return {
        key: next((c for c in found if walk.acts(c, key.split("=")[0])), None) for key, found in cases.items()
    }


@pytest.mark.parametrize("name", [f.name for f in fields(RetrievalPlan) if f.name not in PROVENANCE])
def test_what_a_planner_sets_changes_something_somewhere(walked, name):
    keys = [key for key in walked if key.split("=")[0] == name]
    assert keys, f"no planner sets {name}: set it in BY_HAND"
    inert = [key for key in keys if walked[key] is None]
    assert not inert, f"{inert}: resetting it changed neither hits, notes, findings, context nor prompt"


def test_the_walk_sees_a_field_that_acts_on_nothing(store, llm):
    question = Question("", ASK[0][0], asked_at=ASKED_AT)
    plan = RetrievalPlan(weights={"hybrid": 1.0}, planner="mine", hint="a hint that nobody refines by")
    case = Case(plan, question)
    walk = Walk(store, llm)
    assert set_fields(plan) == ["weights", "hint", "planner"]
    assert not walk.acts(case, "planner") and not walk.acts(case, "hint") and walk.acts(case, "weights")
