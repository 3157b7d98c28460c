"""Find dead relative links in the committed pages."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from committed import NoCheckout, tracked_files

MARKDOWN = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)")
DEFINED = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.M)
CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`+[^`\n]*`+", re.M | re.S)
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.I)


class _Page(HTMLParser):
    """Collects the links of an HTML page, and its anchors: the ids and names that a link can point to."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")


def _read_html(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    return page


@cache
def _prose(path: Path) -> str:
    """Return the Markdown of a page: the whole page, or the Markdown cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n\n".join(
        "".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"
    )


@cache
def _html(path: Path) -> _Page:
    return _read_html(path.read_text(encoding="utf-8"))


def links(path: Path) -> list[str]:
    """Return the relative links of a page as they are written, without those in code."""
    if path.suffix == ".html":
        found = list(_html(path).links)
    else:
        prose = CODE.sub("", _prose(path))
        found = [*MARKDOWN.findall(prose), *DEFINED.findall(prose), *_read_html(prose).links]
    return [link for link in map(html.unescape, found) if not EXTERNAL.match(link)]


def heading_anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: what may follow the # of a link to it."""
    if path.suffix == ".html":
        return frozenset(_html(path).anchors)
    prose = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", _prose(path), flags=re.M | re.S)
    found = _read_html(_prose(path)).anchors
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", prose, re.M):
        name = heading_anchor(heading)
        number = seen.get(name, 0)
        seen[name] = number + 1
        found.add(f"{name}-{number}" if number else name)
        found.add(heading.strip().replace(" ", "-"))  # as Jupyter names it
    return frozenset(found)


def dead_links(path: Path) -> Iterator[str]:
    """List the dead relative links of a page, each with the reason."""
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = path.parent / unquote(file.partition("?")[0]) if file else path
        if not target.exists():
            yield f"{link}: there is no such file"
        elif (
            anchor
            and target.suffix in (".md", ".html", ".ipynb")
            and unquote(anchor) not in anchors(target.resolve())
        ):
            yield f"{link}: {target.name} has no such anchor"


def pages(root: Path) -> list[Path]:
    """List the pages of the root, the notebooks of nbs/, and what git tracks in outputs/.

    Without git, nothing of outputs/ is listed.
    """
    found = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    found += [p for p in (root / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
    with suppress(NoCheckout):
        kept = tracked_files(root, "outputs")
        found += [p for p in kept if p.suffix in (".html", ".ipynb", ".md") and p.is_file()]
    return sorted(found)
