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
from adaptmr.eval.report.notebook_output import save_clean_notebook
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
    words = [sys.executable, "-m", "adaptmr", *map(str, arguments)]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
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


@pytest.mark.slow
def test_a_plugin_is_in_the_tables_the_manifest_and_the_folder_of_the_run(recorded):
    root, run = recorded
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["systems"] == ["unified", "present"]
    assert manifest["params"]["plugins"] == ["strategy_of_mine.py"]
    (entry,) = manifest["plugins"]
    assert entry["registered"] == ["system present"]
    assert manifest["code"]["own"]["plugin strategy_of_mine.py"] == entry["sha256"][:16]
    assert (run / "plugins" / "strategy_of_mine.py").read_text() == STRATEGY
    assert (run / "plugins" / "weights_of_mine.py").read_text() == WEIGHTS
    assert "present" in (run / "tables" / "main.csv").read_text()
    here = str(root.parent)
    files = [p for p in run.rglob("*") if p.is_file() and p.suffix in (".json", ".ipynb", ".html", ".csv")]
    assert len(files) > 3 and [p.name for p in files if here in p.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_a_replay_works_elsewhere_with_the_kept_source_and_runs_no_code_that_is_not_named(recorded, tmp_path):
    root, run = recorded
    sent = tmp_path / "sent"
    shutil.copytree(run, sent)
    kept = sent / "plugins" / "strategy_of_mine.py"
    status, out, err = command(root, "runs", "replay", sent, "--import", kept)
    assert status == 0 and "the same tables" in out, err
    kept.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    status, _, err = command(root, "runs", "replay", sent)
    assert status == 2 and f"--import {kept}" in err and len(err.strip().split("\n")) == 1
    assert not (tmp_path / "ran").exists()


def test_a_changed_plugin_is_refused_and_so_is_one_of_another_run(tmp_path):
    same = write_plugin(tmp_path / "run" / "plugins")
    try:
        (loaded,) = load_plugins([str(same)])
        entry = {"name": same.name, "sha256": loaded.sha256}
        manifest = {"plugins": [entry], "params": {"plugins": [same.name]}}
        names = [p.name for p in plugins_for_replay(tmp_path / "run", manifest, [str(same)])]
        assert names == ["strategy_of_mine.py"]
        changed = write_plugin(tmp_path / "changed", WEIGHTS.replace("'time': 1.0", "'time': 2.0"))
        own = {"code": {"own": {"package nowhere": "3.1"}}}
        for recorded_, given, told in (
            (manifest, [str(changed)], r"strategy_of_mine.py was changed since .*has the old text"),
            ({"plugins": [], "params": {}}, [str(same)], r"was made without strategy_of_mine\.py: leave out"),
            ({"plugins": ["os"], "params": {}}, [], "must list plugins with their name and sha256"),
            ({"plugins": [], "params": {}, **own}, [], r"package nowhere 3\.1, .*install nowhere==3\.1"),
        ):
            with pytest.raises(PluginError, match=told):
                plugins_for_replay(tmp_path / "run", recorded_, given)
    finally:
        forget("strategy_of_mine", "weights_of_mine")


@pytest.mark.slow
def test_a_notebook_of_ones_own_runs_by_its_path(tmp_path):
    (tmp_path / "mine.ipynb").write_text(experiment_notebook())
    write_plugin(tmp_path)
    words = ["mine.ipynb", "--import", "strategy_of_mine", "-p", "systems", "present", "--out-dir", "out"]
    status, out, err = command(tmp_path, "run", *words)
    assert status == 0, err
    run = Path(out.strip()).parent
    assert run.parent == tmp_path / "out" / "tiny" and (run / "plugins" / "strategy_of_mine.py").exists()
    assert json.loads((run / "manifest.json").read_text())["params"]["plugins"] == ["strategy_of_mine"]


TAKEN = "import adaptmr\n@adaptmr.system('hybrid')\ndef f(question, now): pass\n"


def test_a_faulty_plugin_is_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plugin = tmp_path / "faulty_plugin.py"
    for text, said in (
        ("x = 1 / 0\n", "can't be imported, line 1: ZeroDivisionError: division by zero; correct it"),
        ("def x(:\n", "can't be imported, line 1: SyntaxError"),
        ("import nowhere_at_all\n", "install nowhere_at_all into this environment"),
        ("import adaptmr\n", "registers nothing: put @adaptmr.system"),
        ("raise SystemExit(3)\n", "can't be imported, line 1: SystemExit: 3"),
        (TAKEN, "the system 'hybrid' is there already, from adaptmr itself: give yours another name"),
    ):
        plugin.write_text(text)
        with pytest.raises(PluginError) as e:
            load_plugins([str(plugin)])
        assert said in str(e.value) and str(e.value).startswith(plugin.name) and "\n" not in str(e.value)
        assert "faulty_plugin" not in sys.modules
    (tmp_path / "json.py").write_text("")
    for given, said in (
        ("./nowhere.py", "there is no file ./nowhere.py"),
        ("no_such.module", "there is no module 'no_such.module'"),
        ("json.py", "rename the file"),
    ):
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


def test_a_plugin_that_nobody_asks_is_named(plugin, tmp_path):
    asked = {"plugins": str(plugin), "systems": "unified", "split": "en1", "limit": 2, "embedder": "hash"}
    said = r"has the system present, and this run asks for none of it: .*-p systems unified,present"
    with pytest.warns(RunNotice, match=said):
        Experiment("lesson", asked, out_dir=tmp_path / "out")
    assert "present" not in known_systems() and "present" in known_systems("own")


def test_an_injected_plugin_is_written_without_its_folder(tmp_path):
    injected = checkout.cell("i", 'k = 1\nplugins = ["/home/me/mine.py", "a.b"]', ("injected-parameters",))
    (tmp_path / "a.ipynb").write_text(checkout.notebook(injected))
    save_clean_notebook(tmp_path / "a.ipynb", tmp_path / "b.ipynb")
    assert 'plugins = [\\"mine.py\\", \\"a.b\\"]' in (tmp_path / "b.ipynb").read_text()


def test_everything_that_can_be_registered_makes_a_system():
    class Planner:
        def __init__(self, llm=None):
            self.name, self.llm = "planner", llm

        def plan(self, query, store):
            return am.RetrievalPlan(weights={"lexical": 1.0})

    class Foreign:
        name = "foreign"
        reset = ingest = retrieve = lambda self, *given: am.Usage()

    def strategy(question, now):
        return am.RetrievalPlan()

    def factory(name, embedder):
        return Foreign()

    try:
        for name, thing in {
            "a planner class": Planner,
            "a system class": Foreign,
            "a strategy": strategy,
            "a factory": factory,
            "a planner": Planner(),
        }.items():
            am.system(name)(thing)
        made = {name: make_system(name, embedder="hash") for name in known_systems("own")}
        assert len(made) == 5 and all(system.name == name for name, system in made.items())
        planned = {name for name, system in made.items() if isinstance(system, PlannedSystem)}
        assert planned == {"a planner class", "a strategy", "a planner"}
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
