"""Shared by all tests: a temporary cache folder, no time limits, and licensed data where it is available."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is slow, and that is no failure of what a test checks; without a database of examples, what
# failed before in this folder plays no part
settings.register_profile(
    "any machine", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

_CACHE = tempfile.TemporaryDirectory(prefix="adaptmr-tests-", ignore_cleanup_errors=True)
# set before the package is imported, so that no test reads or fills the user's cache
os.environ["ADAPTMR_CACHE"] = _CACHE.name
os.environ.pop("ADAPTMR_PROGRESS", None)  # a user may have switched it off


@pytest.fixture(scope="session")
def locomo_file() -> Path:
    """Return the file of LoCoMo, or of a part of it, in the folder ADAPTMR_DATA; skip if there is none."""
    folder = os.environ.get("ADAPTMR_DATA")
    if not folder:
        pytest.skip("ADAPTMR_DATA is not set: it names the folder with locomo10.json or locomo_dev.json")
    for name in ("locomo10.json", "locomo_dev.json"):
        if (path := Path(folder) / name).exists():
            return path
    pytest.skip(f"neither locomo10.json nor locomo_dev.json is in ADAPTMR_DATA={folder}")


@pytest.fixture(scope="session")
def official_cases() -> Callable[[str], list[Any]]:
    """Return a reader of a file of official scores, next to the folder ADAPTMR_DATA; it skips without one."""

    def read(name: str) -> list[Any]:
        folder = os.environ.get("ADAPTMR_DATA")
        if not folder:
            pytest.skip("ADAPTMR_DATA is not set: the official scores are missing")
        path = Path(folder).parent / "vectors" / name
        if not path.exists():
            pytest.skip(f"{path.name} is not in the folder next to ADAPTMR_DATA")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return read


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of exp3 on a part of the demo data, made once for all tests.

    It holds what an experiment writes: results, times, tables, a figure, a notebook and its report. Tests
    only read it: one that changes something copies it.
    """
    from adaptmr.eval.report import figures, tables
    from adaptmr.eval.report.html import render_html
    from adaptmr.experiments import Experiment

    outputs = tmp_path_factory.mktemp("outputs")
    params = {"systems": ["random", "lexical"], "limit": 48, "k": 5, "embedder": "hash"}
    experiment = Experiment("exp3", params, outputs)
    frame = experiment.evaluate()
    experiment.comparison_tables()
    means = tables.mean_table(frame, "f1")
    experiment.figure("f1", lambda: figures.grouped_bars(means, "label", ylabel="F1"), "F1 by question type")
    box = experiment.answer("lexical", figure="f1", limits="A part of the demo data.")
    run = experiment.finish()
    cells = [
        {"cell_type": "markdown", "id": "head", "metadata": {}, "source": "# Which?\n\n## Results"},
        {
            "cell_type": "code",
            "id": "answer",
            "metadata": {"tags": ["answer"]},
            "source": "experiment.answer()",
            "execution_count": 1,
            "outputs": [{"output_type": "display_data", "data": {"text/html": str(box)}, "metadata": {}}],
        },
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (run.path / "notebook.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    render_html(run.path)
    return run.path
