"""Test parts of a store: a search of one finds what a store of that part alone gives, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.fusion import fit_for
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS, STRATEGIES, StrategyPlanner, entity_rerank
from adaptmr.retrieval.visible import store_part
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter
from adaptmr.types import Memory, Question

SEPTEMBER = datetime(2024, 9, 10, tzinfo=UTC)
WORDS = RetrievalPlan(weights=HYBRID_WEIGHTS)
MAYA = [
    ("Maya", "2024-01-05", "I live in Leeds, near the canal.", "home"),
    ("Tom", "2024-01-05", "Do you like living in Leeds?", "home"),
    ("Maya", "2024-02-02", "My sister Nadia keeps bees behind her barn.", "family"),
    ("Maya", "2024-03-15", "I adopted a cat called Biscuit.", "pets"),
    ("Tom", "2024-03-16", "What colour is Biscuit?", "pets"),
    ("Maya", "2024-03-16", "Biscuit is grey, and she sleeps all day.", "pets"),
    ("Maya", "2024-04-20", "I moved to Bristol last week, into a small flat.", "home"),
    ("Maya", "2024-07-12", "I bought a red bicycle at the market.", "things"),
    ("Maya", "2024-08-03", "I broke my arm falling off the bicycle.", "health"),
    ("Tom", "2024-09-01", "I work at the library now; before I was a postman.", "work"),
]
RAVI = [
    ("Ravi", "2024-01-06", "I live in Delhi, near the cat market.", "home"),
    ("Maya", "2024-03-15", "I adopted a cat called Zorro, in July.", "pets"),
    ("Ravi", "2024-04-21", "I moved to Bristol yesterday, and sold the bicycle.", "home"),
    ("Ravi", "2024-10-20", "Biscuit broke my arm.", "health"),
]
DERIVED = [
    ("key", "2024-03-15", "Biscuit the cat is allergic to fish.", "pets", 0.9),
    ("key", "2024-04-20", "Maya lives in Bristol now.", "home", 0.7),
    ("summary", "2024-08-30", "Maya moved, adopted a cat and broke her arm.", "home", None),
]
ASKED = (
    "Where do I live now?|What is the cat called?|What did Maya do in July?|"
    "Did Maya adopt the cat before she moved to Bristol?|Which animals does the sister of Maya keep?|"
    "Did Maya ever mention her blood type?|What did I buy last month?|How many pets does Maya have?|"
).split("|")


def turns(rows, owner, first):
    return [
        Memory(
            f"{owner}{i}",
            text,
            who,
            at,
            session=f"S{i // 3}",  # the sessions of both owners have the same names
            step=first + 2 * i,
            source=f"{owner}:{i}",
            tags=(tag,),
            owner=owner,
        )
        for i, (who, at, text, tag) in enumerate(rows)
    ]


def derived(owner="maya"):
    return [
        Memory(
            f"{owner}-{layer}{i}",
            text,
            at=at,
            session="S0",
            step=3 * i,
            tags=(tag,),
            owner=owner,
            layer=layer,
            meta={} if priority is None else {"priority": priority},
        )
        for i, (layer, at, text, tag, priority) in enumerate(DERIVED)
    ]


HERS, HIS, MADE = turns(MAYA, "maya", 0), turns(RAVI, "ravi", 1), derived()
ALL = [*HERS, *HIS, *MADE]
PARTS = {
    "her turns": {"owners": ("maya",), "layers": ("",)},
    "his": {"owners": ("ravi",)},
    "turns": {"layers": ("",)},
    "all of hers": {"owners": ("maya",)},
    "pets and home": {"tags": ("pets", "home")},
    "her pets, said": {"owners": ("maya",), "tags": ("pets",), "layers": ("",)},
    "key": {"layers": ("key",)},
    "key or summary": {"layers": ("key", "summary")},
    "nobody's": {"owners": ("nobody",)},
}


def belongs(m, layers=None, owners=None, tags=None):
    return (
        (layers is None or m.layer in layers)
        and (owners is None or m.owner in owners)
        and (tags is None or bool(set(tags) & set(m.tags)))
    )


@pytest.fixture(scope="module")
def mixed():
    with MemoryStore(embedder="hash") as s:
        s.add(ALL)
        yield s


@pytest.fixture(scope="module")
def alone():
    """Stores that hold one part and nothing else."""
    stores = {}
    for name, part in PARTS.items():
        stores[name] = MemoryStore(embedder="hash")
        stores[name].add([m for m in ALL if belongs(m, **part)])
    yield stores
    for s in stores.values():
        s.close()


def ids(found):
    return [h.memory.id for h in found.hits]


def summary(found):
    """Describe a result without times, the plan, and the rows that say what was hidden."""
    hits = [(h.memory.id, h.score, sorted(h.signals.items()), h.note) for h in found.hits]
    rows = [(t.step, t.n_in, t.n_out, t.reason) for t in found.trace if t.step not in ("part", "as of")]
    return repr((hits, rows, found.has_relevant, found.relevance, found.context, found.outdated))


def row(found, step):
    return next(t for t in found.trace if t.step == step)


# --- the same result as a store of the part alone


@pytest.mark.parametrize(
    ("part", "asked_at"), [("her turns", None), ("his", SEPTEMBER), ("her pets, said", SEPTEMBER)]
)
def test_every_strategy_finds_what_it_finds_in_a_store_of_the_part(mixed, alone, part, asked_at):
    n_hits = 0
    for strategy in (*dict.fromkeys(STRATEGIES.values()), entity_rerank):
        for text in ASKED:
            question = Question("", text, asked_at=asked_at) if asked_at else text
            plan = StrategyPlanner(strategy).plan(question, alone[part])
            wanted = execute(plan, question, alone[part])
            found = execute(replace(plan, **PARTS[part]), question, mixed)
            assert summary(found) == summary(wanted), (strategy.__name__, text)
            n_hits += len(found.hits)
    assert n_hits > 20


# --- the trace, and what is not restricted


# --- the gate: only turns open it

GATED = replace(WORDS, relevance_threshold=0.9, relevance_low=0.9)
SURE = replace(fit_for("hash"), seen={})  # a fit whose probability closes the gate on any store
PIANO = Memory("p", "Who tuned the piano? Maya wants the piano tuned.", at="2024-03-01", layer="key")


@pytest.mark.parametrize("seen", [{}, None], ids=["fit applies", "shipped fit"])
def test_a_key_memory_alone_opens_no_gate(seen):
    fit = fit_for("hash") if seen is None else SURE
    question = Question("", "Who tuned the piano?", asked_at=SEPTEMBER)
    with MemoryStore(embedder="hash") as said, MemoryStore(embedder="hash") as s:
        said.add(HERS)
        s.add([*HERS, PIANO])
        for plan in (GATED, replace(GATED, gate="cosine"), replace(GATED, relevance_low=0.0)):
            without, found = (execute(plan, question, store, fit=fit) for store in (said, s))
            assert not without.has_relevant, "the turns say nothing of it"
            assert not found.has_relevant and found.hits == [] and found.relevance == without.relevance
        open_ = execute(WORDS, question, s, fit=fit)
        assert open_.hits[0].memory.id == "p" and open_.has_relevant, "without a threshold it is returned"


def test_a_store_without_turns_answers_nothing():
    with MemoryStore(embedder="hash") as s:
        s.add([*MADE, PIANO])
        for plan in (GATED, replace(GATED, gate="cosine")):
            found = execute(plan, "Who tuned the piano?", s)
            assert not found.has_relevant and found.hits == [] and found.relevance == 0
            assert row(found, "gate").reason == "only derived memories: no turn to judge by"
        found = execute(WORDS, "Who tuned the piano?", s)
        assert found.hits[0].memory.id == "p" and found.relevance == 0, "no threshold, and no probability"


# --- derived memories are ranked by a sum that can be worked out by hand


# --- a part follows its store


@st.composite
def changes(draw):
    n = draw(st.integers(1, 12))
    return [
        (
            draw(st.sampled_from(["add", "add", "update", "delete", "restore", "ask", "ask"])),
            draw(st.integers(0, 9)),
            draw(st.sampled_from(["cat", "the cat Biscuit sleeps.", "I live in Leeds. It rains.", "Zorro"])),
            draw(st.sampled_from([("", "maya"), ("", "ravi"), ("key", "maya")])),
        )
        for _ in range(n)
    ]


@given(changes())
@settings(max_examples=20, deadline=None)
def test_after_any_changes_a_part_is_what_a_new_store_would_be(history):
    where = Filter(owners=("maya",), layers=("",))
    plan = replace(WORDS, owners=("maya",), k=99)
    with MemoryStore(embedder="hash") as s:
        for what, i, text, (layer, owner) in history:
            m = Memory(
                f"m{i}", text, "Maya", SEPTEMBER + timedelta(hours=i), step=i, layer=layer, owner=owner
            )
            known = s.get(m.id)
            if what == "add" and known is None:
                s.add(m)
            elif what == "update" and known is not None:
                s.update(replace(m, version=known.version))
            elif what in ("delete", "restore") and known is not None:
                (s.delete if what == "delete" else s.restore)(m.id)
            elif what == "ask":
                execute(plan, "cat", s)
                store_part(s, where)
        part = store_part(s, where)
        wanted = [m for m in s.memories if m.owner == "maya" and not m.layer]
        with MemoryStore(embedder="hash") as new:
            new.add([replace(m, version=1) for m in wanted])
            assert [m.id for m in part.memories] == [m.id for m in new.memories] == [m.id for m in wanted]
            assert part.bm25("the cat lives").tolist() == new.bm25("the cat lives").tolist()
            assert part.dense("cat").tolist() == new.dense("cat").tolist()
            new.add([replace(m, version=1) for m in s.memories if m.owner == "maya" and m.layer])
            found = execute(plan, "Does the cat sleep?", s)
            fresh = execute(plan, "Does the cat sleep?", new)
            assert [(h.memory.id, h.score) for h in found] == [(h.memory.id, h.score) for h in fresh]
            assert found.relevance == fresh.relevance
