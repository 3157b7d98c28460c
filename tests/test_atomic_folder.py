"""Atomic run folders: a killed run leaves finished ones complete, two at once are kept apart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import checkout
import pandas as pd
import pytest

from adaptmr import cli
from adaptmr.eval.report import run_folder
from adaptmr.eval.report.run_folder import open_run
from adaptmr.files import RunNotice

ROOT = Path(__file__).resolve().parent.parent


def tree(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def a_run(outputs, f1=0.5):
    """A finished run of a few tables."""
    run = open_run("exp1", {"k": 1}, None, outputs)
    for name in ("first", "second", "third"):
        run.write_table(pd.DataFrame({"system": ["a"], "f1": [f1]}), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunNotice)
        run.write_manifest()
    return run.path


WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}


def killed_at(n, work):
    """Do some work in a child that is killed before its n-th step on the disk; whether it got that far."""
    child = os.fork()
    if child == 0:
        steps = 0

        def hook(event, arguments):
            nonlocal steps
            if event not in WRITES or (
                event == "open"
                and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
            ):
                return
            steps += 1
            if steps == n:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("f1", [0.5, 0.6], ids=["the same results", "other results"])
def test_a_run_killed_at_any_step_leaves_the_finished_one_whole(tmp_path, f1):
    first = a_run(tmp_path)
    before, n = tree(first), 0
    while True:
        n += 1
        killed = killed_at(n, lambda: a_run(tmp_path, f1))
        assert tree(first) == before, f"killed at step {n}"
        for folder in (tmp_path / "exp1").iterdir():
            if not folder.name.startswith("."):
                assert set(tree(folder)) == set(before), f"half a run has a name after step {n}"
        if not killed:
            break
        if f1 != 0.5:
            shutil.rmtree(first.with_name(f"{first.name}-2"), ignore_errors=True)
    assert n > 15, "there were steps to be killed at"
    a_run(tmp_path, f1)
    assert sorted(p.name for p in (tmp_path / "exp1").iterdir()) == [first.name] + [f"{first.name}-2"] * (
        f1 != 0.5
    ), "what the killed ones left is gone"


HOLD = """
import sys
from adaptmr.eval.report.run_folder import open_run
run = open_run("exp1", {"k": 1}, None, sys.argv[1])
print("holds", flush=True)
sys.stdin.read()
"""


def test_the_second_of_two_equal_runs_names_the_process_of_the_first(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"holds\n"
    (partial,) = (tmp_path / "exp1").glob(".*.partial")
    (partial / "its own").write_text("x")
    named = rf"exp1/k1-\w+ is being run by process {other.pid}; wait for it"
    with pytest.raises(run_folder.RunLocked, match=named):
        a_run(tmp_path)
    assert (partial / "its own").exists(), "the first one's files are left alone"
    other.kill()
    other.communicate()
    assert a_run(tmp_path).name.startswith("k1-"), "the right of a process that is gone is free"
    assert len(list((tmp_path / "exp1").iterdir())) == 1


# --- what git sees


def git(root, *arguments):
    done = subprocess.run(
        ["git", "-C", str(root), "-c", "user.email=a@b", "-c", "user.name=a", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.slow
def test_after_an_experiment_git_sees_at_most_new_folders(tmp_path, monkeypatch, capsys):
    root = checkout.make(tmp_path / "checkout")
    shutil.copy(ROOT / ".gitignore", root)
    monkeypatch.chdir(root)
    first = cli.run_experiment("tiny")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "a run")
    assert "index" not in git(root, "ls-files", "outputs") and (root / "outputs" / "index.html").exists()
    capsys.readouterr()
    assert cli.run_experiment("tiny") == first and git(root, "status", "--porcelain", "-uall") == ""
    created = json.loads((first / "manifest.json").read_text())["when"]["created"]
    assert f"the same results as the run of {created}" in capsys.readouterr().err
    other = cli.run_experiment("tiny", overrides=[("k", "2")])
    assert (
        git(root, "status", "--porcelain") == f"?? outputs/tiny/{other.name}/\n"
        and (other / "report.html").exists()
    )
    git(root, "add", ".")
    git(root, "commit", "-qm", "another run")
    monkeypatch.setenv("TINY_F1", "0.7")
    second = cli.run_experiment("tiny")
    assert (
        git(root, "status", "--porcelain") == f"?? outputs/tiny/{first.name}-2/\n"
        and second.name == f"{first.name}-2"
    )
    assert f"OTHER RESULTS than the run of {created}" in capsys.readouterr().err and {
        "notebook.ipynb",
        "report.html",
    } <= set(tree(second))
    (root / "outputs" / "tiny" / ".x.partial").mkdir()
    for left in (".x.partial/manifest.json", ".x.lock", ".x.pid"):
        (root / "outputs" / "tiny" / left).write_text("{}")
    assert git(root, "status", "--porcelain") == f"?? outputs/tiny/{first.name}-2/\n", (
        "what a killed run leaves isn't seen"
    )
