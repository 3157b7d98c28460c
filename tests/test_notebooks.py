"""The check of stored outputs finds cells that fail and cells whose output differs, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest

HERE = Path(__file__).resolve().parent


def book(*sources: str) -> str:
    plain = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**plain, "id": f"c{i}", "source": source} for i, source in enumerate(sources)]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def check(path: Path, write: bool = False) -> dict:
    """Check a notebook in its own process, because a notebook's shell replaces __main__."""
    code = (
        "import json, sys; from pathlib import Path; import notebooks\n"
        "path = Path(sys.argv[1]); notebooks.FOLDER = path.parent\n"
        "print(json.dumps(notebooks.check(path, bool(int(sys.argv[2])))._asdict()))"
    )
    command = [sys.executable, "-c", code, str(path), str(int(write))]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_outputs_are_stored_and_then_compared(tmp_path):
    path = tmp_path / "lesson.ipynb"
    path.write_text(book("import os, tempfile", "print(1 + 1)", "tempfile.mkdtemp()", "{'b': .5}"))
    assert len(check(path)["differences"]) == 3, "nothing is stored yet"
    assert check(path, write=True)["error"] == ""
    assert check(path)["differences"] == []
    shown = [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]
    assert shown[0] == [] and shown[1][0]["text"] == ["2\n"]
    assert "/tmp/folder" in shown[2][0]["data"]["text/plain"][0]

    path.write_text(path.read_text().replace("print(1 + 1)", "print(1 + 2)"))
    [found] = check(path)["differences"]
    assert found.startswith("cell c1: ") and "'2'" in found and "'3'" in found


def test_a_cell_that_fails_is_reported_with_its_error(tmp_path):
    path = tmp_path / "lesson.ipynb"
    path.write_text(book("1", "1 / 0", "2"))
    found = check(path, write=True)
    assert "ZeroDivisionError" in found["error"]
    assert json.loads(path.read_text())["cells"][0]["outputs"] == [], "a notebook that fails is not changed"


@pytest.mark.parametrize("flag", ["notest", "slow", "eval: false"])
def test_flagged_cells_are_not_run(tmp_path, flag):
    path = tmp_path / "lesson.ipynb"
    path.write_text(book(f"#| {flag}\n1 / 0", "'after'"))
    found = check(path, write=True)
    assert found["error"] == "" and "after" in path.read_text()


def test_only_notebooks_of_modules_are_checked():
    found = {p.relative_to(notebooks.FOLDER).as_posix() for p in notebooks.paths()}
    assert "00_types.ipynb" in found
    assert not [name for name in found if name.startswith(("guides/", "experiments/"))]


def test_an_unknown_notebook_is_refused(capsys):
    with pytest.raises(SystemExit):
        notebooks.main(["nowhere.ipynb"])
    assert "nowhere.ipynb" in capsys.readouterr().err


def test_a_cell_that_varies_is_stored_and_not_compared(tmp_path):
    path = tmp_path / "lesson.ipynb"
    path.write_text(book("#| varies\n1"))
    assert check(path, write=True)["error"] == ""
    stored = json.loads(path.read_text())
    assert stored["cells"][0]["outputs"][0]["data"]["text/plain"] == ["1"]
    path.write_text(json.dumps({**stored, "cells": [{**stored["cells"][0], "source": "#| varies\n2"}]}))
    assert check(path)["differences"] == []
