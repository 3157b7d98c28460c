"""A recorded run: opened by its folder or the beginning of its name; faults are said in one line."""

from __future__ import annotations

from pathlib import Path

import checkout
import cli_runs
import pytest

from adaptmr.cli import main
from adaptmr.cli.replaying import missing_records
from adaptmr.eval.report.parameters import UsageError
from adaptmr.eval.report.recorded_run import RecordedRun, open_recorded, recorded_runs
from adaptmr.files import RunNotice


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = checkout.make(tmp_path / "checkout")
    monkeypatch.chdir(made)
    return made


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(w) for w in words])
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    return status, caught.out, caught.err


def make_two(root: Path) -> Path:
    """Write the runs tiny/k1-a and tiny/k1-b, and return the folder of runs."""
    for name in ("k1-a", "k1-b"):
        cli_runs.make(root, name, cli_runs.results({"b": 0.2, "a": 0.5}))
    return root / "outputs"


def test_systems_are_in_the_order_of_the_run_or_the_one_asked_for(root: Path) -> None:
    run = open_recorded(make_two(root) / "tiny" / "k1-a")
    assert run.systems == ["b", "a"] == list(dict.fromkeys(run.rows["system"]))
    one = run.only(["a"])
    assert set(one.rows["system"]) == {"a"} and run.only(None).systems == ["b", "a"]
    assert one.rows["recall_fraction"].mean() == pytest.approx(0.5)
    with pytest.raises(UsageError, match="no system 'c'; there are b, a"):
        run.only(["c"])


def test_contrasts_need_both_systems(root: Path) -> None:
    folder = make_two(root) / "tiny" / "k1-a"
    (folder / "tables").mkdir()
    (folder / "tables" / "contrasts.csv").write_text("contrast,verdict\na − b,different\na − c,undecided\n")
    run = open_recorded(folder)
    assert [c["contrast"] for c in run.contrasts] == ["a − b"]
    assert run.only(["a"]).contrasts == []


def test_the_beginning_of_a_name_is_enough_where_it_fits_one_run(root: Path) -> None:
    outputs = make_two(root)
    for name in ("tiny/k1-a", "k1-a", "tiny/k1-a/"):
        assert open_recorded(name, outputs).name == "tiny/k1-a"
    with pytest.raises(UsageError, match="fits 2 runs: tiny/k1-a, tiny/k1-b; write more"):
        open_recorded("tiny/k1", outputs)
    with pytest.raises(UsageError, match="there is no run folder k1"):
        open_recorded("k1")


@pytest.mark.parametrize(
    ("manifest", "why"),
    [(None, "has no manifest.json"), ('{"experiment": "ti', "not readable JSON"), ("[]", "holds a list")],
)
def test_a_broken_run_is_said_in_one_line_by_every_command(
    root: Path, capsys: pytest.CaptureFixture[str], manifest: str | None, why: str
) -> None:
    broken = make_two(root) / "tiny" / "k1-b"
    (broken / "manifest.json").unlink()
    if manifest is not None:
        (broken / "manifest.json").write_text(manifest)
    for words in (["show"], ["compare"], ["replay"], ["report"], ["explore"], ["rm", "--yes"]):
        status, _, err = said(capsys, "runs", words[0], broken, *words[1:])
        assert status == 2 and why in err and len(err.strip().splitlines()) == 1, words
    assert broken.is_dir()
    if manifest is not None:
        with pytest.warns(RunNotice, match="k1-b is left out"):
            assert [run.name for run in recorded_runs(root / "outputs")] == ["tiny/k1-a"]


def test_rm_without_asking_takes_whole_names_only(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = make_two(root)
    status, _, err = said(capsys, "runs", "rm", "tiny/k1-", "--yes")
    assert status == 2 and "fits 2 runs" in err
    status, _, err = said(capsys, "runs", "rm", "k1-", "--yes")
    assert status == 2
    cli_runs.make(root, "other", cli_runs.results({"a": 0.2}))
    status, _, err = said(capsys, "runs", "rm", "oth", "--yes")
    assert status == 2 and "tiny/other" in err and (outputs / "tiny" / "other").is_dir()
    assert said(capsys, "runs", "rm", "tiny/other", "--yes")[0] == 0


def test_what_a_replay_needs_is_listed(tmp_path: Path) -> None:
    manifest = {
        "models": ["m"],
        "usage": {"calls": 3},
        "params": {"embedder": "openai:e", "reranker": "endpoint:r"},
        "code": {"own": {"fit openai:e": "0123", "system mine": "4567"}},
    }
    run = RecordedRun(tmp_path, manifest)
    missing = " ".join(missing_records(run))
    assert "calls of m, endpoint:r" in missing and "vectors of openai:e" in missing and "fit 0123" in missing
    assert "redacted" not in missing
    assert "redacted" in " ".join(missing_records(RecordedRun(tmp_path, {**manifest, "redacted": True})))
    for name in ("calls.jsonl.gz", "vectors.npz"):
        (tmp_path / name).touch()
    assert len(missing_records(run)) == 1
    silent = {**manifest, "usage": {"calls": 0}, "params": {}, "code": {}}
    (tmp_path / "calls.jsonl.gz").unlink()
    assert missing_records(RecordedRun(tmp_path, silent)) == []
