"""What a turn and a query set off in a layered memory: hand-computed cases and properties, in a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import numpy as np
import pytest

from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layered import LayeredMemory
from adaptmr.memory.layers import FACT, KEY, PAGE, PROFILE, SUMMARY, TOPIC, Changes, Layers
from adaptmr.memory.writing import Use, eviction_order, next_page, promotion_rule
from adaptmr.types import Memory

SMALL: dict[str, Any] = {"stm_capacity": 2, "page_turns": 2, "rollup_pages": 2, "profile_every": 1}
SUBJECTS = {
    "run": "I ran the marathon course with new running shoes, kilometre {n}.",
    "cat": "The cat Mango was at the vet again, and Mango scratched vet number {n}.",
    "job": "At the hospital the ward sister changed my shift rota, week {n}.",
}
_AXES = {name: np.eye(8, dtype=np.float32)[i] for i, name in enumerate(SUBJECTS)}


class BySubject:
    """Vectors that say only which subjects a text is about, and are alike for the same ones."""

    name, dim, model = "subjects", 8, "subjects"

    def encode(self, texts: Iterable[str], kind: str = "") -> np.ndarray:
        rows = []
        for text in texts:
            marks = (("marathon", "run"), ("Mango", "cat"), ("ward", "job"))
            v = np.sum([_AXES[s] for word, s in marks if word in text] or [np.eye(8)[7]], axis=0)
            rows.append(v / np.linalg.norm(v))
        return np.array(rows, np.float32).reshape(-1, 8)


class Conversation:
    """A layered memory to which an assistant's name talks, so that no turn counts as a query."""

    def __init__(self, **config: Any) -> None:
        self.config = MemoryConfig(**{**SMALL, **config})
        self.memory = LayeredMemory(config=self.config, assistant="Maya", embedder=BySubject())

    def say(self, text: str) -> None:
        self.memory.add(text, "Maya", at="2024-05-01", session="S1")

    def talk(self, subjects: str) -> Conversation:
        for name in subjects.split():
            self.say(SUBJECTS[name].format(n=self.layers.last_step))
        return self

    @property
    def layers(self) -> Layers:
        return self.memory.present.now()

    def of(self, layer: str, status: str | None = "active") -> list[Memory]:
        return self.layers.of(layer, status)

    def topic(self) -> Memory:
        found = self.layers.get("topic:1")
        assert found is not None
        return found

    def turns_of(self, memory: Memory) -> list[str]:
        """The ids of the turns behind a memory."""
        found = [(self.memory.store.get(i), i) for i in memory.derived_from]
        return sorted({t for m, i in found if m for t in ([i] if not m.layer else self.turns_of(m))})

    def promote(self, uses: Mapping[str, Use]) -> Changes:
        return self.memory.present.change(lambda changes: self.memory._writer.promote(changes, uses), "test")


# -- pages and topics


def test_a_pause_a_new_session_or_many_words_end_a_page() -> None:
    config = MemoryConfig(stm_capacity=2, page_turns=4)

    def length(hours: list[float], sessions: str = "") -> int:
        turns = [
            Memory(f"t{i}", "x", step=i, at=datetime(2024, 5, 1) + timedelta(hours=h), session=s)
            for i, (h, s) in enumerate(zip(hours, sessions or "a" * len(hours)), 1)
        ]
        return len(next_page(turns, config))

    assert length([0, 0, 0, 0, 0]) == 0, "not yet a page beyond the capacity"
    assert length([0, 0, 0, 6.1, 7, 8]) == 3
    assert length([0, 0, 0, 6.0, 7, 8]) == 4, "six hours are no break"
    assert length([0] * 6, "aabbbb") == 2
    assert length([0] * 7, "aaaaabb") == 3, "five turns are 3 and 2, not 4 and 1"
    long = [Memory(f"t{i}", "word " * 200, step=i) for i in range(8)]
    assert len(next_page(long, replace(config, page_source_tokens=600))) == 2, "250 tokens each"
    assert len(next_page(long, replace(config, page_source_tokens=10))) == 1


def test_compression_keeps_the_tail_and_the_step_range() -> None:
    c = Conversation(max_topic_pages=4, tail_pages=2).talk("run " * 11)
    assert c.topic().meta["compressed_at"] is None and c.layers.count(PAGE) == 4
    c.talk("run run")
    topic = c.topic()
    assert [p.id for p in c.layers.pages_of("topic:1")] == ["page:7-8", "page:9-10"]
    assert topic.meta["compressed_at"].startswith("2024-05-01") and topic.meta["compressed_step"] == 10
    assert topic.meta["summary_step_range"] == [1, 10] and topic.meta["pages"] == 5
    assert len(c.turns_of(topic)) == 10, "it can be traced back"
    c.talk("run " * 40)
    assert c.layers.count(PAGE) <= 4 and c.topic().meta["pages"] == 25


# -- long-term memory


def test_roll_ups_follow_each_other_and_above_capacity_the_oldest_are_merged() -> None:
    c = Conversation().talk("run cat job " * 14)
    spans = [tuple(s.meta["summary_step_range"]) for s in c.of(SUMMARY)]
    assert spans == [(i, i + 3) for i in range(1, 38, 4)] and all(s.text for s in c.of(SUMMARY))
    c = Conversation(ltm_capacity=8).talk("run cat job " * 14)
    summaries = c.of(SUMMARY)
    assert len(summaries) == 2 and len(summaries) + c.layers.count(FACT) <= 8
    spans = [tuple(s.meta["summary_step_range"]) for s in summaries]
    assert spans[0][0] == 1 and spans[0][1] + 1 == spans[1][0] and spans[1][1] == 40
    assert "turn:1" in c.turns_of(summaries[0])


def test_a_newer_value_replaces_a_fact_and_a_line_of_the_profile() -> None:
    c = Conversation()
    for text in ("I live in Leeds near the abbey.", "It rains a lot.", "Yes indeed.", "So it goes on."):
        c.say(text)
    c.talk("run run")
    assert "Leeds" in c.of(PROFILE)[0].text
    c.say("I've moved to Bristol, by the river.")
    c.talk("cat cat cat job job job job")
    assert any("Bristol" in f.text for f in c.of(FACT))
    assert "Bristol" in c.of(PROFILE)[0].text and "Leeds" not in c.of(PROFILE)[0].text
    assert [f.text for f in c.of(FACT, "deleted")] == ["I live in Leeds near the abbey."]
    c.memory.delete("profile", "profile")
    c.say("I work on the stroke ward.")
    c.talk("run cat job " * 5)
    assert c.of(PROFILE) == [], "the user doesn't want one"


# -- promotion and key memories


def test_promotion_takes_two_of_three_conditions() -> None:
    config = MemoryConfig(heat_visits=0.0, heat_recency=0.0, heat_length=1.0)
    for rate, hits, hot in product((True, False), repeat=3):
        use = Use(hits=8 if hits else 7, recent_hits=7 if rate else 6)
        topic = Memory("topic:1", "…", layer=TOPIC, meta={"pages": 6 if hot else 5})
        assert bool(promotion_rule(topic, use, 1, config)) == (rate + hits + hot >= 2)
        assert not promotion_rule(topic, use, 1, replace(config, enable_auto_key_promotion=False))


def risky(**config: Any) -> Conversation:
    c = Conversation(**config)
    c.say("I'm allergic to the glue on marathon shoes.")
    c.say("I love marathon mornings.")
    return c.talk("run run run run")


USED = {"topic:1": Use(9, 8), "page:1-2": Use(9, 8)}


def test_a_topic_that_is_asked_for_gives_key_memories_once() -> None:
    c = risky()
    c.promote(USED)
    k, liked = c.of(KEY)
    assert k.text == "I'm allergic to the glue on marathon shoes." and liked.meta["category"] == "preference"
    assert (k.meta["category"], k.meta["source"], k.derived_from) == ("risk", "auto", ("turn:1",))
    assert k.meta["trace"] == {
        "session_ids": ["topic:1"],
        "page_ids": ["page:1-2", "page:3-4"],
        "rule": "hit rate 0.4 >= 0.35; hits 9 >= 8; heat 6.5 >= 6",
    }
    assert set(c.topic().meta["promotion"]["keys"]) == {k.id, liked.id}
    assert c.topic().meta["key_promoted"] and c.topic().meta["promotion"]["hit_rate"] == 0.4
    assert c.promote(USED).edits == [], "not a second time"
    sure = risky(confidence_floor=0.95)
    sure.promote(USED)
    assert sure.of(KEY) == [] and sure.topic().meta["key_promoted"], "examined, and nothing found"


def test_what_the_user_pins_stays_and_automatic_ones_make_room() -> None:
    c = risky(ktm_capacity=2)
    c.promote(USED)
    c.memory.pin("No coriander.", "constraint")
    allergy = "I'm allergic to the glue on marathon shoes."
    assert {k.text for k in c.of(KEY)} == {allergy, "No coriander."}, "mornings were the least urgent"
    c.memory.pin("Answer briefly.")
    assert {k.meta["source"] for k in c.of(KEY)} == {"manual"}
    with pytest.raises(ValueError, match=r"3 key memories .* ktm_capacity \(2\); delete one"):
        c.memory.pin("And in French.")
    again = c.memory.pin("no coriander", priority=0.4)
    assert again.meta["priority"] == 0.4 and c.layers.count(KEY) == 2
    c.memory.delete("key", again.id)
    assert c.memory.pin("no coriander").status == "active", "pinned again, it comes back"


def test_expired_key_memories_go_first() -> None:
    memory = Conversation(ktm_capacity=2).memory
    memory.pin("No alcohol, I take antibiotics.", ttl_days=10, at="2024-05-01")
    memory.pin("Answer briefly.", at="2024-05-02")
    with pytest.raises(ValueError, match="delete one first"):
        memory.pin("No coriander.", at="2024-05-10")
    memory.pin("No coriander.", at="2024-05-12")
    assert set(memory.keys()["text"]) == {"Answer briefly.", "No coriander."}


# -- the whole


def test_eviction_takes_the_least_used_topic_then_the_coldest_and_no_turns() -> None:
    c = Conversation().talk("run run cat cat job job job job")
    ids = {s: t.id for s, t in zip(("run", "cat", "job"), c.of(TOPIC))}

    def order(**hits: int) -> list[str]:
        uses = {ids[s]: Use(n) for s, n in hits.items()}
        return [t.id for t in eviction_order(c.layers, uses, c.config)]

    assert order() == [ids["run"], ids["cat"]], "the older is colder; the topic of the latest page stays"
    assert order(run=1) == [ids["cat"], ids["run"]] and order(run=3, cat=4) == [ids["run"], ids["cat"]]
    c = Conversation(mtm_capacity=2).talk("run run cat cat job job job job")
    assert [t.id for t in c.of(TOPIC)] == ["topic:3", "topic:5"]
    assert [m.id for m in c.of(PAGE, "deleted")] == ["page:1-2"]
    assert len([m for m in c.memory.store.memories if not m.layer]) == 8
    assert c.turns_of(c.of(SUMMARY)[0]) == ["turn:1", "turn:2", "turn:3", "turn:4"]
    c.talk("run run run run")
    assert c.topic().status == "deleted" and c.layers.count(TOPIC) == 2, "it takes no new pages"


def test_a_small_conversation_is_grouped_by_subject_and_summarised_again_when_grown_by_half() -> None:
    c = Conversation().talk("run run cat cat job job run run cat cat run run")
    groups = [[p.derived_from for p in c.layers.pages_of(t.id)] for t in c.of(TOPIC)]
    steps = sorted(sorted(int(i[5:]) for ids in group for i in ids) for group in groups)
    assert steps == [[1, 2, 7, 8], [3, 4, 9, 10], [5, 6]]
    run = c.topic()
    assert run.meta["pages"] == 2 and run.meta["summary_step_range"] == [1, 8] and run.step == 8
    assert "marathon" in run.meta["keywords"]
    c, made = Conversation(max_topic_pages=50), set()
    for _ in range(12):
        c.talk("run run")
        made |= {t.meta["pages"] for t in c.of(TOPIC) if t.meta["pages"] == t.meta["summarised_pages"]}
    assert sorted(made) == [1, 2, 3, 5, 8]
