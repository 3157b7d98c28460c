"""Find the files that git tracks, and among them the committed runs: the only runs that tests read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class NoCheckout(Exception):
    """The folder is not a git checkout, so the committed files are not known."""


class NoRun(LookupError):
    """The requested run is not committed, or a part of it is missing."""


class SeveralRuns(LookupError):
    """Several committed runs fit the request."""


@dataclass(frozen=True)
class Run:
    """A committed run: its folder and its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name in messages: experiment/run-id."""
        return f"{self.folder.parent.name}/{self.folder.name}"


def tracked_files(root: Path, *patterns: str, untracked: bool = False) -> list[Path]:
    """List the files under `root` that git tracks (`git add` is enough) and that match a pattern, sorted.

    Without patterns it lists all of them, and with `untracked` also the files that git neither tracks nor
    ignores. A listed file may have been deleted. Raises `NoCheckout` if `root` is not the top of a checkout.
    """
    options = ["--cached", *(["--others", "--exclude-standard"] if untracked else [])]
    try:
        top, listed = (
            subprocess.run(["git", "-C", str(root), *command], capture_output=True, check=False)
            for command in (["rev-parse", "--show-toplevel"], ["ls-files", "-z", *options, "--", *patterns])
        )
    except FileNotFoundError as e:
        raise NoCheckout("git is not installed: which files are committed is not known") from e
    top_folder = Path(top.stdout.decode("utf-8", "surrogateescape").rstrip("\n"))
    if top.returncode or listed.returncode or top_folder.resolve() != root.resolve():
        raise NoCheckout(
            f"{root.name} is no git checkout (an exported copy?): which files are committed is not known"
        )
    names = listed.stdout.decode("utf-8", "surrogateescape").split("\0")
    return [root / name for name in sorted(set(names) - {""})]


def committed_runs(root: Path, experiment: str = "") -> list[Run]:
    """Return the committed runs, of one experiment or of all.

    Raises `NoCheckout`, and `NoRun` if git tracks a run whose manifest is missing.
    """
    found = []
    for path in tracked_files(root, "outputs/*/*/manifest.json"):
        if experiment and path.parent.parent.name != experiment:
            continue
        if not path.is_file():
            raise NoRun(
                f"{path.relative_to(root).as_posix()} is committed and not there: "
                "`git checkout -- outputs` brings it back"
            )
        found.append(Run(path.parent, json.loads(path.read_text(encoding="utf-8"))))
    return found


def find_run(root: Path, experiment: str, how: str, fits: Callable[[dict[str, Any]], bool]) -> Run:
    """Return the one committed run of an experiment whose parameters fit.

    `how` is the command that makes such a run, for the message of `NoRun`. Raises `NoRun`, `SeveralRuns`,
    which names the runs, and `NoCheckout`.
    """
    found = [run for run in committed_runs(root, experiment) if fits(run.manifest["params"])]
    if not found:
        raise NoRun(
            f"no such run of {experiment} is committed under outputs/{experiment}: `{how}`, `git add outputs`"
        )
    return single_run(found)


def single_run(runs: list[Run]) -> Run:
    """Return the only run in a list of one or more. Raises `SeveralRuns`, which names them all."""
    if len(runs) > 1:
        names = " and ".join(run.name for run in runs)
        raise SeveralRuns(
            f"{names} are committed with the same experiment and parameters: "
            "keep one, and `git rm -r` what it replaces"
        )
    return runs[0]
