"""The command line: complete and repeatable run folders, named errors, the same results as papermill."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

import adaptmr
from adaptmr import cli
from adaptmr.eval.report.recorded_run import compare_tables

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SMALL = ["-p", "limit", "6", "-p", "embedder", "hash", "-p", "split", "en1"]


def start(*command, cwd, cache, **more):
    env = {
        **os.environ,
        "ADAPTMR_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **more,
    }
    return subprocess.Popen(
        [str(c) for c in command], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out, err


def files(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run one setting three times: as a command, by papermill alone from another folder, as a module."""
    place = tmp_path_factory.mktemp("runs")
    (place / "elsewhere").mkdir()
    first = start(
        BIN / "adaptmr",
        "run",
        "exp3",
        *SMALL,
        "-p",
        "systems",
        "[unified, hybrid]",
        "--out-dir",
        place / "out",
        cwd=ROOT,
        cache=place / "cache1",
    )
    alone = start(
        BIN / "papermill",
        ROOT / "nbs" / "experiments" / "exp3.ipynb",
        place / "elsewhere" / "out.ipynb",
        *SMALL,
        "-p",
        "systems",
        "unified,hybrid",
        "-p",
        "out_dir",
        place / "alone",
        "--no-progress-bar",
        cwd=place / "elsewhere",
        cache=place / "cache2",
    )
    # other order of parameters, other source of them, another seed of Python's hashes
    (place / "small.yaml").write_text("systems: [unified, hybrid]\nsplit: en1\nembedder: hash\n")
    again = start(
        sys.executable,
        "-m",
        "adaptmr",
        "run",
        "exp3",
        "-f",
        place / "small.yaml",
        "-p",
        "limit",
        "6",
        "--out-dir",
        place / "again",
        cwd=ROOT,
        cache=place / "cache3",
        PYTHONHASHSEED="7",
    )
    said, said_again = end(first), end(again)
    end(alone)
    folder, folder_again = (Path(out.strip()).parent for out, _ in (said, said_again))
    return {
        "place": place,
        "out": place / "out",
        "folder": folder,
        "before": files(folder),
        "after": files(folder_again),
        "said": said,
        "again": folder_again,
        "alone": place / "alone",
    }


def test_the_whole_run_folder_is_made(ran):
    assert {
        "report.html",
        "manifest.json",
        "results.parquet",
        "timings.parquet",
        "notebook.ipynb",
        "vectors.npz",
    } - set(ran["before"]) <= {"vectors.npz"}
    assert {
        f"tables/{t}.{kind}"
        for t in ("questions", "systems", "table2", "abstention")
        for kind in ("csv", "tex", "txt")
    } <= set(ran["before"])
    assert {
        f"figures/{f}.{kind}" for f in ("recall", "coverage") for kind in ("png", "svg", "pdf", "txt")
    } <= set(ran["before"])
    assert [n for n in ran["before"] if n.endswith(".csv")] == [
        n.replace(".tex", ".csv") for n in ran["before"] if n.endswith(".tex")
    ]
    assert (ran["out"] / "index.csv").exists() and (ran["out"] / "index.html").exists()
    assert (
        ran["folder"].parent == ran["out"] / "exp3" and ran["said"][0] == f"{ran['folder'] / 'report.html'}\n"
    )


def test_what_the_manifest_and_the_index_say(ran):
    manifest = json.loads(ran["before"]["manifest.json"])
    assert manifest["params"] == {
        "model": "offline",
        "dataset": "demo",
        "split": ["en1"],
        "systems": ["unified", "hybrid"],
        "k": 10,
        "limit": 6,
        "seed": 0,
        "embedder": "hash",
        "judge": "rules",
        "redact": None,
    }
    assert (
        manifest["experiment"] == "exp3"
        and manifest["run_id"] == ran["folder"].name
        and manifest["rows"] == 12
        and manifest["systems"] == ["unified", "hybrid"]
    )
    assert manifest["data"]["label"] == "part of demo: 1 conversations, 6 questions" and manifest[
        "embedder"
    ] == {"hash": "exact"}
    assert manifest["usage"]["calls"] == 0 and manifest["redacted"] is False and len(manifest["numbers"]) == 4
    with (ran["out"] / "index.csv").open(encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 1 and ran["folder"].name in rows[0].values()
    assert ran["folder"].name in (ran["out"] / "index.html").read_text(encoding="utf-8")


def test_results_are_those_of_the_package(ran):
    frame = adaptmr.evaluate(
        ["unified", "hybrid"],
        adaptmr.load("demo", split="en1", limit=6),
        k=10,
        embedder="hash",
        progress=False,
    )
    kept = pd.read_parquet(ran["folder"] / "results.parquet")
    key = ["system", "question"]
    one, two = (
        f.sort_values(key, ignore_index=True)[
            ["system", "question", "retrieved", "prediction", "f1", "recall_fraction"]
        ]
        for f in (frame, kept)
    )
    pd.testing.assert_frame_equal(one, two, check_dtype=False)


def timeless(made):
    """List the files whose bytes must never change: results, tables and figures, but no table of times."""
    names = [
        n
        for n in made
        if n == "results.parquet"
        or (n.startswith(("tables/", "figures/")) and n not in ("tables/costs.csv", "tables/costs.tex"))
    ]
    assert len(names) > 12
    return names


def test_the_same_run_has_the_same_place_and_the_same_bytes(ran):
    assert ran["again"].relative_to(ran["place"] / "again") == ran["folder"].relative_to(ran["out"]), (
        "the same name below the folder of runs"
    )
    assert (
        set(ran["after"]) == set(ran["before"])
        and [n for n in timeless(ran["before"]) if ran["after"][n] != ran["before"][n]] == []
    )


def test_papermill_alone_gives_the_same_tables(ran):
    alone = next((ran["alone"] / "exp3").iterdir())
    made = files(alone)
    assert [n for n in timeless(ran["before"]) if made[n] != ran["before"][n]] == [] and compare_tables(
        ran["folder"], alone
    ) == []
    assert (ran["place"] / "elsewhere" / "out.ipynb").exists() and "manifest.json" in made


def test_nothing_of_this_machine_is_kept(ran):
    places = {
        str(ran["place"]),
        str(ROOT),
        tempfile.gettempdir() + "/",
        *({str(Path.home()) + "/"} - {"//"}),  # some users have / as their home
        sys.prefix,
        "file:",
    }
    for name, data in ran["before"].items():
        if name.endswith((".png", ".npz")):
            continue
        text = data.decode("utf-8", "replace")
        for place in places:
            assert place not in text, (
                f"{name} holds {place}: …{text[max(0, text.find(place) - 80) :][:200]!r}"
            )
        assert not re.search(r"out_dir\s*=\s*['\"]", text), name


def test_the_executed_notebook_is_clean_and_holds_its_results(ran):
    notebook = json.loads(ran["before"]["notebook.ipynb"])
    assert "papermill" not in notebook["metadata"] and not [
        c for c in notebook["cells"] if {"papermill", "execution"} & set(c["metadata"])
    ]
    assert not [
        o
        for c in notebook["cells"]
        for o in c.get("outputs", [])
        if o["output_type"] == "error" or (o["output_type"] == "stream" and o["name"] == "stderr")
    ]
    injected = [c for c in notebook["cells"] if "injected-parameters" in c["metadata"].get("tags", [])]
    assert len(injected) == 1 and "limit = 6" in "".join(injected[0]["source"])
    assert sum("text/html" in o.get("data", {}) for c in notebook["cells"] for o in c.get("outputs", [])) >= 8


def test_the_report_is_self_contained(ran):
    page = ran["before"]["report.html"].decode("utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#|mailto:)[^"']*["']""", page), (
        "one file, nothing fetched"
    )
    assert (
        "part of demo: 1 conversations, 6 questions" in page
        and "Table 2" in page
        and "import adaptmr" not in page
        and "Experiment(" not in page
    )


# --- what is wrong is named, and the status is 2


def shown_by(capsys, *arguments):
    status = cli.main([str(a) for a in arguments])
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    return status, caught.err


@pytest.mark.parametrize(
    "arguments, names",
    [
        (["run", "exp99"], ["exp99", "exp3"]),
        (["run", "exp3", "-p", "topk", "5"], ["topk", "-p", "systems"]),
        (["run", "exp3", "-p", "k", "[1"], ["-p k", "YAML"]),
        (["run", "exp3", "-f", "nowhere.yaml"], ["nowhere.yaml"]),
        (["run"], ["experiment"]),
        ([], ["COMMAND"]),
        (["fly"], ["fly"]),
        (["run", "exp3", "-p", "k"], ["-p"]),
        (["runs"], ["WHAT"]),
        (["runs", "replay"], ["--all"]),
        (["run", "../exp3"], ["../exp3"]),
        (["run", ""], ["unknown experiment"]),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_a_wrong_call(capsys, monkeypatch, arguments, names):
    monkeypatch.chdir(ROOT)
    status, said = shown_by(capsys, *arguments)
    assert status == 2 and all(n in said for n in names), said


@pytest.mark.parametrize(
    "text, names",
    [
        ("k: [1", ["YAML"]),
        ("- 1\n- 2\n", ["list"]),
        ("just words", ["str"]),
        ("topk: 5\n", ["topk"]),
        ("k: 3\n 2: 3\n", ["YAML"]),
        (b"\xff\xfe\x00", []),
        ("k: !!python/object/apply:os.system ['true']\n", ["YAML"]),
        ("a: &a [*a]\n", ["'a'"]),
    ],
    ids=repr,
)
def test_a_broken_file_of_parameters_is_named(capsys, monkeypatch, tmp_path, text, names):
    monkeypatch.chdir(ROOT)
    (tmp_path / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    status, said = shown_by(
        capsys, "run", "exp3", "-f", tmp_path / "mine.yaml", "--out-dir", tmp_path / "out"
    )
    assert status == 2 and "mine.yaml" in said and all(n in said for n in names), said
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_a_folder_in_the_place_of_a_file_and_a_file_in_the_place_of_a_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    status, said = shown_by(capsys, "run", "exp3", "-f", tmp_path)
    assert status == 2 and tmp_path.name in said
    (tmp_path / "taken").write_text("")
    status, said = shown_by(capsys, "run", "exp3", "--out-dir", tmp_path / "taken")
    assert status == 2 and "taken" in said


def test_outside_of_a_checkout_it_says_what_to_do(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        cli.experiments, "__file__", str(tmp_path / "site-packages" / "adaptmr" / "cli" / "experiments.py")
    )
    status, said = shown_by(capsys, "run", "exp3")
    assert status == 2 and "clone the repository" in said


def test_from_any_folder_of_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT / "nbs" / "retrieval")
    assert cli.project_root() == ROOT and "exp3" in cli.experiment_names(ROOT)


def test_later_sources_of_parameters_win(tmp_path):
    (tmp_path / "a.yaml").write_text("k: 3\nseed: 5\n")
    (tmp_path / "b.yaml").write_text("k: 4\n")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    got = cli.gather_params(
        ROOT,
        "exp3",
        [str(tmp_path / n) for n in ("a.yaml", "b.yaml", "empty.yaml")],
        [("limit", "7"), ("limit", "8"), ("systems", "[unified]"), ("split", "en1")],
    )
    assert (got["k"], got["seed"], got["limit"], got["systems"], got["split"]) == (
        4,
        5,
        8,
        ["unified"],
        "en1",
    )
    base = cli.gather_params(ROOT, "exp3", [], [])
    assert base["k"] == 10 and base["model"] == "offline"


def test_lists_and_help(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["data"]) == 0 and {"demo", "locomo"} <= set(capsys.readouterr().out.split())
    assert (
        cli.main(["runs", "list"]) == 0
        and cli.main(["--help"]) == 0
        and "run an experiment" in capsys.readouterr().out
    )


def test_a_cell_that_fails_is_shown_without_a_traceback_and_kept(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "nbs" / "experiments").mkdir(parents=True)
    (tmp_path / "settings.ini").write_text("")
    cells = [
        {
            "cell_type": "code",
            "id": "a",
            "metadata": {"tags": ["parameters"]},
            "source": "out_dir = None\nk = 1",
            "outputs": [],
            "execution_count": None,
        },
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {},
            "source": "raise ValueError('no data set of that name')",
            "outputs": [],
            "execution_count": None,
        },
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    (tmp_path / "nbs" / "experiments" / "bad.ipynb").write_text(
        json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
    )
    monkeypatch.chdir(tmp_path)
    status, said = shown_by(capsys, "run", "bad", "-p", "k", "3")
    assert (
        status in (1, 2)
        and "no data set of that name" in said
        and (tmp_path / "outputs" / "failed.ipynb").exists()
    )


# --- the parameters tag


def test_the_parameters_tag_survives_nbdev_clean(tmp_path):
    import papermill

    shutil.copy(ROOT / "settings.ini", tmp_path)
    shutil.copytree(ROOT / "nbs", tmp_path / "nbs", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    (tmp_path / "adaptmr").mkdir()
    (tmp_path / "adaptmr" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    before = files(tmp_path / "nbs")
    done = subprocess.run([BIN / "nbdev_clean"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for notebook in sorted((tmp_path / "nbs" / "experiments").glob("*.ipynb")):
        known = papermill.inspect_notebook(str(notebook))
        assert {"out_dir", "seed"} <= set(known), f"{notebook.name}: nbdev_clean took the tag away"
    after = files(tmp_path / "nbs")
    assert [
        n for n in before if n.endswith(".ipynb") and "guides/" not in n and before[n] != after[n]
    ] == [], "committed notebooks are clean already"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out-dir", "afile"], "--out-dir"),
        (["-p", "dataset", "nowhere"], "no data set 'nowhere'"),
        (["-p", "plugins", "[./nowhere.py]"], "there is no file ./nowhere.py"),
    ],
)
def test_what_cannot_work_is_said_before_a_notebook_is_run(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").touch()
    monkeypatch.setattr("adaptmr.cli.running.execute_notebook", None)
    assert cli.main(["run", "exp1", *words]) == 2
    message = capsys.readouterr().err
    assert said in message and len(message.strip().splitlines()) == 1
