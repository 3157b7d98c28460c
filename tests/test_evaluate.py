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
from adaptmr.eval.runner.asking import score_answer
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.run import Journal, JournalError, journal_keys
from adaptmr.types import Answer, Conversation, Dataset, Evidence, Hit, Memory, QueryType, Question, Usage

FIRST = [
    "system",
    "conversation",
    "question",
    "type",
    "category",
    "answerable",
    "gold_turns",
    "planner",
    "fallback",
    "hits",
    "has_relevant",
    "relevance",
]
SOME = [
    "recall_any",
    "recall_all",
    "recall_fraction",
    "session_any",
    "session_all",
    "f1",
    "em",
    "abstained",
    "context_tokens",
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "text",
    "answers",
    "prediction",
    "retrieved",
    "evidence",
    "ms_retrieve",
    "ms_answer",
]


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
    assert {*FIRST, *SOME} <= set(frame.columns) and list(frame.columns) == list(
        run(["random"], data).columns
    )
    assert list(zip(frame.system, frame.question)) == [
        (s, q.id) for s in ("lexical", "random") for c in data.conversations for q in data.questions_on(c.id)
    ]
    assert (
        (frame.hits <= 4).all()
        and frame.f1.between(0, 1).all()
        and frame.relevance.between(0, 1).all()
        and (frame[["ms_retrieve", "ms_answer"]] >= 0).all(axis=None)
    )
    gold = {q.id: q for q in data.questions}
    assert all(
        r.type == str(gold[r.question].type)
        and r.evidence == " ".join(gold[r.question].evidence)
        and r.conversation == gold[r.question].conversation
        for r in frame.itertuples()
    )
    assert (
        frame.loc[~frame.answerable, "recall_fraction"].isna().all()
        and frame.loc[frame.answerable, "recall_fraction"].notna().all()
    )
    assert (
        frame.attrs["label"] == data.label
        and frame.attrs["k"] == 4
        and frame.attrs["embedders"] == {"hash": "exact"}
    )
    assert [(i["system"], i["conversation"], i["turns"]) for i in frame.attrs["ingest"]] == [
        (s, c.id, len(c)) for c in data.conversations for s in ("lexical", "random")
    ]


def test_what_a_row_is_about_comes_first(data):
    assert list(run(["random"], data).columns[: len(FIRST)]) == FIRST, "a frame is read from the left"


def test_the_order_of_systems_is_that_of_the_rows_and_changes_nothing_else(data):
    one, two = run(["lexical", "random"], data), run(["random", "lexical"], data)
    assert list(two.system.unique()) == ["random", "lexical"]
    pd.testing.assert_frame_equal(
        plain(one), plain(two).sort_values("system", kind="stable", ignore_index=True)
    )
    pd.testing.assert_frame_equal(
        plain(one[one.system == "random"]).reset_index(drop=True), plain(run(["random"], data))
    )


def test_rows_by_hand():
    turns = [
        Memory(
            "c/1",
            "I adopted a cat.",
            "Ann",
            datetime(2024, 1, 1, tzinfo=UTC),
            session="S1",
            step=0,
            source="S1:1",
        ),
        Memory(
            "c/2", "It rains.", "Bob", datetime(2024, 1, 1, tzinfo=UTC), session="S1", step=1, source="S1:2"
        ),
        Memory(
            "c/3",
            "The cat is called Snowy.",
            "Ann",
            datetime(2024, 2, 1, tzinfo=UTC),
            session="S2",
            step=2,
            source="S2:1",
        ),
    ]
    toy = Dataset(
        "toy",
        [Conversation("c", ("Ann", "Bob"), turns)],
        [
            Question(
                "c/q",
                "What is the cat called?",
                ["Snowy"],
                "factual_extraction",
                "fact",
                ["S1:1", "S2:1"],
                conversation="c",
            )
        ],
    )
    row = run([Logging()], toy, k=2).iloc[0]
    assert (row.retrieved, row.hits, row.gold_turns, row.recall_any, row.recall_all, row.recall_fraction) == (
        "S1:1 S1:2",
        2,
        2,
        1,
        0,
        0.5,
    )
    assert (row.session_any, row.session_all) == (1, 0) and row.calls == 1 and row.planner == ""
    row = run([Logging()], toy, k=3).iloc[0]
    assert (row.recall_fraction, row.recall_all, row.session_all) == (1.0, 1, 1)
    row = run([Logging()], toy, k=0).iloc[0]
    assert (
        row.hits,
        row.recall_any,
        row.recall_fraction,
        row.context_tokens,
        row.abstained,
        row.retrieved,
    ) == (0, 0, 0.0, 0, True, "")


def test_scores_by_data_set():
    said, q = Answer("a white cat"), Question("q", "?", ["white cat"], category="4")
    assert score_answer(q, said, "locomo") == 1.0 and 0 < score_answer(q, said, "demo") <= 1
    refused = Question("q", "?", [], QueryType.abstention, "5", answerable=False)
    assert (
        score_answer(refused, Answer("No information available", True), "locomo")
        == score_answer(refused, Answer("I don't know", True), "demo")
        == 1.0
    )
    assert score_answer(refused, said, "locomo") == score_answer(refused, said, "demo") == 0.0


def test_seed_and_embedder_object(data):
    a, b, c = (run(["random", "lexical"], data, seed=s) for s in (0, 0, 1))
    pd.testing.assert_frame_equal(plain(a), plain(b))
    sampled = a.system == "random"
    assert not a.loc[sampled, "retrieved"].equals(c.loc[sampled, "retrieved"]) and a.loc[
        ~sampled, "retrieved"
    ].equals(c.loc[~sampled, "retrieved"])
    pd.testing.assert_frame_equal(
        plain(a), plain(evaluate(["random", "lexical"], data, embedder=am.embedder("hash"), progress=False))
    )


# --- refusals


@pytest.mark.parametrize(
    "systems, message",
    [
        ([], "no systems given.*'unified'"),
        (["nonsense"], r"unknown system 'nonsense'; there are .*unified"),
        (["unified", "lexical", "unified"], r"\['unified'\] are given twice"),
        (["lexical", "Lexical"], r"unknown system 'Lexical' \(did you mean 'lexical'\?\)"),
        ([Logging(), Logging()], r"\['logging'\] are given twice"),
    ],
    ids=["none", "unknown", "twice", "another case", "objects twice"],
)
def test_systems_are_checked_before_anything_runs(data, tmp_path, systems, message):
    with pytest.raises(ValueError, match=message):
        run(systems, data, journal=tmp_path / "j.jsonl")
    assert not (tmp_path / "j.jsonl").exists()


def test_a_single_system_needs_no_list(data):
    alone, listed = (run(given, data, k=3) for given in ("lexical", ["lexical"]))
    assert alone.system.unique().tolist() == ["lexical"] and alone.f1.tolist() == listed.f1.tolist()


@pytest.mark.parametrize("k", [-1, 2.0, True, "10", None])
def test_k_is_checked(data, k):
    with pytest.raises(ValueError, match=f"k={k!r}"):
        run(["lexical"], data, k=k)


def test_an_empty_data_set():
    assert len(run(["lexical"], Dataset("toy"))) == 0
    frame = run(
        ["lexical"],
        Dataset("toy", [Conversation("c")], [Question("q", "Where?", ["here"], conversation="c")]),
    )
    assert frame.hits.tolist() == [0] and frame.abstained.tolist() == [True]


TURN = Memory("t", "I adopted a cat.", "Ann", source="S1:1")


def test_a_question_on_a_conversation_that_is_not_there_is_an_error():
    toy = Dataset(
        "toy",
        [Conversation("c", ("Ann",), [TURN])],
        [
            Question("q1", "Cat?", ["yes"], conversation="c"),
            Question("q2", "Dog?", ["no"], conversation="elsewhere"),
        ],
    )
    with pytest.raises((ValueError, KeyError), match="elsewhere"):
        run(["lexical"], toy)


def test_two_questions_of_one_id_are_an_error():
    toy = Dataset(
        "toy",
        [Conversation("c", ("Ann",), [TURN])],
        [
            Question("q1", "Is there a cat?", ["yes"], conversation="c"),
            Question("q1", "Is there a dog?", ["no"], conversation="c"),
        ],
    )
    with pytest.raises(ValueError, match="q1"):
        run(["lexical"], toy)


# --- systems of others


def test_a_foreign_system(data):
    other = Logging()
    frame = run(["lexical", other], data, k=3)
    mine = frame[frame.system == "logging"]
    assert (
        len(mine) == len(data.questions) == len(other.asked)
        and (mine.calls == 1).all()
        and mine.hits.eq(3).all()
    )
    assert other.turns == [], "reset when done with"
    cost = [i for i in frame.attrs["ingest"] if i["system"] == "logging"]
    assert [i["calls"] for i in cost] == [2, 2] and all(
        i["cost_usd"] is None and i["seconds"] > 0 for i in cost
    )


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
    assert len(frame) == len(data.questions) == len(fragile.asked) == len(set(fragile.asked)), (
        "nothing was asked twice"
    )


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


def test_a_journal_of_other_texts_is_refused(tmp_path):
    def toy(text):
        return Dataset(
            "toy",
            [Conversation("c", ("Ann",), [TURN])],
            [Question("c/q", text, ["a cat"], evidence=["S1:1"], conversation="c")],
        )

    run(["lexical"], toy("What did Ann adopt?"), journal=tmp_path / "j")
    with pytest.raises(JournalError):
        run(["lexical"], toy("Who adopted a cat?"), journal=tmp_path / "j")


# --- what is kept


def test_the_same_bytes_twice(data, tmp_path):
    kept = []
    for name in ("one", "two"):
        folder = open_run("exp3", {"k": 5}, data, tmp_path / name)
        frame = run(["lexical", "random", "adaptmr"], data, k=5)
        folder.write_results(frame)
        kept.append((folder.run_id, (folder.path / "results.parquet").read_bytes()))
        timings = pd.read_parquet(folder.path / "timings.parquet")
        assert {"ms_retrieve", "ms_answer"} <= set(timings.columns) and len(timings) == len(frame)
        assert not [
            c for c in pd.read_parquet(folder.path / "results.parquet").columns if c.startswith("ms_")
        ]
    assert kept[0] == kept[1]


def test_results_do_not_depend_on_the_hash_seed(data):
    code = (
        "import adaptmr as am\nfrom adaptmr.eval.runner.evaluate import evaluate\n"
        "data = am.load('demo', split='en1,zh2', limit=20)\n"
        "f = evaluate(['adaptmr', 'random'], data, k=5, embedder='hash', progress=False)\n"
        "print(f[[c for c in f.columns if not c.startswith('ms_')]].to_json(orient='split'))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert (
        child.stdout.strip() == plain(run(["adaptmr", "random"], data, k=5)).to_json(orient="split")
        and len(child.stdout) > 1000
    )


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
    from adaptmr.eval.runner.asking import result_row

    row = result_row("s", question, shown, Answer("x"), Conversation("c", (), turns), "toy", 10)
    assert row["mrr"] == 1.0 and row["ndcg"] == 1.0 and row["retrieved"] == "D1 D2 D3"


def test_only_an_oracle_by_name_sees_the_gold(data):
    class Curious(Logging):
        oracle = True

    with pytest.raises(ValueError, match=r"logging.*gold"):
        run([Curious()], data)
