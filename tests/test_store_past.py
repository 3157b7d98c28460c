"""The past of a store: rollbacks, visits, and backups of both."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from killing import die, die_before_statement, ended, in_child, needs_fork

from adaptmr.embed import embedder
from adaptmr.store.edits import Add, Erase, Rollback, SetStatus, Update
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter
from adaptmr.types import Memory

TURNS = [Memory(f"m{i}", f"turn {i} about tea", "Maya", step=i) for i in range(3)]


@pytest.fixture
def store(tmp_path):
    with MemoryStore(tmp_path / "m.db", embedder="hash") as s:
        s.add(TURNS)
        yield s


def encoded(m: Memory) -> np.ndarray:
    return embedder("hash").encode([m.text_with_speaker])[0]


# --- rollback, compared with a model


@dataclass
class Model:
    """The memories, their vectors and the visits that count, each as it stands."""

    memories: dict[str, Memory] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    visits: list[tuple[bool, tuple[str, ...]]] = field(default_factory=list)

    def copy(self) -> Model:
        return Model(dict(self.memories), dict(self.vectors), list(self.visits))


IDS = ["a", "b", "c", "nul\0", "half \ud83d"]
WORDS = ["a cat", "two dogs", "", "half \udc00", "tea in Hangzhou"]
QUERY = "a cat in Hangzhou"


class PastMachine(RuleBasedStateMachine):
    """A rollback gives the store as it stood after any event, whatever has happened before and since.

    `states[n]` is the model as it stood after event n, with the visits up to the next event.
    """

    values = st.fixed_dictionaries(
        {},
        optional={
            "text": st.sampled_from(WORDS),
            "speaker": st.sampled_from(["", "Maya"]),
            "step": st.integers(0, 3),
            "tags": st.lists(st.sampled_from(["x", "y"]), max_size=2),
            "derived_from": st.lists(st.sampled_from(IDS), max_size=2),
            "meta": st.sampled_from([{}, {"n": 1}, {"n": True}]),
        },
    )

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.path = Path(self.folder.name, "m.db")
        self.store, self.other = self.open(), self.open()
        self.now, self.states = Model(), {0: Model()}
        self.added: dict[str, tuple[Memory, np.ndarray]] = {}  # as they were when they were added
        for id in ("a", "b"):
            self.put(id, {}, None)

    def open(self) -> MemoryStore:
        return MemoryStore(self.path, embedder="hash")

    def teardown(self) -> None:
        self.store.close()
        self.other.close()
        self.folder.cleanup()

    def note(self) -> None:
        """Keep the model under the number of the event that has just been made."""
        self.states[max(self.states) + 1] = self.now.copy()

    @rule(id=st.sampled_from(IDS), values=values, own_vector=st.sampled_from([None, None, *WORDS]))
    def add_or_update(self, id, values, own_vector) -> None:
        self.put(id, values, own_vector)

    def put(self, id, values, own_vector) -> None:
        vector = None if own_vector is None else encoded(Memory("x", own_vector))
        old = self.now.memories.get(id)
        m = replace(old or Memory(id, "a cat"), **values)
        if vector is not None or old is None or m.text_with_speaker != old.text_with_speaker:
            self.now.vectors[id] = encoded(m) if vector is None else vector
        self.now.memories[id] = m if old is None else replace(m, version=old.version + 1)
        self.note()
        if old is None:
            self.added[id] = m, self.now.vectors[id]
            self.store.apply(Add(m, vector))
        else:
            self.other.apply(Update(m, vector))

    @precondition(lambda self: self.now.memories)
    @rule(data=st.data(), act=st.sampled_from(["active", "deleted", "deleted", "erase"]))
    def delete_restore_or_erase(self, data, act) -> None:
        id = data.draw(st.sampled_from(sorted(self.now.memories)))
        if act != "erase":
            self.store.apply(SetStatus(id, act))
            if self.now.memories[id].status != act:
                self.now.memories[id] = replace(self.now.memories[id], status=act)
                self.note()
            return
        self.store.apply(Erase(id))
        for state in [self.now, *self.states.values()]:
            state.visits = [(query, tuple(i for i in ids if i != id)) for query, ids in state.visits]
        del self.now.memories[id], self.now.vectors[id]
        self.note()

    @rule(data=st.data(), query=st.booleans())
    def visit(self, data, query) -> None:
        known = sorted(self.now.memories)
        ids = data.draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        version, held = self.store.version, self.store.memories
        self.other.visit(ids, query)
        if ids or query:
            self.now.visits.append((query, tuple(ids)))
            self.states[max(self.states)].visits.append((query, tuple(ids)))
        assert self.store.version == version and self.store.memories is held

    @rule(data=st.data(), by_other=st.booleans())
    def rollback(self, data, by_other) -> None:
        """Go back to several events, one after the other: all but the first are rollbacks of rollbacks."""
        states = st.sampled_from(sorted(self.states))
        for target in data.draw(st.lists(states, min_size=1, max_size=6)):
            self.rollback_to(target, self.other if by_other else self.store)
            self.agree()

    def rollback_to(self, target: int, by: MemoryStore) -> None:
        last, then = self.store.last_event, self.states[target]
        done = by.rollback(target, who="ann")
        if target == last:
            assert done == Rollback(last)
            return
        born = {e.id: e.seq for e in self.store.events() if e.kind == "add"}  # of what has that id now
        lost = {i for i in then.memories if i not in self.now.memories or born[i] > target}
        assert set(done.lost) == lost and done.event == self.store.last_event == self.store.version
        assert self.store.events(1)[0].kind == "rollback"
        changed = set()
        for id, m in self.now.memories.items():
            stays = id in then.memories and id not in lost
            wanted, vector = (then.memories[id], then.vectors[id]) if stays else self.added[id]
            status = wanted.status if stays else "deleted"
            same = repr(replace(wanted, version=m.version, status=m.status)) == repr(m)
            if same and (self.now.vectors[id] == vector).all():
                wanted = replace(m, status=status)
            else:
                self.now.vectors[id] = vector
                wanted = replace(wanted, status=status, version=m.version + 1)
            changed |= {id} if wanted != m else set()
            self.now.memories[id] = wanted
        assert set(done.changed) == changed
        self.now.visits = list(then.visits)
        self.states[done.event] = self.now.copy()

    @rule()
    def move(self) -> None:
        """A backup holds the past too: go on in a copy."""
        self.store.export_jsonl(Path(self.folder.name, "b.jsonl"))
        self.store.close()
        self.other.close()
        for file in self.path.parent.glob("m.db*"):
            file.unlink()
        self.store, self.other = self.open(), self.open()
        self.store.import_jsonl(Path(self.folder.name, "b.jsonl"))

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "now"):
            return
        active = [m for m in self.now.memories.values() if m.status == "active"]
        active.sort(key=lambda m: (m.step, m.id))
        for s in (self.store, self.other):
            assert repr(list(s.memories)) == repr(active), "True is not 1"
            for row, m in zip(s.matrix, active):
                assert (row == self.now.vectors[m.id]).all()
            assert {m.id for m in active} == {h.memory.id for h in s.search(QUERY, 9, "hybrid")}
        deleted = {h.memory.id for h in self.store.search(QUERY, 9, "lexical", Filter(status="deleted"))}
        assert deleted == self.now.memories.keys() - {m.id for m in active}
        visits, counts = self.now.visits, self.store.visits(self.now.memories, last=2)
        asked = [n for n, (query, _) in enumerate(visits) if query]
        recent = visits[asked[-2] if len(asked) >= 2 else 0 :]
        assert (counts.queries, counts.window) == (len(asked), min(2, len(asked)))
        for found, some in ((counts.total, visits), (counts.recent, recent)):
            wanted = Counter(i for _, ids in some for i in ids)
            assert found == {i: wanted[i] for i in self.now.memories}
        assert counts.latest.keys() == {i for i, n in counts.total.items() if n}
        assert self.store.check() == []


TestPast = PastMachine.TestCase
TestPast.settings = settings(
    max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- rollback


# --- visits


def test_what_was_ever_made_of_a_memory(store):
    page = Memory("page", "tea", layer="page", derived_from=("m0",))
    topic = Memory("topic \ud83d", "tea and tea", layer="topic", derived_from=("m1", "page"))
    store.apply([Add(page), Add(topic), Update(replace(topic, derived_from=("m1",)))])
    store.delete("page")
    assert store.ever_made_of(["m0"]) == ["page", topic.id], "by a deleted one and an earlier version"
    assert store.ever_made_of(["m1"]) == [topic.id] and store.ever_made_of(["m2", "?"]) == []


def test_visits_of_unknown_and_of_erased_memories(store):
    store.delete("m2", soft=False)
    store.visit(["m1", "m2"])
    assert store.visits().total == {"m1": 1}
    with pytest.raises(KeyError, match="'m9'"):
        store.visit(["m1", "m9"])
    assert store.visits().queries == 1


# --- backups


def test_a_backup_goes_into_a_store_with_a_past_of_its_own(store, tmp_path):
    store.update(replace(TURNS[0], text="other words"))
    store.delete("m1")
    store.visit(["m0"])
    store.rollback(3)
    store.rollback(5)
    store.export_jsonl(tmp_path / "b.jsonl")
    with MemoryStore(embedder="hash") as s:
        s.add([Memory("m1", "already here", step=1), Memory("own", "mine")])
        s.visit(["own"])
        assert s.import_jsonl(tmp_path / "b.jsonl") == 2
        assert s.get("m1").text == "already here" and s.check() == []
        assert s.visits().total == {"own": 1} and s.history("m0") == store.history("m0")
        assert "rollback" not in {e.kind for e in s.events()}
        n = next(e.seq for e in s.events() if (e.kind, e.id) == ("update", "m0"))
        assert s.rollback(n - 1).lost == () and s.get("m0").text == TURNS[0].text
        assert (s.matrix[[m.id for m in s.memories].index("m0")] == encoded(TURNS[0])).all()


# --- killed processes, threads and processes


def state(path: Path) -> tuple:
    with MemoryStore(path, embedder="hash") as s:
        assert s.check() == []
        everything = s.search("tea", 99, "lexical", Filter(status=None))
        return (
            sorted(repr(h.memory) for h in everything),
            [(e.seq, e.kind, e.id) for e in s.events()],
            s.matrix.tolist(),
            s.past().rollbacks,
            s.visits().queries,
            s.visits().total,
        )


def with_a_past(s: MemoryStore) -> MemoryStore:
    s.add(TURNS)
    s.update(replace(TURNS[0], text="later"))
    s.apply([SetStatus("m1", "deleted"), Add(Memory("m3", "added later"))])
    s.visit(["m0"])
    return s


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.add([Memory(f"new{i}", f"new words {i}") for i in range(4)]),
        lambda s: s.apply([Add(Memory("s1", "new")), Update(replace(TURNS[0], text="x")), Erase("m2")]),
        lambda s: s.rollback(3),
        lambda s: s.visit(["m0", "m1"]),
    ],
    ids=["add", "apply", "rollback", "visit"],
)
def test_a_kill_before_any_write_changes_nothing_or_all(tmp_path, change):
    path = tmp_path / "m.db"
    with_a_past(MemoryStore(path, embedder="hash")).close()
    before, original = state(path), path.read_bytes()
    for n in range(100):

        def work(tell, n: int = n) -> None:
            s = MemoryStore(path, embedder="hash")
            die_before_statement(n, s._db)
            change(s)
            die()  # what was acknowledged stays

        status, told = ended(*in_child(work))
        assert status == -signal.SIGKILL, told
        if state(path) != before:
            break
        assert path.read_bytes() == original or n, "the first kill comes before any write"
    assert n >= 4
    with MemoryStore(path, embedder="hash") as s, with_a_past(MemoryStore(embedder="hash")) as whole:
        change(whole)
        assert s.memories == whole.memories and s.visits().total == whole.visits().total
        assert [(e.kind, e.id) for e in s.events()] == [(e.kind, e.id) for e in whole.events()]
