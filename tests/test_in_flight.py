"""Concurrent questions: the same rows for any number of threads, a quick stop, exact usage.

No call is made twice.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from time import monotonic

import pandas as pd
import pytest
from server import Server, answering, ok, ok_json

import adaptmr as am
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm import LLM, LLMError
from adaptmr.llm.concurrency import CANCELLED, run_concurrently
from adaptmr.llm.tasks import Task
from adaptmr.llm.transport import RequestCancelled
from adaptmr.types import Evidence, Hit, Usage

PATIENCE = 20.0  # seconds that a test waits for something that should happen at once


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split="en1,zh2", limit=12)


def run(systems, data, llm=None, **more):
    return evaluate(systems, data, llm, embedder="hash", progress=False, **more)


def without_times(frame):
    return frame.drop(columns=[c for c in frame.columns if c.startswith("ms_")])


def message_hash(body):
    return int(hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest(), 16)


def reply_by_hash(body):
    """Reply by the hash of the messages: mostly valid, sometimes repairable, sometimes useless."""
    n = message_hash(body)
    used = {"prompt": 50 + n % 50, "done": 1 + n % 9}
    if len(body["messages"]) == 2 and n % 7 == 0:
        return ok("I'd say: " + json.dumps({"answer": "a cat", "abstain": False}), **used)
    if n % 5 == 0:
        return ok("never", **used)
    return ok_json({"answer": f"answer {n % 1000}", "abstain": n % 11 == 0}, **used)


def model(server, **more):
    return LLM("m", base_url=server.url, sleep=lambda s: None, **more)


class FirstTurns:
    """A system from outside the package that retrieves the first k turns, after calling `asks(question)`."""

    def __init__(self, name="parrot", asks=lambda question: None, usage=None):
        self.name, self.asks, self.usage, self.turns, self.threads = name, asks, usage or Usage(), [], set()

    def reset(self):
        self.turns = []

    def ingest(self, conversation):
        self.turns = list(conversation.turns)
        return Usage()

    def retrieve(self, question, k):
        self.threads.add(threading.get_ident())
        self.asks(question)
        return Evidence([Hit(m, 1.0) for m in self.turns[:k]], usage=self.usage)


# --- the threads


def test_every_item_is_processed_once_and_results_arrive_in_this_thread():
    for n, items in ((0, 7), (1, 7), (3, 0), (3, 40), (50, 7)):
        kept, threads = [], set()

        def keep(x, y, kept=kept, threads=threads):
            kept.append((x, y))
            threads.add(threading.get_ident())

        run_concurrently(lambda x: x * 2, iter(range(items)), n, keep)
        assert sorted(kept) == [(x, 2 * x) for x in range(items)] and (n > 1 or kept == sorted(kept))
        assert threads <= {threading.get_ident()}


def test_a_late_question_is_not_waited_for_and_sends_no_further_request():
    with Server(ok("hello")) as s:
        llm, refused = model(s), []
        paid, free, ended = threading.Event(), threading.Event(), threading.Event()

        def work(x):
            if x == 1:
                paid.wait(PATIENCE)
                raise ValueError("no")
            llm.complete([{"role": "user", "content": "first"}])
            paid.set()
            free.wait(PATIENCE)
            try:
                llm.complete([{"role": "user", "content": "second"}])
            except RequestCancelled as e:
                refused.append(str(e))
            ended.set()

        begun = monotonic()
        with pytest.raises(ValueError):
            run_concurrently(work, range(2), 2, lambda x, y: None)
        assert monotonic() - begun < 5
        free.set()
        assert ended.wait(PATIENCE) and len(refused) == 1 and "stopped" in refused[0] and len(s.requests) == 1
        assert llm.complete([{"role": "user", "content": "third"}]).text == "hello", "other threads may go on"
        assert CANCELLED.get() is None and issubclass(RequestCancelled, LLMError)


# --- the same rows


def test_rows_are_the_same_for_any_number_of_threads(data):
    frames, seen = [], []
    for n in (1, 8):
        with Server(answering(reply_by_hash)) as s:
            frames.append(run(["lexical", "random"], data, model(s, concurrency=n), k=3))
            seen.append(Counter(json.dumps(r, sort_keys=True) for r in s.requests))
    pd.testing.assert_frame_equal(without_times(frames[0]), without_times(frames[1]))
    assert seen[0] == seen[1] and set(frames[0].ways.str.split(":").str[1]) >= {
        "model",
        "repaired",
        "fallback",
    }


def test_one_system_gives_the_same_results_in_many_threads():
    conversation = (whole := am.load("demo", split="zh2")).conversations[0]
    texts = [q.text for q in whole.questions[:8]]

    def new_system():
        system = am.make_system("adaptmr", embedder="hash")
        # not `ingest`, which would compute beforehand what the threads are to compute at once
        system.store.add(conversation.turns)
        return system

    def result_of(system, text):
        found = system.retrieve(text, 10)
        hits = [(h.source, h.score, dict(h.signals)) for h in found.hits]
        return hits, found.relevance, found.context, found.trace

    alone, shared = new_system(), new_system()
    expected = {text: result_of(alone, text) for text in texts}
    start, got = threading.Barrier(8), []

    def work(i):
        start.wait(PATIENCE)
        return [(text, result_of(shared, text)) for text in texts[i:] + texts[:i]]

    run_concurrently(work, range(8), 8, lambda i, pairs: got.extend(pairs))
    assert len(got) == 8 * len(texts) and all(result == expected[text] for text, result in got)


# --- usage

ABOUT = {"type": "object", "properties": {"about": {"type": "string", "maxLength": 99}}}
THINK = Task(
    "think",
    dict.fromkeys(("en", "zh"), ("Reply in JSON.", "$question")),
    {**ABOUT, "required": ["about"], "additionalProperties": False},
    lambda question: {"about": question[:99]},
)


def reply_to_think_task(body):
    if body["messages"][0]["content"] == "Reply in JSON.":
        return ok_json({"about": "cats"}, prompt=100, done=11)
    return ok_json({"answer": "a cat", "abstain": False}, prompt=10, done=1)


def test_usage_of_retrieval_is_counted_once(data):
    few = replace(data, questions=data.questions[:3])
    for says, spent in ((Usage(), (1, 111)), (Usage(1, 0, 100, 11), (1, 111)), (Usage(3, 0, 400), (3, 400))):
        with Server(answering(reply_to_think_task)) as s:
            llm = model(s)
            asks = FirstTurns(asks=lambda q, llm=llm: THINK.run(llm, question=q.text), usage=says)
            frame = run([asks], few, llm)
        assert set(zip(frame.retrieval_calls, frame.retrieval_tokens)) == {spent}
        both = set(zip(frame.calls, frame.prompt_tokens + frame.completion_tokens))
        assert both == {(spent[0] + 1, spent[1] + 11)} and set(frame.ways) == {"answer:model think:model"}


# --- systems with the budget of another


class Matching(FirstTurns):
    matches = "thinks"

    def __init__(self):
        super().__init__("matching")
        self.matched = []

    def match(self, tokens):
        self.matched.append((len(self.turns) > 0, dict(tokens)))


def test_a_matched_system_gets_the_tokens_of_the_other(data, tmp_path):
    with Server(answering(reply_to_think_task)) as s:
        llm = model(s)

        def thinks():
            return FirstTurns("thinks", asks=lambda q: THINK.run(llm, question=q.text + "!" * (q.text > "M")))

        first = Matching()
        frame = run([thinks(), "random", first], data, llm, journal=tmp_path / "j")
        assert first.matched == [
            (True, {q.text: 111 for q in data.questions_on(c.id)}) for c in data.conversations
        ], "after it has ingested the conversation"
        with closing(sqlite3.connect(tmp_path / "j")) as db:
            assert db.execute("DELETE FROM rows WHERE key LIKE 'matching/%'").rowcount > 0
            db.commit()
        resumed, other = Matching(), thinks()
        pd.testing.assert_frame_equal(
            without_times(run([other, "random", resumed], data, llm, journal=tmp_path / "j")),
            without_times(frame),
        )
        assert resumed.matched == first.matched and not other.threads, "from the journal's rows"


# --- outcomes of replies
