"""Workers: any number of processes gives the rows of one, and no stop loses an answer or leaves a process."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import pandas as pd
import pytest
from server import Server, answering, ok_json

import adaptmr as am
from adaptmr.embed import VectorCache, encoders
from adaptmr.embed import embedder as make_embedder
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.units import Schedule, Unit, plan_units
from adaptmr.eval.runner.worker_pipe import pack_error, unpack_error
from adaptmr.eval.runner.workers import WorkerDied
from adaptmr.experiments import Experiment
from adaptmr.files import RunNotice
from adaptmr.llm import LLM
from adaptmr.llm.replay import ReplayCache, ReplayMiss
from adaptmr.llm.tasks import OUTCOME_COUNTER
from adaptmr.systems.base import make_system, register_system, unregister_system
from adaptmr.types import Usage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks, which need Linux")

OFFLINE = ["unified", "adaptmr", "layered", "qarp", "token_matched"]
PATIENCE = 30.0  # seconds that a test waits for something that should happen at once


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split="en1,zh2", limit=16)


def run(systems, data, llm=None, **more):
    return evaluate(systems, data, llm, **{"embedder": "hash", "progress": False, **more})


def same(one, other):
    """Compare everything of two runs but the clock."""
    columns = [c for c in one if not c.startswith("ms_")]
    assert list(one) == list(other)
    pd.testing.assert_frame_equal(one[columns], other[columns], check_exact=True)
    assert list(one.attrs) == list(other.attrs)
    for name, value in one.attrs.items():
        if name == "ingest":
            value, again = ([{**cost, "seconds": 0} for cost in f.attrs[name]] for f in (one, other))
            assert value == again
        else:
            assert json.dumps(value, default=str) == json.dumps(other.attrs[name], default=str), name


def rows_in(journal):
    lines = [json.loads(line) for line in Path(journal).read_bytes().split(b"\n")[1:-1]]
    return {
        line["key"]: {k: v for k, v in line["row"].items() if not k.startswith("ms_") and k != "seconds"}
        for line in lines
    }


def reply(body):
    """A valid reply to whatever is asked, which depends on the question."""
    length = len(json.dumps(body["messages"]))
    return ok_json({"answer": f"answer {length}", "abstain": length % 5 == 0}, prompt=50 + length % 9, done=3)


@pytest.fixture
def registered():
    """Register systems by name for one test."""
    names = []

    def register(name, factory):
        register_system(name, "a system of a test", "own")(factory)
        names.append(name)
        return name

    yield register
    for name in names:
        unregister_system(name)


class Wrapped:
    """The hybrid system under another name, which does something before each question."""

    def __init__(self, name, embedder, before):
        self.name, self.inner, self.before = name, make_system("hybrid", embedder=embedder), before

    def ingest(self, conversation):
        self.conversation = conversation.id
        return self.inner.ingest(conversation)

    def retrieve(self, question, k):
        self.before(self.conversation, question)
        return self.inner.retrieve(question, k)

    def reset(self):
        self.inner.reset()


def wrapped(before):
    return lambda name, embedder, **_: Wrapped(name, embedder, before)


# the units


def test_a_unit_waits_for_the_system_whose_budget_it_has():
    units = plan_units(["a", "b", "c"], ["x", "y"], {"c"}, {"b": "a"})
    assert units[0] == Unit("c", ("x", "y"))
    schedule = Schedule(units)
    taken = [schedule.take() for _ in range(3)]
    assert [(u.system, u.conversations) for u in taken] == [("c", ("x", "y")), ("a", ("x",)), ("a", ("y",))]
    assert schedule.take() is None and schedule.waiting
    schedule.finish(taken[2])
    assert schedule.take() == Unit("b", ("y",), frozenset({("a", "y")}))
    assert schedule.take() is None


def test_a_budget_from_a_system_in_order_waits_for_all_of_it():
    units = plan_units(["a", "b"], ["x", "y"], {"a"}, {"b": "a"})
    schedule = Schedule(units)
    whole = schedule.take()
    assert whole.system == "a" and schedule.take() is None
    schedule.finish(whole)
    assert schedule.take().system == "b"


# the same rows


def test_rows_do_not_depend_on_the_number_of_workers(data, tmp_path):
    frames, journals = [], []
    for n in (1, 2, 3):
        frames.append(run(OFFLINE, data, workers=n, journal=tmp_path / f"j{n}"))
        journals.append(rows_in(tmp_path / f"j{n}"))
    for frame, journal in zip(frames[1:], journals[1:]):
        same(frames[0], frame)
        assert journal == journals[0]


def test_a_team_and_a_budget_taken_from_it(tmp_path):
    data = am.load("demo_multihop", limit=4)
    systems = ["team_full", "one_agent"]
    frames = [run(systems, data, workers=n, journal=tmp_path / f"j{n}") for n in (1, 2)]
    same(*frames)
    assert not list(tmp_path.glob("*.states"))


def test_workers_with_a_model_behind_a_server(data, tmp_path):
    frames, used, usages, events = [], [], [], []
    for n in (1, 2, 3):
        with Server(answering(reply)) as server, ReplayCache(tmp_path / f"calls{n}.sqlite") as cache:
            llm = LLM("m", base_url=server.url, cache=cache, concurrency=4)
            frames.append(
                run(["hybrid", "qarp", "token_matched"], data, llm, workers=n, used=cache.used.copy)
            )
            used.append({record["key"]: record["reply"]["text"] for record in cache.records()})
            usages.append((llm.usage.calls, llm.usage.tokens))
            events.append(llm.event_counts["sent"])
            assert server.most_at_once <= 4
    for n in (1, 2):
        same(frames[0], frames[n])
        assert (used[0], usages[0]) == (used[n], usages[n])
    assert frames[0].attrs["used"] == sorted(used[0])
    assert events[0] == len(used[0])


def test_recorded_calls_are_replayed_by_workers(data, tmp_path):
    with Server(answering(reply)) as server:
        cache = ReplayCache(tmp_path / "calls.sqlite")
        first = run(["qarp"], data, LLM("m", base_url=server.url, cache=cache), workers=1)
        cache.dump(tmp_path / "calls.jsonl.gz")
    replayed = ReplayCache.from_file(tmp_path / "calls.jsonl.gz")
    columns = [c for c in first if not c.startswith("ms_")]
    again = run(["qarp"], data, LLM("m", base_url="http://127.0.0.1:9/v1", cache=replayed), workers=2)
    pd.testing.assert_frame_equal(first[columns], again[columns], check_exact=True)


def test_the_parent_encodes_and_stores_the_vectors(data, tmp_path):
    frames, kept = [], []
    for n in (1, 2):
        cache = VectorCache(tmp_path / f"v{n}.sqlite")
        encoder = make_embedder("minilm", cache=cache, progress=False)
        used = partial(cache.used_since, 0)
        frames.append(run(["unified", "hybrid"], data, embedder=encoder, workers=n, used=used))
        cache.export_npz(tmp_path / f"v{n}.npz")
        kept.append((tmp_path / f"v{n}.npz").read_bytes())
        assert encoder.encoded == len(cache) > 0, "this process encoded every text"
    same(*frames)
    assert kept[0] == kept[1]


def test_a_run_folder_is_the_same(tmp_path, monkeypatch):
    files = []
    for n in (1, 2):
        monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / f"cache{n}"))
        params = {"systems": "unified,adaptmr", "split": "en1", "limit": 6, "workers": n}
        experiment = Experiment("lesson", params, tmp_path / f"out{n}")
        frame = experiment.evaluate()
        experiment.table("table", frame.groupby("system", as_index=False)["f1"].mean(), "F1")
        run_folder = experiment.finish()
        manifest = json.loads((run_folder.path / "manifest.json").read_text())
        assert "workers" not in manifest["params"]
        names = ("results.parquet", "vectors.npz", "tables/table.csv")
        files.append((run_folder.run_id, {f: (run_folder.path / f).read_bytes() for f in names}))
    assert files[0] == files[1]


def test_a_journal_is_continued_with_another_number(data, tmp_path, registered):
    def fail(conversation, question):
        if conversation.endswith("zh2") and (tmp_path / "fails").exists():
            raise ValueError("not now")

    name = registered("fails_once", wrapped(fail))
    (tmp_path / "fails").touch()
    with pytest.raises(ValueError, match="not now"):
        run(["unified", name], data, workers=2, journal=tmp_path / "j")
    before = rows_in(tmp_path / "j")
    (tmp_path / "fails").unlink()
    resumed = run(["unified", name], data, workers=3, journal=tmp_path / "j")
    assert 0 < len(before) < len(rows_in(tmp_path / "j"))
    same(run(["unified", name], data, workers=1), resumed)


# what several processes share


def test_no_worker_loads_the_encoder(tmp_path, monkeypatch, registered):
    loads, load = [], encoders._load_minilm

    def note_load(precision):
        loads.append(os.getpid())
        (tmp_path / f"loaded by {os.getpid()}").touch()
        return load(precision)

    monkeypatch.setattr(encoders, "_load_minilm", note_load)
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    few = am.load("demo", split="en1,en2", limit=8)
    run(["unified", "hybrid", "adaptmr"], few, embedder="minilm", workers=2)
    assert loads and [p.name for p in tmp_path.glob("loaded by *")] == [f"loaded by {os.getpid()}"]


def test_a_worker_has_the_conversations_of_its_parent_and_reads_no_data_again(data, registered, tmp_path):
    class Seen(Wrapped):
        def ingest(self, conversation):
            (tmp_path / f"{conversation.id.replace('/', '-')} {id(conversation)} {os.getpid()}").touch()
            return super().ingest(conversation)

    name = registered("seen", lambda name, embedder, **_: Seen(name, embedder, lambda c, q: None))
    run([name], data, workers=2)
    seen = [path.name.rsplit(" ", 1) for path in tmp_path.iterdir()]
    assert {where for where, _ in seen} == {f"{c.id.replace('/', '-')} {id(c)}" for c in data.conversations}
    assert str(os.getpid()) not in {pid for _, pid in seen}


def test_fallbacks_in_workers_are_counted_as_in_one_process(data, tmp_path):
    def reply_or_nonsense(body):
        return reply(body) if len(json.dumps(body["messages"])) % 2 else ok_json("no JSON at all")

    counts = []
    for n in (1, 2):
        with (
            Server(answering(reply_or_nonsense)) as server,
            ReplayCache(tmp_path / f"calls{n}.sqlite") as cache,
        ):
            OUTCOME_COUNTER.reset()
            frame = run(["hybrid", "qarp"], data, LLM("m", base_url=server.url, cache=cache), workers=n)
            counts.append((OUTCOME_COUNTER.snapshot(), frame["ways"].tolist()))
    OUTCOME_COUNTER.reset()
    assert counts[0] == counts[1] and any(how == "fallback" for _, how in counts[0][0])


def test_rows_say_how_many_questions_were_asked_at_once(data, tmp_path):
    for n in (1, 2):
        frame = run(["unified", "hybrid"], data, workers=n)
        assert set(frame["ms_at_once"]) == {n}
    with Server(answering(reply)) as server, ReplayCache(tmp_path / "calls.sqlite") as cache:
        llm = LLM("m", base_url=server.url, cache=cache, concurrency=4)
        assert set(run(["hybrid"], data, llm, workers=1)["ms_at_once"]) == {4}
        cache.mode = "replay"
        assert set(run(["hybrid"], data, llm, workers=2)["ms_at_once"]) == {2}


# what a worker says


def test_what_a_system_prints_appears_where_the_parent_prints(data, registered):
    def speak(conversation, question):
        print("asked", question.text, end="!\n")
        print("to stderr", file=sys.stderr)

    name, said = registered("prints", wrapped(speak)), []
    for n in (1, 2):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run([name], data, workers=n)
        said.append((sorted(out.getvalue().splitlines()), err.getvalue().count("to stderr\n")))
    assert said[0] == said[1] == (sorted(f"asked {q.text}!" for q in data.questions), len(data.questions))


def test_a_warning_of_a_category_that_can_not_be_sent_is_shown_once(data, registered):
    class Local(UserWarning):
        pass

    name = registered("warns", wrapped(lambda c, q: warnings.warn("odd", Local, stacklevel=1)))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        run([name], data, workers=2)
    assert [(str(w.message), w.category) for w in shown if str(w.message) == "odd"] == [("odd", UserWarning)]


def test_a_filter_by_module_acts_on_the_warnings_of_workers(data, registered):
    name = registered("warns", wrapped(lambda c, q: warnings.warn("mine", DeprecationWarning, stacklevel=1)))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", category=DeprecationWarning, module=f"{__name__}$")
        run([name], data, workers=2)
    assert [str(w.message) for w in shown] == ["mine"]


def test_the_progress_of_two_workers_counts_every_answer_once(data, monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTMR_PROGRESS", str(tmp_path / "progress"))
    run(["unified", "hybrid"], data, workers=2, progress=None)
    told = [json.loads(line)["progress"] for line in (tmp_path / "progress").read_text().splitlines()]
    total = 2 * len(data.questions)
    assert [p["done"] for p in told] == list(range(total + 1)) and {p["total"] for p in told} == {total}


# where workers are started


def test_more_workers_than_cores(data):
    same(run(OFFLINE, data, workers=1), run(OFFLINE, data, workers=8))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_start_method_of_multiprocessing_changes_nothing(data, method):
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        assert set(run(["unified"], data, workers=2)["ms_at_once"]) == {2}
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_where_a_process_can_not_be_copied_one_asks_and_a_notice_says_so(data, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.warns(RunNotice, match="workers=2 was asked for, and 1 asks.*darwin"):
        assert set(run(["unified"], data, workers=2)["ms_at_once"]) == {1}


def test_in_threads_each_run_is_asked_by_one_process(data):
    alone = run(["unified", "hybrid"], data, workers=1)
    with pytest.warns(RunNotice, match="a thread of the program"), ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(run, ["unified", "hybrid"], data, workers=2) for _ in range(2)]:
            same(alone, each.result(timeout=4 * PATIENCE))


def test_a_system_that_evaluates_in_a_worker(data, registered):
    inner = am.load("demo", split="en1,zh2", limit=4)

    def evaluate_too(conversation, question):
        assert len(run(["unified"], inner, workers=2)) == len(inner.questions)

    name = registered("nested", wrapped(evaluate_too))
    few = am.load("demo", split="en1,zh2", limit=4)
    same(run([name], few, workers=1), run([name], few, workers=2))


def test_what_the_parent_had_open_before_the_fork(data, registered, tmp_path):
    store = am.MemoryStore(str(tmp_path / "open.db"), embedder="hash")
    store.add(["I live in Leeds."])
    big = np.ones((700, 700), np.float32)
    expected = float((big @ big).sum())  # in as many threads as BLAS has here

    def use(conversation, question):
        assert float((big @ big).sum()) == expected
        assert am.MemoryStore(str(tmp_path / "open.db"), embedder="hash").search("Leeds", k=1)

    frame = run([registered("uses", wrapped(use))], data, workers=2)
    assert len(frame) == len(data.questions) and store.search("Leeds", k=1)
    store.close()


def test_a_system_with_a_state_that_can_not_be_pickled(data, registered, tmp_path):
    def make(name, embedder, **_):
        system = Wrapped(name, embedder, lambda c, q: next(system.numbers))
        system.lock, system.numbers = threading.Lock(), iter(range(10**6))
        system.file = (tmp_path / "file").open("w")
        return system

    name = registered("unpicklable", make)
    same(run([name], data, workers=1), run([name], data, workers=2))


# errors and stops


def test_a_program_that_ignores_its_children(data, registered):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert len(run(["unified"], data, workers=2)) == len(data.questions)
        name = registered("ends", wrapped(lambda c, q: os._exit(3)))
        with pytest.raises(WorkerDied, match="was ended for an unknown reason"):
            run([name], data, workers=2)
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(
    ("end", "told"),
    [(lambda: os.kill(os.getpid(), signal.SIGTERM), "by SIGTERM"), (lambda: os._exit(3), "with code 3")],
)
def test_a_worker_that_is_ended_says_how(data, registered, end, told):
    name = registered("ends", wrapped(lambda c, q: end()))
    with pytest.raises(WorkerDied, match=f"was ended {told}"):
        run([name], data, workers=2)


def test_a_system_that_exits_ends_the_run_as_in_one_process(data, registered):
    name = registered("exits", wrapped(lambda c, q: sys.exit(7)))
    for n in (1, 2):
        with pytest.raises(SystemExit) as caught:
            run([name], data, workers=n)
        assert caught.value.code == 7


# where one process asks


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2"], ids=repr)
def test_a_number_that_can_not_be(data, workers):
    with pytest.raises(ValueError, match="workers="):
        run(["unified"], data, workers=workers)


def test_a_notice_says_why_one_process_asks(data):
    asked = []
    system = Wrapped("own", "hash", lambda c, q: asked.append(os.getpid()))
    with pytest.warns(RunNotice, match="workers=2 was asked for.*'own' is an object"):
        run([system], data, workers=2)
    assert set(asked) == {os.getpid()}


def test_calls_cached_in_memory_are_made_by_one_process(data):
    with Server(answering(reply)) as server, pytest.warns(RunNotice, match="cached in memory"):
        run(["unified"], data, LLM("m", base_url=server.url, cache=ReplayCache()), workers=2)


def test_little_work_is_done_here(data, registered):
    asked = []
    run([registered("here", wrapped(lambda c, q: asked.append(os.getpid())))], data)
    assert set(asked) == {os.getpid()}


def test_notices_of_workers_are_shown_here(data, registered):
    from adaptmr.files import notice

    name = registered("speaks", wrapped(lambda c, q: notice(f"asked about {c}")))
    with pytest.warns(RunNotice) as shown:
        run([name], data, workers=2)
    assert {str(w.message) for w in shown} == {f"asked about {c.id}" for c in data.conversations}


def test_an_error_arrives_with_its_type_message_and_traceback(data, registered):
    def miss(conversation, question):
        raise ReplayMiss("k", "plan", {"model": "m"}, "calls.sqlite", 7)

    with pytest.raises(ReplayMiss, match="no recorded reply") as caught:
        run([registered("misses", wrapped(miss))], data, workers=2)
    assert "in miss" in caught.value.__notes__[0] and caught.value.task == "plan"


def test_an_error_that_can_not_be_sent_is_named():
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError

    error = unpack_error(pack_error(Odd("words")))
    assert type(error) is RuntimeError and "Odd('words')" in str(error)


def test_a_killed_worker_is_named_and_loses_no_answer(data, tmp_path, registered):
    last = data.questions_on(data.conversations[1].id)[-1].text

    def die(conversation, question):
        if question.text == last and (tmp_path / "dies").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    name = registered("dies", wrapped(die))
    (tmp_path / "dies").touch()
    where = f"'dies' on '{data.conversations[1].id}' was ended by SIGKILL"
    with pytest.raises(WorkerDied, match=where):
        run([name], data, workers=2, journal=tmp_path / "j")
    kept = rows_in(tmp_path / "j")
    answered = [q for q in data.questions_on(data.conversations[1].id) if q.text != last]
    assert all(f"dies/{q.conversation}/{q.id}" in kept for q in answered)
    (tmp_path / "dies").unlink()
    same(run([name], data, workers=1), run([name], data, workers=2, journal=tmp_path / "j"))


PROGRAM = """
import os, signal, sys, time
import adaptmr as am
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.systems.base import make_system, register_system

class Slow:
    name = "slow"
    def __init__(self): self.inner = make_system("hybrid", embedder="hash")
    def ingest(self, conversation): return self.inner.ingest(conversation)
    def reset(self): self.inner.reset()
    def retrieve(self, question, k):
        print(os.getpid(), flush=True)
        if {hangs}: time.sleep(60)
        return self.inner.retrieve(question, k)

register_system("slow", "slow", "own")(lambda **more: Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program started in the background ignores it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one that nohup started ignores this
data = am.load("demo", split="en1,zh2", limit=16)
evaluate(["slow"], data, embedder="hash", workers=2, journal=sys.argv[1])
"""


def start(hangs, journal):
    code = textwrap.dedent(PROGRAM).replace("{hangs}", hangs)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(journal)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def two_workers(program):
    found = set()
    while len(found) < 2:
        line = program.stdout.readline()
        assert line, program.stderr.read()
        found.add(int(line))
    return found


def wait_until_gone(pids):
    until = monotonic() + PATIENCE
    while alive := [p for p in pids if Path(f"/proc/{p}").exists()]:
        assert monotonic() < until, f"{alive} still run"
        os.sched_yield()


@pytest.mark.parametrize("whom", ["the parent", "all, as a terminal does"])
def test_an_interrupt_ends_all_though_the_workers_hang(tmp_path, whom):
    """They would hang for a minute. How long a stop takes depends on the machine: `make bench` times one."""
    program = start("True", tmp_path / "j")
    workers = two_workers(program)
    begun = monotonic()
    if whom == "the parent":
        program.send_signal(signal.SIGINT)
    else:
        os.killpg(program.pid, signal.SIGINT)
    error = program.stderr.read()
    program.wait(PATIENCE)
    assert "KeyboardInterrupt" in error.splitlines()[-1] and monotonic() - begun < PATIENCE
    wait_until_gone(workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_workers_end_with_a_parent_that_is_told_to_end(tmp_path, number):
    program = start("True", tmp_path / "j")
    workers = two_workers(program)
    program.send_signal(number)
    program.wait(PATIENCE)
    wait_until_gone(workers)


def test_workers_end_when_the_parent_is_killed_and_the_run_goes_on(data, tmp_path):
    program = start("len(open(sys.argv[1]).readlines()) > 6", tmp_path / "j")
    workers = two_workers(program)
    until = monotonic() + PATIENCE
    while len((tmp_path / "j").read_text().splitlines()) <= 6:
        assert monotonic() < until
        os.sched_yield()
    program.kill()
    program.wait()
    wait_until_gone(workers)
    before = rows_in(tmp_path / "j")
    assert len(before) >= 6
    again = start("False", tmp_path / "j")
    again.communicate()
    assert again.returncode == 0
    rows = rows_in(tmp_path / "j")
    assert before.items() <= rows.items() and len(rows) == len(data.questions) + 2
    other = start("False", tmp_path / "other")
    other.communicate()
    assert rows == rows_in(tmp_path / "other")


# solvers that remember


class Pupil:
    """A solver that answers with how many questions it was asked before, in this run."""

    name, scope = "pupil", "run"

    def __init__(self):
        self.asked = 0

    def reset(self):
        self.asked = 0

    def ingest(self, conversation):
        return Usage()

    def solve(self, question):
        from adaptmr.memory.team.steps import Transcript
        from adaptmr.systems.base import Solution
        from adaptmr.types import Answer, Evidence

        self.asked += 1
        return Solution(Answer(str(self.asked)), Evidence([]), Transcript(question.text))


def test_a_solver_that_remembers_is_asked_in_order_by_one_process(data, registered):
    name = registered("pupil", lambda **more: Pupil())
    frame = run(["unified", name], data, workers=3)
    numbers = frame[frame["system"] == "pupil"]["prediction"]
    assert numbers.tolist() == [str(i + 1) for i in range(len(data.questions))]
