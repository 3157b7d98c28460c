"""Judges and embedders of one's own: by name, in a run's identity, from packages, and in worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import checkout
import numpy as np
import pytest

import adaptmr as am
from adaptmr.embed import VectorCache, embedder
from adaptmr.embed.encoders import EMBEDDERS
from adaptmr.eval.judges.accuracy import JUDGES, make_judge
from adaptmr.eval.judges.judge import Verdict
from adaptmr.experiments import Experiment
from adaptmr.files import RunNotice
from adaptmr.plugins import load_plugins
from adaptmr.registry import NameTaken, forget_module, registered
from adaptmr.store.protocol import EmbedderMismatch

ROOT = Path(__file__).resolve().parent.parent
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
def own():
    """Forget what a test registers in this module, or in the plugin `of_mine`."""
    yield
    for module in (__name__, "of_mine"):
        forget_module(module)
        sys.modules.pop(module, None) if module == "of_mine" else None


@pytest.fixture
def plugin(tmp_path, own):
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


def test_a_judge_that_cannot_be_is_named(own):
    am.judge("words")(lambda question, prediction, abstained: "yes")
    am.judge("numbers")(lambda question, prediction, abstained: np.bool_(True))
    assert make_judge("numbers").judge(question(), "x", False).correct is True
    with pytest.raises(TypeError, match="judge 'words' returned 'yes' for question 'q': return True, False"):
        make_judge("words").judge(question(), "x", False)
    with pytest.raises(ValueError, match=r"unknown judge 'word' \(did you mean 'words'\?\); there are rul"):
        make_judge("word")
    with pytest.raises(NameTaken, match="the judge 'rules' is there already, from adaptmr itself"):
        am.judge("rules")(make_judge)


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
    forget_module(__name__)
    with pytest.raises(EmbedderMismatch, match="holds vectors of the embedder 'lengths'"):
        am.MemoryStore(str(tmp_path / "m.db")).search("where?")


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
            (lambda texts: [[float(text == "a")] for text in texts], "gave a vector of zeros, .* for 'b'"),
            (lambda texts: [[float("nan")] for _ in texts], "isn't finite, for 'a'"),
        )
    ):
        am.register_embedder(f"faulty{n}")(encode)
        with pytest.raises(ValueError, match=f"embedder 'faulty{n}' .*{said}"):
            embedder(f"faulty{n}", cache=False).encode(["a", "b"])


# --- one mechanism


def test_a_plugin_of_several_kinds_is_forgotten_whole(plugin):
    (loaded,) = load_plugins([str(plugin)])
    assert loaded.registered == ("embedder letters", "judge contains", "system newest words")
    assert set(registered("of_mine")) == set(loaded.registered) and loaded.names("judge") == ["contains"]
    plugin.write_text(JUDGE)
    (loaded,) = load_plugins([str(plugin)])
    assert loaded.registered == ("judge contains",) and "letters" not in EMBEDDERS and "contains" in JUDGES


PARAMS = {"systems": "lexical", "split": "en1", "limit": 3}


def test_judge_and_embedder_are_part_of_a_run(plugin, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    asked = {**PARAMS, "plugins": [str(plugin)], "judge": "contains", "embedder": "letters"}

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
        plugin.write_text(PLUGIN.replace(old, new))
        assert started().run.run_id != experiment.run.run_id
    with pytest.raises(ValueError, match="unknown judge 'contain'"):
        Experiment("own", {**asked, "judge": "contain"}, out_dir=tmp_path / "out")


def test_a_plugin_whose_judge_nobody_asks_is_named(plugin, tmp_path):
    plugin.write_text(JUDGE)
    with pytest.warns(RunNotice, match=r"none of it: name one, as in -p judge contains"):
        Experiment("own", {**PARAMS, "plugins": [str(plugin)], "embedder": "hash"}, out_dir=tmp_path)


@pytest.mark.slow
def test_a_run_with_own_judge_and_embedder_is_replayed_elsewhere(plugin, tmp_path):
    others = {"judge": "rules", "embedder": "hash", "redact": None, "plugins": None}
    asked = {**PARAMS, **others, "dataset": "demo", "model": "offline", "k": 10, "seed": 0}
    parameters = "\n".join(f"{name} = {value!r}" for name, value in {"out_dir": None, **asked}.items())
    run = f"""from adaptmr.experiments import Experiment
experiment = Experiment("tiny", dict({", ".join(f"{name}={name}" for name in asked)}), out_dir)
experiment.evaluate()
experiment.judge_answers()
experiment.finish()"""
    root = checkout.make(tmp_path / "checkout")
    cells = checkout.cell("p", parameters, ("parameters",)), checkout.cell("r", run)
    (root / "nbs" / "experiments" / "tiny.ipynb").write_text(checkout.notebook(*cells))
    own = ("-p", "judge", "contains", "-p", "embedder", "letters", "-p", "redact", "false")
    out = python(root, "-m", "adaptmr", "run", "tiny", "--import", plugin, *own)
    made = Path(out.strip()).parent
    assert (made / "vectors.npz").exists() and "contains" in (made / "report.html").read_text()
    kept = made / "plugins" / "of_mine.py"
    assert "the same tables" in python(root, "-m", "adaptmr", "runs", "replay", made, "--import", kept)


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
