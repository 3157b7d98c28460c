"""No relative link is dead in the README, the changelog, the notebooks and the committed reports."""

from __future__ import annotations

import json
from pathlib import Path

import links
import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_no_relative_link_is_dead() -> None:
    pages = links.pages(ROOT)
    followed = sum(len(links.links(page)) for page in pages)
    assert len(pages) > 100 and followed > 20, "there are links to check"
    assert [
        f"{page.relative_to(ROOT)}: {reason}" for page in pages for reason in links.dead_links(page)
    ] == []


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    """A folder with a page, a notebook and a report that links can point to."""
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
def test_dead_links_are_found(targets: Path, written: str) -> None:
    page = targets / "page.md"
    for link in GOOD + BAD:
        links.anchors.cache_clear()
        links._prose.cache_clear()
        page.write_text(f"# Here\n\n{written.format(link)}\n", encoding="utf-8")
        assert [d.split(":")[0] for d in links.dead_links(page)] == ([link] if link in BAD else []), link


@pytest.mark.parametrize(
    "written", ["`[text](gone.md)`", "```\n[text](gone.md)\n```", "~~~python\nx[1](gone)\n~~~"]
)
def test_links_in_code_are_ignored(targets: Path, written: str) -> None:
    page = targets / "code.md"
    page.write_text(written, encoding="utf-8")
    links._prose.cache_clear()
    assert links.links(page) == []


def test_dead_links_are_found_in_notebooks_and_reports(targets: Path) -> None:
    book = targets / "nbs.ipynb"
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
    assert list(links.dead_links(book)) == ["gone.ipynb: there is no such file"]
    report = targets / "report.html"
    report.write_text(
        "<a href='r.html#part1'>a</a><img src='gone.png'>"
        "<a href='#top'>b</a><i id='x'></i><a href='#x'>c</a>",
        encoding="utf-8",
    )
    assert list(links.dead_links(report)) == [
        "gone.png: there is no such file",
        "#top: report.html has no such anchor",
    ]
