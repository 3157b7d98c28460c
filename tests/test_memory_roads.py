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
from adaptmr.memory.layers import AUTO, FACT, KEY, PAGE, SUMMARY, TOPIC, derive
from adaptmr.memory.origins import origins_of
from adaptmr.memory.roads import LAYERED_ROADS, ROADS, Asked, Recall, Road, recall
from adaptmr.store.memory_store import MemoryStore
from adaptmr.systems.base import make_system
from adaptmr.types import Conversation, Evidence, Memory, Question

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


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, score_weights={"similarity": 0.5, "recency": 2.0, "priority": 0.25, "source": 1.5}),
        replace(CONFIG, source_weights={"key": 0.3, "long_term": 2.0, "mid_term": 0.7}),
        replace(CONFIG, score_weights={"similarity": 0.0, "source": 0.0}),
    ],
)
def test_the_score_is_the_weighted_sum_of_the_document(store, config):
    found = recall(store, ASKED, config, roads=ROADS)
    hits = [(name, h) for name in ("key", "long_term", "mid_term") for h in found.hits(name)]
    assert {name for name, _ in hits} == {"key", "long_term", "mid_term"}
    for name, hit in hits:
        assert hit.score == pytest.approx(by_hand(hit, name, config), abs=2e-6), (name, hit.memory.id)


def test_the_parts_of_the_score_are_what_they_say():
    now = START + timedelta(days=60)
    with MemoryStore(embedder="hash") as store:
        store.add([key_memory("k", "violin lessons", AUTO), Memory("t", "hello", at=now, step=1)])
        found = recall(store, "violin lessons", CONFIG, roads={"key": ROADS["key"]})
        (hit,) = found.hits("key")
        assert hit.signals["cosine"] == pytest.approx(1.0, abs=1e-3)
        assert hit.signals["recency"] == pytest.approx(0.25, abs=1e-6)  # two halvings of 30 days
        assert hit.signals["priority"] == 0.8
        assert hit.score == pytest.approx(hit.signals["cosine"] + 0.025 + 0.08 + 0.12, abs=1e-5)


# --- what each road finds


def test_each_road_looks_at_its_layers_alone(store):
    found = recall(store, ASKED, CONFIG)
    layers = {name: {h.memory.layer for h in found.hits(name)} for name in LAYERED_ROADS}
    assert layers["key"] == {KEY} and layers["mid_term"] == {PAGE, TOPIC}
    assert layers["long_term"] <= {SUMMARY, FACT, "profile"} and layers["short_term"] == layers["turns"] == {
        ""
    }


def test_no_road_returns_more_than_its_number():
    config = replace(CONFIG, top_k_key=1, top_k_ltm=2, top_k_sessions=1, top_k_mtm_pages=2)
    with layered_store(200, config) as store:
        found = recall(store, ASKED, config, roads=ROADS)
        assert len(found.hits("key")) == 1 and len(found.hits("long_term")) == 2
        assert len(found.found_topics) == 1 and len(found.found_pages) == 2
        nothing = replace(config, top_k_key=0, top_k_ltm=0, top_k_sessions=0, top_k_mtm_pages=0)
        found = recall(store, ASKED, nothing, roads=ROADS)
        assert not found.left_out and [n for n in ROADS if found.hits(n)] == ["short_term"]


def test_pages_are_those_of_the_topics_found(store):
    found = recall(store, "What did I pay at the violin?", replace(CONFIG, top_k_sessions=1), roads=ROADS)
    pages = [h.memory.meta["topic"] for h in found.hits("mid_term") if h.memory.layer == PAGE]
    assert len(found.found_topics) == 1 and pages and set(pages) == set(found.found_topics)
    (topic,) = found.found_topics
    others = [m for m in store.memories if m.layer == PAGE and m.meta["topic"] == topic]
    assert len(pages) == min(CONFIG.top_k_mtm_pages, len(others))


def test_a_page_quotes_its_turns_and_a_summary_has_them_behind_it(store):
    found = recall(store, ASKED, CONFIG, roads=ROADS)
    page = next(h for h in found.hits("mid_term") if h.memory.layer == PAGE)
    assert page.quoted == page.behind == tuple(page.memory.derived_from) and len(page.quoted) == 6
    topic = next(h for h in found.hits("mid_term") if h.memory.id == page.memory.meta["topic"])
    assert not topic.sources and set(topic.behind) > set(page.behind)
    found = recall(store, ASKED, replace(CONFIG, top_k_ltm=100), roads=ROADS)
    summary = next(h for h in found.hits("long_term") if h.memory.layer == SUMMARY)
    assert len(summary.behind) == 24 and not summary.sources


def test_the_latest_turns_are_read_in_order_with_those_in_no_page(store):
    turns = turns_of(100)
    found = recall(store, ASKED, CONFIG, roads=ROADS)
    assert ids(found, "short_term") == [m.id for m in turns[96:]], "96 turns are in pages"
    with MemoryStore(embedder="hash") as waiting:  # the last page would begin with turn 97, and isn't full
        said = turns_of(103)
        waiting.add([*said, *layers_of(said[:100], CONFIG)])
        assert ids(recall(waiting, ASKED, CONFIG, roads=ROADS), "short_term") == [m.id for m in said[96:]]


# --- key memories


def test_manual_key_memories_take_the_places_first():
    pins = [key_memory(f"key:pin{i}", f"Wish number {i} about boats.") for i in range(3)]
    auto = [key_memory(f"key:auto{i}", f"What did I pay at the violin in Leeds {i}", AUTO) for i in range(4)]
    with MemoryStore(embedder="hash") as store:
        store.add([*turns_of(10), *pins, *auto])
        got = ids(recall(store, ASKED, replace(CONFIG, top_k_key=5), roads=ROADS), "key")
        assert set(got[:3]) == {"key:pin0", "key:pin1", "key:pin2"} and len(got) == 5
        found = recall(store, ASKED, replace(CONFIG, top_k_key=5), roads=ROADS)
        for group in (found.hits("key")[:3], found.hits("key")[3:]):
            assert [h.score for h in group] == sorted((h.score for h in group), reverse=True)
        assert max(h.score for h in found.hits("key")[:3]) < min(h.score for h in found.hits("key")[3:])


@pytest.mark.parametrize("hours, alive", [(23, True), (24, True), (25, False)])
def test_a_key_memory_is_found_until_its_time_to_live_has_passed(hours, alive):
    with MemoryStore(embedder="hash") as store:
        store.add([*turns_of(3), key_memory("key:cold", "Maya has a cold.", AUTO, ttl_days=1)])
        found = recall(store, "cold", CONFIG, roads=ROADS, now=START + timedelta(hours=hours))
        assert bool(ids(found, "key")) is alive


def test_the_turns_of_others_don_t_make_time_pass():
    with MemoryStore(embedder="hash") as store:
        mine, theirs = turns_of(3), Memory("t", "Late.", "Ben", START + timedelta(days=900), owner="ben")
        store.add([*mine, key_memory("key:cold", "Maya has a cold.", AUTO, ttl_days=30), theirs])
        assert ids(recall(store, "How is Maya?", CONFIG, owners=("",)), "key") == ["key:cold"]
        assert ids(recall(store, "How is Maya?", CONFIG), "key") == []


def test_expired_key_memories_take_no_place():
    old = [key_memory(f"key:{i}", f"violin in Leeds {i}", AUTO, ttl_days=1) for i in range(5)]
    with MemoryStore(embedder="hash") as store:
        store.add([*turns_of(3), *old, key_memory("key:still", "Boats.", AUTO)])
        found = recall(store, ASKED, replace(CONFIG, top_k_key=1), roads=ROADS, now=START + timedelta(days=3))
        assert ids(found, "key") == ["key:still"]


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

    found = recall(store, ASKED, CONFIG, roads={**ROADS, "long_term": Road(failing)})
    assert found.left_out == {"long_term": "OSError: disk full"}
    assert list(found.sections) == ["key", "mid_term", "short_term"] and all(map(found.hits, found.sections))
    rows = [row for row in found.evidence(5).trace if row.step == "road long_term"]
    assert [row.reason for row in rows] == ["left out: OSError: disk full"]


@pytest.mark.parametrize("stuck", list(LAYERED_ROADS))
def test_a_road_that_waits_is_left_out_and_named(store, stuck):
    release, entered = threading.Event(), threading.Event()

    def waiting(asked: Asked) -> Evidence:
        entered.set()
        release.wait()
        return Evidence([])

    try:
        limited = replace(CONFIG, road_seconds=3.0)
        found = recall(store, ASKED, limited, roads={**LAYERED_ROADS, stuck: Road(waiting)})
        assert entered.is_set() and not release.is_set()
        assert found.left_out == {stuck: "late: TimeoutError: not over after 3 s"}
        assert [r for r in LAYERED_ROADS if r != stuck] == list(found.sections)
        again = recall(store, ASKED, CONFIG)
        assert not again.left_out, "a road that hangs keeps nobody from asking again"
    finally:
        release.set()


def test_a_hanging_road_keeps_nobody_from_writing_and_reading():
    release = threading.Event()

    def waiting(asked: Asked) -> Evidence:
        release.wait()
        return Evidence([])

    with layered_store(50, CONFIG) as store:
        try:
            recall(store, ASKED, replace(CONFIG, road_seconds=0.05), roads={"key": Road(waiting)})
            store.add(
                Memory("new", "I bought a boat.", "Maya", START + timedelta(days=9), step=60, source="new")
            )
            found = recall(store, "boat", CONFIG)
            assert "new" in ids(found, "short_term") and "new" in ids(found, "turns")
        finally:
            release.set()


def test_without_the_road_of_turns_the_layers_make_the_ranking(store):
    def failing(asked: Asked) -> Evidence:
        raise ValueError("no fit")

    found = recall(store, ASKED, CONFIG, roads={**LAYERED_ROADS, "turns": Road(failing)})
    assert found.left_out == {"turns": "ValueError: no fit"} and found.has_relevant
    assert found.evidence(5).hits


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
        recall(store, ASKED, CONFIG, roads={"key": Road(asking), "long_term": Road(asking)})
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


def test_the_reader_is_shown_the_turns_that_a_page_quotes(store):
    evidence = recall(store, ASKED, CONFIG, roads=ROADS).evidence(30)
    texts = {m.source: m.text for m in turns_of(100)}
    pages = [h for h in evidence.hits if h.memory.layer == PAGE]
    assert pages
    for hit in pages:
        assert all(texts[s] in hit.memory.text for s in hit.quoted)
        assert all(texts[s].split(" and ")[0] in evidence.context for s in hit.quoted)


def test_with_turns_the_ranking_is_that_of_the_planner():
    talk = Conversation("c", ("Maya", "Tom"), turns_of(100))
    plain = make_system("adaptmr", embedder="hash")
    plain.ingest(talk)
    with layered_store(100, CONFIG) as store:
        store.delete("key:pin")
        for asked in (ASKED, "Where was Maya on day 7?", "Which cheese does Anna like?"):
            wanted = plain.retrieve(asked, 10)
            found = recall(store, asked, CONFIG, k=10).evidence(10)
            assert [(h.memory.id, h.score, h.note) for h in found] == [
                (h.memory.id, h.score, h.note) for h in wanted
            ]
            assert (found.has_relevant, found.relevance) == (wanted.has_relevant, wanted.relevance)


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
        before = origins_of(own).sources(topic)
        own.delete(topic.derived_from[0])
        assert origins_of(own).sources(topic) == before, "a page that was given up"
        own.delete(before[0])
        assert origins_of(own).sources(topic) == before[1:], "a turn that was deleted"


def test_a_circle_of_origins_ends():
    a = replace(derive(SUMMARY, "a", "x", turns_of(1)), derived_from=("b",))
    b = replace(derive(SUMMARY, "b", "y", turns_of(1)), derived_from=("a", "t1"))
    with MemoryStore(embedder="hash") as own:
        own.add([*turns_of(1), a, b])
        assert origins_of(own).sources(a) == origins_of(own).sources(b) == ("t1",)
