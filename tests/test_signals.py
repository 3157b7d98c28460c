"""Signals: each one's values worked out by hand on six memories, then odd texts, odd stores, ties, and properties."""
from __future__ import annotations

import random
import signal
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.retrieval import signals as s
from adaptmr.retrieval.strategies import HYBRID, retrieve
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

DAY0 = datetime(2024, 5, 1, tzinfo=UTC)


class Toy:
    """A store whose cosines and BM25 scores are given, so that every number below can be worked out on paper."""
    version = 1

    def __init__(self, memories, dense=(), words=()):
        self.memories, self.speakers = memories, tuple(dict.fromkeys(m.speaker for m in memories))
        self._dense, self._words, self.asked = np.array(dense, np.float32), np.array(words, np.float32), []

    def dense(self, text): self.asked.append(("dense", text)); return self._dense

    def bm25(self, text): self.asked.append(("bm25", text)); return self._words


def memory(i, text="", speaker="Ann", day=0, session="s1", **more):
    return Memory(f"m{i}", text, speaker, DAY0 + timedelta(days=day), session=session, step=i, **more)


SIX = [memory(0, "I bought a red bicycle", day=0), memory(1, "A bicycle, how nice", "Bob", day=0), memory(2, "The pond is frozen", day=0),
       memory(3, "I sold the bicycle", day=10, session="s2"), memory(4, "Good morning", "Bob", day=10, session="s2"),
       memory(5, "My trip was lovely", day=30, session="s3", event_at=DAY0 - timedelta(days=60))]
BASE = np.array([2.0, 1.0, -3.0, 4.0, 0.5, -1.0])
ALL = np.arange(6)


@pytest.fixture
def toy(): return Toy(SIX, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 1, 0, 2, 0, 0])


# --- the probe

def probe(text, speakers=("Ann", "Bob"), **more): return s.make_probe(text, speakers, **more)


def test_who_a_question_is_about():
    assert probe("What did Ann buy?").speakers == {"Ann"} and probe("what did ANN and bob buy").speakers == {"Ann", "Bob"}
    assert probe("What about Annabel?").speakers == frozenset() and probe("Is it Bob's bicycle?").speakers == {"Bob"}
    assert probe("What did I buy?").speakers == frozenset(), "two people: “I” may be either"
    assert s.make_probe("What did I buy?", ("Ann", "assistant")).speakers == {"Ann"}
    assert s.make_probe("What did it buy?", ("Ann", "assistant")).speakers == frozenset()
    assert s.make_probe("我买了什么？", ("用户", "助手")).speakers == {"用户"}
    assert s.make_probe("小王买了什么？", ("小王", "小李")).speakers == {"小王"}


def test_content_is_the_question_without_names():
    assert probe("What did Ann buy?").content == "What did buy?" and probe("Ann").content == "Ann", "nothing but a name stays"
    assert "bicycl" in probe("Which bicycle did Ann buy?").entities and "ann" not in probe("Which bicycle did Ann buy?").entities


@pytest.mark.parametrize("name", ["A.*", "(x", "C++", "[a-z]+", "a|b", "\\d", "^", "$", "?", "Dr. Who", "O'Neil", "José", "小王", "🐱", "\x00", "a" * 1000])
def test_names_with_odd_characters(name):
    with MemoryStore(embedder="hash") as store:
        store.add([Memory("a", "I sold the bicycle", name), Memory("b", "I sold the car", "Zoe", step=1)])
        found = retrieve(f"What did {name} sell?", store, k=2)
        assert len(found.hits) == 2
    assert s.make_probe("nothing of the kind", (name, "Zoe")).speakers == frozenset()


def test_a_name_of_letters_is_found_whatever_characters_stand_in_it():
    for name in ("A.B", "O'Neil", "José", "Dr. Who", "X-Ray", "Sammy Jr.", "C++"):
        assert s.make_probe(f"What did {name} sell?", (name, "Zoe")).speakers == {name}


# --- first signals: the store's own numbers, for the right form of the question

def test_dense_asks_with_names_content_and_words_without(toy):
    p = probe("Which bicycle did Ann buy?")
    assert s.dense(p, toy).tolist() == s.content(p, toy).tolist() == toy._dense.tolist() and s.lexical(p, toy).tolist() == toy._words.tolist()
    assert toy.asked == [("dense", "Which bicycle did Ann buy?"), ("dense", p.content), ("bm25", p.content)] and "Ann" not in p.content


# --- second signals, by hand

def test_entity_overlap(toy):
    p = s.Probe("", "", frozenset(), frozenset({"red", "bicycl"}))
    assert s.entity_overlap(p, toy, BASE, ALL).tolist() == [1.0, 0.5, 0.0, 0.5, 0.0, 0.0]
    assert s.entity_overlap(p, toy, BASE, np.array([3, 0])).tolist() == [0.5, 1.0]
    assert s.entity_overlap(s.Probe("", "", frozenset(), frozenset()), toy, BASE, ALL).tolist() == [0.0] * 6
    tagged = Toy([memory(0, "that thing", entities=("red",))])
    assert s.entity_overlap(p, tagged, BASE[:1], ALL[:1]).tolist() == [0.5], "a memory's own entities count"


def test_speaker_named(toy):
    assert s.speaker_named(s.Probe("", "", frozenset({"Bob"}), frozenset()), toy, BASE, ALL).tolist() == [0, 1, 0, 0, 1, 0]
    assert s.speaker_named(s.Probe("", "", frozenset({"Bob", "Zoe"}), frozenset()), toy, BASE, np.array([1, 5])).tolist() == [1, 0]
    assert s.speaker_named(s.Probe("", "", frozenset(), frozenset()), toy, BASE, ALL).tolist() == [0] * 6


def test_in_time_with_a_window(toy):
    p = s.Probe("", "", frozenset(), frozenset(), (DAY0 + timedelta(days=10), DAY0 + timedelta(days=16)))
    far, near = np.exp(-10 / 14), np.exp(-14 / 14)  # ten days before it, fourteen days after it
    assert s.in_time(p, toy, BASE, ALL) == pytest.approx([far, far, far, 1, 1, near])
    march = s.Probe("", "", frozenset(), frozenset(), (DAY0 - timedelta(days=61), DAY0 - timedelta(days=59)))
    assert s.in_time(march, toy, BASE, np.array([5])).tolist() == [1.0], "when it happened counts as well as when it was said"


def test_in_time_without_a_window(toy):
    assert s.in_time(s.Probe("", "", frozenset(), frozenset()), toy, BASE, ALL).tolist() == [0] * 6
    recent = s.Probe("", "", frozenset(), frozenset(), None, True)
    assert s.in_time(recent, toy, BASE, ALL) == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1])
    assert s.in_time(recent, Toy(SIX[:3]), BASE[:3], ALL[:3]).tolist() == [1, 1, 1], "all said at once: all the newest"


def test_neighbours_of_the_same_session(toy):
    # 0: after it 1.0. 1: 2.0 before, -3.0 after. 2: 1.0 before. 3: 0.5 after (2 is another session). 4: 4.0 before. 5: alone
    assert s.best_neighbour(s.Probe("", "", frozenset(), frozenset()), toy, BASE, ALL).tolist() == [1.0, 2.0, 1.0, 0.5, 4.0, 0.0]
    assert s.best_neighbour(s.Probe("", "", frozenset(), frozenset()), toy, -np.abs(BASE), ALL).tolist() == [0.0] * 6, "floored at nothing"


def test_the_best_three_of_a_session(toy):
    none = s.Probe("", "", frozenset(), frozenset())
    assert s.best_of_session(none, toy, BASE, ALL).tolist() == [0.0, 0.0, 0.0, 2.25, 2.25, -1.0]
    four = Toy([memory(i) for i in range(4)])
    assert s.best_of_session(none, four, np.array([1.0, 2.0, 6.0, 4.0]), np.arange(4)).tolist() == [4.0] * 4
    mixed = Toy([memory(0), memory(1, session="s2"), memory(2), memory(3, session="s2")])
    assert s.best_of_session(none, mixed, np.array([1.0, 2.0, 3.0, 4.0]), np.arange(4)).tolist() == [2.0, 3.0, 2.0, 3.0]


# --- the sum

def test_fused_scores_by_hand(toy):
    p = probe("What did Bob say?")
    scored = s.score(p, toy, {"dense": 1.0, "speaker": 0.5}, 6)
    z = (np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) - 0.35) / np.std([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    fused = np.round(z + [0, 0.5, 0, 0, 0.5, 0], 6)
    order = np.argsort(-fused)
    assert scored.rows.tolist() == order.tolist() and scored.scores == pytest.approx(fused[order], abs=2e-6)
    assert scored.signals["speaker"].tolist() == [[0, 1, 0, 0, 1, 0][i] for i in order] and set(scored.signals) == {"dense", "speaker"}
    assert scored.signals["dense"] == pytest.approx(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])[order])


def test_pool_and_mask(toy):
    p = probe("bicycle")
    assert s.score(p, toy, {"dense": 1.0}, 2).rows.tolist() == [5, 4] and s.score(p, toy, {"dense": -1.0}, 2).rows.tolist() == [0, 1]
    assert s.score(p, toy, {"dense": 1.0}, 99, np.array([True, False] * 3)).rows.tolist() == [4, 2, 0]
    assert s.score(p, toy, {"dense": 1.0}, 1, np.zeros(6, bool)).rows.tolist() == []
    assert len(s.score(p, toy, {"lexical": 1.0}, 2).rows) == 2 and s.score(p, toy, {"lexical": 1.0}, 3).rows.tolist() == [3, 1, 0], "the tie goes by id"
    assert s.score(p, toy, {}, 3).rows.tolist() == [0, 1, 2]


def test_a_signal_of_weight_nothing_is_not_computed(toy):
    s.score(probe("bicycle"), toy, {"dense": 0.0, "lexical": 1.0}, 3)
    assert [what for what, _ in toy.asked] == ["bm25"]


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.floats(0.001, 1000), st.floats(-1000, 1000))
@settings(max_examples=150, deadline=None)
def test_zscores(values, scale, shift):
    x = np.array(values)
    z = s.zscores(x)
    assert z.shape == x.shape and np.isfinite(z).all()
    if len(x) and x.std() > 1e-3:
        assert abs(z.mean()) < 1e-6 and abs(z.std() - 1) < 1e-6 and (np.diff(z[np.argsort(x)]) >= 0).all()
        if np.abs(x).max() < 1e3 and x.std() * scale > 1e-3: assert s.zscores(x * scale + shift) == pytest.approx(z, abs=1e-4), "units don't matter"
    elif len(x) and x.std() <= 1e-9: assert not z.any(), "what doesn't vary says nothing"


def test_zscores_by_hand():
    assert s.zscores(np.array([1.0, 2.0, 3.0])) == pytest.approx([-1.2247449, 0, 1.2247449]) and s.zscores(np.array([])).shape == (0,)
    assert s.zscores(np.array([7])).tolist() == [0.0] and s.zscores(np.full(5, 3, np.float32)).tolist() == [0.0] * 5


# --- ties, and the order in which things were put in

def test_ties_go_by_id_whatever_the_order_of_insertion():
    memories = [Memory(f"m{i:02}", "the same words", "Ann", DAY0, session="s", step=0) for i in range(30)]
    for seed in range(4):
        shuffled = random.Random(seed).sample(memories, 30)
        with MemoryStore(embedder="hash") as store:
            for m in shuffled: store.add(m)
            for pool in (5, 30):
                scored = s.score(s.make_probe("the same words", store.speakers), store, dict(HYBRID), pool)
                ids = [store.memories[i].id for i in scored.rows]
                if pool == 30: assert sorted(ids) == [m.id for m in memories]
                # neighbours and sessions differ at the ends only, so among equals the order is that of the ids
                for score in set(scored.scores): assert (same := [i for i, v in zip(ids, scored.scores) if v == score]) == sorted(same)
            assert [store.memories[i].id for i in s.score(s.make_probe("x", ()), store, {"dense": 1.0}, 5).rows] == [f"m{i:02}" for i in range(5)]


def test_the_order_of_weights_changes_no_byte(toy):
    weights = dict(HYBRID, entity=0.3, time=0.5)
    p = probe("Which bicycle did Ann buy?", recent=True)
    one, two = s.score(p, toy, weights, 6), s.score(p, toy, dict(reversed(weights.items())), 6)
    assert one.rows.tolist() == two.rows.tolist() and one.scores.tobytes() == two.scores.tobytes()


# --- small stores

def test_rows_of_an_empty_store_and_of_one():
    with MemoryStore(embedder="hash") as store:
        rows = s.rows_of(store)
        assert all(len(a) == 0 for a in (rows.session, rows.previous, rows.following, rows.said, rows.happened, rows.speaker))
        scored = s.score(s.make_probe("anything", ()), store, dict(HYBRID, entity=1, time=1), 10)
        assert len(scored.rows) == len(scored.scores) == 0
        store.add(memory(0, "the only one"))
        rows = s.rows_of(store)
        assert rows.previous.tolist() == rows.following.tolist() == [-1]
        scored = s.score(s.make_probe("anything", store.speakers, recent=True), store, dict(HYBRID, entity=1, time=1), 10)
        assert scored.rows.tolist() == [0] and np.isfinite(scored.scores).all() and scored.signals["time"].tolist() == [1.0]


def test_rows_follow_the_store():
    with MemoryStore(embedder="hash") as store:
        store.add(SIX)
        first = s.rows_of(store)
        assert s.rows_of(store) is first, "worked out once per version"
        assert first.previous.tolist() == [-1, 0, 1, -1, 3, -1] and first.following.tolist() == [1, 2, -1, 4, -1, -1]
        store.delete("m1")
        assert s.rows_of(store).previous.tolist() == [-1, 0, -1, 2, -1]
        store.restore("m1")
        assert s.rows_of(store).previous.tolist() == first.previous.tolist()


def test_years_1_and_9999():
    ends = [Memory("a", "the start", at=datetime(1, 1, 1, tzinfo=UTC)), Memory("b", "the end", at=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), step=1)]
    toy = Toy(ends, [0, 1], [0, 1])
    window = (datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC))
    assert s.in_time(s.Probe("", "", frozenset(), frozenset(), window), toy, np.zeros(2), np.arange(2)) == pytest.approx([1, 0])
    assert s.in_time(s.Probe("", "", frozenset(), frozenset(), None, True), toy, np.zeros(2), np.arange(2)).tolist() == [0, 1]
    assert s.seconds(datetime(1970, 1, 2, tzinfo=UTC)) == 86400.0


# --- odd texts

ODD = {"nothing": "", "space": " \n\t", "emoji": "🐱👩‍👩‍👧 where is the 🐈?", "nul": "where\x00is\x00Ann", "surrogate": "where is \ud800 Ann \udfff",
       "rtl": "أين تعيش آن الآن؟ \u202e?", "quotes": "\"'“”‘’`",
       "sql": "'; DROP TABLE memories; --", "regex": "(.*+?[\\", "one letter": "我", "marks": "\u0301" * 50,
       "wide": "Ｗｈｅｒｅ ｉｓ Ａｎｎ？"}


@pytest.fixture(scope="module")
def odd_store():
    with MemoryStore(embedder="hash") as store:
        store.add([*SIX, *(Memory(f"odd {name}", text, "Bob", DAY0, session="odd", step=50) for name, text in ODD.items())])
        yield store


@pytest.mark.parametrize("name", ODD)
def test_odd_queries(odd_store, name):
    found = retrieve(ODD[name], odd_store, k=5)
    assert len(found.hits) <= 5 and found.sources == retrieve(ODD[name], odd_store, k=5).sources and np.isfinite([h.score for h in found.hits]).all()


LONG = ["word ", "which ", "先", "of the ", "what did Ann and ", "in May 2024 ", "我提到过的", "🐱"]


@pytest.fixture
def alarm():
    """Fails a test that hangs: a regular expression that backtracks would go on for hours."""
    def ring(*_): raise TimeoutError("still at it after a minute")
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("unit", LONG)
def test_a_query_of_a_megabyte(odd_store, alarm, unit):
    query = unit * (1_000_000 // len(unit))
    assert len(retrieve(query, odd_store, k=5).hits) <= 5


def test_a_memory_of_a_megabyte(alarm):
    with MemoryStore(embedder="hash") as store:
        store.add([memory(0, "moved to Hangzhou " * 60_000), memory(1, "I live in Beijing")])
        assert len(retrieve("Where do I live now?", store, k=2).hits) >= 1
