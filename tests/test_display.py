"""Displays: what a user holds is shown short, escaped and without secrets, in a notebook and as text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import adaptmr as am
from adaptmr.eval.stats.intervals import Difference, Interval
from adaptmr.integrations.magics import MagicAnswer
from adaptmr.retrieval.plan import PlanError
from adaptmr.store.serialization import Event, Events
from adaptmr.systems.base import PlannedSystem, SystemNames
from adaptmr.types import Hits, Memories, Trace, TraceRow

EVIL = "<script>alert(1)</script> & 'quotes'"
MEMORY = am.Memory("m1", EVIL, EVIL, datetime(2024, 5, 1, tzinfo=UTC), source="D1:1")
HIT = am.Hit(MEMORY, 0.5, note=EVIL)
PLAN = am.RetrievalPlan(hint=EVIL, planner=EVIL, weights={"dense": 1.0, "lexical": 0.5})
EVIDENCE = am.Evidence([HIT], plan=PLAN, trace=[TraceRow("search", 3, 1, 0.2, EVIL)])
QUESTION = am.Question("q", EVIL, [EVIL], conversation="c")


def a_store() -> am.MemoryStore:
    store = am.MemoryStore(embedder="hash")
    store.add(MEMORY)
    store.update(replace(MEMORY, text=EVIL + " again"), who=EVIL, why=EVIL)
    return store


def evil(question, now):
    raise ValueError(EVIL)


SHOWN = {
    "answer": lambda: am.Answer(EVIL),
    "model": lambda: am.LLM(EVIL, base_url="http://localhost:1/v1"),
    "difference": lambda: Difference(0.1, 0.0, 0.2, 9, 4, EVIL, 0.04),
    "interval": lambda: Interval(0.1, 0.0, 0.2, 9, 4, EVIL),
    "router": lambda: am.Router(name=EVIL),
    "router of failing strategies": lambda: am.Router(strategies={am.QueryType.multi_hop: evil}),
    "evidence": lambda: EVIDENCE,
    "hits": lambda: Hits([HIT]),
    "trace": lambda: EVIDENCE.trace,
    "plan": lambda: PLAN,
    "difference of plans": lambda: PLAN.diff(),
    "data set": lambda: am.Dataset(EVIL, [am.Conversation(EVIL, (EVIL,), [MEMORY])], [QUESTION], ours=True),
    "conversation": lambda: am.Conversation("c", (EVIL,), [MEMORY]),
    "question": lambda: QUESTION,
    "memory": lambda: MEMORY,
    "store": a_store,
    "log": lambda: a_store().events(),
    "history": lambda: a_store().history("m1"),
    "recent": lambda: a_store().recent(),
    "systems": lambda: SystemNames({EVIL: EVIL}),
    "asked": lambda: MagicAnswer(EVIL, am.Answer(EVIL), EVIDENCE),
    "questions": lambda: am.Dataset("d", questions=[QUESTION]).questions,
    "finding": lambda: am.Finding(EVIL, EVIL),
    "filter": lambda: am.Filter(user=EVIL),
    "system": lambda: PlannedSystem(EVIL, am.Router(), embedder="hash"),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_what_a_text_says_is_never_markup(kind):
    shown = SHOWN[kind]()
    markup = str(shown._repr_html_())
    assert "<table" in markup and "<script" not in markup and "&lt;script&gt;alert(1)" in markup
    opened = re.findall(r"<(\w+)", markup)
    assert all(markup.count(f"</{tag}>") == opened.count(tag) for tag in set(opened) - {"br"})


def everything(text):
    """All that shows what a user wrote, with one text in every place."""
    memory = am.Memory("m", text, text, datetime(2024, 5, 1, tzinfo=UTC), source=text or "s")
    question = am.Question("q", text, [text], conversation="c")
    plan = am.RetrievalPlan(hint=f"-{text}", planner=text, queries=(f"-{text}",))
    trace = [TraceRow(text, 1, 1, 0.0, text)]
    evidence = am.Evidence([am.Hit(memory, 1.0, note=f"-{text}")], plan=plan, trace=trace)
    talk = am.Conversation(text, (text,), [memory])
    data = am.Dataset(text, [talk], [question], ours=True)
    yield from (memory, question, plan, plan.diff(), evidence, evidence.hits, talk, data, data.questions)
    yield from (Memories([memory]), am.Answer(text), am.Finding(text, text))
    yield MagicAnswer(text, am.Answer(text), evidence)
    yield from (am.Router(name=text), SystemNames({text: text}), am.Filter(user=f"-{text}"))
    yield PlannedSystem(text, am.Router(name=text), embedder="hash")


def test_a_long_word_may_be_broken():
    key = "k" * 250
    for shown in everything(key):
        words = re.split(r"<[^>]*>|\s", str(shown._repr_html_()))
        assert max(map(len, words)) <= 110, type(shown)


@pytest.mark.parametrize("kind", SHOWN)
def test_as_text_it_is_short_and_names_no_address(kind):
    text = repr(SHOWN[kind]())
    assert "Cell(" not in text
    assert text and " at 0x" not in text and len(text) < 1_500


def test_a_model_never_shows_its_key():
    llm = am.LLM("m", "http://me:hush@localhost:1/v1", "sk-secret")
    shown = repr(llm) + llm._repr_html_() + repr(am.QARP(llm))
    assert "http://localhost:1/v1" in shown
    assert "sk-secret" not in shown and "hush" not in shown


def test_a_long_log_and_a_large_data_set_show_their_head():
    log = Events(Event(i, datetime(2024, 1, 1, tzinfo=UTC), "add", f"m{i}") for i in range(1_000))
    data = am.Dataset("big", [am.Conversation(f"c{i}") for i in range(1_000)])
    for shown in (log, data):
        assert "the first 20 of 1,000" in shown._repr_html_() and len(shown._repr_html_()) < 10_000


def test_a_text_steers_no_terminal():
    hit = am.Hit(am.Memory("m", "\x1b[31mred\x07\nnext\u202eline"), 1.0)
    text = repr(am.Evidence([hit])) + repr(Trace([TraceRow("\x1b[2J", 1, 1, 0.0, "\x1b")]))
    assert not [c for c in text if not c.isprintable() and c != "\n"]


# --- the difference of plans

plans = st.builds(
    am.RetrievalPlan,
    k=st.integers(0, 50),
    prefer_latest=st.booleans(),
    hint=st.text(max_size=5),
    queries=st.lists(st.text(max_size=5), max_size=2),
    weights=st.dictionaries(st.sampled_from(["dense", "lexical", "time"]), st.floats(0.1, 2), max_size=3),
)


@given(plans, plans)
def test_the_difference_of_two_plans_says_all_and_only_what_differs(a, b):
    found = a.diff(b)
    assert (found == []) == (a == b)
    assert {d.field: (d.this, d.other) for d in b.diff(a)} == {d.field: (d.other, d.this) for d in found}
    edits = {d.field: d.other for d in found if "." not in d.field}
    weights = a.weights | {d.field.split(".")[1]: d.other for d in found if d.field.startswith("weights.")}
    assert replace(a, **edits, weights={n: w for n, w in weights.items() if w is not None}) == b


def test_the_repr_of_a_plan_makes_the_plan_again():
    plan = am.RetrievalPlan(queries=("a", "b"), weights={"time": 2}, k=3, layers=("x",))
    assert eval(repr(plan), {"RetrievalPlan": am.RetrievalPlan}) == plan
    assert repr(am.RetrievalPlan()) == "RetrievalPlan()"


# --- names


def test_the_package_lists_its_own_names_only():
    import adaptmr

    names = {n for n in dir(adaptmr) if not n.startswith("__")}
    assert names == set(adaptmr.__all__) - {"__version__"}
    assert not names & {"annotations", "import_module", "TYPE_CHECKING", "Any"}
    assert {"__version__", "__name__", "__doc__", "__file__"} <= set(dir(adaptmr))
    with pytest.raises(AttributeError, match=r"'retreive' \(did you mean 'retrieve'\?\)"):
        adaptmr.retreive


# --- mistakes

TALK = am.Conversation("c", ("A",), [MEMORY])
DATA = am.Dataset("d", [TALK], [am.Question("q", "Where?", conversation="c")])
STORE = a_store()
MISTAKES = {
    "data set": (lambda: am.load("locmo"), KeyError, r"'locmo' \(did you mean 'locomo'\?\)"),
    "system": (lambda: am.make_system("hybird"), ValueError, r"'hybird' \(did you mean 'hybrid'\?\)"),
    "type of a strategy": (lambda: am.strategy("multihop"), ValueError, r"did you mean 'multi_hop'\?"),
    "read field": (lambda: am.RetrievalPlan.from_json('{"hnt": ""}'), PlanError, "did you mean 'hint'"),
    "signal": (lambda: am.RetrievalPlan(weights={"dens": 1}), PlanError, "did you mean 'dense'"),
    "no filter": (lambda: am.retrieve("x", STORE, where={"user": "a"}), TypeError, r"Filter\(user='ann'\)"),
    "whole data set": (lambda: STORE.add(DATA), TypeError, "add one conversation at a time"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(mistake):
    make, kind, said = MISTAKES[mistake]
    with pytest.raises(kind, match=said):
        make()
