"""Outputs that are stored belong to no run and no machine, and only a notebook that runs is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import refresh


def book(*sources: str) -> str:
    plain = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**plain, "id": f"c{i}", "source": source} for i, source in enumerate(sources)]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_a_notebook_keeps_what_it_shows_and_nothing_of_its_run(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    path.write_text(
        book(
            "import os, sys, tempfile\nprint(1 + 1)\nprint('bar', file=sys.stderr)",
            "tempfile.mkdtemp(), object()",
            "#| slow\n1 / 0",
            "os.listdir()",
        )
    )
    assert refresh.refresh(path)
    shown = [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]
    assert [o["text"] for o in shown[0]] == [["2\n"]]
    assert shown[1][0]["data"]["text/plain"] == ["('/tmp/folder', <object>)"]
    assert shown[2] == [], "skipped, as nbdev_test does"
    assert shown[3][0]["data"]["text/plain"] == ["['lesson.ipynb']"], "it runs in its own folder"


def test_a_notebook_that_fails_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lesson.ipynb"
    path.write_text(before := book("1", "1 / 0"))
    assert not refresh.refresh(path)
    assert path.read_text() == before and "ZeroDivisionError" in capsys.readouterr().out
