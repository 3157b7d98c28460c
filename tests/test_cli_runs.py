"""`adaptmr runs …` and `adaptmr sweep`: paired comparisons, what can't be compared, checks, sweeps."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import checkout
import cli_runs
import pytest
from cli_runs import refused, said

from adaptmr.cli.experiments import grid
from adaptmr.cli.replaying import missing_records
from adaptmr.eval.report.parameters import UsageError
from adaptmr.eval.report.recorded_run import RecordedRun, open_recorded, recorded_runs
from adaptmr.files import RunNotice


@pytest.fixture
def root(tmp_path, monkeypatch):
    made = checkout.make(tmp_path / "checkout")
    monkeypatch.chdir(made)
    return made


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
        err = refused(capsys, "runs", "compare", folder, *wrong)
        assert "--against" in err or "missing" in err


def test_it_is_said_why_runs_cannot_be_compared(root, capsys):
    frame = cli_runs.results({"a": 0.2})
    cli_runs.make(root, "one", frame)
    others = (
        ({"sha256": "d2"}, ["other data", "data d1", "data d2"]),
        ({"k": 5, "split": ["c1"]}, ["another k: 10 and 5", "another split"]),
    )
    for n, (other, why) in enumerate(others):
        cli_runs.make(root, f"two{n}", frame, **other)
        err = refused(capsys, "runs", "compare", "tiny/one", f"tiny/two{n}")
        assert all(w in err for w in why), err
    cli_runs.make(root, "fewer", cli_runs.results({"a": 0.2}, questions=3))
    cli_runs.make(root, "others", cli_runs.results({"b": 0.2}))
    checkout.received(root / "outputs" / "tiny" / "empty", {"k": 10}, data={"sha256": "d1"})
    for name, why in (
        ("fewer", "24 and 18, 18 in common"),
        ("others", "share no system"),
        ("empty", "results.parquet"),
        ("nowhere", "no run folder"),
    ):
        assert why in refused(capsys, "runs", "compare", "tiny/one", f"tiny/{name}")


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
        assert "run folder" in refused(capsys, "runs", "rm", path, "--yes")
    assert folder.exists() and renamed.exists() and (root / "settings.ini").exists()


# --- a run of one's own notebook


@pytest.mark.slow
def test_a_run_of_an_own_notebook_is_replayed_when_the_notebook_is_named(root, capsys, monkeypatch):
    own = root.parent / "own.ipynb"
    text = (root / "nbs" / "experiments" / "tiny.ipynb").read_text()
    own.write_text(text.replace('\\"tiny\\"', '\\"mine\\"'))
    folder = Path(said(capsys, "run", own)[1].strip()).parent
    assert "--notebook" in refused(capsys, "runs", "replay", folder), "code is never run unnamed"
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
    same = f"tiny/{folder.name}: the same tables\n1 runs, 0 with differences, 0 not checked\n"
    assert said(capsys, "runs", "check", folder)[:2] == (0, same)
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
    points = [{"k": k, "names": names, "seed": 0} for k in (5, 10) for names in (["a", "b"], ["c"])]
    assert grid([("k", "[5, 10]"), ("names", "[[a, b], [c]]"), ("seed", "0")]) == points
    assert grid([]) == [{}]
    for pairs in ([("k", "[]")], [("k", "5"), ("k", "6")], [("k", "[5")]):
        with pytest.raises(UsageError, match="k"):
            grid(pairs)


@pytest.mark.slow
def test_a_point_that_fails_stops_no_other_and_a_wrong_parameter_runs_none(sweeping, capsys):
    status, _, err = said(capsys, "sweep", "tiny", "-p", "k", "[1, 2]", "-p", "mood", "good")
    assert status == 2 and "mood" in err and not (sweeping / "outputs").exists()
    status, out, err = said(capsys, "sweep", "tiny", "-p", "k", "[3, 4]")
    assert status == 1 and "k may not be three" in err
    assert rows_of(out, 2) == [["3", "failed"], ["4", "made"]]


# --- a recorded run


def make_two(root):
    """Write the runs tiny/k1-a and tiny/k1-b, and return the folder of runs."""
    for name in ("k1-a", "k1-b"):
        cli_runs.make(root, name, cli_runs.results({"b": 0.2, "a": 0.5}))
    return root / "outputs"


def test_the_beginning_of_a_name_is_enough_where_it_fits_one_run(root):
    outputs = make_two(root)
    for name in ("tiny/k1-a", "k1-a", "tiny/k1-a/"):
        assert open_recorded(name, outputs).name == "tiny/k1-a"
    with pytest.raises(UsageError, match="fits 2 runs: tiny/k1-a, tiny/k1-b; write more"):
        open_recorded("tiny/k1", outputs)
    with pytest.raises(UsageError, match="there is no run folder k1"):
        open_recorded("k1")


def test_a_broken_run_is_said_in_one_line_by_every_command(root, capsys):
    broken = make_two(root) / "tiny" / "k1-b"
    half = '{"experiment": "ti'
    for manifest, why in ((half, "not readable JSON"), ("[]", "holds a list"), (None, "has no")):
        if manifest is None:
            (broken / "manifest.json").unlink()
        else:
            (broken / "manifest.json").write_text(manifest)
            with pytest.warns(RunNotice, match="k1-b is left out"):
                assert [run.name for run in recorded_runs(root / "outputs")] == ["tiny/k1-a"]
        for words in (["show"], ["compare"], ["replay"], ["report"], ["explore"], ["rm", "--yes"]):
            assert why in refused(capsys, "runs", words[0], broken, *words[1:]), words
    assert broken.is_dir()


def test_what_a_replay_needs_is_listed(tmp_path):
    manifest = {
        "models": ["m"],
        "usage": {"calls": 3},
        "params": {"embedder": "openai:e", "reranker": "endpoint:r"},
        "code": {"own": {"fit openai:e": "0123", "system mine": "4567"}},
    }
    run = RecordedRun(tmp_path, manifest)
    missing = " ".join(missing_records(run))
    assert "calls of m, endpoint:r" in missing and "vectors of openai:e" in missing
    assert "redacted" not in missing
    assert "redacted" in " ".join(missing_records(RecordedRun(tmp_path, {**manifest, "redacted": True})))
    for name in ("calls.jsonl.gz", "vectors.npz"):
        (tmp_path / name).touch()
    assert missing_records(run) == []
    silent = {**manifest, "usage": {"calls": 0}, "params": {}, "code": {}}
    (tmp_path / "calls.jsonl.gz").unlink()
    assert missing_records(RecordedRun(tmp_path, silent)) == []
