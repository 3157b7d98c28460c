"""A store in a busy service: threads, tasks and processes that write, erase and ask at once."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import adaptmr as am
from adaptmr.retrieval import columns
from adaptmr.store.edits import Records
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

START = datetime(2024, 1, 1, tzinfo=UTC)


def said(n: int) -> list[Memory]:
    """Return what two users said in turn."""
    return [
        Memory(
            f"m{i}",
            f"I bought a {('cat', 'boat', 'piano')[i % 3]} in Oslo, number {i}.",
            "me",
            START + timedelta(hours=i),
            step=i,
            owner=("ann", "bob")[i % 2],
        )
        for i in range(n)
    ]


def test_an_erasure_that_waits_for_a_reader_holds_up_nobody_who_writes(tmp_path: Path) -> None:
    """A program erases while another one reads an earlier state, and a third one writes: no deadlock."""
    path = tmp_path / "m.db"
    with (
        MemoryStore(path, embedder="hash") as one,
        MemoryStore(path, embedder="hash", timeout=5) as other,
        MemoryStore(path, embedder="hash") as third,
        closing(Records(path)) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        one.add(said(10))
        with reader.reading() as db:
            db.execute("SELECT count(*) FROM memories").fetchone()
            erased = pool.submit(other.delete, "m0", soft=False)
            while third.get("m0") is not None:
                pass  # until it is deleted, and only its words in the log are left
            assert one.add("I sold the boat.", user="ann") == 1
            assert not erased.done(), "the reader still keeps the words"
            assert other.get("m1") is not None, "who waits for a reader answers others meanwhile"
        assert erased.result() is True
        assert one.check() == [] and "m0" not in [m.id for m in one.memories]


@dataclass
class Busy:
    """Threads that use one store at once; each does its calls from a seed, and errors end the test."""

    store: MemoryStore
    n_calls: int = 25

    def write(self, seed: int) -> None:
        """Add, update, delete and erase; a memory may be gone when another thread was faster."""
        rng = random.Random(f"write {seed}")
        for n in range(self.n_calls):
            found = self.store.recent(40)
            m = rng.choice(found) if found else None
            act = rng.random()
            with suppress(KeyError):
                if m is None or act < 0.4:
                    user, at = rng.choice(("ann", "bob")), START + timedelta(hours=300 + n)
                    self.store.add(f"I sold my boat, {seed}.{n}.", user=user, at=at)
                elif act < 0.6:
                    self.store.update(replace(m, text=f"{m.text} No, {n}.", at=START + timedelta(hours=400)))
                elif act < 0.8:
                    self.store.delete(m.id)
                else:
                    self.store.delete(m.id, soft=False)

    def ask(self, seed: int) -> None:
        """Ask about one user, now and in the past: what comes back is that user's, and of that time."""
        rng = random.Random(f"ask {seed}")
        for _ in range(self.n_calls):
            user, moment = rng.choice(("ann", "bob")), START + timedelta(hours=rng.randrange(500))
            as_of = rng.choice((None, moment))
            found = am.retrieve(rng.choice(QUESTIONS), self.store, where=am.Filter(user=user), as_of=as_of)
            assert {h.memory.owner for h in found.hits} <= {user}
            assert as_of is None or all(h.memory.at <= as_of for h in found.hits)
            assert len(found.to_frame()) == len(found.hits) and bool(found.to_prompt()) == bool(found.context)


QUESTIONS = (
    "Where is my cat?",
    "When did I buy the boat?",
    "How many things did I buy?",
    "Did I buy the cat before I sold the boat?",
)


def test_threads_add_update_delete_erase_and_ask_at_once(tmp_path: Path) -> None:
    with MemoryStore(tmp_path / "m.db", embedder="hash") as store:
        store.add(said(80))
        busy = Busy(store)
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(act, n) for act in (busy.write, busy.ask) for n in range(3)]
            assert [call.result() for call in calls] == [None] * 6
        assert store.check() == [] and len(store) == len(store.memories)
        assert len({m.step for m in store.memories}) == len(store), "each has a place of its own"
        with MemoryStore(store.path) as again:
            assert list(again.memories) == list(store.memories), "nothing stale is left"


def test_a_cancelled_question_leaves_the_store_to_others() -> None:
    """Its thread goes on to the end and lets go of all it holds."""
    begun, go_on, ann = threading.Event(), threading.Event(), am.Filter(user="ann")

    class Waiting(am.Router):
        def plan(self, query: Any, store: Any) -> am.RetrievalPlan:
            begun.set()
            assert go_on.wait(30)
            return super().plan(query, store)

    async def talk() -> int:
        asked = asyncio.create_task(am.aretrieve("Where is my cat?", store, planner=Waiting(), where=ann))
        await asyncio.to_thread(begun.wait, 30)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        store.add("I sold the cat.", user="ann", id="new")  # while the thread is still at work
        found = await am.aretrieve("Did I sell the cat?", store, k=50, where=ann)
        go_on.set()
        assert "new" in [h.memory.id for h in found.hits]
        return store.add("I bought a dog.", user="ann")

    with MemoryStore(embedder="hash") as store:
        store.add(said(20))
        assert asyncio.run(talk()) == 1 and store.delete("new", soft=False) and store.check() == []


def test_the_time_of_a_question_is_of_one_state_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread deletes the newest memory between the two reads of `asked_at`."""
    real = columns.columns_of
    with MemoryStore(embedder="hash") as store:
        store.add(said(20))
        newest = store.get("m19").at

        def columns_of(*args: Any) -> Any:
            found = real(*args)
            store.delete("m19")
            return found

        monkeypatch.setattr(columns, "columns_of", columns_of)
        assert columns.asked_at("Where is my cat?", store) == newest
