"""Test candidates and signals: values by hand on six memories, odd texts, odd and large stores."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from adaptmr.embed import embedder
from adaptmr.retrieval import candidates
from adaptmr.retrieval.candidates import Candidates, select_candidates
from adaptmr.retrieval.columns import columns_of
from adaptmr.retrieval.fusion import score_candidates
from adaptmr.retrieval.query import ASSISTANTS, ParsedQuery, parse_query
from adaptmr.retrieval.signals import SIGNALS, signal_values
from adaptmr.retrieval.signals import register_signal as register
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import indexed_text
from adaptmr.text import tokenize
from adaptmr.types import Memory

pytestmark = pytest.mark.numbers

DAY0 = datetime(2024, 5, 1, tzinfo=UTC)
HASH = embedder("hash")


class Toy:
    """A store with given cosines and BM25 parts, so that every number can be computed by hand."""

    version = 1

    def __init__(self, memories, dense=(), **words):
        self.memories, self.speakers = memories, tuple(dict.fromkeys(m.speaker for m in memories))
        self._dense = np.array(dense or [0.0] * len(memories), np.float32)
        self.words, self.parts = (
            list(words),
            np.array(list(words.values()), np.float32).reshape(len(words), len(memories)),
        )
        self.embedder, self.matrix, self.asked = self, self._dense[:, None], []

    def encode(self, texts, kind="passage"):
        self.asked += [(kind, t) for t in texts]
        return np.ones((len(texts), 1), np.float32)

    def dense(self, vector, rows=None):
        return np.round(self.matrix[slice(None) if rows is None else rows] @ vector, 6)

    def by_word(self, text, rows=None):
        self.asked.append(("words", text))
        return self.words, self.parts[:, slice(None) if rows is None else rows]

    def bm25(self, text):
        return self.parts.sum(0)


def memory(i, text="", speaker="Ann", day=0, session="s1", **more):
    return Memory(f"m{i}", text, speaker, DAY0 + timedelta(days=day), session=session, step=i, **more)


SIX = [
    memory(0, "I bought a red bicycle", day=0),
    memory(1, "A bicycle, how nice", "Bob", day=0),
    memory(2, "The pond is frozen", day=0),
    memory(3, "I sold the bicycle", day=10, session="s2"),
    memory(4, "Good morning", "Bob", day=10, session="s2"),
    memory(5, "My trip was lovely", day=30, session="s3", event_at=DAY0 - timedelta(days=60)),
]
NOTHING = ParsedQuery("", "", frozenset(), frozenset())


def over(p, memories=tuple(SIX), base=None, dense=(), **words):
    """The candidates of a toy store; `base` is given where a signal is computed from it."""
    c = select_candidates(p, Toy(list(memories), dense, **words), 50)
    if base is not None:
        c.base_scores = np.asarray(base, float)
    return c


# --- the probe


def probe(text, speakers=("Ann", "Bob"), **more):
    return parse_query(text, speakers, **more)


def test_who_a_question_is_about():
    assert probe("What did Ann buy?").speakers == {"Ann"}
    assert probe("what did ANN and bob buy").speakers == {"Ann", "Bob"}
    assert probe("What about Annabel?").speakers == frozenset()
    assert probe("Is it Bob's bicycle?").speakers == {"Bob"}
    assert probe("What did I buy?").speakers == frozenset(), "two people: “I” may be either"
    assert parse_query("What did I buy?", ("Ann", "assistant")).speakers == {"Ann"}
    assert parse_query("What did I buy?", ("Ann",)).speakers == {"Ann"}, "alone, “I” is that one"
    assert parse_query("What did it buy?", ("Ann", "assistant")).speakers == frozenset()
    assert parse_query("What did the assistant tell me?", ("Ann", "assistant")).speakers == {"assistant"}, (
        "who is named goes before “me”"
    )
    assert parse_query("我买了什么？", ("用户", "助手")).speakers == {"用户"}
    assert parse_query("小王买了什么？", ("小王", "小李")).speakers == {"小王"}
    for name in ASSISTANTS:
        assert parse_query("What did I say?", (name.title(), "Ann")).speakers == {"Ann"}


# --- columns: what is known of a store's rows


def test_sentences_are_cut_encoded_once_and_kept_by_text():
    with MemoryStore(embedder="hash") as store:
        store.add(
            [
                memory(0, "I went out. It rained! [image: a wet dog]"),
                memory(1, ""),
                memory(2, "It rained!"),
                memory(3, "ok"),
            ]
        )
        vectors, starts = columns_of(store).sentence_vectors(store.embedder)
        assert starts.tolist() == [0, 3, 4, 5]
        assert (
            vectors.tolist()
            == HASH.encode(["I went out.", "It rained!", "a wet dog", "", "It rained!", "ok"]).tolist()
        )
        store.add(memory(4, "It rained! We danced."))
        spy = Toy([])
        columns_of(store).sentence_vectors(
            spy_encoder := type(
                "Spy", (), {"encode": lambda self, texts: spy.asked.extend(texts) or HASH.encode(texts)}
            )()
        )
        assert spy.asked == ["We danced."]
        assert columns_of(store).sentence_vectors(spy_encoder)[1].tolist() == [0, 3, 4, 5, 6]


# --- what the signals share


def test_scaled_by_hand():
    three = over(NOTHING, SIX[:3])
    assert three.standardize(np.array([1.0, 2.0, 3.0])) == pytest.approx([-1.2247449, 0, 1.2247449])
    assert over(NOTHING, []).standardize(np.array([])).shape == (0,)
    assert over(NOTHING, SIX[:1]).standardize(np.array([7])).tolist() == [0.0]
    some = Candidates(NOTHING, three.store, np.arange(3), np.array([True, False, True]))
    assert some.standardize(np.array([1.0, 100.0, 3.0])).tolist() == [-1.0, 98.0, 1.0], (
        "mean 2 and deviation 1 of the background alone"
    )


# --- signals that are the store's own numbers


def test_dense_content_and_lexical_by_their_definition():
    with MemoryStore(embedder="hash") as store:
        store.add(SIX)
        p = probe("Which red bicycle did Bob sell at the pond?")
        c = select_candidates(p, store, 50)
        with_names, without = (
            HASH.encode([p.text, p.content]) @ HASH.encode([m.text_with_speaker for m in SIX]).T
        )
        assert SIGNALS["dense"].function(c) == pytest.approx(with_names, abs=2e-6)
        assert signal_values(c, "cosine") == pytest.approx(with_names, abs=2e-6), "weighed as it is"
        assert SIGNALS["content"].function(c) == pytest.approx(without, abs=2e-6)
        words = BM25Okapi([tokenize(indexed_text(m)) for m in SIX], k1=1.5, b=0.75)
        assert SIGNALS["lexical"].function(c) == pytest.approx(
            words.get_scores(tokenize(p.content)), abs=1e-5
        )
        assert c.lexical.any()
        for name in ("dense", "content", "lexical"):
            raw = SIGNALS[name].function(c)
            assert signal_values(c, name) == pytest.approx((raw - np.mean(raw)) / np.std(raw), abs=1e-4), (
                "weighed in standard deviations"
            )
        assert c.base_scores == pytest.approx(signal_values(c, "content") + signal_values(c, "lexical"))


# --- signals by hand


def test_time_with_a_window():
    c = over(replace(NOTHING, window=(DAY0 + timedelta(days=10), DAY0 + timedelta(days=16))))
    far, near = np.exp(-10 / 14), np.exp(-14 / 14)  # ten days before it, fourteen days after it
    assert signal_values(c, "time") == pytest.approx([far, far, far, 1, 1, near])
    march = over(replace(NOTHING, window=(DAY0 - timedelta(days=61), DAY0 - timedelta(days=59))))
    assert signal_values(march, "time")[5] == 1.0, "when it happened counts as well as when it was said"
    both = over(
        replace(NOTHING, window=(DAY0 + timedelta(days=10), DAY0 + timedelta(days=16)), prefer_recent=True)
    )
    assert signal_values(both, "time").tolist() == signal_values(c, "time").tolist(), (
        "a window goes before recency"
    )


def test_reply_to_a_question():
    asked = [
        memory(0, "Where is it?"),
        memory(1, "In the shed.", "Bob"),
        memory(2, "在哪里？ \n"),
        memory(3, "Why? I know", "Bob"),
        memory(4, "So", session="s2"),
        memory(5, "Really?", session="s2"),
        memory(6, "Yes", session="s2"),
    ]
    assert signal_values(over(NOTHING, asked, base=[3, 1, 2, 5, 7, -4, 9]), "reply").tolist() == [
        0,
        3,
        0,
        2,
        0,
        0,
        0,
    ]


# --- chats with an assistant


def with_assistant():
    """Two short messages of a user between two long answers of an assistant, which hold the names."""
    return [
        memory(0, "I live in Leeds. Why?", "user"),
        memory(1, "Leeds and York: ask Ann, Bob or Eve? Shall I?", "Assistant"),
        memory(2, "it rains", "user"),
        memory(3, "take care", "assistant"),
    ]


def test_the_form_of_a_message_is_compared_with_messages_of_its_role():
    c = over(NOTHING, with_assistant())
    assert SIGNALS["names"].function(c).tolist() == [1, 3, 0, 0]
    once = np.array([1, 1, -1, -1]) * 2 / 12  # one deviation, of two memories each
    assert signal_values(c, "names") == pytest.approx(once), "3 names of an assistant are as many as 1"
    assert signal_values(c, "question") == pytest.approx(once)
    assert signal_values(c, "first_person") == pytest.approx(once)


# --- the same conversation in two languages

EN = [
    memory(0, "Did you repair the red kayak, Bob?"),
    memory(1, "Yes, I painted it yesterday with Clara.", "Bob"),
    memory(2, "Lovely!"),
    memory(3, "The kayak sank near Porto in 2019.", "Bob", 10, "s2"),
    memory(4, "Our trip starts tomorrow.", "Ann", 10, "s2"),
    memory(5, "Here is a picture.", "Ann", 30, "s3", meta={"caption": "a red kayak on a lake"}),
]
ZH = [
    memory(0, "皮划艇修好了吗？", "小林"),
    memory(1, "我昨天和小王一起刷漆了。", "老周"),
    memory(2, "真好！", "小林"),
    memory(3, "皮划艇在2019年沉了。", "老周", 10, "s2"),
    memory(4, "我们明天出发。", "小林", 10, "s2"),
    memory(5, "给你看张照片。", "小林", 30, "s3", meta={"caption": "湖上的皮划艇"}),
]
once, twice, never = (
    np.log(7 / 1.5),
    np.log(7 / 2.5),
    np.log(7 / 0.5),
)  # rarity in six memories, by how many have the word
EN_ALL, ZH_ALL = 2 * once + twice, 2 * twice + once + never  # paint, red; kayak. 皮划, 划艇; 刷漆; 艇刷
BY_HAND = {
    "en": (
        EN,
        "When did Bob paint the red kayak?",
        {
            "entity": [(once + twice) / EN_ALL, once / EN_ALL, 0, twice / EN_ALL, 0, 0],
            "caption": [0, 0, 0, 0, 0, (once + twice) / EN_ALL],
            "speaker": [0, 1, 0, 1, 0, 0],
            "cue": [0, 1, 0, 1, 1, 0],
            "time": [0] * 6,
            "first_person": [0, 1, 0, 0, 1, 0],
            "question": [1, 0, 0, 0, 0, 0],
            "names": [0, 1, 0, 1, 0, 0],
            "role": [0] * 6,
        },
    ),
    "zh": (
        ZH,
        "老周什么时候给皮划艇刷漆的？",
        {
            "entity": [2 * twice / ZH_ALL, once / ZH_ALL, 0, 2 * twice / ZH_ALL, 0, 0],
            "caption": [0, 0, 0, 0, 0, 2 * twice / ZH_ALL],
            "speaker": [0, 1, 0, 1, 0, 0],
            "cue": [0, 1, 0, 1, 1, 0],
            "time": [0] * 6,
            "first_person": [0, 1, 0, 0, 1, 0],
            "question": [1, 0, 0, 0, 0, 0],
            "names": [0, 1, 0, 0, 0, 0],
            "role": [0] * 6,
        },
    ),
}


@pytest.mark.parametrize("language", BY_HAND)
def test_signals_by_hand_in_two_languages(language):
    memories, question, wanted = BY_HAND[language]
    c = over(parse_query(question, [m.speaker for m in memories]), memories)
    for name, values in wanted.items():
        assert SIGNALS[name].function(c) == pytest.approx(values), name


# --- the registry


def test_recency_halves_with_every_half_life():
    asked = DAY0 + timedelta(days=40)
    c = over(replace(NOTHING, now=asked))
    assert signal_values(c, "recency") == pytest.approx([0.5 ** (d / 30) for d in (40, 40, 40, 30, 30, 10)])
    assert signal_values(c, "recency")[3] == 0.5, "one half-life before the question"
    unknown = over(NOTHING)
    assert signal_values(unknown, "recency")[[0, 5]].tolist() == [0.5, 1.0], "30 days before the newest"
    early = over(replace(NOTHING, now=DAY0))
    assert signal_values(early, "recency").tolist() == [1.0] * 6, "what is newer than the question is new"
    assert not len(signal_values(over(NOTHING, []), "recency"))


def test_a_signal_of_your_own_is_scaled_and_worked_out_once():
    asked = []

    def mine(c):
        asked.append(1)
        return np.arange(len(c))

    try:
        register("mine", scale="store")(mine)
        c = over(NOTHING)
        assert signal_values(c, "mine") is signal_values(c, "mine")
        assert asked == [1]
        assert signal_values(c, "mine")[0] == pytest.approx(-2.5 / np.std(range(6)))
        assert SIGNALS["mine"].description == "" and signal_values(c, "mine").dtype == np.float64
    finally:
        SIGNALS.pop("mine")
    with pytest.raises(KeyError, match="mine"):
        signal_values(over(NOTHING), "mine")


# --- any texts, any order


def values(memories, text, generator=None):
    """Every signal of every memory, by what the memory says and when: the ids and the order of insertion
    don't appear.
    """
    with MemoryStore(embedder="hash") as store:
        for m in memories if generator is None else generator.sample(memories, len(memories)):
            store.add(m)
        p = parse_query(text, store.speakers, prefer_recent=len(text) % 2 == 1, now=DAY0)
        one, two = (select_candidates(p, store, 50) for _ in range(2))
        out = {}
        for name in reversed(SIGNALS):
            signal_values(two, name)
        for name in SIGNALS:
            v = signal_values(one, name)
            assert v.shape == (len(memories),) == (len(one),)
            assert v.dtype == np.float64
            assert np.isfinite(v).all(), name
            assert v.tobytes() == signal_values(two, name).tobytes(), (
                f"{name} depends on what was worked out before it"
            )
            out[name] = {store.memories[i].step: v[i] for i in range(len(v))}
        for name in ("entity", "caption", "speaker", "role", "time", "cue"):
            assert all(-1e-12 <= x <= 1 + 1e-9 for x in out[name].values()), name
        assert all(x >= 0 for x in out["reply"].values())
        return out


ODDITIES = [
    *("", " ", "\ud800", "\x00", "🐱👩‍👩‍👧", "أين تعيش آن الآن؟", "\u202e?", "What did Ann paint yesterday?"),
    *("我昨天和小王刷漆了", "猫", "Ann", "?!", "I", "in May 2024", "the of"),
]
ODD_LETTERS = st.characters(categories=("Cs", "So", "Lo", "Mn", "Zs", "Cf", "Cc"))
ANYTHING = st.text(max_size=30) | st.text(ODD_LETTERS, max_size=12) | st.sampled_from(ODDITIES)
WHO = st.sampled_from(["Ann", "Bob", "小林", "", "\ud800"])
ROWS = st.tuples(
    ANYTHING, WHO, st.sampled_from(["s1", "s2", ""]), st.integers(-900, 900), st.none() | ANYTHING
)


def remembered(row, i):
    text, who, session, day, caption = row
    return Memory(
        f"m{i:02}",
        text,
        who,
        DAY0 + timedelta(days=day),
        session=session,
        step=i,
        meta={} if caption is None else {"caption": caption},
    )


MEMORIES = st.lists(ROWS, max_size=8).map(lambda rows: [remembered(row, i) for i, row in enumerate(rows)])


@given(MEMORIES, ANYTHING, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_any_texts_give_finite_values_and_the_same_in_any_order_under_any_ids(memories, text, generator):
    plain = values(memories, text)
    assert values(memories, text, generator) == plain
    renamed = generator.sample(range(100), len(memories))
    assert values([replace(m, id=f"x{i:02}") for m, i in zip(memories, renamed)], text) == plain


# --- a store too large to score whole


NOUNS = (
    "anchor basin candle dragon engine falcon garden hammer island jacket kettle ladder magnet needle orchid "
    "pepper quiver ribbon saddle temple"
).split()


def crowd(n=900, seed=5):
    generator = random.Random(seed)
    texts = [
        " ".join(generator.choices(NOUNS, k=generator.randint(3, 9))) + generator.choice([".", "?", "。"])
        for _ in range(n)
    ]
    return [
        Memory(
            f"m{i:04}",
            text,
            ("Ann", "Bob")[i % 2],
            DAY0 + timedelta(days=i // 20),
            session=f"s{i // 10}",
            step=i,
        )
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def sparse(monkeypatch):
    monkeypatch.setattr(candidates, "BACKGROUND_ROWS", 60)


@pytest.fixture(scope="module")
def large():
    with MemoryStore(embedder="hash") as store:
        store.add(
            [
                replace(m, text="The zeppelin burned, said the quagga.") if m.step == 777 else m
                for m in crowd()
            ]
        )
        yield store


def both(store, text, pool=40, allowed=None, **more):
    p = parse_query(text, store.speakers, **more)
    return select_candidates(p, store, pool, allowed), select_candidates(
        p, store, pool, allowed, score_all=100
    )


QUERIES = (
    "falcon ladder needle|the quagga in the zeppelin|What did Ann say about the garden?|anchor|"
    "orchid pepper island temple basin|zeppelin"
).split("|")


def test_the_mask_is_respected(large, sparse):
    for text in QUERIES:
        allowed = columns_of(large).speaker == 1
        allowed[500:] = False
        whole, few = both(large, text, allowed=allowed)
        exact, found = (
            score_candidates(c, {"content": 1.0, "lexical": 1.0}, 10, allowed) for c in (whole, few)
        )
        assert allowed[found.rows].all()
        assert len(set(exact.rows.tolist()) & set(found.rows.tolist())) >= 9
        assert found.rows[0] in exact.rows[:2], "means and deviations are those of a sample"
    one = np.zeros(900, bool)
    one[434] = True
    _, few = both(large, "anything at all", allowed=one)
    assert {432, 433, 434, 435, 436} <= set(few.rows.tolist())
    assert score_candidates(few, {"content": 1.0}, 10, one).rows.tolist() == [434]
    _, none = both(large, "anything at all", allowed=np.zeros(900, bool))
    assert score_candidates(none, {"content": 1.0}, 10, np.zeros(900, bool)).rows.tolist() == []


# --- odd texts
