"""Trained weights in a folder: a cross-encoder that puts evidence first, an encoder that is fitted to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from trained_models import save_bi_encoder, taught_pairs, train_cross_encoder

import adaptmr as am
from adaptmr.cli import main
from adaptmr.embed.fit_files import fit_path, own_fit
from adaptmr.experiments import Experiment
from adaptmr.rerank import reranker

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTMR_FITS", str(tmp_path / "fits"))
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))


def share_right(folder: str, pairs: list[tuple[str, str, str]]) -> float:
    """Return how often a cross-encoder scores the turn that answers above the other one."""
    scores = [reranker(folder, cache=False).scores(asked, [right, wrong]) for asked, right, wrong in pairs]
    return float(np.mean([right > wrong for right, wrong in scores]))


def test_a_trained_cross_encoder_puts_the_evidence_first(tmp_path: Path) -> None:
    pairs = taught_pairs(am.load("demo", split="en1,en2"))
    trained = train_cross_encoder(tmp_path / "trained", pairs)
    random = train_cross_encoder(tmp_path / "random", pairs, steps=0)
    held_out = taught_pairs(am.load("demo", split="en3"))
    assert share_right(trained, held_out) > max(0.7, share_right(random, held_out))
    texts = [text for _, text, _ in pairs[:40]]
    by_size = [reranker(trained, cache=False, batch_size=n).scores("Where is it?", texts) for n in (1, 32)]
    assert np.allclose(*by_size, atol=1e-4)
    params = {"split": "en3", "limit": 6, "embedder": "hash", "systems": "hybrid", "reranker": trained}
    experiment = Experiment("reranked", params, out_dir=tmp_path / "out")
    assert experiment.evaluate()["system"].unique().tolist() == ["hybrid", "hybrid_reranked"]
    manifest = json.loads((experiment.finish().path / "manifest.json").read_text())
    assert manifest["reranker"]["name"] == "trained"


def test_an_encoder_from_a_folder_is_fitted_to_and_the_run_names_the_fit(tmp_path: Path) -> None:
    folder = save_bi_encoder(tmp_path / "two-layers")
    assert main(["fit", "--embedder", folder, "--data", "demo"]) == 0
    fitted = own_fit(folder)
    assert fitted is not None and fit_path(folder).is_file()
    params = ["-p", "embedder", folder, "-p", "split", "en1", "-p", "limit", "6", "-p", "systems", "unified"]
    assert main(["run", "exp1", *params, "--out-dir", str(tmp_path / "out")]) == 0
    (made,) = tmp_path.glob("out/exp1/*/manifest.json")
    assert fitted.sha256 in made.read_text()
    assert [file.name for file in (made.parent / "fits").iterdir()] == [fit_path(folder).name]
