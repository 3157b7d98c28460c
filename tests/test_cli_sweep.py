"""`adaptmr sweep`: a run for each combination; those there are skipped, one that fails stops no other."""

from __future__ import annotations

import checkout
import pytest
import test_plugins
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.cli import main, sweeping
from adaptmr.cli.sweeping import grid
from adaptmr.eval.report.parameters import UsageError

FAILS_AT_3 = "assert k != 3, 'k may not be three'\n" + checkout.RUN


@pytest.fixture
def root(tmp_path, monkeypatch):
    made = checkout.make(tmp_path / "checkout", FAILS_AT_3)
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def plugin(root):
    yield root / "present_of_mine.py"
    test_plugins.forget("present_of_mine")


def said(capsys, *words):
    status = main([str(w) for w in words])
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    return status, caught.out, caught.err


def rows_of(out, n):
    """Return the words of the first `n` rows of the table, without its heading."""
    return [line.split() for line in out.splitlines()[1 : n + 1]]


def test_the_grid():
    assert grid([("k", "[5, 10]"), ("names", "[[a, b], [c]]"), ("seed", "0")]) == [
        {"k": 5, "names": ["a", "b"], "seed": 0},
        {"k": 5, "names": ["c"], "seed": 0},
        {"k": 10, "names": ["a", "b"], "seed": 0},
        {"k": 10, "names": ["c"], "seed": 0},
    ]
    assert grid([]) == [{}]
    for pairs in ([("k", "[]")], [("k", "5"), ("k", "6")], [("k", "[5")]):
        with pytest.raises(UsageError, match="k"):
            grid(pairs)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3))
def test_every_combination_is_there_once_for_each_way_to_choose(values):
    points = grid([(f"p{i}", str(v)) for i, v in enumerate(values)])
    expected = 1
    for v in values:
        expected *= len(v)
    assert len(points) == expected
    assert all(point[f"p{i}"] in v for point in points for i, v in enumerate(values))


def test_a_sweep_is_made_once(root, capsys, monkeypatch):
    words = ["sweep", "tiny", "-p", "k", "[1, 2]"]
    status, out, _ = said(capsys, *words)
    runs = {p.name for p in (root / "outputs" / "tiny").iterdir()}
    assert status == 0 and len(runs) == 2 and all(r in out for r in runs)
    assert rows_of(out, 2) == [["1", "made"], ["2", "made"]]
    monkeypatch.setattr(sweeping, "run_experiment", None)  # nothing is run again
    status, out, err = said(capsys, *words)
    assert status == 0 and rows_of(out, 2) == [["1", "there"], ["2", "there"]]
    assert err.count("there already") == 2
    status, out, _ = said(capsys, "sweep", "tiny", "-p", "k", "1", "-p", "names", "[null]")
    assert status == 0 and rows_of(out, 1) == [["1", "None", "there"]], "the default, given"


def test_other_code_other_parameters_and_other_names_are_other_points(root, capsys, monkeypatch):
    said(capsys, "sweep", "tiny", "-p", "k", "[1]")
    asked = []

    def run(experiment, files, pairs, *more):
        asked.append(pairs)
        raise ValueError("not run in this test")

    monkeypatch.setattr(sweeping, "run_experiment", run)
    assert said(capsys, "sweep", "tiny", "-p", "k", "2")[0] == 1 and len(asked) == 1
    assert said(capsys, "sweep", "tiny", "-p", "names", "[[a]]")[0] == 1 and len(asked) == 2
    monkeypatch.setattr(sweeping, "code_sha256", lambda: "changed")
    assert said(capsys, "sweep", "tiny", "-p", "k", "1")[0] == 1 and len(asked) == 3


def test_a_point_that_fails_stops_no_other(root, capsys):
    status, out, err = said(capsys, "sweep", "tiny", "-p", "k", "[3, 4]")
    assert status == 1 and "k may not be three" in err
    assert rows_of(out, 2) == [["3", "failed"], ["4", "made"]]


def test_a_wrong_parameter_is_found_before_anything_runs(root, capsys):
    status, _, err = said(capsys, "sweep", "tiny", "-p", "k", "[1, 2]", "-p", "mood", "good")
    assert status == 2 and "mood" in err and not (root / "outputs").exists()


PLUGIN = """
import adaptmr as am

@am.system("present")
def present(question, now):
    "Recent memories weigh more."
    return am.RetrievalPlan(weights={"hybrid": 1.0, "time": %s})
"""


def test_runs_with_a_plugin_are_found_and_those_with_a_changed_one_are_made(
    root, plugin, capsys, monkeypatch
):
    (root / "nbs" / "experiments" / "tiny.ipynb").write_text(test_plugins.experiment_notebook())
    plugin.write_text(PLUGIN % "1.0")
    words = ["sweep", "tiny", "-p", "k", "[2, 3]", "-p", "systems", "[[unified, present]]"]
    status, _, err = said(capsys, *words, "--import", plugin)
    assert status == 0 and "there already" not in err, err
    asked = []
    monkeypatch.setattr(sweeping, "run_experiment", lambda *given: asked.append(given) or 1 / 0)
    status, _, err = said(capsys, *words, "--import", plugin)
    assert status == 0 and err.count("there already") == 2 and not asked
    status, _, err = said(capsys, *words, "-p", "plugins", f"[[{plugin}]]")
    assert status == 0 and err.count("there already") == 2, "named by the parameter"
    plugin.write_text(PLUGIN % "0.5")
    with pytest.raises(ZeroDivisionError):
        main([str(w) for w in (*words, "--import", plugin)])
    assert len(asked) == 1
