"""Solvers: order, scopes, what is learnt, runs that are killed at any moment, the contract, the columns."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server import Server, ok_json

from adaptmr.eval.report import tables
from adaptmr.eval.report.run_folder import drop_text_columns, redaction_problems
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.journal import Journal, JournalError
from adaptmr.eval.runner.repeated_times import time_systems
from adaptmr.eval.runner.rows import PLAN_COLUMNS
from adaptmr.eval.runner.saved_states import SavedStates
from adaptmr.files import RunNotice
from adaptmr.llm import LLM
from adaptmr.memory.team.steps import Step, Transcript
from adaptmr.reader import answer
from adaptmr.registry import Registered
from adaptmr.systems import base
from adaptmr.systems.base import Solution, Solver
from adaptmr.systems.contract import ContractError, check_solution
from adaptmr.types import Answer, Conversation, Dataset, Evidence, Hit, Memory, Question, Usage

CITIES = {"c2": "Oslo", "c0": "Lima", "c1": "Rome"}  # in an order that is none of the alphabet's
TALKS = [
    Conversation(
        id,
        ("Ann",),
        [
            Memory(f"{id}/1", f"I live in {city}.", "Ann", "2024-01-01", session="S1", source="S1:1"),
            Memory(f"{id}/2", "It is warm there.", "Ann", "2024-01-01", session="S1", step=1, source="S1:2"),
        ],
    )
    for id, city in CITIES.items()
]
ASKED = [
    Question(f"{id}/q{i}", text, [CITIES[id]], evidence=["S1:1"], conversation=id)
    for id in CITIES
    for i, text in enumerate((f"Where does Ann of {id} live?", f"And in {id} now?"))
]
DATA = Dataset("toy", TALKS, ASKED, sha256="toy", ours=True)
SCOPES = ("task", "run", "forever")


class Learner:
    """A solver whose every answer tells all that it remembers; `log` is a file for what happens to it."""

    name = "learner"

    def __init__(self, scope: str = "task", log: str = "", known: tuple[str, ...] = ()) -> None:
        self.scope, self.log, self.known = scope, log, known
        self.memory, self.turns = list(known), []
        self.events: list[tuple[Any, ...]] = []

    def note(self, *what: Any) -> None:
        self.events.append(what)
        if self.log:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(what) + "\n")

    def reset(self) -> None:
        self.note("reset")
        self.memory, self.turns = [], []

    def ingest(self, conversation: Conversation) -> Usage:
        self.note("ingest", conversation.id)
        self.memory.append(f"stored {conversation.id}")
        self.turns = [(m.id, m.text, m.source) for m in conversation.turns]
        return Usage(calls=1)

    def solve(self, question: Question) -> Solution:
        self.note("solve", question.text)
        if self.log:
            print(".", end="", flush=True)
        self.memory.append(f"asked {question.text}")
        id, text, source = self.turns[0]
        steps = (
            Step("Search", question.text, text, shown=(source,)),
            Step("Finish", " | ".join(self.memory), done=True),
        )
        hit = Hit(Memory(id, text, source=source), 1.0)
        usage = Usage(calls=2, prompt_tokens=30, completion_tokens=5)
        return Solution(
            Answer(" | ".join(self.memory)),
            Evidence([hit], usage=usage),
            Transcript(question.text, steps),
            {"turns": 2, "known": len(self.memory), "shown_tokens": 40},
            json.dumps([{"action": str(s), "observation": s.observation} for s in steps]),
        )

    def learn(self, question: Question, scores: Any) -> None:
        self.note("learn", question.text, dict(scores))
        self.memory.append(f"{question.text} gave {scores['f1']:.3f}")

    def save_state(self, path: Path) -> None:
        path.write_text(json.dumps([self.memory, self.turns]), encoding="utf-8")

    def load_state(self, path: Path) -> None:
        self.memory, self.turns = json.loads(path.read_text(encoding="utf-8"))


class Forgetful(Learner):
    """The same solver, which can't save what it knows."""

    save_state = load_state = None  # type: ignore[assignment]


def run(systems: Any, data: Dataset = DATA, **more: Any) -> pd.DataFrame:
    return evaluate(systems, data, embedder="hash", progress=False, **more)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=[c for c in frame.columns if c.startswith("ms_")])


def known(frame: pd.DataFrame) -> list[int]:
    return frame.loc[frame.system == "learner", "known"].astype(int).tolist()


def logged(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


# --- order and scope


def test_a_solver_of_one_conversation_is_emptied_before_each() -> None:
    solver = Learner("task")
    frame = run([solver])
    assert known(frame) == [2, 3, 2, 3, 2, 3], "what it stored, and the questions on this conversation"
    seen = [event[:2] for event in solver.events]
    for id in CITIES:
        assert ("reset",) in seen[: seen.index(("ingest", id))]
    assert [e[1] for e in seen if e[0] == "solve"] == [q.text for q in ASKED]
    assert solver.memory == [], "and it is emptied at the end"


def test_a_solver_of_a_run_is_emptied_once_and_remembers_all_questions_before() -> None:
    solver = Learner("run", known=("from before",))
    frame = run([solver])
    assert known(frame) == [2, 3, 5, 6, 8, 9] and solver.events.count(("reset",)) == 1
    assert solver.events[0] == ("reset",)
    assert frame.prediction.iloc[-1] == " | ".join(solver.memory), "what it learnt stays, to be looked at"


def test_a_solver_forever_is_never_emptied() -> None:
    solver = Learner("forever", known=("from before",))
    assert known(run([solver])) == [3, 4, 6, 7, 9, 10]
    assert ("reset",) not in solver.events
    assert known(run([solver])) == [12, 13, 15, 16, 18, 19], "the next run begins with what it knows"


def test_questions_come_in_the_order_of_the_data() -> None:
    solver = Learner("run")
    data = DATA.shuffled(seed=3)
    frame = run([solver], data)
    order = [c.id for c in data]
    assert order != [c.id for c in DATA]
    assert [e[1] for e in solver.events if e[0] == "ingest"] == order
    assert [e[1] for e in solver.events if e[0] == "solve"] == frame.text.tolist()
    assert list(frame.conversation.unique()) == order and known(frame) == [2, 3, 5, 6, 8, 9]


def test_one_question_at_a_time_even_where_a_model_allows_many() -> None:
    threads = set()

    class Watched(Learner):
        def solve(self, question: Question) -> Solution:
            threads.add(threading.current_thread())
            return super().solve(question)

    llm = SimpleNamespace(model="fake", is_offline=False, concurrency=4)
    assert known(run([Watched("run")], llm=llm)) == [2, 3, 5, 6, 8, 9]
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("scope", SCOPES)
def test_what_it_answers_beside_others_is_what_it_answers_alone(scope: str) -> None:
    alone = run([Learner(scope)])
    beside = run(["lexical", Learner(scope), "random"])
    mine = beside[beside.system == "learner"].reset_index(drop=True)
    shared = [c for c in plain(alone).columns if c in mine and c not in PLAN_COLUMNS]
    pd.testing.assert_frame_equal(plain(alone)[shared], plain(mine)[shared])
    others = run(["lexical", "random"])
    pd.testing.assert_frame_equal(
        plain(beside[beside.system != "learner"]).reset_index(drop=True)[plain(others).columns],
        plain(others),
    )


# --- gold stays out


def test_a_solver_sees_no_gold_and_no_id() -> None:
    seen = []

    class Curious(Learner):
        def solve(self, question: Question) -> Solution:
            seen.append(question)
            return super().solve(question)

        def learn(self, question: Question, scores: Any) -> None:
            seen.append(question)

        def prepare(self, questions: Any) -> None:
            seen.extend(questions)

    run([Curious()], train=[q.id for q in ASKED])
    assert len(seen) == 3 * len(ASKED) and set(map(type, seen)) == {Question}
    assert all(q == Question("", q.text, conversation=q.conversation) for q in seen)


def test_only_the_scores_of_training_questions_are_told() -> None:
    solver = Learner("run")
    train = {"c2/q1", "c1/q0"}
    frame = run([solver], train=train)
    told = [e[1:] for e in solver.events if e[0] == "learn"]
    marked = frame[frame.train]
    assert set(marked.question) == train and frame.train.dtype == bool
    assert told == [(r.text, {"f1": r.f1, "em": r.em}) for r in marked.itertuples()]
    events = [e[:2] for e in solver.events if e[0] in ("solve", "learn")]
    assert events.index(("learn", ASKED[1].text)) == events.index(("solve", ASKED[1].text)) + 1
    assert known(frame) == [2, 3, 6, 7, 9, 11], "what it was told, it remembers"


def test_nothing_is_told_without_training_questions_and_learn_is_optional() -> None:
    solver = Learner("run")
    run([solver])
    assert not [e for e in solver.events if e[0] == "learn"]

    class Unteachable(Learner):
        learn = None  # type: ignore[assignment]

    assert run([Unteachable("run")], train=["c2/q0"]).train.sum() == 1


def test_training_questions_must_exist() -> None:
    with pytest.raises(ValueError, match="train names 1 questions that the data lacks, such as 'c9/q0'"):
        run([Learner()], train=["c2/q0", "c9/q0"])


def test_what_learning_spends_is_in_its_row() -> None:
    class Reflecting(Learner):
        def learn(self, question: Question, scores: Any) -> None:
            answer(question.text, Evidence([Hit(TALKS[0].turns[0], 1.0)]), llm)

    with Server(ok_json({"answer": "Oslo", "abstain": False})) as server:
        llm = LLM("test-model", base_url=server.url, api_key="k")
        frame = run([Reflecting("run")], train=["c2/q1"])
    assert frame.calls.tolist() == [2, 3, 2, 2, 2, 2] and frame.prompt_tokens.iloc[1] > 30
    assert frame.ways.tolist() == ["", "answer:model", "", "", "", ""]


# --- runs that are killed

TRAIN = ("c2/q0", "c0/q1")
CHILD = """
import sys
sys.path.insert(0, {tests!r})
from test_solver import TRAIN, Learner, run
run(["lexical", Learner({scope!r}, {log!r}, ("from before",))], train=TRAIN, journal={journal!r})
"""


@pytest.mark.parametrize("scope", SCOPES)
def test_killed_and_resumed_it_gives_the_frame_of_a_run_that_was_not(scope: str, tmp_path: Path) -> None:
    whole = run(["lexical", Learner(scope, known=("from before",))], train=TRAIN)
    journal, log = tmp_path / "j.jsonl", tmp_path / "log"
    code = CHILD.format(tests=os.path.dirname(__file__), scope=scope, log=str(log), journal=str(journal))
    for dots in (2, 3):  # questions that are asked before the next kill
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.read(dots) == b"." * dots
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    frame = run(["lexical", Learner(scope, str(log), ("from before",))], train=TRAIN, journal=journal)
    pd.testing.assert_frame_equal(plain(frame), plain(whole))
    asked = Counter(e[1] for e in logged(log) if e[0] == "solve")
    assert set(asked) == {q.text for q in ASKED}
    assert sum(asked.values()) <= len(ASKED) + 2, "at each kill at most the question in hand is asked again"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["j.jsonl", "log"], "no state is left"


class Killed(BaseException):
    """As good as a SIGKILL: nothing in the package handles it."""


@contextmanager
def dying_at(write: int) -> Iterator[list[str]]:
    """Die before the n-th time that a state is saved, a row is written, or a state is deleted."""
    done: list[str] = []
    writes = ((SavedStates, "save"), (Journal, "put"), (SavedStates, "discard"), (Journal, "forget"))

    def counted(name: str, write_it: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if len(done) == write:
                raise Killed
            done.append(name)
            return write_it(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in writes:
            patch.setattr(owner, name, counted(name, getattr(owner, name)))
        yield done


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long in a start and changes no row: hashing the code, waiting for the disk."""
    monkeypatch.setattr("adaptmr.eval.runner.evaluate.code_sha256", lambda: "")
    monkeypatch.setattr("adaptmr.eval.runner.evaluate.user_code_hashes", lambda *_, **__: {})
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "make, scope",
    [(Learner, "task"), (Learner, "run"), (Learner, "forever"), (Forgetful, "task"), (Forgetful, "run")],
)
def test_between_any_two_writes_it_may_be_killed(make: Any, scope: str, tmp_path: Path) -> None:
    data = replace(DATA, conversations=TALKS[:2], questions=ASKED[:4])
    whole = plain(run([make(scope)], data, train=TRAIN))
    with dying_at(10**9) as done:
        run([make(scope)], data, train=TRAIN, journal=tmp_path / "whole")
    assert {"save", "put"} <= set(done)
    for n in range(len(done)):
        journal = tmp_path / f"{n}.jsonl"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunNotice)
            for later in (0, 3):  # killed there, and a little later again
                with dying_at(n + later), pytest.raises(Killed):
                    run([make(scope)], data, train=TRAIN, journal=journal)
                    raise Killed  # it was over before
            frame = run([make(scope)], data, train=TRAIN, journal=journal)
        pd.testing.assert_frame_equal(plain(frame), whole)
    assert not list(tmp_path.glob("*.states"))


class Fragile(Learner):
    """Fails at its n-th question."""

    left = 10**9

    def solve(self, question: Question) -> Solution:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the server is gone")
        return super().solve(question)


class FragileForgetful(Fragile):
    save_state = load_state = None  # type: ignore[assignment]


def interrupted(solver: Fragile, journal: Path, after: int) -> None:
    solver.left = after
    with pytest.raises(ConnectionError):
        run([solver], journal=journal)
    solver.left = 10**9


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("after", range(len(ASKED)))
def test_stopped_at_any_question_only_what_is_left_is_asked(scope: str, after: int, tmp_path: Path) -> None:
    whole = run([Fragile(scope)])
    interrupted(Fragile(scope), tmp_path / "j", after)
    again = Fragile(scope)
    frame = run([again], journal=tmp_path / "j")
    pd.testing.assert_frame_equal(plain(frame), plain(whole))
    assert [e[1] for e in again.events if e[0] == "solve"] == [q.text for q in ASKED[after:]]
    stored = {e[1] for e in again.events if e[0] == "ingest"}
    assert stored == {q.conversation for q in ASKED[after:]} - {ASKED[after].conversation}
    assert [i["calls"] for i in frame.attrs["ingest"]] == [1, 1, 1]


def test_the_same_object_goes_on_where_it_failed(tmp_path: Path) -> None:
    solver = Fragile("run")
    interrupted(solver, tmp_path / "j", 3)
    solver.memory.append("something from elsewhere")
    frame = run([solver], journal=tmp_path / "j")
    pd.testing.assert_frame_equal(plain(frame), plain(run([Fragile("run")])))


@pytest.mark.parametrize("scope, asked_again", [("task", ASKED[2:]), ("run", ASKED)])
def test_without_a_saved_state_it_is_asked_again_from_the_first_question_of_its_scope(
    scope: str, asked_again: list[Question], tmp_path: Path
) -> None:
    interrupted(FragileForgetful(scope), tmp_path / "j", 3)
    again = FragileForgetful(scope)
    with pytest.warns(RunNotice, match="the state of .learner. after its .* steps was not saved"):
        frame = run([again], journal=tmp_path / "j")
    assert [e[1] for e in again.events if e[0] == "solve"] == [q.text for q in asked_again]
    pd.testing.assert_frame_equal(plain(frame), plain(run([Fragile(scope)])))


@pytest.mark.parametrize("scope", SCOPES)
def test_a_damaged_state_is_named_and_it_begins_again_with_what_it_knew(scope: str, tmp_path: Path) -> None:
    whole = run([Fragile(scope, known=("from before",))])
    interrupted(Fragile(scope, known=("from before",)), tmp_path / "j", 3)
    rows = {json.loads(line)["key"] for line in (tmp_path / "j").read_text().splitlines()[1:]}
    states = SavedStates(
        tmp_path / "j.states", json.loads((tmp_path / "j").read_text().split("\n")[0])["run"]
    )
    (latest,) = states._files(f"{states._key('learner', 'learner/c0/c0/q0')}-*.state")
    latest.write_bytes(latest.read_bytes()[:-1])
    assert "learner/c0/c0/q0" in rows
    again = Fragile(scope, known=("from before",))
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        frame = run([again], journal=tmp_path / "j")
    said = [str(n.message) for n in notices if issubclass(n.category, RunNotice)]
    assert len(said) == 1 and "it is damaged" in said[0] and "from the first one of its scope" in said[0]
    pd.testing.assert_frame_equal(plain(frame), plain(whole))
    assert not (tmp_path / "j.states").exists()


def test_a_finished_run_is_read_from_its_journal(tmp_path: Path) -> None:
    first = run([Learner("run")], train=TRAIN, journal=tmp_path / "j")
    again = Learner("run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = run([again], train=TRAIN, journal=tmp_path / "j")
    pd.testing.assert_frame_equal(frame, first)
    assert not [e for e in again.events if e[0] in ("solve", "ingest")]


# --- what identifies a run


def test_what_a_solver_knows_at_the_beginning_identifies_the_run(tmp_path: Path) -> None:
    run([Learner("forever")], journal=tmp_path / "j")
    wiser = Learner("forever")
    wiser.memory.append("from another run")
    with pytest.raises(JournalError, match="belongs to another run"):
        run([wiser], journal=tmp_path / "j")
    wiser = Learner("run")
    run([wiser], journal=tmp_path / "k")
    wiser.memory.append("from another run")
    run([wiser], journal=tmp_path / "k")


def test_training_questions_identify_the_run(tmp_path: Path) -> None:
    run([Learner()], train=["c2/q0"], journal=tmp_path / "j")
    with pytest.raises(JournalError, match="belongs to another run"):
        run([Learner()], train=["c2/q1"], journal=tmp_path / "j")


def test_remembering_forever_needs_a_state_that_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'learner' remembers from run to run.*give it save_state"):
        run([Forgetful("forever")], journal=tmp_path / "j")
    assert not (tmp_path / "j").exists()
    assert len(run([Forgetful("forever")])) == len(ASKED), "without a journal there is nothing to identify"


def test_runs_without_solvers_have_the_identity_that_they_had(tmp_path: Path) -> None:
    run(["lexical"], journal=tmp_path / "j")
    identity = json.loads((tmp_path / "j").read_text().split("\n")[0])["run"]
    assert set(identity) == set("systems data texts code model k embedder seed own".split())


# --- the contract

GOOD = Solution(Answer("Oslo"), Evidence([Hit(TALKS[0].turns[0], 1.0)]), Transcript("Where?"), {"turns": 1})


class Theirs:
    """A solver with the four members of the protocol, which returns what it is given."""

    name = "theirs"

    def __init__(self, solution: Any = GOOD) -> None:
        self.solution = solution

    def reset(self) -> None:
        pass

    def ingest(self, conversation: Conversation) -> Usage:
        return Usage()

    def solve(self, question: Question) -> Any:
        return self.solution


@pytest.mark.parametrize(
    "solution, said",
    [
        (Answer("Oslo"), "it returned a Answer, not a Solution"),
        (None, "it returned a NoneType, not a Solution"),
        (replace(GOOD, answer="Oslo"), "answer is a str, not an Answer"),
        (replace(GOOD, answer=Answer("x", None)), "answer.abstained is None"),
        (replace(GOOD, answer=Answer("x", usage=Usage(calls=-1))), "usage.calls=-1"),
        (replace(GOOD, evidence=[]), "evidence is a list, not an Evidence"),
        (
            replace(GOOD, evidence=Evidence([Hit(Memory("elsewhere", "x"), 1.0)])),
            "1 hits are no turns of the conversation: 'elsewhere'",
        ),
        (replace(GOOD, evidence=Evidence(usage=Usage(prompt_tokens=-1))), "usage.prompt_tokens=-1"),
        (replace(GOOD, transcript="Search[x]"), "transcript is a str, not a Transcript"),
        (replace(GOOD, counts=[1]), "counts is a list, not a mapping"),
        (replace(GOOD, counts={"turns": math.nan}), r"counts\['turns'\]=nan must be a finite number"),
        (replace(GOOD, counts={"turns": "3"}), r"counts\['turns'\]='3' must be a finite number"),
        (replace(GOOD, counts={3: 3}), r"counts\[3\]=3 must be a finite number, and its name a string"),
        (replace(GOOD, counts={"f1": 1}), "names of columns that every row has: 'f1'; rename"),
        (replace(GOOD, counts={"train": 1}), "columns that every row has: 'train'"),
        (replace(GOOD, counts={"ms_ingest": 1}), "columns that every row has: 'ms_ingest'"),
        (replace(GOOD, record=["turn"]), "record is a list, not a string"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_solver_that_returns_something_else_is_named_with_the_question(solution: Any, said: str) -> None:
    with pytest.raises(ContractError, match=rf"^system 'theirs', question 'c2/q0': .*{said}"):
        run([Theirs(solution)], replace(DATA, conversations=TALKS[:1], questions=ASKED[:2]))


def test_all_that_is_wrong_is_said_at_once_and_a_good_solution_passes() -> None:
    with pytest.raises(ContractError) as error:
        check_solution(Theirs(), replace(GOOD, answer=1, counts=2, record=3), {"S1:1"}, "q")
    assert all(part in str(error.value) for part in ("answer is", "counts is", "record is"))
    assert check_solution(Theirs(), GOOD, {"S1:1"}) is GOOD and isinstance(Theirs(), Solver)


def test_a_solver_with_the_four_members_alone_is_evaluated_and_not_held_to_k() -> None:
    both = replace(GOOD, evidence=Evidence([Hit(m, 1.0) for m in TALKS[0].turns]))
    frame = run([Theirs(both)], replace(DATA, conversations=TALKS[:1], questions=ASKED[:2]), k=1)
    assert frame.hits.tolist() == [2, 2] and frame.em.tolist() == [1.0, 1.0]
    assert frame.recall_fraction.tolist() == [1.0, 1.0] and not frame.unlimited.any()


@pytest.mark.parametrize(
    "members, said",
    [
        ({"scope": "week"}, "scope='week' must be one of task, run, forever"),
        ({"oracle": True, "name": "oracle_theirs"}, "a solver gets no gold fields"),
        ({"solve": None, "retrieve": print, "scope": "run"}, "scope and learn are for a solver"),
        ({"solve": None, "retrieve": print, "learn": print}, "scope and learn are for a solver"),
        ({"solve": None}, r"it lacks retrieve\(\)"),
        ({"ingest": None}, r"it lacks ingest\(\)"),
    ],
)
def test_members_that_do_not_go_together_are_refused_before_anything_runs(
    members: dict[str, Any], said: str, tmp_path: Path
) -> None:
    theirs = Theirs()
    for name, value in members.items():
        setattr(theirs, name, value)
    with pytest.raises(ContractError, match=said):
        run([theirs], journal=tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_solving_may_change_the_state_and_preparing_may_not() -> None:
    class Versioned(Learner):
        def state_version(self) -> int:
            return len(self.memory)

    assert known(run([Versioned("run")])) == [2, 3, 5, 6, 8, 9]

    class Preparing(Versioned):
        def prepare(self, questions: Any) -> None:
            self.memory.append("prepared")

    with pytest.raises(ContractError, match="its state changed from 1 to 2"):
        run([Preparing("run")])


# --- the columns


def test_columns_of_solvers_are_there_where_a_run_has_solvers() -> None:
    plain_columns = list(run(["lexical"]).columns)
    assert not {"turns", "known", "train", "transcript"} & set(plain_columns)
    frame = run(["lexical", Learner()], train=["c0/q0"])
    assert set(frame.columns) - set(plain_columns) == {
        "train",
        "turns",
        "known",
        "shown_tokens",
        "transcript",
        "ingest_calls",
        "ingest_prompt_tokens",
        "ingest_completion_tokens",
        "ingest_cost_usd",
    }
    assert list(frame.columns[-5:]) == ["train", "turns", "known", "shown_tokens", "transcript"]
    assert list(run([Learner(), "lexical"]).columns) == list(frame.columns), "whichever is asked first"
    lexical, mine = (frame[frame.system == name] for name in ("lexical", "learner"))
    assert lexical[["turns", "known"]].isna().all(axis=None) and (lexical.transcript == "").all()
    assert mine.turns.tolist() == [2.0] * 6 and frame.turns.dtype == frame.known.dtype == float
    assert frame.train.tolist() == [q.id == "c0/q0" for q in ASKED] * 2
    assert json.loads(mine.transcript.iloc[0])[0]["observation"] == "I live in Oslo."
    assert "solved" not in frame
    assert list(run(["lexical"], train=["c0/q0"]).columns[-1:]) == ["train"], "retrieval on the same split"


def test_the_cost_of_a_solver_is_that_of_all_its_players() -> None:
    frame = run([Learner()])
    assert (frame[["calls", "retrieval_calls"]] == 2).all(axis=None)
    assert (frame.prompt_tokens == 30).all() and (frame.retrieval_tokens == 35).all()
    assert (frame.ms_answer == 0).all() and (frame.ms_retrieve > 0).all() and (frame.ingest_calls == 1).all()
    assert frame.retrieved.tolist() == ["S1:1"] * 6 and (frame.context_tokens > 0).all()
    both = replace(GOOD, answer=Answer("Oslo", usage=Usage(calls=3)), evidence=Evidence(usage=Usage(calls=1)))
    assert run([Theirs(both)]).calls.tolist() == [4] * 6


def test_another_solver_may_have_the_tokens_that_its_players_were_shown() -> None:
    class Matched(Theirs):
        name, matches = "matched", "learner"

        def match(self, tokens: Any) -> None:
            given.append(dict(tokens))

    given: list[dict[str, int]] = []
    run([Learner(), Matched()])
    assert given == [{q.text: 40 for q in DATA.questions_on(c)} for c in CITIES]
    with pytest.raises(ValueError, match="put 'learner' before 'matched'"):
        run([Matched(), Learner()])


def test_a_redacted_run_holds_no_transcript() -> None:
    frame = run(["lexical", Learner()], train=["c0/q0"])
    assert redaction_problems(frame[["transcript"]]) == [
        "column 'transcript' holds text and isn't on the list of what may be published"
    ]
    safe = drop_text_columns(frame)
    assert "transcript" in safe.attrs["dropped"] and {"turns", "known", "train"} <= set(safe.columns)
    assert "Oslo" not in safe.to_csv()


def test_reports_take_frames_with_counts_that_some_systems_lack() -> None:
    frame = run(["lexical", Learner()], train=["c0/q0"])
    for table in (tables.overview_table(frame), tables.main_table(frame), tables.system_costs(frame)):
        assert len(table) > 0 and "learner" in table.to_csv()
    assert tables.unlimited_line(frame) == ""


# --- HotpotQA's official scores


def test_hotpotqas_official_scores_are_columns_of_its_own_data() -> None:
    asked = [Question("q", "Where?", ["Oslo, Norway"], evidence=["S1:1", "S1:2"], conversation="c2")]
    data = Dataset("hotpotqa", TALKS[:1], asked)
    told: list[Any] = []

    class Told(Theirs):
        def learn(self, question: Question, scores: Any) -> None:
            told.append(scores)

    frame = run(["lexical", Told()], data, k=2, train=["q"])
    found, row = frame.iloc[0], frame.iloc[1]
    # the solver says Oslo (precision 1, recall 1/2) and was shown one of the two sentences
    assert (row.em, row.f1) == (0.0, pytest.approx(2 / 3))
    assert (row.sp_em, row.sp_precision, row.sp_recall) == (0.0, 1.0, 0.5)
    assert row.sp_f1 == pytest.approx(2 / 3)
    # jointly: precision 1 · 1, recall 1/2 · 1/2
    assert row.joint_em == 0.0 and row.joint_f1 == pytest.approx(2 * 0.25 / 1.25)
    assert (found.sp_em, found.sp_f1) == (1.0, 1.0), "of both sentences that lexical returned"
    names = "f1 em sp_em sp_precision sp_recall sp_f1 joint_em joint_f1".split()
    assert told == [{name: row[name] for name in names}]
    assert not {"sp_f1", "joint_f1"} & set(run(["lexical"]).columns)


def test_a_question_without_an_answer_has_scores_too() -> None:
    asked = [Question("q", "Where is Bob?", [], "abstention", answerable=False, conversation="c2")]
    frame = run(["lexical", Theirs()], Dataset("toy", TALKS[:1], asked), train=["q"])
    solved = frame.iloc[1]
    assert (solved.em, solved.f1, solved.abstained) == (0.0, 0.0, False), "it answered"
    refused = Theirs(replace(GOOD, answer=Answer("", abstained=True)))
    assert run([refused], Dataset("toy", TALKS[:1], asked)).em.tolist() == [1.0]


# --- orders and training questions


@given(st.integers(0, 40), st.integers(), st.integers(), st.floats(0, 1))
def test_orders_and_splits_depend_on_ids_and_seed_alone(n: int, seed: int, other: int, share: float) -> None:
    talks = [Conversation(f"c{i}") for i in range(n)]
    asked = [Question(f"q{i}{j}", "Where?", conversation=f"c{i}") for i in range(n) for j in "ab"]
    data = Dataset("toy", talks, asked)
    order = data.shuffled(seed)
    assert sorted(c.id for c in order) == sorted(c.id for c in data) and order.questions == asked
    assert data.shuffled(other).shuffled(seed) == order, "not on the order before"
    train = data.training_questions(share, seed)
    assert train == order.training_questions(share, seed) and len(train) == 2 * round(share * n)
    of = {q.conversation for q in asked if q.id in train}
    assert train == {q.id for q in asked if q.conversation in of}, "whole conversations"
    assert data.training_questions(share / 2, seed) <= train


def test_five_seeds_give_five_orders_and_splits() -> None:
    talks = [Conversation(f"c{i}") for i in range(50)]
    data = Dataset("toy", talks, [Question(f"q{i}", "Where?", conversation=f"c{i}") for i in range(50)])
    assert len({tuple(c.id for c in data.shuffled(seed)) for seed in range(5)}) == 5
    assert len({data.training_questions(0.5, seed) for seed in range(5)}) == 5
    with pytest.raises(ValueError, match=r"share 1.5 of the conversations must lie in 0..1"):
        data.training_questions(1.5, 0)


# --- what is for systems that retrieve


def test_a_solver_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Registered(lambda **_: Learner(), "a test's", __name__, "learner", "team")
    monkeypatch.setitem(base.SYSTEMS.entries, "learner", learner)
    with pytest.raises(ValueError, match=r"solvers can't be timed again.*\['learner'\]"):
        time_systems(run(["lexical", "learner"]), DATA, embedder="hash")


@pytest.mark.parametrize("scope", SCOPES)
def test_a_solver_is_asked_by_its_name_too(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make(*, embedder: Any, **_: Any) -> Learner:
        made.append(embedder if isinstance(embedder, str) else embedder.name)
        return Learner(scope)

    learner = Registered(make, "a test's", __name__, "learner", "team")
    monkeypatch.setitem(base.SYSTEMS.entries, "learner", learner)
    frame = run(["learner"])
    pd.testing.assert_frame_equal(plain(frame), plain(run([Learner(scope)])))
    assert "learner" in base.known_systems("team") and set(made) == {"hash"}
