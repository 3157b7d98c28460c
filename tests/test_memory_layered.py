"""A layered memory as its users see it: turns in, answers out, deletion, rollback, promotion, failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from server import Server, ok, ok_json, status

from adaptmr.llm import LLM, ServerError
from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layered import LayeredMemory
from adaptmr.memory.layers import DERIVED, KEY, PAGE
from adaptmr.types import Memory

# every step happens within a few turns; the roads may take as long as a busy machine makes them
SMALL: dict[str, Any] = {
    "stm_capacity": 2,
    "page_turns": 2,
    "rollup_pages": 2,
    "profile_every": 1,
    "max_topic_pages": 3,
    "tail_pages": 1,
    "mtm_capacity": 2,
    "ltm_capacity": 6,
    "ktm_capacity": 4,
    "hit_window": 4,
    "key_promotion_min_hits": 3,
    "key_promotion_heat": 3.0,
    "top_k_sessions": 1,
    "road_seconds": 60,
}
SAID = (
    "I live in Leeds with my cat Mango.",
    "I'm allergic to nuts, so no walnut cake.",
    "The marathon is on the 6th of May and I'm training for it.",
    "I love jazz and I play the cello on Sundays.",
    "My sister Ngozi moved to Bristol last week.",
    "Mango was at the vet again, the bill was 64 pounds.",
)
QUESTION = "Where do I live, and with which cat?"
START = datetime(2024, 5, 1, 9, tzinfo=UTC)


def make(**config: Any) -> LayeredMemory:
    ticks = (START + timedelta(hours=n) for n in range(100_000))
    return LayeredMemory(
        config=MemoryConfig(**{**SMALL, **config}),
        user="Maya",
        assistant="Ada",
        embedder="hash",
        clock=lambda: next(ticks),
    )


@pytest.fixture
def memory() -> Iterator[LayeredMemory]:
    with make() as memory:
        yield memory


def picture(memory: LayeredMemory) -> Any:
    """What the memory is: all active memories, the counters, the short-term memory, and a prompt."""
    memories = {m.id: replace(m, version=1) for m in memory.store.memories}
    columns = ["hit_count_total", "hit_count_window", "heat", "key_promoted"]
    counters = memory.topics()[columns].to_dict("index")
    short_term = [m.id for m in memory.present.now().short_term]
    return memories, counters, short_term, memory.prompt(QUESTION).text


class AnyLife(RuleBasedStateMachine):
    """Random acts; now and then a rollback to an earlier moment, which must be that moment again."""

    @initialize()
    def begin(self) -> None:
        self.memory = make()
        self.moments: dict[int, Any] = {0: picture(self.memory)}
        self.turns: dict[str, tuple[str, str]] = {}  # id to text and status, as the user left them

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()

    def note(self) -> None:
        self.moments[self.memory.last_event] = picture(self.memory)

    def ids(self, status: str, *layers: str) -> list[str]:
        found = {e.id for e in self.memory.store.events() if e.id}
        known = [m for i in found if (m := self.memory.store.get(i)) is not None and m.status == status]
        return sorted(m.id for m in known if m.layer in layers)

    @rule(text=st.sampled_from(SAID), times=st.integers(1, 4), speaker=st.sampled_from(("Maya", "Ada")))
    def talk(self, text: str, times: int, speaker: str) -> None:
        for n in range(times):
            turn = self.memory.add(f"{text} {n}", speaker)
            self.turns[turn.id] = (turn.text, "active")
            self.note()

    @rule(text=st.sampled_from(SAID))
    def ask(self, text: str) -> None:
        for turn in self.memory.respond(text).turns:
            self.turns[turn.id] = (turn.text, "active")
        self.note()

    @rule(text=st.sampled_from(("No coriander.", "Answer in one sentence.")))
    def pin(self, text: str) -> None:
        self.memory.pin(text, "constraint")
        self.note()

    @rule(data=st.data(), layer=st.sampled_from(("", *DERIVED)))
    def delete(self, data: st.DataObject, layer: str) -> None:
        if ids := self.ids("active", layer):
            id = data.draw(st.sampled_from(ids))
            assert self.memory.delete(layer or "turn", id)
            if not layer:
                self.turns[id] = (self.turns[id][0], "deleted")
            self.note()

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        if ids := [i for i, (_, status) in self.turns.items() if status == "deleted"]:
            id = data.draw(st.sampled_from(ids))
            self.memory.restore("turn", id)
            self.turns[id] = (self.turns[id][0], "active")
            self.note()

    @rule(data=st.data())
    def correct(self, data: st.DataObject) -> None:
        if ids := self.ids("active", "", PAGE, KEY):
            id = data.draw(st.sampled_from(ids))
            self.memory.change(id, "I live in York with a dog.")
            if id in self.turns:
                self.turns[id] = ("I live in York with a dog.", "active")
            self.note()

    @precondition(lambda self: len(self.moments) > 1)
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        to_event = data.draw(st.sampled_from(sorted(self.moments)))
        done = self.memory.rollback(to_event)
        assert done.lost == () and picture(self.memory) == self.moments[to_event]
        active = {m.id: m.text for m in self.memory.store.memories if not m.layer}
        for id, (text, _) in self.turns.items():
            self.turns[id] = (active[id], "active") if id in active else (text, "gone")
        self.note()

    @invariant()
    def no_turn_changes_by_itself(self) -> None:
        if hasattr(self, "turns"):
            kept = {i: text for i, (text, status) in self.turns.items() if status == "active"}
            assert {m.id: m.text for m in self.memory.store.memories if not m.layer} == kept

    @invariant()
    def a_second_reader_sees_the_same_layers(self) -> None:
        if hasattr(self, "memory"):
            other = LayeredMemory(self.memory.store, self.memory.config, user="Maya")
            mine, its = (m.present.now() for m in (self.memory, other))
            assert [m.id for m in mine.short_term] == [m.id for m in its.short_term]
            for layer in DERIVED:
                assert mine.of(layer, status=None) == its.of(layer, status=None)


AnyLife.TestCase.settings = settings(
    max_examples=3, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyLife = AnyLife.TestCase


@pytest.mark.slow
def test_many_lives() -> None:
    run_state_machine_as_test(
        AnyLife,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# -- parameters


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"stm_capacty": 4}, "stm_capacty"),
        ({"stm_capacity": 0}, "greater than or equal to 1"),
        ({"key_promotion_hit_rate": float("nan")}, "finite number"),
        ({"source_weights": {"KTM": 1}}, "give key, long_term, mid_term"),
        ({"tail_pages": 12}, "fewer than max_topic_pages"),
    ],
)
def test_a_wrong_parameter_is_named(values: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        MemoryConfig(**values)
    assert MemoryConfig(section_tokens={"key": 99}).section_tokens["mid_term"] == 900


# -- turns


def test_two_users_in_one_store_never_meet(memory: LayeredMemory) -> None:
    other = LayeredMemory(memory.store, memory.config, user="Tom")
    for text in SAID:
        memory.add(text)
        other.add(f"Tom says: {text}")
    other.pin("Call me Tommy.")
    assert "Tom" not in memory.prompt(QUESTION).text and "Mango" in memory.prompt(QUESTION).text
    assert set(memory.topics().index).isdisjoint(other.topics().index)
    with pytest.raises(KeyError, match="of 'Maya'"):
        memory.delete("key", other.keys().index[0])
    memory.add(Memory("D1:1", "My secret is 42.", "Maya"))
    with pytest.raises(ValueError, match="'D1:1' is taken by a memory of another user") as refused:
        other.add(Memory("D1:1", "My secret is 42.", "Maya"))
    assert "secret" not in str(refused.value)


# -- answers


def test_an_answer_is_stored_with_its_question_which_counts_as_a_query(memory: LayeredMemory) -> None:
    for text in SAID:
        memory.add(text, at=START)
    before = memory.state_version()
    response = memory.respond("What am I allergic to?")
    assert "nut" in response.text and [t.speaker for t in response.turns] == ["Maya", "Ada"]
    assert "What am I allergic to?" not in response.prompt.memory_text, "a question doesn't find itself"
    assert memory.state_version()[1] == before[1] + 1 and memory.store.recent(1)[0].text == response.text
    for _ in range(3):
        memory.respond(QUESTION)
    hits = memory.topics()[["hit_count_total", "hit_count_window", "key_promoted"]]
    assert hits["hit_count_total"].max() >= 3
    memory.delete("turn", "turn:Maya:2", soft=False, confirm=True)
    assert memory.topics()[list(hits)].sort_index().equals(hits.sort_index()), "kept when a turn is erased"


def test_a_pinned_key_memory_is_in_every_prompt_until_it_is_deleted(memory: LayeredMemory) -> None:
    key = memory.pin("No coriander, please.", "constraint", ttl_days=10)
    assert key.meta["priority"] == 1.0 and "No coriander" in memory.prompt("What shall I cook?").text
    memory.delete("key", key.id)
    assert "No coriander" not in memory.prompt("What shall I cook?").text
    assert memory.restore("key", key.id) and memory.keys()["text"].tolist() == ["No coriander, please."]
    again = memory.pin("no coriander PLEASE", "preference", priority=0.5)
    assert again.id == key.id and len(memory.keys()) == 1 and again.meta["priority"] == 0.5


# -- promotion


def hot(memory: LayeredMemory) -> None:
    """Talk until a topic has earned key memories."""
    for n in range(12):
        memory.add(f"I'm allergic to nuts, number {n}.")


# -- what the log says


def test_a_page_that_was_deleted_before_its_roll_up_is_in_no_summary_until_it_is_restored() -> None:
    with make(stm_capacity=2, rollup_pages=2, max_topic_pages=10, mtm_capacity=20) as memory:
        for text in SAID[:4]:
            memory.add(text)
        (page,) = memory.pages().index
        memory.delete("page", page)
        for told in (False, True):
            for n in range(6):
                memory.add(f"We talked about the number {n}, {told}.")
            assert memory.summaries()["text"].str.contains("Mango").any() == told, "the cat of the page"
            memory.restore("page", page)


# -- saving


def test_an_erased_turn_leaves_no_trace_in_what_a_rollback_took_back(tmp_path: Any) -> None:
    with make(topic_threshold=0.0, max_topic_pages=10) as memory:
        for n in range(4):
            memory.add(f"I bought the boat number {n} in Leeds.")
        early = memory.last_event
        pinned = memory.pin("Answer briefly.")
        for n in range(4):
            memory.add(f"I bought the zebra number {n} in Leeds.")
        late = memory.last_event
        assert sum("zebra" in m.text for m in memory.store.memories if m.layer) >= 2
        memory.rollback(early)
        topics = memory.topics()
        for n in range(5, 9):
            memory.delete("turn", f"turn:Maya:{n}", soft=False, confirm=True)
        memory.store.export_jsonl(tmp_path / "all.jsonl")
        assert "zebra" not in (tmp_path / "all.jsonl").read_text()
        assert topics.equals(memory.topics()), "what doesn't tell of it stays as it is"
        lost = memory.rollback(late).lost
        assert not [m for m in memory.store.memories if "zebra" in m.text]
        assert {"turn:Maya:5", "page:Maya:5-6"} <= set(lost) and pinned.id in memory.keys().index


def test_a_profile_tells_nothing_of_a_deleted_turn_whose_fact_was_given_up() -> None:
    with make(ltm_capacity=4, max_facts=2) as memory:

        def text(layer: str) -> str:
            return "\n".join(memory.summaries().query(f"layer == '{layer}'")["text"])

        for n in range(14):
            memory.add(f"I love the zebra number {n} in Leeds.")
        profile = text("profile")
        told = [n for n in range(14) if f"number {n} " in profile]
        n = next(n for n in told if f"number {n} " not in text("fact"))
        for soft in (True, False):
            memory.delete("turn", f"turn:Maya:{n + 1}", soft=soft, confirm=not soft)
            assert f"number {n} " not in text("profile") and f"number {told[-1]} " in text("profile")
            if soft:
                memory.restore("turn", f"turn:Maya:{n + 1}")
                assert text("profile") == profile


# -- with a model


def answers(body: dict[str, Any]) -> Any:
    """Reply to each task with what it asks for."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    names = set(schema.get("properties", {}))
    values = {
        "summary": "A short summary.",
        "keywords": ["leeds"],
        "continues": True,
        "facts": [],
        "keys": [],
        "lines": ["Maya lives in Leeds."],
    }
    return ok_json({n: values[n] for n in names}) if names else ok("In Leeds.")


def with_model(server: Server) -> LayeredMemory:
    llm = LLM("m", base_url=server.url, sleep=lambda s: None, timeout=5, max_retries=0)
    return LayeredMemory(config=MemoryConfig(**SMALL), llm=llm, user="Maya", embedder="hash")


def test_a_model_writes_the_layers_and_answers() -> None:
    with Server(lambda h, body: answers(body)(h, body)) as server, with_model(server) as memory:
        for text in SAID:
            memory.add(text)
        assert set(memory.pages()["by"]) == {"m"} and (memory.pages()["text"] == "A short summary.").all()
        response = memory.respond("Where do I live?")
        assert response.text == "In Leeds." and response.usage.calls >= 1
        last = [b for b in server.requests if "response_format" not in b][-1]
        assert last["messages"] == response.prompt.messages
        calls = len(server.requests)
        memory.delete("turn", "turn:Maya:1")
        memory.restore("turn", "turn:Maya:1")
        again = [b for b in server.requests[calls:] if "response_format" in b]
        assert again and "Mango" not in json.dumps(again), "made again from the rest, and back for free"


def test_turns_get_numbers_and_ids_in_their_order_and_none_is_given_or_added_twice(tmp_path: Any) -> None:
    config, path = MemoryConfig(**SMALL), tmp_path / "m.db"
    with LayeredMemory(path, config, user="Maya", embedder="hash") as memory:
        turns = [memory.add("Hello."), memory.add("Hello, Maya.", "Ada", at="2024-05-02T10:00:00")]
        assert [(m.step, m.id, m.speaker, m.owner) for m in turns] == [
            (1, "turn:Maya:1", "Maya", "Maya"),
            (2, "turn:Maya:2", "Ada", "Maya"),
        ]
        assert turns[1].at == datetime(2024, 5, 2, 10, tzinfo=UTC)
        said = memory.add(Memory("D1:7", "Hm.", "Maya", step=7))
        assert said.step == 7 and memory.add(Memory("D1:3", "Hm.", step=3)).step == 8, "3 is taken"
        state = memory.state_version()
        assert memory.add(Memory("D1:7", "Hm.", "Maya")) == said and memory.state_version() == state
        with pytest.raises(ValueError, match=r"'D1:7' is taken by a memory that says something else: 'Hm\.'"):
            memory.add(Memory("D1:7", "Good bye.", "Maya"))
        with pytest.raises(ValueError, match="'page:1' is a page, not a turn"):
            memory.add(Memory("page:1", "…", layer=PAGE))
        for id in [memory.add("More.").id for _ in range(3)]:
            memory.delete("turn", id, soft=False, confirm=True)
    with LayeredMemory(path, config, user="Maya", embedder="hash") as memory:
        assert memory.add("Hello.").step == 12, "the number of an erased turn is not given again"


def test_the_events_say_which_step_did_what_to_which_layer_of_the_user(memory: LayeredMemory) -> None:
    other = LayeredMemory(memory.store, memory.config, user="Tom")
    for one in (memory, other):
        for text in SAID:
            one.add(text)
        one.delete("turn", f"turn:{one.user}:1", soft=False, confirm=True)
    events = memory.events(1_000)
    assert {"turn", "page", "topic", "summary"} <= {e.layer for e in events}
    assert {e.who for e in events} == {"memory", "user"}
    page = next(e for e in events if e.layer == "page")
    assert (page.did, page.who) == ("added", "memory") and page.why.startswith("turn 4")
    assert [e.did for e in events if e.id == "turn:Maya:1"] == ["added", "retired"]
    for limit in (0, 1, 3, len(events) - 1):
        assert memory.events(limit) == events[len(events) - limit :]
    assert not [e for e in events if "Tom" in e.id] and not [e for e in other.events(99) if "Maya" in e.id]


def test_a_turn_is_safe_when_the_model_fails_and_a_deletion_changes_nothing() -> None:
    broken = [True]

    def reply(handler: Any, body: dict[str, Any]) -> None:
        (status(500) if broken[0] else answers(body))(handler, body)

    with Server(reply) as server, with_model(server) as memory:
        for text in SAID[:3]:
            memory.add(text)
        with pytest.raises(ServerError) as failed:
            memory.add(SAID[3])
        assert "The turn is stored" in failed.value.__notes__[0]
        assert [m.text for m in memory.store.memories] == list(SAID[:4]) and memory.pages().empty
        broken[0] = False
        assert memory.complete() > 0 and len(memory.pages()) == 1
        assert memory.complete() == 0, "nothing is left to be done"
        broken[0], before = True, memory.last_event
        with pytest.raises(ServerError):
            memory.delete("turn", "turn:Maya:1")
        assert memory.last_event == before and "turn:Maya:1" in {m.id for m in memory.store.memories}
        broken[0] = False
        assert memory.delete("turn", "turn:Maya:1")
        assert memory.pages()["text"].tolist() == ["A short summary."]


def test_a_rollback_takes_a_promotion_and_its_counts_back_and_a_topic_is_promoted_once() -> None:
    with make(topic_threshold=0.3, mtm_capacity=200) as memory:
        moments = []
        while memory.keys().empty:
            moments.append((memory.last_event, picture(memory)))
            memory.add(f"I'm allergic to nuts, number {len(moments)}.")
        for event, then in moments[::-3]:
            memory.rollback(event)
            assert picture(memory) == then
        hot(memory)
        keys = memory.keys()
        assert 1 <= len(keys) <= 3 and keys["source"].unique() == ["auto"], "it can be earned again"
        assert memory.topics()["key_promoted"].any()
        for id in keys.index:
            memory.delete("key", id)
        hot(memory)
        assert memory.keys().empty, "what the user has deleted does not come back"
