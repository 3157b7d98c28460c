"""What a run spends, and the limits on it: counted by hand on a server that reports 10 + 5 tokens a call."""

from __future__ import annotations

import pandas as pd
import pytest
import server

import adaptmr as am
from adaptmr.eval.runner import evaluate as evaluation
from adaptmr.eval.runner.run import journal_keys
from adaptmr.llm.spending import LimitReached
from adaptmr.types import Usage

PRICES = {"m": {"prompt": 2.0, "completion": 8.0}}  # dollars per million: a call costs 60e-6
CALL = (10 * 2.0 + 5 * 8.0) / 1e6


@pytest.fixture(scope="module")
def data():
    return am.load("demo", limit=8)


def llm(url, **more):
    return am.LLM("m", base_url=url, api_key="k", prices=PRICES, **{"concurrency": 1, **more})


def run(data, model, journal=None, systems=("lexical",), **more):
    return am.evaluate(list(systems), data, model, k=3, embedder="hash", journal=journal, **more)


def plain(frame):
    return frame[[c for c in frame.columns if not c.startswith("ms_")]]


def answers(path):
    return [key for key in journal_keys(path) if not key.endswith("/ingest")]


def answer():
    return server.ok_json({"answer": "x", "abstain": False})


def test_tokens_and_dollars_by_hand(data):
    with server.Server(answer()) as s:
        model = llm(s.url, cache=am.ReplayCache())
        run(data, model)
        sent = len(s.requests)
        assert model.spending.total == Usage(sent, 0, 10 * sent, 5 * sent)
        assert model.spending.cost_usd == pytest.approx(CALL * sent)
        run(data, model)
        assert len(s.requests) == sent and model.spending.total.calls == sent, "a recorded reply is free"
        assert model.usage.calls == 2 * sent, "and yet counted as a call"


LIMITS = ({"max_tokens": 45}, {"max_tokens": 31}, {"max_cost_usd": 2.5 * CALL})
WRONG = ({"max_tokens": 0}, {"max_tokens": 1.5}, {"max_cost_usd": -1}, {"max_cost_usd": "2"})


def test_a_limit_stops_after_the_question_that_reaches_it(tmp_path, data):
    for n, limit in enumerate(LIMITS):
        with server.Server(answer()) as s:
            with pytest.raises(LimitReached, match="of 8 answers are in the journal: raise") as stopped:
                run(data, llm(s.url, **limit), tmp_path / f"j{n}")
            assert len(s.requests) == 3 and "3 calls, 45 tokens, $0.0002" in str(stopped.value)
        assert "\n" not in str(stopped.value) and len(answers(tmp_path / f"j{n}")) >= 3


def test_going_on_after_a_limit_gives_the_same_frame(tmp_path, data):
    """The last limit is what the whole run takes, and lets it end; no limit is part of its identity."""
    with server.Server(answer()) as s:
        whole = run(data, llm(s.url))
        asked = len(s.requests)
        for concurrency in (1, 4):
            s.requests.clear()
            path, starts = tmp_path / f"j{concurrency}", 0
            for limit in (60, 90, 15 * asked):
                try:
                    parts = run(data, llm(s.url, max_tokens=limit, concurrency=concurrency), path)
                except LimitReached:
                    starts += 1
            assert starts == 2 and len(s.requests) == asked, "no question is asked twice"
            pd.testing.assert_frame_equal(plain(whole), plain(parts))


def test_earlier_parts_count_and_so_does_what_belongs_to_no_row(tmp_path, data):
    path = tmp_path / "j.jsonl"
    calls = []

    def third_fails(body):
        calls.append(body)
        return server.status(401) if len(calls) == 3 else answer()

    with server.Server(server.answering(third_fails)) as s:
        with pytest.raises(am.llm.AuthError):
            run(data, llm(s.url, max_retries=0), path)
        with pytest.raises(LimitReached, match="30 tokens"):
            run(data, llm(s.url, max_tokens=30), path)
        assert len(calls) == 3, "two calls of 15 tokens were spent before: nothing more is asked"
        model = llm(s.url, max_tokens=45)
        with pytest.raises(LimitReached):
            run(data, model, path)
        assert model.spending.total.tokens == 45 and len(calls) == 4
        model.spending.max_tokens = 60
        with pytest.raises(LimitReached):
            run(data, model, path)
        assert len(calls) == 5, "the same object doesn't count its own part twice"


def test_calls_outside_questions_are_refused_one_by_one():
    with server.Server(answer()) as s:
        model = llm(s.url, max_tokens=20)
        hello = [{"role": "user", "content": "hello"}]
        model.complete(hello), model.complete(hello)
        with pytest.raises(LimitReached, match="max_tokens=20 is reached: 2 calls, 30 tokens"):
            model.complete(hello)
        assert len(s.requests) == 2


def test_limits_that_cannot_be_used():
    for limit in WRONG:
        with pytest.raises(ValueError, match=next(iter(limit))):
            am.LLM("gpt-4o-mini", **limit)


def test_a_solver_stops_between_two_questions(tmp_path, data):
    from adaptmr.memory.team.steps import Transcript
    from adaptmr.systems.base import Solution
    from adaptmr.types import Answer, Evidence, Usage

    class Asking:
        name, scope = "asking", "run"

        def __init__(self, model):
            self.model = model

        def reset(self):
            """Nothing is kept."""

        def ingest(self, conversation):
            return Usage()

        def solve(self, question):
            for _ in range(2):
                self.model.complete([{"role": "user", "content": question.text}])
            return Solution(Answer("x"), Evidence(), Transcript(question.text))

    with server.Server(answer()) as s:
        model = llm(s.url, max_tokens=40)
        with pytest.raises(LimitReached, match="2 of 8 answers"):
            evaluation.evaluate([Asking(model)], data, model, journal=tmp_path / "j.jsonl", embedder="hash")
        assert len(s.requests) == 4, "the second question was finished beyond the limit"
