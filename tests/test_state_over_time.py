"""Systems with a state: they observe turn by turn, questions change nothing, and a resumed run keeps it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.filling import ingest_conversation
from adaptmr.eval.runner.saved_states import SavedStates
from adaptmr.files import RunNotice
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


def without_times(frame):
    return frame.drop(columns=[c for c in frame.columns if c.startswith("ms_")])


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


def test_ingesting_at_once_and_observing_give_the_same_memory():
    at_once, observed = Remembering(), Remembering()
    cost = at_once.ingest(TALK)
    assert ingest_conversation(observed, TALK).calls == cost.calls == 8
    assert at_once.turns == observed.turns


def test_a_system_without_observe_gets_the_whole_conversation():
    class Plain(Remembering):
        observe = None

        def ingest(self, conversation):
            self.turns = list(conversation.turns)
            return Usage()

    system = Plain()
    run([system])
    assert [what for what, *_ in system.log] == ["ask"] * 3


def test_what_observe_returns_is_checked():
    class Careless(Remembering):
        def observe(self, turn):
            return None

        def ingest(self, conversation):
            return Usage()

    with pytest.raises(ContractError, match="'remembering', observe: the usage is a NoneType"):
        run([Careless()])


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
    system = Promoting()
    said = r"'promoting', question 'q0': its state changed from \(4, 0\) to"
    with pytest.raises(ContractError, match=said):
        run([system])
    assert system.hits == 1, "at the first question"


def test_preparing_questions_may_change_nothing_either():
    class Preparing(Promoting):
        def prepare(self, questions):
            self.hits += len(questions)

    with pytest.raises(ContractError, match=r"'promoting': its state changed from \(4, 0\) to \(4, 3\)"):
        run([Preparing()])


def test_a_system_that_does_not_say_its_state_is_not_checked():
    class Silent(Promoting):
        state_version = None

    assert len(run([Silent()])) == 3


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


class Paying:
    """A system whose ingestion is dear: it logs each, and each question, in a file; it can save its state."""

    name = "paying"

    def __init__(self, log=""):
        self.log, self.turns = log, []

    def note(self, *what):
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    def reset(self):
        self.turns = []

    def ingest(self, conversation):
        self.note("ingest", conversation.id)
        self.turns = list(conversation.turns)
        return Usage(calls=len(self.turns), prompt_tokens=7)

    def save_state(self, path):
        path.write_text(json.dumps([m.id for m in self.turns]), encoding="utf-8")

    def load_state(self, path):
        self.note("load")
        known = {m.id: m for c in am.load("demo", split="en1,zh2") for m in c.turns}
        self.turns = [known[id] for id in json.loads(path.read_text(encoding="utf-8"))]

    def retrieve(self, question, k):
        self.note("ask", question.conversation, question.text)
        print(".", end="", flush=True)
        return Evidence([Hit(m, 1.0) for m in self.turns[:k]])


class Fragile(Paying):
    """Fails at its n-th question."""

    left = 10**9

    def retrieve(self, question, k):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the server is gone")
        return super().retrieve(question, k)


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split="en1,zh2", limit=12)


def logged(path):
    return [tuple(json.loads(line)) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def interrupted(data, folder, after):
    """Run until a question fails; return the journal."""
    fragile = Fragile(str(folder / "log"))
    fragile.left = after
    with pytest.raises(ConnectionError):
        run([fragile], data, journal=folder / "j.jsonl")
    return folder / "j.jsonl"


@pytest.mark.parametrize("after", [0, 3, 8])
def test_a_resumed_run_ingests_nothing_again(after, data, tmp_path):
    whole = run([Fragile(str(tmp_path / "whole"))], data)
    journal = interrupted(data, tmp_path, after)
    frame = run([Fragile(str(tmp_path / "log"))], data, journal=journal)
    log = logged(tmp_path / "log")
    assert Counter(e for e in log if e[0] == "ingest") == {("ingest", c.id): 1 for c in data.conversations}
    assert log.count(("load",)) == 1 and len([e for e in log if e[0] == "ask"]) == len(data.questions)
    pd.testing.assert_frame_equal(without_times(frame), without_times(whole))
    assert [i["calls"] for i in frame.attrs["ingest"]] == [len(c) for c in data.conversations]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["j.jsonl", "log", "whole"], "no state is left"


def test_a_state_is_only_there_while_it_is_needed(data, tmp_path):
    journal = interrupted(data, tmp_path, 8)
    (state,) = (tmp_path / "j.jsonl.states").iterdir()
    assert state.suffix == ".state", "of the second conversation: the first one's questions are answered"
    assert journal.exists()


def test_a_damaged_state_is_named_and_the_conversation_ingested_again(data, tmp_path):
    journal = interrupted(data, tmp_path, 3)
    (state,) = (tmp_path / "j.jsonl.states").iterdir()
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.warns(RunNotice, match="'paying' on 'en1'.*is not used: it is damaged"):
        frame = run([Fragile(str(tmp_path / "log"))], data, journal=journal)
    assert logged(tmp_path / "log").count(("ingest", "en1")) == 2 and len(frame) == len(data.questions)
    assert not (tmp_path / "j.jsonl.states").exists()


def test_a_state_that_the_system_refuses_is_named_and_other_errors_are_raised(tmp_path):
    class Choosy(Remembering):
        error = ValueError("an older format")

        def save_state(self, path):
            path.write_text("x", encoding="utf-8")

        def load_state(self, path):
            self.turns = ["half"]
            raise self.error

    states = SavedStates(tmp_path / "s", {"k": 1})
    states.save(Choosy(), "c")
    with pytest.warns(RunNotice, match="not used: ValueError: an older format"):
        assert not states.load(Choosy(), "c")
    assert not states.load(Choosy(), "c"), "the file is gone"
    states.save(Choosy(), "c")
    Choosy.error = ZeroDivisionError("a fault of the system")
    with pytest.raises(ZeroDivisionError):
        states.load(Choosy(), "c")


def test_a_state_of_another_run_is_not_found(data, tmp_path):
    folder = tmp_path / "s"
    system = Paying(str(tmp_path / "log"))
    system.turns = list(data.conversations[0].turns)
    mine, other = SavedStates(folder, {"code": "a"}), SavedStates(folder, {"code": "b"})
    mine.save(system, "en1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not other.load(system, "en1") and not mine.load(system, "zh2")
    other.discard("paying", "en1")
    assert mine.load(Paying(str(tmp_path / "log")), "en1")
    nowhere = SavedStates(None, {})
    nowhere.save(system, "en1")
    assert not nowhere.load(system, "en1")


def test_a_second_state_replaces_the_first_and_a_killed_write_leaves_nothing(tmp_path):
    folder = tmp_path / "s"
    system = Paying(str(tmp_path / "log"))
    states = SavedStates(folder, {})
    for n in (1, 2):
        system.turns = TURNS[:n]
        states.save(system, "c")
    (only,) = folder.iterdir()
    assert only.read_text(encoding="utf-8") == json.dumps(["c/0", "c/1"])
    (folder / ".part-killed").mkdir()
    (folder / ".part-killed" / "state").write_text("half", encoding="utf-8")
    SavedStates(folder, {})
    assert list(folder.iterdir()) == [only]


def test_a_system_that_writes_nothing_is_an_error(tmp_path):
    class Idle(Remembering):
        def save_state(self, path):
            pass

    with pytest.raises(ValueError, match="'remembering': save_state wrote no file"):
        SavedStates(tmp_path / "s", {}).save(Idle(), "c")


def test_what_ingesting_cost_is_measured_once(data, tmp_path):
    """A system that can't save is ingested again, and the first price stands."""

    class Cheaper(Fragile):
        save_state = load_state = None
        price = 9

        def ingest(self, conversation):
            super().ingest(conversation)
            return Usage(calls=self.price)

    first, again = Cheaper(str(tmp_path / "log")), Cheaper(str(tmp_path / "log"))
    first.left = 3
    with pytest.raises(ConnectionError):
        run([first], data, journal=tmp_path / "j")
    again.price = 1
    frame = run([again], data, journal=tmp_path / "j")
    assert logged(tmp_path / "log").count(("ingest", "en1")) == 2
    assert [i["calls"] for i in frame.attrs["ingest"]] == [9, 1]


CHILD = """
import sys
sys.path.insert(0, {tests!r})
import adaptmr as am
from test_state_over_time import Paying, run
run([Paying({log!r})], am.load("demo", split="en1,zh2", limit=12), journal={journal!r})
"""


def test_killed_and_resumed_each_conversation_is_ingested_once(data, tmp_path):
    journal, log = tmp_path / "j.jsonl", tmp_path / "log"
    code = CHILD.format(tests=os.path.dirname(__file__), log=str(log), journal=str(journal))
    for dots in (2, 1, 4):  # questions that are asked before the next kill
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        with child.stdout:
            assert child.stdout.read(dots) == b"." * dots
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    run([Paying(str(log))], data, journal=journal)
    ingested = Counter(e for e in logged(log) if e[0] == "ingest")
    assert ingested == {("ingest", c.id): 1 for c in data.conversations}
    asked = {e for e in logged(log) if e[0] == "ask"}
    assert len(asked) == len(data.questions)
