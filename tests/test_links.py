"""Every relative link leads somewhere: in the README, the notebooks, and the reports that are committed."""

from __future__ import annotations

import json
from pathlib import Path

import links
import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_every_relative_link_leads_somewhere() -> None:
    pages = links.pages(ROOT)
    followed = sum(len(links.links(page)) for page in pages)
    assert len(pages) > 100 and followed > 20, "there is something to follow"
    assert [f"{page.relative_to(ROOT)}: {reason}" for page in pages for reason in links.dead(page)] == []


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A page, a notebook and a report to lead to."""
    (tmp_path / "a b.md").write_text(
        "# One thing\n\n## One thing\n\n## `Code` & more!\n<a id='spot'></a>\n```\n# no heading\n```\n",
        encoding="utf-8",
    )
    (tmp_path / "n.ipynb").write_text(
        json.dumps(
            {
                "cells": [
                    {"cell_type": "markdown", "source": ["## In a ", "notebook"]},
                    {"cell_type": "code", "source": "# no heading"},
                ]
            }
        ),
        encoding="utf-8",
    )
    (tmp_path / "r.html").write_text("<h2 id='part1'>x</h2>", encoding="utf-8")
    return tmp_path


GOOD = [
    "a%20b.md",
    "a%20b.md#one-thing",
    "a%20b.md#one-thing-1",
    "a%20b.md#code--more",
    "a%20b.md#spot",
    "n.ipynb#in-a-notebook",
    "n.ipynb#In-a-notebook",
    "r.html#part1",
    "r.html?x=1",
    "https://example.org/gone",
    "mailto:ada@example.org",
    "data:image/png;base64,AA",
    "#here",
    "../",
]
BAD = [
    "gone.md",
    "a%20b.md#two",
    "a%20b.md#no-heading",
    "n.ipynb#no-heading",
    "r.html#part2",
    "#there",
    "nbs/",
]


@pytest.mark.parametrize(
    "written",
    ["[text]({})", '![picture]({} "title")', "[![badge](r.html)]({})", "[ref]: {}", "<a href='{}'>text</a>"],
)
def test_links_are_followed(house: Path, written: str) -> None:
    page = house / "page.md"
    for link in GOOD + BAD:
        links.places.cache_clear()
        links._prose.cache_clear()
        page.write_text(f"# Here\n\n{written.format(link)}\n", encoding="utf-8")
        assert [d.split(":")[0] for d in links.dead(page)] == ([link] if link in BAD else []), link


@pytest.mark.parametrize(
    "written", ["`[text](gone.md)`", "```\n[text](gone.md)\n```", "~~~python\nx[1](gone)\n~~~"]
)
def test_what_stands_in_code_is_no_link(house: Path, written: str) -> None:
    page = house / "code.md"
    page.write_text(written, encoding="utf-8")
    links._prose.cache_clear()
    assert links.links(page) == []


def test_notebooks_and_reports_are_followed(house: Path) -> None:
    book = house / "nbs.ipynb"
    book.write_text(
        json.dumps(
            {
                "cells": [
                    {"cell_type": "markdown", "source": "see [it](gone.ipynb), [that](n.ipynb)"},
                    {"cell_type": "code", "source": "'[text](nowhere.md)'"},
                ]
            }
        ),
        encoding="utf-8",
    )
    assert list(links.dead(book)) == ["gone.ipynb: there is no such file"]
    report = house / "report.html"
    report.write_text(
        "<a href='r.html#part1'>a</a><img src='gone.png'>"
        "<a href='#top'>b</a><i id='x'></i><a href='#x'>c</a>",
        encoding="utf-8",
    )
    assert list(links.dead(report)) == [
        "gone.png: there is no such file",
        "#top: report.html has no such place",
    ]
