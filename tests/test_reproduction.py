"""Committed runs have the expected numbers, and today's code still gives them."""

from __future__ import annotations

import os
from fnmatch import fnmatch

import pytest
import yaml
from committed import NoCheckout, committed_runs
from expected import ROOT, committed_numbers

from adaptmr.cli.replaying import NotCheckable, check_run
from adaptmr.eval.report.recorded_run import open_recorded


def test_the_committed_runs_scored_what_is_expected():
    expected = yaml.safe_load((ROOT / "params" / "expected.yaml").read_text(encoding="utf-8"))
    try:
        found = committed_numbers()
    except NoCheckout as e:
        pytest.skip(str(e))
    assert found.keys() == expected.keys() and len(found) >= 2, "python tests/expected.py --write"
    for run, numbers in found.items():
        assert numbers == pytest.approx(expected[run], abs=1e-4), run


CHECKED = os.environ.get("ADAPTMR_CHECK", "*").split()  # patterns of the runs to make again


def runs() -> list[str]:
    """Name the committed runs; those that take longest come first, so that they don't end last."""
    try:
        found = committed_runs(ROOT)
    except NoCheckout:
        return []
    found = [run for run in found if any(fnmatch(run.name, pattern) for pattern in CHECKED)]
    found.sort(key=lambda run: -run.manifest["when"]["seconds"])
    return [run.name for run in found]


@pytest.mark.slow
@pytest.mark.parametrize("run", runs())
def test_todays_code_gives_the_numbers_of_a_committed_run(run, tmp_path_factory, monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    cache = tmp_path_factory.getbasetemp().parent / "vectors"  # of all processes of this session
    cache.mkdir(exist_ok=True)
    try:
        assert check_run(open_recorded(ROOT / "outputs" / run), ROOT, cache) == []
    except NotCheckable as e:
        pytest.skip(str(e))
