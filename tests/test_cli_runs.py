"""`adaptmr runs …` and `adaptmr sweep`: paired comparisons, what can't be compared, checks, sweeps."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import checkout
import cli_runs
import pytest

from adaptmr.cli import experiments, main
from adaptmr.cli.experiments import grid
from adaptmr.eval.report.parameters import UsageError


@pytest.fixture
def root(tmp_path, monkeypatch):
    made = checkout.make(tmp_path / "checkout")
    monkeypatch.chdir(made)
    return made


def said(capsys, *words):
    status = main([str(w) for w in words])
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    return status, caught.out, caught.err


# --- compare


def test_the_systems_of_both_runs_are_compared_by_question_type_and_overall(root, capsys):
    cli_runs.make(root, "one", cli_runs.results({"a": 0.2, "b": 0.5, "only_one": 0.1}))
    cli_runs.make(root, "two", cli_runs.results({"b": 0.5, "a": 0.6, "only_two": 0.1}))
    status, out, _ = said(capsys, "runs", "compare", "tiny/one", "tiny/two", "--measure", "f1", "--json")
    rows = json.loads(out)["rows"]
    assert status == 0 and {r["system"] for r in rows} == {"a", "b"}
    of_a = {r["type"]: r for r in rows if r["system"] == "a"}
    assert set(of_a) == {"factual_extraction", "multi_hop", "overall"}
    assert of_a["overall"]["difference"] == pytest.approx(0.2), "second minus first: 0.6/2 − 0.2/2"
    assert {r["type"]: r["verdict"] for r in rows if r["system"] == "b"}["overall"] != "different"
    assert (of_a["overall"]["n"], of_a["multi_hop"]["n"], of_a["overall"]["conversations"]) == (24, 12, 6)


def test_two_systems_of_one_run_are_compared(root, capsys):
    folder = cli_runs.make(root, "one", cli_runs.results({"a": 0.2, "b": 0.5}))
    words = ["runs", "compare", folder, "--system", "b", "--against", "a"]
    status, out, _ = said(capsys, *words, "--json")
    overall = next(r for r in json.loads(out)["rows"] if r["type"] == "overall" and r["measure"] == "f1")
    assert status == 0 and overall["difference"] == pytest.approx(0.15)
    status, out, _ = said(capsys, *words)
    assert status == 0 and "within tiny/one" in out and "b − a" in out
    for wrong in ([], ["--system", "a"], ["--system", "a", "--against", "missing"]):
        status, out, err = said(capsys, "runs", "compare", folder, *wrong)
        assert status == 2 and out == "" and ("--against" in err or "missing" in err)


def test_it_is_said_why_runs_cannot_be_compared(root, capsys):
    frame = cli_runs.results({"a": 0.2})
    cli_runs.make(root, "one", frame)
    others = (
        ({"sha256": "d2"}, ["other data", "data d1", "data d2"]),
        ({"k": 5, "split": ["c1"]}, ["another k: 10 and 5", "another split"]),
    )
    for n, (other, why) in enumerate(others):
        cli_runs.make(root, f"two{n}", frame, **other)
        status, out, err = said(capsys, "runs", "compare", "tiny/one", f"tiny/two{n}")
        assert status == 2 and out == "" and all(w in err for w in why), err
    cli_runs.make(root, "fewer", cli_runs.results({"a": 0.2}, questions=3))
    cli_runs.make(root, "others", cli_runs.results({"b": 0.2}))
    checkout.received(root / "outputs" / "tiny" / "empty", {"k": 10}, data={"sha256": "d1"})
    for name, why in (
        ("fewer", "24 and 18, 18 in common"),
        ("others", "share no system"),
        ("empty", "results.parquet"),
        ("nowhere", "no run folder"),
    ):
        status, _, err = said(capsys, "runs", "compare", "tiny/one", f"tiny/{name}")
        assert status == 2 and why in err, err


# --- list, show, report, index


def test_list_and_show_print_what_there_is_or_one_json_document(root, capsys):
    cli_runs.make(root, "one", cli_runs.results({"a": 0.2}), limit=None)
    status, out, _ = said(capsys, "runs", "list", "--json")
    assert status == 0 and [r["run"] for r in json.loads(out)] == ["outputs/tiny/one"]
    shown = json.loads(said(capsys, "runs", "show", "tiny/one", "--json")[1])
    assert shown["params"] == {"k": 10, "limit": None} and shown["systems"] == ["a"]
    assert shown["notes"] == {"empty_turns": 2} and shown["results"] == [{"number": "a recall", "value": 0.4}]
    status, out, _ = said(capsys, "runs", "show", "outputs/tiny/one")
    for words in ("tiny/one", "data d1", "k      10", "limit  –", "a recall", "empty_turns"):
        assert words in out, out


def test_the_report_is_rendered_where_it_is_missing(root, capsys, demo_run):
    folder = root / "outputs" / "exp3" / demo_run.name
    shutil.copytree(demo_run, folder)
    report = folder / "report.html"
    assert said(capsys, "runs", "report", folder) == (0, f"{report}\n", "")
    report.unlink()
    assert said(capsys, "runs", "report", folder)[:2] == (0, f"{report}\n") and report.stat().st_size > 1000


# --- rm


def test_rm_asks_and_refreshes_the_index(root, capsys, monkeypatch):
    for answer, kept in (("n\n", True), ("", True), ("y\n", False)):
        folder = cli_runs.make(root, f"run{kept}{len(answer)}", cli_runs.results({"a": 0.2}))
        said(capsys, "runs", "index")
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        status, _, err = said(capsys, "runs", "rm", folder)
        assert "remove" in err and folder.exists() is kept and status == int(kept)
        assert (folder.name in (root / "outputs" / "index.csv").read_text()) is kept


def test_rm_refuses_what_is_no_run_folder(root, capsys):
    folder = cli_runs.make(root, "one", cli_runs.results({"a": 0.2}))
    renamed = folder.with_name("mine")
    shutil.copytree(folder, renamed)
    (root / "plain").mkdir()
    for path in (root, root / "plain", folder.parent, renamed, root / "nowhere"):
        status, _, err = said(capsys, "runs", "rm", path, "--yes")
        assert status == 2 and "run folder" in err, err
    assert folder.exists() and renamed.exists() and (root / "settings.ini").exists()


# --- a run of one's own notebook


@pytest.mark.slow
def test_a_run_of_an_own_notebook_is_replayed_when_the_notebook_is_named(root, capsys, monkeypatch):
    own = root.parent / "own.ipynb"
    text = (root / "nbs" / "experiments" / "tiny.ipynb").read_text()
    own.write_text(text.replace('\\"tiny\\"', '\\"mine\\"'))
    folder = Path(said(capsys, "run", own)[1].strip()).parent
    status, _, err = said(capsys, "runs", "replay", folder)
    assert status == 2 and "--notebook" in err, "code from a folder is never run unnamed"
    monkeypatch.setenv("TINY_F1", "0.7")
    status, out, _ = said(capsys, "runs", "replay", folder, "--notebook", own)
    assert status == 1 and "0.5" in out and "0.7" in out


# --- check


MEASURED = """import os
import pandas as pd
import adaptmr as am
from adaptmr.eval.report.run_folder import open_run
data = am.load("demo", limit=2)
run = open_run("tiny", {"dataset": "demo", "limit": 2}, data, out_dir)
asked = [(q.conversation, q.id, q.type.value) for q in data.questions]
rows = pd.DataFrame(asked, columns=["conversation", "question", "type"])
rows = rows.assign(system="a", f1=float(os.environ.get("TINY_F1", "0.5")))
run.write_results(rows)
run.write_table(rows[["system", "f1"]], "main")
run.write_manifest(models=["offline"])
run"""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    made = checkout.make(tmp_path / "checkout", MEASURED)
    notebook = made / "nbs" / "experiments" / "tiny.ipynb"
    parameters = json.dumps('out_dir = None\ndataset = "demo"\nlimit = 2')
    notebook.write_text(notebook.read_text().replace(json.dumps(checkout.PARAMETERS), parameters))
    monkeypatch.chdir(made)
    return made


@pytest.mark.slow
def test_check_finds_what_todays_code_gives_otherwise_and_renews_it(measured, capsys, monkeypatch):
    folder = Path(said(capsys, "run", "tiny")[1].strip()).parent
    assert said(capsys, "runs", "check", folder)[:2] == (
        0,
        f"tiny/{folder.name}: the same tables\n1 runs, 0 with differences, 0 not checked\n",
    )
    monkeypatch.setenv("TINY_F1", "0.504")  # as another processor may round it
    assert said(capsys, "runs", "check", folder)[0] == 0
    monkeypatch.setenv("TINY_F1", "0.7")
    status, out, _ = said(capsys, "runs", "check", "--all")
    assert status == 1 and "main.csv: row 1, f1: 0.500 against 0.700" in out and "1 with differences" in out
    assert said(capsys, "runs", "check", folder, "--renew")[0] == 1, "it differed"
    assert said(capsys, "runs", "check", folder)[0] == 0 and (folder / "report.html").exists()
    assert "0.700" in (folder / "tables" / "main.csv").read_text()


def test_check_says_which_runs_it_left_out_and_why(root, capsys, demo_run):
    timed = root / "outputs" / "exp3" / demo_run.name
    shutil.copytree(demo_run, timed)
    (timed / "results.parquet").unlink()
    asked = {"dataset": "demo", "limit": 2}
    other = checkout.received(timed.with_name("other"), asked, data={"sha256": "x"}, systems=["a"])
    (other / "results.parquet").touch()
    status, out, _ = said(capsys, "runs", "check", "--all")
    assert status == 0 and "2 runs, 0 with differences, 2 not checked" in out
    assert "its results are times" in out and "exp3/other: made from" in out
    assert said(capsys, "runs", "check", timed)[0] == 1, "a run that was named must be checked"


# --- sweep

FAILS_AT_3 = "assert k != 3, 'k may not be three'\n" + checkout.RUN


@pytest.fixture
def sweeping(tmp_path, monkeypatch):
    made = checkout.make(tmp_path / "sweeping", FAILS_AT_3)
    monkeypatch.chdir(made)
    return made


def rows_of(out, n):
    """Return the words of the first `n` rows of the table, without its heading."""
    return [line.split() for line in out.splitlines()[1 : n + 1]]


def test_the_grid():
    assert grid([("k", "[5, 10]"), ("names", "[[a, b], [c]]"), ("seed", "0")]) == [
        {"k": 5, "names": ["a", "b"], "seed": 0},
        {"k": 5, "names": ["c"], "seed": 0},
        {"k": 10, "names": ["a", "b"], "seed": 0},
        {"k": 10, "names": ["c"], "seed": 0},
    ]
    assert grid([]) == [{}]
    for pairs in ([("k", "[]")], [("k", "5"), ("k", "6")], [("k", "[5")]):
        with pytest.raises(UsageError, match="k"):
            grid(pairs)


@pytest.mark.slow
def test_a_sweep_is_made_once(sweeping, capsys, monkeypatch):
    words = ["sweep", "tiny", "-p", "k", "[1, 2]"]
    status, out, _ = said(capsys, *words)
    runs = {p.name for p in (sweeping / "outputs" / "tiny").iterdir()}
    assert status == 0 and len(runs) == 2 and all(r in out for r in runs)
    assert rows_of(out, 2) == [["1", "made"], ["2", "made"]]
    monkeypatch.setattr(experiments, "run_experiment", None)  # nothing is run again
    status, out, err = said(capsys, *words)
    assert status == 0 and rows_of(out, 2) == [["1", "there"], ["2", "there"]]
    assert err.count("there already") == 2
    status, out, _ = said(capsys, "sweep", "tiny", "-p", "k", "1", "-p", "names", "[null]")
    assert status == 0 and rows_of(out, 1) == [["1", "None", "there"]], "the default, given"


@pytest.mark.slow
def test_a_point_that_fails_stops_no_other_and_a_wrong_parameter_runs_none(sweeping, capsys):
    status, _, err = said(capsys, "sweep", "tiny", "-p", "k", "[1, 2]", "-p", "mood", "good")
    assert status == 2 and "mood" in err and not (sweeping / "outputs").exists()
    status, out, err = said(capsys, "sweep", "tiny", "-p", "k", "[3, 4]")
    assert status == 1 and "k may not be three" in err
    assert rows_of(out, 2) == [["3", "failed"], ["4", "made"]]
