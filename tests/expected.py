"""params/expected.yaml: what the committed runs scored, as data. `python tests/expected.py --write` takes it from their manifests."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent.parent
HEAD = "# What the committed runs scored: overall means per system, from their manifests. Not to be edited: python tests/expected.py --write\n"


def committed_numbers(root: Path = HERE) -> dict[str, dict[str, Any]]:
    """Per committed run of an experiment with systems: the data's label, where it is, and its headline numbers."""
    found = {}
    for path in sorted((root / "outputs").glob("exp*/*/manifest.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found[f"{manifest['experiment']} on {manifest['data']['label']}, k = {manifest['params']['k']}, {', '.join(manifest['models'])}"] = manifest["numbers"]
    return found


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]: sys.exit("usage: python tests/expected.py --write")
    (HERE / "params" / "expected.yaml").write_text(HEAD + yaml.safe_dump(committed_numbers(), sort_keys=True, allow_unicode=True, width=160), encoding="utf-8")
