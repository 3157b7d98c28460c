"""Read the scores of the committed runs from their manifests.

`python tests/expected.py --write` writes them to params/expected.yaml.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from committed import Run, committed_runs, only

HERE = Path(__file__).resolve().parent.parent
HEAD = (
    "# What the committed runs scored: overall means per system, from their manifests. "
    "Not to be edited: python tests/expected.py --write\n"
)


def committed_numbers(root: Path = HERE) -> dict[str, dict[str, Any]]:
    """Return the headline numbers of each committed run of an experiment, by experiment, data, k and models.

    Raises `SeveralRuns` if two committed runs have the same key, and `NoCheckout`.
    """
    found: dict[str, list[Run]] = {}
    for run in committed_runs(root):
        manifest = run.manifest
        if not manifest["experiment"].startswith("exp"):
            continue
        where = (
            f"{manifest['experiment']} on {manifest['data']['label']}, "
            f"k = {manifest['params']['k']}, {', '.join(manifest['models'])}"
        )
        found.setdefault(where, []).append(run)
    return {where: only(runs).manifest["numbers"] for where, runs in found.items()}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/expected.py --write")
    (HERE / "params" / "expected.yaml").write_text(
        HEAD + yaml.safe_dump(committed_numbers(), sort_keys=True, allow_unicode=True, width=160),
        encoding="utf-8",
    )
