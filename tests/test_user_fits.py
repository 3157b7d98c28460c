"""Fits of the user's own: found by the encoder's name, in every part, in a run's id, and by the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import adaptmr as am
from adaptmr.cli import main
from adaptmr.embed import embedder
from adaptmr.embed.fit_files import FitFile, FitFileError, fit_path, own_fit, write_fit_file
from adaptmr.experiments import Experiment
from adaptmr.planning.classifiers import FittedClassifier, HeadError
from adaptmr.retrieval.fusion import fit_for, shipped_fit_for
from adaptmr.retrieval.versions import pair_model_for
from adaptmr.store.memory_store import MemoryStore
from adaptmr.training.models import comparison_rows, fit_embedder


class Named:
    """The hashing encoder under another name: one that the package has no fit for."""

    name, dim = "toy/encoder", 64

    def encode(self, texts: list[str], kind: str = "passage") -> np.ndarray:
        return embedder("hash").encode(texts, kind)


@pytest.fixture(scope="module")
def fitted() -> FitFile:
    data = am.load("demo")
    return fit_embedder(Named(), [replace(data, conversations=data.conversations[:3])])


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTMR_FITS", str(tmp_path / "fits"))
    return tmp_path / "fits"


def test_without_a_file_the_fit_for_any_encoder_acts_and_there_is_no_head(fits: Path) -> None:
    assert fit_for("toy/encoder").label == "fit for any encoder"
    with pytest.raises(HeadError, match="adaptmr fit --embedder"):
        FittedClassifier(Named())


def test_a_file_acts_everywhere_and_the_trace_names_it(fits: Path, fitted: FitFile) -> None:
    write_fit_file(fit_path("toy/encoder"), fitted)
    own = fit_for("toy/encoder")
    assert own.origin == fitted.sha256 and own != shipped_fit_for("toy/encoder")
    store = MemoryStore(embedder=Named())
    store.add(["I moved to Hangzhou.", "I have a cat."])
    trace = am.retrieve("Where do I live?", store).trace
    assert any(f"fit of your own ({fitted.sha256})" in str(row) for row in trace)
    model, none = pair_model_for(), np.zeros(0)
    mean, deviation = fitted.cosines
    assert model.standardize(np.array([mean + deviation]), "toy/encoder", none) == pytest.approx([1.0])
    assert sum(FittedClassifier(Named()).probabilities("When did I move?").values()) == pytest.approx(1.0)


def test_a_conversation_that_was_fitted_to_gets_the_fit_without_it(fits: Path, fitted: FitFile) -> None:
    write_fit_file(fit_path("toy/encoder"), fitted)
    one = sorted(f["without"] for f in fitted.fits)[1]
    assert fit_for("toy/encoder", one).without == one
    assert fit_for("toy/encoder", "unknown").without == ""


def test_the_hash_changes_with_the_values_and_not_with_the_scores(fitted: FitFile) -> None:
    assert replace(fitted, about={}).sha256 == fitted.sha256
    assert replace(fitted, cosines=(0.0, 1.0)).sha256 != fitted.sha256


def test_a_file_of_another_encoder_is_not_used_and_a_damaged_one_fails(fits: Path, fitted: FitFile) -> None:
    write_fit_file(fit_path("toy encoder"), replace(fitted, embedder="toy/encoder"))
    assert own_fit("toy encoder") is None
    fit_path("toy/encoder").write_text("{", encoding="utf-8")
    with pytest.raises(FitFileError, match=r"toy--encoder\.json"):
        fit_for("toy/encoder")


def test_a_fit_is_part_of_the_identity_of_a_run(fits: Path, fitted: FitFile, tmp_path: Path) -> None:
    params = {"embedder": "hash", "systems": ["unified"], "limit": 2}
    before = Experiment("exp1", params, tmp_path / "out")
    write_fit_file(fit_path("hash"), replace(fitted, embedder="hash"))
    with pytest.warns(UserWarning, match="your own fit"):
        after = Experiment("exp1", params, tmp_path / "out")
    assert before.run.run_id != after.run.run_id
    assert after.user_code["fit hash"] == replace(fitted, embedder="hash").sha256


def test_scores_are_compared_for_each_measure(fitted: FitFile) -> None:
    rows = comparison_rows(fitted)
    assert [r["measure"] for r in rows] == ["recall@10", "brier", "auroc", "types"]
    assert all(0 <= r[when] <= 1 for r in rows for when in ("before", "after"))


@pytest.mark.slow
def test_the_command_writes_the_file_and_prints_the_scores(
    fits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.json"
    assert main(["fit", "--embedder", "hash", "--data", "demo", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert out.is_file() and "recall@10" in shown and "ADAPTMR_FITS" in shown
    assert main(["fit", "--out", str(out)]) == 2
