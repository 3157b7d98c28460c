"""Run the guides, and compare their outputs with the committed ones.

`python tests/guides.py [name…]` prints where they differ, and the seconds of each; `--write` stores the new
outputs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from notebook_outputs import differences, write_notebook

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "nbs" / "guides"
LIMIT = 1800  # seconds for one cell
GOAL = 30  # seconds for a guide on a quiet machine with two cores
NEEDS_DATA = ("do_question_types_help", "which_classifier")  # their tables have rows of licensed data


class Unavailable(Exception):
    """A guide can't be run here; the message names what is missing."""


def names() -> list[str]:
    """Return the names of the guides."""
    return sorted(p.stem for p in FOLDER.glob("*.ipynb"))


def run_guide(name: str) -> Any:
    """Run all cells of a guide in a new folder and return it with its outputs.

    Raises `Unavailable` if its data is missing, and `CellExecutionError` for a cell that fails.
    """
    if name in NEEDS_DATA and not os.environ.get("ADAPTMR_DATA"):
        raise Unavailable(
            f"{name} has rows of licensed data, and ADAPTMR_DATA doesn't name the folder that holds it"
        )
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory(prefix="guide-") as folder:
        for file in FOLDER.iterdir():  # such as recorded calls, which a guide reads from its folder
            if file.suffix != ".ipynb" and file.is_file():
                (Path(folder) / file.name).write_bytes(file.read_bytes())
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        client = NotebookClient(
            book, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    return book


def processor_seconds() -> float:
    """Return the processor time of all kernels that have ended, and of the processes that they started."""
    spent = os.times()
    return spent.children_user + spent.children_system


def report_seconds(seconds: dict[str, float]) -> None:
    """Print the processor time of each guide, the longest first, and mark those above the goal."""
    print(f"\nprocessor seconds (goal: {GOAL} on a quiet machine)")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"{spent:7.1f}  {name}{'  above the goal' if spent > GOAL else ''}")


def main(words: list[str]) -> int:
    """Check the named guides (default: all), or refresh them; return 1 if one differs or fails."""
    parser = argparse.ArgumentParser(description="Run the guides and compare their outputs.")
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(names()))
    parser.add_argument("--write", action="store_true", help="store the new outputs")
    given = parser.parse_args(words)
    if unknown := [n for n in given.names if n not in names()]:
        parser.error(f"no guide {unknown[0]!r}; there are {', '.join(names())}")
    status, seconds = 0, dict[str, float]()
    for name in given.names or names():
        begun, before = time.perf_counter(), processor_seconds()
        old = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        try:
            new = run_guide(name)
        except Unavailable as e:
            print(f"{name}: left out, {e}")
            continue
        except CellExecutionError as e:
            print(f"{name}: a cell fails: {e}")
            status = 1
            continue
        seconds[name] = processor_seconds() - before
        found = differences(old, new)
        if given.write:
            write_notebook(FOLDER / f"{name}.ipynb", new)
        status = status or int(bool(found) and not given.write)
        outcome = "refreshed" if given.write else "as committed" if not found else "differs"
        print(f"{name}: {outcome} ({time.perf_counter() - begun:.1f} s)", *found, sep="\n  ", flush=True)
    if seconds:
        report_seconds(seconds)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
