"""A layered memory under real faults: killed processes, several threads and processes at once."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from killing import die, ended, in_child, needs_fork

from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layered import LayeredMemory
from adaptmr.memory.layers import DERIVED, KEY, PAGE, SUMMARY, Changes
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

# no promotion: it depends on counts of queries, of which a killed process may lose the last one
CONFIG = MemoryConfig(
    stm_capacity=2, page_turns=2, rollup_pages=2, profile_every=1, enable_auto_key_promotion=False
)
SUBJECTS = ("boat", "cello", "drill", "easel", "flute")


def text_of(n: int) -> str:
    return f"I bought the {SUBJECTS[n // 4 % 5]} number {n} in Leeds. I love it."


def open_memory(path: Path | str) -> LayeredMemory:
    return LayeredMemory(path, CONFIG, user="Maya", embedder="hash")


def live(path: Path, tell: Callable[[Any], None]) -> None:
    """Add turns, pin key memories, delete and restore turns for ever; tell of each act when it is done."""
    with open_memory(path) as memory:
        while True:
            turn = memory.add(text_of(memory.present.number + 1), at="2024-05-01")
            tell(["turn", turn.id, turn.text, memory.last_event])
            if turn.step % 5 == 0:
                key = memory.pin(f"Rule number {turn.step}.", at="2024-05-01")
                tell(["key", key.id, key.text, memory.last_event])
            if turn.step % 7 == 0:
                memory.delete("turn", turn.id)
                tell(["deleted", turn.id, turn.text, memory.last_event])
            if turn.step % 14 == 0:
                memory.restore("turn", turn.id)
                tell(["restored", turn.id, turn.text, memory.last_event])


def layers_of(memory: LayeredMemory) -> dict[str, tuple[str, str]]:
    """The derived memories in use, by id: their text and what they were made of."""
    return {m.id: (m.text, ",".join(m.derived_from)) for m in memory.store.memories if m.layer}


def told_again(memory: LayeredMemory) -> LayeredMemory:
    """A memory of the same acts, worked out again from the log, without faults."""
    other = open_memory(":memory:")
    acts = [e for e in memory.store.events() if e.kind in ("add", "delete", "restore")]
    for e in acts:
        m = memory.store.get(e.id)
        assert m is not None
        if m.layer == "" and e.kind == "add":
            other.add(Memory(m.id, m.text, m.speaker, m.at, step=m.step))
        elif m.layer == "" and e.kind == "delete":
            other.delete("turn", m.id)
        elif m.layer == "":
            other.restore("turn", m.id)
        elif m.layer == KEY and e.kind == "add":
            other.pin(m.text, at=m.at)
    return other


def live_until(calls: int, at_return_from: str, path: Path, tell: Callable[[Any], None]) -> None:
    """Live, and die at the n-th return from a function of that name: in the midst of an act."""
    left = calls

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal left
        if event == "return" and frame.f_code.co_name == at_return_from:
            left -= 1
            if not left:
                die()

    sys.setprofile(count)
    live(path, tell)


def check_shared(memory: LayeredMemory, sent: set[str]) -> None:
    turns = [m for m in memory.store.memories if not m.layer]
    assert sorted(m.text for m in turns) == sorted(sent), "a turn is lost or doubled"
    assert sorted(m.step for m in turns) == list(range(1, len(turns) + 1)), "a number was given twice"
    pages = memory.present.now().of(PAGE, status=None)
    paged = [t for p in sorted(pages, key=lambda p: p.step) for t in p.derived_from]
    in_order = [m.id for m in sorted(turns, key=lambda m: m.step)]
    assert paged == in_order[: len(paged)], "each turn is in one page, in order"
    assert len(turns) - len(paged) < CONFIG.stm_capacity + CONFIG.page_turns
    assert memory.store.check() == []


def add_all(memory: LayeredMemory, name: str, n: int) -> set[str]:
    """Add turns from two threads at once; return their texts."""
    said = [f"{name}.{thread} says: {text_of(i)}" for i in range(n) for thread in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: memory.add(text, "Maya"), said))
    return set(said)


@pytest.mark.slow
@needs_fork
def test_sixty_kills_lose_nothing_and_hit_the_middle_of_acts(tmp_path: Path) -> None:
    """A writing process dies again and again; nothing that it told of is lost.

    Every other time it dies when the store has just applied something: an act is stored, and not told of.
    """
    path, rng = tmp_path / "m.db", random.Random(1)
    told: dict[str, tuple[str, str]] = {}
    events = unfinished = 0
    for n in range(60):
        where = rng.choice(("put", "encode", "get", "visit", "_put")) if n % 2 else "carry_out"
        calls = rng.randint(1, 4 if where == "carry_out" else 30)
        status, lines = ended(*in_child(partial(live_until, calls, where, path)))
        assert status == -signal.SIGKILL, lines
        for kind, id, text, event in lines:
            told[id] = ("deleted" if kind == "deleted" else "active", text)
            events = max(events, event)
        with MemoryStore(path, embedder="hash") as store:
            assert store.check() == [] and store.last_event >= events, "an event is lost"
            unfinished += store.last_event > events
            acted_on = {line[1] for line in lines[-2:]}  # the next act may have been about one of these
            for id, (state, text) in list(told.items()):
                found = store.get(id)
                assert found is not None and found.text == text
                assert found.status == state or id in acted_on, n
                told[id] = (found.status, text)
    with open_memory(path) as memory, told_again(memory) as again:
        assert layers_of(memory) == layers_of(again), "the layers are what the log says"
        numbers = [[m.step for m in one.store.memories if not m.layer] for one in (memory, again)]
        assert numbers[0] == numbers[1] and len(memory.pages()) > 1
    assert unfinished >= 30


def test_threads_share_one_memory(tmp_path: Path) -> None:
    with open_memory(tmp_path / "m.db") as memory:
        sent = add_all(memory, "one", 20)
        assert memory.prompt("Where did I buy the cello?").text
        check_shared(memory, sent)


def test_what_another_process_has_just_written_is_written_no_second_time(tmp_path: Path) -> None:
    with open_memory(tmp_path / "m.db") as one, open_memory(tmp_path / "m.db") as other:
        for n in range(5):
            one.add(text_of(n), "Maya", "2024-05-01")
        late = Changes(one.store, one.present.now())
        fifth = late.get("turn:Maya:5")
        assert fifth is not None
        late.put(replace(fifth, id="turn:Maya:6", step=6, text=text_of(5)))
        other.add(text_of(5), "Maya", "2024-05-01")
        assert [m.layer for m in other.store.memories].count(SUMMARY) == 1
        one._writer.write_due(late, {})  # the page and the summary that are due are there now
        assert [e.id for e in late.edits] == ["turn:Maya:6"]


@pytest.mark.slow
@needs_fork
def test_processes_of_two_threads_share_one_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.db"

    def work(tell: Callable[[Any], None], name: str) -> None:
        with open_memory(path) as memory:
            tell(sorted(add_all(memory, name, 10)))

    results = [ended(*child) for child in [in_child(partial(work, name=name)) for name in "ab"]]
    assert [status for status, _ in results] == [0, 0], results
    with open_memory(path) as memory:
        check_shared(memory, {text for _, told in results for texts in told for text in texts})
        with told_again(memory) as again:
            assert layers_of(memory) == layers_of(again)
            assert {m.layer for m in memory.store.memories} >= set(DERIVED) - {KEY}
