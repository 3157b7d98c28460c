"""Test that the index gives the scores of `BM25Okapi`, to 1e-5, and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from adaptmr.store.lexical import MAX_UNUSED_WORDS, LexicalIndex
from adaptmr.text import tokenize

WORDS = st.lists(
    st.sampled_from(["cat", "dog", "moved", "Hangzhou", "May", "杭州", "我的猫", "2023", "cats", "🐈"]),
    max_size=12,
).map(" ".join)


def arrange(index, texts, source):
    """Index these texts; `source` says which of those before each is, -1 for a new one."""
    return index.arranged(np.array(source), lambda rows: [texts[i] for i in rows])


class TestIndex:
    def test_by_hand(self):
        # "cat" is in 1 of 4 texts: idf = ln(3.5/1.5). Text 0 has 2 words and the average is 2, so the
        # fraction is 2.5 / (1 + 1.5) = 1.
        index = LexicalIndex().build(["cat bird", "dog fish", "tree house", "river stone"])
        once = pytest.approx(np.log(3.5 / 1.5), abs=1e-6)
        assert index.scores("cat").tolist() == [once, 0, 0, 0]
        words, parts = index.by_word("The cat, the zebra, a CAT and a fish!")
        assert words == ["cat", "zebra", "fish"], "each word once, in order"
        assert parts.tolist() == [[once, 0, 0, 0], [0, 0, 0, 0], [0, once, 0, 0]]

    def test_odd_texts(self):
        odd = ["NUL\0cat", "half \ud83d a pair", "🐈" * 50, "חתול קטן", "word " * 20_000, "我的猫叫豆豆"]
        index = LexicalIndex().build(odd)
        assert index.scores("豆豆").argmax() == 5 and index.scores("קטן").argmax() == 3
        words, parts = index.by_word("猫叫豆豆\ud83d")
        assert words == ["猫叫", "叫豆", "豆豆"] and (parts[:, 5] > 0).all() and np.count_nonzero(parts) == 3

    def test_search(self):
        index = LexicalIndex().build(["cat", "dog", "cat", "bird", "fish"])
        assert index.search("cat", 2)[0].tolist() == [0, 2]
        assert index.search("cat", 1, ids=["b", "c", "a", "d", "e"])[0].tolist() == [2]
        assert index.search("cat", 9, where=np.array([True, True, False, False, False]))[0].tolist() == [0, 1]

    def test_words_that_no_text_contains_any_more_are_dropped(self):
        index, n = LexicalIndex(), 50
        for day in range(100):
            index = arrange(index, [f"entry{day}x{i} of a diary" for i in range(n)], [-1] * n)
        live = n + 1  # one word a text, and "diari" in all of them
        assert len(index.counts.numbers) <= 3 * live + MAX_UNUSED_WORDS, "bounded by the words in use"
        fresh = LexicalIndex().build([f"entry99x{i} of a diary" for i in range(n)])
        for query in ("entry99x7", "entry99x49 diary", "entry3x7"):
            assert index.scores(query).tolist() == fresh.scores(query).tolist()
        erased = arrange(index, [], [0]).counts.without_unused_words()
        assert sorted(erased.numbers) == ["diari", "entry99x0"]


CHANGES = st.lists(st.lists(st.tuples(st.integers(0, 30), WORDS), max_size=12), max_size=4)


@given(st.lists(WORDS, max_size=15), CHANGES, WORDS)
@settings(max_examples=60, deadline=None)
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


@given(st.lists(WORDS, max_size=20), WORDS, st.floats(0.01, 5), st.floats(0, 1), st.data())
@settings(max_examples=100, deadline=None)
def test_scores_are_those_of_rank_bm25_and_word_scores_add_up(corpus, query, k1, b, data):
    index, asked = LexicalIndex(k1, b).build(corpus), tokenize(query)
    rows = data.draw(st.lists(st.integers(0, len(corpus) - 1), max_size=9)) if corpus else []
    scores, (words, parts) = index.scores(query), index.by_word(query)
    assert words == list(dict.fromkeys(asked)) and parts.shape == (len(words), len(corpus))
    times = np.array([asked.count(w) for w in words], float)  # as often as the query contains it
    assert np.isfinite(scores).all() and np.abs(times @ parts - scores).max(initial=0) <= 1e-5
    assert index.by_word(query, np.array(rows, np.int64))[1].tolist() == parts[:, rows].tolist()
    if any(words := [tokenize(t) for t in corpus]) and b < 1:
        assert np.abs(scores - BM25Okapi(words, k1=k1, b=b).get_scores(asked)).max() <= 1e-5
