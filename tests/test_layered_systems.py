"""The systems with a layered memory: the contract, no state from questions, the same hits as adaptmr."""

from __future__ import annotations

import pytest

import adaptmr as am
from adaptmr.memory.layers import FACT, PAGE, SUMMARY, TOPIC
from adaptmr.reader import sanitize
from adaptmr.retrieval.evidence import context_line
from adaptmr.systems.base import MemorySystem, make_system
from adaptmr.systems.contract import check_evidence, check_usage
from adaptmr.types import Conversation, Dataset, Question, Usage

NAMES = ("layered", "pmemo", "pmemo_two_layers")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return am.load("demo")


@pytest.fixture(scope="module")
def talk(data) -> Conversation:
    return data.conversations[0]


@pytest.fixture(scope="module")
def questions(data, talk) -> list[Question]:
    return data.questions_on(talk.id)[:16]


@pytest.fixture(scope="module")
def systems(talk) -> dict[str, MemorySystem]:
    made = {name: make_system(name, embedder="hash") for name in ("adaptmr", *NAMES)}
    for system in made.values():
        check_usage(system.name, system.ingest(talk))
    return made


def test_observing_changes_the_state_and_counts_queries(talk):
    system = make_system("layered", embedder="hash")
    versions = [system.state_version()]
    for turn in talk.turns[:60]:
        assert isinstance(system.observe(turn), Usage)
        versions.append(system.state_version())
    assert len(set(versions)) == len(versions)
    assert system.store.visits().queries > 0


def test_layered_has_the_hits_of_adaptmr_where_nothing_was_deleted(systems, questions):
    for question in questions:
        one, other = (systems[name].retrieve(question.blind(), 10) for name in ("layered", "adaptmr"))
        assert one.sources == other.sources, question.text
        assert [(h.score, h.note) for h in one.hits] == [(h.score, h.note) for h in other.hits]
        assert (one.has_relevant, one.relevance, one.findings, one.outdated) == (
            other.has_relevant,
            other.relevance,
            other.findings,
            other.outdated,
        )
        for hit in one.hits:
            assert sanitize(context_line(hit.memory, hit.note)) in one.context


def test_every_layer_is_written_and_two_layers_are_two(systems):
    layers = {name: {m.layer for m in systems[name].store.memories} for name in NAMES}
    assert {"", PAGE, TOPIC, SUMMARY, FACT} <= layers["pmemo"] and layers["pmemo"] == layers["layered"]
    assert layers["pmemo_two_layers"] == {"", PAGE, TOPIC}
    text = systems["pmemo_two_layers"].retrieve("Where do I live?", 10).context
    assert text.count("(none)") == 2, "no key and no long-term memories"


def test_a_pin_steers_every_answer_and_opens_no_gate(talk):
    system = make_system("layered", embedder="hash")
    system.ingest(talk)
    nonsense = "Which minister resigned over the tariff on uranium glass?"
    before = system.retrieve(nonsense, 10)
    system.memory.pin("Answer in French.")
    after = system.retrieve(nonsense, 10)
    assert "- Answer in French." in after.context and "Answer in French." not in before.context
    assert (after.has_relevant, after.relevance) == (before.has_relevant, before.relevance)


@pytest.mark.parametrize("name", NAMES)
def test_they_keep_to_the_contract_and_questions_of_a_test_change_nothing(systems, questions, talk, name):
    system, sources = systems[name], {m.source for m in talk.turns}
    version = system.state_version()
    system.prepare([q.blind() for q in questions])
    for k in (1, 3, 10):
        check_evidence(system, system.retrieve("", k), k, sources)
        for question in questions[:8]:
            found, again = (system.retrieve(question.blind(), k) for _ in range(2))
            check_evidence(system, found, k, sources, question.id)
            assert (found.hits, found.context) == (again.hits, again.context)
    assert system.state_version() == version
