"""The question explorer: what it holds, that it is safe and self-contained, and that it runs in a browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import CHROMIUM, NO_BROWSER, open_page
from committed import NoCheckout
from readme import full_run

from adaptmr.data.registry import load
from adaptmr.eval.report.explorer import (
    LOCAL_EXPLORER,
    explorer_data,
    explorer_html,
    report_explorer,
    write_local_explorer,
)
from adaptmr.eval.report.html import external_resources, frame_html, render_page
from adaptmr.markup import HtmlOutput
from adaptmr.types import Conversation, Dataset, Memory, Question

ROOT = Path(__file__).resolve().parent.parent
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
TURNS = [
    Memory("m1", "I moved to Bergen.", "Ann", "2024-05-20", session="S1", step=0, source="S1:1"),
    Memory("m2", "</script><b>bold</b>", "Bob", "2024-05-20", session="S1", step=1, source="S1:2"),
    Memory("m3", "x" * 900, "Ann", "2024-05-21", session="S1", step=2, source="S1:3"),
]
QUESTIONS = [
    Question("q1", "Where does Ann live?", ["Bergen"], evidence=["S1:1"], conversation="c"),
    Question("q2", "What is Bob's dog called?", [], evidence=[], answerable=False, conversation="c"),
]
DATA = Dataset("example", [Conversation("c", ("Ann", "Bob"), TURNS)], QUESTIONS)
COLUMNS = ["system", "question", "f1", "recall_fraction", "retrieved", "prediction", "abstained"]
FRAME = pd.DataFrame(
    [
        ("a", "q1", 1.0, 1.0, "S1:2 S1:1", "Bergen", False),
        ("a", "q2", 0.0, float("nan"), "S1:3", "Rex", False),
        ("b", "q1", 0.0, 0.0, "", "no information", True),
        ("b", "q2", 1.0, float("nan"), "", "no information", True),
    ],
    columns=COLUMNS,
).assign(conversation="c", type="factual_extraction")


def test_texts_are_held_once_and_rows_refer_to_them():
    shown = explorer_data(FRAME, DATA, {("b", "c", "q1"): "MISS"})
    assert shown["systems"] == ["a", "b"] and shown["causes"] == ["MISS"]
    first, second = shown["questions"]
    (f1, recall, answer, abstained, ranking, cause, trace), missed = first["rows"]
    assert (f1, recall, abstained, cause, shown["traces"][trace]) == (1.0, 1.0, 0, None, [])
    assert shown["answers"][answer] == "Bergen"
    assert [shown["turns"][i][0] for i in shown["rankings"][ranking]] == ["S1:2", "S1:1"]
    assert [shown["turns"][i][0] for i in first["gold"]] == ["S1:1"] and missed[5] == 0
    assert shown["answers"].count("no information") == 1
    assert shown["rankings"].count([]) == 1 and shown["traces"] == [[]]
    assert second["rows"][0][1] is None and second["gold"] == [] and not second["answerable"]


def test_text_can_not_end_the_element_that_holds_it():
    shown = explorer_data(FRAME, DATA)
    section = explorer_html(shown)
    held = re.search(r'id="explorer-data">(.*?)</script>', section, re.S)[1]
    assert json.loads(held) == shown and "<b>bold" not in section
    assert [r for r in external_resources(section) if r != "<script>"] == []


def _committed(dataset: str) -> Path:
    try:
        folder, _ = full_run(ROOT, dataset)
    except NoCheckout as e:
        pytest.skip(str(e))
    return Path(folder)


def test_the_report_of_our_own_data_explores_every_question():
    section = report_explorer(_committed("demo"))
    held = json.loads(re.search(r'id="explorer-data">(.*?)</script>', section, re.S)[1])
    assert len(held["questions"]) == len(load("demo").questions)
    assert {"adaptmr", "unified"} <= set(held["systems"])


def test_the_report_of_a_redacted_run_has_no_explorer():
    assert report_explorer(_committed("locomo")) == ""


def test_the_page_of_a_redacted_run_is_not_committed():
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"outputs/*/*/{LOCAL_EXPLORER}" in lines


def _explored(actions: str, folder: Path) -> dict[str, Any]:
    """Open a table of both systems with the explorer below it, on a phone, and act in the page."""
    table = frame_html(
        [{"system": name, "factual (n=2)": "0.5", "calls": "0"} for name in ("a", "b")],
        ["system", "factual (n=2)", "calls"],
    )
    page = render_page(
        "local_explorer.html.j2",
        title="t",
        run_id="r",
        explorer=HtmlOutput(table + explorer_html(explorer_data(FRAME, DATA))),
    )
    found = open_page(page, folder, actions)[390]
    assert found["errors"] == [] and found["wide"] == []
    return found["did"]


@pytest.mark.slow
@in_a_browser
def test_a_cell_of_a_table_opens_the_questions_behind_it(tmp_path):
    opened = """() => {
      const cells = document.querySelectorAll("table.wide tbody tr:last-child td");
      cells[1].dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      const part = (name) => document.querySelector(".explorer ." + name);
      return [cells[2].tabIndex, part("first").value, part("type").value, part("count").textContent,
              document.activeElement.className];
    }"""
    assert _explored(opened, tmp_path) == [-1, "1", "0", "2 of 2 questions", "pick"]


@pytest.mark.slow
@in_a_browser
def test_the_filters_and_the_arrow_keys_choose_questions(tmp_path):
    chosen = """() => {
      const part = (name) => document.querySelector(".explorer ." + name);
      const title = () => part("question").querySelector("h3").textContent;
      const list = part("questions");
      list.querySelector("button").focus();
      list.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
      const second = title();
      part("relation").value = "10";
      part("relation").dispatchEvent(new Event("change"));
      const gold = part("question").querySelectorAll(".card .gold").length;
      return [second, part("count").textContent, title(), gold];
    }"""
    second, count, first, gold = _explored(chosen, tmp_path)
    assert (second, first) == ("What is Bob's dog called?", "Where does Ann live?")
    assert (count, gold) == ("1 of 2 questions", 1)


@pytest.mark.slow
@in_a_browser
def test_it_runs_in_a_browser(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(_committed("demo"), run)
    page = write_local_explorer(run).read_text(encoding="utf-8")
    count = "() => [document.querySelector('.count').textContent, document.querySelectorAll('.card').length]"
    n = len(load("demo").questions)
    for found in open_page(page, tmp_path, count).values():
        assert found["errors"] == [] and found["wide"] == []
        assert found["did"] == [f"{n} of {n} questions", 2]
