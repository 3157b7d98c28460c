"""The tree of the package in CONTRIBUTING.md: a line for each module, as its notebook's subtitle says it.

`python tests/house.py --write` puts it there.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
SOURCE = re.compile(r"File to edit: \S*?([^/]+\.ipynb)")
MARKED = re.compile(r"(?<=<!-- house -->\n).*?(?=<!-- /house -->)", re.S)

# from the lowest floor up: a module imports only from its own floor and from those below it
FLOORS = [
    {"markup", "checks"},
    {"types"},
    {"text", "files", "sqlite", "progress", "provenance"},
    {"registry"},
    {"times"},
    {"llm"},
    {"embed"},
    {"rerank", "reader"},
    {"store"},
    {"retrieval"},
    {"planning"},
    {"memory"},
    {"systems"},
    {"agents"},
    {"data"},
    {"eval"},
    {"training", "sections"},
    {"plugins"},
    {"experiments", "integrations", "bench"},
    {"cli", "__main__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def notebook(path: Path) -> str:
    """Return the path of the notebook that a module comes from; its number gives the order of reading."""
    return SOURCE.search(path.read_text(encoding="utf-8"))[1]  # type: ignore[index]


def modules(root: Path = ROOT) -> list[Path]:
    """Return the modules' files, from the lowest floor up, and in a folder by their notebooks' numbers."""
    package = root / "adaptmr"
    found = [p for p in package.rglob("*.py") if p.name not in ("_modidx.py", "__main__.py")]
    named = [p for p in found if p.name != "__init__.py"]

    def place(path: Path) -> tuple[object, ...]:
        *folders, name = path.relative_to(package).with_suffix("").parts
        room = (folders or [name])[0]
        return FLOOR.get(room, len(FLOORS)), folders, notebook(path)

    return sorted(named, key=place)


def tree(root: Path = ROOT) -> str:
    """Return the tree: the folders, and each module with the first line of its docstring."""
    lines, shown = ["```"], tuple[str, ...]()
    for path in modules(root):
        *folders, name = path.relative_to(root / "adaptmr").with_suffix("").parts
        for depth, folder in enumerate(folders):
            if tuple(folders[: depth + 1]) != shown[: depth + 1]:
                lines.append(f"{'    ' * depth}{folder}/")
        shown = tuple(folders)
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"{'    ' * len(folders) + name:24}{said.splitlines()[0].rstrip('.')}")
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(MARKED.sub(lambda _: tree(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tree())
