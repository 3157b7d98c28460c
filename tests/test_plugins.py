"""Plugins: systems, judges and embedders of one's own, in runs and replays, from packages, and in workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import checkout
import numpy as np
import pytest

import adaptmr as am
from adaptmr.embed import VectorCache, embedder
from adaptmr.eval.judges.accuracy import make_judge
from adaptmr.eval.judges.judge import Verdict
from adaptmr.experiments import Experiment
from adaptmr.files import RunNotice
from adaptmr.plugins import PluginError, load_plugins, plugins_for_replay
from adaptmr.registry import NameTaken, forget_module, registered
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


def test_a_changed_plugin_is_refused_and_so_is_one_of_another_run(tmp_path, own):
    same = write_plugin(tmp_path / "run" / "plugins")
    (loaded,) = load_plugins([str(same)])
    entry = {"name": same.name, "sha256": loaded.sha256}
    manifest = {"plugins": [entry], "params": {"plugins": [same.name]}}
    names = [p.name for p in plugins_for_replay(tmp_path / "run", manifest, [str(same)])]
    assert names == ["strategy_of_mine.py"]
    changed = write_plugin(tmp_path / "changed", WEIGHTS.replace("'time': 1.0", "'time': 2.0"))
    for recorded_, given, told in (
        (manifest, [str(changed)], r"strategy_of_mine.py was changed since .*take the old one"),
        ({"plugins": [], "params": {}}, [str(same)], r"was made without strategy_of_mine\.py: leave out"),
        ({"plugins": ["os"], "params": {}}, [], "must list plugins with their name and sha256"),
    ):
        with pytest.raises(PluginError, match=told):
            plugins_for_replay(tmp_path / "run", recorded_, given)


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
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
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


@pytest.fixture
def own():
    """Forget what a test registers in this module, or in one of its plugins."""
    yield
    for module in (__name__, "of_mine", "strategy_of_mine", "weights_of_mine", "brings_one"):
        forget_module(module)
        assert registered(module) == {}
        if module != __name__:
            sys.modules.pop(module, None)


@pytest.fixture
def plugin(tmp_path, own):
    return write_plugin(tmp_path)


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


def test_everything_that_can_be_registered_makes_a_system(own):
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


def test_strategies_of_one_name_make_one_router_and_change_no_other(own):
    def dated(question, now):
        return am.RetrievalPlan(planner="dated")

    def newest(question, now):
        return am.RetrievalPlan(planner="newest")

    before = dict(STRATEGIES)
    am.strategy(am.QueryType.temporal_reasoning, system="mine")(dated)
    am.strategy("knowledge_update", system="mine")(newest)
    router = make_system("mine", embedder="hash").planner
    assert router.strategies[am.QueryType.temporal_reasoning] is dated
    assert router.strategies[am.QueryType.knowledge_update] is newest
    assert router.strategies[am.QueryType.multi_hop] is before[am.QueryType.multi_hop]
    assert before == STRATEGIES and make_system("adaptmr").planner.strategies == before


# --- judges and embedders

JUDGE = """
import adaptmr as am

@am.judge("contains")
def contains(question, prediction, abstained):
    "An answer is right when it holds a gold answer."
    return not abstained and any(gold.lower() in prediction.lower() for gold in question.answers)
"""
EMBEDDER = """
import adaptmr as am

@am.register_embedder("letters")
class Letters:
    "How often letters occur."
    letters = "aeiou"

    def encode(self, texts, kind):
        return [[1, *(text.lower().count(letter) for letter in self.letters)] for text in texts]
"""
SYSTEM = """
import adaptmr as am

@am.system("newest words")
def newest(question, now):
    "Words, and time."
    return am.RetrievalPlan(weights={"lexical": 1.0, "time": 0.5})
"""
PLUGIN = JUDGE + EMBEDDER + SYSTEM


@pytest.fixture
def several(tmp_path, own):
    (tmp_path / "of_mine.py").write_text(PLUGIN)
    return tmp_path / "of_mine.py"


def python(folder: Path, *arguments: object) -> str:
    """Run Python in a folder, where it finds what lies there; return what it printed."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "ADAPTMR_CACHE": str(folder / "cache"), "HOME": str(folder)}
    words = [sys.executable, *map(str, arguments)]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# --- judges


def question(answer="2"):
    return am.Question("q", "How many cats?", [answer], am.QueryType.factual_extraction, conversation="c")


def test_whatever_can_be_registered_judges(own):
    @am.judge("a function")
    def longer(question, prediction, abstained):
        return len(prediction) > 3

    @am.judge("a class")
    class Model:
        def __init__(self, llm=None):
            self.llm = llm

        def judge(self, question, prediction, abstained):
            return Verdict(True, (True, True, False), am.Usage(calls=3), how=self.llm.model)

    am.judge("an object")(Model(am.LLM("offline")))
    judged = [make_judge("a function").judge(question(), text, False).correct for text in ("two", "cats")]
    assert judged == [False, True]
    for name in ("a class", "an object"):
        made = make_judge(name, am.LLM("offline"))
        verdict = made.judge(question(), "x", False)
        assert (made.name, verdict.votes, verdict.how) == (name, (True, True, False), "offline")
        assert made.llm.model == "offline", "its requests may be sent at once"


# --- embedders


def test_an_embedder_by_its_name_is_a_model_like_any_other(own, tmp_path):
    @am.register_embedder("lengths")
    def lengths(texts, kind="passage"):
        return [[3.0, 4.0 * len(text)] if kind == "query" else [1.0, 0.0] for text in texts]

    cache = VectorCache(tmp_path / "v.sqlite")
    made = embedder("lengths", cache=cache)
    vectors = made.encode(["a", "b", "a"], kind="query")
    assert (made.name, made.dim, vectors.dtype, made.encoded) == ("lengths", 2, np.float32, 2)
    assert np.allclose(vectors, [[0.6, 0.8]] * 3, atol=1e-3)
    assert made.encode(["a"], kind="passage").tolist() == [[1.0, 0.0]]
    again = embedder("lengths", cache=cache)
    assert again.encode(["b"], kind="query").tolist() == vectors[1:2].tolist()
    assert (again.encoded, again.from_cache) == (0, 1)
    with am.MemoryStore(str(tmp_path / "m.db"), embedder="lengths") as store:
        store.add(["one", "three", "fourteen"])
        assert store.embedder.name == "lengths" and len(store.search("where?", k=2, mode="dense")) == 2
    with am.MemoryStore(str(tmp_path / "m.db")) as again:
        assert len(again.search("where?", k=2, mode="dense")) == 2, "the file names it"


def test_other_code_never_gets_the_vectors_of_the_old(own, tmp_path):
    cache = VectorCache(tmp_path / "v.sqlite")

    def made(number):
        def constant(texts):
            return [[1.0, number] for _ in texts]

        am.register_embedder("constant")(constant)
        return embedder("constant", cache=cache)

    first, second = made(0.0), made(1.0)
    assert first.revision != second.revision and made(0.0).revision == first.revision
    assert first.encode(["a"]).tolist() == [[1.0, 0.0]] != second.encode(["a"]).tolist()


def test_rows_that_cannot_be_vectors(own):
    for n, (encode, said) in enumerate(
        (
            (lambda texts: [[1.0, 0.0]], r"gave an array of shape \(1, 2\) for 2 texts"),
            (lambda texts: [[float(text == "a")] for text in texts], "not all 0"),
            (lambda texts: [[float("nan")] for _ in texts], "finite numbers"),
        )
    ):
        am.register_embedder(f"faulty{n}")(encode)
        with pytest.raises(ValueError, match=f"embedder 'faulty{n}' .*{said}"):
            embedder(f"faulty{n}", cache=False).encode(["a", "b"])


# --- one mechanism


PARAMS = {"systems": "lexical", "split": "en1", "limit": 3}


def test_judge_and_embedder_are_part_of_a_run(several, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    asked = {**PARAMS, "plugins": [str(several)], "judge": "contains", "embedder": "letters"}

    def started():
        return Experiment("own", asked, out_dir=tmp_path / "out")

    experiment = started()
    rows = experiment.evaluate()
    assert dict(rows.attrs["embedders"]) == {"letters": "float32"}
    table = experiment.judge_answers()
    assert "Judge contains" in str(table)
    run = experiment.finish()
    own = json.loads((run.path / "manifest.json").read_text())["code"]["own"]
    assert {"judge contains", "embedder letters", "plugin of_mine.py"} <= set(own)
    assert (run.path / "plugins" / "of_mine.py").read_text() == PLUGIN
    assert started().run.run_id == experiment.run.run_id
    for old, new in (("not abstained and", "bool(prediction) and"), ('"aeiou"', '"aeio"')):
        several.write_text(PLUGIN.replace(old, new))
        assert started().run.run_id != experiment.run.run_id
    with pytest.raises(ValueError, match="unknown judge 'contain'"):
        Experiment("own", {**asked, "judge": "contain"}, out_dir=tmp_path / "out")


# --- installed packages


def install(folder: Path, text: str = PLUGIN) -> None:
    """Put a package with entry points into a folder, as an installer would."""
    (folder / "brings_all.py").write_text(text)
    described = folder / "brings_all-2.5.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: brings-all\nVersion: 2.5\n")
    (described / "entry_points.txt").write_text(
        "[adaptmr.judges]\nmine = brings_all\n[adaptmr.embedders]\nmine = brings_all\n"
    )


@pytest.mark.slow
def test_an_installed_package_brings_all_kinds_and_its_version(tmp_path):
    install(tmp_path)
    code = """
import json, sys
import adaptmr as am
assert am.embedder("letters", cache=False).encode(["aeiou"]).shape == (1, 6)
assert "brings_all" in sys.modules
from adaptmr.eval.judges.accuracy import make_judge
assert make_judge("contains").name == "contains" and "newest words" in am.systems("own")
from adaptmr.experiments import Experiment
params = {"systems": "newest words", "split": "en1", "limit": 2, "embedder": "letters", "judge": "contains"}
print(json.dumps(Experiment("own", params, out_dir="out").user_code))
"""
    found = json.loads(python(tmp_path, "-W", "error::UserWarning", "-c", code))
    assert found["package brings-all"] == "2.5"
    listed = "from adaptmr.cli.doctor import check_plugins; print(*check_plugins())"
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with (tmp_path / "brings_all-2.5.dist-info" / "entry_points.txt").open("a") as f:
        f.write("[adaptmr.systems]\nother = broken\n")
    shown = python(tmp_path, "-c", listed)
    assert "brings-all" in shown and "2.5: embedder letters, judge contains, system newest words" in shown
    assert "broken can't be imported (ZeroDivisionError" in shown and "update the package" in shown


# --- in worker processes

SAME = """
frames = [
    am.evaluate(["lexical", SYSTEM], am.load("demo", split="en1,zh2", limit=8), embedder=EMBEDDER,
                judge="contains", workers=n, progress=False)
    for n in (1, 2)
]
same = [c for c in frames[0] if not c.startswith("ms_")]
import pandas as pd
pd.testing.assert_frame_equal(frames[0][same], frames[1][same])
print(len(frames[0]), sorted(set(frames[0]["system"])))
""".replace("SYSTEM", '"newest words"').replace("EMBEDDER", '"letters"')
IMPORTED = "import adaptmr as am\nfrom adaptmr.plugins import load_plugins\nload_plugins(['./of_mine.py'])\n"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["a file", "a cell"])
def test_workers_have_the_same_rows(tmp_path, where):
    (tmp_path / "of_mine.py").write_text(PLUGIN)
    code = ("-c", IMPORTED + SAME) if where == "a file" else ("-m", "IPython", "-c", PLUGIN + SAME)
    said = python(tmp_path, "-W", "error::UserWarning", *code)
    assert said.strip().splitlines()[-1] == "16 ['lexical', 'newest words']"
