"""Run the source notebooks, and compare their outputs with the stored ones.

    python tests/notebooks.py [PATH…]            # run the notebooks under nbs/ (or those named) and compare
    python tests/notebooks.py --write [PATH…]    # store the new outputs

Guides and experiments are not run here: `tests/guides.py` runs the guides, and the runs of the experiments
are in `outputs/`. `notebook_outputs.py` decides which outputs are equal. A cell that begins with `#| varies`
shows measurements of the machine, or data that not every machine has: its output is stored, not compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from notebook_outputs import differences, write_notebook

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "nbs"
OTHER_FOLDERS = ("guides", "experiments")
SKIPPED = re.compile(r"^#\| *(?:notest|slow|llm|eval: *false)\b", re.MULTILINE)
VARIES = re.compile(r"^#\| *varies\b", re.MULTILINE)
LOCAL_PATHS = (
    (re.compile(re.escape(str(ROOT))), "."),  # first, since a checkout may lie in /tmp
    (re.compile(r"(?:/[\w.+-]+)*/(?:tmp|T)/[\w.+-]+"), "/tmp/folder"),
    (re.compile(r"(<[^<>]*?) at 0x[0-9a-fA-F]+(?=>)"), r"\1"),  # as nbdev_clean does
)


class Outcome(NamedTuple):
    """The result of running a notebook: where its outputs differ, or the traceback of a failed cell."""

    name: str
    seconds: float
    differences: list[str]
    error: str


def paths() -> list[Path]:
    """Return the source notebooks of modules."""
    found = sorted(FOLDER.rglob("*.ipynb"))
    return [p for p in found if p.parent.name not in OTHER_FOLDERS and ".ipynb_checkpoints" not in p.parts]


def run(path: Path) -> tuple[Any, str]:
    """Run a notebook in this process; return it with its outputs, and the traceback of a failed cell."""
    from execnb.nbio import read_nb
    from execnb.shell import CaptureShell

    shell = CaptureShell(path, mpl_format="png")
    cells = read_nb(path).cells
    book = nbformat.read(path, as_version=4)
    before, os.environ["IN_TEST"] = Path.cwd(), "1"
    os.environ.setdefault("ADAPTMR_PROGRESS", "off")  # which a stored output must not show
    os.chdir(path.parent)
    try:
        for cell, kept in zip(cells, book.cells):
            if cell.cell_type != "code" or SKIPPED.search(cell.source):
                continue
            shell.cell(cell)
            kept.outputs = [_plain(output) for output in cell.get("outputs", [])]
            if shell.exc:
                return book, shell.prettytb(fname=path)
    finally:
        os.chdir(before)
    return book, ""


def _plain(output: Any) -> Any:
    """Convert an output to nbformat's node, its texts joined and without paths of this machine."""
    node = nbformat.from_dict(json.loads(json.dumps(output, default=str)))
    if "text" in node:
        node["text"] = _without_paths(node["text"])
    data = node.get("data", {})
    if "text/html" in data:
        data.pop("text/plain", None)  # readers see the HTML
    for mime, value in data.items():
        if mime.startswith("text/"):
            data[mime] = _without_paths(value)
    return node


def _without_paths(text: str | list[str]) -> str:
    whole = text if isinstance(text, str) else "".join(text)
    for pattern, word in LOCAL_PATHS:
        whole = pattern.sub(word, whole)
    return whole


def check(path: Path, write: bool = False) -> Outcome:
    """Run one notebook and compare its outputs with the stored ones; with `write`, store the new ones."""
    begun = time.perf_counter()
    old = nbformat.read(path, as_version=4)
    new, error = run(path)
    varying = {cell.id for cell in new.cells if cell.cell_type == "code" and VARIES.search(cell.source)}
    found = [] if error else differences(old, new, varying)
    if write and found:
        write_notebook(path, new)
    return Outcome(path.relative_to(FOLDER).as_posix(), time.perf_counter() - begun, found, error)


def main(words: list[str]) -> int:
    """Check the named notebooks (default: all), or refresh them; return 1 if one differs or fails."""
    parser = argparse.ArgumentParser(description="Run the source notebooks and compare their outputs.")
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks, or folders of them; default: all")
    parser.add_argument("--write", action="store_true", help="store the new outputs")
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), help="number of processes; default: 2"
    )
    given = parser.parse_args(words)
    wanted = [p.resolve() for p in given.paths]
    chosen = [p for p in paths() if not wanted or any(w in (p, *p.parents) for w in wanted)]
    if not chosen:
        parser.error(f"no source notebook in {', '.join(map(str, given.paths))}")
    failed = 0
    for library in ("execnb.shell", "matplotlib.pyplot", "pandas"):
        import_module(library)  # loaded once, before the processes are forked
    # each notebook runs in its own process, because a notebook may register systems or data sets
    with multiprocessing.get_context("fork").Pool(given.workers, maxtasksperchild=1) as pool:
        for outcome in pool.imap(partial(check, write=given.write), chosen):
            status = "fails" if outcome.error else "differs" if outcome.differences else "as stored"
            if given.write and outcome.differences:
                status = "refreshed"
            print(f"{outcome.name}: {status} ({outcome.seconds:.1f} s)", flush=True)
            print(
                *(f"  {line}" for line in outcome.differences if not given.write),
                outcome.error,
                sep="\n",
                end="",
            )
            failed += bool(outcome.error or (outcome.differences and not given.write))
    print(
        f"{failed} of {len(chosen)} notebooks fail or differ"
        if failed
        else f"{len(chosen)} notebooks checked"
    )
    return int(bool(failed))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are printed in the order of their hashes
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    # Imported by name, because a notebook's shell replaces __main__, where a worker would look for `check`.
    import notebooks

    sys.exit(notebooks.main(sys.argv[1:]))
