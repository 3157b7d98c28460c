"""`adaptmr run`: complete and repeatable run folders, checked parameters, named errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import checkout
import numpy as np
import pytest
from cli_runs import refused, said

from adaptmr import cli
from adaptmr.embed.vector_cache import VectorCache
from adaptmr.eval.report.recorded_run import compare_tables

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def files(folder):
    found = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


@pytest.fixture
def root(tmp_path, monkeypatch):
    made = checkout.make(tmp_path / "checkout")
    monkeypatch.chdir(made)
    return made


# --- a whole run, in processes of its own


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run one setting twice: as a command, and by papermill alone from another folder."""
    place = tmp_path_factory.mktemp("runs")
    (place / "elsewhere").mkdir()
    small = ["-p", "limit", "6", "-p", "embedder", "hash", "-p", "split", "en1"]

    def start(*command, cwd, cache, **more):
        env = {**os.environ, "ADAPTMR_CACHE": str(place / cache), **more}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([str(c) for c in command], cwd=cwd, env=env, text=True, **pipes)

    command = [BIN / "adaptmr", "run", "exp3", *small, "-p", "systems", "[unified, hybrid]"]
    first = start(*command, "--out-dir", place / "out", cwd=ROOT, cache="cache1")
    notebook = [ROOT / "nbs" / "experiments" / "exp3.ipynb", place / "elsewhere" / "out.ipynb"]
    given = [*small, "-p", "systems", "unified,hybrid", "-p", "out_dir", place / "alone", "--no-progress-bar"]
    words = [BIN / "papermill", *notebook, *given]  # with another seed of Python's hashes
    alone = start(*words, cwd=place / "elsewhere", cache="cache2", PYTHONHASHSEED="7")
    for process in (first, alone):
        err = process.communicate(timeout=300)[1]
        assert process.returncode == 0, err[-3000:]
    return place, next((place / "out" / "exp3").iterdir()), next((place / "alone" / "exp3").iterdir())


@pytest.mark.slow
def test_the_command_and_papermill_alone_give_the_same_run_and_nothing_of_this_machine(ran):
    place, folder, alone = ran
    before, by_papermill = files(folder), files(alone)
    kept = [n for n in before if n.startswith(("results.parquet", "tables/", "figures/"))]
    timeless = [n for n in kept if not n.startswith("tables/costs.")]
    assert len(timeless) > 12 and folder.name == alone.name
    assert [n for n in timeless if before[n] != by_papermill[n]] == [] == compare_tables(folder, alone)
    homes = {str(Path.home()) + "/"} - {"//"}  # some users have / as their home
    places = {str(place), str(ROOT), tempfile.gettempdir() + "/", *homes, sys.prefix, "file:"}
    for name, data in before.items():
        if not name.endswith((".png", ".npz")):
            text = data.decode("utf-8", "replace")
            assert [p for p in places if p in text] == [], name
            assert not re.search(r"out_dir\s*=\s*['\"]", text), name
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#|mailto:)[^"']*["']""", page)
    assert "part of demo: 1 conversations, 6 questions" in page and "import adaptmr" not in page
    notebook = json.loads((folder / "notebook.ipynb").read_text(encoding="utf-8"))
    outputs = [o for c in notebook["cells"] for o in c.get("outputs", [])]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]


@pytest.mark.slow
def test_a_run_is_complete_and_a_second_one_writes_nothing(root, capsys):
    status, out, _ = said(capsys, "run", "tiny", "-p", "k", "3")
    folder = Path(out.strip()).parent
    assert status == 0 and out == f"{folder / 'report.html'}\n" and folder.parent == root / "outputs" / "tiny"
    made = files(folder)
    assert {"report.html", "manifest.json", "notebook.ipynb", "tables/main.csv"} <= set(made)
    assert folder.name in (root / "outputs" / "index.csv").read_text(encoding="utf-8")
    assert said(capsys, "run", "tiny", "-p", "k", "3")[1] == out and files(folder) == made
    manifest = json.loads((folder / "manifest.json").read_text())
    assert cli.read_run_config(folder, root)[1] == manifest["params"] and manifest["params"]["k"] == 3


@pytest.mark.slow
def test_a_cell_that_fails_is_shown_without_a_traceback_and_kept(tmp_path, capsys, monkeypatch):
    root = checkout.make(tmp_path / "checkout", "raise ValueError('no data set of that name')")
    monkeypatch.chdir(root)
    status, _, err = said(capsys, "run", "tiny")
    assert status == 1 and "no data set of that name" in err and (root / "outputs/failed.ipynb").exists()


# --- what is wrong is named before anything runs


def test_a_wrong_call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "taken").touch()
    for words, names in {
        "run exp99": ["'exp99'", "exp3"],
        "run exp3 -p topk 5": ["topk", "-p", "systems"],
        "run exp3 -p k [1": ["-p k", "YAML"],
        "run exp3 -f nowhere.yaml": ["nowhere.yaml"],
        "run": ["EXPERIMENT"],
        "sweeep": ["did you mean 'sweep'"],
        "runs replay": ["--all"],
        "run ../exp3": ["../exp3"],
        f"run exp3 --out-dir {tmp_path / 'taken'}": ["taken", "--out-dir"],
        "run exp1 -p dataset nowhere": ["no data set 'nowhere'"],
        "run exp1 -p plugins [./nowhere.py]": ["there is no file ./nowhere.py"],
        "data get dmo": ["did you mean 'demo'"],
    }.items():
        message = refused(capsys, *words.split())
        assert all(n.lower() in message.lower() for n in names), message


def test_a_broken_or_ambiguous_file_of_parameters_is_named(root, tmp_path, capsys):
    for text, names in (
        ("k: [1", ["YAML"]),
        ("- 1\n- 2\n", ["list"]),
        ("k: !!python/object/apply:os.system ['true']\n", ["YAML"]),
        ("a: &a [lol, lol]\nb: [*a, *a]\n", ["line 2", "'a'", "alias"]),
        ("k: 1\nnames: [a]\nk: 2\n", ["'k'", "line 3", "second time"]),
        ("k: " + "[" * 10_000, ["nested too deeply"]),
        ("# " + "x" * 2_000_000, ["bytes"]),
        ("k: .nan\n", ["'k'"]),
        ("\udcff\udcfe", []),
    ):
        (tmp_path / "mine.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
        message = refused(capsys, "run", "tiny", "-f", tmp_path / "mine.yaml")
        assert all(n in message for n in ["mine.yaml", *names]) and not (root / "outputs").exists(), message


def test_later_sources_of_parameters_win(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "nbs" / "retrieval")
    assert cli.project_root() == ROOT and "exp3" in cli.experiment_names(ROOT)
    (tmp_path / "a.yaml").write_text("k: 3\nseed: 5\n")
    (tmp_path / "b.yaml").write_text("k: 4\n")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    sources = [str(tmp_path / n) for n in ("a.yaml", "b.yaml", "empty.yaml")]
    pairs = [("limit", "7"), ("limit", "8"), ("systems", "[unified]"), ("split", "en1")]
    got = cli.gather_params(ROOT, "exp3", sources, pairs)
    assert [got[n] for n in ("k", "seed", "limit", "systems", "split")] == [4, 5, 8, ["unified"], "en1"]
    base = cli.gather_params(ROOT, "exp3", [], [])
    assert base["k"] == 10 and base["model"] == "offline"


# --- a received run: this checkout's notebook with plain values, and no received code


def test_what_no_run_wrote_is_refused(root, tmp_path, capsys):
    """Parameters that are code, an experiment that isn't here, a manifest that can't be read."""
    code = "__import__('os').system('touch ran')"
    names = (f"{code}; z", f"k, z = {code}, z", "lambda", "k ", "", "1k", "ｋ", "k\u0000", "out_dir")
    cases = [({name: "ran"}, "tiny", "/manifest.json") for name in names]
    cases += [({"k": value}, "tiny", "must be text, a number") for value in ({"a": 1}, [[1]], float("nan"))]
    cases += [(None, "tiny", "must map names to values"), ({"embedder": "nbs"}, "tiny", "is a folder here")]
    others = ("../../x", "tiny.ipynb", "", None, ["tiny"], "Tiny")
    cases += [({"k": 1}, other, "none of this checkout's, which are tiny") for other in others]
    for n, (params, experiment, why) in enumerate(cases):
        folder = checkout.received(tmp_path / f"sent{n}", params, experiment)
        before = files(tmp_path)
        assert why in refused(capsys, "runs", "replay", folder)
        assert files(tmp_path) == before, "nothing was run and nothing written"
    for text in ("[]", "{half", "", "[" * 100_000):
        (folder / "manifest.json").write_text(text)
        assert f"{folder.name}/manifest.json" in refused(capsys, "runs", "replay", folder)


@pytest.mark.slow
def test_a_replay_runs_this_checkouts_notebook_and_not_the_received_one(root, tmp_path, capsys):
    """The values would be code if they weren't quoted."""
    names = ["'; __import__('os').system('true') #", '"""', "\\", "{k}", "$(true)"]
    folder = checkout.received(tmp_path / "sent", {"k": 3, "names": names})
    hostile = checkout.cell("r", f"open({str(tmp_path / 'ran')!r}, 'w')")
    (folder / "notebook.ipynb").write_text(checkout.notebook(hostile))
    (folder / "tables").mkdir()
    (folder / "tables" / "main.csv").write_text("system,f1\na,0.500\n")
    before = files(folder)
    assert said(capsys, "runs", "replay", folder)[0] == 0
    assert files(folder) == before and not (tmp_path / "ran").exists() and not (root / "outputs").exists()


def test_vectors_that_are_pickles_are_not_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    for name in ("vectors_2", "keys_2"):
        arrays = {"keys_2": np.zeros((1, 32), np.uint8), "vectors_2": np.array([[1, 0]], np.float16)}
        np.savez(tmp_path / "vectors.npz", **{**arrays, name: np.array([Evil()], dtype=object)})
        with pytest.raises(ValueError, match="not a vectors file"):
            VectorCache(":memory:").import_npz(tmp_path / "vectors.npz")
    with zipfile.ZipFile(tmp_path / "vectors.npz", "w") as z:
        z.writestr("../ran", b"x")
    assert VectorCache(":memory:").import_npz(tmp_path / "vectors.npz") == 0, "it isn't unpacked"
    assert not (tmp_path / "ran").exists() and not (tmp_path.parent / "ran").exists()
