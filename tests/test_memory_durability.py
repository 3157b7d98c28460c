"""A layered memory under real faults: killed processes, several threads and processes at once."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layered import LayeredMemory
from adaptmr.memory.layers import DERIVED, KEY, PAGE
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

# no promotion: it depends on counts of queries, of which a killed process may lose the last one
CONFIG = MemoryConfig(
    stm_capacity=2, page_turns=2, rollup_pages=2, profile_every=1, enable_auto_key_promotion=False
)
SUBJECTS = ("boat", "cello", "drill", "easel", "flute")


def text_of(n: int) -> str:
    return f"I bought the {SUBJECTS[n // 4 % 5]} number {n} in Leeds. I love it."


def open_memory(path: Path | str) -> LayeredMemory:
    return LayeredMemory(path, CONFIG, user="Maya", embedder="hash")


def in_child(work: Callable[[Callable[[Any], None]], None]) -> tuple[int, Any]:
    """Run `work(tell)` in another process; return its id, and the end of the pipe with the lines it tells."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, os.fdopen(read, "r")
    try:
        os.close(read)
        work(lambda line: os.write(write, (json.dumps(line) + "\n").encode()) and None)
        os._exit(0)
    except BaseException:
        os.write(write, json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
    os._exit(1)


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
    """Live, and kill this process at the n-th return from a function of that name: in the midst of an act."""
    left = calls

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal left
        if event == "return" and frame.f_code.co_name == at_return_from:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    live(path, tell)


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing_and_hit_the_middle_of_acts(tmp_path: Path) -> None:
    """A writing process dies again and again; nothing that it told of is lost.

    Every other time it dies when the store has just applied something: an act is stored, and not told of.
    """
    path, rng = tmp_path / "m.db", random.Random(1)
    told: dict[str, tuple[str, str]] = {}
    events = unfinished = 0
    for n in range(100):
        where = rng.choice(("put", "encode", "get", "visit", "_put")) if n % 2 else "apply"
        pid, pipe = in_child(partial(live_until, rng.randint(1, 6 if where == "apply" else 60), where, path))
        lines = [json.loads(line) for line in pipe if line.endswith("\n")]
        pipe.close()
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL, lines
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
        assert turn_numbers(memory) == turn_numbers(again) and len(memory.pages()) > 1
    assert unfinished >= 50


def turn_numbers(memory: LayeredMemory) -> list[int]:
    return [m.step for m in memory.store.memories if not m.layer]


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


def add_all(memory: LayeredMemory, name: str, n: int) -> None:
    for i in range(n):
        memory.add(f"{name} says: {text_of(i)}", "Maya")


def test_four_threads_share_one_memory(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    with open_memory(tmp_path / "m.db") as memory:

        def work(name: str) -> None:
            try:
                add_all(memory, name, 12)
                memory.prompt("Where did I buy the cello?")
            except BaseException as e:
                failed.append(e)

        threads = [threading.Thread(target=work, args=(f"thread{i}",)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert failed == []
        check_shared(memory, {f"thread{i} says: {text_of(n)}" for i in range(4) for n in range(12)})


@pytest.mark.slow
def test_two_processes_of_two_threads_share_one_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.db"

    def work(process: int, tell: Callable[[Any], None]) -> None:
        with open_memory(path) as memory:
            failed: list[str] = []

            def add(name: str) -> None:
                try:
                    add_all(memory, name, 10)
                except BaseException as e:
                    failed.append(repr(e))

            threads = [threading.Thread(target=add, args=(f"p{process}t{i}",)) for i in range(2)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            tell(failed)

    children = [in_child(lambda tell, p=p: work(p, tell)) for p in range(2)]  # type: ignore[misc]
    for pid, pipe in children:
        with pipe:
            assert [json.loads(line) for line in pipe] == [[]], "no error reaches the user"
        os.waitpid(pid, 0)
    with open_memory(path) as memory:
        check_shared(
            memory, {f"p{p}t{i} says: {text_of(n)}" for p in range(2) for i in range(2) for n in range(10)}
        )
        with told_again(memory) as again:
            assert layers_of(memory) == layers_of(again)
            assert {m.layer for m in memory.store.memories} >= set(DERIVED) - {KEY}
