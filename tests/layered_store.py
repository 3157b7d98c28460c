"""A conversation of any length with all its layers, written by hand instead of by the package's writers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.layers import AUTO, FACT, KEY, MANUAL, PAGE, PROFILE, SUMMARY, TOPIC, derive
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

START = datetime(2024, 1, 1, 9, tzinfo=UTC)
SUBJECTS = ("marathon", "garden", "violin", "harbour", "bakery", "glacier", "archive")
PLACES = ("Leeds", "Bath", "York", "Oban", "Ely")


def turns_of(n: int, owner: str = "", prefix: str = "t") -> list[Memory]:
    """Return `n` turns on changing subjects, an hour apart, six to a session."""
    return [
        Memory(
            f"{prefix}{i}",
            f"On day {i} I went to the {SUBJECTS[i // 6 % 7]} in {PLACES[i % 5]} and paid {i} pounds.",
            "Maya" if i % 2 else "Tom",
            START + timedelta(hours=i),
            session=f"{prefix}S{i // 6}",
            step=i,
            source=f"{prefix}{i}",
            owner=owner,
        )
        for i in range(1, n + 1)
    ]


def key_memory(
    id: str, text: str, source: str = MANUAL, sources: Sequence[Memory] = (), owner: str = "", **meta: object
) -> Memory:
    """Return a key memory; without `sources` it was made on the first day."""
    meta = {"source": source, "priority": 1.0 if source == MANUAL else 0.8, **meta}
    if sources:
        return derive(KEY, id, text, sources, meta=meta, owner=owner)
    return Memory(id, text, at=START, layer=KEY, meta=meta, owner=owner)


def layers_of(turns: Sequence[Memory], config: MemoryConfig, prefix: str = "") -> list[Memory]:
    """Return pages of six turns, topics by subject, summaries of four pages, facts and key memories."""
    out: list[Memory] = []
    topics: dict[str, list[Memory]] = {}
    pages: list[Memory] = []
    owner = turns[0].owner if turns else ""

    def make(
        layer: str, id: object, text: str, sources: Sequence[Memory], **more: str | dict[str, str]
    ) -> Memory:
        out.append(derive(layer, f"{prefix}{layer}:{id}", text, sources, owner=owner, **more))
        return out[-1]

    for i in range(0, max(0, len(turns) - config.stm_capacity) // 6 * 6, 6):
        part = turns[i : i + 6]
        subject = f"{SUBJECTS[part[0].step // 6 % 7]}-{part[0].step // 336}"  # of a fortnight
        text, meta = f"{part[0].speaker}: {part[0].text} They like it.", {"topic": f"{prefix}topic:{subject}"}
        pages.append(make(PAGE, part[0].step, text, part, meta=meta))
        topics.setdefault(subject, []).append(pages[-1])
        make(FACT, part[1].step, part[1].text, part[1:2], speaker=part[1].speaker)
        if len(pages) % 4 == 0:
            make(SUMMARY, len(pages), " ".join(p.text for p in pages[-4:]), pages[-4:])
    for subject, members in topics.items():
        make(TOPIC, subject, f"They talk about the {subject.split('-')[0]}. {members[-1].text}", members)
    if facts := [m for m in out if m.layer == FACT][:4]:
        text = "\n".join(m.text_with_speaker for m in facts)
        out.append(derive(PROFILE, f"{prefix}profile", text, facts, owner=owner))
    if len(turns) > 3:
        out.append(key_memory(f"{prefix}key:auto", turns[2].text, AUTO, turns[2:3], owner))
    return [*out, key_memory(f"{prefix}key:pin", "Answer in two sentences.", owner=owner)]


def layered_store(n: int, config: MemoryConfig | None = None, embedder: object = "hash") -> MemoryStore:
    """Return a store in memory with `n` turns and their layers."""
    store = MemoryStore(embedder=embedder)
    turns = turns_of(n)
    store.add([*turns, *layers_of(turns, config or MemoryConfig())])
    return store
