"""For a paper: LaTeX that holds, numbers that come from the run, fonts that are in the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from committed import NoCheckout
from readme import ROOT, full_run

import adaptmr as am
from adaptmr.data.registry import citation, datasets
from adaptmr.eval.report import paper
from adaptmr.eval.report.run_folder import latex_text
from adaptmr.eval.report.style import figure_bytes


def committed_run(dataset: str) -> Path:
    """Return the folder of the full committed run on a data set, whatever other runs there are."""
    try:
        folder, _ = full_run(ROOT, dataset)
    except NoCheckout as e:
        pytest.skip(str(e))
    return Path(folder)


def tiny_run(folder: Path, contrasts: str = "", **manifest: Any) -> Path:
    """Write a run of two systems on four conversations, each with two questions.

    The recall of b is 0.4, 0.4, 0.6 and 0.6 in the conversations: its mean is 0.5, with a standard error of
    0.1155 / 2, and Student's t with 3 degrees of freedom is 3.182, so the interval is 0.5 ± 0.184, cut off
    at the largest value, 0.6. Nothing else differs between conversations.
    """
    run = folder / "tiny-k5-12345678"
    (run / "tables").mkdir(parents=True)
    zeros = dict.fromkeys(("precision", "ndcg", "mrr"), 0.0)
    pd.DataFrame(
        {"system": s, "conversation": c, "question": q, "type": "multi_hop", "f1": f1, **zeros}
        | {"recall_fraction": recall + (off if s == "b" else 0.0), "context_tokens": 7}
        for s, recall, f1 in (("a_1", 0.25, 0.1), ("b", 0.5, 0.2))
        for c, off in (("c1", -0.1), ("c2", -0.1), ("c3", 0.1), ("c4", 0.1))
        for q in ("q1", "q2")
    ).to_parquet(run / "results.parquet")
    described: dict[str, Any] = {
        "experiment": "exp3",
        "run_id": run.name,
        "systems": ["b", "a_1"],
        "data": {"label": "tiny: 4 conversations, 8 questions", "name": "tiny"},
        "params": {"k": 5, "model": "offline", "seed": 3},
        "embedder": {"minilm": "float32"},
        "code": {"git_commit": "0123456789abcdef", "sha256": "f" * 64},
    }
    (run / "manifest.json").write_text(json.dumps(described | manifest), encoding="utf-8")
    if contrasts:
        head = "contrast,measure,difference,low,high,margin,verdict\n"
        (run / "tables" / "contrasts.csv").write_text(head + contrasts, encoding="utf-8")
    return run


def rows_of(table: str) -> list[str]:
    return table.split("\\midrule\n")[1].split("\n\\bottomrule")[0].split("\n")


def test_a_table_has_the_numbers_of_the_rows_and_the_order_of_the_run(tmp_path: Path) -> None:
    table = paper.paper_table(tiny_run(tmp_path))
    assert rows_of(table) == [
        r"b & 0.500 [0.32, 0.60] & 0.200 [0.20, 0.20] \\",
        r"a\_1 & 0.250 [0.25, 0.25] & 0.100 [0.10, 0.10] \\",
    ]
    assert "recall@k (n=8) & F1 (n=8)" in table and r"\label{tab:exp3-12345678}" in table


@pytest.mark.parametrize(
    ("verdict", "sign", "said"),
    [
        ("different", "*", "different"),
        ("equivalent", "=", "equivalent within $\\pm$0.020"),
        ("undecided", "", "undecided"),
    ],
)
def test_a_declared_contrast_marks_the_cell_of_its_system(
    tmp_path: Path, verdict: str, sign: str, said: str
) -> None:
    run = tiny_run(tmp_path, f"b − a_1,recall,0.250,0.240,0.260,0.020,{verdict}\n")
    first, second = rows_of(paper.paper_table(run))
    assert rf"0.500 [0.32, 0.60]\textsuperscript{{a{sign}}}" in first and "textsuperscript" not in second
    note = rf"\textsuperscript{{a{sign}}} b $-$ a\_1, recall: +0.250 [0.240, 0.260], {said}."
    assert note in paper.paper_table(run)


def test_a_caption_states_what_a_reader_has_to_know(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, "b − a_1,recall,0.250,0.240,0.260,0.020,different\n")
    caption = paper.paper_caption(run)
    for part in ("tiny: 4 conversations", "8 questions (n)", "k = 5", "follows rules", "seed 3"):
        assert part in caption
    assert "95 % intervals" in caption
    assert "Student's t over conversations" in caption and "b − a_1 in recall (different)" in caption
    other = tiny_run(tmp_path / "m", params={"k": 5, "model": "some-model", "seed": 3})
    assert "the reader some-model" in paper.paper_caption(other)


def balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("dataset", ["demo", "locomo"])
def test_a_committed_run_agrees_with_its_own_table(dataset: str) -> None:
    run = committed_run(dataset)
    written = pd.read_csv(run / "tables" / "table2_overall.csv", index_col="system")
    rows = rows_of(paper.paper_table(run, ["recall_fraction", "f1"], width="text"))
    assert len(rows) == len(written)
    for system, row in zip(written.index, rows):
        cells = [re.sub(r"\\textsuperscript\{.*?\}| \\\\$", "", c) for c in row.split(" & ")]
        found = written.loc[system]
        shown = [found[c] for c in found.index if c.startswith(("recall", "F1"))]
        assert cells == [latex_text(system), *shown]


@pytest.mark.parametrize(("width", "inches"), [("column", 3.3), ("text", 6.75)])
def test_a_figure_has_its_width_and_its_fonts(tmp_path: Path, width: str, inches: float) -> None:
    figure = paper.paper_figure(tiny_run(tmp_path), width=width)
    pdf = figure_bytes(figure, "pdf")
    assert figure.get_size_inches()[0] == inches and b"/FontFile2" in pdf and b"/Type3" not in pdf
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)
    assert box is not None and float(box[1]) == pytest.approx(inches * 72, abs=0.1)
    assert b"<text" not in figure_bytes(figure, "svg")


def key_of(entry: str) -> str:
    return entry.partition("{")[2].partition(",")[0]


def test_data_sets_and_published_systems_have_a_citation_and_variants_share_it(tmp_path: Path) -> None:
    others = {name for name in datasets() if not name.startswith("demo")}
    assert {name for name in datasets() if citation(name)} == others and citation("longmemeval_s")
    published = {"rrf", "ircot", "flare", "adaptive_rag", "longmemeval_rag"}
    assert {name for name in am.systems() if citation(name)} <= {*published, "adaptmr"}
    assert citation("flare by rule") == citation("flare")
    for name in (*others, *published):
        entry = citation(name)
        year = re.search(r"year = \{(\d{4})\}", entry)
        assert balanced(entry) and year and year[1] in key_of(entry), "the key names the year"
        assert key_of(entry).startswith(re.search(r"author = \{(\w+),", entry)[1].lower())  # type: ignore[index]
        assert "booktitle = {" in entry and "title = {" in entry and entry.startswith("@inproceedings")
    run = tiny_run(tmp_path, systems=["ircot by rule", "ircot", "b"])
    rows = pd.read_parquet(run / "results.parquet")
    rows["system"] = rows["system"].replace("a_1", "ircot")
    also = rows[rows["system"] == "ircot"].assign(system="ircot by rule")
    pd.concat([rows, also]).to_parquet(run / "results.parquet")
    assert [key_of(entry) for entry in paper.citations(run)] == ["adaptmr", "trivedi2023ircot"]


def test_the_citation_of_the_package_is_that_of_citation_cff() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    entry = citation("adaptmr").replace("{", "").replace("}", "")
    for part in (cff["title"], cff["version"], cff["repository-code"], cff["authors"][0]["name"]):
        assert part in entry
