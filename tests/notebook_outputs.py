"""Compare the outputs of two runs of a notebook, and write a notebook.

Times, memory addresses, progress bars and widgets are not compared, and of an image only its presence is.
Decimals may differ by as much as another processor's rounding changes them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import nbformat

WIDGETS = "application/vnd.jupyter.widget-view+json"
TEXTS = ("text/plain", "text/html", "text/markdown")
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
VARIATIONS = (
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
TOLERANCE = 0.002  # another processor gives every mean to within .001, and outputs are rounded
CLOCK_COLUMN = re.compile(r"(?:^|[\s>])ms(?:_\w+)?(?=[\s<])")


def compared_parts(output: Any) -> list[tuple[str, str]]:
    """Return the parts of an output that must not change: pairs of a format and a text.

    Progress bars and widgets have none.
    """
    if output["output_type"] == "stream":
        text = without_variation(output["text"])
        return [(output["name"], text)] if output["name"] == "stdout" and text else []
    if output["output_type"] == "error":
        return [("error", f"{output['ename']}: {output['evalue']}")]
    data = output.get("data", {})
    if WIDGETS in data:
        return []
    return [
        (mime, without_variation(data[mime]) if mime in TEXTS else "present")
        for mime in sorted(data)
        if mime in TEXTS or mime.startswith("image/")
    ]


def without_variation(text: str | list[str]) -> str:
    """Return a text with placeholders for what differs from run to run."""
    whole = ESCAPES.sub("", text if isinstance(text, str) else "".join(text))
    lines = [
        line.rstrip() for line in whole.replace("\r\n", "\n").split("\n") if "\r" not in line
    ]  # a progress bar overwrites its line
    whole = "\n".join(line for line in lines if line)
    if CLOCK_COLUMN.search(whole):  # a table with a column of milliseconds
        whole = re.sub(NUMBER, "<number>", whole)
    for pattern, word in VARIATIONS:
        whole = pattern.sub(word, whole)
    return whole


def equal_parts(old: tuple[str, str], new: tuple[str, str]) -> bool:
    """Whether two pairs of a format and a text are equal, decimals up to `TOLERANCE`."""
    parts, others = DECIMAL.split(old[1]), DECIMAL.split(new[1])
    if old[0] != new[0] or len(parts) != len(others):
        return False
    return all(
        abs(float(a) - float(b)) <= TOLERANCE + 1e-9 if i % 2 else a == b
        for i, (a, b) in enumerate(zip(parts, others))
    )


def differences(old: Any, new: Any, varying: Collection[str] = ()) -> list[str]:
    """Describe how two runs of a notebook differ: a line for each cell that does, with the cell's id.

    Cells whose id is in `varying` count only when they have no stored output.
    """
    found = []
    before = {cell["id"]: cell for cell in old["cells"] if cell["cell_type"] == "code"}
    for cell in new["cells"]:
        if cell["cell_type"] != "code":
            continue
        one, two = (
            [part for output in c.get("outputs", []) for part in compared_parts(output)]
            for c in (before[cell["id"]], cell)
        )
        if len(one) == len(two) and all(map(equal_parts, one, two)):
            continue
        if one and cell["id"] in varying:
            continue
        pair = next(
            ((a, b) for a, b in zip(one, two) if not equal_parts(a, b)),
            (one[len(two) :][:1], two[len(one) :][:1]),
        )
        found.append(f"cell {cell['id']}: {_first_difference(*map(str, pair))}")
    return found


def _first_difference(old: str, new: str) -> str:
    """Quote both texts around the first character in which they differ."""
    at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    start = max(0, at - 40)
    return f"{old[start : at + 80]!r} is now {new[start : at + 80]!r}"


def clean_copy(book: Any) -> Any:
    """Copy an executed notebook without progress bars, widgets and traces of the run."""
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


def write_notebook(path: Path, book: Any) -> None:
    """Write a clean copy of an executed notebook, in the format of this repository."""
    lines = json.loads(nbformat.writes(clean_copy(book), version=4))
    text = json.dumps(lines, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")
