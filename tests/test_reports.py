"""The committed reports: written for people, and without errors or anything too wide in a browser."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from browser import CHROMIUM, NO_BROWSER, open_page
from committed import NoCheckout, committed_runs

from adaptmr.eval.report.html import refresh_index, render_page, show_frame
from adaptmr.markup import HtmlOutput

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 1_500_000  # of a report with its explorer
REPR = re.compile(r"^(?:'.*'|\".*\"|<[\w.]+ (?:object )?at 0x[0-9a-f]+>|[A-Z]\w+\(.*\)|\[.*\]|\{.*\})$", re.S)
UNKNOWN = {"nan", "None", "NaT", "NaN", "<NA>"}


def _text(source: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", source)).strip()


def text_problems(page: str) -> list[str]:
    """List what of a page was meant for a program: reprs, raw frames, cut or unknown cells, empty tables."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    shown = [_text(block) for block in re.findall(r"<pre[^>]*>(.*?)</pre>", page, flags=re.S)]
    found = [f"a repr: {text[:60]}" for text in shown if REPR.match(text)]
    found += ["a raw data frame"] * page.count('class="dataframe"')
    for table in re.findall(r"<table\b.*?</table>", page, flags=re.S):
        cells = [_text(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table, flags=re.S)]
        if not cells:
            found.append(f"an empty table: {_text(table)[:60]}")
        found += [f"a cut cell: {cell[-60:]}" for cell in cells if cell.endswith(("…", "..."))]
        found += [f"a cell that reads {cell}" for cell in cells if cell in UNKNOWN]
    return found


def _reports() -> list[Path]:
    try:
        found = [run.folder / "report.html" for run in committed_runs(ROOT)]
    except NoCheckout:
        return []
    return [path for path in found if path.exists()]


REPORTS = _reports()
each_report = pytest.mark.parametrize("path", REPORTS, ids=[f"{p.parts[-3]}/{p.parts[-2]}" for p in REPORTS])
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)


@each_report
def test_a_report_is_written_for_people_and_small(path):
    page = path.read_text(encoding="utf-8")
    assert text_problems(page) == []
    assert len(page.encode()) < MAX_BYTES


@pytest.mark.slow
@in_a_browser
@each_report
def test_a_report_fits_phone_and_laptop_without_an_error(path, tmp_path):
    for found in open_page(path.read_text(encoding="utf-8"), tmp_path).values():
        assert found["errors"] == [] and found["wide"] == []


@pytest.mark.slow
@in_a_browser
def test_the_index_fits_phone_and_laptop(tmp_path):
    outputs = tmp_path / "outputs"
    for path in REPORTS:
        (outputs / path.parts[-3]).mkdir(parents=True, exist_ok=True)
        (outputs / path.parts[-3] / path.parts[-2]).symlink_to(path.parent)
    page = refresh_index(outputs).read_text(encoding="utf-8")
    for found in open_page(page, tmp_path).values():
        assert found["errors"] == [] and found["wide"] == []


def _page(body: str) -> str:
    from adaptmr.eval.report.html import read_template

    script = HtmlOutput(read_template("page.js"))
    shown = {"experiment": "", "measured": [], "redacted": False, "facts": {}, "headings": [], "title": "t"}
    return render_page("report.html.j2", body=HtmlOutput(body), explorer="", script=script, **shown)


@pytest.mark.slow
@in_a_browser
def test_a_table_is_sorted_by_its_numbers_and_unknown_ones_come_last(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"system": ["a", "b", "c", "d"], "f1": ["0.200 [0.1, 0.3]", "–", "1,000", "-0.5"]})
    sort = """() => {
      const rows = () => [...document.querySelectorAll("tbody tr")];
      const order = () => rows().map((row) => row.cells[0].textContent).join("");
      const head = document.querySelectorAll("th")[1];
      head.click();
      const falling = order();
      head.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      return [falling, order(), head.getAttribute("aria-sort")];
    }"""
    found = open_page(_page(show_frame(frame)), tmp_path, sort)
    assert found[390]["did"] == ["cadb", "dacb", "ascending"]
