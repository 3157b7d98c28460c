"""The user's own code and settings identify a run: a change starts it again, with a notice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import adaptmr as am
from adaptmr.data import registry
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.eval.runner.identity import SourceUnavailable, user_code_hashes
from adaptmr.eval.runner.run import journal_keys
from adaptmr.experiments import Experiment
from adaptmr.files import RunNotice
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.strategies import StrategyPlanner
from adaptmr.systems import base
from adaptmr.systems.base import PlannedSystem, known_systems, register_system

MINE = """
import os, signal
from pathlib import Path
from adaptmr.types import Evidence, Hit, Usage
import beside

class Mine:
    name = "mine"
    def __init__(self, first=0): self.turns, self.asked, self.first = [], 0, first
    def reset(self): self.turns = []
    def ingest(self, conversation): self.turns = list(conversation.turns); return Usage()
    def retrieve(self, question, k):
        self.asked += 1
        with open(os.environ["LOG"], "a") as f: f.write("x")
        if self.asked == int(os.environ["KILL"]): os.kill(os.getpid(), signal.SIGKILL)
        return Evidence([Hit(m, 1.0) for m in beside.chosen(self.turns)[:k]])
"""
FIRST, LAST = "def chosen(turns): return turns\n", "def chosen(turns): return turns[::-1]\n"
RUN = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import adaptmr as am, mine
from adaptmr.eval.runner.evaluate import evaluate
data = am.load("demo", split="en1", limit=8)
frame = evaluate([mine.Mine()], data, embedder="hash", progress=False, journal=sys.argv[2])
print(frame[[c for c in frame.columns if not c.startswith("ms_")]].to_json(orient="split"))
"""


def start(folder, journal, kill=0):
    log = folder / "log"
    log.write_text("")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(journal)],
        capture_output=True,
        text=True,
        env={**os.environ, "KILL": str(kill), "LOG": str(log), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done, len(log.read_text())


@pytest.mark.slow
def test_a_run_cut_off_and_changed_is_begun_again(tmp_path):
    """`mine.py` stays as it is; what it imports, `beside.py`, changes."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text(FIRST)
    killed, asked = start(tmp_path, tmp_path / "j", kill=4)
    assert killed.returncode == -signal.SIGKILL and asked == 4
    begun = journal_keys(tmp_path / "j")
    for name in ("j", "j-wal"):
        shutil.copyfile(tmp_path / name, tmp_path / name.replace("j", "j2", 1))
    whole = start(tmp_path, tmp_path / "whole")[0].stdout
    same, asked = start(tmp_path, tmp_path / "j2")
    assert same.stdout == whole and asked == 5 and "RunNotice" not in same.stderr, same.stderr[-2000:]
    (tmp_path / "beside.py").write_text(LAST)
    changed, asked = start(tmp_path, tmp_path / "j")
    alone, _ = start(tmp_path, tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr[-2000:]
    assert asked == 8 and changed.stdout == alone.stdout != whole, changed.stderr[-2000:]
    assert "RunNotice: the code changed since" in changed.stderr
    assert "(system mine): its 4 rows are not continued" in changed.stderr
    assert journal_keys(tmp_path / "j.other-code-1") == begun


@pytest.fixture
def registered():
    """Gives `register_system` for this test alone."""
    known_systems(None), registry.datasets()  # the package's own are there
    before, sets = dict(base.SYSTEMS.entries), dict(registry._ENTRIES)
    yield register_system
    for kept, now in ((before, base.SYSTEMS.entries), (sets, registry._ENTRIES)):
        now.clear()
        now.update(kept)


def module(folder, text, monkeypatch):
    """A module `strategy` of the user's, imported anew."""
    (folder / "strategy.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("strategy", None)
    import strategy

    return strategy


STRATEGY = (
    "from adaptmr.retrieval.plan import RetrievalPlan\n"
    "def mine(question, now): return RetrievalPlan(pool={})\n"
)
LESSON = {"systems": "mine,lexical", "split": "en1", "limit": 4, "embedder": "hash"}


@pytest.fixture
def lesson(tmp_path, monkeypatch, registered):
    """Gives a function that starts an experiment with a user's strategy of this pool."""
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))

    class Stopping(PlannedSystem):
        def retrieve(self, question, k=10):
            if self.stops and self.asked == 2:
                raise KeyboardInterrupt
            self.asked += 1
            return super().retrieve(question, k)

    def start(pool, stops=False):
        strategy = module(tmp_path, STRATEGY.format(pool), monkeypatch)

        def make(name, embedder, **_):
            made = Stopping(name, StrategyPlanner(strategy.mine, "mine"), embedder=embedder)
            made.stops, made.asked = stops, 0
            return made

        registered("mine", "a strategy")(make)
        return Experiment("lesson", LESSON, out_dir=tmp_path / "out")

    return start


def test_a_changed_strategy_has_another_run_id(lesson):
    one = lesson(30)
    one.evaluate()
    first = one.finish()
    kept = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
    two = lesson(3)
    assert two.run.run_id != one.run.run_id
    assert two.run.run_id.rpartition("-")[0] == one.run.run_id.rpartition("-")[0]
    two.evaluate()
    assert two.finish().path != first.path and {p: p.read_bytes() for p in kept} == kept
    manifest = json.loads((first.path / "manifest.json").read_text())
    assert list(manifest["code"]["own"]) == ["system mine"]
    assert lesson(30).run.run_id == one.run.run_id, "the same code has the same name"


def test_an_earlier_start_with_other_code_gets_a_notice(lesson):
    with pytest.raises(KeyboardInterrupt):
        lesson(30, stops=True).evaluate()
    with pytest.warns(RunNotice, match=r"\d answers of an earlier start of lesson were made with other code"):
        lesson(3).evaluate()


# --- what counts, and what doesn't


@dataclass(frozen=True)
class Careful:
    """A planner with settings."""

    threshold: float = 0.3
    weights: dict = field(default_factory=dict)
    name: str = "careful"

    def plan(self, query, store):
        return RetrievalPlan(relevance_threshold=self.threshold)


class Plain:
    """A planner that is no dataclass."""

    name = "plain"

    def __init__(self, threshold):
        self._threshold, self.extra, self.seen = threshold, 1, []

    def plan(self, query, store):
        return RetrievalPlan()


def mine(planner):
    return user_code_hashes([PlannedSystem("mine", planner)])["system mine"]


def test_settings_of_planners_count():
    assert mine(Careful()) == mine(Careful(0.3)) != mine(Careful(0.4))
    assert mine(Careful(weights={"a": 1, "b": 2})) == mine(Careful(weights={"b": 2, "a": 1}))
    values = (1, 2, np.ones(2), np.zeros(2), mine, None)
    others = [{}, {"b": 1}, *({"a": value} for value in values)]
    assert len({mine(Careful(weights=weights)) for weights in others}) == len(others)
    assert mine(Plain(0.3)) == mine(Plain(0.3)) != mine(Plain(0.4))
    changed = Plain(0.3)
    changed.extra = 2
    assert mine(changed) != mine(Plain(0.3)), "a planner has no state: all that is plain in it is a setting"
    changed.extra = 1
    changed.seen.append("a question")
    assert mine(changed) == mine(Plain(0.3))


def test_a_system_is_identified_by_what_its_constructor_takes():
    class Own(PlannedSystem):
        def __init__(self, depth):
            super().__init__("own", Careful())
            self.depth, self.asked = depth, 0

    one, two, asked = (user_code_hashes([Own(depth)]) for depth in (1, 2, 1))
    assert one == asked != two
    busy = Own(1)
    busy.asked = 7
    assert user_code_hashes([busy]) == one


def test_what_is_the_packages_adds_nothing():
    parts = {"loader": "demo", "embedder": am.embedder("hash"), "model": am.LLM("offline")}
    assert user_code_hashes(list(known_systems(None)), **parts) == {}
    assert user_code_hashes(["unified"], embedder={"minilm": am.embedder("hash")}) == {}


def test_embedders_loaders_and_models_count(registered):
    class Encoder:
        name, dim = "own", 4

        def __init__(self, scale):
            self.scale = scale

        def encode(self, texts, kind="passage"):
            return np.ones((len(texts), 4), np.float32) / 2

    one, two = (user_code_hashes(["unified"], embedder=Encoder(scale)) for scale in (1, 2))
    assert one != two and one.keys() == {"embedder"}
    assert user_code_hashes([], model=type("Model", (am.LLM,), {})("offline")).keys() == {"model"}
    found = []
    for n in (1, 2):
        entry = registry.DatasetEntry("own", lambda path, n=n: am.load("demo", limit=n), "ours")
        registry.register_dataset(entry)
        found.append(user_code_hashes([], loader="own")["data own"])
    assert found[0] != found[1]


def test_what_a_function_uses_counts(registered):
    def hashed(text, **names):
        names["RetrievalPlan"] = RetrievalPlan
        exec(text, names)  # as a notebook's cell: without a file
        return mine(StrategyPlanner(names["mine"], "mine"))

    text = "def helper(n): return n * STEP\ndef mine(question, now): return RetrievalPlan(pool=helper({}))"
    five, six, other = text.format(5), text.format(6), text.replace("n * STEP", "n + STEP").format(5)
    assert hashed(five, STEP=1) == hashed(five, STEP=1) == hashed(five, STEP=1, unused=4)
    found = {hashed(five, STEP=1), hashed(six, STEP=1), hashed(five, STEP=2), hashed(other, STEP=1)}
    assert len(found) == 4


def test_what_runs_counts_and_not_what_the_file_has_become(tmp_path, monkeypatch):
    old = module(tmp_path, STRATEGY.format(5), monkeypatch)
    before = mine(StrategyPlanner(old.mine, "mine"))
    (tmp_path / "strategy.py").write_text(STRATEGY.format(6) + "# longer\n")
    stale = mine(StrategyPlanner(old.mine, "mine"))
    new = module(tmp_path, STRATEGY.format(6) + "# longer\n", monkeypatch)
    assert before == stale != mine(StrategyPlanner(new.mine, "mine"))


def test_code_that_cannot_be_identified_must_declare_a_version():
    members = {"name": "blob", "ingest": print, "retrieve": print, "reset": print, "__module__": "nowhere"}
    blob = type("Blob", (), members)
    told = r"system blob: 'Blob' has no code that shows.*declare a version"
    with pytest.raises(SourceUnavailable, match=told):
        user_code_hashes([blob()])
    found = []
    for version in ("1", "2"):
        blob.version = version
        found.append(user_code_hashes([blob()])["system blob"])
    assert found[0] != found[1]
    system = type("Blob", (PlannedSystem,), {"__module__": "nowhere"})("blob", Careful(), embedder="hash")
    data = am.load("demo", split="en1", limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = evaluate([system], data, embedder="hash", progress=False)
    assert len(frame) == 2, "without a journal no source is needed"


CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_identity as t
from adaptmr.systems.base import PlannedSystem
mine = PlannedSystem("mine", t.Careful(weights={"a", "b", "c"}))
print(t.user_code_hashes([mine, PlannedSystem("other", t.Plain(.3))]))
"""


@pytest.mark.slow
def test_two_processes_describe_the_same_thing_alike():
    said, command = set(), [sys.executable, "-c", CODE, str(Path(__file__).parent)]
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        said.add(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)
    assert len(said) == 1 and "system other" in said.pop()
