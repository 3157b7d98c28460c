"""The answer box: what it says of a contrast, and that a report shows it first."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from adaptmr.eval.report.html import (
    ANSWER_TAG,
    answer_box_html,
    answer_first,
    contrast_answer,
    external_resources,
)

ROOT = Path(__file__).resolve().parent.parent
ROW = {
    "contrast": "b − a",
    "measure": "f1",
    "n": 200,
    "conversations": 10,
    "difference": 0.1,
    "low": 0.05,
    "high": 0.15,
    "margin": 0.02,
    "detectable": 0.04,
    "verdict": "different",
    "asks": "Is b better than <a>?",
}


@pytest.mark.parametrize(
    ("changes", "short", "detail"),
    [
        ({}, "Yes.", "b − a in F1: +0.100 [+0.050, +0.150], different; n = 200, 10 conversations"),
        ({"difference": -0.1, "low": -0.15, "high": -0.05}, "No, it costs.", "b − a in F1: -0.100 [-0.150"),
        ({"verdict": "equivalent"}, "No.", "equivalent within ±0.02; n = 200"),
        ({"verdict": "undecided"}, "Undecided.", "10 conversations, which could have shown 0.040"),
        ({"verdict": "undecided", "detectable": math.nan, "low": math.nan}, "Undecided.", "0.100, und"),
        ({"verdict": "too few"}, "Undecided.", "too few; n = 200"),
    ],
)
def test_the_answer_to_a_contrast(changes, short, detail):
    said = contrast_answer(ROW | changes)
    assert said[0] == short and detail in said[1]


def test_the_box_holds_answers_numbers_picture_and_limits(tmp_path):
    picture = tmp_path / "recall.png"
    picture.write_bytes(b"not really a picture")
    numbers = [("recall of b", "0.8 [0.7, 0.9]")]
    box = answer_box_html(
        [(ROW["asks"], *contrast_answer(ROW))], numbers, picture, "Recall & more", "Two languages."
    )
    assert "Is b better than &lt;a&gt;?" in box and "0.8 [0.7, 0.9]" in box
    assert "data:image/png;base64," in box and "Recall &amp; more" in box
    assert "What this can't show: Two languages." in box and external_resources(box) == []


def test_the_box_comes_first_in_a_page():
    title, story, box = ({"metadata": {"tags": tags}} for tags in ([], ["parameters"], [ANSWER_TAG]))
    assert answer_first([title, story, box]) == [title, box, story]
    assert answer_first([title, box, story]) == [title, box, story]
    assert answer_first([title, story]) == [title, story]


def test_every_answer_of_an_experiment_has_the_tag():
    asked = [
        (path.name, cell["metadata"].get("tags"))
        for path in sorted((ROOT / "nbs" / "experiments").glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if "experiment.answer(" in "".join(cell["source"])
    ]
    assert len(asked) >= 4 and [a for a in asked if a[1] != [ANSWER_TAG]] == []
