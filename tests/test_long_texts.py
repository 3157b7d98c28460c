"""Test that a text of any length is stored whole, and that its searched and shown part is limited."""

from __future__ import annotations

import pytest

import adaptmr as am
from adaptmr.embed import embedder
from adaptmr.retrieval.evidence import render_context
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import MAX_TEXT_CHARS
from adaptmr.types import Memory

BOOKS = {
    "en": ("We went to Hangzhou in May and I liked it. ", "Where did Ann go in May?"),
    "zh": ("我们五月去了杭州，我很喜欢。", "五月去了哪里？"),
}


class LengthRecorder:
    """The hash embedder, which records the length of the longest text."""

    name, dim = "hash", 64

    def __init__(self) -> None:
        self.longest = 0

    def encode(self, texts, kind="passage"):
        self.longest = max([self.longest, *map(len, texts)])
        return embedder("hash").encode(texts)


@pytest.mark.parametrize("language", BOOKS)
def test_a_book_is_stored_whole_and_searched_in_part(language):
    sentence, question = BOOKS[language]
    book = sentence * (200_000 // len(sentence)) + " zebra"
    e = LengthRecorder()
    with MemoryStore(embedder=e) as s:
        s.add(
            [
                Memory("book", book, "Ann", step=1),
                *[Memory(f"m{i}", f"I like tea number {i}", "Bob", step=i) for i in range(2, 6)],
            ]
        )
        evidence = am.retrieve(question, s, k=5)
        assert s.get("book").text == s.memories[0].text == book
        assert (
            e.longest <= MAX_TEXT_CHARS + len("Ann: ")
            and not s.bm25("zebra").any()
            and s.bm25(question)[0] > 0
        )
        row = next(t for t in evidence.trace if t.step == "texts")
        assert (
            row.reason
            == f"1 longer than {MAX_TEXT_CHARS:,} characters: what lies beyond is not read, and not shown"
        )
        hit = next(h for h in evidence.hits if h.memory.id == "book")
        mark = f"… [cut: {len(book):,} characters in all]"
        assert len(hit.memory.text) == MAX_TEXT_CHARS and hit.memory.text.endswith(mark)
        assert mark in evidence.context and len(evidence.context) < 2 * MAX_TEXT_CHARS
        assert mark in render_context(s.search(question, 5)), (
            "a hit of a plain search is shown in the same way"
        )
        e.longest = 0
        s.update(Memory("book", book + "!", "Ann", step=1))
        assert e.longest <= MAX_TEXT_CHARS + len("Ann: ") and s.get("book").text == book + "!"


def test_texts_up_to_the_limit_are_searched_whole():
    with MemoryStore(embedder="hash") as s:
        s.add(
            [
                Memory("long", "tea " * (MAX_TEXT_CHARS // 4 - 2) + "zebra", step=1),
                Memory("tea", "I like coffee", step=2),
                Memory("x", "nothing", step=3),
            ]
        )
        evidence = am.retrieve("zebra", s, k=2)
        assert s.bm25("zebra")[0] > 0 and "texts" not in [t.step for t in evidence.trace]
        assert next(h for h in evidence.hits if h.memory.id == "long").memory == s.get("long")
