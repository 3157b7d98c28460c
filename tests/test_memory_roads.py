"""The roads of a layered memory: what each finds, what happens when one breaks, one ranking of all."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layered_store import START, key_memory, layered_store, layers_of, turns_of

from adaptmr.llm.tasks import Task, meter_usage, object_schema, run_task
from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layers import AUTO, FACT, KEY, PAGE, TOPIC
from adaptmr.memory.roads import LAYERED_ROADS, ROADS, Asked, Origins, Recall, recall
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Evidence, Memory, Question

CONFIG = MemoryConfig(stm_capacity=4, road_seconds=60)
ASKED = "What did I pay at the violin in Leeds?"


@pytest.fixture(scope="module")
def store():
    with layered_store(100, CONFIG) as made:
        yield made


def ids(found: Recall, road: str) -> list[str]:
    return [h.memory.id for h in found.hits(road)]


def by_hand(hit, section: str, config: MemoryConfig) -> float:
    w = config.score_weights
    return (
        w["similarity"] * hit.signals.get("cosine", 0.0)
        + w["recency"] * hit.signals.get("recency", 0.0)
        + w["priority"] * hit.signals.get("priority", 0.0)
        + w["source"] * config.source_weights[section]
    )


# --- the score


def test_the_score_is_the_weighted_sum_of_the_document(store):
    weights = {"similarity": 0.5, "recency": 2.0, "priority": 0.25, "source": 1.5}
    sources = {"key": 0.3, "long_term": 2.0, "mid_term": 0.7}
    for config in (CONFIG, replace(CONFIG, score_weights=weights), replace(CONFIG, source_weights=sources)):
        found = recall(store, ASKED, config, roads=ROADS)
        hits = [(name, h) for name in ("key", "long_term", "mid_term") for h in found.hits(name)]
        assert {name for name, _ in hits} == {"key", "long_term", "mid_term"}
        for name, hit in hits:
            assert hit.score == pytest.approx(by_hand(hit, name, config), abs=2e-6), (name, hit.memory.id)


# --- what each road finds


def test_pages_are_those_of_the_topics_found(store):
    found = recall(store, "What did I pay at the violin?", replace(CONFIG, top_k_sessions=1), roads=ROADS)
    pages = [h.memory.meta["topic"] for h in found.hits("mid_term") if h.memory.layer == PAGE]
    assert len(found.found(TOPIC)) == 1 and pages and set(pages) == set(found.found(TOPIC))
    (topic,) = found.found(TOPIC)
    others = [m for m in store.memories if m.layer == PAGE and m.meta["topic"] == topic]
    assert len(pages) == min(CONFIG.top_k_mtm_pages, len(others))


# --- key memories


def test_a_key_memory_is_found_until_its_time_to_live_has_passed():
    old = [key_memory(f"key:{i}", f"violin in Leeds {i}", AUTO, ttl_days=1) for i in range(5)]
    with MemoryStore(embedder="hash") as store:
        store.add([*turns_of(3), *old, key_memory("key:pin", "Boats.")])
        for hours, n in ((24, 6), (25, 1)):
            config = replace(CONFIG, top_k_key=6)
            found = ids(recall(store, ASKED, config, now=START + timedelta(hours=hours)), "key")
            assert found[0] == "key:pin" and len(found) == n, "manual ones first"


def test_the_turns_of_others_don_t_make_time_pass():
    with MemoryStore(embedder="hash") as store:
        mine, theirs = turns_of(3), Memory("t", "Late.", "Ben", START + timedelta(days=900), owner="ben")
        store.add([*mine, key_memory("key:cold", "Maya has a cold.", AUTO, ttl_days=30), theirs])
        assert ids(recall(store, "How is Maya?", CONFIG, owners=("",)), "key") == ["key:cold"]
        assert ids(recall(store, "How is Maya?", CONFIG), "key") == []


def test_what_was_deleted_is_on_no_road(store):
    with layered_store(100, CONFIG) as own:
        before = recall(own, ASKED, CONFIG)
        gone = {road: ids(before, road)[0] for road in before.sections if before.hits(road)}
        for id in set(gone.values()):
            own.delete(id)
        after = recall(own, ASKED, CONFIG)
        assert set(gone) == {*ROADS, "turns"}
        for road in before.sections:
            assert not set(gone.values()) & set(ids(after, road))
        quoted = {s for e in after.sections.values() for h in e.hits for s in (*h.quoted, *h.behind)}
        assert not quoted & set(gone.values())
        for id in set(gone.values()):
            own.restore(id)
        assert {r: ids(recall(own, ASKED, CONFIG), r) for r in before.sections} == {
            r: ids(before, r) for r in before.sections
        }


def test_owners_see_their_own_memories_only():
    maya, tom = turns_of(40, "maya", "m"), turns_of(40, "tom", "t")
    with MemoryStore(embedder="hash") as store:
        store.add([*maya, *layers_of(maya, CONFIG, "m-"), *tom, *layers_of(tom, CONFIG, "t-")])
        for owner in ("maya", "tom"):
            found = recall(store, ASKED, CONFIG, owners=[owner])
            hits = [h for e in found.sections.values() for h in e.hits]
            assert {h.memory.owner for h in hits} == {owner} and len(found.sections) == 5
            assert {h.memory.layer for h in hits} >= {"", KEY, PAGE, TOPIC}
        both = recall(store, ASKED, CONFIG)
        assert {h.memory.owner for e in both.sections.values() for h in e.hits} == {"maya", "tom"}


def test_what_was_said_later_is_not_seen(store):
    moment = START + timedelta(hours=50)
    found = recall(store, Question("q", ASKED, asked_at=moment), CONFIG)
    hits = [h for e in found.sections.values() for h in e.hits]
    assert hits and all(h.memory.at <= moment for h in hits)
    assert ids(found, "short_term")[-1] == "t50"
    assert all(int(s[1:]) <= 50 for h in hits for s in (*h.quoted, *h.behind))


def test_an_empty_store_gives_empty_sections():
    with MemoryStore(embedder="hash") as store:
        found = recall(store, ASKED, CONFIG)
        assert not found.left_out and not any(found.hits(r) for r in LAYERED_ROADS)
        assert not found.has_relevant and not found.evidence(10).hits


# --- roads that break


def test_a_road_that_fails_is_left_out_and_named(store):
    def failing(asked: Asked) -> Evidence:
        raise OSError("disk full")

    found = recall(store, ASKED, CONFIG, roads={**ROADS, "long_term": failing})
    assert found.left_out == {"long_term": "OSError: disk full"}
    assert list(found.sections) == ["key", "mid_term", "short_term"] and all(map(found.hits, found.sections))
    rows = [row for row in found.evidence(5).trace if row.step == "road long_term"]
    assert [row.reason for row in rows] == ["left out: OSError: disk full"]


@pytest.mark.parametrize("stuck", ["mid_term", "turns"])
def test_a_road_that_waits_is_left_out_and_named(store, stuck):
    release, entered = threading.Event(), threading.Event()

    def waiting(asked: Asked) -> Evidence:
        entered.set()
        release.wait()
        return Evidence([])

    try:
        limited = replace(CONFIG, road_seconds=2.0)
        found = recall(store, ASKED, limited, roads={**LAYERED_ROADS, stuck: waiting})
        assert entered.is_set() and not release.is_set()
        assert found.left_out == {stuck: "late: TimeoutError: not over after 2 s"}
        assert [r for r in LAYERED_ROADS if r != stuck] == list(found.sections)
        again = recall(store, ASKED, CONFIG)
        assert not again.left_out, "a road that hangs keeps nobody from asking again"
    finally:
        release.set()


ECHO = Task(
    name="roads_echo",
    prompts={"en": ("Echo as JSON.", "$text"), "zh": ("Echo as JSON.", "$text")},
    schema=object_schema(text={"type": "string", "maxLength": 9}),
    rule=lambda text: {"text": text},
    render=lambda lang, text: {"text": text},
)


def test_what_a_model_uses_on_a_road_is_counted(store):
    def asking(asked: Asked) -> Evidence:
        run_task(ECHO, None, "en", text="a")
        return Evidence([])

    with meter_usage() as meter:
        recall(store, ASKED, CONFIG, roads={"key": asking, "long_term": asking})
    assert meter.outcomes["roads_echo", "offline"] == 2


# --- one ranking


def test_the_documents_ranking_is_by_score_with_the_latest_turns_last(store):
    evidence = recall(store, ASKED, CONFIG, roads=ROADS).evidence(100)
    scores = [h.score for h in evidence.hits]
    assert scores == sorted(scores, reverse=True)
    assert [h.source for h in evidence.hits[-4:]] == ["t100", "t99", "t98", "t97"]
    assert [h.memory.layer for h in evidence.hits[:-4]].count("") == 0


@given(k=st.integers(0, 30), roads=st.sampled_from([ROADS, LAYERED_ROADS]))
@settings(max_examples=20, deadline=None)
def test_a_ranking_has_at_most_k_hits_each_once_and_is_a_prefix_of_a_longer_one(store, k, roads):
    found = recall(store, ASKED, CONFIG, roads=roads)
    evidence, longer = found.evidence(k), found.evidence(100)
    assert len(evidence.hits) <= k and evidence.hits == longer.hits[:k]
    assert len({h.memory.id for h in longer.hits}) == len(longer.hits)
    assert all(math.isfinite(h.score) for h in longer.hits)


def test_a_layer_has_a_place_only_for_what_turns_cannot_show():
    with layered_store(100, CONFIG) as store:
        found = recall(store, ASKED, CONFIG).evidence(10)
        assert found.hits[0].memory.id == "key:pin" and [h.memory.layer for h in found.hits[1:]] == [""] * 9
        scores = [h.score for h in found.hits]
        assert scores[0] == max(scores), "measures that rank by score keep the order"
        fact = next(
            h.memory for h in recall(store, ASKED, CONFIG).hits("long_term") if h.memory.layer == FACT
        )
        for id in fact.derived_from:
            store.delete(id)
        found = recall(store, ASKED, CONFIG).evidence(10)
        assert fact.id in [h.memory.id for h in found.hits[:2]] and len(found.hits) == 10


def test_key_memories_do_not_open_the_gate(store):
    with MemoryStore(embedder="hash") as own:
        own.add([*turns_of(60), key_memory("key:cheese", "Anna likes Stilton, which is a cheese.")])
        asked = "Which cheese does Anna like?"
        found = recall(own, asked, CONFIG)
        own.delete("key:cheese")
        without = recall(own, asked, CONFIG)
        assert (found.has_relevant, found.relevance) == (without.has_relevant, without.relevance)
        only_keys = recall(own, asked, CONFIG, roads={"key": ROADS["key"]})
        assert not only_keys.has_relevant


# --- origins


def test_origins_end_at_active_turns_and_lead_through_folded_pages(store):
    with layered_store(60, CONFIG) as own:
        topic = own.get("topic:garden-0")
        before = Origins(own.memories, own.get).sources(topic)
        own.delete(topic.derived_from[0])
        assert Origins(own.memories, own.get).sources(topic) == before, "a page that was given up"
        own.delete(before[0])
        assert Origins(own.memories, own.get).sources(topic) == before[1:], "a turn that was deleted"


