"""A store in an agent: one user never sees another's memories, the past stays, threads and tasks share it."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import adaptmr as am
from adaptmr.llm.spending import count_tokens
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter
from adaptmr.types import Evidence, Memory

WORDS = am.RetrievalPlan(weights=HYBRID_WEIGHTS)
START = datetime(2024, 1, 1, tzinfo=UTC)
THINGS = "cat bicycle flat sister job garden piano boat market hospital train library".split()
PLACES = "Bergen Oslo Rome Delhi Leeds Bristol".split()
SENTENCES = (
    "I moved to {place} with my {thing}.",
    "My {thing} is in {place} now.",
    "Do you like the {thing}?",
    "I sold the {thing} last week.",
    "Last month I lost my {thing} in {place}.",
)
QUESTIONS = (
    "Where do I live now?",
    "Where is my {thing}?",
    "When did I move to {place}?",
    "What did I do in {place} last month?",
    "Did I sell the {thing} before I moved to {place}?",
    "How many times did I move?",
    "Did I ever mention a {thing}?",
    "Which {thing} does my sister have in {place}?",
    "{thing}",
)


def sentence(rng: random.Random, forms: tuple[str, ...]) -> str:
    return rng.choice(forms).format(place=rng.choice(PLACES), thing=rng.choice(THINGS))


def said(rng: random.Random, n: int) -> list[Memory]:
    """Return what two users said in turn, in sessions of the same names, about the same things."""
    return [
        Memory(
            f"{user}{i}",
            sentence(rng, SENTENCES),
            rng.choice(("me", "assistant")),
            START + timedelta(days=i),
            session=f"S{i // 5}",
            step=i,
            tags=(rng.choice(("home", "work")),),
            owner=user,
            meta={"agent": rng.choice(("travel", "pets"))},
        )
        for i in range(n)
        for user in [rng.choice(("ann", "bob"))]
    ]


def store_of(memories: list[Memory], **options: Any) -> MemoryStore:
    store = MemoryStore(embedder="hash", **options)
    store.add(memories)
    return store


def seen(found: Evidence) -> tuple[Any, ...]:
    """Return all of an evidence but the trace's row on what is hidden, and the time it took."""
    rows = [row for row in found.trace if row.step not in ("where", "as of")]
    judged = found.has_relevant, found.relevance, found.findings, found.outdated
    return found.hits, found.context, judged, rows


# --- isolation


def some_conditions(rng: random.Random) -> dict[str, Any]:
    """Return conditions for a `Filter`, each in about one question of five."""
    conditions = {
        "tags": rng.choice((["home"], ["home", "work"])),
        "agent": rng.choice(("travel", "pets")),
        "speaker": rng.choice(("me", "ASSISTANT")),
        "session": f"S{rng.randrange(12)}",
        "since": START + timedelta(days=rng.randrange(40)),
        "until": START + timedelta(days=40 + rng.randrange(30)),
        "layers": ("",),
    }
    return {name: value for name, value in conditions.items() if rng.random() < 0.2}


def check_queries(n: int, seed: int) -> None:
    """Ask `n` random questions of two users who share a store that changes; each as if it was alone."""
    rng = random.Random(seed)
    memories = said(rng, 60)
    shared = store_of(memories)
    alone = {user: store_of([m for m in memories if m.owner == user]) for user in ("ann", "bob")}
    for number in range(n):
        if number % 50 == 49:  # somebody says something, or changes it
            user, at = rng.choice(("ann", "bob")), START + timedelta(days=60 + number / 50)
            for store in (shared, alone[user]):
                store.add(f"I met {user} number {number}.", user=user, at=at, id=f"{user}-{number}")
            changed = rng.choice(list(alone[user].memories)).id
            for store in (shared, alone[user]):
                old = store.get(changed)
                store.update(replace(old, text=f"{old.text} No, {number}.", at=at))
        user = rng.choice(("ann", "bob"))
        text, moment = sentence(rng, QUESTIONS), START + timedelta(days=rng.randrange(70))
        as_of = moment if rng.random() < 0.3 else None
        more = some_conditions(rng)
        where = Filter(user=user, **more)
        found = am.retrieve(text, shared, k=rng.choice((1, 5, 10)), where=where, as_of=as_of)
        assert {h.memory.owner for h in found.hits} <= {user}, (text, where, as_of)
        if number % 10 == 0:
            k = len(found.hits) + 5
            one = am.retrieve(text, shared, k=k, where=where, as_of=as_of)
            hers = am.retrieve(text, alone[user], k=k, where=Filter(**more), as_of=as_of)
            assert [(h.memory.text, h.note) for h in one.hits] == [
                (h.memory.text, h.note) for h in hers.hits
            ], (text, where, as_of)


def test_random_queries_of_two_users_never_leak() -> None:
    check_queries(150, seed=1)


@pytest.mark.slow
def test_thousands_of_random_queries_of_two_users_never_leak() -> None:
    check_queries(2_500, seed=2)


@dataclass
class Spy:
    """A planner that keeps what it is shown, after `meanwhile` was called."""

    meanwhile: Any = None
    name: str = "spy"
    shown: list[Memory] = field(default_factory=list)

    def plan(self, query: Any, store: Any) -> am.RetrievalPlan:
        if self.meanwhile is not None:
            self.meanwhile()
        self.shown += [*store.memories, *store.recent(99)]
        return WORDS


def test_a_planner_sees_what_the_question_may_see_and_holds_up_nobody_who_writes() -> None:
    for others in (True, False):  # a shared store, and one with only her memories at first
        store = store_of([m for m in said(random.Random(5), 40) if others or m.owner == "ann"])
        found_at_once = []

        def write(store: MemoryStore = store, kept: list[bool] = found_at_once) -> None:
            store.add(Memory("late", "Bob lives in Rome.", at=START, step=99, owner="bob"))
            kept.append("late" in [m.id for m in store.memories])

        spy = Spy(write)  # another user speaks while the plan is made
        found = am.retrieve("Where do I live?", store, planner=spy, where=Filter(user="ann"))
        assert spy.shown and {m.owner for m in spy.shown} == {"ann"} == {h.memory.owner for h in found.hits}
        assert found_at_once == [others] and store.get("late") is not None


def test_a_lost_name_opens_nothing() -> None:
    for name, lost in (("user", None), ("user", ""), ("agent", ""), ("session", None), ("speaker", "")):
        with pytest.raises(ValueError, match=f"Filter.{name} {lost!r}"):
            Filter(**{name: lost})


# --- the budget


def test_a_prompt_keeps_to_its_budget_in_chinese_and_with_tags_in_the_texts() -> None:
    store = MemoryStore(embedder="hash")
    texts = [f"我昨天去了北京的医院看牙医，医生说没事，第{i}次。" for i in range(30)]
    texts += [f"</memories> I saw dentist {i} in Oslo. <memories>" for i in range(30)]
    store.add(texts, user="ann")
    lengths = []
    for budget in (1, 7, 19, 40, 100, 1000):
        for text in ("我什么时候看了牙医？", "Which dentist did I see?"):
            prompt = am.retrieve(text, store, k=60, token_budget=budget).to_prompt()
            assert count_tokens(prompt) <= budget
            assert prompt.count("<memories>") == prompt.count("</memories>") == bool(prompt)
            lengths.append(count_tokens(prompt))
    assert lengths[-1] > 500 and lengths[0] == 0, "the budget is used"


# --- what comes in


def test_a_message_of_another_user_is_refused_and_nothing_is_added() -> None:
    store = MemoryStore(embedder="hash")
    talk = [{"role": "user", "content": "Hi"}, {"role": "user", "content": "I am Bob", "user": "bob"}]
    with pytest.raises(ValueError, match=r"has the user 'bob', and .* was given user='ann'"):
        store.add(talk, user="ann")
    assert len(store) == 0


def test_a_filter_without_a_condition_deletes_nothing() -> None:
    store = MemoryStore(embedder="hash")
    store.add(["one", "two"], user="ann")
    for where in (Filter(), Filter(status=None)):
        for soft in (True, False):
            with pytest.raises(ValueError, match="where has no condition, so all 2 memories would be"):
                store.delete(where=where, soft=soft)
    assert len(store) == 2


# --- threads and tasks


def test_an_event_loop_goes_on_while_a_question_is_answered() -> None:
    store = store_of(said(random.Random(13), 30))
    loop_went_on = threading.Event()

    async def meanwhile() -> None:
        loop_went_on.set()

    async def both() -> Evidence:
        waiting = Spy(lambda: loop_went_on.wait(30))
        found, _ = await asyncio.gather(
            am.aretrieve("Where do I live now?", store, planner=waiting, where=Filter(user="ann")),
            meanwhile(),
        )
        return found

    found = asyncio.run(both())
    assert loop_went_on.is_set() and found.plan == WORDS
    assert seen(found) == seen(
        am.retrieve("Where do I live now?", store, planner=Spy(), where=Filter(user="ann"))
    )
