"""Runs with an encoder behind a server, an own fit or a reranker: repeated with the server shut down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server import Server, answering
from test_endpoint_embedder import vectors
from test_making import shared_words

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("-p", "limit", "6")
pytestmark = pytest.mark.slow


def adaptmr(cache: Path, *words: object, **environment: str) -> tuple[int, str, str]:
    """Run the command in this checkout, with no server but those in `environment`."""
    hidden = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "RERANK_BASE_URL", "ADAPTMR_FITS")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PYTHONPATH": str(ROOT), "ADAPTMR_CACHE": str(cache), **environment}
    command = [sys.executable, "-m", "adaptmr", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run experiment 1 with an encoder behind a server, and a fit to it; return the run's folder."""
    place = tmp_path_factory.mktemp("endpoint")
    with Server(vectors(16)) as server:
        known = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-x"}
        status, _, err = adaptmr(
            place / "cache", "fit", "--embedder", "openai:toy", "--data", "demo", **known
        )
        assert status == 0, err
        words = ("-p", "embedder", "openai:toy", "-p", "systems", "[unified,hybrid,adaptmr,oracle_evidence]")
        status, out, err = adaptmr(
            place / "cache", "run", "exp1", *SMALL, *words, "--out-dir", place / "out", **known
        )
        assert status == 0 and "your own fit" in err, err
        assert set(server.paths) == {"/v1/embeddings"}
    return Path(out.strip()).parent


@pytest.fixture
def sent(embedded: Path, tmp_path: Path) -> Iterator[Path]:
    """Copy the run's folder, as somebody else gets it."""
    yield Path(shutil.copytree(embedded, tmp_path / "sent" / embedded.name))


def test_the_same_tables_come_without_the_server(sent: Path, tmp_path: Path) -> None:
    assert list((sent / "fits").glob("openai*.json")) and (sent / "vectors.npz").is_file()
    status, out, err = adaptmr(tmp_path / "empty", "runs", "replay", sent)
    assert status == 0 and "the same tables" in out, err


def test_what_the_folder_lacks_is_said(sent: Path, tmp_path: Path) -> None:
    (sent / "vectors.npz").unlink()
    status, _, err = adaptmr(tmp_path / "empty", "runs", "replay", sent)
    assert status == 2 and "the vectors of openai:toy (vectors.npz)" in err and "get the whole folder" in err
    assert len(err.strip().splitlines()) == 1


def test_a_reranker_behind_a_server(tmp_path: Path) -> None:
    words = ("-p", "reranker", "endpoint:toy", "-p", "embedder", "hash", "-p", "systems", "[unified,hybrid]")
    with Server(answering(shared_words)) as server:
        status, out, err = adaptmr(
            *(tmp_path / "cache", "run", "exp3", *SMALL, *words, "--out-dir", tmp_path / "out"),
            RERANK_BASE_URL=server.url,
        )
        assert status == 0 and set(server.paths) == {"/v1/rerank"}, err
    made = Path(out.strip()).parent
    assert "hybrid_reranked" in (made / "tables" / "coverage.csv").read_text(encoding="utf-8")
    status, out, err = adaptmr(tmp_path / "empty", "runs", "replay", made)
    assert status == 0 and "the same tables" in out, err
    (made / "calls.jsonl.gz").unlink()
    status, _, err = adaptmr(tmp_path / "empty", "runs", "replay", made)
    assert status == 2 and "the calls of endpoint:toy (calls.jsonl.gz)" in err
