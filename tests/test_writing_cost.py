"""What storing a conversation costs: measured from outside, in rows, tables and manifest, and repeatable."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pandas as pd
import pytest
from server import Server, ok_json

import adaptmr as am
from adaptmr.eval.analysis.cost import usage_outside_rows, writing_table, writing_usage
from adaptmr.eval.report.recorded_run import run_differences
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.experiments import Experiment
from adaptmr.llm import LLM
from adaptmr.llm.concurrency import run_in_parallel
from adaptmr.llm.tasks import Task, object_schema
from adaptmr.systems import base
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, Question, Usage

PATIENCE = 20.0
SUMMARY = Task(
    "summary of a turn",
    dict.fromkeys(("en", "zh"), ("Reply in JSON.", "$text")),
    object_schema(summary={"type": "string", "maxLength": 80}),
    rule=lambda text: {"summary": text[:80]},
)
REPLY = ok_json({"summary": "short"}, prompt=10, done=3)
COUNTS = ["ingest_calls", "ingest_prompt_tokens", "ingest_completion_tokens", "ingest_cost_usd"]


def talk(name: str, n: int) -> Conversation:
    turns = [Memory(f"{name}/{i}", f"Turn {i} of {name}.", "Ann", step=i, source=f"S:{i}") for i in range(n)]
    return Conversation(name, ("Ann",), turns)


ASKED = [
    Question(f"{c}{i}", f"What, {i}?", ["Turn"], evidence=["S:0"], conversation=c)
    for c in "ab"
    for i in (0, 1)
]


DATA = Dataset("toy", [talk("a", 2), talk("b", 4)], ASKED, ours=True)


class Summarizing:
    """Asks the model for a summary of every turn that it observes, and returns the turns."""

    name, llm = "summarizing", None

    def __init__(self, llm=None, reports=None):
        self.llm, self.reports, self.turns = llm, reports, []

    def reset(self):
        self.turns = []

    def ingest(self, conversation):
        return sum(map(self.observe, conversation.turns), Usage())

    def observe(self, turn):
        self.turns.append(turn)
        SUMMARY.run(self.llm, text=turn.text)
        return self.reports or Usage()

    def retrieve(self, question, k=10):
        return Evidence([Hit(m, 1.0) for m in self.turns[:k]])


def run(systems, llm=None, **more):
    return evaluate(systems, DATA, llm, embedder="hash", progress=False, **more)


def model(server: Server, **more) -> LLM:
    return LLM("m", base_url=server.url, sleep=lambda s: None, **more)


# --- an experiment


@pytest.fixture
def registered(monkeypatch):
    base.known_systems(None)  # the package's own are there
    monkeypatch.setattr(base.SYSTEMS, "entries", dict(base.SYSTEMS.entries))

    @base.register_system("summarizing", "summarizes every turn")
    def make(name, llm, **_):
        return Summarizing(llm if llm is not None and not llm.is_offline else None)


def experiment(folder: Path, **more):
    params = {"systems": "lexical,summarizing", "split": "en1", "limit": 3, "embedder": "hash", **more}
    made = Experiment("written", params, out_dir=folder)
    made.evaluate()
    made.comparison_tables()
    return made.finish().path


@pytest.mark.slow
def test_an_experiment_shows_it_and_repeats(tmp_path, monkeypatch, registered):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))

    def reply(handler, body):
        asks = "summary" in json.dumps(body.get("response_format", body))
        (REPLY if asks else ok_json({"answer": "x", "abstain": False}, prompt=10, done=3))(handler, body)

    with Server(reply) as s:
        monkeypatch.setenv("OPENAI_BASE_URL", s.url)
        first = experiment(tmp_path / "first", model="m")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    again = experiment(tmp_path / "again", model="m")
    assert run_differences(first, again) == []
    manifest, other = (json.loads((path / "manifest.json").read_text()) for path in (first, again))
    turns = len(am.load("demo", split="en1").conversations[0])
    (lexical, mine) = manifest["writing"]
    assert (lexical["calls"], mine["calls"], mine["turns"], mine["cached_calls"]) == (0, turns, turns, 0)
    assert manifest["usage"]["calls"] == turns + 6, "and an answer to each of three questions of two systems"
    assert manifest["usage"] == other["usage"] and other["writing"][1]["cached_calls"] == turns
    table = pd.read_csv(first / "tables" / "writing.csv").set_index("system")
    assert table.loc["summarizing", "calls"] == turns and table.loc["lexical", "calls"] == 0
    results = pd.read_parquet(first / "results.parquet")
    assert set(COUNTS) <= set(results) and not {"ms_ingest", "behind", "recall_behind"} & set(results)
    assert {"ms_ingest", "ms_ingest_cached"} <= set(pd.read_parquet(first / "timings.parquet"))


# --- usage that comes too late for a row


def test_the_usage_of_a_thread_that_was_too_late_is_in_no_row_but_not_lost():
    arrived, answer = threading.Event(), threading.Event()

    def hold(handler, body):
        arrived.set()
        answer.wait(PATIENCE)
        REPLY(handler, body)

    class Impatient(Summarizing):
        name, ended = "impatient", threading.Event()

        def observe(self, turn):
            self.turns.append(turn)
            return Usage()

        def road(self):
            SUMMARY.run(self.llm, text="too slow")
            self.ended.set()

        def retrieve(self, question, k=10):
            if not arrived.is_set():
                (outcome,) = run_in_parallel([self.road], 0.3)
                assert outcome.late and arrived.wait(PATIENCE)
            else:
                answer.set()
                assert self.ended.wait(PATIENCE)
            return super().retrieve(question, k)

    with Server(hold) as s:
        frame = run([Impatient(model(s))])
    assert (frame.calls == 0).all(), "the row of the question was written before the reply came"
    late = frame.attrs["late"]
    assert (late["calls"], late["prompt_tokens"], late["completion_tokens"]) == (1, 10, 3)
    assert usage_outside_rows(frame).calls == 1


def test_the_rows_and_the_table_have_what_their_conversation_cost():
    with Server(REPLY) as s:
        frame = run(["lexical", Summarizing(model(s))])
    mine = frame[frame.system == "summarizing"]
    assert mine.ingest_calls.tolist() == [2, 2, 4, 4], "one call a turn, the same on every question"
    assert mine.ingest_prompt_tokens.tolist() == [20, 20, 40, 40]
    assert mine.ingest_completion_tokens.tolist() == [6, 6, 12, 12]
    assert mine.ingest_cost_usd.isna().all(), "the price of m is not known"
    assert (frame[frame.system == "lexical"][COUNTS] == 0).all(axis=None)
    assert (frame.calls == 0).all() and (frame.ms_ingest > 0).all(), "questions cost nothing here"
    assert frame.groupby(["system", "conversation"]).ms_ingest.nunique().eq(1).all()
    table = writing_table(frame).set_index("system")
    assert table.loc["summarizing", ["n", "calls", "tokens"]].tolist() == [2, 3.0, 39.0], "(26 + 52) / 2"
    assert table.loc["lexical", ["n", "calls", "tokens", "usd"]].tolist() == [2, 0.0, 0.0, 0.0]
    assert table.loc["summarizing", "usd"] is None or math.isnan(table.loc["summarizing", "usd"])
    assert table["low"].isna().all(), "two conversations are too few for an interval"
    sums = writing_usage(frame).set_index("system")
    assert sums.loc["summarizing", ["conversations", "turns", "calls"]].tolist() == [2, 6, 6]
    assert usage_outside_rows(frame).calls == 6 and usage_outside_rows(frame).prompt_tokens == 60
