"""Committed runs have the expected numbers, and those on the package's own data repeat cell by cell."""

from __future__ import annotations

import os
from functools import partial

import pytest
import yaml
from committed import NoCheckout, NoRun, SeveralRuns
from expected import ROOT, committed_numbers
from readme import TEAM_DATASET, full_run, model_run

from adaptmr.cli import replay_run


def test_the_committed_runs_scored_what_is_expected():
    expected = yaml.safe_load((ROOT / "params" / "expected.yaml").read_text(encoding="utf-8"))
    try:
        found = committed_numbers()
    except NoCheckout as e:
        pytest.skip(str(e))
    assert found.keys() == expected.keys() and len(found) >= 2, "python tests/expected.py --write"
    for run, numbers in found.items():
        assert numbers == pytest.approx(expected[run], abs=1e-4), run


RUNS = {
    **{name: partial(full_run, ROOT, experiment=name) for name in ("exp1", "exp2", "exp3", "exp4")},
    "exp7": partial(full_run, ROOT, "demo_multihop", "exp7"),
    "exp3 with a model": partial(model_run, ROOT, "exp3", "demo"),
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_committed_run_repeats_cell_by_cell(run, monkeypatch):
    monkeypatch.delenv("ADAPTMR_DATA", raising=False)
    assert repeat(run, monkeypatch) == []


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("ADAPTMR_DATA"), reason="ADAPTMR_DATA names no folder with HotpotQA")
def test_teams_that_a_model_plays_repeat_cell_by_cell(monkeypatch):
    assert repeat(partial(model_run, ROOT, "exp7", TEAM_DATASET), monkeypatch) == []


def repeat(run, monkeypatch):
    """Replay a committed run without a model; return how its tables differ."""
    try:
        folder, _ = run()
    except NoCheckout as e:
        pytest.skip(str(e))
    except (NoRun, SeveralRuns) as e:
        pytest.fail(f"the run that the README shows is not the one that is committed: {e}")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return replay_run(folder, ROOT)
