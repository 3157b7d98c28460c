"""No relative link is dead in the README, the changelog, the notebooks and the committed reports."""

from __future__ import annotations

from pathlib import Path

import links

ROOT = Path(__file__).resolve().parent.parent


def test_no_relative_link_is_dead() -> None:
    pages = links.pages(ROOT)
    followed = sum(len(links.links(page)) for page in pages)
    assert len(pages) > 100 and followed > 20, "there are links to check"
    assert [
        f"{page.relative_to(ROOT)}: {reason}" for page in pages for reason in links.dead_links(page)
    ] == []
