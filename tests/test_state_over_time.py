"""Systems with a state: they observe turn by turn, questions change nothing, and a resumed run keeps it."""

from __future__ import annotations

import pytest

import adaptmr as am
from adaptmr.eval.runner.asking import ingest_conversation
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.planning.qarp import QARP
from adaptmr.systems.base import get_capabilities, make_system
from adaptmr.systems.contract import ContractError
from adaptmr.systems.own import WrappedSystem
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, Question, Usage

TURNS = [
    Memory(f"c/{i}", f"Turn {i} of Ann.", "Ann", "2024-01-01", session="S1", step=i, source=f"S1:{i}")
    for i in range(4)
]
TALK = Conversation("c", ("Ann", "Bob"), TURNS)
ASKED = [
    Question(f"q{i}", f"What did Ann say, {i}?", ["Turn"], evidence=[f"S1:{i}"], conversation="c")
    for i in range(3)
]
DATA = Dataset("toy", [TALK], ASKED)


class Remembering:
    """A system that observes: it logs what happens, in order, and returns the last turns."""

    name = "remembering"

    def __init__(self):
        self.turns, self.log = [], []

    def reset(self):
        self.turns = []

    def ingest(self, conversation):
        self.log.append(("ingest", conversation.id, conversation.speakers, len(conversation)))
        return sum((self.observe(turn) for turn in conversation.turns), Usage())

    def observe(self, turn):
        self.turns.append(turn)
        self.log.append(("observe", turn.source))
        return Usage(calls=2, prompt_tokens=10, completion_tokens=1, cost_usd=0.5)

    def state_version(self):
        return len(self.turns)

    def retrieve(self, question, k):
        self.log.append(("ask", question.text))
        return Evidence([Hit(m, float(m.step)) for m in reversed(self.turns)][:k])


def run(systems, data=DATA, **more):
    return evaluate(systems, data, embedder="hash", progress=False, **more)


# --- observing


def test_a_system_observes_every_turn_once_in_order_then_the_questions_come():
    system = Remembering()
    frame = run([system], k=2)
    assert system.log == [
        ("ingest", "c", ("Ann", "Bob"), 0),
        *(("observe", f"S1:{i}") for i in range(4)),
        *(("ask", q.text) for q in ASKED),
    ]
    (cost,) = frame.attrs["ingest"]
    assert (cost["turns"], cost["calls"], cost["prompt_tokens"], cost["cost_usd"]) == (4, 8, 40, 2.0)
    assert cost["seconds"] > 0 and set(frame.retrieved) == {"S1:3 S1:2"}


def test_a_plan_over_an_observing_system_lets_it_observe():
    inner = Remembering()
    wrapped = WrappedSystem(inner, QARP(), embedder="hash")
    frame = run([wrapped], k=2)
    assert inner.log[:5] == [("ingest", "c", ("Ann", "Bob"), 0), *(("observe", f"S1:{i}") for i in range(4))]
    assert frame.attrs["ingest"][0]["calls"] == 8 and wrapped.state_version() == (0, 0), "reset when done"
    plain = WrappedSystem(make_system("lexical", embedder="hash"), QARP(), embedder="hash")
    assert get_capabilities(plain).observe is None


# --- questions change nothing


class Promoting(Remembering):
    """A bad system: a question promotes what it finds, as if a user had asked."""

    name, hits = "promoting", 0

    def state_version(self):
        return len(self.turns), self.hits

    def retrieve(self, question, k):
        self.hits += 1
        return super().retrieve(question, k)


def test_a_system_that_a_question_changes_is_refused():
    class Preparing(Promoting):
        def prepare(self, questions):
            self.hits += len(questions)

    class Silent(Promoting):
        state_version = None

    system = Promoting()
    with pytest.raises(
        ContractError, match=r"'promoting', question 'q0': its state changed from \(4, 0\) to"
    ):
        run([system])
    assert system.hits == 1, "at the first question"
    with pytest.raises(ContractError, match=r"'promoting': its state changed from \(4, 0\) to \(4, 3\)"):
        run([Preparing()])
    assert len(run([Silent()])) == 3, "one that does not say its state is not checked"


@pytest.mark.parametrize("name", ["unified", "lexical", "hybrid", "adaptmr", "qarp", "multi_round"])
def test_questions_leave_our_systems_as_they_are(name):
    system = make_system(name, embedder="hash")
    ingest_conversation(system, TALK)
    before = get_capabilities(system).state_version()
    for question in ASKED:
        system.retrieve(question.blind(), 2)
    assert get_capabilities(system).state_version() == before is not None
    system.store.add([Memory("c/9", "Something new.", "Ann", source="S1:9")])
    assert get_capabilities(system).state_version() != before, "and the version would have told"


# --- an interrupted run


def test_what_ingesting_cost_is_measured_once(tmp_path):
    """A resumed run ingests again, and the first price stands."""

    class Paying(Remembering):
        name, observe, left, price = "paying", None, 10**9, 9

        def ingest(self, conversation):
            self.turns = list(conversation.turns)
            self.log.append(conversation.id)
            return Usage(calls=self.price)

        def retrieve(self, question, k):
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("the server is gone")
            return super().retrieve(question, k)

    data, first, again = am.load("demo", split="en1,zh2", limit=12), Paying(), Paying()
    first.left, again.price = 3, 1
    with pytest.raises(ConnectionError):
        run([first], data, journal=tmp_path / "j")
    frame = run([again], data, journal=tmp_path / "j")
    assert [x for x in (*first.log, *again.log) if isinstance(x, str)] == ["en1", "en1", "zh2"]
    assert [i["calls"] for i in frame.attrs["ingest"]] == [9, 1]


def test_a_system_without_observe_gets_the_whole_conversation_and_what_observe_returns_is_checked():
    class Plain(Remembering):
        observe = None

        def ingest(self, conversation):
            self.turns = list(conversation.turns)
            return Usage()

    class Careless(Remembering):
        def observe(self, turn):
            return None

        def ingest(self, conversation):
            return Usage()

    system = Plain()
    run([system])
    assert [what for what, *_ in system.log] == ["ask"] * 3
    with pytest.raises(ContractError, match="'remembering', observe: the usage is a NoneType"):
        run([Careless()])
