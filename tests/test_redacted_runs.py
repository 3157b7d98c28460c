"""Experiments run to their end on data whose text may not be shown, and show none of it."""

from __future__ import annotations

import json

import pytest
from quotations import quoted, texts, words

import adaptmr as am
from adaptmr.cli import main

DATA = dict.fromkeys(("exp1", "exp2", "exp3", "exp4", "exp5", "exp6"), ("demo", "en1"))
WORDS = 6  # in a row would give a message away


@pytest.mark.slow
@pytest.mark.parametrize("experiment", DATA)
def test_a_redacted_run_ends_and_holds_no_message(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    dataset, split = DATA[experiment]
    settings = {"redact": "true", "dataset": dataset, "split": split, "embedder": "hash", "limit": "8"}
    chosen = [word for name, value in settings.items() for word in ("-p", name, value)]
    assert main(["run", experiment, *chosen, "--out-dir", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out" / experiment).iterdir()
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["redacted"] is True
    assert not (folder / "vectors.npz").exists()
    said = [turn.text for c in am.load(dataset, split=split).conversations for turn in c.turns]
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix not in (".png", ".pdf")]
    assert len(files) > 20 and sum(map(len, map(words, said))) > 1000
    assert quoted(said, [(p.name, "\n".join(texts(p.name, p.read_bytes()))) for p in files], WORDS) == []
