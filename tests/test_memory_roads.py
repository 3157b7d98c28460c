"""The roads of a layered memory: what each finds, what happens when one breaks, one ranking of all."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from layered_store import START, key_memory, layered_store, turns_of

from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layers import AUTO, FACT, PAGE, TOPIC
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


# --- the score


def test_the_score_is_the_weighted_sum_of_the_document(store):
    weights = {"similarity": 0.5, "recency": 2.0, "priority": 0.25, "source": 1.5}
    sources = {"key": 0.3, "long_term": 2.0, "mid_term": 0.7}
    for config in (CONFIG, replace(CONFIG, score_weights=weights), replace(CONFIG, source_weights=sources)):
        found, w = recall(store, ASKED, config, roads=ROADS), config.score_weights
        for name in ("key", "long_term", "mid_term"):
            assert found.hits(name)
            for hit in found.hits(name):
                parts = [(w["similarity"], "cosine"), (w["recency"], "recency"), (w["priority"], "priority")]
                by_hand = sum(weight * hit.signals.get(signal, 0.0) for weight, signal in parts)
                by_hand += w["source"] * config.source_weights[name]
                assert hit.score == pytest.approx(by_hand, abs=2e-6), (name, hit.memory.id)


# --- what each road finds


def test_pages_are_those_of_the_topics_found(store):
    found = recall(store, "What did I pay at the violin?", replace(CONFIG, top_k_sessions=1), roads=ROADS)
    pages = [h.memory.meta["topic"] for h in found.hits("mid_term") if h.memory.layer == PAGE]
    assert len(found.found(TOPIC)) == 1 and pages and set(pages) == set(found.found(TOPIC))
    (topic,) = found.found(TOPIC)
    others = [m for m in store.memories if m.layer == PAGE and m.meta["topic"] == topic]
    assert len(pages) == min(CONFIG.top_k_mtm_pages, len(others))


# --- key memories


def test_what_was_deleted_is_on_no_road():
    with layered_store(60, CONFIG) as own:
        before = recall(own, ASKED, CONFIG)
        roads = {road: ids(before, road) for road in before.sections}
        gone = {found[0] for found in roads.values() if found}
        for id in gone:
            own.delete(id)
        after = recall(own, ASKED, CONFIG)
        quoted = {s for e in after.sections.values() for h in e.hits for s in (*h.quoted, *h.behind)}
        assert not gone & quoted and not any(gone & set(ids(after, road)) for road in roads)
        for id in gone:
            own.restore(id)
        again = recall(own, ASKED, CONFIG)
        assert {road: ids(again, road) for road in roads} == roads


def test_what_was_said_later_is_not_seen(store):
    moment = START + timedelta(hours=50)
    found = recall(store, Question("q", ASKED, asked_at=moment), CONFIG)
    hits = [h for e in found.sections.values() for h in e.hits]
    assert hits and all(h.memory.at <= moment for h in hits)
    assert ids(found, "short_term")[-1] == "t50"
    assert all(int(s[1:]) <= 50 for h in hits for s in (*h.quoted, *h.behind))


# --- one ranking


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


def test_a_key_memory_is_found_until_its_time_to_live_has_passed_by_the_turns_of_its_owner():
    old = [key_memory(f"key:{i}", f"violin in Leeds {i}", AUTO, ttl_days=1) for i in range(5)]
    with MemoryStore(embedder="hash") as store:
        store.add([*turns_of(3), *old, key_memory("key:pin", "Boats.")])
        for hours, n in ((24, 6), (25, 1)):
            now = START + timedelta(hours=hours)
            found = ids(recall(store, ASKED, replace(CONFIG, top_k_key=6), now=now), "key")
            assert found[0] == "key:pin" and len(found) == n, "manual ones first"
    with MemoryStore(embedder="hash") as store:
        theirs = Memory("t", "Late.", "Ben", START + timedelta(days=900), owner="ben")
        store.add([*turns_of(3), key_memory("key:cold", "Maya has a cold.", AUTO, ttl_days=30), theirs])
        assert ids(recall(store, "How is Maya?", CONFIG, owners=("",)), "key") == ["key:cold"]
        assert ids(recall(store, "How is Maya?", CONFIG), "key") == []


@pytest.mark.parametrize("broken", ["long_term", "turns"])
def test_a_road_that_fails_or_waits_is_left_out_and_named(store, broken):
    release = threading.Event()

    def waiting(asked: Asked) -> Evidence:
        release.wait()
        return Evidence([])

    def failing(asked: Asked) -> Evidence:
        raise OSError("disk full")

    try:
        for road, says in (
            (failing, "OSError: disk full"),
            (waiting, "late: TimeoutError: not over after 1 s"),
        ):
            limited = replace(CONFIG, road_seconds=1.0 if road is waiting else 60)
            found = recall(store, ASKED, limited, roads={**LAYERED_ROADS, broken: road})
            assert found.left_out == {broken: says}
            assert [r for r in LAYERED_ROADS if r != broken] == list(found.sections)
            rows = [row.reason for row in found.evidence(5).trace if row.step == f"road {broken}"]
            assert rows == [f"left out: {says}"]
        assert not recall(store, ASKED, CONFIG).left_out, "a road that hangs keeps nobody from asking again"
    finally:
        release.set()
