"""Passages: which parts of a long message the reader is shown, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.retrieval.columns import PASSAGE_WORDS, split_passages
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.steps import GAP, best_passages
from adaptmr.store.memory_store import MemoryStore
from adaptmr.text import count_words
from adaptmr.types import Memory

# five passages of 72 words, each of 8 sentences of 9 words
TOPICS = ("bread", "kayak", "tax", "choir", "garden")
TEXT = " ".join(f"This is one more plain sentence about the {topic}." for topic in TOPICS for _ in range(8))
LONG = Memory("long", TEXT, "assistant", "2024-03-01", source="1")
SHORT = Memory("short", "I paddle my kayak on Sundays.", "user", "2024-03-02", source="2")


def test_the_passage_with_the_words_of_the_question_is_shown() -> None:
    assert len(split_passages(TEXT)) == 5
    assert best_passages(TEXT, ["Where is my kayak?"], 1) == f"{GAP} {split_passages(TEXT)[1]} {GAP}"
    assert best_passages(TEXT, ["bread"], 1) == f"{split_passages(TEXT)[0]} {GAP}"
    assert best_passages(TEXT, ["the garden"], 1) == f"{GAP} {split_passages(TEXT)[4]}"


def test_passages_stand_in_their_order_with_gaps_between_them() -> None:
    p = split_passages(TEXT)
    assert best_passages(TEXT, ["the garden", "the kayak"], 2) == f"{GAP} {p[1]} {GAP} {p[4]}"
    assert best_passages(TEXT, ["the kayak and the tax"], 2) == f"{GAP} {p[1]} {p[2]} {GAP}"
    assert best_passages(TEXT, ["nothing of it", ""], 1) == f"{p[0]} {GAP}", "of equals the earlier one"


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=900), st.lists(st.text(max_size=30), max_size=3), st.integers(1, 4))
def test_what_is_shown_is_part_of_the_text(text: str, queries: list[str], n: int) -> None:
    shown = best_passages(text, queries, n)
    assert shown == text or set(shown.split()) <= {GAP, *" ".join(split_passages(text)).split()}
    assert shown == best_passages(text, queries, n)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(embedder="hash")
    made.add([LONG, SHORT])
    return made


PLAN = RetrievalPlan(weights={"lexical": 1.0}, k=2)


def test_a_plan_with_passages_shows_less_of_the_same_hits(store: MemoryStore) -> None:
    whole, cut = (execute(plan, "Where is my kayak?", store) for plan in (PLAN, replace(PLAN, passages=1)))
    assert [(h.source, h.score, h.signals) for h in whole.hits] == [
        (h.source, h.score, h.signals) for h in cut.hits
    ]
    assert "choir" in whole.context and "choir" not in cut.context and "kayak" in cut.context
    row = next(r for r in cut.trace if r.step == "passages")
    assert (row.n_in, row.n_out, row.reason) == (2, 2, "1 shown by at most 1 of their passages")
    assert not any(r.step == "passages" for r in whole.trace)
    assert store.get("long").text == TEXT, "the store keeps the whole"


def test_every_query_of_a_plan_chooses_passages(store: MemoryStore) -> None:
    plan = replace(PLAN, passages=2, queries=("bread", "garden"))
    shown = next(h for h in execute(plan, "What did we speak about?", store).hits if h.source == "1")
    assert "bread" in shown.memory.text and "garden" in shown.memory.text and "tax" not in shown.memory.text


def test_a_token_budget_counts_the_passages_and_not_the_whole(store: MemoryStore) -> None:
    budget = replace(PLAN, token_budget=150)
    assert [h.source for h in execute(budget, "kayak", store).hits] == ["2"]
    assert {h.source for h in execute(replace(budget, passages=1), "kayak", store).hits} == {"1", "2"}


def test_messages_up_to_the_size_of_a_passage_are_whole() -> None:
    text = " ".join(["Tea."] * PASSAGE_WORDS)
    assert count_words(text) == PASSAGE_WORDS and split_passages(text) == (text,)
    assert len(split_passages(text + " Tea.")) == 2
