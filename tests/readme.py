"""The README's results table, made from the committed run: `python tests/readme.py` shows it, `--write` puts it into the README.

The run is the full one of experiment 3 on `demo` without a model. It must be known to git (`git add` is enough) before an older one gives way to it.
"""
from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results: exp3 demo -->", "<!-- /results -->"
WANTED = {"dataset": "demo", "model": "offline", "limit": None, "split": None, "systems": None, "embedder": "auto", "k": 10, "seed": 0}
KINDS = {"overall": "overall", "factual": "factual_extraction", "temporal": "temporal_reasoning", "update": "knowledge_update", "multi-hop": "multi_hop"}


class NoRun(LookupError):
    """There is no committed run that the table could be made from."""


def full_run(root: Path) -> tuple[Path, dict[str, Any]]:
    """The folder and the manifest of the newest full run on demo, among those that git knows (all, where git knows none). Raises `NoRun`."""
    manifests = sorted((root / "outputs" / "exp3").glob("*/manifest.json"))
    git = subprocess.run(["git", "-C", str(root), "ls-files", "--", "outputs/exp3"], capture_output=True, text=True)
    known = {root / line for line in git.stdout.splitlines()} if git.returncode == 0 else set()
    found = []
    for path in [p for p in manifests if p in known] or manifests:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if all(manifest["params"].get(name) == value for name, value in WANTED.items()): found.append((manifest["when"]["created"], path.parent, manifest))
    if not found: raise NoRun("no full run of exp3 on demo (no model, limit, split, systems) is committed under outputs/exp3: `make exp3`, `git add outputs`")
    return max(found, key=lambda f: (f[0], f[1].name))[1:]


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table of the run. Raises `NoRun` when it has no such table."""
    path = folder / "tables" / f"{name}.csv"
    if not path.exists(): raise NoRun(f"{folder.name} has no table {name}: it was made by another version of the experiment, run it again")
    with path.open(encoding="utf-8", newline="") as f: return list(csv.DictReader(f))


def results_table(root: Path | str = HERE) -> str:
    """The table as Markdown: recall per kind and F1 with 95 % intervals, the price, what is shown against `hybrid`, and where it comes from."""
    root = Path(root)
    folder, manifest = full_run(root)
    table, tests = rows(folder, "table2"), rows(folder, "gain_over_hybrid_recall_tests")
    if (folder / "tables" / "costs.csv").exists(): table = [row | cost for row, cost in zip(table, rows(folder, "costs"))]  # the same systems in the same order
    shown = {(t["system"], t["type"]) for t in tests if t["verdict"] in ("better", "worse")}
    column = {kind: next(c for c in table[0] if c.startswith(f"recall@k: {kind} (")) for kind in KINDS}
    f1, tokens = next(c for c in table[0] if c.startswith("F1: overall")), next(c for c in table[0] if c.endswith("context tokens"))
    lines = [f"| system | recall@{manifest['params']['k']} | {' | '.join(list(KINDS)[1:])} | F1 | tokens |",
             "|---|---|" + "---:|" * (len(KINDS) - 1) + "---|---:|"]
    for row in table:
        star = {kind: " \\*" if (row["system"], type_) in shown else "" for kind, type_ in KINDS.items()}
        parts = [row[column[kind]].split(" [")[0] + star[kind] for kind in list(KINDS)[1:]]
        lines.append(f"| `{row['system']}` | {row[column['overall']]}{star['overall']} | {' | '.join(parts)} | {row[f1]} | {row[tokens]} |")
    ours = next(t for t in tests if t["system"] == "adaptmr" and t["type"] == "overall")
    gain = f"{float(ours['difference']):+.3f} [{float(ours['low']):+.3f}, {float(ours['high']):+.3f}], {ours['verdict']}"
    report = (folder / "report.html").relative_to(root).as_posix()
    below = (f"*{manifest['data']['label']}. Recall is the share of gold turns found, overall and by kind of question; F1 is that of a rule-based reader; "
             "brackets are 95 % intervals over conversations and questions; tokens are what the reader is given. "
             "\\* differs from `hybrid` in a paired test after Holm's correction (`random` and `full_context`, which don't search, are not tested). "
             f"`adaptmr` against `hybrid` in recall, overall: {gain}. From [this run]({report}).*")
    return "\n".join([*lines, "", below])


def between_markers(text: str) -> str:
    """What stands between the markers. Raises `ValueError` where they are missing."""
    found = re.search(re.escape(BEGIN) + r"\n(.*?)\n" + re.escape(END), text, re.S)
    if not found: raise ValueError(f"the README has no place for the results: {BEGIN} … {END}")
    return found[1]


def write(root: Path | str = HERE) -> bool:
    """Put the table into the README; whether that changed it."""
    path = Path(root) / "README.md"
    text = path.read_text(encoding="utf-8")
    new = text.replace(f"{BEGIN}\n{between_markers(text)}\n{END}", f"{BEGIN}\n{results_table(root)}\n{END}")
    if new != text: path.write_text(new, encoding="utf-8")
    return new != text


if __name__ == "__main__":
    try:
        if "--write" in sys.argv[1:]: print("README.md refreshed" if write() else "README.md is up to date")
        else: print(results_table())
    except NoRun as e: sys.exit(str(e))
