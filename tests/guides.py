"""Compare the guides' committed outputs with what today's code gives.

`python tests/guides.py [name…]` runs the guides again and says where they differ; `--write` stores the new
outputs, cleaned. Times, memory addresses, progress bars and widgets are not compared. Of an image only its
presence is compared. Decimals may differ by as much as another processor's rounding changes them.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent.parent
FOLDER = HERE / "nbs" / "guides"
LIMIT = 1800  # seconds for one cell
NEEDS_DATA = ("do_kinds_help", "which_classifier")  # their tables have rows of licensed data
WIDGETS = "application/vnd.jupyter.widget-view+json"
TEXTS = ("text/plain", "text/html", "text/markdown")
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
VARYING = (
    (re.compile(rf"\bms={NUMBER}"), "ms=<time>"),
    (re.compile(r"\bprocess \d+"), "process <number>"),
    (re.compile(r"datetime\.datetime\(\d+(?:, \d+){6}"), "datetime.datetime(<moment>"),
    (re.compile(rf"\b{NUMBER}\s?(?:ns|µs|us|ms|s|sec|seconds?|min|minutes?)\b"), "<time>"),
    (re.compile(r"\b\d+:\d\d(?::\d\d)?(?=[,\]<\s])"), "<clock>"),
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "<address>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?"), "<moment>"),
    (re.compile(r"(?:/[\w.+-]+)*/(?:tmp|T)[\w.+-]*(?:/[\w.+-]+)+"), "<temporary>"),
    (re.compile(r"\bid=['\"][^'\"]*['\"]"), "<id>"),
)
DECIMAL = re.compile(r"(\d+\.\d+)")
TOLERANCE = (
    0.002  # a fresh run on another processor agrees in every mean to .001, and what is shown is rounded
)
CLOCK_COLUMN = re.compile(r"(?:^|[\s>])ms(?:_\w+)?(?=[\s<])")


class Unavailable(Exception):
    """A guide can't be run here; the message says what is missing."""


def names() -> list[str]:
    """The guides there are."""
    return sorted(p.stem for p in FOLDER.glob("*.ipynb"))


def executed(name: str) -> Any:
    """Run the guide from the top in a folder of its own and return it.

    Raises `Unavailable` if its data is missing, and whatever a cell raises.
    """
    if name in NEEDS_DATA and not os.environ.get("ADAPTMR_DATA"):
        raise Unavailable(
            f"{name} has rows of licensed data, and ADAPTMR_DATA doesn't name the folder that holds it"
        )
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory(prefix="guide-") as folder:
        for beside in FOLDER.iterdir():  # recorded calls, say, which a guide reads from where it lies
            if beside.suffix != ".ipynb" and beside.is_file():
                (Path(folder) / beside.name).write_bytes(beside.read_bytes())
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        client = NotebookClient(
            book, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    return book


def shown(output: Any) -> list[tuple[str, str]]:
    """What of an output must be the same: pairs of a kind and a text. Progress and widgets are nothing."""
    if output["output_type"] == "stream":
        text = steady(output["text"])
        return [(output["name"], text)] if output["name"] == "stdout" and text else []
    if output["output_type"] == "error":
        return [("error", f"{output['ename']}: {output['evalue']}")]
    data = output.get("data", {})
    if WIDGETS in data:
        return []
    return [
        (kind, steady(data[kind]) if kind in TEXTS else "there")
        for kind in sorted(data)
        if kind in TEXTS or kind.startswith("image/")
    ]


def steady(text: str | list[str]) -> str:
    """A text without what differs from run to run."""
    whole = ESCAPES.sub("", text if isinstance(text, str) else "".join(text))
    lines = [
        line.rstrip() for line in whole.replace("\r\n", "\n").split("\n") if "\r" not in line
    ]  # a line that was written over is progress
    whole = "\n".join(line for line in lines if line)
    if CLOCK_COLUMN.search(whole):  # a table with a column of milliseconds: its numbers are a clock's
        whole = re.sub(NUMBER, "<number>", whole)
    for pattern, word in VARYING:
        whole = pattern.sub(word, whole)
    return whole


def alike(old: tuple[str, str], new: tuple[str, str]) -> bool:
    """Whether two pairs of a kind and a text say the same, decimals within `TOLERANCE` of each other."""
    parts, others = DECIMAL.split(old[1]), DECIMAL.split(new[1])
    if old[0] != new[0] or len(parts) != len(others):
        return False
    return all(
        abs(float(a) - float(b)) <= TOLERANCE + 1e-9 if i % 2 else a == b
        for i, (a, b) in enumerate(zip(parts, others))
    )


def differences(old: Any, new: Any, varying: Collection[str] = ()) -> list[str]:
    """How two runs of a notebook differ, a line for each cell, by the cell's id.

    What the cells in `varying` show is not compared, where anything is stored.
    """
    found = []
    before = {cell["id"]: cell for cell in old["cells"] if cell["cell_type"] == "code"}
    for cell in new["cells"]:
        if cell["cell_type"] != "code":
            continue
        one, two = (
            [part for output in c.get("outputs", []) for part in shown(output)]
            for c in (before[cell["id"]], cell)
        )
        if len(one) == len(two) and all(map(alike, one, two)):
            continue
        if one and cell["id"] in varying:
            continue
        pair = next(
            ((a, b) for a, b in zip(one, two) if not alike(a, b)), (one[len(two) :][:1], two[len(one) :][:1])
        )
        found.append(f"cell {cell['id']}: {_near(*map(str, pair))}")
    return found


def _near(old: str, new: str) -> str:
    """Where two texts part, with a little of both."""
    at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    start = max(0, at - 40)
    return f"{old[start : at + 80]!r} is now {new[start : at + 80]!r}"


def cleaned(book: Any) -> Any:
    """An executed guide as it is committed: no progress, no widgets, no traces of the run."""
    out = copy.deepcopy(book)
    out["metadata"] = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    for cell in out["cells"]:
        cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
        if cell["cell_type"] != "code":
            continue
        cell["execution_count"] = None
        cell["outputs"] = [
            o
            for o in cell["outputs"]
            if not (o["output_type"] == "stream" and o["name"] == "stderr")
            and WIDGETS not in o.get("data", {})
        ]
        for output in cell["outputs"]:
            output.pop("execution_count", None)
            if output["output_type"] == "execute_result":
                output["execution_count"] = None
            if "metadata" in output:
                output["metadata"] = {}
    return out


def store(path: Path, book: Any) -> None:
    """Write an executed notebook, cleaned, in the form of all notebooks here."""
    lines = json.loads(nbformat.writes(cleaned(book), version=4))
    text = json.dumps(lines, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def main(words: list[str]) -> int:
    """Check, or with --write refresh, the guides named (all, where none is); 1 where one differs or fails."""
    parser = argparse.ArgumentParser(description="are the guides what today's code gives?")
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(names()))
    parser.add_argument("--write", action="store_true", help="store what today's code gives")
    asked = parser.parse_args(words)
    if unknown := [n for n in asked.names if n not in names()]:
        parser.error(f"no guide {unknown[0]!r}; there are {', '.join(names())}")
    status = 0
    for name in asked.names or names():
        old = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        try:
            new = executed(name)
        except Unavailable as e:
            print(f"{name}: left out, {e}")
            continue
        except CellExecutionError as e:
            print(f"{name}: a cell fails: {e}")
            status = 1
            continue
        found = differences(old, new)
        if asked.write:
            store(FOLDER / f"{name}.ipynb", new)
        status = status or int(bool(found) and not asked.write)
        print(
            f"{name}: {'refreshed' if asked.write else 'as committed' if not found else 'differs'}",
            *found,
            sep="\n  ",
        )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
