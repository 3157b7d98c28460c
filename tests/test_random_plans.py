"""Two users with almost the same memories in one store, and random plans: each finds what is theirs alone."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest

import adaptmr as am
from adaptmr.reader import answer
from adaptmr.retrieval import plan as plans
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.signals import SIGNALS
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter
from adaptmr.types import Evidence, Memory, QueryType

START = datetime(2024, 1, 1, tzinfo=UTC)
SECRETS = {"ann": ("Bergen", "Momo"), "bob": ("Lisbon", "Zorro")}
SAID = (
    "I live in {place} near the harbour.|I moved to {place} last week.|"
    "My sister Nadia keeps bees in {place}.|I adopted a cat called {cat}.|{cat} is grey and sleeps all day.|"
    "I bought a bicycle in {place}.|I sold the bicycle before I moved to {place}.|"
    "Last month I lost my keys in {place}.|我住在{place}，有一只猫。|Do you like {place}?"
).split("|")
ASKED = (
    "Where do I live now?|What is my cat called?|When did I move?|What did I lose last month?|"
    "Did I sell the bicycle before I moved?|How many times did I move?|Did I ever mention Zorro?|"
    "Does Nadia keep bees in Lisbon?|Which cat sleeps in Bergen, and where does its owner live?|"
    "我住在哪里？||Zorro Lisbon Momo Bergen"
).split("|")


def memories_of(user: str) -> list[Memory]:
    """Return what a user said, and summaries of it: the same for both, but for a place and a name."""
    rng, (place, cat) = random.Random(4), SECRETS[user]
    return [
        Memory(
            f"{user}{i}",
            rng.choice(SAID).format(place=place, cat=cat),
            rng.choice(("me", "assistant")),
            START + timedelta(days=i),
            session=f"S{i // 5}",
            step=i,
            source=f"D{i}",  # both users' sources have the same names
            tags=(rng.choice(("home", "work")),),
            layer="" if i % 7 else "summary",
            owner=user,
            meta={"agent": rng.choice(("travel", "pets"))},
        )
        for i in range(40)
    ]


@cache
def stores() -> tuple[MemoryStore, dict[str, MemoryStore]]:
    """Return a store that both share, and a store of each alone; some memories were updated later."""
    both = {user: memories_of(user) for user in SECRETS}
    shared = MemoryStore(embedder="hash")
    shared.add([m for pair in zip(*both.values()) for m in pair])
    alone = {user: MemoryStore(embedder="hash") for user in both}
    for user, memories in both.items():
        alone[user].add(memories)
    for store in (shared, *alone.values()):
        for id in (f"{user}{i}" for user in SECRETS for i in (3, 8, 12)):
            if (m := store.get(id)) is not None:
                store.update(replace(m, text=f"{m.text} Really.", at=START + timedelta(days=45)))
    return shared, alone


def random_plan(rng: random.Random) -> RetrievalPlan:
    """Return a plan with a random value of every field that may change what is found."""
    choices: dict[str, tuple[Any, ...]] = {
        "queries": ((), ("cat",), ("live in Lisbon", "Zorro")),
        "multi_step": (False, True),
        "interim": (False, True),
        "merge": plans.MERGES,
        "pool": (1, 3, 50),
        "without": ((), ("dense",), ("previous", "session")),
        "fusion": plans.FUSIONS,
        "entity_boost": (0.0, 0.5, 1.0),
        "layers": (None, None, ("",), ("", "summary")),
        "owners": (None, None, ("ann", "bob")),
        "tags": (None, None, ("home",)),
        "time_window": (None, ("2024-01-05", "2024-02-01")),
        "window_rule": plans.WINDOW_RULES,
        "window_by": plans.WINDOW_TIMES,
        "window_grace": (0, 5),
        "temporal_order": (False, True),
        "prefer_latest": (False, True),
        "latest_similarity": (0.5, 0.85),
        "latest_rule": plans.LATEST_RULES,
        "gate": plans.GATES,
        "relevance_threshold": (0.0, 0.5),
        "check": (False, True),
        "max_rounds": (1, 2, 4),
        "follow": plans.FOLLOWS,
        "confidence_threshold": (0.7, 1.0),
        "expand": (0, 2),
        "refine": (False, True),
        "rerank_tokens": (0, 200),
        "passages": (0, 1),
        "select": plans.SELECTIONS,
        "relate": (False, True),
        "collect": (False, True),
        "answer_as": tuple(style for style in plans.ANSWER_STYLES if style != "directly"),
        "k": (1, 5, 15),
        "token_budget": (None, 40, 200),
        "hint": ("", "home"),
    }
    weights = {name: rng.choice((0.3, 1.0, -1.0)) for name in rng.sample(("hybrid", *SIGNALS), 3)}
    return RetrievalPlan(weights=weights, **{name: rng.choice(values) for name, values in choices.items()})


def random_conditions(rng: random.Random) -> dict[str, Any]:
    """Return conditions of a filter besides its user."""
    conditions = {
        "tags": "home",
        "agent": "pets",
        "speaker": "me",
        "session": f"S{rng.randrange(8)}",
        "since": START + timedelta(days=rng.randrange(30)),
        "until": START + timedelta(days=30 + rng.randrange(30)),
        "layers": ("",),
    }
    return {name: value for name, value in conditions.items() if rng.random() < 0.2}


def told(found: Evidence) -> tuple[Any, ...]:
    """Return all that an evidence tells, but what was hidden and how long it took."""
    rows = [(t.step, t.n_in, t.n_out, t.reason) for t in found.trace if t.step not in ("where", "as of")]
    return (
        found.hits,
        found.has_relevant,
        found.relevance,
        found.context,
        found.findings,
        found.outdated,
        rows,
    )


def check_plans(n: int, seed: int) -> None:
    """Run `n` random plans for one of two users, and compare with a store in which that user is alone."""
    rng, (shared, alone) = random.Random(seed), stores()
    for _ in range(n):
        user, other = rng.sample(sorted(SECRETS), 2)
        plan, text, more = random_plan(rng), rng.choice(ASKED), random_conditions(rng)
        as_of = START + timedelta(days=rng.randrange(60)) if rng.random() < 0.4 else None
        found = execute(plan, text, shared, where=Filter(user=user, **more), as_of=as_of)
        case = (text, user, more, as_of, plan)
        assert {h.memory.owner for h in found.hits} <= {user}, case
        given = answer(text, found)
        shown = repr((found.hits, found.context, found.findings, found.outdated, found.trace, given.text))
        asked = " ".join((text, *plan.queries))
        assert not [s for s in SECRETS[other] if s in shown and s not in asked], case
        where = Filter(**more) if more else None
        hers = execute(plan, text, alone[user], where=where, as_of=as_of)
        assert told(found) == told(hers), case


def test_random_plans_of_two_users_never_leak() -> None:
    check_plans(60, seed=1)


@pytest.mark.slow
def test_thousands_of_random_plans_of_two_users_never_leak() -> None:
    check_plans(2_000, seed=2)


def test_the_random_plans_set_every_field() -> None:
    """A new field of a plan has to be tried here, too."""
    rng = random.Random(0)
    made = [random_plan(rng) for _ in range(200)]
    constant = {f.name for f in fields(RetrievalPlan) if len({repr(getattr(p, f.name)) for p in made}) == 1}
    assert constant == {"relevance_low", "reranker", "rerank_depth", "planner", "fallback"}


PLANNERS = {
    "router": lambda: am.Router(),
    "mixture": lambda: am.Mixture(threshold=0.0),
    "QARP": lambda: am.QARP(am.LLM("offline")),
    **{
        f"type {t}": lambda t=t: am.Router(question_type=lambda question: t)  # each of the five strategies
        for t in QueryType
    },
}


@pytest.mark.parametrize("name", PLANNERS)
def test_every_planner_keeps_to_the_user(name: str) -> None:
    shared, alone = stores()
    for user in SECRETS:
        for text in ASKED:
            for as_of in (None, START + timedelta(days=20)):
                found = am.retrieve(
                    text, shared, planner=PLANNERS[name](), where=Filter(user=user), as_of=as_of, k=5
                )
                hers = am.retrieve(text, alone[user], planner=PLANNERS[name](), as_of=as_of, k=5)
                assert told(found) == told(hers), (user, text, as_of)
