"""Test that both engines give the scores of `BM25Okapi`, to 1e-5, and what the index keeps."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from adaptmr.store.lexical import ENGINES, MAX_UNUSED_WORDS, LexicalIndex
from adaptmr.store.memory_store import MemoryStore
from adaptmr.text import tokenize
from adaptmr.types import Memory

WORDS = st.lists(
    st.sampled_from(["cat", "dog", "moved", "Hangzhou", "May", "杭州", "我的猫", "2023", "cats", "🐈"]),
    max_size=12,
).map(" ".join)


def arrange(index, texts, source):
    """Index these texts; `source` says which of those before each is, -1 for a new one."""
    return index.arranged(np.array(source), lambda rows: [texts[i] for i in rows])


@given(st.lists(WORDS, min_size=1, max_size=25), WORDS, st.floats(0.01, 5), st.floats(0, 0.999))
@settings(max_examples=150, deadline=None)
def test_engines_agree_with_plain_rank_bm25(corpus, query, k1, b):
    ours = [LexicalIndex(e, k1, b).build(corpus).scores(query) for e in ENGINES]
    assert np.abs(ours[0] - ours[1]).max() <= 1e-5
    words = [tokenize(t) for t in corpus]
    if any(words):
        theirs = BM25Okapi(words, k1=k1, b=b).get_scores(tokenize(query))
        for s in ours:
            assert np.abs(s - theirs).max() <= 1e-5


@given(st.lists(WORDS, max_size=20), WORDS, st.sampled_from([0.0, 0.75, 1.0]), st.data())
@settings(max_examples=100, deadline=None)
def test_word_scores_add_up_to_the_score(corpus, query, b, data):
    indexes = [LexicalIndex(e, b=b).build(corpus) for e in ENGINES]
    asked = tokenize(query)
    rows = np.array(
        data.draw(st.lists(st.integers(0, len(corpus) - 1), max_size=9)) if corpus else [], np.int64
    )
    for index in indexes:
        words, parts = index.by_word(query)
        assert words == list(dict.fromkeys(asked)) and parts.shape == (len(words), len(corpus))
        # a score counts a word as often as the query contains it
        times = np.array([asked.count(w) for w in words], float)
        assert np.abs(times @ parts - index.scores(query)).max(initial=0) <= 1e-5
        assert index.by_word(query, rows)[1].tolist() == parts[:, rows].tolist()
    assert np.abs(indexes[0].by_word(query)[1] - indexes[1].by_word(query)[1]).max(initial=0) <= 1e-5


@pytest.mark.parametrize("engine", ENGINES)
class TestEngine:
    def test_by_hand(self, engine):
        # "cat" is in 1 of 4 texts: idf = ln(3.5/1.5). Text 0 has 2 words and the average is 2, so the
        # fraction is 2.5 / (1 + 1.5) = 1.
        index = LexicalIndex(engine).build(["cat bird", "dog fish", "tree house", "river stone"])
        once = pytest.approx(np.log(3.5 / 1.5), abs=1e-6)
        assert index.scores("cat").tolist() == [once, 0, 0, 0]
        assert index.scores("cat cat")[0] == pytest.approx(2 * np.log(3.5 / 1.5), abs=1e-6)
        words, parts = index.by_word("The cat, the zebra, a CAT and a fish!")
        assert words == ["cat", "zebra", "fish"], "each word once, in order"
        assert parts.tolist() == [[once, 0, 0, 0], [0, 0, 0, 0], [0, once, 0, 0]]

    def test_empty_corpus_and_query_without_words(self, engine):
        for index, n in (
            (LexicalIndex(engine), 0),
            (LexicalIndex(engine).build([]), 0),
            (LexicalIndex(engine).build(["", "?!"]), 2),
        ):
            words, parts = index.by_word("cat dog cat")
            assert words == ["cat", "dog"] and parts.shape == (2, n) and not parts.any()
            assert index.scores("cat").tolist() == [0] * n
        for query in ("", "the", "?!"):
            assert LexicalIndex(engine).build(["cat", "dog"]).by_word(query)[1].shape == (0, 2)
            assert LexicalIndex(engine).build(["cat", "dog"]).scores(query).tolist() == [0, 0]

    def test_full_length_normalisation_of_an_empty_text(self, engine):
        index = LexicalIndex(engine, b=1.0).build(["cat", "", "dog bird", "fish"])
        s, (_, parts) = index.scores("cat"), index.by_word("cat")
        assert np.isfinite(s).all() and s[0] > 0 and s[1] == 0 and np.isfinite(parts).all()

    def test_odd_texts(self, engine):
        odd = ["NUL\0cat", "half \ud83d a pair", "🐈" * 50, "חתול קטן", "word " * 200_000, "我的猫叫豆豆"]
        index = LexicalIndex(engine).build(odd)
        assert index.scores("豆豆").argmax() == 5 and index.scores("קטן").argmax() == 3
        words, parts = index.by_word("猫叫豆豆\ud83d")
        assert words == ["猫叫", "叫豆", "豆豆"] and (parts[:, 5] > 0).all() and np.count_nonzero(parts) == 3

    def test_search(self, engine):
        index = LexicalIndex(engine).build(["cat", "dog", "cat", "bird", "fish"])
        assert index.search("cat", 2)[0].tolist() == [0, 2]
        assert index.search("cat", 1, ids=["b", "c", "a", "d", "e"])[0].tolist() == [2]
        assert index.search("cat", 9, where=np.array([True, True, False, False, False]))[0].tolist() == [0, 1]

    def test_words_that_no_text_contains_any_more_are_dropped(self, engine):
        index, n = LexicalIndex(engine), 50
        for day in range(200):
            index = arrange(index, [f"entry{day}x{i} of a diary" for i in range(n)], [-1] * n)
        live = n + 1  # one word a text, and "diari" in all of them
        assert len(index.counts.numbers) <= 3 * live + MAX_UNUSED_WORDS, "bounded by the words in use"
        fresh = LexicalIndex(engine).build([f"entry199x{i} of a diary" for i in range(n)])
        for query in ("entry199x7", "entry199x49 diary", "entry3x7", "diary"):
            assert index.scores(query).tolist() == fresh.scores(query).tolist()
        erased = arrange(index, [], [0]).counts.without_unused_words()
        assert sorted(erased.numbers) == ["diari", "entry199x0"]

    def test_a_store_returns_word_scores_in_the_order_of_its_rows(self, engine):
        with MemoryStore(embedder="hash", lexical=engine) as store:
            assert store.by_word("cat")[1].shape == (1, 0)
            texts = {"b": "a dog", "a": "a cat", "c": "fish", "d": "tree"}
            store.add([Memory(i, text, "Ann" if i == "a" else "", step=ord(i)) for i, text in texts.items()])
            words, parts = store.by_word("Ann's cat\0 \ud800")
            assert words == ["ann", "cat"], "the speaker is part of the text"
            assert (parts[:, 0] > 0).all() and not parts[:, 1:].any()
            assert parts.sum(0) == pytest.approx(store.bm25("Ann's cat"), abs=2e-6)
            assert store.by_word("Ann's cat", np.array([0, 2]))[1].tolist() == parts[:, [0, 2]].tolist()
            store.delete("a")
            assert store.by_word("cat")[1].tolist() == [[0, 0, 0]]


CHANGES = st.lists(st.lists(st.tuples(st.integers(0, 30), WORDS), max_size=12), max_size=4)


@given(st.lists(WORDS, max_size=15), CHANGES, WORDS)
@settings(max_examples=100, deadline=None)
def test_texts_that_come_go_and_move_score_as_texts_indexed_at_once(first, changes, query):
    index, texts = LexicalIndex().build(first), list(first)
    for change in changes:
        earlier, scores, before, source, now = index, index.scores(query), texts, [], []
        for place, text in change:
            known = place < len(before) and place not in source
            source.append(place if known else -1)
            now.append(before[place] if known else text)
        read: list[int] = []

        def texts_of(rows, now=now, read=read):
            read.extend(rows)
            return [now[i] for i in rows]

        index = index.arranged(np.array(source, np.int64), texts_of)
        assert read == [i for i, place in enumerate(source) if place < 0], "only the new texts are read"
        assert earlier.scores(query).tolist() == scores.tolist(), "the index before stays as it is"
        texts = now
    fresh = LexicalIndex().build(texts)
    assert np.abs(index.scores(query) - fresh.scores(query)).max(initial=0) <= 2e-6
    assert np.abs(index.by_word(query)[1] - fresh.by_word(query)[1]).max(initial=0) <= 2e-6


def test_bad_arguments():
    for bad, named in (
        ({"engine": "lucene"}, "lucene"),
        ({"k1": 0}, "k1"),
        ({"k1": float("nan")}, "k1"),
        ({"b": 1.5}, "b = 1.5"),
    ):
        with pytest.raises(ValueError, match=named):
            LexicalIndex(**bad)


def test_prints_nothing():
    code = (
        "from adaptmr.store.lexical import LexicalIndex; LexicalIndex().build(['a cat', 'dog']).scores('cat')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
