"""Make the README's results from the committed runs.

`python tests/readme.py` prints them, `--write` puts them into the README. They come from the full runs of
experiment 3 without a model, and those with one. Only runs that git tracks are used (`git add` is enough),
and there must be exactly one of each.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from committed import NoCheckout, NoRun, SeveralRuns, committed_runs, find_run

import adaptmr as am
from adaptmr.eval.stats.contrasts import MEASURE_NAMES, UNDECIDED, read_contrasts

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
DATASETS = ("demo", "locomo", "beam_100k")
MODEL_DATASETS = ("demo", "locomo")
TEAM_DATASET = "hotpotqa_40"
SHOWN = ("unified", "zscore", "hybrid", "gated", "adaptmr", "oracle_evidence")
EXAMPLE = "en1/q20"  # a question of demo on a fact that changed twice
EXPERIMENTS = {
    "exp1": "where retrieval fails, and why",
    "exp2": "how much could be gained",
    "exp3": "the main comparison",
    "exp4": "which parts of a method matter",
    "exp5": "what it costs",
    "exp6": "what a layered memory costs and gives",
    "exp7": "what the memories of a team give",
}


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
    size = "short-contexts" if experiment == "exp3" else f"small-model-{experiment}"
    files = f"-f params/qwen2.5-coder-1.5b.yaml -f params/{size}.yaml -p dataset {dataset}"
    how = "make exp7" if experiment == "exp7" else f"adaptmr run {experiment} {files}"
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


def _number(cell: str) -> float:
    """Read a number of a table; a dash, for what doesn't exist, is `nan`."""
    return math.nan if cell in ("–", "") else float(cell.replace(",", ""))


_NUMBERS = ("difference", "low", "high", "margin", "detectable")


def contrasts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run's table of declared contrasts, with numbers as numbers."""
    for row in rows(folder, "contrasts"):
        yield row | {name: _number(row[name]) for name in _NUMBERS}


def verdicts(root: Path | str = ROOT) -> str:
    """Return what the declared contrasts show, as a Markdown list: a line per contrast, all data sets in it.

    The contrast of `qarp` needs a model and is read from the runs with one. A contrast in F1 depends on the
    reader, so what it shows with a model as the reader (experiment 2) stands beside it.
    """
    root = Path(root)
    offline = [full_run(root, name) for name in DATASETS]
    asked = [model_run(root, "exp3", name) for name in MODEL_DATASETS]
    read_by_model = [model_run(root, "exp2", name) for name in MODEL_DATASETS]
    lines = []
    for declared in read_contrasts():
        measure = MEASURE_NAMES.get(declared.measure, declared.measure)
        found = []
        by_rules = offline + (read_by_model if declared.measure == "f1" else [])
        for folder, manifest in by_rules if declared.system != "qarp" else asked:
            for row in contrasts(folder):
                if (row["contrast"], row["measure"]) == (declared.label, measure):
                    model = (folder, manifest) in read_by_model
                    reader = f" with {manifest['params']['model']} as the reader" if model else ""
                    where = f"[{manifest['params']['dataset']}]({_report(folder, root)}){reader}"
                    found.append(f"{where} {row['verdict']}, {_difference(row)}")
        if not found:
            raise NoRun(
                f"no committed run of exp3 has the contrast {declared.label} in {measure}: run it again"
            )
        lines.append(
            f"- *{declared.asks}* `{declared.system}` − `{declared.baseline}`, {measure}: {'; '.join(found)}."
        )
    return "\n".join([*lines, *team_verdicts(root)])


def _difference(row: dict[str, Any]) -> str:
    ends = "" if math.isnan(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    able = row["verdict"] == UNDECIDED and not math.isnan(row["detectable"])
    return f"{row['difference']:+.3f}{ends}" + (
        f" (could have shown {row['detectable']:.3f})" if able else ""
    )


def _report(folder: Path, root: Path) -> str:
    return (folder / "report.html").relative_to(root).as_posix()


def results_table(root: Path | str = ROOT) -> str:
    """Return the main results of six systems on two data sets as Markdown, with links to their runs."""
    root = Path(root)
    parts = {name: full_run(root, name) for name in ("demo", "locomo")}
    cells: dict[str, list[str]] = {system: [] for system in SHOWN}
    for folder, _ in parts.values():
        by_system = {row["system"]: row for row in rows(folder, "table2_overall")}
        for system in SHOWN:
            row = _first((by_system[s] for s in (system,) if s in by_system), f"row of {system}", folder)
            for measure in ("recall@k", "precision@k", "F1"):
                column = _first(
                    (c for c in row if c.startswith(f"{measure} (")), f"column of {measure}", folder
                )
                cells[system].append(row[column])
    names = [f"{name}: recall | precision | F1" for name in parts]
    lines = [f"| system | {' | '.join(names)} |", "|---" * (1 + 3 * len(parts)) + "|"]
    lines += [f"| `{system}` | {' | '.join(values)} |" for system, values in cells.items()]
    k = next(iter(parts.values()))[1]["params"]["k"]
    from_runs = ", ".join(
        f"[{manifest['data']['label']}]({_report(folder, root)})" for folder, manifest in parts.values()
    )
    note = (
        f"*Recall and precision of gold turns among the first {k}; F1 of a reader that follows rules, so "
        f"judge retrieval by recall; brackets are 95 % intervals over conversations. From {from_runs}.*"
    )
    return "\n".join([*lines, "", note])


def worked_example(root: Path | str = ROOT) -> str:
    """Return one question with what two systems put first, as Markdown, from the run on `demo`."""
    folder, _ = full_run(Path(root))
    frame = pd.read_parquet(folder / "results.parquet")
    data = am.load("demo", split=EXAMPLE)
    question = next(q for q in data.questions if q.id == EXAMPLE)
    turns = {m.source: m for m in data.conversation(question.conversation).turns}
    marks = dict.fromkeys(question.parts["stale"], " (outdated)")
    marks |= dict.fromkeys(question.parts["current"], " (**current**)")
    lines = [f"| rank | {' | '.join(f'`{s}`' for s in ('unified', 'adaptmr'))} |", "|---:|---|---|"]
    columns = []
    for system in ("unified", "adaptmr"):
        chosen = frame[(frame["system"] == system) & (frame["question"] == EXAMPLE)]
        found = _first(chosen["retrieved"], f"answer of {system} to {EXAMPLE}", folder).split()[:3]
        columns.append([f"{turns[s].at:%d %b %Y}: “{_cut(turns[s].text)}”{marks.get(s, '')}" for s in found])
    lines += [f"| {i} | {one} | {other} |" for i, (one, other) in enumerate(zip(*columns), 1)]
    return "\n".join([f"Maya asks her assistant in {question.asked_at:%B %Y}: *{question.text}*", "", *lines])


def _cut(text: str, width: int = 90) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= width else text[:width].rsplit(" ", 1)[0] + " …"


def readers(root: Path | str = ROOT) -> str:
    """Return how often each reader fails with the gold evidence in hand, as a line of a Markdown list."""
    root = Path(root)
    found = []
    for name in MODEL_DATASETS:
        for folder, manifest in (full_run(root, name, "exp1"), model_run(root, "exp1", name)):
            asked = "How often does the reader fail with the gold evidence"
            answers = (a for a in manifest["answers"] if a[0].startswith(asked))
            _, share, numbers = _first(answers, "answer on the reader", folder)
            model = manifest["params"]["model"]
            reader = "rules" if model == "offline" else model
            found.append(f"[{name}, {reader}]({_report(folder, root)}) {share.rstrip('.')} ({numbers})")
    return f"- *How often does a reader fail with the gold evidence in hand?* {'; '.join(found)}."


def team_verdicts(root: Path) -> list[str]:
    """Return what the declared contrasts of teams show in F1, as lines of a Markdown list.

    Those whose teams are not in the committed run are left out.
    """
    folder, manifest = model_run(root, "exp7", TEAM_DATASET)
    shown = {(row["contrast"], row["measure"]): row for row in contrasts(folder)}
    link = f"[{manifest['params']['model']}]({_report(folder, root)})"
    return [
        f"- *{declared.asks}* `{declared.system}` − `{declared.baseline}`, F1 on {TEAM_DATASET}: "
        f"{link} {row['verdict']}, {_difference(row)}."
        for declared in read_contrasts(dataset=TEAM_DATASET)
        if (declared.dataset, declared.measure) == (TEAM_DATASET, "f1")
        and (row := shown.get((declared.label, MEASURE_NAMES["f1"])))
    ]


def main_figure(root: Path | str = ROOT) -> str:
    """Return the figure of recall on `demo` as Markdown."""
    root = Path(root)
    folder, manifest = full_run(root, "demo")
    picture = (folder / "figures" / "recall.png").relative_to(root).as_posix()
    return (
        f"![Recall of gold turns by question type]({picture})\n\n"
        f"*Recall of gold turns at k = {manifest['params']['k']} by question type, with 95 % intervals. "
        f"{manifest['data']['label']}; from [this run]({_report(folder, root)}).*"
    )


def report_list(root: Path | str = ROOT) -> str:
    """Return links to the reports of all committed runs of the experiments, as a Markdown list."""
    root = Path(root)
    lines = []
    for name, about in EXPERIMENTS.items():
        links = []
        for run in committed_runs(root, name):
            params = run.manifest["params"]
            model = "" if params["model"] == "offline" else f" with {params['model']}"
            size = f", {params['limit']} questions" if params["limit"] else ""
            links.append(f"[{params['dataset']}{model}{size}]({_report(run.folder, root)})")
        if links:
            lines.append(f"- `{name}`, {about}: {', '.join(links)}")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[Path | str], str]] = {
    "main figure": main_figure,
    "verdicts": verdicts,
    "example": worked_example,
    "exp3": results_table,
    "readers": readers,
    "reports": report_list,
}


def between_markers(text: str, block: str = "exp3") -> str:
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
