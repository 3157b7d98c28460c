"""Workers: any number of processes gives the rows of one, and an error or a kill loses no recorded answer."""

from __future__ import annotations

import json
import os
import signal

import pandas as pd
import pytest
from scripted import ScriptedLLM
from server import Server, answering, ok_json

import adaptmr as am
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.run import journal_keys
from adaptmr.files import RunNotice
from adaptmr.llm import LLM
from adaptmr.llm.replay import ReplayCache, ReplayMiss
from adaptmr.systems.base import make_system, register_system, unregister_system

SYSTEMS = ["unified", "qarp", "token_matched"]


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split="en1,zh2", limit=6)


def run(systems, data, llm=None, **more):
    return evaluate(systems, data, llm, **{"embedder": "hash", "progress": False, **more})


def same(one, other):
    """Compare everything of two runs but the clock."""
    columns = [c for c in one if not c.startswith("ms_")]
    assert list(one) == list(other)
    pd.testing.assert_frame_equal(one[columns], other[columns], check_exact=True)
    for frame in (one, other):
        frame.attrs["ingest"] = [{**cost, "seconds": 0} for cost in frame.attrs["ingest"]]
    assert json.dumps(one.attrs, default=str) == json.dumps(other.attrs, default=str)


def reply(body):
    """A reply to whatever is asked, which depends on the question; one in seven is no JSON."""
    length = len(json.dumps(body["messages"]))
    if length % 7 == 0:
        return ok_json("no JSON at all")
    return ok_json({"answer": f"answer {length}", "abstain": length % 5 == 0}, prompt=50 + length % 9, done=3)


@pytest.fixture
def wrapped():
    """Register the hybrid system under the name "wrapped", with something to do before each question."""

    class Wrapped:
        name = "wrapped"

        def __init__(self, embedder, before):
            self.inner, self.before = make_system("hybrid", embedder=embedder), before

        def ingest(self, conversation):
            self.conversation = conversation.id
            return self.inner.ingest(conversation)

        def retrieve(self, question, k):
            self.before(self.conversation)
            return self.inner.retrieve(question, k)

        def reset(self):
            self.inner.reset()

    def register(before):
        register_system("wrapped", "a system of a test", "own")(
            lambda embedder, **_: Wrapped(embedder, before)
        )

    yield register
    unregister_system("wrapped")


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_workers(data, tmp_path):
    """Offline, with a system that waits for another's budget."""
    same(*(run(SYSTEMS, data, workers=n, journal=tmp_path / f"j{n}") for n in (1, 2)))


@pytest.mark.slow
def test_with_a_model_calls_usage_and_outcomes_are_those_of_one_process(data, tmp_path):
    frames, counts = [], []
    for n in (1, 2):
        with Server(answering(reply)) as server, ReplayCache(tmp_path / f"calls{n}.sqlite") as cache:
            llm = LLM("m", base_url=server.url, cache=cache, concurrency=4)
            frames.append(run(["hybrid", "qarp"], data, llm, workers=n, used=cache.used.copy))
            counts.append((llm.usage.calls, llm.usage.tokens, llm.event_counts["sent"], cache.used))
            assert server.most_at_once <= 4
            cache.dump(tmp_path / "calls.jsonl.gz")
    same(*frames)
    assert counts[0] == counts[1] and frames[0]["ways"].str.contains("fallback").any()
    replayed = ReplayCache.from_file(tmp_path / "calls.jsonl.gz")
    llm = LLM("m", base_url="http://127.0.0.1:9/v1", cache=replayed)
    again = run(["hybrid", "qarp"], data, llm, workers=2, used=replayed.used.copy)
    assert set(again["ms_at_once"]) == {2}
    same(frames[0], again)
    with pytest.raises(ReplayMiss, match="no recorded reply"):  # of a class whose objects have five arguments
        run(["qarp"], am.load("demo", split="en2,zh1", limit=4), llm, workers=2)


@pytest.mark.slow
def test_an_error_keeps_what_was_answered_and_the_run_goes_on_with_another_number(data, tmp_path, wrapped):
    def fail(conversation):
        if conversation.endswith("zh2") and (tmp_path / "fails").exists():
            raise ValueError("not now")

    wrapped(fail)
    (tmp_path / "fails").touch()
    with pytest.raises(ValueError, match="not now") as error:
        run(["unified", "wrapped"], data, workers=2, journal=tmp_path / "j")
    assert "in fail" in error.value.__notes__[0]
    before = journal_keys(tmp_path / "j")
    (tmp_path / "fails").unlink()
    resumed = run(["unified", "wrapped"], data, workers=1, journal=tmp_path / "j")
    assert before < journal_keys(tmp_path / "j")
    same(run(["unified", "wrapped"], data, workers=2), resumed)


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_and_it_goes_on(data, tmp_path, wrapped):
    def die(conversation):
        if conversation.endswith("zh2") and (tmp_path / "dies").exists():
            (tmp_path / "dies").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    wrapped(die)
    (tmp_path / "dies").touch()
    with pytest.raises(Exception, match="SIGKILL"):
        run(["wrapped"], data, workers=2, journal=tmp_path / "j")
    same(run(["wrapped"], data, workers=1), run(["wrapped"], data, workers=2, journal=tmp_path / "j"))


def test_a_notice_says_that_one_process_asks(data):
    with Server(answering(reply)) as server:
        for system, llm in (
            (make_system("hybrid", embedder="hash"), None),
            ("hybrid", ScriptedLLM()),
            ("hybrid", LLM("m", base_url=server.url, concurrency=1)),
            ("hybrid", LLM("m", base_url=server.url, max_tokens=10**6)),
        ):
            with pytest.warns(RunNotice, match="workers=2 was asked for, and 1 asks the questions"):
                run([system], data, llm, workers=2)
