"""The committed runs are what this code gives: their numbers are the expected ones, and the run on our own data repeats cell by cell."""
from __future__ import annotations

import pytest
import yaml
from expected import HERE, committed_numbers
from readme import NoRun, full_run

from adaptmr.cli import replay


def test_the_committed_runs_scored_what_is_expected():
    expected = yaml.safe_load((HERE / "params" / "expected.yaml").read_text(encoding="utf-8"))
    found = committed_numbers()
    assert found.keys() == expected.keys() and len(found) >= 2, "python tests/expected.py --write"
    for run, numbers in found.items():
        assert numbers == pytest.approx(expected[run], abs=1e-4), run


def test_the_main_comparison_repeats_cell_by_cell(monkeypatch):
    try: folder, _ = full_run(HERE)
    except NoRun as e: pytest.fail(f"the run that the README shows is gone: {e}")
    monkeypatch.delenv("ADAPTMR_DATA", raising=False)
    assert replay(folder, HERE) == []
