"""What a turn and a query set off in a layered memory: hand-computed cases, properties, and a real store."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server import Server, ok_json, status

from adaptmr.embed.encoders import HashEmbedder
from adaptmr.llm import LLM, ServerError
from adaptmr.memory.config import TASK_NAMES, MemoryConfig
from adaptmr.memory.drafts import Draft, follow
from adaptmr.memory.heat import Use, heat, hit_rate, uses_of, visited
from adaptmr.memory.key_memories import manual_key
from adaptmr.memory.layers import DERIVED, FACT, KEY, PAGE, PROFILE, SUMMARY, TOPIC, derive, is_expired
from adaptmr.memory.promotion import conditions_met, promotion_rule
from adaptmr.memory.state import Layers
from adaptmr.memory.topics import eviction_order, next_page
from adaptmr.memory.writing import Writer
from adaptmr.store.edits import Add, SetStatus, Update
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

SMALL = {"stm_capacity": 2, "page_turns": 2, "rollup_pages": 2, "profile_every": 1}
SUBJECTS = {
    "run": "I ran the marathon course with new running shoes, kilometre {n}.",
    "cat": "The cat Mango was at the vet again, and Mango scratched vet number {n}.",
    "job": "At the hospital the ward sister changed my shift rota, week {n}.",
}
_AXES = {name: np.eye(8, dtype=np.float32)[i] for i, name in enumerate(SUBJECTS)}


def by_subject(texts):
    """Vectors that say only which subjects a text is about, and are alike for the same ones."""
    rows = []
    for text in texts:
        marks = (("marathon", "run"), ("Mango", "cat"), ("ward", "job"))
        v = np.sum([_AXES[s] for word, s in marks if word in text] or [np.eye(8)[7]], axis=0)
        rows.append(v / np.linalg.norm(v))
    return np.array(rows, np.float32)


class Conversation:
    """Layers written turn by turn, as a store would hold them."""

    def __init__(self, llm=None, encode=by_subject, **config):
        self.config = MemoryConfig(**{**SMALL, **config})
        self.layers, self.memories = Layers(), {}
        self.writer = Writer(self.config, encode, self.memories.get, llm)

    def apply(self, edits):
        for e in edits:
            if isinstance(e, Add):
                assert e.id not in self.memories or self.memories[e.id] == e.memory
                self.memories[e.id] = e.memory
            elif isinstance(e, Update):
                old = self.memories[e.id]
                self.memories[e.id] = replace(e.memory, status=old.status, version=old.version + 1)
            else:
                assert isinstance(e, SetStatus)
                self.memories[e.id] = replace(self.memories[e.id], status=e.status)
        follow(self.layers, edits)
        return edits

    def say(self, text, uses=None, **fields):
        step = self.layers.last_step + 1
        turn = Memory(f"t{step}", text, **{"speaker": "Maya", "session": "S1", "step": step, **fields})
        return self.apply(self.writer.add_turn(self.layers, turn, uses))

    def talk(self, subjects, uses=None, **fields):
        for name in subjects.split():
            self.say(SUBJECTS[name].format(n=self.layers.last_step), uses, **fields)
        return self

    def of(self, layer, status="active"):
        return self.layers.of(layer, status)


def seen(layers):
    """All that layers say, for comparison."""
    return (
        [[replace(m, version=1) for m in layers.of(name, None)] for name in DERIVED],
        layers.short_term,
        layers.words,
        layers.last_step,
        [m.id for m in layers.unsummarised_pages],
        layers.latest_page and layers.latest_page.id,
        {m.id: set(layers.made_of(m.id)) for name in DERIVED for m in layers.of(name, None)},
        {t.id: [p.id for p in layers.pages_of(t.id, None)] for t in layers.of(TOPIC, None)},
    )


# -- pages


def test_the_latest_turns_stay_and_nothing_is_between_the_layers():
    c = Conversation(stm_capacity=3, page_turns=2)
    for n in range(1, 30):
        c.talk("run")
        paged = [i for p in c.of(PAGE, None) for i in p.derived_from]
        assert paged + [t.id for t in c.layers.short_term] == [f"t{i}" for i in range(1, n + 1)]
        assert 3 <= c.layers.short_term_size < 5 or n < 3


def test_a_pause_or_a_new_session_ends_a_page():
    day = datetime(2024, 5, 1, tzinfo=UTC)
    config = MemoryConfig(stm_capacity=2, page_turns=4)

    def turns(hours, sessions=None):
        return [
            Memory(f"t{i}", "x", step=i, at=day + timedelta(hours=h), session=s)
            for i, (h, s) in enumerate(zip(hours, sessions or "a" * len(hours)), 1)
        ]

    assert len(next_page(turns([0, 0, 0, 0, 0]), config)) == 0, "not yet a page beyond the capacity"
    assert len(next_page(turns([0, 0, 0, 0, 0, 0]), config)) == 4
    assert len(next_page(turns([0, 0, 0, 6.1, 7, 8]), config)) == 3
    assert len(next_page(turns([0, 0, 0, 6.0, 7, 8]), config)) == 4, "six hours are no break"
    assert len(next_page(turns([0] * 6, "aabbbb"), config)) == 2
    assert len(next_page(turns([0] * 7, "aaaaabb"), config)) == 3, "five turns are 3 and 2, not 4 and 1"
    undated = [Memory(f"t{i}", "x", step=i) for i in range(6)]
    assert len(next_page(undated, config)) == 4


def test_long_turns_make_short_pages():
    turns = [Memory(f"t{i}", "word " * 200, step=i) for i in range(8)]
    config = MemoryConfig(stm_capacity=2, page_turns=4, page_source_tokens=600)
    assert len(next_page(turns, config)) == 2, "250 tokens each"
    assert len(next_page(turns, replace(config, page_source_tokens=10))) == 1


# -- topics


def test_a_small_conversation_is_grouped_by_subject():
    c = Conversation().talk("run run cat cat job job run run cat cat run run")
    groups = [[int(i[1:]) for i in c.layers.origins(t)] for t in c.of(TOPIC)]
    assert sorted(groups) == [[1, 2, 7, 8], [3, 4, 9, 10], [5, 6]]
    run = c.layers.get("topic:1")
    assert run.meta["pages"] == 2 and run.meta["summary_step_range"] == [1, 8] and run.step == 8
    assert "marathon" in run.meta["keywords"]


def test_a_summary_is_made_again_when_the_topic_has_grown_by_half():
    c = Conversation(rule_only=(), max_topic_pages=50)
    made = []
    for _ in range(12):
        c.talk("run run")
        topic = c.layers.get("topic:1")
        if topic is not None and topic.meta["pages"] == topic.meta["summarised_pages"]:
            made.append(topic.meta["pages"])
    assert sorted(set(made)) == [1, 2, 3, 5, 8]


def test_the_heat_of_a_topic():
    config = MemoryConfig(heat_visits=0.5, heat_length=0.25, heat_recency=2.0, heat_decay_steps=10)
    topic = Memory("x", "…", layer=TOPIC, step=30, meta={"pages": 4, "summary_step_range": [1, 30]})
    assert heat(topic, Use(6), 30, config) == 3 + 1 + 2
    assert heat(topic, Use(6), 40, config) == pytest.approx(4 + 2 / np.e)
    assert heat(topic, Use(6, 1), 40, config) == 6.0, "it was asked for just now"
    assert heat(topic, Use(), 10**6, config) == pytest.approx(1.0)


def test_the_hit_rate_is_of_the_whole_window():
    config = MemoryConfig(hit_window=10)
    assert [hit_rate(Use(9, n), config) for n in (0, 1, 4, 10)] == [0, 0.1, 0.4, 1.0]


def test_the_least_used_topic_goes_first_then_the_coldest():
    c = Conversation().talk("run run cat cat job job job job")
    ids = {s: t.id for s, t in zip(("run", "cat", "job"), c.of(TOPIC))}

    def order(**hits):
        uses = {ids[s]: Use(n) for s, n in hits.items()}
        return [t.id for t in eviction_order(c.layers, uses, c.config)]

    assert order() == [ids["run"], ids["cat"]], "the older is colder; the topic of the latest page stays"
    assert order(run=1) == [ids["cat"], ids["run"]]
    assert order(run=3, cat=4, job=0) == [ids["run"], ids["cat"]]


def test_eviction_takes_summaries_and_no_turns():
    c = Conversation(mtm_capacity=2).talk("run run cat cat job job job job")
    assert [t.id for t in c.of(TOPIC)] == ["topic:3", "topic:5"]
    assert [m.id for m in c.of(PAGE, "deleted")] == ["page:1-2"]
    assert all(m.status == "active" for m in c.memories.values() if not m.layer)
    assert c.of(SUMMARY) and c.layers.origins(c.of(SUMMARY)[0]) == ("t1", "t2", "t3", "t4")
    c.talk("run run run run")
    assert c.layers.get("topic:1").status == "deleted", "an evicted topic takes no new pages"
    assert [t.id for t in c.of(TOPIC)] != ["topic:3", "topic:5"] and c.layers.count(TOPIC) == 2


def test_compression_keeps_the_tail_and_the_step_range():
    c = Conversation(max_topic_pages=4, tail_pages=2).talk("run " * 11)
    topic = c.layers.get("topic:1")
    assert topic.meta["compressed_at"] is None and c.layers.count(PAGE) == 4
    c.talk("run run")
    topic = c.layers.get("topic:1")
    assert [p.id for p in c.layers.pages_of("topic:1")] == ["page:7-8", "page:9-10"]
    assert topic.meta["compressed_at"] == "" and topic.meta["compressed_step"] == 10
    assert topic.meta["summary_step_range"] == [1, 10] and topic.meta["pages"] == 5
    assert c.layers.origins(topic) == tuple(f"t{i}" for i in range(1, 11)), "it can be traced back"
    assert all(m.status == "active" for m in c.memories.values() if not m.layer)
    c.talk("run " * 40)
    assert c.layers.count(PAGE) <= 4 and c.layers.get("topic:1").meta["pages"] == 25


def test_without_compression_pages_pile_up():
    c = Conversation(max_topic_pages=4, tail_pages=2, enable_compression=False).talk("run " * 40)
    assert c.layers.count(PAGE) == 19 and c.layers.get("topic:1").meta["compressed_at"] is None


# -- long-term memory


def test_roll_ups_follow_each_other_without_gaps():
    c = Conversation().talk("run cat job " * 14)
    spans = [tuple(s.meta["summary_step_range"]) for s in c.of(SUMMARY)]
    assert spans == [(i, i + 3) for i in range(1, 38, 4)] and all(s.text for s in c.of(SUMMARY))


def test_above_its_capacity_the_oldest_summaries_are_merged_and_unsure_facts_given_up():
    c = Conversation(ltm_capacity=8).talk("run cat job " * 14)
    summaries = c.of(SUMMARY)
    assert len(summaries) == 2 and len(summaries) + c.layers.count(FACT) <= 8
    spans = [s.meta["summary_step_range"] for s in summaries]
    assert spans[0][0] == 1 and spans[0][1] + 1 == spans[1][0] and spans[1][1] == 40
    assert c.layers.origins(summaries[0])[0] == "t1"


def test_a_newer_value_replaces_a_fact_and_a_line_of_the_profile():
    c = Conversation()
    for text in ("I live in Leeds near the abbey.", "It rains a lot.", "Yes indeed.", "So it goes on."):
        c.say(text)
    c.talk("run run")
    assert "Leeds" in c.layers.get("profile").text
    c.say("I've moved to Bristol, by the river.")
    c.talk("cat cat cat job job job job")
    facts = [f.text for f in c.of(FACT)]
    assert any("Bristol" in f for f in facts) and not any("live in Leeds" in f for f in facts)
    profile = c.layers.get("profile").text
    assert "Bristol" in profile and "Leeds" not in profile
    assert [f.text for f in c.of(FACT, "deleted")] == ["I live in Leeds near the abbey."]


def test_a_profile_that_the_user_deleted_stays_deleted():
    c = Conversation()
    c.say("I live in Leeds near the abbey.")
    c.talk("run cat job " * 5)
    assert "Leeds" in c.of(PROFILE)[0].text
    c.apply([SetStatus("profile", "deleted")])
    c.say("I work on the stroke ward.")
    c.talk("run cat job " * 5)
    assert c.of(PROFILE) == []


# -- promotion and key memories


@pytest.mark.parametrize("holds", list(product((True, False), repeat=3)))
def test_promotion_takes_two_of_three_conditions(holds):
    rate, hits, hot = holds
    config = MemoryConfig(heat_visits=0.0, heat_recency=0.0, heat_length=1.0)
    use = Use(hits=8 if hits else 7, recent_hits=7 if rate else 6)
    topic = Memory("topic:1", "…", layer=TOPIC, meta={"pages": 6 if hot else 5})
    met = conditions_met(topic, use, 1, config)
    assert [any(m.startswith(n) for m in met) for n in ("hit rate", "hits", "heat")] == list(holds)
    assert bool(promotion_rule(topic, use, 1, config)) == (sum(holds) >= 2)
    off = replace(config, enable_auto_key_promotion=False)
    done = replace(topic, meta={**topic.meta, "key_promoted": True})
    assert not promotion_rule(topic, use, 1, off) and not promotion_rule(done, use, 1, config)


def risky(**config):
    c = Conversation(**config)
    c.say("I'm allergic to the glue on marathon shoes.")
    c.say("I love marathon mornings.")
    return c.talk("run run run run")


USED = {"topic:1": Use(9, 8), "page:1-2": Use(9, 8)}


def test_a_topic_that_is_asked_for_gives_key_memories_once():
    c = risky()
    c.apply(c.writer.promote(c.layers, USED))
    keys = c.of(KEY)
    k, liked = keys
    assert k.text == "I'm allergic to the glue on marathon shoes." and liked.meta["category"] == "preference"
    assert (k.meta["category"], k.meta["source"], k.derived_from) == ("risk", "auto", ("t1",))
    assert k.meta["trace"] == {
        "session_ids": ["topic:1"],
        "page_ids": ["page:1-2", "page:3-4"],
        "rule": "hit rate 0.4 >= 0.35; hits 9 >= 8; heat 6.5 >= 6",
    }
    topic = c.layers.get("topic:1")
    assert topic.meta["key_promoted"] and set(topic.meta["promotion"]["keys"]) == {k.id for k in keys}
    assert topic.meta["promotion"]["hit_rate"] == 0.4
    assert c.writer.promote(c.layers, USED) == [], "not a second time"


def test_the_switch_the_floor_and_a_topic_without_statements():
    assert risky(enable_auto_key_promotion=False).writer.promote(risky().layers, USED) == []
    c = risky(confidence_floor=0.95)
    c.apply(c.writer.promote(c.layers, USED))
    assert c.of(KEY) == [] and c.layers.get("topic:1").meta["key_promoted"], "examined, and nothing found"


def test_a_key_memory_that_the_user_deleted_is_not_made_again():
    c = risky()
    c.apply(c.writer.promote(c.layers, USED))
    gone = c.of(KEY)[0].id
    c.apply([SetStatus(gone, "deleted")])
    topic = c.layers.get("topic:1")
    c.layers.put(replace(topic, meta={**topic.meta, "key_promoted": False}))
    c.apply(c.writer.promote(c.layers, USED))
    assert gone not in [k.id for k in c.of(KEY)] and c.layers.get(gone).status == "deleted"


def test_what_the_user_pins_stays_and_automatic_ones_make_room():
    c = risky(ktm_capacity=2)
    c.apply(c.writer.promote(c.layers, USED))
    c.apply(c.writer.pin(c.layers, manual_key("No coriander.", category="constraint")))
    assert sorted(k.text for k in c.of(KEY)) == [
        "I'm allergic to the glue on marathon shoes.",
        "No coriander.",
    ], "liking mornings was the least urgent"
    c.apply(c.writer.pin(c.layers, manual_key("Answer briefly.")))
    assert {k.meta["source"] for k in c.of(KEY)} == {"manual"}
    with pytest.raises(ValueError, match=r"3 key memories .* ktm_capacity \(2\); delete one"):
        c.writer.pin(c.layers, manual_key("And in French."))
    again = manual_key("no coriander", priority=0.4)
    edits = c.apply(c.writer.pin(c.layers, again))
    assert [type(e) for e in edits] == [Update] and c.layers.get(again.id).meta["priority"] == 0.4


def test_a_deleted_key_memory_that_is_pinned_again_comes_back():
    c = Conversation()
    key = manual_key("No coriander.")
    c.apply(c.writer.pin(c.layers, key))
    c.apply([SetStatus(key.id, "deleted")])
    assert c.writer.pin(c.layers, key) == [SetStatus(key.id, "active")]


def test_expired_key_memories_go_first():
    day = datetime(2024, 5, 1, tzinfo=UTC)
    old = manual_key("Antibiotics until Friday.", ttl_days=10, at=day)
    assert not is_expired(old, day + timedelta(days=10)) and is_expired(old, day + timedelta(days=10.1))
    assert not is_expired(old, None)
    c = risky(ktm_capacity=2)
    c.apply(c.writer.promote(c.layers, USED))
    sure = c.of(KEY)[0]
    c.layers.put(replace(sure, at=day, meta={**sure.meta, "ttl_days": 1}))
    c.apply(c.writer.pin(c.layers, manual_key("Brief.", at=day + timedelta(days=2))))
    assert sure.id not in [k.id for k in c.of(KEY)]


# -- the whole


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": 2}, "has step 2, and the memory is at 2; give it step=3"),
        ({"step": 3, "layer": "page"}, "a turn has layer ''"),
        ({"step": 3, "owner": "ada"}, "here owner ''"),
    ],
)
def test_what_is_no_next_turn_is_refused(fields, message):
    c = Conversation().talk("run run")
    with pytest.raises(ValueError, match=message):
        c.writer.add_turn(c.layers, Memory("x", "…", **fields))


def test_what_was_missed_is_due_later():
    c, late = Conversation(), Conversation()
    c.talk("run cat job " * 8)
    turns = [m for m in c.memories.values() if not m.layer]
    late.apply([Add(t) for t in turns])
    late.apply(late.writer.due(late.layers))
    assert [p.derived_from for p in late.of(PAGE)] == [p.derived_from for p in c.of(PAGE)]
    assert [s.derived_from for s in late.of(SUMMARY)] == [s.derived_from for s in c.of(SUMMARY)]
    assert late.writer.due(late.layers) == []


def test_a_server_that_is_down_loses_nothing():
    with Server(status(500)) as server:
        c = Conversation(LLM("m", base_url=server.url, max_retries=0, sleep=lambda s: None, timeout=5))
        c.talk("run run run")
        before = seen(c.layers)
        with pytest.raises(ServerError):
            c.talk("run")
        assert seen(c.layers) == before


def test_a_model_writes_and_is_named():
    replies = {"page_summary": "Runs.", "topic_summary": "Runs."}
    with Server(*(ok_json({"summary": text}) for text in replies.values())) as s:
        others = tuple(t for t in TASK_NAMES if t not in replies)
        c = Conversation(LLM("m", base_url=s.url), rule_only=others)
        c.talk("run " * 6)
    assert {p.text for p in c.of(PAGE)} == {"Runs."} and {p.meta["by"] for p in c.of(PAGE)} == {"m"}
    assert c.layers.count(TOPIC) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(SUBJECTS)), min_size=1, max_size=40), st.integers(0, 10**6))
def test_layers_that_followed_every_change_equal_those_made_afresh(subjects, seed):
    c = Conversation(mtm_capacity=2, max_topic_pages=3, tail_pages=1, ltm_capacity=6)
    c.talk(" ".join(subjects))
    memories = list(c.memories.values())
    random.Random(seed).shuffle(memories)
    assert seen(Layers(memories)) == seen(c.layers)
    twice = Layers(memories)
    for m in memories:
        twice.put(m)
    assert seen(twice) == seen(c.layers)
    assert seen(c.layers.copy()) == seen(c.layers)


def test_a_draft_leaves_the_layers_alone():
    c = Conversation().talk("run cat job " * 6)
    before = seen(c.layers)
    draft = Draft(c.layers, c.memories.get)
    for m in c.of(PAGE):
        draft.retire(m)
    draft.put(derive(KEY, "key:x", "x", c.layers.short_term))
    assert seen(c.layers) == before and len(draft.edits()) == c.layers.count(PAGE) + 1
    with pytest.raises(ValueError, match="is a turn"):
        draft.retire(c.layers.short_term[0])


def test_in_a_store_all_is_stored_at_once_and_turns_never_change():
    embedder = HashEmbedder()
    store = MemoryStore(embedder=embedder)
    config = MemoryConfig(**{**SMALL, "mtm_capacity": 3, "max_topic_pages": 3, "tail_pages": 1})
    writer, layers = Writer(config, embedder.encode, store.get), Layers()
    for step in range(1, 41):
        text = SUBJECTS[sorted(SUBJECTS)[step * step % 3]].format(n=step)
        turn = Memory(f"t{step}", text, speaker="Maya", step=step)
        edits = writer.add_turn(layers, turn)
        store.apply(edits, who="writer", why="turn", since=store.last_event)
        follow(layers, edits)
    events = [e for e in store.events() if e.id.startswith("t") and e.id[1:].isdigit()]
    assert [e.kind for e in events] == ["add"] * 40, "a turn is added, and nothing else happens to it"
    stored = {e.id: store.get(e.id) for e in store.events()}
    assert seen(Layers(stored.values())) == seen(layers)
    store.visit(visited(layers.of(PAGE)[:1], layers.get))
    page = layers.of(PAGE)[0]
    assert uses_of(store.visits(last=20)) == {page.id: Use(1, 1), page.meta["topic"]: Use(1, 1)}


def test_turns_that_were_deleted_are_in_no_page():
    c = Conversation().talk("run run run")
    c.apply([SetStatus("t2", "deleted")])
    assert [t.id for t in c.layers.short_term] == ["t1", "t3"]
    c.talk("run run")
    assert [p.derived_from for p in c.of(PAGE)] == [("t1", "t3")]
