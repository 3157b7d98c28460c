"""A store in a busy service: threads, tasks and processes that write, erase and ask at once."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
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

ROOT = Path(__file__).resolve().parent.parent
START = datetime(2024, 1, 1, tzinfo=UTC)


def said(n: int) -> list[Memory]:
    """Return what two users said in turn."""
    return [
        Memory(
            f"m{i}",
            f"I bought a {('cat', 'boat', 'piano')[i % 3]} in Oslo, number {i}.",
            "me",
            START + timedelta(hours=i),
            session=f"S{i // 5}",
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
            for call in calls:
                call.result()
        assert store.check() == [] and len(store) == len(store.memories)
        with MemoryStore(store.path) as again:
            assert [(m.id, m.version, m.text) for m in again.memories] == [
                (m.id, m.version, m.text) for m in store.memories
            ], "nothing stale is left"


WRITE = """
import sys
sys.path.insert(0, {tests!r})
from test_agent_concurrency import Busy
from adaptmr.store.edits import Records
from adaptmr.store.memory_store import MemoryStore
with MemoryStore({path!r}, embedder="hash") as store:
    Busy(store).write({seed})
"""


@pytest.mark.slow
def test_processes_write_and_erase_while_threads_ask(tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    with MemoryStore(path, embedder="hash") as store, ThreadPoolExecutor(3) as pool:
        store.add(said(80))
        codes = [WRITE.format(tests=str(Path(__file__).parent), path=path, seed=n) for n in (7, 8)]
        others = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for code in codes]
        busy = Busy(store)
        calls = [pool.submit(busy.write, 1), *(pool.submit(busy.ask, n) for n in (1, 2))]
        for call in calls:
            call.result()
        assert [other.wait(60) for other in others] == [0, 0]
        assert store.check() == [] and len(store) == len(store.memories)


def test_a_cancelled_question_leaves_the_store_to_others() -> None:
    """Its thread goes on to the end and lets go of all it holds."""
    with MemoryStore(embedder="hash") as store:
        store.add(said(20))
        begun, go_on = threading.Event(), threading.Event()

        class Waiting(am.Router):
            def plan(self, query: Any, store: Any) -> am.RetrievalPlan:
                begun.set()
                assert go_on.wait(30)
                return super().plan(query, store)

        async def talk() -> int:
            asked = asyncio.create_task(
                am.aretrieve("Where is my cat?", store, planner=Waiting(), where=am.Filter(user="ann"))
            )
            await asyncio.to_thread(begun.wait, 30)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            store.add("I sold the cat.", user="ann", id="new")  # while the thread is still at work
            found = await am.aretrieve("Did I sell the cat?", store, where=am.Filter(user="ann"))
            go_on.set()
            assert "new" in [h.memory.id for h in found.hits]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await am.aretrieve("Where is my cat?", store, where=am.Filter(user="ann"))
            return store.add("I bought a dog.", user="ann")

        assert asyncio.run(talk()) == 1 and store.delete("new", soft=False) and store.check() == []


def test_tasks_add_and_ask_at_once() -> None:
    """A question that overlaps with others sees what was added before it was asked, its own additions too."""
    first = said(20)
    with MemoryStore(embedder="hash") as store:
        store.add(first)

        async def ask(n: int) -> list[str]:
            where = am.Filter(user=("ann", "bob")[n % 2])
            found = await am.aretrieve(f"Did I sell boat {n}?", store, k=50, where=where)
            return [h.memory.id for h in found.hits]

        async def turn(n: int) -> str:
            user = ("ann", "bob")[n % 2]
            added = await asyncio.to_thread(store.add, f"I sold boat {n}.", user=user, at="2024-03-01")
            assert {*(m.id for m in first if m.owner == user), *added.ids} <= set(await ask(n))
            return added.ids[0]

        async def all_turns() -> list[bool]:
            ids = await asyncio.gather(*(turn(n) for n in range(24)))
            found = await asyncio.gather(*(ask(n) for n in range(24)))
            return [id in those for id, those in zip(ids, found)]

        assert all(asyncio.run(all_turns())), "whoever has added something finds it"
        assert len({m.step for m in store.memories}) == 44, "each has a place of its own"


def test_the_time_of_a_question_is_of_one_state_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread deletes the newest memory between the two reads of `asked_at`."""
    real = columns.columns_of
    with MemoryStore(embedder="hash") as store:
        store.add(said(20))
        newest = store.get("m19").at

        def columns_of(*args: Any) -> Any:
            found = real(*args)
            assert len(found.said_at) == 20
            store.delete("m19")
            return found

        monkeypatch.setattr(columns, "columns_of", columns_of)
        assert columns.asked_at("Where is my cat?", store) == newest
