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
import pandas as pd
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
    assert asked == 8 and changed.stdout == alone.stdout != whole and alone.returncode == 0, changed.stderr[
        -2000:
    ]
    assert (
        "RunNotice: the code changed since" in changed.stderr
        and "(system mine): its 4 rows are not continued" in changed.stderr
    )
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


def test_a_changed_strategy_has_another_run_id(tmp_path, monkeypatch, registered):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))

    def lesson(pool):
        strategy = module(tmp_path, STRATEGY.format(pool), monkeypatch)
        registered("mine", "a strategy")(
            lambda name, embedder, **_: PlannedSystem(
                name, StrategyPlanner(strategy.mine, "mine"), embedder=embedder
            )
        )
        return Experiment("lesson", LESSON, out_dir=tmp_path / "out")

    one = lesson(30)
    one.evaluate()
    first = one.finish()
    kept = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
    two = lesson(3)
    assert (
        two.run.run_id != one.run.run_id
        and two.run.run_id.rpartition("-")[0] == one.run.run_id.rpartition("-")[0]
    )
    two.evaluate()
    assert two.finish().path != first.path and {p: p.read_bytes() for p in kept} == kept
    manifest = json.loads((first.path / "manifest.json").read_text())
    assert list(manifest["code"]["own"]) == ["system mine"]
    assert lesson(30).run.run_id == one.run.run_id, "the same code has the same name"


def test_an_earlier_start_with_other_code_gets_a_notice(tmp_path, monkeypatch, registered):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))

    class Slow(PlannedSystem):
        def retrieve(self, question, k=10):
            if self.stops and len(self.asked) == 2:
                raise KeyboardInterrupt
            self.asked.append(question)
            return super().retrieve(question, k)

    def lesson(pool, stops):
        strategy = module(tmp_path, STRATEGY.format(pool), monkeypatch)

        def make(name, embedder, **_):
            made = Slow(name, StrategyPlanner(strategy.mine, "mine"), embedder=embedder)
            made.stops, made.asked = stops, []
            return made

        registered("mine", "a strategy")(make)
        return Experiment("lesson", LESSON, out_dir=tmp_path / "out")

    with pytest.raises(KeyboardInterrupt):
        lesson(30, True).evaluate()
    with pytest.warns(RunNotice, match=r"\d answers of an earlier start of lesson were made with other code"):
        lesson(3, False).evaluate()


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
    assert mine(Careful()) == mine(Careful(0.3)) != mine(Careful(0.4)) and mine(
        Careful(weights={"a": 1, "b": 2})
    ) == mine(Careful(weights={"b": 2, "a": 1}))
    assert (
        len(
            {
                mine(Careful(weights=w))
                for w in (
                    {},
                    {"a": 1},
                    {"a": 2},
                    {"b": 1},
                    {"a": np.ones(2)},
                    {"a": np.zeros(2)},
                    {"a": mine},
                    {"a": None},
                )
            }
        )
        == 8
    )
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

    one, two, asked = Own(1), Own(2), Own(1)
    asked.asked = 7
    assert user_code_hashes([one]) != user_code_hashes([two]) and user_code_hashes([one]) == user_code_hashes(
        [asked]
    )


def test_what_is_the_packages_adds_nothing():
    assert (
        user_code_hashes(
            list(known_systems(None)), loader="demo", embedder=am.embedder("hash"), model=am.LLM("offline")
        )
        == {}
    )
    assert user_code_hashes(["unified"], embedder={"minilm": am.embedder("hash")}) == {}


def test_embedders_loaders_and_models_count(registered):
    class Encoder:
        name, dim = "own", 4

        def __init__(self, scale):
            self.scale = scale

        def encode(self, texts, kind="passage"):
            return np.ones((len(texts), 4), np.float32) / 2

    class Model(am.LLM):
        pass

    assert user_code_hashes(["unified"], embedder=Encoder(1)) != user_code_hashes(
        ["unified"], embedder=Encoder(2)
    ) and user_code_hashes([], embedder=Encoder(1)).keys() == {"embedder"}
    assert user_code_hashes([], model=Model("offline")).keys() == {"model"}
    found = []
    for n in (1, 2):
        registry.register_dataset(
            registry.DatasetEntry("own", lambda path, n=n: am.load("demo", limit=n), "ours")
        )
        found.append(user_code_hashes([], loader="own")["data own"])
    assert found[0] != found[1]


def defined(text, **names):
    """What a notebook's cell defines: without a file."""
    exec(text, names)
    return names["mine"]


def test_what_a_function_uses_counts(registered):
    def hashed(text, **names):
        strategy = defined(text, RetrievalPlan=RetrievalPlan, **names)
        return mine(StrategyPlanner(strategy, "mine"))

    strategy = (
        "def helper(n): return n * STEP\ndef mine(question, now): return RetrievalPlan(pool=helper({}))"
    )
    assert hashed(strategy.format(5), STEP=1) == hashed(strategy.format(5), STEP=1)
    assert (
        len(
            {
                hashed(strategy.format(5), STEP=1),
                hashed(strategy.format(6), STEP=1),
                hashed(strategy.format(5), STEP=2),
                hashed(strategy.replace("n * STEP", "n + STEP").format(5), STEP=1),
            }
        )
        == 4
    )
    assert hashed(strategy.format(5), STEP=1) == hashed(strategy.format(5), STEP=1, unused=4)


def test_a_file_that_was_edited_but_not_imported_again_is_not_what_runs(tmp_path, monkeypatch):
    old = module(tmp_path, STRATEGY.format(5), monkeypatch)
    before = mine(StrategyPlanner(old.mine, "mine"))
    (tmp_path / "strategy.py").write_text(STRATEGY.format(6) + "# longer\n")
    stale = mine(StrategyPlanner(old.mine, "mine"))
    new = module(tmp_path, STRATEGY.format(6) + "# longer\n", monkeypatch)
    assert len({before, stale, mine(StrategyPlanner(new.mine, "mine"))}) == 3, (
        "the old code doesn't get the new file's name"
    )


def test_code_that_cannot_be_identified_must_declare_a_version():
    blob = type(
        "Blob",
        (),
        {"name": "blob", "ingest": print, "retrieve": print, "reset": print, "__module__": "nowhere"},
    )
    with pytest.raises(
        SourceUnavailable, match=r"system blob: 'Blob' has neither a file nor a source.*declare a version"
    ):
        user_code_hashes([blob()])
    found = []
    for version in ("1", "2"):
        blob.version = version
        found.append(user_code_hashes([blob()])["system blob"])
    assert found[0] != found[1]


CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import test_identity as t
from adaptmr.systems.base import PlannedSystem
from adaptmr.eval.runner.run import journal_keys
from adaptmr.eval.runner.identity import user_code_hashes
mine = PlannedSystem("mine", t.Careful(weights={"a", "b", "c"}))
print(user_code_hashes([mine, PlannedSystem("other", t.Plain(.3))]))
"""


def test_two_processes_describe_the_same_thing_alike():
    said = {
        subprocess.run(
            [sys.executable, "-c", CODE, str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1 and "system other" in said.pop()


def test_evaluate_without_a_journal_needs_no_source():
    blob = type("Blob", (PlannedSystem,), {"__module__": "nowhere"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = evaluate(
            [blob("blob", Careful(), embedder="hash")],
            am.load("demo", split="en1", limit=2),
            embedder="hash",
            progress=False,
        )
    assert isinstance(frame, pd.DataFrame) and len(frame) == 2
