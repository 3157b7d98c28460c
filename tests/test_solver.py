"""Solvers: order, scopes, what is learnt, runs that are killed at any moment, the contract, the columns."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from server import Server, ok_json

from adaptmr.eval.report.run_folder import drop_text_columns, redaction_problems
from adaptmr.eval.runner.asking import PLAN_COLUMNS
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.timings import time_systems
from adaptmr.files import RunNotice
from adaptmr.llm import LLM
from adaptmr.memory.team.steps import TeamStep, Transcript
from adaptmr.reader import answer
from adaptmr.registry import Registered
from adaptmr.systems import base
from adaptmr.systems.base import Solution
from adaptmr.systems.contract import ContractError
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
SCOPES = ("task", "run")


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
            TeamStep("Search", question.text, text, shown=(source,)),
            TeamStep("Finish", " | ".join(self.memory), done=True),
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


def run(systems: Any, data: Dataset = DATA, **more: Any) -> pd.DataFrame:
    return evaluate(systems, data, embedder="hash", progress=False, **more)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=[c for c in frame.columns if c.startswith("ms_")])


def known(frame: pd.DataFrame) -> list[int]:
    return frame.loc[frame.system == "learner", "known"].astype(int).tolist()


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


def test_what_learning_spends_is_in_its_row() -> None:
    class Reflecting(Learner):
        def learn(self, question: Question, scores: Any) -> None:
            answer(question.text, Evidence([Hit(TALKS[0].turns[0], 1.0)]), llm)

    with Server(ok_json({"answer": "Oslo", "abstain": False})) as server:
        llm = LLM("test-model", base_url=server.url, api_key="k")
        frame = run([Reflecting("run")], train=["c2/q1"])
    assert frame.calls.tolist() == [2, 3, 2, 2, 2, 2] and frame.prompt_tokens.iloc[1] > 30
    assert frame.ways.tolist() == ["", "answer:model", "", "", "", ""]


# --- runs that are interrupted

TRAIN = ("c2/q0", "c0/q1")


class Fragile(Learner):
    """Fails at its n-th question."""

    left = 10**9

    def solve(self, question: Question) -> Solution:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the server is gone")
        return super().solve(question)


def interrupted(solver: Fragile, journal: Path, after: int) -> None:
    solver.left = after
    with pytest.raises(ConnectionError):
        run([solver], train=TRAIN, journal=journal)
    solver.left = 10**9


@pytest.mark.parametrize("scope, first_again", [("task", 2), ("run", 0)])
def test_interrupted_it_is_asked_again_from_the_first_question_of_its_scope(
    scope: str, first_again: int, tmp_path: Path
) -> None:
    whole, again = run([Learner(scope)], train=TRAIN), Fragile(scope)
    interrupted(again, tmp_path / "j", 3)
    again.events.clear()
    again.memory.append("something from elsewhere")
    with pytest.warns(RunNotice, match="'learner' was interrupted"):
        frame = run([again], train=TRAIN, journal=tmp_path / "j")
    assert [e[1] for e in again.events if e[0] == "solve"] == [q.text for q in ASKED[first_again:]]
    pd.testing.assert_frame_equal(plain(frame), plain(whole))
    again.events.clear()
    pd.testing.assert_frame_equal(run([again], train=TRAIN, journal=tmp_path / "j"), frame)
    assert not again.events, "a finished run is read from its journal"


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
        (Answer("Oslo"), "what it returned is an Answer, not of type Solution"),
        (replace(GOOD, answer="Oslo"), "answer is a str, not of type Answer"),
        (replace(GOOD, answer=Answer("x", usage=Usage(calls=-1))), "usage.calls=-1"),
        (
            replace(GOOD, evidence=Evidence([Hit(Memory("elsewhere", "x"), 1.0)])),
            "1 hits are no turns of the conversation .*: 'elsewhere'",
        ),
        (replace(GOOD, counts=[1]), "counts is a list, not a mapping"),
        (replace(GOOD, counts={"turns": math.nan}), r"counts\['turns'\]=nan must be a finite number"),
        (replace(GOOD, counts={"f1": 1}), "names of columns that every row has: 'f1'; rename"),
        (replace(GOOD, record=["turn"]), "record is a list, not of type str"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_solver_that_returns_something_else_is_named_with_the_question(solution: Any, said: str) -> None:
    with pytest.raises(ContractError, match=rf"^system 'theirs', question 'c2/q0': .*{said}"):
        run([Theirs(solution)], replace(DATA, conversations=TALKS[:1], questions=ASKED[:2]))


@pytest.mark.parametrize(
    "members, said",
    [
        ({"scope": "week"}, "scope='week' must be one of task, run"),
        ({"oracle": True, "name": "oracle_theirs"}, "a solver gets no gold fields"),
        ({"solve": None, "retrieve": print, "scope": "run"}, "scope and learn are for a solver"),
        ({"solve": None}, r"it lacks retrieve\(\)"),
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


# --- what is for systems that retrieve


def test_a_solver_is_asked_by_its_name_too_and_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Registered(lambda **_: Learner(), "a test's", __name__, "learner", "team")
    monkeypatch.setitem(base.SYSTEMS.entries, "learner", learner)
    frame = run(["learner"])
    pd.testing.assert_frame_equal(plain(frame), plain(run([Learner()])))
    with pytest.raises(ValueError, match=r"solvers can't be timed again.*\['learner'\]"):
        time_systems(frame, DATA, embedder="hash")
