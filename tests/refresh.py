"""Run notebooks and store what they show, for readers: no test compares it.

    python tests/refresh.py [PATH…]    # those under nbs/, or the named ones; look at `git diff` afterwards

The executed experiments are in `outputs/`; they are not run here. A guide runs in a folder of its own.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS, GUIDES = ROOT / "nbs", ROOT / "nbs" / "guides"
LIMIT = 1800  # seconds for one cell
NEEDS_DATA = ("do_question_types_help", "which_classifier")  # their tables have rows of licensed data
SKIPPED = re.compile(r"^#\| *(?:notest|slow|llm|eval: *false)\b", re.MULTILINE)
WIDGETS = "application/vnd.jupyter.widget-view+json"
OF_THIS_MACHINE = (
    (re.compile(re.escape(str(ROOT))), "."),  # first, since a checkout may lie in /tmp
    (re.compile(re.escape(f"{Path.home()}/")), "~/"),
    (re.compile(r"(?:/[\w.+-]+)*/(?:tmp|T)/[\w.+-]+"), "/tmp/folder"),
    (re.compile(r"(<[^<>]*?) at 0x[0-9a-fA-F]+(?=>)"), r"\1"),  # as nbdev_clean does
)


class Unavailable(Exception):
    """A notebook can't be run here; the message names what is missing."""


def paths() -> list[Path]:
    """Return the notebooks whose outputs are stored in them: all but the experiments."""
    found = sorted(NOTEBOOKS.rglob("*.ipynb"))
    return [p for p in found if p.parent.name not in ("experiments", ".ipynb_checkpoints")]


def run(path: Path) -> Any:
    """Run a notebook, without the cells that nbdev skips too, and return it with its outputs.

    Raises `Unavailable` if its data are missing, and `CellExecutionError` for a cell that fails.
    """
    if path.stem in NEEDS_DATA and not os.environ.get("ADAPTMR_DATA"):
        raise Unavailable(
            f"{path.stem} has rows of licensed data, and ADAPTMR_DATA doesn't name the folder that holds it"
        )
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="guide-") as folder:
        for file in GUIDES.iterdir() if path.parent == GUIDES else ():
            if file.suffix != ".ipynb" and file.is_file():  # such as recorded calls, which a guide reads
                (Path(folder) / file.name).write_bytes(file.read_bytes())
        asked = copy.deepcopy(book)
        for cell in asked.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
                cell.source = "" if SKIPPED.search(cell.source) else cell.source
        place = folder if path.parent == GUIDES else str(path.parent)
        NotebookClient(
            asked, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": place}}
        ).execute()
    for cell, made in zip(book.cells, asked.cells):
        if cell.cell_type == "code" and not SKIPPED.search(cell.source):
            cell.outputs = made.outputs
    return book


def _shown(output: Any) -> Any:
    """Return an output as it is stored: without what belongs to this run or this machine; `None` for none."""
    data = output.get("data", {})
    if output.get("name") == "stderr" or WIDGETS in data:
        return None
    if "text" in output:
        output["text"] = _without_machine(output["text"])
    if "text/html" in data:
        data.pop("text/plain", None)  # readers see the HTML
    for mime in [mime for mime in data if mime.startswith("text/")]:
        data[mime] = _without_machine(data[mime])
    if "metadata" in output:
        output["metadata"] = {}
    if output["output_type"] == "execute_result":
        output["execution_count"] = None
    return output


def _without_machine(text: str | list[str]) -> str:
    whole = text if isinstance(text, str) else "".join(text)
    for pattern, word in OF_THIS_MACHINE:
        whole = pattern.sub(word, whole)
    return whole


def write(path: Path, book: Any) -> None:
    """Write an executed notebook in the format of this repository."""
    book["metadata"] = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    for cell in book["cells"]:
        cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            cell["outputs"] = [shown for output in cell["outputs"] if (shown := _shown(output)) is not None]
    lines = json.loads(nbformat.writes(book, version=4))
    text = json.dumps(lines, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def refresh(path: Path) -> bool:
    """Run a notebook and store its outputs; return whether it ran. One that fails is left as it is."""
    begun = time.perf_counter()
    name = path.relative_to(NOTEBOOKS).as_posix() if path.is_relative_to(NOTEBOOKS) else path.name
    try:
        write(path, run(path))
    except (Unavailable, CellExecutionError) as e:
        print(f"{name}: not refreshed: {e}", flush=True)
        return isinstance(e, Unavailable)
    print(f"{name}: refreshed ({time.perf_counter() - begun:.1f} s)", flush=True)
    return True


def main(words: list[str]) -> int:
    """Refresh the named notebooks and folders (default: all); return 1 if one fails."""
    wanted = [Path(word).resolve() for word in words]
    chosen = [p for p in paths() if not wanted or any(w in (p, *p.parents) for w in wanted)]
    if not chosen:
        sys.exit(f"no notebook in {', '.join(words)}")
    os.environ.update(ADAPTMR_PROGRESS="off", PYTHONHASHSEED="0")  # neither bars nor the order of sets
    with ThreadPoolExecutor(2) as pool:
        return int(not all(list(pool.map(refresh, chosen))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
