"""Read the scores of the committed runs from their manifests.

`python tests/expected.py --write` writes them to params/expected.yaml.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from committed import Run, committed_runs, single_run

ROOT = Path(__file__).resolve().parent.parent
HEAD = (
    "# Scores of the committed runs: overall means per system, from their manifests.\n"
    "# Don't edit this file: python tests/expected.py --write makes it.\n"
)


def committed_numbers(root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """Return the overall means of each committed run of an experiment, by experiment, data, k and models.

    Raises `SeveralRuns` if two committed runs have the same key, and `NoCheckout`.
    """
    found: dict[str, list[Run]] = {}
    for run in committed_runs(root):
        manifest = run.manifest
        if not manifest["experiment"].startswith("exp"):
            continue
        key = (
            f"{manifest['experiment']} on {manifest['data']['label']}, "
            f"k = {manifest['params']['k']}, {', '.join(manifest['models'])}"
        )
        found.setdefault(key, []).append(run)
    return {key: single_run(runs).manifest["numbers"] for key, runs in found.items()}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/expected.py --write")
    (ROOT / "params" / "expected.yaml").write_text(
        HEAD + yaml.safe_dump(committed_numbers(), sort_keys=True, allow_unicode=True, width=160),
        encoding="utf-8",
    )
