"""Find the committed runs: those in outputs/ that git tracks. Tests read no other folder of outputs/."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NoCheckout(Exception):
    """This is no git checkout, so nobody can tell a committed run from another."""


class NoRun(LookupError):
    """There is no committed run that was asked for, or it lacks a part that is needed."""


class SeveralRuns(LookupError):
    """Several committed runs are the one that was asked for."""


@dataclass(frozen=True)
class Run:
    """A committed run: its folder, and what its manifest says."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """The run as errors name it: experiment/run-id."""
        return f"{self.folder.parent.name}/{self.folder.name}"


def manifests(root: Path) -> list[Path]:
    """The manifests under outputs/ that git tracks (`git add` is enough), sorted. Raises `NoCheckout`."""
    asked = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--", "outputs/*/*/manifest.json"]
    try:
        top = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel"], capture_output=True, check=False
        )
        done = subprocess.run(asked, capture_output=True, check=False)
    except FileNotFoundError as e:
        raise NoCheckout("git is not installed: which runs are committed is not known") from e
    inside = (
        top.returncode == 0
        and Path(top.stdout.decode("utf-8", "surrogateescape").rstrip("\n")).resolve() == root.resolve()
    )
    if not inside or done.returncode:
        raise NoCheckout(
            "this is no git checkout (an exported copy, say): which runs are committed is not known"
        )
    return [
        root / name for name in sorted(set(done.stdout.decode("utf-8", "surrogateescape").split("\0")) - {""})
    ]


def committed_runs(root: Path, experiment: str = "") -> list[Run]:
    """Return the committed runs, of one experiment or of all.

    Raises `NoCheckout`, and `NoRun` if git tracks a run whose manifest is missing.
    """
    found = []
    for path in manifests(root):
        if experiment and path.parent.parent.name != experiment:
            continue
        if not path.is_file():
            raise NoRun(
                f"{path.relative_to(root).as_posix()} is committed and not there: "
                "`git checkout -- outputs` brings it back"
            )
        found.append(Run(path.parent, json.loads(path.read_text(encoding="utf-8"))))
    return found


def the_run(root: Path, experiment: str, how: str, fits: Callable[[dict[str, Any]], bool]) -> Run:
    """The one committed run of an experiment whose parameters fit.

    Raises `NoRun`, which says `how` to make one, `SeveralRuns`, which names them, and `NoCheckout`.
    """
    found = [run for run in committed_runs(root, experiment) if fits(run.manifest["params"])]
    if not found:
        raise NoRun(
            f"no such run of {experiment} is committed under outputs/{experiment}: `{how}`, `git add outputs`"
        )
    return only(found)


def only(runs: list[Run]) -> Run:
    """The run, where there is one. Raises `SeveralRuns`, which names all of them."""
    if len(runs) > 1:
        names = " and ".join(run.name for run in runs)
        raise SeveralRuns(
            f"{names} are committed with the same experiment and parameters: "
            "keep one, and `git rm -r` what it replaces"
        )
    return runs[0]
