"""Every experiment runs to its end on data whose text may not be shown, and shows none of it."""

from __future__ import annotations

import json

import pytest

import adaptmr as am
from adaptmr.cli import main

EXPERIMENTS = ("exp1", "exp2", "exp3", "exp4", "exp5")
SHINGLE = 6  # words in a row that would give a message away


def _shingles(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_redacted_run_ends_and_holds_no_message(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    settings = {"redact": "true", "split": "en1", "embedder": "hash", "limit": "8"}
    chosen = [word for name, value in settings.items() for word in ("-p", name, value)]
    assert main(["run", experiment, *chosen, "--out-dir", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out" / experiment).iterdir()
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["redacted"] is True
    assert not (folder / "vectors.npz").exists()
    said = {s for turn in am.load("demo", split="en1").conversations[0].turns for s in _shingles(turn.text)}
    shown = "".join((folder / name).read_text(encoding="utf-8") for name in ("report.html", "notebook.ipynb"))
    assert len(said) > 1000 and [s for s in said if s in shown] == []
