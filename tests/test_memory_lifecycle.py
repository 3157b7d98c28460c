"""What follows from deleting, restoring, correcting and erasing memories, in hand-made cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.memory.cascade import affected, parts_of
from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layered import LayeredMemory
from adaptmr.memory.layers import (
    GIVEN_UP,
    KEY,
    PAGE,
    SUMMARY,
    TOPIC,
    Changes,
    Layers,
    MemoryBusy,
    Present,
    derive,
    retired_because,
    span_id,
    step_span,
)
from adaptmr.memory.tasks import MemoryTasks
from adaptmr.memory.writing import join_topic, make_fact, make_profile, make_summary, manual_key, new_topic
from adaptmr.store.edits import Add, SetStatus, Update
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

TASKS = MemoryTasks(MemoryConfig())
SAID = ("boat", "cello", "drill", "easel", "flute", "globe", "harp", "iron")


def turn(i: int) -> Memory:
    return Memory(f"t{i}", f"I bought the {SAID[i - 1]} in Leeds. It cost {i}0 pounds.", "Maya", step=i)


def page_of(turns: list[Memory]) -> Memory:
    meta = {"topic": "topic:1", "keywords": list(TASKS.keywords(turns))}
    text = TASKS.page_summary(turns).text
    return derive(PAGE, span_id(PAGE, "", *step_span(turns)), text, turns, meta=meta)


def filled() -> MemoryStore:
    """Eight turns in two pages of a topic, a summary, facts, a profile, a key memory of the second turn."""
    store = MemoryStore(embedder="hash")
    turns = [turn(i) for i in range(1, 9)]
    first, second = page_of(turns[:4]), page_of(turns[4:])
    topic = join_topic(new_topic(first), second, [first, second], TASKS.config)
    written, claims = TASKS.rollup(turns)
    facts = [make_fact(c, "") for c in claims]
    topic = replace(topic, text=TASKS.topic_summary([first, second]).text)
    meta = {"category": "goal", "source": "auto", "priority": 0.5, "confidence": 0.9}
    key = derive(KEY, "key:auto", "I bought the cello in Leeds.", [turns[1]], meta=meta)
    made = [*turns, first, second, topic, make_summary([first, second], written, ""), *facts, key]
    profile = make_profile(Layers(), [f.text_with_speaker for f in facts], facts, "rule")
    store.apply([Add(m) for m in (*made, profile, manual_key("Never mention the cello."))])
    return store


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with filled() as store:
        yield store


def life_of(store: MemoryStore) -> LayeredMemory:
    return LayeredMemory(store)


def shown(store: MemoryStore) -> dict[str, Memory]:
    """The active memories; without their version numbers, which count changes and never go back."""
    return {m.id: replace(m, version=1) for m in store.memories}


def automatic(store: MemoryStore) -> list[Memory]:
    return [m for m in store.memories if m.meta.get("source") != "manual"]


def delete(life: LayeredMemory, id: str, kind: str = "turn") -> bool:
    return life.delete(kind, id)


def text_in(store: MemoryStore, id: str) -> str:
    found = store.get(id)
    return found.text if found is not None else ""


def give_up(store: MemoryStore, *ids: str) -> None:
    """Retire memories as compression does."""
    for id in ids:
        memory = store.get(id)
        marked = replace(memory, meta={**memory.meta, "retired": GIVEN_UP})  # type: ignore[union-attr,arg-type]
        store.apply([Update(marked), SetStatus(id, "deleted")])


def test_nothing_automatic_tells_of_a_deleted_turn(store: MemoryStore) -> None:
    before = shown(store)
    assert sum("cello" in m.text for m in before.values()) >= 7
    life = life_of(store)
    assert delete(life, "t2")
    assert not [m for m in automatic(store) if "cello" in m.text]
    gone = set(before) - set(shown(store))
    assert {"t2", "key:auto"} < gone, "what was made of it alone"
    assert all(before[i].derived_from in ((), ("t2",)) for i in gone)
    assert text_in(store, "page:1-4") == TASKS.page_summary([turn(1), turn(3), turn(4)]).text
    with pytest.raises(ValueError, match=r"nothing is left of what .key:auto. was made of; restore .*: t2"):
        life.restore("key", "key:auto")
    for i in range(1, 9):
        if i != 2:
            delete(life, f"t{i}")
    assert [m.text for m in store.memories] == ["Never mention the cello."], "what is pinned stays"


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from([f"t{i}" for i in range(1, 9)]), min_size=1, max_size=8))
def test_only_which_turns_are_deleted_matters_not_the_order(ids: list[str]) -> None:
    with filled() as one, filled() as other:
        before, life, direct = shown(one), life_of(one), life_of(other)
        gone: set[str] = set()
        for id in ids:
            if id in gone:
                life.restore("turn", id)
            else:
                delete(life, id)
            gone ^= {id}
        for id in sorted(gone):
            delete(direct, id)
        assert {i: m.text for i, m in shown(one).items()} == {i: m.text for i, m in shown(other).items()}
        for id in gone:
            life.restore("turn", id)
        assert shown(one) == before


def test_a_deleted_page_counts_no_more_and_its_turns_stay(store: MemoryStore) -> None:
    before, life = shown(store), life_of(store)
    delete(life, "page:1-4", "page")
    assert "cello" not in text_in(store, "topic:1") + text_in(store, "summary:1-8")
    assert "t2" in store and "key:auto" in shown(store), "they were made of the turn, not of the page"
    assert Present(store).now().short_term == [], "its turns don't become a page again"
    life.restore("page", "page:1-4")
    assert shown(store) == before


def test_a_given_up_page_still_counts_for_its_topic(store: MemoryStore) -> None:
    present = Present(store)
    give_up(store, "page:1-4")
    topic = store.get("topic:1")
    assert topic and [m.id for m in parts_of(topic, present.now(), store.get)] == ["page:1-4", "page:5-8"]
    before = shown(store)
    delete(life_of(store), "t2")
    assert "cello" not in text_in(store, "topic:1") and "boat" in text_in(store, "topic:1")
    life = life_of(store)
    life.restore("turn", "t2")
    assert shown(store) == before
    delete(life, "topic:1", "topic")
    assert not [m for m in store.memories if m.layer in (PAGE, TOPIC, SUMMARY)]
    life.restore("topic", "topic:1")
    page = store.get("page:1-4")
    assert shown(store) == before and page and retired_because(page) == GIVEN_UP, "it stays given up"


@pytest.mark.parametrize("first", ["turn", "topic"])
@pytest.mark.parametrize("back", ["turn", "topic"])
def test_a_topic_and_all_turns_of_a_page_go_and_come_back_in_any_order(
    store: MemoryStore, first: str, back: str
) -> None:
    before, life = shown(store), life_of(store)
    acts = {"turn": ["t1", "t2", "t3", "t4"], "topic": ["topic:1"]}
    for kind in sorted(acts, key=lambda kind: kind != first):
        for id in acts[kind]:
            delete(life, id, kind)
    for kind in sorted(acts, key=lambda kind: kind != back):
        for id in acts[kind]:
            life.restore(kind, id)
        pages = {m.id for m in store.memories if m.layer == PAGE}
        assert pages == {"turn": set(), "topic": {"page:5-8"}}[kind] or kind != back
    assert shown(store) == before


def test_an_evicted_topic_comes_back_with_the_pages_that_went_with_it(store: MemoryStore) -> None:
    before = shown(store)
    give_up(store, "topic:1", "page:1-4", "page:5-8")
    life_of(store).restore("topic", "topic:1")
    assert shown(store) == before


def test_a_summary_of_summaries_follows(store: MemoryStore) -> None:
    parts = [derive(SUMMARY, f"summary:{i}", f"The {SAID[i - 1]}.", [turn(i)]) for i in (1, 2)]
    parts[0] = replace(parts[0], derived_from=("page:1-4",), text=TASKS.rollup([turn(1)])[0].text)
    parts[1] = replace(parts[1], derived_from=("page:5-8",), text=TASKS.rollup([turn(5)])[0].text)
    merged = make_summary(parts, TASKS.merge_summaries(parts), "")
    given_up = [replace(p, status="deleted", meta={**p.meta, "retired": GIVEN_UP}) for p in parts]
    store.apply([Add(m) for m in (*given_up, merged)])
    before, life = shown(store), life_of(store)
    order = affected(Present(store).now(), ["t1"])
    assert order.index("page:1-4") < order.index("summary:1") < order.index(merged.id)
    assert "boat" in text_in(store, merged.id)
    delete(life, "t1")
    assert "boat" not in text_in(store, merged.id)
    life.restore("turn", "t1")
    assert shown(store) == before


def test_an_erased_turn_leaves_no_trace(store: MemoryStore, tmp_path: Any) -> None:
    before, life, start = shown(store), life_of(store), store.last_event
    delete(life, "t2")  # so that its words are in earlier versions only
    life.restore("turn", "t2")
    life.delete("turn", "t2", soft=False, confirm=True)
    backup = tmp_path / "all.jsonl"
    store.export_jsonl(backup)
    rest = [line for line in backup.read_text().splitlines() if "Never mention" not in line]
    assert rest and not [line for line in rest if "cello" in line]
    assert store.check() == [] and set(before) - set(shown(store)) >= {"t2", "key:auto"}
    page = store.get("page:1-4")
    assert page and page.derived_from == ("t1", "t3", "t4") and "boat" in page.text
    assert {"t2", "page:1-4"} <= set(store.rollback(start).lost), "a rollback says what it can't bring back"


def test_a_refused_act_changes_nothing(store: MemoryStore) -> None:
    before, events, life = shown(store), store.last_event, life_of(store)
    for act, error, message in (
        (lambda: life.delete("turn", "t2", False), ValueError, "add confirm=True"),
        (lambda: life.delete("page", "t2"), ValueError, "'t2' is a turn, not a page"),
        (lambda: life.delete("turn", "t99"), KeyError, "no memory 't99'"),
        (lambda: life.change("t2", " "), ValueError, "the new text of 't2' is empty"),
    ):
        with pytest.raises(error, match=message):
            act()
    assert shown(store) == before and store.last_event == events


def test_the_layers_follow_every_change_as_if_they_were_read_afresh(store: MemoryStore) -> None:
    life = life_of(store)
    present, start = life.present, store.last_event
    delete(life, "t2")
    delete(life, "topic:1", "topic")
    life.delete("turn", "t5", soft=False, confirm=True)
    life.restore("topic", "topic:1")
    life.rollback(start + 3)
    assert _state(present) == _state(Present(store))
    life.rollback(8)  # only the turns were there
    assert [m.id for m in present.now().short_term] == [f"t{i}" for i in (1, 2, 3, 4, 6, 7, 8)]
    assert _state(present) == _state(Present(store))


def _state(present: Present) -> Any:
    layers = present.now()
    kinds = ("page", "topic", "summary", "fact", "profile", "key")
    derived = {k: [(m.id, m.status, m.text) for m in layers.of(k, status=None)] for k in kinds}
    return derived, [m.id for m in layers.short_term], layers.words, layers.last_step


def test_a_corrected_turn_is_followed_and_what_the_user_has_written_is_never_made_again(
    store: MemoryStore,
) -> None:
    before, life = shown(store), life_of(store)
    life.change("t2", "I bought the violin in Leeds.")
    assert not [m for m in automatic(store) if "cello" in m.text]
    assert "violin" in text_in(store, "page:1-4") and "key:auto" not in shown(store)
    life.change("t2", turn(2).text)
    assert shown(store) == before
    life.change("page:1-4", "Maya went shopping.")
    life.change("key:auto", "Maya owns a cello.")
    delete(life, "t2")
    assert text_in(store, "page:1-4") == "Maya went shopping."
    assert "key:auto" in shown(store), "a corrected key memory counts as pinned"
    for i in (1, 3, 4):
        delete(life, f"t{i}")
    assert "page:1-4" not in shown(store), "nothing is left of what it was made of"


def test_an_outdated_change_is_worked_out_again_but_not_for_ever(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    present, other, calls = Present(store), life_of(store), []

    def compute(changes: Changes) -> None:
        calls.append(changes.layers.last_step)
        if len(calls) == 1:
            delete(other, "t8")  # somebody else is faster
        changes.set_status("t1", "deleted")

    def always_late(changes: Changes) -> None:
        calls.append(0)
        store.add(Memory(f"other{len(calls)}", "…"))
        changes.set_status("t3", "deleted")

    present.change(compute, "test", slowly=True)
    assert len(calls) == 2 and {"t1", "t8"}.isdisjoint(shown(store))
    monkeypatch.setattr("adaptmr.memory.layers.MAX_TRIES", 3)
    with pytest.raises(MemoryBusy, match="others wrote 3 times meanwhile; nothing was changed, try again"):
        Present(store).change(always_late, "test")
    assert "t3" in shown(store)
