"""Make a checkout with one small experiment, whose notebook runs in a second.

It serves tests of the command line and of run folders received from others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PARAMETERS = 'out_dir = None\nfolder = None\nk = 1\nnames = None\nembedder = "auto"'
RUN = """import os
import pandas as pd
from adaptmr.eval.report.run_folder import open_run
run = open_run("tiny", {"k": k, "names": names, "embedder": embedder}, None, out_dir)
run.write_table(pd.DataFrame({"system": ["a"], "f1": [float(os.environ.get("TINY_F1", "0.5"))]}), "main")
run.write_manifest(models=["m"])
run"""


def cell(identifier: str, source: str, tags: tuple[str, ...] = ()) -> dict:
    """Make a code cell."""
    return {
        "cell_type": "code",
        "id": identifier,
        "metadata": {"tags": list(tags)},
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def notebook(*cells: dict) -> str:
    """Make the text of a notebook."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": list(cells), "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def make(root: Path, run: str = RUN) -> Path:
    """Write the checkout and return its folder; its experiment is called `tiny`."""
    (root / "nbs" / "experiments").mkdir(parents=True)
    (root / "settings.ini").write_text("")
    (root / "nbs" / "experiments" / "tiny.ipynb").write_text(
        notebook(cell("p", PARAMETERS, ("parameters",)), cell("r", run))
    )
    return root


def received(folder: Path, params: object, experiment: object = "tiny", **more: object) -> Path:
    """Write a run folder as somebody may send it; `more` are further entries of its manifest."""
    folder.mkdir(parents=True)
    manifest = {
        "experiment": experiment,
        "run_id": folder.name,
        "params": params,
        "models": ["m"],
        "data": {"label": "x"},
        **more,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def start(root: Path, *arguments: object, **more: str) -> subprocess.Popen[str]:
    """Start `adaptmr …` as a terminal does: in a process group of its own, and with Ctrl-C not ignored.

    A shell that runs the tests in the background makes them ignore Ctrl-C, and a child would inherit that.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "adaptmr", *map(str, arguments)],
        cwd=root,
        env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
