"""The README tells the truth: its numbers are the committed run's, its links lead somewhere, its commands and its code run."""
import json
import re
import shlex
from itertools import pairwise

import pytest

import readme

TEXT = (readme.HERE / "README.md").read_text(encoding="utf-8")


def blocks(language): return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.S | re.M)


def commands(): return [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]


def test_the_table_is_that_of_the_committed_run():
    try: table = readme.results_table()
    except readme.NoRun as e: pytest.skip(str(e))
    assert readme.between_markers(TEXT) == table, "the README's table isn't the committed run's: python tests/readme.py --write"


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_relative_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", (readme.HERE / page).read_text(encoding="utf-8"))
    dead = [link for link in links if "://" not in link and not (readme.HERE / link).exists()]
    assert links and dead == []


def test_make_targets_exist():
    targets = re.findall(r"^([a-z0-9]+):", (readme.HERE / "Makefile").read_text(encoding="utf-8"), re.M)
    asked = [c.split()[1] for c in commands() if c.startswith("make ")]
    assert asked and set(asked) <= set(targets)


def test_commands_are_accepted():
    from adaptmr import cli
    runs = [shlex.split(c)[2:] for c in commands() if c.startswith("adaptmr run ")]
    assert runs
    for name, *rest in runs:
        files = [str(readme.HERE / b) for a, b in pairwise(rest) if a == "-f"]
        pairs = [(b, c) for a, b, c in zip(rest, rest[1:], rest[2:]) if a == "-p"]
        assert name in cli.experiments(readme.HERE)
        assert cli.gather_params(readme.HERE, name, files, pairs)["model"] != "offline"


def test_every_params_file_fits_an_experiment():
    from adaptmr import cli
    for path in sorted((readme.HERE / "params").glob("*.yaml")):
        if path.stem in ("base", "expected", *cli.experiments(readme.HERE)): continue
        assert cli.gather_params(readme.HERE, "exp3", [str(path)], [])


@pytest.mark.slow
def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    *lines, last = code.strip().splitlines()
    names = {}
    exec("\n".join(lines), names)
    assert len(names["found"]) == 5 and names["found"].trace
    assert "12 April 2024" in eval(last, names)


def fake_run(root, name, created="2026-01-01T00:00:00Z", mean="0.500", verdict="better", **params):
    folder = root / "outputs" / "exp3" / name
    (folder / "tables").mkdir(parents=True)
    manifest = {"params": {**readme.WANTED, **params}, "when": {"created": created}, "data": {"label": "demo: 6 conversations, 9 questions"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    kinds = ["factual", "temporal", "update", "multi-hop", "abstention", "overall"]
    head = ["system", *(f"{m}: {k} (n=7)" for m in ("F1", "recall@k") for k in kinds), "cost: context tokens"]
    cells = [f'"{mean} [0.10, 0.90]"'] * 12
    (folder / "tables" / "table2.csv").write_text("\n".join([",".join(head), *(",".join([s, *cells, '"1,234"']) for s in ("hybrid", "adaptmr"))]) + "\n")
    tests = ["system,type,difference,low,high,verdict", f"adaptmr,temporal_reasoning,0.1,0.05,0.2,{verdict}",
             "adaptmr,overall,0.01,-0.02,0.04,no difference shown"]
    (folder / "tables" / "gain_over_hybrid_recall_tests.csv").write_text("\n".join(tests) + "\n")
    return folder


def test_the_table_says_what_the_run_says(tmp_path):
    fake_run(tmp_path, "full")
    table = readme.results_table(tmp_path)
    assert "| `adaptmr` | 0.500 [0.10, 0.90] | 0.500 | 0.500 \\* | 0.500 | 0.500 | 0.500 [0.10, 0.90] | 1,234 |" in table
    assert "| `hybrid` | 0.500 [0.10, 0.90] | 0.500 | 0.500 | 0.500 | 0.500 |" in table
    assert "overall: +0.010 [-0.020, +0.040], no difference shown. From [this run](outputs/exp3/full/report.html)" in table
    widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert len(widths) == 1


@pytest.mark.parametrize("other", [{"limit": 20}, {"model": "gpt-4o-mini"}, {"dataset": "locomo"}, {"split": "en1"}, {"systems": "unified"}, {"k": 5}])
def test_only_the_full_run_counts(tmp_path, other):
    fake_run(tmp_path, "decoy", created="2026-02-02T00:00:00Z", mean="0.999", **other)
    with pytest.raises(readme.NoRun, match="make exp3"): readme.results_table(tmp_path)
    fake_run(tmp_path, "full")
    assert "0.999" not in readme.results_table(tmp_path)


def test_the_newest_of_several_counts(tmp_path):
    fake_run(tmp_path, "a", created="2026-03-03T00:00:00Z", mean="0.333")
    fake_run(tmp_path, "b", created="2026-01-01T00:00:00Z", mean="0.111")
    assert "0.333" in readme.results_table(tmp_path) and "0.111" not in readme.results_table(tmp_path)


def test_write_changes_what_stands_between_the_markers_only(tmp_path):
    fake_run(tmp_path, "full")
    (tmp_path / "README.md").write_text(f"# before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n", encoding="utf-8")
    assert readme.write(tmp_path) and not readme.write(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# before\n") and text.endswith("\nafter\n") and readme.between_markers(text) == readme.results_table(tmp_path)
    (tmp_path / "README.md").write_text("no place", encoding="utf-8")
    with pytest.raises(ValueError, match="no place for the results"): readme.write(tmp_path)
