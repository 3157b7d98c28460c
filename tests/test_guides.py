"""The guides have the outputs that the code gives, and the comparison of outputs finds what differs."""

from __future__ import annotations

import copy
import re
from typing import Any

import guides
import nbformat
import pytest
from notebook_outputs import WIDGETS, clean_copy, differences


@pytest.mark.slow
@pytest.mark.parametrize("name", guides.names())
def test_a_guide_has_the_outputs_that_the_code_gives(name: str) -> None:
    old = nbformat.read(guides.FOLDER / f"{name}.ipynb", as_version=4)
    try:
        new = guides.run_guide(name)
    except guides.Unavailable as e:
        pytest.skip(str(e))
    assert differences(old, new) == [], f"python tests/guides.py --write {name}"


SEEN_EARLY = 5  # code cells within which a reader sees the first picture
DRAWN_IN_HTML = ("annotate_failures",)  # the case as the annotator sees it, in colours
INDEX = (guides.FOLDER / "README.md").read_text(encoding="utf-8")
ORDER = re.findall(r"^\| *\d+ \| \[[^\]]+\]\((\w+)\.ipynb\) \|", INDEX, re.MULTILINE)


def shows_picture(output: dict[str, Any], html: bool) -> bool:
    """Whether an output is an image or, with `html`, HTML that is no data frame."""
    data = output.get("data", {})
    image = any(mime.startswith("image/") for mime in data)
    return image or (html and "dataframe" not in data.get("text/html", "dataframe"))


def test_the_index_lists_every_guide_once() -> None:
    assert sorted(ORDER) == guides.names()


@pytest.mark.parametrize("name", guides.names())
def test_a_guide_begins_with_its_title_and_shows_a_picture_early(name: str) -> None:
    cells = nbformat.read(guides.FOLDER / f"{name}.ipynb", as_version=4).cells
    assert re.fullmatch(r"# [^\n]+\n\n> [^\n]+", cells[0].source), "a title, and a subtitle of one line"
    assert sum(c.source.startswith("# ") for c in cells if c.cell_type == "markdown") == 1
    early = [c for c in cells if c.cell_type == "code"][:SEEN_EARLY]
    assert any(shows_picture(output, name in DRAWN_IN_HTML) for c in early for output in c.outputs)


@pytest.mark.parametrize(("name", "following"), [*zip(ORDER, [*ORDER[1:], None])])
def test_a_guide_ends_with_a_link_to_the_next(name: str, following: str | None) -> None:
    cells = nbformat.read(guides.FOLDER / f"{name}.ipynb", as_version=4).cells
    last = [c.source for c in cells if c.cell_type == "markdown"][-1]
    linked = re.findall(r"\]\(([\w.]+)\)", last)
    assert "README.md" in linked and (following is None or f"{following}.ipynb" in linked)


def test_the_seconds_are_reported_longest_first(capsys: pytest.CaptureFixture[str]) -> None:
    guides.report_seconds({"quick": 1.25, "slow": guides.GOAL + 1.0, "even": float(guides.GOAL)})
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["slow", "even", "quick"]
    assert ["above the goal" in line for line in lines] == [True, False, False]


def book(*outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "cells": [
            {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "# A"},
            {
                "cell_type": "code",
                "id": "c",
                "metadata": {},
                "source": "1",
                "execution_count": 1,
                "outputs": list(outputs),
            },
        ],
        "metadata": {},
    }


def result(text: str, **more: Any) -> dict[str, Any]:
    return {
        "output_type": "execute_result",
        "execution_count": 3,
        "metadata": {},
        "data": {"text/plain": text, **more},
    }


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (result("12 rows in 3.25 s"), result("12 rows in 41 s")),
        (result("<A at 0x7f00aa11bb22>"), result("<A at 0x7f00cc33dd44>")),
        (result("a", **{"image/png": "AAAA"}), result("a", **{"image/png": "BBBB"})),
        (printed("10%\r100%\ndone"), printed("done")),
        (printed("loading", "stderr"), printed("", "stderr")),
        (result("made 2026-01-02T03:04:05Z"), result("made 2027-11-12T13:14:15Z")),
        (result("system  ms_retrieve\na 1.25"), result("system  ms_retrieve\na 3.75")),
        (result("in /tmp/abc123/run"), result("in /tmp/xyz789/run")),
        (result("F1 0.512 [0.40, 0.60]"), result("F1 0.513 [0.40, 0.60]")),
    ],
)
def test_what_varies_from_run_to_run_is_not_compared(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert differences(book(old), book(new)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (result("F1 0.512"), result("F1 0.515")),
        (result("better on temporal"), result("too few")),
        (result("a", **{"image/png": "AAAA"}), result("a")),
        (result("x", **{"text/html": "<b>1</b>"}), result("x", **{"text/html": "<b>2</b>"})),
        (printed("one"), printed("two")),
        (result("12 rows in 3 s"), result("13 rows in 3 s")),
        (printed("said"), printed("")),
    ],
)
def test_other_differences_are_found(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert len(differences(book(old), book(new))) == 1
    assert differences(book(old, old), book(old)) != [] != differences(book(old), book(old, old))


def test_a_clean_copy_has_no_traces_of_its_run() -> None:
    widget = {
        "output_type": "display_data",
        "metadata": {},
        "data": {WIDGETS: {}, "text/plain": "bar"},
    }
    made = book(result("kept"), printed("progress", "stderr"), widget)
    made["cells"][1]["metadata"] = {"execution": {"started": "now"}, "tags": ["a"]}
    before = copy.deepcopy(made)
    out = clean_copy(made)
    assert (
        made == before
        and out["cells"][1]["metadata"] == {"tags": ["a"]}
        and out["cells"][1]["execution_count"] is None
    )
    assert [o["data"] for o in out["cells"][1]["outputs"]] == [{"text/plain": "kept"}] and differences(
        before, out
    ) == []


def test_an_unknown_guide_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        guides.main(["no-such-guide"])
    assert "no guide 'no-such-guide'; there are " in capsys.readouterr().err


def test_a_guide_whose_data_is_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ADAPTMR_DATA", raising=False)
    assert (
        guides.main(["which_classifier"]) == 0
        and "left out, which_classifier has rows of licensed data" in capsys.readouterr().out
    )
