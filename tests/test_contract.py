"""The contract of a system, its capabilities, and the tokens that its reader is given."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from scripted import ScriptedLLM

from adaptmr.eval.report import tables
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm.spending import count_tokens
from adaptmr.reader import build_context
from adaptmr.retrieval.evidence import render_context
from adaptmr.systems.base import Solver, known_systems, make_system
from adaptmr.systems.contract import (
    ContractError,
    check_count_names,
    check_solution,
    check_usage,
    system_name,
)
from adaptmr.types import Answer, Conversation, Dataset, Evidence, Hit, Memory, Question, Usage

DAY = datetime(2024, 1, 1, tzinfo=UTC)
TURNS = [
    Memory(
        f"c/{n}",
        f"In week {n} Ann met Bob number {n}.",
        "Ann",
        DAY + timedelta(days=7 * n),
        session=f"S{n}",
        step=n,
        source=f"S{n}:1",
    )
    for n in range(30)
]
TALK = Conversation("c", ("Ann",), TURNS)
ASKED = [
    Question(
        f"q{n}",
        f"Whom did Ann meet in week {n}?",
        [f"Bob number {n}"],
        evidence=[f"S{n}:1"],
        conversation="c",
    )
    for n in (3, 17, 29)
]
TOY = Dataset("toy", [TALK], ASKED)
KNOWN = frozenset(m.source for m in TURNS)


class Theirs:
    """A system with the four members of the protocol alone, which returns what it is given."""

    name = "theirs"

    def __init__(self, found=None, usage=None):
        self.found, self.usage = found, Usage() if usage is None else usage

    def reset(self):
        pass

    def ingest(self, conversation):
        return self.usage

    def retrieve(self, question, k):
        return Evidence([Hit(m, 1.0) for m in TURNS[:k]]) if self.found is None else self.found


def run(system, **more):
    return evaluate([system], TOY, embedder="hash", progress=False, **more)


def hits(*turns):
    return [Hit(m, 1.0) for m in turns]


@pytest.mark.parametrize(
    "found, said",
    [
        (Evidence(hits(*TURNS)), r"30 hits for k = 10; return at most k, or say unlimited = True"),
        (Evidence(hits(TURNS[0], TURNS[0])), r"1 turns are returned more than once: 'S0:1'"),
        (
            Evidence(hits(Memory("fact-1", "Ann knows Bob."))),
            r"1 hits are no turns of the conversation .*: 'fact-1'",
        ),
        (Evidence([Hit(TURNS[0], float("nan"))]), r"1 scores are no finite numbers, those of: 'S0:1'"),
        (Evidence(context=None), r"context is a NoneType, not of type str"),
        (Evidence(usage=None), r"the usage is a NoneType, not of type Usage"),
        (Evidence(usage=Usage(prompt_tokens=-(10**6))), r"usage.prompt_tokens=-1000000 must be"),
        (Evidence(usage=Usage(seconds=float("inf"))), r"usage.seconds=inf must be"),
        (Evidence(usage=Usage(cost_usd=float("nan"))), r"usage.cost_usd=nan"),
        (Evidence(has_relevant=None), r"has_relevant is a NoneType"),
        (hits(TURNS[0]), r"it returned a list, not an Evidence"),
        (0, r"it returned an int, not an Evidence"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_system_that_returns_something_else_is_named_with_the_question(found, said):
    with pytest.raises(ContractError, match=rf"^system 'theirs', question 'q3': .*{said}"):
        run(Theirs(found))


@pytest.mark.parametrize(
    "usage, said",
    [
        (None, "NoneType, not of type Usage"),
        (3, "int, not of type Usage"),
        (Usage(calls=-1), "usage.calls=-1"),
        (Usage(completion_tokens=1.5), "completion_tokens=1.5"),
        (Usage(seconds=-1.0), "seconds=-1.0"),
    ],
)
def test_the_usage_of_ingest_is_checked(usage, said):
    theirs = Theirs()
    theirs.usage = usage
    with pytest.raises(ContractError, match=rf"^system 'theirs', ingest: .*{said}"):
        run(theirs)
    assert check_usage("x", Usage(1, 1, 2, 3, 0.5, None)).tokens == 5


def test_what_is_no_system_is_said_before_anything_runs(tmp_path):
    class Half:
        name = "half"
        retrieve = None

        def reset(self):
            pass

    nameless = Theirs()
    nameless.name = ""
    for wrong, said in (
        (Half(), r"'half' is no MemorySystem: it lacks ingest\(\), retrieve\(\)"),
        (nameless, "Theirs is no MemorySystem: it lacks a name"),
        (object(), r"object is no .*a name.*ingest\(\), retrieve\(\), reset\(\)"),
        (None, "NoneType"),
    ):
        with pytest.raises(ContractError, match=said):
            evaluate([wrong], TOY, journal=tmp_path / "j", progress=False)
    assert not (tmp_path / "j").exists() and system_name(Theirs()) == "theirs"


def test_returning_more_than_k_buys_no_recall_and_by_nature_is_said():
    whole = Evidence(hits(*TURNS))
    within = run(Theirs())
    assert within.hits.tolist() == [10] * 3 and not within.unlimited.any()
    assert within.recall_fraction.mean() == pytest.approx(1 / 3), "only week 3 is among the first ten"
    with pytest.raises(ContractError, match="30 hits for k = 10"):
        run(Theirs(whole))
    all_of_it = Theirs(whole)
    all_of_it.unlimited = True
    frame = run(all_of_it)
    assert frame.recall_fraction.mean() == 1.0 and frame.unlimited.all()
    assert (
        tables.unlimited_line(frame) == "; not held to k: theirs, which returns all there is"
        and tables.unlimited_line(within) == ""
    )


class Model:
    """What `evaluate` looks at of a model."""

    is_offline, model, concurrency = False, "stand-in", 1


@pytest.mark.parametrize("said", ["", "Ann met somebody in some week.", " \n"])
def test_what_is_counted_is_what_the_prompt_holds(said, monkeypatch):
    """The offline rule reads the hits; a model reads the context, or the hits where that is empty."""
    from adaptmr.eval.runner import asking as module

    prompts = []

    def read(question, found, llm=None, *, asked_at=None):
        prompts.append(build_context(found))
        return Answer("Bob")

    monkeypatch.setattr(module, "answer", read)
    theirs, lines = Theirs(Evidence(hits(*TURNS[:5]), context=said)), render_context(hits(*TURNS[:5]))
    assert set(run(theirs).context_tokens) == {count_tokens(lines)}, "by rule"
    prompts.clear()
    frame = run(theirs, llm=Model())
    expected = said if said.strip() else lines
    assert set(prompts) == {expected} and set(frame.context_tokens) == {count_tokens(expected)}


@pytest.mark.parametrize("name", known_systems("team"))
def test_every_solver_of_ours_keeps_to_the_contract(name):
    system = make_system(name, ScriptedLLM(), embedder="hash")
    assert system_name(system) == name and isinstance(system, Solver)
    check_usage(name, system.ingest(TALK))
    for question in ASKED[:2]:
        solution = check_solution(system, system.solve(question.blind()), KNOWN, question.id)
        check_count_names(system, solution.counts, {"f1", "em", "hits"}, question.id)
        assert json.loads(solution.record) and solution.transcript.question == question.text
