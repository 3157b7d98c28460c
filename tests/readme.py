"""Make the README's results tables from the committed runs.

`python tests/readme.py` prints them, `--write` puts them into the README. They come from the full runs of
experiments 1 and 3 without a model, and the runs of experiments 3 and 4 with one, on `demo` and `locomo`.
Only runs that git tracks are used (`git add` is enough), and there must be exactly one of each.
params/published.yaml has the results that others published on LoCoMo, which are listed below ours.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from committed import NoCheckout, NoRun, SeveralRuns, find_run

from adaptmr.eval.stats.estimates import format_interval

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- /results -->"
WANTED = {
    "model": "offline",
    "limit": None,
    "split": None,
    "systems": None,
    "embedder": "auto",
    "k": 10,
    "seed": 0,
}
QUESTION_TYPES = {
    "demo": {
        "overall": "overall",
        "factual": "factual_extraction",
        "temporal": "temporal_reasoning",
        "update": "knowledge_update",
        "multi-hop": "multi_hop",
    },
    "locomo": {
        "overall": "overall",
        "factual": "factual_extraction",
        "temporal": "temporal_reasoning",
        "multi-hop": "multi_hop",
        "open-domain": "open_domain",
    },
}
FIELDS = {"name", "value", "needs", "scope", "source"}


def begin(block: str) -> str:
    """Return the marker above a block of results."""
    return f"<!-- results: {block} -->"


def full_run(root: Path, dataset: str = "demo", experiment: str = "exp3") -> tuple[Path, dict[str, Any]]:
    """Return the full committed run of an experiment on a data set, and its manifest.

    A full run has no model, limit, split or systems. Raises what `find_run` raises.
    """
    how = f"make {experiment}" if dataset == "demo" else f"adaptmr run {experiment} -p dataset {dataset}"
    wanted = {**WANTED, "dataset": dataset}
    run = find_run(
        root, experiment, how, lambda params: all(params.get(name) == value for name, value in wanted.items())
    )
    return run.folder, run.manifest


def model_run(root: Path, experiment: str, dataset: str) -> tuple[Path, dict[str, Any]]:
    """Return the committed run of an experiment on a data set with a model; raises what `find_run` raises."""
    how = f"adaptmr run {experiment} -f params/qwen2.5-coder-1.5b.yaml -p dataset {dataset}"
    run = find_run(
        root, experiment, how, lambda params: params["model"] != "offline" and params["dataset"] == dataset
    )
    return run.folder, run.manifest


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    """Read a table of a run. Raises `NoRun` if the run has no such table."""
    path = folder / "tables" / f"{name}.csv"
    if not path.exists():
        raise NoRun(
            f"{folder.name} has no table {name}: "
            "it was made by another version of the experiment, run it again"
        )
    with path.open(encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


def _first(found: Any, what: str, folder: Path) -> Any:
    """Return the first item; raise `NoRun`, which says `what` is missing, if there is none."""
    for one in found:
        return one
    raise NoRun(
        f"{folder.name} has no {what}: it was made by another version of the experiment, run it again"
    )


def _differing(folder: Path, measure: str) -> set[tuple[str, str]]:
    """Return the pairs of system and question type for which a paired test shows a difference to `hybrid`."""
    return {
        (t["system"], t["type"])
        for t in rows(folder, f"gain_over_hybrid_{measure}_tests")
        if t["verdict"] in ("better", "worse")
    }


def _difference(folder: Path, table: str, system: str) -> str:
    """Write a system's test over all question types: difference, interval and verdict."""
    test = _first(
        (t for t in rows(folder, table) if t["system"] == system and t["type"] == "overall"),
        f"test of {system} in {table}",
        folder,
    )
    low, high = _number(test["low"]), _number(test["high"])
    # without Holm's correction, the interval would show a difference
    corrected = test["verdict"] not in ("better", "worse") and low * high > 0
    text = format_interval(float(test["difference"]), low, high, "+.3f")
    if not math.isnan(low):
        text += f", {test['verdict']}"
    return text + (" after Holm's correction for all the table's comparisons" if corrected else "")


def _number(cell: str) -> float:
    """Read a number of a table; a dash, for the end of an interval that doesn't exist, is `nan`."""
    return math.nan if cell in ("–", "") else float(cell)


def published(root: Path = ROOT) -> list[dict[str, Any]]:
    """Return the published results of others, best first.

    Raises `ValueError` for an entry that lacks a field or whose value isn't between 0 and 1.
    """
    entries = yaml.safe_load((root / "params" / "published.yaml").read_text(encoding="utf-8"))
    for e in entries:
        if set(e) != FIELDS or not all(e.values()):
            raise ValueError(
                f"published.yaml: {e.get('name')!r} must have {', '.join(sorted(FIELDS))}, and nothing else"
            )
        if not 0 < e["value"] < 1:
            raise ValueError(
                f"published.yaml: the value of {e['name']!r}, {e['value']!r}, must be between 0 and 1"
            )
    return sorted(entries, key=lambda e: (-e["value"], e["name"]))


def _comparison(label: str, answerable: str) -> list[str]:
    """Write the lines below the table of LoCoMo: published results, and how the measurements differ."""
    fitted = json.loads((ROOT / "adaptmr" / "retrieval" / "fits.json").read_text(encoding="utf-8"))["data"][
        "locomo"
    ]
    these = label.endswith(
        f": {len(fitted['conversations'])} conversations, {fitted['questions']:,} questions"
    )
    return [
        "",
        "Recall@10 of single turns on LoCoMo, as published by others:",
        "",
        *(
            f"- {e['value']:.3f} {e['name']}: {e['needs']} ([source]({e['source']}); {e['scope']})"
            for e in published()
        ),
        "",
        "*These are not the same measurement: each value was measured on the data that its line names, ours "
        f"on {label}; {answerable} of them count for recall, those that can be answered and have evidence. "
        "Our weights are fitted without the conversation asked about, "
        "but the signals were chosen with the development conversations in view"
        f"{', which are these: our value is probably a little too high' if these else ''}.*",
    ]


def _called(system: str) -> str:
    """Format a system's name as code, without the addition that it asked no model: `qarp` by rule."""
    name = system.removesuffix(" by rule")
    return f"`{name}`" + system[len(name) :]


def results_table(root: Path | str = ROOT, dataset: str = "demo") -> str:
    """Return the results table of a data set as Markdown.

    It has recall by question type and F1 with 95 % intervals, the tokens, the differences to `hybrid`, and a
    link to the run.
    """
    root, types = Path(root), QUESTION_TYPES[dataset]
    folder, manifest = full_run(root, dataset)
    table = rows(folder, "table2")
    if (folder / "tables" / "costs.csv").exists():
        table = [
            row | cost for row, cost in zip(table, rows(folder, "costs"))
        ]  # the same systems in the same order
    differing = _differing(folder, "recall")
    column = {
        type_name: _first(
            (c for c in table[0] if c.startswith(f"recall@k: {type_name} (")),
            f"column of recall for {type_name} questions",
            folder,
        )
        for type_name in types
    }
    f1 = _first((c for c in table[0] if c.startswith("F1: overall")), "column of F1", folder)
    tokens = _first((c for c in table[0] if c.endswith("context tokens")), "column of tokens", folder)
    lines = [
        f"| system | recall@{manifest['params']['k']} | {' | '.join(list(types)[1:])} | F1 | tokens |",
        "|---|---|" + "---:|" * (len(types) - 1) + "---|---:|",
    ]
    for row in table:
        star = {name: " \\*" if (row["system"], value) in differing else "" for name, value in types.items()}
        parts = [row[column[name]].split(" [")[0] + star[name] for name in list(types)[1:]]
        lines.append(
            f"| {_called(row['system'])} | {row[column['overall']]}{star['overall']} | {' | '.join(parts)} "
            f"| {row[f1]} | {row[tokens]} |"
        )
    report, label = (folder / "report.html").relative_to(root).as_posix(), manifest["data"]["label"]
    against = (
        "`adaptmr` against `hybrid`, overall, in recall: "
        f"{_difference(folder, 'gain_over_hybrid_recall_tests', 'adaptmr')}; in F1: "
        f"{_difference(folder, 'gain_over_hybrid_f1_tests', 'adaptmr')}. From [this run]({report}).*"
    )
    if dataset == "demo":
        below = (
            f"*{label}. Recall is the share of gold turns found, overall and by question type; "
            "F1 is that of a rule-based reader; brackets are 95 % intervals over conversations; "
            "tokens are those that the reader is given. "
            "\\* differs from `hybrid` in a paired test after Holm's correction "
            "(`random` and `full_context`, which don't search, are not tested). "
        )
        return "\n".join([*lines, "", below + against])
    answerable = re.findall(r"n=(\d+)", column["overall"])[0]
    return "\n".join(
        [
            *lines,
            "",
            f"*{label}, measured likewise; factual is LoCoMo's single-hop. " + against,
            *_comparison(label, answerable),
        ]
    )


def failures_table(root: Path | str = ROOT, dataset: str = "locomo") -> str:
    """Return a Markdown table of the failures of four systems, by question type.

    Below it: the gap between the best and the worst type, the causes of `unified`'s failures, and how well
    these agree with labels by hand.
    """
    root, types = Path(root), [*QUESTION_TYPES[dataset], "abstention"]
    folder, manifest = full_run(root, dataset, "exp1")
    table, measure = rows(folder, "table1"), "failures: F1 below 0.3"
    column = {
        type_name: _first(
            (c for c in table[0] if c.startswith(f"{measure}: {type_name} (")),
            f"column of failures on {type_name} questions",
            folder,
        )
        for type_name in types
    }
    lines = [f"| system | failures | {' | '.join(types[1:])} |", "|---|---|" + "---:|" * (len(types) - 1)]
    for row in table:
        if row["system"] not in ("unified", "lexical", "hybrid", "adaptmr"):
            continue
        lines.append(
            f"| `{row['system']}` | {row[column['overall']]} | "
            f"{' | '.join(row[column[name]].split(' ')[0] for name in types[1:])} |"
        )
    gate = _first((r for r in rows(folder, "gates") if r["system"] == "unified"), "gate of unified", folder)
    low, high = _number(gate["low"]), _number(gate["high"])
    gap = "–" if math.isnan(low) else f"[{100 * low:.1f}, {100 * high:.1f}]"
    found = (r for r in rows(folder, "causes") if (r["system"], r["type"]) == ("unified", "overall"))
    shares = sorted((r for r in found if float(r["mean"])), key=lambda r: -float(r["mean"]))
    why = ", ".join(
        f"{r['cause']} {format_interval(float(r['mean']), _number(r['low']), _number(r['high']), '.0%')}"
        for r in shares
    )
    kappa = {r["failures"]: r for r in rows(folder, "hand_agreement") if r["reading"] == "strict"}
    agree, hard = kappa["all"], kappa["without HALLUC"]
    report = (folder / "report.html").relative_to(root).as_posix()
    return "\n".join(
        [
            *lines,
            "",
            (
                f"*{manifest['data']['label']}; a failure is an F1 below 0.3, with the rule-based reader; "
                "brackets are 95 % intervals over conversations. `unified` is best on "
                f"{gate['best']} and worst on {gate['worst']} questions, "
                f"a gap of {100 * float(gate['gap']):.1f} points of recall {gap}: {gate['verdict']}. "
                f"Why its answers failed, by replaying each with one thing put right: {why}. "
                f"Against {agree['n']} labels by hand, Cohen's κ is {_bracketed(agree, 'kappa')}, and "
                f"{_bracketed(hard, 'kappa')} without the unanswerable. From [this run]({report}).*"
            ),
        ]
    )


def _bracketed(row: dict[str, str], value: str) -> str:
    return format_interval(float(row[value]), _number(row["low"]), _number(row["high"]), ".2f")


def model_table(root: Path | str = ROOT, dataset: str = "demo") -> str:
    """Return the results with a model as Markdown: recall, F1, calls and tokens of each system.

    Below the table: how many plans were valid without a repair, and what changes with the rules' plans.
    """
    root = Path(root)
    (folder, manifest), (parts, _) = model_run(root, "exp3", dataset), model_run(root, "exp4", dataset)
    table = rows(folder, "table2")
    differing = {measure: _differing(folder, measure) for measure in ("recall", "f1")}
    recall, f1 = (
        _first((c for c in table[0] if c.startswith(f"{name}: overall")), f"column of {name}", folder)
        for name in ("recall@k", "F1")
    )
    lines = [
        f"| system | recall@{manifest['params']['k']} | F1 | calls | tokens |",
        "|---|---|---|---:|---:|",
    ]
    for row, cost in zip(table, rows(folder, "costs")):  # the same systems in the same order
        stars = [
            " \\*" if (row["system"], "overall") in differing[measure] else "" for measure in ("recall", "f1")
        ]
        lines.append(
            f"| `{row['system']}` | {row[recall]}{stars[0]} | {row[f1]}{stars[1]} "
            f"| {float(cost['calls']):.1f} | {cost['model tokens']} |"
        )
    plans = _first(
        (r for r in rows(folder, "replies") if (r["system"], r["task"]) == ("qarp", "plan")),
        "replies of qarp's planner",
        folder,
    )
    shares = ", ".join(
        f"{float(plans[how]):.0%} {how}" for how in ("clean", "repaired", "asked again", "fallback")
    )
    by_rules = {
        measure: _difference(parts, f"table3_qarp_{measure}", "qarp planned by rules")
        for measure in ("recall_tests", "f1_tests")
    }
    report, ablations = ((f / "report.html").relative_to(root).as_posix() for f in (folder, parts))
    return "\n".join(
        [
            *lines,
            "",
            (
                f"*{manifest['data']['label']}, planned and read by {manifest['params']['model']}; "
                "calls and tokens are a question's, reader included; "
                f"\\* differs from `hybrid`. Of {plans['n']} plans: {shares}. "
                "With the rules' plans in place of the model's, `qarp` changes in recall by "
                f"{by_rules['recall_tests']}; in F1 by {by_rules['f1_tests']}. "
                f"From [this run]({report}) and [its ablations]({ablations}).*"
            ),
        ]
    )


def main_figure(root: Path | str = ROOT) -> str:
    """Return the figure of recall on `demo` as Markdown, with the tests of `adaptmr` against `hybrid`."""
    root = Path(root)
    (demo, manifest), (locomo, other) = full_run(root, "demo"), full_run(root, "locomo")
    tests = [
        _difference(folder, f"gain_over_hybrid_{measure}_tests", "adaptmr")
        for folder in (demo, locomo)
        for measure in ("recall", "f1")
    ]
    folder = demo.relative_to(root).as_posix()
    return (
        f"![Recall of gold turns by question type, for five systems]({folder}/figures/recall.png)\n\n"
        f"*Recall of gold turns at k = {manifest['params']['k']}, by question type; "
        f"vertical lines are 95 % intervals. {manifest['data']['label']}; from "
        f"[this run]({folder}/report.html). `adaptmr` against `hybrid` in recall: {tests[0]}; "
        f"in F1: {tests[1]}. The same on {other['data']['label']}: in recall {tests[2]}; in F1 {tests[3]}.*"
    )


def transfer_table(root: Path | str = ROOT) -> str:
    """Return the recall of `hybrid` on data sets that its weights were not fitted to, as Markdown."""
    fits = json.loads((Path(root) / "adaptmr/retrieval/fits.json").read_text(encoding="utf-8"))
    lines = [
        "| data set | `hybrid`, fitted to the other sets | `unified` | `lexical` | `zscore` "
        "| `hybrid`, conversation left out | recall lost by the gate |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, scores in sorted(fits["data_set_left_out"]["minilm"].items()):
        plain, within = scores["plain"], fits["held_out"]["minilm"][name]
        cells = [
            scores["recall@10"],
            plain["unified"],
            plain["lexical"],
            plain["zscore"],
            within["recall@10"],
        ]
        numbers = " | ".join(f"{x:.3f}" for x in (*cells, scores["gate"]["recall lost"]))
        lines.append(f"| `{name}`, {scores['n']} questions | {numbers} |")
    note = (
        "*Recall@10 of gold turns on the development conversations, those in English; encoder `minilm`. "
        f"Fitted {fits['date']}; all scores are in `adaptmr/retrieval/fits.json`.*"
    )
    return "\n".join([*lines, "", note])


BLOCKS: dict[str, Callable[[Path | str], str]] = {
    "main figure": main_figure,
    "exp1 locomo": lambda root: failures_table(root, "locomo"),
    "exp3 demo": lambda root: results_table(root, "demo"),
    "exp3 locomo": lambda root: results_table(root, "locomo"),
    "transfer": transfer_table,
    "exp3 demo with a model": lambda root: model_table(root, "demo"),
    "exp3 locomo with a model": lambda root: model_table(root, "locomo"),
}


def between_markers(text: str, block: str = "exp3 demo") -> str:
    """Return the text between the markers of a block. Raises `ValueError` if they are missing."""
    found = re.search(re.escape(begin(block)) + r"\n(.*?)\n?" + re.escape(END), text, re.S)
    if not found or "<!-- results:" in found[1]:
        raise ValueError(f"the README has no place for the results: {begin(block)} … {END}")
    return found[1]


def write(root: Path | str = ROOT) -> bool:
    """Put the tables into the README, all or none; return whether that changed it."""
    path = Path(root) / "README.md"
    new = text = path.read_text(encoding="utf-8")
    for block, table in BLOCKS.items():
        old = between_markers(new, block)
        new = new.replace(
            f"{begin(block)}\n{old}" + ("\n" if old else "") + END, f"{begin(block)}\n{table(root)}\n{END}"
        )
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


if __name__ == "__main__":
    try:
        if "--write" in sys.argv[1:]:
            print("README.md refreshed" if write() else "README.md is up to date")
        else:
            print("\n\n".join(table(ROOT) for table in BLOCKS.values()))
    except (NoCheckout, NoRun, SeveralRuns) as e:
        sys.exit(str(e))
