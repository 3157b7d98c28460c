"""Run folders: names, bytes, redaction, manifest, self-contained pages, the index, comparing runs."""

import gzip
import json
import math
import os
import platform
import shutil
import subprocess
import time
import warnings
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from adaptmr import provenance
from adaptmr.eval.report import figures, html, recorded_run, run_folder
from adaptmr.files import RunNotice
from adaptmr.types import Dataset, QueryType, Usage

OURS = Dataset("demo", sha256="ab12", ours=True)
THEIRS = Dataset("locomo", sha256="cd34", complete=False)
LABEL = "part of locomo: 0 conversations, 0 questions"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda c: st.lists(c, max_size=3),
    max_leaves=5,
)


def results(text=True):
    rows = [
        {"system": s, "conversation": c, "question": f"{c}-q{i}", "type": QueryType.multi_hop, "f1": 0.1 * i}
        | {"recall_any": i > 1, "n_hits": i, "nothing": math.nan, "retrieved": "D1:3 D2:4"}
        | {"sources": ["D1:3"] * i, "ms_retrieve": 1.5 * i, "seconds": 0.1, "answer_seconds": 0.2}
        for s in ("unified", "adaptmr")
        for c in ("c1", "c2")
        for i in range(3)
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(prediction="in Hangzhou since 2019", text="Where do I live now?") if text else frame


def means():
    return pd.DataFrame({"type": ["a"], "system": ["s_1"], "mean": [0.5], "low": [0.4], "high": [0.6]})


def contents(run):
    return {f: (run.path / f).read_bytes() for f in run.files()}


# --- names ----------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda k: not provenance.SECRET_NAME.search(k)
)


@given(st.dictionaries(NAMES, JSON, max_size=5))
@settings(max_examples=60, deadline=None)
def test_run_id_is_a_safe_short_name(params):
    name = provenance.run_id(params, "data", {"system mine": "code"})
    assert len(name) <= 69 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.+_-")
    assert name[0].isalnum() and name[-9] == "-"
    assert name == provenance.run_id(dict(reversed(params.items())), "data", {"system mine": "code"})
    assert name[-8:] != provenance.run_id(params, "data", {"system mine": "other code"})[-8:]
    assert name[-8:] != provenance.run_id(params, "other data", {"system mine": "code"})[-8:]


def test_run_id_is_the_same_everywhere():
    one, two = {"k": np.int64(10), "s": ("a", "b")}, {"s": ["a", "b"], "k": 10, "out_dir": "/elsewhere"}
    assert provenance.run_id(one, "x") == provenance.run_id(two, "x")
    here, there = {"file": "/home/ada/x.json"}, {"file": Path("/root/x.json")}
    assert provenance.run_id(here, "") == provenance.run_id(there, "")
    assert len({provenance.run_id({"k": k}, "") for k in (1, 1.0, True)}) == 3


def test_secrets_are_refused(tmp_path):
    for name in "api_key token OPENAI_API_KEY password apikey hf_token client_secret".split():
        with pytest.raises(ValueError, match="secret"):
            run_folder.open_run("exp1", {name: "sk-1234"}, OURS, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert provenance.run_id({"token_budget": 10, "keys": 3}, "")  # these are none


# --- what is written ------------------------------------------------------------------------------------


def test_same_bytes_whatever_the_order(tmp_path):
    import matplotlib.pyplot as plt

    written = []
    shuffled = results().sample(frac=1, random_state=1)[sorted(results().columns)]
    for i, frame in enumerate((results(), shuffled)):
        run = run_folder.open_run("exp1", {"k": 10}, OURS, tmp_path / str(i))
        run.write_results(frame)
        run.write_table(results().groupby("system", as_index=False)["f1"].mean(), "f1", "F1")
        run.show_figure(figures.grouped_bars(means(), "type"), "f1")
        run.write_manifest(usage=Usage(calls=1, seconds=float(i)))
        written.append(contents(run))
    parts = {f"tables/f1.{kind}" for kind in ("csv", "tex", "txt")}
    parts |= {f"figures/f1.{kind}" for kind in ("png", "svg", "pdf", "txt")}
    assert set(written[0]) == {"results.parquet", "timings.parquet", "manifest.json", *parts}
    assert [f for f in written[0] if written[0][f] != written[1][f]] == ["manifest.json"]
    one, two = (json.loads(w["manifest.json"]) for w in written)
    assert one.pop("when") != two.pop("when")
    assert one.pop("systems") == ["unified", "adaptmr"] and len(two.pop("systems")) == 2
    assert one == two  # nothing else knows the time
    assert plt.get_fignums() == []


def test_results_hold_the_scores_and_timings_the_clock(tmp_path):
    run = run_folder.open_run("exp1", {}, OURS, tmp_path)
    shown = run.write_results(results())
    back, clock = pd.read_parquet(run.path / "results.parquet"), pd.read_parquet(run.path / "timings.parquet")
    times = ["answer_seconds", "ms_retrieve", "seconds"]
    assert list(clock.columns) == ["system", "conversation", "question", *times]
    assert not set(times) & set(back.columns) and list(back.columns) == list(shown.columns)
    assert back["system"].is_monotonic_increasing and len(back) == len(clock) == 12
    assert set(back["type"]) == {"multi_hop"} and back["nothing"].isna().all()
    assert back["recall_any"].dtype == bool and back["n_hits"].dtype == "int64"
    assert sorted(back["f1"].round(9)) == sorted(results()["f1"].round(9))
    assert [len(v) for v in back["sources"][:3]] == [0, 1, 2]


def test_tables_are_formatted_escaped_and_labelled(tmp_path):
    run = run_folder.open_run("exp1", {}, THEIRS, tmp_path, redact=False)
    frame = pd.DataFrame({"system": ["a_b & c%", "x<y>\\{z}$#~^"], "score": [0.12345, math.nan]})
    frame = frame.assign(n=[3, 12000], p=[0.00002, 1.0], ok=[True, False])
    shown = run.write_table(frame, "main", "50 % of_it")
    assert (run.path / "tables" / "main.csv").read_text(encoding="utf-8") == (
        "system,score,n,p,ok,data\n"
        f'a_b & c%,0.123,3,2e-05,yes,"{LABEL}"\nx<y>\\{{z}}$#~^,,12000,1.000,no,"{LABEL}"\n'
    )
    tex = (run.path / "tables" / "main.tex").read_text(encoding="utf-8")
    escaped = r"x\textless{}y\textgreater{}\textbackslash{}\{z\}\$\#\textasciitilde{}\textasciicircum{} & --"
    assert r"a\_b \& c\% & 0.123 & 3 & 2e-05 & yes \\" in tex and escaped in tex
    assert r"\caption{50 \% of\_it $\cdot$ part of locomo" in tex and r"\begin{tabular}{lrrrr}" in tex
    assert LABEL in shown and "x&lt;y&gt;" in shown and shown._repr_html_() == shown
    for name in ("../x", "", "a/b"):
        with pytest.raises(ValueError, match="table name"):
            run.write_table(frame, name)


def test_tables_with_two_level_columns_and_an_index(tmp_path):
    run = run_folder.open_run("exp1", {}, OURS, tmp_path)
    heads = [("F1", "factual (n=3)"), ("F1", "overall"), ("cost", "calls")]
    index, columns = pd.Index(["hybrid"], name="system"), pd.MultiIndex.from_tuples(heads)
    shown = run.write_table(pd.DataFrame([["0.71 [0.65, 0.77]", 0.5, 3]], index, columns), "main")
    first = (run.path / "tables" / "main.csv").read_text().splitlines()[0]
    assert first == "system,F1: factual (n=3),F1: overall,cost: calls,data"
    tex = (run.path / "tables" / "main.tex").read_text()
    assert r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{F1} & \multicolumn{1}{c}{cost} \\" in tex
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}" in tex and r"\begin{tabular}{lrrr}" in tex
    assert "colspan='2' class='group'>F1<" in shown
    run.write_table(pd.DataFrame({"n": [1, 2, 3]}).query("n > 1"), "part")
    first = (run.path / "tables" / "part.csv").read_text().splitlines()[0]
    assert first == "n,data", "what is left of a count of the rows is no column"


# --- finished runs --------------------------------------------------------------------------------------


def a_run(outputs, f1=0.5, **more):
    """A finished run of one table."""
    run = run_folder.open_run("exp1", {"k": 1}, OURS, outputs, **more)
    run.write_results(results(text=False).assign(f1=f1))
    run.write_table(pd.DataFrame({"system": ["a"], "f1": [f1], "ms": [time.perf_counter()]}), "main")
    run.write_manifest()
    return run


def test_other_results_under_one_name_are_kept_and_the_same_ones_are_not(tmp_path):
    first = a_run(tmp_path)
    (first.path / "notebook.ipynb").write_text("{}")
    before = contents(first)
    with pytest.warns(RunNotice, match="the same results as the run of 20"):
        again = a_run(tmp_path)
    assert again.path == first.path and contents(first) == before
    assert [p.name for p in (tmp_path / "exp1").iterdir()] == [first.run_id], "no lock, no half folder"
    what = r"OTHER RESULTS than the run of 20.*column f1 differs in 12 of 12 rows"
    with pytest.warns(RunNotice, match=what):
        other = a_run(tmp_path, 0.6)
    second = f"{first.run_id}-2"
    assert other.path == first.path.with_name(second) and contents(first) == before
    with pytest.warns(RunNotice, match=f"{second}: the same results"):
        again = a_run(tmp_path, 0.6)
    assert again.path == other.path
    assert again._repr_mimebundle_()[run_folder.RUN_MIME_TYPE]["run_id"] == second
    with pytest.warns(RunNotice, match="OTHER RESULTS"):
        assert a_run(tmp_path, 0.7).path.name == f"{first.run_id}-3"


def test_nothing_is_added_to_a_finished_run(tmp_path):
    run = a_run(tmp_path)
    for write in (
        lambda: run.write_results(results(text=False)),
        lambda: run.write_table(results(text=False), "t"),
        run.write_manifest,
        lambda: run.file("x"),
    ):
        with pytest.raises(RuntimeError, match=r"exp1/k1-.* is finished"):
            write()
    one = run_folder.open_run("exp1", {"k": 2}, OURS, tmp_path)
    two = run_folder.open_run("exp1", {"k": 2}, OURS, tmp_path)  # a cell of a notebook, run twice
    with pytest.raises(RuntimeError, match="opened again"):
        one.write_table(results(text=False), "t")
    two.write_table(results(text=False), "t")
    two.write_manifest()
    assert two.path.name == two.run_id


@pytest.mark.parametrize("left", ["", "{half", "[]"])
def test_a_finished_run_replaces_an_unfinished_one(left, tmp_path):
    name = run_folder.open_run("exp1", {"k": 1}, OURS, tmp_path / "elsewhere").run_id
    half = tmp_path / "exp1" / name
    (half / "tables").mkdir(parents=True)
    (half / "tables" / "old.csv").write_text("x")
    if left:
        (half / "manifest.json").write_text(left)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunNotice)
        run = a_run(tmp_path)
    assert run.path == half and "tables/old.csv" not in run.files()
    assert json.loads((half / "manifest.json").read_text())["rows"] == 12
    assert [p.name for p in (tmp_path / "exp1").iterdir()] == [name]


# --- redaction ------------------------------------------------------------------------------------------


def test_redacted_runs_refuse_text(tmp_path):
    run = run_folder.open_run("exp1", {}, THEIRS, tmp_path)
    with pytest.raises(ValueError, match=r"'prediction'.*'text'"):
        run.write_results(results())
    with pytest.raises(ValueError, match="table cases"):
        run.write_table(results()[["question", "prediction"]], "cases")
    for name in ("calls.jsonl.gz", "vectors.npz"):
        with pytest.raises(ValueError, match="redacted"):
            run.file(name)
    assert run.files() == []
    clean = run_folder.drop_text_columns(results())
    assert clean.attrs["dropped"] == ["prediction", "text"]
    run.write_results(clean)
    run.write_table(clean.groupby("system", as_index=False)["f1"].mean(), "f1")
    run.write_table(pd.DataFrame({"remark": ["our own words"]}), "ours", allow=["remark"])
    assert run.write_manifest()["redacted"] is True
    secret = ["in Hangzhou since 2019", "Where do I live now?"]
    assert run_folder.find_quotes(run.path, secret, length=15) == []


def test_text_is_found_in_every_container():
    refused = {
        "question": "Where do I live now?",
        "source": "we met in May",
        "retrieved": ["D1:3", "I moved, I think"],
        "system": "x" * 61,
        "type": "a\nb",
        "note": "short",
        "why": {"why": "we met"},
        "trace": [{"why": ("we met",)}],
        "gold": np.array(["a b"], dtype=object),
        "evidence": "我住在杭州",
        "blob": b"bytes",
        "f1": "0.5 points more than Ada",
    }
    for column, value in refused.items():
        assert len(run_folder.redaction_problems(pd.DataFrame({column: [value]}))) == 1, column
    assert len(run_folder.redaction_problems(pd.DataFrame({"n": [1, "text"]}))) == 1


def test_what_may_be_published():
    assert run_folder.redaction_problems(results(text=False)) == []
    fine = {"question": "conv-26-q3", "retrieved": "D1:3 D2:4", "sources": ["D1:3"], "f1": 0.5}
    fine |= {"mean": "0.71 [0.65, 0.77]", "share": "12 %", "p": "<0.001", "ok": True, "nothing": None}
    fine |= {"fallback": "", "system": "qarp, no gate", "type": QueryType.multi_hop}
    assert run_folder.redaction_problems(pd.DataFrame([{**fine, "verdict": "no difference shown"}])) == []


def test_quotes_are_found_in_every_file_format(tmp_path):
    said = 'Well, "yesterday" I took my daughter to the pottery class by the river, and 她很喜欢 it very much'
    half = said[8:75]
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.json").write_text(json.dumps({"x": half}))
    page = "<p>" + half.replace('"', "&quot;").replace(" the ", "\n  the ") + "</p>"
    (tmp_path / "b.html").write_text(page, encoding="utf-8")
    (tmp_path / "sub" / "c.jsonl.gz").write_bytes(gzip.compress(json.dumps({"x": said}).encode()))
    pd.DataFrame({"x": [[said]], "n": [1]}).to_parquet(tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_text("nothing of theirs: I took my daughter to school")
    (tmp_path / "f.bin").write_bytes(bytes(range(256)))
    found = run_folder.find_quotes(tmp_path, [said, "short"])
    assert [f.split(":")[0] for f in found] == ["a.json", "b.html", "d.parquet", "sub/c.jsonl.gz"]
    assert run_folder.find_quotes(tmp_path / "a.json", [said])
    assert not run_folder.find_quotes(tmp_path / "e.txt", [said])


# --- manifest -------------------------------------------------------------------------------------------

MANIFEST = """experiment run_id params data code packages python platform models embedder prompts seeds usage
    cost_usd redacted when systems tables figures rows numbers""".split()


def test_manifest_says_what_is_needed_and_nothing_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))  # it is / for some users, and every text has that
    params = {"data_file": str(Path.home() / "data" / "x.json"), "model": "openai/gpt-4o-mini", "ks": [1, 5]}
    run = run_folder.open_run("exp1", params, THEIRS, tmp_path)
    run.write_results(run_folder.drop_text_columns(results()))
    run.write_manifest(
        models=["openai/gpt-4o-mini"],
        usage=Usage(calls=3, cached_calls=1, prompt_tokens=10, completion_tokens=2, cost_usd=None),
        seeds={"bootstrap": 0},
        numbers={"f1": 0.5, "bad": math.nan},
        cache=Path("/tmp/cache/file.sqlite"),
    )
    text = (run.path / "manifest.json").read_text(encoding="utf-8")
    m = json.loads(text)
    assert set(MANIFEST) <= set(m)
    about = {"name": "locomo", "label": LABEL, "sha256": "cd34", "complete": False}
    assert m["data"] == {**about, "licence": "", "notes": {}}
    assert m["params"] == {**params, "data_file": "x.json"} and m["cache"] == "file.sqlite"
    assert m["usage"] == {"calls": 3, "cached_calls": 1, "prompt_tokens": 10, "completion_tokens": 2}
    assert m["cost_usd"] is None and m["numbers"] == {"bad": None, "f1": 0.5}
    assert set(m["when"]) == {"created", "seconds", "model_seconds"}
    assert m["packages"]["numpy"] == np.__version__ and m["rows"] == 12
    names = [platform.node()] if len(platform.node()) > 5 else []
    for private in (str(tmp_path), str(Path.home()), os.getcwd(), "/tmp", "\\\\", *names):
        assert private not in text


def test_git_state(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("1")
    nothing = {"git_commit": None, "git_dirty": None}
    assert provenance.git_state(tmp_path / "pkg") == nothing  # no repository
    git = shutil.which("git")
    if not git:
        pytest.skip("git is not installed")

    def run(*args):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([git, "-C", str(tmp_path), *who, *args], check=True, capture_output=True)

    run("init")
    assert provenance.git_state(tmp_path / "pkg") == nothing  # a copy inside another repository
    run("add", ".")
    run("commit", "-m", "x", "--no-verify")
    clean = provenance.git_state(tmp_path / "pkg")
    assert len(clean["git_commit"]) == 40 and clean["git_dirty"] is False
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "x").write_text("a run")
    assert provenance.git_state(tmp_path / "pkg")["git_dirty"] is False  # runs don't make the code dirty
    (tmp_path / "pkg" / "a.py").write_text("2")
    assert provenance.git_state(tmp_path / "pkg")["git_dirty"] is True


# --- pages ----------------------------------------------------------------------------------------------


def notebook(path, *outputs):
    removed = {"tags": ["remove_cell"]}
    cells = [
        new_markdown_cell("# A title & more\n\n> subtitle\n\nSee [there](https://example.org)."),
        new_code_cell("secret_code = 1", outputs=list(outputs)),
        *(new_markdown_cell(f"## Part {i}") for i in range(3)),
        new_code_cell("hidden", metadata=removed, outputs=[new_output("stream", text="removed text")]),
    ]
    path.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path / "notebook.ipynb")


def displayed(**data):
    return new_output("display_data", data={name.replace("__", "/"): value for name, value in data.items()})


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.loads = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "srcset", "data") or (k == "href" and tag != "a")]


def test_report_is_one_readable_file(tmp_path):
    run = run_folder.open_run("exp1", {"k": 10}, THEIRS, tmp_path)
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    picture += "WjR9awAAAABJRU5ErkJggg=="
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "a bar"}
    notebook(
        run.path,
        new_output("stream", name="stderr", text="a warning"),
        new_output("stream", name="stdout", text="a printed line"),
        displayed(image__png=picture, text__plain="fig"),
        displayed(text__html=run.write_table(results(text=False)[["system", "f1"]], "f1", "F1")),
        new_output("display_data", data=widget),
    )
    run.write_manifest(models=["offline"])
    page = html.render_html(run.path).read_text(encoding="utf-8")
    parsed = Tags(page)
    assert parsed.tags.count("script") == 1 and "link" not in parsed.tags, "the script sorts tables"
    assert all(v.startswith("data:") for v in parsed.loads) and len(parsed.loads) == 1
    assert html.external_resources(page) == ["<script>"]
    shown = ["<title>A title &amp; more</title>", "part of locomo", "a printed line", "unified", "a bar"]
    shown += ['href="https://example.org"', "without the data", run.run_id, "href='#part2'", "id='part2'"]
    hidden = ["secret_code", "a warning", "removed text", "In [", "Out[", "¶", "mathjax", "require.js"]
    assert [t for t in shown if t not in page] == [t for t in (*hidden, str(tmp_path)) if t in page] == []
    assert html.render_html(run.path).read_text(encoding="utf-8") == page


def test_output_from_outside_is_an_error(tmp_path):
    for output in (
        "<img src='https://example.org/x.png'>",
        "<script>alert(1)</script>",
        "<style>@import url(//x.org/a.css);</style>",
        "<iframe src='x'></iframe>",
        "<div style='background:url(https://x.org/a.png)'></div>",
        "<link rel='stylesheet' href='a.css'>",
        "<p onclick='x()'>a</p>",
        "<img srcset='a.png 2x'>",
        "<svg><image xlink:href='http://x.org/a.png'/></svg>",
        "<object data='a.swf'></object>",
        "<img src='figures/local.png'>",
        "<a href='JavaScript:x()'>a</a>",
        "<meta http-equiv='Refresh' content='0'>",
    ):
        assert html.external_resources(output), output
    notebook(tmp_path / "run", displayed(text__html="<img src='https://example.org/x.png'>"))
    with pytest.raises(ValueError, match="self-contained"):
        html.render_html(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()


def test_index_lists_every_run_in_order(tmp_path):
    for experiment, k in (("exp2", 5), ("exp1", 10), ("exp1", 2)):
        run = run_folder.open_run(experiment, {"k": k, "note": "<b>&"}, THEIRS if k == 5 else OURS, tmp_path)
        run.write_results(results(text=False))
        run.write_manifest(numbers={"f1": 0.5})
        if k == 10:
            notebook(run.path)
            html.render_html(run.path)
    half = tmp_path / "exp3" / "half"
    half.mkdir(parents=True)
    (tmp_path / "exp1" / "stray.txt").write_text("not a run")
    page = html.refresh_index(tmp_path).read_text(encoding="utf-8")
    table = pd.read_csv(tmp_path / "index.csv", keep_default_na=False)
    assert list(table) == "experiment run_id data systems numbers when commit redacted link".split()
    assert table["experiment"].tolist() == ["exp1", "exp1", "exp2"]
    assert table["run_id"].tolist()[:2] == sorted(table["run_id"][:2])
    assert table["redacted"].tolist() == ["no", "no", "yes"]
    assert table["systems"][0] == "unified, adaptmr" and table["numbers"][0] == "f1 0.500"
    assert sum(link.endswith("report.html") for link in table["link"]) == 1
    assert all((tmp_path / link).exists() for link in table["link"])
    assert "that can be read (not finished): exp3/half" in page and "3 finished runs" in page
    assert html.external_resources(page) == []
    first = (tmp_path / "index.csv").read_bytes()
    assert html.refresh_index(tmp_path).read_text(encoding="utf-8") == page
    for text in ("[]", "null", "{half", "", "\x00", "[" * 100_000):
        (half / "manifest.json").write_text(text)
        with pytest.warns(RunNotice, match=r"exp3/half is left out.*half/manifest\.json"):
            html.refresh_index(tmp_path)
        assert (tmp_path / "index.csv").read_bytes() == first


# --- comparing ------------------------------------------------------------------------------------------


def test_compare_tables(tmp_path):
    runs = []
    for k, f1 in ((1, 0.5), (2, 0.5), (3, 0.6)):
        run = run_folder.open_run("exp1", {"k": k}, OURS, tmp_path)
        run.write_table(pd.DataFrame({"system": ["a", "b"], "f1": [0.1, f1], "n": [1, 1000 * k]}), "main")
        runs.append(run)
    a, b, c = (r.path for r in runs)
    assert recorded_run.compare_tables(a, a) == []
    near = (a / "tables" / "main.csv").read_text().replace("1000", "1004").replace("0.500", "0.504")
    (b / "tables" / "main.csv").write_text(near)
    found = recorded_run.compare_tables(a, b)
    assert found == ["main.csv: row 2, f1: 0.500 against 0.504", "main.csv: row 2, n: 1000 against 1004"]
    assert recorded_run.compare_tables(a, b, 0.005) == [], "of a number above 1, the share counts"
    found = recorded_run.compare_tables(a, c, 0.005)
    assert found == ["main.csv: row 2, f1: 0.500 against 0.600", "main.csv: row 2, n: 1000 against 3000"]
    runs[2].write_table(pd.DataFrame({"x": [1]}), "more")
    assert "more.csv: only in the second" in recorded_run.compare_tables(a, c)
    assert "more.csv: only in the first" in recorded_run.compare_tables(c, a)
    runs[2].write_table(pd.DataFrame({"system": ["a"], "f1": [0.1]}), "main")
    assert len(recorded_run.compare_tables(a, c)) == 2
    with pytest.raises(FileNotFoundError, match="nothing to compare"):
        recorded_run.compare_tables(tmp_path / "x", tmp_path / "y")


@pytest.mark.parametrize("redact", [False, True])
def test_a_run_that_holds_the_data_s_text_carries_the_line_that_its_licence_asks_for(tmp_path, redact):
    data = Dataset("hotpotqa", sha256="ab12", complete=False, licence="CC BY-SA 4.0")
    run = run_folder.open_run("exp7", {}, data, tmp_path, redact=redact)
    manifest = run.write_manifest()
    line = manifest["data"].get("attribution", "")
    assert bool(line) is not redact and ("CC BY-SA 4.0" in line) is not redact
    notebook(run.path)
    page = html.render_html(run.path).read_text(encoding="utf-8")
    assert ("hotpotqa.github.io" in page) is not redact
