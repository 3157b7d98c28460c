"""The guides run, and each begins and ends as a reader needs it."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
import refresh
from refresh import GUIDES

NAMES = sorted(p.stem for p in GUIDES.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_guide_runs(name: str) -> None:
    try:
        refresh.run(GUIDES / f"{name}.ipynb")
    except refresh.Unavailable as e:
        pytest.skip(str(e))


SEEN_EARLY = 5  # code cells within which a reader sees the first picture
DRAWN_IN_HTML = ("annotate_failures",)  # the case as the annotator sees it, in colours
INDEX = (GUIDES / "README.md").read_text(encoding="utf-8")
ORDER = re.findall(r"^\| *\d+ \| \[[^\]]+\]\((\w+)\.ipynb\) \|", INDEX, re.MULTILINE)


def shows_picture(output: dict[str, Any], html: bool) -> bool:
    """Whether an output is an image or, with `html`, HTML that is no data frame."""
    data = output.get("data", {})
    image = any(mime.startswith("image/") for mime in data)
    return image or (html and "dataframe" not in data.get("text/html", "dataframe"))


def test_the_index_lists_every_guide_once() -> None:
    assert sorted(ORDER) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_guide_begins_with_its_title_and_shows_a_picture_early(name: str) -> None:
    cells = nbformat.read(GUIDES / f"{name}.ipynb", as_version=4).cells
    assert re.fullmatch(r"# [^\n]+\n\n> [^\n]+", cells[0].source), "a title, and a subtitle of one line"
    assert sum(c.source.startswith("# ") for c in cells if c.cell_type == "markdown") == 1
    early = [c for c in cells if c.cell_type == "code"][:SEEN_EARLY]
    assert any(shows_picture(output, name in DRAWN_IN_HTML) for c in early for output in c.outputs)


@pytest.mark.parametrize(("name", "following"), [*zip(ORDER, [*ORDER[1:], None])])
def test_a_guide_ends_with_a_link_to_the_next(name: str, following: str | None) -> None:
    cells = nbformat.read(GUIDES / f"{name}.ipynb", as_version=4).cells
    last = [c.source for c in cells if c.cell_type == "markdown"][-1]
    linked = re.findall(r"\]\(([\w.]+)\)", last)
    assert "README.md" in linked and (following is None or f"{following}.ipynb" in linked)
