"""The README's results tables, made from the committed runs: `python tests/readme.py` shows them, `--write` puts them into the README.

The runs are the full ones of experiment 3 without a model, on `demo` and on `locomo`. A run must be known to git (`git add` is enough) before an older one
gives way to it. What others published on LoCoMo, set under ours, is in params/published.yaml.
"""
from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent.parent
DATASETS = ("demo", "locomo")
END = "<!-- /results -->"
WANTED = {"model": "offline", "limit": None, "split": None, "systems": None, "embedder": "auto", "k": 10, "seed": 0}
KINDS = {
    "demo": {"overall": "overall", "factual": "factual_extraction", "temporal": "temporal_reasoning", "update": "knowledge_update", "multi-hop": "multi_hop"},
    "locomo": {"overall": "overall", "factual": "factual_extraction", "temporal": "temporal_reasoning", "multi-hop": "multi_hop", "open-domain": "open_domain"}}
FIELDS = {"name", "value", "needs", "scope", "source"}
HOW = {"demo": "make exp3", "locomo": "adaptmr run exp3 -p dataset locomo"}


class NoRun(LookupError):
    """There is no committed run that the table could be made from, or it lacks a part of it."""


def begin(dataset: str) -> str:
    """The marker above a data set's results."""
    return f"<!-- results: exp3 {dataset} -->"


def full_run(root: Path, dataset: str = "demo") -> tuple[Path, dict[str, Any]]:
    """The folder and the manifest of the newest full run on a data set, among those that git knows (all, where git knows none). Raises `NoRun`."""
    manifests = sorted((root / "outputs" / "exp3").glob("*/manifest.json"))
    git = subprocess.run(["git", "-C", str(root), "ls-files", "--", "outputs/exp3"], capture_output=True, text=True)
    known = {root / line for line in git.stdout.splitlines()} if git.returncode == 0 else set()
    found = []
    for path in [p for p in manifests if p in known] or manifests:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if all(manifest["params"].get(name) == value for name, value in {**WANTED, "dataset": dataset}.items()):
            found.append((manifest["when"]["created"], path.parent, manifest))
    if not found:
        raise NoRun(f"no full run of exp3 on {dataset} (no model, limit, split, systems) is committed under outputs/exp3: `{HOW[dataset]}`, `git add outputs`")
    return max(found, key=lambda f: (f[0], f[1].name))[1:]


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table of the run. Raises `NoRun` when it has no such table."""
    path = folder / "tables" / f"{name}.csv"
    if not path.exists(): raise NoRun(f"{folder.name} has no table {name}: it was made by another version of the experiment, run it again")
    with path.open(encoding="utf-8", newline="") as f: return list(csv.DictReader(f))


def _first(found: Any, what: str, folder: Path) -> Any:
    """The first of what was found. Raises `NoRun` when there is nothing."""
    for one in found: return one
    raise NoRun(f"{folder.name} has no {what}: it was made by another version of the experiment, run it again")


def _against_hybrid(tests: list[dict[str, str]], folder: Path) -> str:
    ours = _first((t for t in tests if t["system"] == "adaptmr" and t["type"] == "overall"), "test of adaptmr against hybrid", folder)
    return f"{float(ours['difference']):+.3f} [{float(ours['low']):+.3f}, {float(ours['high']):+.3f}], {ours['verdict']}"


def published(root: Path = HERE) -> list[dict[str, Any]]:
    """What others published, best first. Raises `ValueError` for an entry that lacks a field or whose value is no share."""
    entries = yaml.safe_load((root / "params" / "published.yaml").read_text(encoding="utf-8"))
    for e in entries:
        if set(e) != FIELDS or not all(e.values()):
            raise ValueError(f"published.yaml: {e.get('name')!r} must have {', '.join(sorted(FIELDS))}, and nothing else")
        if not 0 < e["value"] < 1: raise ValueError(f"published.yaml: the value of {e['name']!r}, {e['value']!r}, must be between 0 and 1")
    return sorted(entries, key=lambda e: (-e["value"], e["name"]))


def _comparison(label: str, answerable: str) -> list[str]:
    """The lines under the table of LoCoMo: what others published, and why it isn't the same measurement."""
    fitted = json.loads((HERE / "adaptmr" / "retrieval" / "fits.json").read_text(encoding="utf-8"))["data"]["locomo"]
    these = label.endswith(f": {len(fitted['conversations'])} conversations, {fitted['questions']:,} questions")
    return ["", "Recall@10 of single turns on LoCoMo that others published:", "",
            *(f"- {e['value']:.3f} {e['name']}: {e['needs']} ([source]({e['source']}); {e['scope']})" for e in published()), "",
            f"*Near, but not the same measurement: each of those is on what its line names, ours on {label}; {answerable} of them count for recall, "
            "those that can be answered and have evidence. Our weights are fitted without the conversation asked about, but the signals were chosen with "
            f"the development conversations in view{', which are these: take ours for a little too high' if these else ''}.*"]


def results_table(root: Path | str = HERE, dataset: str = "demo") -> str:
    """The table as Markdown: recall per kind and F1 with 95 % intervals, the price, what is shown against `hybrid`, and where it comes from."""
    root, kinds = Path(root), KINDS[dataset]
    folder, manifest = full_run(root, dataset)
    table, tests = rows(folder, "table2"), rows(folder, "gain_over_hybrid_recall_tests")
    if (folder / "tables" / "costs.csv").exists(): table = [row | cost for row, cost in zip(table, rows(folder, "costs"))]  # the same systems in the same order
    shown = {(t["system"], t["type"]) for t in tests if t["verdict"] in ("better", "worse")}
    column = {kind: _first((c for c in table[0] if c.startswith(f"recall@k: {kind} (")), f"column of recall for {kind} questions", folder) for kind in kinds}
    f1 = _first((c for c in table[0] if c.startswith("F1: overall")), "column of F1", folder)
    tokens = _first((c for c in table[0] if c.endswith("context tokens")), "column of tokens", folder)
    lines = [f"| system | recall@{manifest['params']['k']} | {' | '.join(list(kinds)[1:])} | F1 | tokens |",
             "|---|---|" + "---:|" * (len(kinds) - 1) + "---|---:|"]
    for row in table:
        star = {kind: " \\*" if (row["system"], type_) in shown else "" for kind, type_ in kinds.items()}
        parts = [row[column[kind]].split(" [")[0] + star[kind] for kind in list(kinds)[1:]]
        lines.append(f"| `{row['system']}` | {row[column['overall']]}{star['overall']} | {' | '.join(parts)} | {row[f1]} | {row[tokens]} |")
    report, label = (folder / "report.html").relative_to(root).as_posix(), manifest["data"]["label"]
    against = (f"`adaptmr` against `hybrid`, overall, in recall: {_against_hybrid(tests, folder)}; in F1: "
               f"{_against_hybrid(rows(folder, 'gain_over_hybrid_f1_tests'), folder)}. From [this run]({report}).*")
    if dataset == "demo":
        below = (f"*{label}. Recall is the share of gold turns found, overall and by kind of question; F1 is that of a rule-based reader; "
                 "brackets are 95 % intervals over conversations and questions; tokens are what the reader is given. "
                 "\\* differs from `hybrid` in a paired test after Holm's correction (`random` and `full_context`, which don't search, are not tested). ")
        return "\n".join([*lines, "", below + against])
    answerable = re.findall(r"n=(\d+)", column["overall"])[0]
    return "\n".join([*lines, "", f"*{label}, measured likewise; factual is LoCoMo's single-hop. " + against, *_comparison(label, answerable)])


def between_markers(text: str, dataset: str = "demo") -> str:
    """What stands between the markers of a data set. Raises `ValueError` where they are missing."""
    found = re.search(re.escape(begin(dataset)) + r"\n(.*?)\n?" + re.escape(END), text, re.S)
    if not found or "<!-- results:" in found[1]: raise ValueError(f"the README has no place for the results: {begin(dataset)} … {END}")
    return found[1]


def write(root: Path | str = HERE) -> bool:
    """Put the tables into the README, all or none; whether that changed it."""
    path = Path(root) / "README.md"
    new = text = path.read_text(encoding="utf-8")
    for dataset in DATASETS:
        old = between_markers(new, dataset)
        new = new.replace(f"{begin(dataset)}\n{old}" + ("\n" if old else "") + END, f"{begin(dataset)}\n{results_table(root, dataset)}\n{END}")
    if new != text: path.write_text(new, encoding="utf-8")
    return new != text


if __name__ == "__main__":
    try:
        if "--write" in sys.argv[1:]: print("README.md refreshed" if write() else "README.md is up to date")
        else: print("\n\n".join(results_table(HERE, dataset) for dataset in DATASETS))
    except NoRun as e: sys.exit(str(e))
