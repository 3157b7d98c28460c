"""Every relative link of the pages that are committed, and whether it leads somewhere."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

MARKDOWN = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)")
DEFINED = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.M)
CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`+[^`\n]*`+", re.M | re.S)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.I)


class _Page(HTMLParser):
    """Collects where an HTML page leads to, and the places in it that can be led to."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")


def _read_html(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    return page


@cache
def _prose(path: Path) -> str:
    """The Markdown of a page: all of it, or a notebook's cells of prose."""
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
    """The relative links of a page, as they stand there; those in code are examples."""
    if path.suffix == ".html":
        found = list(_html(path).links)
    else:
        prose = CODE.sub("", _prose(path))
        found = [*MARKDOWN.findall(prose), *DEFINED.findall(prose), *_read_html(prose).links]
    return [link for link in map(html.unescape, found) if not ELSEWHERE.match(link)]


def anchor(heading: str) -> str:
    """The place that a heading makes, as GitHub names it."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def places(path: Path) -> frozenset[str]:
    """What can stand behind the # of a link to a page."""
    if path.suffix == ".html":
        return frozenset(_html(path).places)
    prose, found = (
        re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", _prose(path), flags=re.M | re.S),
        set(_read_html(_prose(path)).places),
    )
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", prose, re.M):
        name = anchor(heading)
        number = seen.get(name, 0)
        seen[name] = number + 1
        found.add(f"{name}-{number}" if number else name)
        found.add(heading.strip().replace(" ", "-"))  # as Jupyter names it
    return frozenset(found)


def dead(path: Path) -> Iterator[str]:
    """The relative links of a page that lead nowhere, each with the reason."""
    for link in links(path):
        where, _, place = link.partition("#")
        target = path.parent / unquote(where.partition("?")[0]) if where else path
        if not target.exists():
            yield f"{link}: there is no such file"
        elif (
            place
            and target.suffix in (".md", ".html", ".ipynb")
            and unquote(place) not in places(target.resolve())
        ):
            yield f"{link}: {target.name} has no such place"


def pages(root: Path) -> list[Path]:
    """List README, CHANGELOG, the notebooks of nbs/, and the notebooks and pages that git tracks in outputs/.

    Without git, nothing of outputs/ is listed.
    """
    found = [root / "README.md", root / "CHANGELOG.md"]
    found += [p for p in (root / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
    done = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--", "outputs"], capture_output=True, check=False
    )
    kept = done.stdout.decode("utf-8", "surrogateescape").split("\0") if not done.returncode else []
    found += [
        p for name in kept if name.endswith((".html", ".ipynb", ".md")) and (p := root / name).is_file()
    ]
    return sorted(found)
