"""Concurrent questions: the same rows for any number of threads, a quick stop, exact usage.

No call is made twice.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from time import monotonic

import pandas as pd
import pytest
from server import Server, answering, hang, ok, ok_json, status

import adaptmr as am
from adaptmr.embed import TextEmbedder, VectorCache
from adaptmr.eval.report import tables
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.experiments import Experiment
from adaptmr.llm import LLM, AuthError, LLMError
from adaptmr.llm.concurrency import GRACE_SECONDS, run_concurrently
from adaptmr.llm.replay import ReplayCache
from adaptmr.llm.tasks import Task
from adaptmr.llm.transport import CANCELLED, RequestCancelled
from adaptmr.systems.base import PlannedSystem
from adaptmr.types import Evidence, Hit, Usage

PATIENCE = 20.0  # seconds that a test waits for something that should happen at once


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split="en1,zh2", limit=24)


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


@pytest.mark.parametrize("n", [0, 1, 3, 50])
@pytest.mark.parametrize("items", [0, 1, 7, 40])
def test_every_item_is_processed_once_and_results_arrive_in_this_thread(n, items):
    kept, result_threads, lock, open_, most = [], set(), threading.Lock(), [0], [0]

    def work(x):
        with lock:
            open_[0] += 1
            most[0] = max(most[0], open_[0])
        with lock:
            open_[0] -= 1
        return x * 2

    run_concurrently(
        work,
        iter(range(items)),
        n,
        lambda x, y: (kept.append((x, y)), result_threads.add(threading.get_ident())),
    )
    assert sorted(kept) == [(x, 2 * x) for x in range(items)] and most[0] <= max(n, 1)
    assert result_threads <= {threading.get_ident()} and (n > 1 or kept == sorted(kept))


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("y"), SystemExit(3), KeyboardInterrupt()], ids=repr
)
def test_the_first_error_stops_the_run_and_late_results_are_kept(error):
    begun, free, kept, asked = threading.Event(), threading.Event(), [], []

    def work(x):
        asked.append(x)
        if x == "late":
            begun.set()
            free.wait(0.2)
        if x == "bad":
            begun.wait(PATIENCE)
            raise error
        return x

    with pytest.raises(type(error)) as e:
        run_concurrently(work, ["late", "bad", *range(100)], 2, lambda x, y: kept.append(x))
    assert e.value is error and kept == ["late"] and set(asked) == {"late", "bad"}


def test_a_hanging_call_is_not_waited_for():
    free, kept, begun = threading.Event(), [], monotonic()

    def work(x):
        if x == 0:
            free.wait(PATIENCE)
        if x == 1:
            raise ValueError("no")
        return x

    with pytest.raises(ValueError):
        run_concurrently(work, range(2), 2, lambda x, y: kept.append(x), grace_seconds=0.1)
    assert monotonic() - begun < 5 and kept == []
    free.set()


def test_an_interrupt_in_on_result_loses_no_result():
    kept = []

    def on_result(x, y):
        kept.append(x)
        if len(kept) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_concurrently(lambda x: x, range(100), 2, on_result)
    assert kept[2] == kept[3] and set(kept) >= {0, 1}, "the interrupted result is handed over again"


def test_a_late_question_sends_no_further_request():
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

        with pytest.raises(ValueError):
            run_concurrently(work, range(2), 2, lambda x, y: None, grace_seconds=0.05)
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


def test_concurrency_questions_are_in_flight(data):
    barrier = threading.Barrier(4)

    def meet(h, body):
        barrier.wait(PATIENCE)
        ok_json({"answer": "x", "abstain": False})(h, body)

    with Server(meet) as s:
        assert len(run(["random"], replace(data, questions=data.questions[:8]), model(s, concurrency=4))) == 8
        assert s.most_at_once == 4


def test_without_a_model_all_runs_in_one_thread(data):
    system = FirstTurns()
    run([system], data)
    run([system], data, LLM("offline"))
    assert system.threads == {threading.get_ident()}
    system.one_at_a_time = True
    with Server(answering(reply_by_hash)) as s:
        run([system], data, model(s))
    assert system.threads == {threading.get_ident()}, "nor for a system that allows one thread only"


@pytest.mark.parametrize("name", ["unified", "adaptmr", "hybrid"])
@pytest.mark.parametrize("split", ["en1", "zh2"])
def test_one_system_gives_the_same_results_in_many_threads(name, split):
    conversation = (whole := am.load("demo", split=split)).conversations[0]
    texts = [q.text for q in whole.questions[:10]]

    def new_system():
        system = am.make_system(name, embedder="hash")
        assert isinstance(system, PlannedSystem)
        system.store.add(
            conversation.turns
        )  # not `ingest`, which would compute beforehand what the threads are to compute at once
        return system

    def result_of(system, text):
        evidence = system.retrieve(text, 10)
        return (
            [(h.source, h.score, dict(h.signals)) for h in evidence.hits],
            evidence.relevance,
            evidence.context,
            evidence.trace,
        )

    alone = new_system()
    expected = {text: result_of(alone, text) for text in texts}
    for _ in range(2):
        shared, start, got = new_system(), threading.Barrier(8), []

        def work(i, shared=shared, start=start):
            start.wait(PATIENCE)
            return [(text, result_of(shared, text)) for text in texts[i:] + texts[:i]]

        run_concurrently(work, range(8), 8, lambda i, pairs, got=got: got.extend(pairs))
        assert len(got) == 8 * len(texts) and all(result == expected[text] for text, result in got)


def test_an_encoder_is_called_by_one_thread_at_a_time(tmp_path):
    import numpy as np

    inside, most, lock = [0], [0], threading.Lock()

    def encode(texts, kind):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        rows = [[1.0, len(t), sum(map(ord, t)) % 97] for t in texts]
        with lock:
            inside[0] -= 1
        return np.array(rows, np.float32)

    def embedder(cache):
        return TextEmbedder(
            "x",
            "1",
            "exact",
            lambda: encode,
            dim=3,
            uses_kind=False,
            max_chars=99,
            cache=cache,
            batch_size=4,
            progress=False,
            allow_encoding=True,
        )

    shared, got = embedder(VectorCache(tmp_path / "v")), {}
    run_concurrently(
        lambda i: shared.encode([f"text {j % 20}" for j in range(i, i + 10)]), range(40), 8, got.__setitem__
    )
    alone = embedder(None)
    assert (
        all((got[i] == alone.encode([f"text {j % 20}" for j in range(i, i + 10)])).all() for i in range(40))
        and most[0] == 1
    )
    assert shared.encoded + shared.from_cache == 400


# --- interrupts

CHILD = """
import signal, sys
import adaptmr as am
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm import LLM, concurrency
from adaptmr.llm.replay import ReplayCache
# a shell that starts the tests in the background makes them ignore interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
folder, url, grace_seconds = sys.argv[1:]
concurrency.run_concurrently.__defaults__ = (float(grace_seconds),)
llm = LLM("m", base_url=url, cache=ReplayCache(folder + "/calls.sqlite"), concurrency=4)
data, options = am.load("demo", split="en1", limit=20), {"embedder": "hash", "progress": False}
frame = evaluate(["lexical", "random"], data, llm, journal=folder + "/journal", **options)
frame.drop(columns=[c for c in frame if c.startswith("ms_")]).to_json(folder + "/frame.json", orient="split")
"""


def journal_keys(path):
    return [json.loads(line)["key"] for line in path.read_bytes().split(b"\n")[1:-1]] if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("server_is", ["slow", "hanging"])
def test_an_interrupt_stops_the_run_and_the_next_run_repeats_no_paid_call(server_is, tmp_path):
    enough = threading.Event()

    def slow(h, body):
        if len(s.requests) > 10:
            enough.set()
            h.server.released.wait(0.3)
        answering(reply_by_hash)(h, body)

    def hanging(h, body):
        if len(s.requests) > 10:
            if s._open >= 4:
                enough.set()
            hang(h, body)
        else:
            answering(reply_by_hash)(h, body)

    def child():
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), s.url, grace_seconds],
            stderr=subprocess.PIPE,
            text=True,
        )

    # every reply must arrive from the slow server, also on a busy machine; `make bench` times a stop
    grace_seconds = "20" if server_is == "slow" else str(GRACE_SECONDS)
    with Server(slow if server_is == "slow" else hanging) as s:
        first = child()
        assert enough.wait(60), first.stderr.read()
        begun = monotonic()
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=30)
        took = monotonic() - begun
        assert (
            first.returncode != 0
            and said.rstrip().endswith("KeyboardInterrupt")
            and took < float(grace_seconds) + 4
        ), (
            took,
            said,
        )
        asked, kept = len(s.requests), journal_keys(tmp_path / "journal")
        assert (
            len([k for k in kept if not k.endswith("/ingest")]) >= 5
            and not (tmp_path / "frame.json").exists()
        )
        if server_is == "slow":  # every paid reply has arrived
            with ReplayCache(tmp_path / "calls.sqlite") as cache:
                assert len(cache) == asked
        s.script[:] = [answering(reply_by_hash)]
        second = child()
        _, said = second.communicate(timeout=60)
        assert second.returncode == 0, said
        distinct = {json.dumps(r, sort_keys=True) for r in s.requests}
        assert len(s.requests) <= len(distinct) + (0 if server_is == "slow" else 4)
        again = journal_keys(tmp_path / "journal")
        assert again[: len(kept)] == kept and len(set(again)) == 42
        twice = [k for k, n in Counter(again).items() if n > 1 and not k.endswith("/ingest")]
        assert len(twice) <= 1 and set(twice) <= set(kept), (
            "only the row that was being written at the stop may be there twice"
        )
    with Server(answering(reply_by_hash)) as s:
        whole = run(["lexical", "random"], am.load("demo", split="en1", limit=20), model(s))
    assert (tmp_path / "frame.json").read_text(encoding="utf-8") == without_times(whole).to_json(
        orient="split"
    )


def test_an_error_in_one_question_stops_the_run_and_keeps_the_other_results(data, tmp_path):
    served = threading.Semaphore(9)

    def behave(h, body):
        if served.acquire(blocking=False):
            answering(reply_by_hash)(h, body)
        else:
            status(401, "no such key")(h, body)

    with Server(behave) as s:
        with pytest.raises(AuthError, match="no such key"):
            run(
                ["lexical", "random"],
                data,
                model(s, cache=ReplayCache(tmp_path / "c")),
                journal=tmp_path / "j",
            )
        with ReplayCache(tmp_path / "c") as cache:
            paid = len(cache)
        assert paid == 9
        s.script[:] = [answering(reply_by_hash)]
        before = len(s.requests)
        frame = run(
            ["lexical", "random"], data, model(s, cache=ReplayCache(tmp_path / "c")), journal=tmp_path / "j"
        )
        assert len(s.requests) - before == len({json.dumps(r, sort_keys=True) for r in s.requests}) - paid
    with Server(answering(reply_by_hash)) as s:
        pd.testing.assert_frame_equal(
            without_times(frame), without_times(run(["lexical", "random"], data, model(s)))
        )


# --- usage

THINK = Task(
    "think",
    dict.fromkeys(("en", "zh"), ("Reply in JSON.", "$question")),
    {
        "type": "object",
        "properties": {"about": {"type": "string", "maxLength": 99}},
        "required": ["about"],
        "additionalProperties": False,
    },
    lambda question: {"about": question[:99]},
)


def reply_to_think_task(body):
    if body["messages"][0]["content"] == "Reply in JSON.":
        return ok_json({"about": "cats"}, prompt=100, done=11)
    return ok_json({"answer": "a cat", "abstain": False}, prompt=10, done=1)


@pytest.mark.parametrize(
    "says,spent",
    [
        (Usage(), (1, 111)),
        (Usage(1, 0, 100, 11), (1, 111)),
        (Usage(3, 0, 400, 50), (3, 450)),
        (Usage(1), (1, 111)),
    ],
)
def test_usage_of_retrieval_is_counted_once(data, says, spent):
    few = replace(data, questions=data.questions[:6])
    with Server(answering(reply_to_think_task)) as s:
        llm = model(s)
        frame = run([FirstTurns(asks=lambda q: THINK.run(llm, question=q.text), usage=says)], few, llm)
    assert set(zip(frame.retrieval_calls, frame.retrieval_tokens)) == {spent}
    assert set(zip(frame.calls, frame.prompt_tokens + frame.completion_tokens)) == {
        (spent[0] + 1, spent[1] + 11)
    }
    assert set(frame.ways) == {"answer:model think:model"}


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
        lines = (tmp_path / "j").read_bytes().split(b"\n")
        cut = [line for line in lines[:-1] if b'"key": "matching/' not in line[:40]]
        (tmp_path / "j").write_bytes(b"\n".join(cut) + b"\n")
        resumed, other = Matching(), thinks()
        pd.testing.assert_frame_equal(
            without_times(run([other, "random", resumed], data, llm, journal=tmp_path / "j")),
            without_times(frame),
        )
        assert resumed.matched == first.matched and not other.threads, "from the journal's rows"


# --- outcomes of replies


def test_an_experiment_shows_and_stores_reply_outcomes(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    params = {"systems": "lexical,random", "split": "en1", "limit": 45, "embedder": "hash"}
    offline = Experiment("lesson", params, out_dir=tmp_path)
    offline.evaluate()
    assert "No model was asked" in offline.reply_outcomes() and "fallback" not in offline.comparison_tables()
    offline.finish()
    with Server(answering(reply_by_hash)) as s:
        monkeypatch.setenv("OPENAI_BASE_URL", s.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        for redact in (False, True):
            experiment = Experiment("lesson", {**params, "model": "m", "redact": redact}, out_dir=tmp_path)
            frame = experiment.evaluate()
            assert (
                "asked again" in experiment.reply_outcomes() and "fallback" in experiment.comparison_tables()
            )
            done = experiment.finish()
            kept = pd.read_csv(done.path / "tables" / "replies.csv")
            assert (
                kept.system.tolist() == ["lexical", "random"]
                and kept.n.sum() == sum(bool(w) for w in frame.ways) == 90
            )
            manifest = json.loads((done.path / "manifest.json").read_text(encoding="utf-8"))
            assert (
                manifest["fallbacks"] == tables.fallback_rates(frame)
                and 0 < manifest["fallbacks"]["answer"] < 1
            )
            assert [r["n"] for r in manifest["tally"]] == [45, 45]
            assert "ways" in pd.read_parquet(done.path / "results.parquet"), (
                "it holds no text of the data, and may be published"
            )
