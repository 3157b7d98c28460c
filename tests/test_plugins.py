"""Plugins: own systems in a run of the command line, their source in its identity, replays, and faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import checkout
import pytest

import adaptmr as am
from adaptmr.experiments import Experiment
from adaptmr.files import RunNotice
from adaptmr.plugins import PluginError, load_plugins, plugins_for_replay
from adaptmr.registry import ENTRY_POINTS, NameTaken, forget_module, load_packages, packages_of, registered
from adaptmr.retrieval.strategies import STRATEGIES
from adaptmr.systems.base import PlannedSystem, known_systems, make_system

ROOT = Path(__file__).resolve().parent.parent
STRATEGY = """
import adaptmr as am
from weights_of_mine import WEIGHTS

@am.system("present")
def present(question, now):
    "Recent memories weigh more."
    return am.RetrievalPlan(weights=WEIGHTS, prefer_latest=True)
"""
WEIGHTS = "WEIGHTS = {'hybrid': 1.0, 'time': 1.0}\n"
PARAMETERS = """out_dir = None
systems = None
plugins = None
redact = None
model = "offline"
dataset = "demo"
split = "en1"
k = 10
limit = 3
seed = 0
embedder = "hash"
"""
PLAIN = ("systems", "plugins", "redact", "model", "dataset", "split", "k", "limit", "seed", "embedder")
RUN = f"""from adaptmr.experiments import Experiment
experiment = Experiment("tiny", dict({", ".join(f"{name}={name}" for name in PLAIN)}), out_dir)
rows = experiment.evaluate().groupby("system", sort=False)[["recall_fraction"]].mean()
experiment.run.write_table(rows.reset_index(), "main")
experiment.finish()"""


def command(folder: Path, *arguments: object) -> tuple[int, str, str]:
    """Run `adaptmr` in a folder; return its status, output and error output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ADAPTMR_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "adaptmr", *map(str, arguments)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def experiment_notebook(parameters: str = PARAMETERS) -> str:
    return checkout.notebook(checkout.cell("p", parameters, ("parameters",)), checkout.cell("r", RUN))


def write_plugin(folder: Path, weights: str = WEIGHTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "strategy_of_mine.py").write_text(STRATEGY)
    (folder / "weights_of_mine.py").write_text(weights)
    return folder / "strategy_of_mine.py"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Run an experiment of a small checkout with a plugin that lies elsewhere."""
    root = checkout.make(tmp_path_factory.mktemp("plugins") / "checkout")
    (root / "nbs" / "experiments" / "tiny.ipynb").write_text(experiment_notebook())
    plugin = write_plugin(root.parent / "elsewhere")
    status, out, err = command(root, "run", "tiny", "--import", plugin, "-p", "systems", "unified,present")
    assert status == 0, err
    return root, Path(out.strip()).parent


def test_a_plugin_is_in_the_tables_the_manifest_and_the_folder_of_the_run(recorded):
    root, run = recorded
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["systems"] == ["unified", "present"]
    assert manifest["params"]["plugins"] == ["strategy_of_mine.py"]
    (entry,) = manifest["plugins"]
    assert (
        entry["registered"] == ["system present"]
        and manifest["code"]["own"]["plugin strategy_of_mine.py"] == (entry["sha256"][:16])
    )
    assert (run / "plugins" / "strategy_of_mine.py").read_text() == STRATEGY
    assert (run / "plugins" / "weights_of_mine.py").read_text() == WEIGHTS
    assert "present" in (run / "tables" / "main.csv").read_text()
    here = str(root.parent)
    files = [p for p in run.rglob("*") if p.is_file() and p.suffix in (".json", ".ipynb", ".html", ".csv")]
    assert len(files) > 3 and [p.name for p in files if here in p.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_a_replay_works_elsewhere_with_the_kept_source(recorded, tmp_path):
    root, run = recorded
    sent = tmp_path / "sent"
    shutil.copytree(run, sent)
    status, out, err = command(
        root, "runs", "replay", sent, "--import", sent / "plugins" / "strategy_of_mine.py"
    )
    assert status == 0 and "the same tables" in out, err
    assert sorted(p.name for p in (sent / "plugins").iterdir()) == [
        "strategy_of_mine.py",
        "weights_of_mine.py",
    ]


def test_a_replay_runs_no_code_that_is_not_named(recorded, tmp_path):
    root, run = recorded
    sent = tmp_path / "sent"
    shutil.copytree(run, sent)
    (sent / "plugins" / "strategy_of_mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    status, _, err = command(root, "runs", "replay", sent)
    assert status == 2 and f"--import {sent / 'plugins' / 'strategy_of_mine.py'}" in err
    assert not (tmp_path / "ran").exists() and len(err.strip().split("\n")) == 1


def test_a_changed_plugin_is_refused_and_so_is_one_of_another_run(recorded, tmp_path):
    _, run = recorded
    manifest = json.loads((run / "manifest.json").read_text())
    changed = write_plugin(tmp_path / "changed", WEIGHTS.replace("'time': 1.0", "'time': 2.0"))
    try:
        with pytest.raises(PluginError, match=r"strategy_of_mine.py was changed since .*has the old text"):
            plugins_for_replay(run, manifest, [str(changed)])
        same = write_plugin(tmp_path / "same")
        assert [p.name for p in plugins_for_replay(run, manifest, [str(same)])] == ["strategy_of_mine.py"]
        without = {**manifest, "plugins": [], "params": {}}
        with pytest.raises(PluginError, match=r"was made without strategy_of_mine\.py: leave out"):
            plugins_for_replay(run, without, [str(same)])
        with pytest.raises(PluginError, match="must list plugins with their name and sha256"):
            plugins_for_replay(run, {**manifest, "plugins": ["os"]}, [])
        with pytest.raises(
            PluginError, match=r"package nowhere 3\.1, and here is none: install nowhere==3\.1"
        ):
            plugins_for_replay(run, {**without, "code": {"own": {"package nowhere": "3.1"}}}, [])
    finally:
        forget("strategy_of_mine", "weights_of_mine")


@pytest.mark.slow
def test_a_notebook_of_ones_own_runs_by_its_path(tmp_path):
    (tmp_path / "mine.ipynb").write_text(experiment_notebook())
    write_plugin(tmp_path)
    status, out, err = command(
        tmp_path,
        "run",
        "mine.ipynb",
        "--import",
        "strategy_of_mine",
        "-p",
        "systems",
        "present",
        "--out-dir",
        "out",
    )
    assert status == 0, err
    run = Path(out.strip()).parent
    assert run.parent == tmp_path / "out" / "tiny" and (run / "plugins" / "strategy_of_mine.py").exists()
    assert json.loads((run / "manifest.json").read_text())["params"]["plugins"] == ["strategy_of_mine"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1 / 0\n", "can't be imported, line 1: ZeroDivisionError: division by zero; correct it"),
        ("def x(:\n", "can't be imported, line 1: SyntaxError"),
        ("import nowhere_at_all\n", "install nowhere_at_all into this environment"),
        ("import adaptmr\n", "registers nothing: put @adaptmr.system"),
        ("raise SystemExit(3)\n", "can't be imported, line 1: SystemExit: 3"),
        (
            "import adaptmr\n@adaptmr.system('hybrid')\ndef f(question, now): pass\n",
            "the system 'hybrid' is there already, from adaptmr itself: give yours another name",
        ),
        ("import adaptmr\n@adaptmr.system('a,b')\ndef f(question, now): pass\n", "without commas"),
    ],
    ids=["fails", "syntax", "missing module", "nothing", "exit", "taken", "comma"],
)
def test_a_faulty_plugin_is_one_message(tmp_path, text, said):
    (tmp_path / "faulty_plugin.py").write_text(text)
    with pytest.raises(PluginError) as e:
        load_plugins([str(tmp_path / "faulty_plugin.py")])
    assert said in str(e.value) and str(e.value).startswith("faulty_plugin.py") and "\n" not in str(e.value)
    assert "faulty_plugin" not in sys.modules


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("./nowhere.py", "there is no file ./nowhere.py"),
        ("no_such.module", "there is no module 'no_such.module'"),
        ("my-plugin.py", "give it a name such as my_strategy.py"),
        ("json.py", "rename the file"),
    ],
)
def test_a_plugin_that_cannot_be_found_or_named(tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    for name in ("my-plugin.py", "json.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(PluginError, match=said):
        load_plugins([given])


# --- in one process


def forget(*modules: str) -> None:
    for module in modules:
        forget_module(module)
        sys.modules.pop(module, None)


@pytest.fixture
def plugin(tmp_path):
    yield write_plugin(tmp_path)
    forget("strategy_of_mine", "weights_of_mine")


def test_a_changed_text_is_read_anew_and_makes_another_run(plugin, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    asked = {"plugins": [str(plugin)], "systems": "present", "split": "en1", "limit": 2, "embedder": "hash"}

    def start():
        return Experiment("lesson", asked, out_dir=tmp_path / "out")

    first = start()
    assert start().run.run_id == first.run.run_id, "the same text, the same run"
    (plugin.parent / "weights_of_mine.py").write_text(WEIGHTS.replace("1.0}", "2.0}"))
    second = start()
    assert second.run.run_id != first.run.run_id
    weights = make_system("present", embedder="hash").planner.strategy(am.Question("", "x"), None).weights
    assert weights == {"hybrid": 1.0, "time": 2.0}, "what a plugin imports is read anew, too"


def test_everything_that_can_be_registered_makes_a_system():
    class Planner:
        def __init__(self, llm=None):
            self.name, self.llm = "planner", llm

        def plan(self, query, store):
            return am.RetrievalPlan(weights={"lexical": 1.0})

    class Foreign:
        name = "foreign"

        def __init__(self):
            self.turns = []

        reset, ingest = __init__, lambda self, conversation: am.Usage()

        def retrieve(self, question, k):
            return am.Evidence([])

    def strategy(question, now):
        return am.RetrievalPlan()

    def factory(name, embedder):
        return Foreign()

    def wrong(name):
        return 3

    try:
        for name, thing in {
            "a planner class": Planner,
            "a system class": Foreign,
            "a strategy": strategy,
            "a factory": factory,
            "a planner": Planner(),
            "wrong": wrong,
        }.items():
            am.system(name)(thing)
        made = {name: make_system(name, embedder="hash") for name in known_systems("own") if name != "wrong"}
        assert {name: system.name for name, system in made.items()} == {name: name for name in made}
        planned = {name for name, system in made.items() if isinstance(system, PlannedSystem)}
        assert planned == {"a planner class", "a strategy", "a planner"} and len(made) == 5
        with pytest.raises(TypeError, match="made a int, which has neither a method `retrieve`"):
            make_system("wrong")
        with pytest.raises(NameTaken, match=r"is there already, from .*Planner in "):
            am.system("a planner class")(strategy)
    finally:
        forget_own(__name__)


def forget_own(module: str) -> None:
    forget_module(module)
    assert registered(module) == {}


def test_strategies_of_one_name_make_one_router_and_change_no_other():
    def dated(question, now):
        return am.RetrievalPlan(planner="dated")

    def newest(question, now):
        return am.RetrievalPlan(planner="newest")

    before = dict(STRATEGIES)
    try:
        am.strategy(am.QueryType.temporal_reasoning, system="mine")(dated)
        am.strategy("knowledge_update", system="mine")(newest)
        router = make_system("mine", embedder="hash").planner
        assert router.strategies[am.QueryType.temporal_reasoning] is dated
        assert router.strategies[am.QueryType.knowledge_update] is newest
        assert router.strategies[am.QueryType.multi_hop] is before[am.QueryType.multi_hop]
        assert before == STRATEGIES and make_system("adaptmr").planner.strategies == before
        with pytest.raises(ValueError, match="'riddle' is no type of question; there are "):
            am.strategy("riddle")
        with pytest.raises(ValueError, match="needs a type of question"):
            am.strategy()
    finally:
        forget_own(__name__)


def test_an_installed_package_brings_systems_and_a_broken_one_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "brings_one.py").write_text(
        "import adaptmr as am\n@am.system('brought')\ndef f(question, now): return am.RetrievalPlan()\n"
    )
    (tmp_path / "is_broken.py").write_text("1 / 0\n")
    points = [EntryPoint(name, name, ENTRY_POINTS[0]) for name in ("is_broken", "brings_one")]
    try:
        with pytest.warns(RunNotice, match="is_broken are left out, because .*ZeroDivisionError"):
            load_packages(points)
        assert "brought" in known_systems("own")
        assert packages_of(["system brought", "system hybrid"]) == {"brings_one": ""}
    finally:
        forget("brings_one")
