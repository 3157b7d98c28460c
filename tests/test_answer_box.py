"""The answer box: what it says of a contrast, and that a report shows it first."""

from __future__ import annotations

import math

import pytest

from adaptmr.eval.report.answer_box import answer_box_html, contrast_answer, move_box_up
from adaptmr.eval.report.html import external_resources

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
    asked = (ROW["asks"], *contrast_answer(ROW))
    box = answer_box_html([asked], numbers, picture, "Recall & more", "Two languages.")
    assert "Is b better than &lt;a&gt;?" in box and "0.8 [0.7, 0.9]" in box
    assert "data:image/png;base64," in box and "Recall &amp; more" in box
    assert "What this can't show: Two languages." in box and external_resources(box) == []


def test_a_run_without_contrasts_says_so(tmp_path):
    box = answer_box_html([], picture=tmp_path / "none.png")
    assert "no declared contrast" in box and "<img" not in box


def test_the_box_comes_first_in_a_page():
    box = answer_box_html([("Is it dear?", "No.", "+2 %")])
    body = f"<h1>T</h1>\n<blockquote>\n<p>sub</p>\n</blockquote><p>story</p>{box}<p>end</p>"
    moved = move_box_up(body)
    assert moved == f"<h1>T</h1>\n<blockquote>\n<p>sub</p>\n</blockquote>{box}<p>story</p><p>end</p>"
    assert move_box_up(moved) == moved and move_box_up("<p>no box</p>") == "<p>no box</p>"
