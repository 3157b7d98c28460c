"""Several functions at once: an outcome for each, nobody waits for a late one, and usage is counted once."""

from __future__ import annotations

import math
import threading
from time import monotonic

import pytest
from server import Server, ok_json

from adaptmr.llm import LLM
from adaptmr.llm.concurrency import CANCELLED, run_concurrently, run_in_parallel
from adaptmr.llm.tasks import Task, meter_usage, object_schema
from adaptmr.llm.transport import RequestCancelled
from adaptmr.types import Usage

PATIENCE = 20.0  # seconds that a test waits for something that should happen at once
NOTE = Task(
    "note in parallel",
    dict.fromkeys(("en", "zh"), ("Reply in JSON.", "$text")),
    object_schema(note={"type": "string", "maxLength": 80}),
    rule=lambda text: {"note": text[:80]},
)
REPLY = ok_json({"note": "noted"}, prompt=10, done=3)


def model(server: Server) -> LLM:
    return LLM("m", base_url=server.url, sleep=lambda s: None)


def spent(usage: Usage) -> tuple[int, int, int]:
    return usage.calls, usage.prompt_tokens, usage.completion_tokens


def test_each_function_has_an_outcome_in_the_order_given():
    free = threading.Event()
    error = ConnectionError("gone")

    def fail() -> str:
        raise error

    begun = monotonic()
    slow, broken, quick = run_in_parallel([free.wait, fail, lambda: "found"], [0.05, PATIENCE, PATIENCE])
    assert monotonic() - begun < PATIENCE / 2, "nobody waits for the late one"
    free.set()
    assert (quick.value, quick.error, quick.late, quick.failed) == ("found", None, False, False)
    assert (broken.value, broken.error, broken.late, broken.failed) == (None, error, False, True)
    assert slow.late and slow.failed and isinstance(slow.error, TimeoutError) and slow.value is None
    assert "0.05 s" in str(slow.error) and slow.seconds >= 0.05 and quick.seconds < PATIENCE


def test_they_run_at_once_and_one_that_itself_times_out_is_not_late():
    barrier = threading.Barrier(4)
    outcomes = run_in_parallel([lambda i=i: (barrier.wait(PATIENCE), i)[1] for i in range(4)], math.inf)
    assert [o.value for o in outcomes] == [0, 1, 2, 3], "each waits for the other three"
    (outcome,) = run_in_parallel([lambda: (_ for _ in ()).throw(TimeoutError("its own"))], PATIENCE)
    assert not outcome.late and str(outcome.error) == "its own" and run_in_parallel([], 1.0) == []


# --- usage


def test_usage_in_threads_is_in_the_meters_of_the_caller():
    with Server(REPLY) as s, meter_usage() as outer:
        NOTE.run(model(s), text="alone")
        with meter_usage() as inner:
            run_in_parallel([lambda: NOTE.run(model(s), text="one"), lambda: NOTE.run(None, text="two")], 9)
        NOTE.run(None, text="after")
    assert spent(inner.usage) == (1, 10, 3) and spent(outer.usage) == (2, 20, 6)
    assert inner.outcomes == {(NOTE.name, "model"): 1, (NOTE.name, "offline"): 1}
    assert outer.outcomes == {(NOTE.name, "model"): 2, (NOTE.name, "offline"): 2}
    assert inner.times.measured == 1 and outer.times.measured == 2
    assert spent(inner.late) == spent(outer.late) == (0, 0, 0)


class Hanging:
    """A function that asks the model three times: in time, at the time limit, and after it."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.begun, self.ended = llm, threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            NOTE.run(self.llm, text="in time")
            self.begun.set()
            NOTE.run(self.llm, text="in flight at the time limit")
            NOTE.run(self.llm, text="refused")
        except BaseException as e:
            self.error = e
            raise
        finally:
            self.ended.set()


def test_what_a_late_function_uses_is_counted_once_and_it_asks_nothing_more():
    arrived, answered = threading.Event(), threading.Event()

    def hold(handler, body):
        arrived.set()
        answered.wait(PATIENCE)
        REPLY(handler, body)

    with Server(REPLY, hold) as s:
        hanging = Hanging(model(s))
        with meter_usage() as outer:
            with meter_usage() as inner:
                (outcome,) = run_in_parallel([hanging], 1.0)  # enough for one call
                assert hanging.begun.is_set() and arrived.wait(PATIENCE)
            assert outcome.late and spent(inner.usage) == (1, 10, 3) == spent(outer.usage)
            answered.set()
            assert hanging.ended.wait(PATIENCE)
        assert spent(inner.usage) == (1, 10, 3), "a meter doesn't change after its block"
        assert spent(outer.usage) == (2, 20, 6) and spent(outer.late) == (1, 10, 3)
        assert (inner.times.measured, outer.times.measured) == (1, 2) and spent(inner.late) == (0, 0, 0)
        assert isinstance(hanging.error, RequestCancelled) and len(s.requests) == 2
        assert spent(hanging.llm.usage) == (2, 20, 6), "the model's own total has all of it"


def test_after_every_block_only_the_model_counts():
    llm_free, ended = threading.Event(), threading.Event()
    with Server(REPLY) as s:
        llm = model(s)

        def late() -> None:
            llm_free.wait(PATIENCE)
            CANCELLED.set(None)  # as a call that was begun just before the time limit
            NOTE.run(llm, text="x")
            ended.set()

        with meter_usage() as meter:
            run_in_parallel([late], 0.01)
        llm_free.set()
        assert ended.wait(PATIENCE)
        assert spent(meter.usage) == (0, 0, 0) and meter.times.measured == 0
        assert spent(llm.usage) == (1, 10, 3)


def test_a_stop_of_the_outer_run_reaches_the_inner_threads():
    inner_begun, free, refused = threading.Event(), threading.Event(), []
    with Server(REPLY) as s:
        llm = model(s)

        def ask() -> None:
            inner_begun.set()
            free.wait(PATIENCE)
            NOTE.run(llm, text="x")

        def work(x: str) -> None:
            if x == "fails":
                inner_begun.wait(PATIENCE)
                raise ValueError("no")
            (outcome,) = run_in_parallel([ask], PATIENCE)
            refused.append(outcome.error)
            done.set()

        done = threading.Event()
        with pytest.raises(ValueError):
            run_concurrently(work, ["asks", "fails"], 2, lambda x, y: None)
        free.set()
        assert done.wait(PATIENCE) and isinstance(refused[0], RequestCancelled) and not s.requests
