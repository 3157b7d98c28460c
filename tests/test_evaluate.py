"""Evaluation: rows, refusals, users' systems, and a journal that survives SIGKILL and damaged lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.report.run_folder import open_run
from adaptmr.eval.runner.asking import result_row
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.run import Journal, JournalError, journal_keys
from adaptmr.types import Answer, Conversation, Dataset, Evidence, Hit, Memory, Question, Usage

FIRST = """system conversation question type category answerable gold_turns planner fallback hits has_relevant
    relevance""".split()
SOME = """recall_any recall_all recall_fraction session_any session_all f1 em abstained context_tokens calls
    prompt_tokens completion_tokens cost_usd text answers prediction retrieved evidence ms_retrieve
    ms_answer""".split()
TURN = Memory("t", "I adopted a cat.", "Ann", source="S1:1")


def toy(*questions, turns=(TURN,)):
    """A data set with one conversation `c`; a question is its id, its text, its answers."""
    asked = [
        Question(id, text, answers, conversation=where, evidence=evidence)
        for id, text, answers, where, evidence in questions
    ]
    return Dataset("toy", [Conversation("c", ("Ann",), list(turns))], asked)


class Logging:
    """A user's system: returns the first k turns, and logs every question that it is asked."""

    name = "logging"

    def __init__(self, log=None):
        self.turns, self.log, self.asked = [], log, []

    def reset(self):
        self.turns = []

    def ingest(self, conversation):
        self.turns = list(conversation.turns)
        return Usage(calls=2, prompt_tokens=7, cost_usd=None)

    def retrieve(self, question, k):
        self.asked.append((question.conversation, question.text))
        if self.log:
            with open(self.log, "a", encoding="utf-8") as f:
                f.write(json.dumps([question.conversation, question.text]) + "\n")
            print(".", end="", flush=True)
        return Evidence([Hit(m, 1.0) for m in self.turns[:k]], usage=Usage(calls=1, seconds=0.5))


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split="en1,zh2", limit=20)


def run(systems, data, **more):
    return evaluate(systems, data, embedder="hash", progress=False, **more)


def plain(frame):
    return frame.drop(columns=[c for c in frame.columns if c.startswith("ms_")])


# --- rows


def test_columns_and_order(data):
    frame = run(["lexical", "random"], data, k=4)
    assert list(frame.columns[: len(FIRST)]) == FIRST and {*SOME} <= set(frame.columns)
    assert list(frame.columns) == list(run(["random"], data).columns)
    asked = [(c, q) for c in data.conversations for q in data.questions_on(c.id)]
    systems = ("lexical", "random")
    assert list(zip(frame.system, frame.question)) == [(s, q.id) for s in systems for _, q in asked]
    assert (frame.hits <= 4).all() and frame.f1.between(0, 1).all() and frame.relevance.between(0, 1).all()
    assert (frame[["ms_retrieve", "ms_answer"]] >= 0).all(axis=None)
    for row, (c, q) in zip(frame.itertuples(), asked):
        assert (row.type, row.evidence, row.conversation) == (str(q.type), " ".join(q.evidence), c.id)
    assert (frame.answerable == frame.recall_fraction.notna()).all()
    assert (frame.attrs["label"], frame.attrs["k"]) == (data.label, 4)
    assert frame.attrs["embedders"] == {"hash": "exact"}
    ingested = [(i["system"], i["conversation"], i["turns"]) for i in frame.attrs["ingest"]]
    assert ingested == [(s, c.id, len(c)) for c in data.conversations for s in systems]


def test_rows_by_hand():
    said = ("S1", "S1:1", "I adopted a cat."), ("S1", "S1:2", "It rains."), ("S2", "S2:1", "She is Snowy.")
    turns = [
        Memory(source, text, "Ann", f"2024-01-0{i}", session=session, step=i, source=source)
        for i, (session, source, text) in enumerate(said, 1)
    ]
    data = toy(("c/q", "What is the cat called?", ["Snowy"], "c", ["S1:1", "S2:1"]), turns=turns)
    two, three, none = (run([Logging()], data, k=k).iloc[0] for k in (2, 3, 0))
    assert (two.retrieved, two.hits, two.gold_turns) == ("S1:1 S1:2", 2, 2)
    assert (two.recall_any, two.recall_all) == (1, 0)
    assert (two.recall_fraction, two.session_any, two.session_all, two.calls) == (0.5, 1, 0, 1)
    assert (three.recall_fraction, three.recall_all, three.session_all) == (1.0, 1, 1)
    assert (none.hits, none.recall_any, none.recall_fraction, none.context_tokens) == (0, 0, 0.0, 0)
    assert none.abstained and none.retrieved == ""


# --- refusals


def test_arguments_are_checked_before_anything_runs(data, tmp_path):
    for systems, more, message in (
        ([], {}, "no systems given.*'unified'"),
        (["nonsense"], {}, r"unknown system 'nonsense'; there are .*unified"),
        (["unified", "lexical", "unified"], {}, r"\['unified'\] are given twice"),
        (["lexical", "Lexical"], {}, r"unknown system 'Lexical' \(did you mean 'lexical'\?\)"),
        ([Logging(), Logging()], {}, r"\['logging'\] are given twice"),
        *((["lexical"], {"k": k}, f"k={k!r}") for k in (-1, 2.0, True, "10", None)),
    ):
        with pytest.raises(ValueError, match=message):
            run(systems, data, journal=tmp_path / "j", **more)
    assert not (tmp_path / "j").exists()
    with pytest.raises(ValueError, match=r"logging.*gold"):
        run([type("Curious", (Logging,), {"oracle": True})()], data)


# --- systems of others


def test_a_foreign_system(data):
    other = Logging()
    frame = run(["lexical", other], data, k=3)
    mine = frame[frame.system == "logging"]
    assert len(mine) == len(data.questions) == len(other.asked) and mine.hits.eq(3).all()
    assert (mine.calls == 1).all() and other.turns == [], "reset when done with"
    cost = [i for i in frame.attrs["ingest"] if i["system"] == "logging"]
    assert [(i["calls"], i["cost_usd"]) for i in cost] == [(2, None)] * 2
    assert all(i["seconds"] > 0 for i in cost)


def test_a_system_that_fails_leaves_a_journal_to_go_on_from(data, tmp_path):
    class Fragile(Logging):
        broken = True

        def retrieve(self, question, k):
            if self.broken and len(self.asked) == 5:
                raise ConnectionError("the server is gone")
            return super().retrieve(question, k)

    fragile = Fragile()
    with pytest.raises(ConnectionError, match="the server is gone"):
        run([fragile], data, journal=tmp_path / "j.jsonl")
    fragile.broken = False
    frame = run([fragile], data, journal=tmp_path / "j.jsonl")
    assert len(frame) == len(data.questions) == len(fragile.asked) == len(set(fragile.asked))


# --- the journal

CHILD = """
import sys
sys.path.insert(0, {tests!r})
import adaptmr as am
from test_evaluate import Logging, run
run(["lexical", Logging({log!r}), "random"], am.load("demo", split="en1,zh2", limit=20), journal={journal!r})
"""


@pytest.mark.slow
def test_killed_again_and_again_it_goes_on_where_it_stopped(data, tmp_path):
    journal, log = tmp_path / "deep" / "j", tmp_path / "asked.jsonl"
    whole, kept = run(["lexical", Logging(), "random"], data), frozenset()
    code = CHILD.format(tests=os.path.dirname(__file__), log=str(log), journal=str(journal))
    for dots in (3, 1, 9):  # after so many more questions, whatever the child is doing at that moment
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        with child.stdout:
            assert child.stdout.read(dots) == b"." * dots
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        before, kept = kept, journal_keys(journal)
        answered = [k for k in kept - before if k.startswith("logging/") and not k.endswith("/ingest")]
        assert before <= kept and len(answered) >= dots - 1
    last = Logging(str(log))  # what its constructor takes is part of the run's identity
    earlier = [tuple(json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]
    frame = run(["lexical", last, "random"], data, journal=journal)
    pd.testing.assert_frame_equal(plain(frame), plain(whole))
    asked = Counter(earlier + last.asked)
    assert sum(asked.values()) - len(asked) <= 3, "at most the one in hand at each kill is asked again"
    again = Logging(str(log))
    pd.testing.assert_frame_equal(run(["lexical", again, "random"], data, journal=journal), frame)
    assert again.asked == [], "a finished journal answers without the system, clock columns included"


def test_a_row_is_in_the_file_when_put_returns_whoever_else_writes(tmp_path):
    one, two = (Journal(tmp_path / "j", {"a": 1}) for _ in range(2))
    row = {"text": "lone \ud800 and\nnewline", "v": 0.1}
    one.put("x", row)
    two.put("y", {"v": 1}, used=["call 1"], spent=Usage(1, 0, 2, 3))
    assert journal_keys(tmp_path / "j") == {"x", "y"}, "without closing it"
    two.forget(["y"])
    again = Journal(tmp_path / "j", {"a": 1})
    assert again.rows == {"x": row} and (again.used, again.spent) == ({"call 1"}, Usage(1, 0, 2, 3))
    for journal in (one, two, again):
        journal.close()


def test_a_journal_of_another_run_is_refused(data, tmp_path):
    run(["random"], data, journal=tmp_path / "j")
    before = journal_keys(tmp_path / "j")
    fewer = replace(data, questions=data.questions[:-1])
    for systems, d, more in (
        (["lexical"], data, {}),
        (["random"], data, {"k": 3}),
        (["random"], data, {"seed": 1}),
        (["random"], fewer, {}),
        (["random"], replace(data, sha256="other"), {}),
        (["random", "lexical"], data, {}),
    ):
        with pytest.raises(JournalError, match="belongs to another run"):
            run(systems, d, journal=tmp_path / "j", **more)
    assert journal_keys(tmp_path / "j") == before, "and it is left as it was"
    (tmp_path / "notes").write_text("my shopping list\nmilk\n")
    with pytest.raises(JournalError, match=r"is damaged, or no journal.*Move it away"):
        run(["random"], data, journal=tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "my shopping list\nmilk\n"


# --- what is kept


def test_the_same_bytes_twice(data, tmp_path):
    kept = []
    for name in ("one", "two"):
        folder = open_run("exp3", {"k": 5}, data, tmp_path / name)
        frame = run(["lexical", "random", "adaptmr"], data, k=5)
        folder.write_results(frame)
        kept.append((folder.run_id, (folder.path / "results.parquet").read_bytes()))
        results, timings = (pd.read_parquet(folder.path / f"{n}.parquet") for n in ("results", "timings"))
        assert {"ms_retrieve", "ms_answer"} <= set(timings.columns) and len(timings) == len(frame)
        assert not [c for c in results.columns if c.startswith("ms_")]
    assert kept[0] == kept[1]


def test_a_run_that_was_cut_off_still_names_every_call_and_vector_it_used(data, tmp_path):
    class Cut(Logging):
        def retrieve(self, question, k):
            if len(self.asked) == self.after:
                raise KeyboardInterrupt
            return super().retrieve(question, k)

    def asked_by(system):
        named = set()

        def used():  # one key a question, named once
            new = {f"call {text}" for _, text in system.asked} - named
            named.update(new)
            return new

        return used

    whole = Logging()
    all_of_it = run([whole], data, used=asked_by(whole)).attrs["used"]
    cut = Cut()
    cut.after = 7
    with pytest.raises(KeyboardInterrupt):
        run([cut], data, journal=tmp_path / "j", used=asked_by(cut))
    again = Cut()
    again.after = -1
    resumed = run([again], data, journal=tmp_path / "j", used=asked_by(again))
    assert resumed.attrs["used"] == all_of_it and len(all_of_it) == len({q.text for q in data.questions})
    assert len(again.asked) == len(data.questions) - 7


def test_ranks_are_by_score_also_when_hits_are_shown_in_order_of_time():
    turns = [
        Memory(f"m{i}", "x", at=datetime(2024, 1, i, tzinfo=UTC), session="s", step=i, source=f"D{i}")
        for i in (1, 2, 3)
    ]
    shown = Evidence([Hit(m, score) for m, score in zip(turns, (0.1, 0.2, 0.9))])
    question = Question("q", "x?", ["x"], evidence=["D3"], conversation="c")
    row = result_row("s", question, shown, Answer("x"), Conversation("c", (), turns), "toy", 10)
    assert row["mrr"] == 1.0 and row["ndcg"] == 1.0 and row["retrieved"] == "D1 D2 D3"
