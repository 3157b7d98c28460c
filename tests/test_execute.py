"""Test the executor: each step and its trace row, edge cases, errors, determinism."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptmr.llm.spending import count_tokens
from adaptmr.reader import render_line
from adaptmr.retrieval.evidence import line_tokens, render_context
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.fusion import ANY_EMBEDDER, Fit, FitError, fit_for
from adaptmr.retrieval.plan import FUSIONS, WEIGHT_SETS, RetrievalPlan
from adaptmr.retrieval.signals import SIGNALS
from adaptmr.retrieval.strategies import HYBRID_WEIGHTS
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Evidence, Memory

DAY0 = datetime(2024, 1, 1, tzinfo=UTC)
TEXTS = (
    "I live in Beijing, near the drum tower.|I have a cat called Snowy.|I started a pottery course.|"
    "I moved to Hangzhou last week.|The pottery teacher is called Mr. Lin.|My cat broke a bowl.|"
    "I sold my old bicycle.|I ran 5 km.|I ran 10 km.|Good night."
).split("|")
TURNS = [
    Memory(
        f"m{i}",
        t,
        "Maya",
        DAY0 + timedelta(days=30 * i),
        session=f"S{i // 2}",
        step=i,
        source=f"S{i // 2}:{i % 2}",
    )
    for i, t in enumerate(TEXTS)
]
LEXICAL = RetrievalPlan(weights={"lexical": 1.0})
WORDS = RetrievalPlan(weights=HYBRID_WEIGHTS)


def fixed(p):
    """A fit that says `p` whatever it sees, with the weights of the shipped one."""
    return Fit("hash", weights=fit_for("hash").weights, relevance={"intercept": float(np.log(p / (1 - p)))})


@pytest.fixture(scope="module")
def store():
    with MemoryStore(embedder="hash") as s:
        s.add(TURNS)
        yield s


def steps(found):
    return [t.step for t in found.trace]


def row(found, step):
    return next(t for t in found.trace if t.step == step)


def chained(found):
    """Each step takes what the one before gave; a search looks at candidates, which lie outside a window
    too, once for each query.
    """
    rows = found.trace[steps(found).index("search") :]
    return all(a.n_out == b.n_in for a, b in pairwise(rows)) and rows[-1].n_out == len(found.hits)


def ids(found):
    return [h.memory.id for h in found.hits]


# --- search and cut


def test_a_plain_search(store):
    found = execute(LEXICAL, "Is the cat called Snowy?", store)
    assert found.hits[0].memory.id == "m1" and found.plan is LEXICAL and found.has_relevant
    assert steps(found) == ["search", "gate", "cut"]
    assert all(t.ms >= 0 for t in found.trace)
    assert found.usage.seconds > 0
    assert found.usage.calls == 0
    assert (row(found, "search").n_in, row(found, "search").n_out, row(found, "search").reason) == (
        10,
        10,
        "1 query of 10 memories; sum of 1·lexical",
    )
    assert (row(found, "cut").n_in, row(found, "cut").n_out, row(found, "cut").reason) == (10, 10, "k = 10")
    assert [h.score for h in found.hits] == sorted((h.score for h in found.hits), reverse=True)
    assert all(round(h.score, 6) == h.score for h in found.hits)
    assert set(found.hits[0].signals) == {"lexical"}
    assert found.context.split("\n") == [render_line(h) for h in found.hits]
    assert found.context == render_context(found.hits)


@pytest.mark.parametrize("k, n", [(0, 0), (1, 1), (10, 10), (11, 10), (1_000_000, 10)])
def test_k(store, k, n):
    found = execute(replace(WORDS, k=k), "pottery", store)
    assert len(found.hits) == n and found.has_relevant and (found.context == "") == (n == 0)
    assert ids(found) == ids(execute(WORDS, "pottery", store))[:n], (
        "a smaller k is the beginning of a larger one"
    )


def test_an_empty_store_knows_nothing():
    with MemoryStore(embedder="hash") as empty:
        for plan in (
            WORDS,
            replace(
                WORDS,
                prefer_latest=True,
                temporal_order=True,
                multi_step=True,
                queries=("a", "b"),
                relevance_threshold=0.5,
            ),
            replace(WORDS, time_window=("2024-01-01", "2024-02-01"), window_rule="hard"),
            replace(WORDS, gate="none"),
        ):
            found = execute(plan, "pottery", empty)
            assert (found.hits, found.has_relevant, found.relevance, found.context) == ([], False, 0.0, "")
            assert row(found, "gate").reason == "nothing found"


# --- several queries


def test_queries_take_turns(store):
    found = execute(replace(LEXICAL, queries=("cat called Snowy", "ran 10 km"), k=2), "whatever", store)
    assert ids(found) == ["m1", "m8"]
    assert not any(h.note for h in found.hits)
    assert row(found, "search").reason == "2 queries of 10 memories; sum of 1·lexical"
    assert len(set(ids(execute(replace(LEXICAL, queries=("cat", "cat called Snowy")), "x", store)))) == 10, (
        "found twice, shown once"
    )


def test_merge_question_keeps_the_best_five_of_the_question(store):
    queries = ("cat called Snowy", "ran 10 km")
    found = ids(execute(replace(LEXICAL, queries=queries, merge="question"), "x", store))
    own = ids(execute(LEXICAL, queries[0], store))
    other = ids(execute(LEXICAL, queries[1], store))
    new = [m for m in other if m not in own[:5]]
    assert found[:5] == own[:5] and found[5] == new[0]
    assert sorted(found) == sorted(own), "each once"


def test_select_cover_prefers_another_session():
    turns = [
        *(
            Memory(f"a{i}", f"pottery bowl glaze {w}", "Maya", session="A", step=i)
            for i, w in enumerate("wxyz")
        ),
        Memory("b", "pottery bowl and some other news of the week", "Maya", session="B", step=5),
        *(Memory(f"f{i}", f"bread number {i}", "Maya", session=f"F{i}", step=6 + i) for i in range(20)),
    ]
    with MemoryStore(embedder="hash") as s:
        s.add(turns)
        plan = replace(LEXICAL, weights={"lexical": 0.25}, k=3)
        ranked, covering = (
            execute(plan, "pottery bowl glaze", s),
            execute(replace(plan, select="cover"), "pottery bowl glaze", s),
        )
        longer = execute(replace(plan, select="cover", k=5), "pottery bowl glaze", s)
    assert ids(ranked) == ["a0", "a1", "a2"]
    assert ids(covering) == ["a0", "b", "a1"] and ids(longer)[:3] == ids(covering)
    assert row(covering, "select").reason == "by what each adds; 1 others"


# --- window


def test_a_hard_window_keeps_what_lies_in_it(store):
    found = execute(
        replace(WORDS, time_window=("2024-01-20", "2024-04-01"), window_rule="hard"), "pottery", store
    )
    assert sorted(ids(found)) == ["m1", "m2", "m3"]
    assert row(found, "window").n_out == 3 == row(found, "search").n_out
    bounds = execute(
        replace(WORDS, time_window=(TURNS[1].at, TURNS[2].at), window_rule="hard"), "pottery", store
    )
    assert ids(bounds) == ["m1"], "the start lies in it, the end does not"


# --- gate


def test_gate_by_probability(store):
    plan = replace(WORDS, relevance_threshold=0.6, relevance_low=0.3)

    def gate(p, text="pottery course"):
        return execute(plan, text, store, fit=fixed(p))

    assert gate(0.61).has_relevant
    assert gate(0.6).has_relevant
    assert "reaches 0.6" in row(gate(0.61), "gate").reason
    shut = gate(0.29)
    assert not shut.has_relevant
    assert shut.hits == []
    assert shut.context == ""
    assert shut.relevance == pytest.approx(0.29)
    assert (row(shut, "gate").n_in, row(shut, "gate").n_out, row(shut, "cut").n_out) == (10, 0, 0)
    assert "P = 0.29 (fit for hash) is below 0.3" in row(shut, "gate").reason


def test_second_check_between_the_thresholds(store):
    plan = replace(WORDS, relevance_threshold=0.6, relevance_low=0.3)
    known, unknown = (
        execute(plan, q, store, fit=fixed(0.45)) for q in ("pottery course", "submarine licence")
    )
    assert known.has_relevant
    assert "second check (offline; 100% of" in row(known, "gate").reason
    assert row(known, "gate").reason.endswith("yes")
    assert not unknown.has_relevant
    assert "second check (offline; 0% of" in row(unknown, "gate").reason
    assert row(unknown, "gate").reason.endswith("no")


# --- a store unlike those that the probability was fitted on

SEEN = {"fewest": 40, "most": 300, "speakers": 1, "base": 0.8}


def small_store(n, who="Maya", text="It rained."):
    s = MemoryStore(embedder="hash")
    s.add(
        [
            Memory(
                f"m{i:03}",
                "I bought a red kayak." if not i else f"{text} {i}",
                who,
                DAY0 + timedelta(days=i),
                step=i,
            )
            for i in range(n)
        ]
    )
    return s


def test_what_is_not_known_does_not_close_the_gate_on_three_memories():
    plan = replace(WORDS, relevance_threshold=0.9, relevance_low=0.9)
    found = execute(plan, "submarine licence", small_store(3), fit=replace(fixed(0.05), seen=SEEN))
    assert found.has_relevant and len(found.hits) == 3
    assert (
        row(found, "gate").reason
        == f"P = {found.relevance:.2f} (fit for hash; 3 memories: fewer than the 40 it was fitted on; "
        f"before shrinking 0.05): gate open"
    )
    assert 0.5 < found.relevance < 0.8


def test_a_fit_for_another_encoder_is_refused(store):
    for plan in (WORDS, LEXICAL):
        with pytest.raises(FitError, match=r"'minilm'.*'hash'.*fit_for\('hash'\)"):
            execute(plan, "pottery", store, fit=fit_for("minilm"))
    with MemoryStore(embedder="hash") as empty, pytest.raises(FitError):
        execute(WORDS, "pottery", empty, fit=Fit("other"))
    assert execute(WORDS, "pottery", store, fit=fit_for("an encoder without a fit")).hits
    assert fit_for("an encoder without a fit").embedder == ANY_EMBEDDER


# --- shared names and words


# --- versions


def test_latest_by_attribute(store):
    found = execute(replace(WORDS, prefer_latest=True), "Where do I live now?", store)
    assert "m0" not in ids(found) and "m3" in ids(found) and len(found.hits) == 9
    assert (
        next(h for h in found.hits if h.memory.id == "m3").note
        == "updated; before: I live in Beijing, near the drum tower."
    )
    assert row(found, "latest").reason == "versions of one fact by attribute"
    assert {"m7", "m8"} <= set(ids(found)), "5 km and 10 km are two runs"


# --- order and budget


@given(st.integers(1, 200))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_budget_holds(store, budget):
    found, free = (
        execute(replace(WORDS, token_budget=budget), "pottery", store),
        execute(WORDS, "pottery", store),
    )
    assert count_tokens(found.context) <= budget
    assert [i for i in ids(free) if i in ids(found)] == ids(found), "some of them, in their order"
    prefix = next((n for n in range(10, 0, -1) if count_tokens(render_context(free.hits[:n])) <= budget), 0)
    assert set(ids(free)[:prefix]) <= set(ids(found)), (
        "no text here repeats another, so all that the rank's own prefix shows is shown"
    )
    left = budget + line_tokens("") - sum(line_tokens(render_line(h)) for h in found.hits)
    assert all(line_tokens(render_line(h)) > left for h in free.hits if h.memory.id not in ids(found)), (
        "what is left out would not have fitted"
    )
    assert row(found, "cut").reason == f"k = 10, {budget} tokens"


# --- a store too large to score whole


@pytest.fixture(scope="module")
def crowd():
    """4,100 memories, of which only the last session's matter."""
    nouns = ["anchor", "basin", "candle", "engine", "falcon", "garden", "hammer", "island"]
    generator = random.Random(4)
    texts = ["We saw the " + " and the ".join(generator.sample(nouns, 3)) + "." for _ in range(4_100)]
    turns = [
        Memory(
            f"c{i:04}",
            text,
            ("Ann", "Bob")[i % 2],
            DAY0 + timedelta(hours=2 * i),
            session=f"S{i // 20}",
            step=i,
        )
        for i, text in enumerate(texts)
    ]
    for i, text in (
        (4_002, "The zeppelin landed on Tuesday."),
        (4_003, "Who steered it?"),
        (4_004, "Mr. Quagga did."),
    ):
        turns[i] = replace(turns[i], text=text)
    with MemoryStore(embedder="hash") as s:
        s.add(turns)
        yield s


def test_a_large_store_is_searched_in_part_and_finds_the_same(crowd):
    found = execute(WORDS, "When did the zeppelin land?", crowd)
    assert ids(found)[0] == "c4002" and len(found.hits) == 10 and 0 < found.relevance < 1
    assert row(found, "search").n_in < 1_500 and "of 4100 memories" in row(found, "search").reason
    assert frozen(execute(WORDS, "When did the zeppelin land?", crowd)) == frozen(found)
    assert found.relevance > execute(WORDS, "When did the submarine sink?", crowd).relevance
    ranks = execute(replace(WORDS, weights={"lexical": 1.0, "content": 1.0}, fusion="rrf"), "zeppelin", crowd)
    assert ids(ranks)[0] == "c4002"


# --- the same bytes


def frozen(found: Evidence) -> str:
    """Everything but the clock and the plan, as text."""
    hits = [(h.memory.id, h.score, sorted(h.signals.items()), h.note) for h in found.hits]
    return repr(
        (
            hits,
            [(t.step, t.n_in, t.n_out, t.reason) for t in found.trace],
            found.has_relevant,
            found.relevance,
            found.context,
        )
    )


PLANS = st.builds(
    RetrievalPlan,
    weights=st.dictionaries(
        st.sampled_from([*SIGNALS, *WEIGHT_SETS]), st.sampled_from([0.3, 1.0, -1.0]), min_size=1
    ),
    fusion=st.sampled_from(FUSIONS),
    pool=st.sampled_from([3, 50]),
    queries=st.sampled_from([(), ("cat",), ("pottery", "cat")]),
    multi_step=st.booleans(),
    temporal_order=st.booleans(),
    prefer_latest=st.booleans(),
    latest_rule=st.sampled_from(["attribute", "similarity"]),
    relevance_threshold=st.sampled_from([0.0, 0.5, 1.0]),
    k=st.integers(0, 12),
    time_window=st.sampled_from([None, ("2024-01-20", "2024-04-01")]),
    window_rule=st.sampled_from(["hard", "soft"]),
    token_budget=st.sampled_from([None, 30]),
)


@given(
    PLANS,
    st.sampled_from(["Where do I live now?", "What did I say about my cat?", "10 km", "", "我住在哪里？"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_plan_gives_the_same_bytes_twice_and_however_the_store_was_filled(store, plan, text, generator):
    found = execute(plan, text, store)
    assert frozen(execute(plan, text, store)) == frozen(found)
    with MemoryStore(embedder="hash") as other:
        shuffled = generator.sample(TURNS, len(TURNS))
        other.add(shuffled[:4])
        other.add(shuffled[4:])
        assert frozen(execute(plan, text, other)) == frozen(found)
    assert len(found.hits) <= plan.k
    assert len(set(ids(found))) == len(found.hits)
    assert bool(found.has_relevant or not found.hits)
    assert chained(found) and 0 <= found.relevance <= 1
