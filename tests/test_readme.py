"""The README: its numbers are those of the committed runs, its links lead somewhere, its code runs."""

import json
import re
import shlex
import subprocess
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import readme
from committed import NoCheckout, NoRun, SeveralRuns
from expected import committed_numbers

from adaptmr.eval.report.answer_box import contrast_answer
from adaptmr.eval.stats.contrasts import (
    MEASURE_NAMES,
    contrast_sentence,
    contrast_table,
    read_contrasts,
)
from adaptmr.systems.base import known_systems

TEXT = (readme.ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language, page=TEXT):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def commands():
    pages = [TEXT, (readme.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")]
    lines = [line for page in pages for block in blocks("sh", page) for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines]


@pytest.mark.parametrize("block", readme.BLOCKS)
def test_the_tables_are_those_of_the_committed_runs(block):
    try:
        table = readme.BLOCKS[block](readme.ROOT)
    except NoCheckout as e:
        pytest.skip(str(e))
    except (NoRun, SeveralRuns) as e:
        pytest.fail(f"the run that the README shows is not the one that is committed: {e}")
    if readme.between_markers(TEXT, block) != table:
        pytest.fail(
            f"the README's table of {block} isn't the committed run's: python tests/readme.py --write"
        )


def prose():
    text = TEXT
    for block in readme.BLOCKS:
        text = text.replace(readme.between_markers(TEXT, block), "")
    return text


def test_the_prose_has_no_result_typed_by_hand_and_names_every_system():
    text = prose().split("## Quick start")[0]
    assert re.findall(r"\d\.\d|\.\d\d", text) == [], "numbers of results are made from a run, not typed"
    assert [s for s in readme.SHOWN if f"`{s}`" not in text] == []


def test_the_landing_page_is_short():
    assert len(TEXT.splitlines()) <= 150


def test_the_sentence_on_what_was_found_is_what_the_verdicts_say():
    found = {}
    for name in readme.DATASETS:
        try:
            folder, _ = readme.full_run(readme.ROOT, name)
            for row in readme.contrasts(folder):
                found[name, row["contrast"], row["measure"]] = (row["verdict"], row["difference"])
        except NoCheckout as e:
            pytest.skip(str(e))
        except (NoRun, SeveralRuns) as e:
            pytest.fail(f"the sentence needs the contrasts of the committed runs: {e}")
    for name in ("locomo", "beam_100k"):
        verdict, difference = found[name, "adaptmr − gated", "recall"]
        assert verdict != "different" and difference <= 0, "the type did not find more"
        verdict, difference = found[name, "hybrid − zscore", "recall"]
        assert verdict == "different" and difference > 0, "better scoring for every question did"
    verdict, difference = found["locomo", "gated − hybrid", "F1"]
    assert verdict == "different" and difference > 0
    folder, _ = readme.model_run(readme.ROOT, "exp2", "locomo")
    by_model = {(r["contrast"], r["measure"]): r["verdict"] for r in readme.contrasts(folder)}
    assert by_model["gated − hybrid", "F1"] == "undecided"
    verdict, difference = found["demo", "adaptmr − gated", "current before stale"]
    assert verdict == "undecided" and difference > 0


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_relative_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", (readme.ROOT / page).read_text(encoding="utf-8"))
    dead = [link for link in links if "://" not in link and not (readme.ROOT / link).exists()]
    assert dead == []


def test_the_main_comparison_shows_eight_systems_and_all_on_request():
    book = json.loads((readme.ROOT / "nbs/experiments/exp3.ipynb").read_text(encoding="utf-8"))
    cell = next("".join(c["source"]) for c in book["cells"] if "main_systems = " in "".join(c["source"]))
    lines = [line for line in cell.splitlines() if line.startswith(("check = ", "main_systems = "))]
    for model in ("offline", "gpt-4o-mini"):
        names = {"model": model}
        exec("\n".join(lines), names)
        systems = names["main_systems"]
        assert 6 <= len(set(systems)) == len(systems) <= 8 and set(systems) <= set(known_systems())
        declared = {s for c in read_contrasts() for s in (c.system, c.baseline)}
        assert declared - set(systems) <= {"token_matched"} and set(readme.SHOWN) <= set(systems)
        assert ("token_matched" in systems) is (model != "offline"), "where it is hybrid, it needs no row"


def test_make_targets_exist():
    targets = re.findall(r"^([a-z0-9-]+):", (readme.ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    asked = [c.split()[1] for c in commands() if c.startswith("make ")]
    assert asked and set(asked) <= set(targets)


def test_commands_are_accepted():
    from adaptmr import cli

    runs = [shlex.split(c)[2:] for c in commands() if c.startswith("adaptmr run ")]
    assert runs
    for name, *rest in runs:
        files = [str(readme.ROOT / b) for a, b in pairwise(rest) if a == "-f"]
        pairs = [(b, c) for a, b, c in zip(rest, rest[1:], rest[2:]) if a == "-p"]
        assert name in cli.experiment_names(readme.ROOT)
        model = cli.gather_params(readme.ROOT, name, files, pairs)["model"]
        assert (model != "offline") == bool(rest), "options are shown to choose a model"


def test_every_params_file_fits_an_experiment():
    from adaptmr import cli

    for path in sorted((readme.ROOT / "params").glob("*.yaml")):
        if path.stem in ("base", "contrasts", "expected", "published", *cli.experiment_names(readme.ROOT)):
            continue
        experiment = path.stem.removeprefix("small-model-") if "small-model" in path.stem else "exp3"
        assert cli.gather_params(readme.ROOT, experiment, [str(path)], [])


@pytest.mark.slow
def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    *lines, last = code.strip().splitlines()
    names = {}
    exec("\n".join(lines), names)
    assert len(names["found"]) == 5 and names["found"].trace
    assert "12 April 2024" in eval(last, names)


def git(root, *words):
    subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)


def track(root, folder):
    """Let git know a folder, as `git add` does; the folder above becomes a repository of its own."""
    if not (root / ".git").exists():
        git(root, "init", "-q")
    git(root, "add", "--", str(folder))


ASKS = {(c.label, MEASURE_NAMES.get(c.measure, c.measure)): c for c in read_contrasts()}
TEAMS = [c for c in read_contrasts(dataset=readme.TEAM_DATASET) if c.dataset == readme.TEAM_DATASET]


def fake_run(
    root,
    name,
    created="2026-01-01T00:00:00Z",
    mean="0.500",
    verdict="undecided",
    experiment="exp3",
    tracked=True,
    **params,
):
    folder = root / "outputs" / experiment / name
    (folder / "tables").mkdir(parents=True)
    params = {"dataset": "demo", **readme.WANTED, **params}
    label = f"{params['dataset']}: 6 conversations, 9 questions"
    reader = ["How often does the reader fail with the gold evidence in hand?", "46 %.", "[40, 52]; n = 9"]
    answers = [reader]
    manifest = {"params": params, "when": {"created": created}, "data": {"label": label}, "answers": answers}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    asked = params["model"] != "offline"
    tested = [
        f"{label},{measure},9,6,0.0100,{low},0.030,{c.margin},0.04,{verdict}"
        for ((label, measure), c), low in zip(ASKS.items(), ("-0.010", "–", "-0.010", "-0.010", "-0.010"))
        if (c.system == "qarp") is (asked and experiment == "exp3")
    ]
    if experiment == "exp7":
        tested = [
            f"{c.label},F1,9,9,0.020,0.010,0.030,0.02,–,{verdict}"
            for c in TEAMS
            if c.measure == "f1" and c.baseline != "one_agent"
        ]
    head = "contrast,measure,n,conversations,difference,low,high,margin,detectable,verdict"
    (folder / "tables" / "contrasts.csv").write_text("\n".join([head, *tested]) + "\n", encoding="utf-8")
    cells = f'"{mean} [0.10, 0.90]",0.100,0.050,0.9,0.200'
    whole = [f"{system},{cells},1234" for system in readme.SHOWN]
    head = "system,recall@k (n=7),precision@k (n=7),nDCG@k (n=7),MRR (n=7),F1 (n=9),tokens"
    (folder / "tables" / "table2_overall.csv").write_text("\n".join([head, *whole]) + "\n", encoding="utf-8")
    pd.DataFrame(
        [
            {"system": "unified", "question": readme.EXAMPLE, "retrieved": "S1:3 S1:5 S9:1 S5:1"},
            {"system": "adaptmr", "question": readme.EXAMPLE, "retrieved": "S9:1 S5:1 S1:3"},
        ]
    ).to_parquet(folder / "results.parquet")
    if tracked:
        track(root, folder)
    return folder


def all_runs(root):
    for name in readme.DATASETS:
        fake_run(root, name, dataset=name)
    for name in ("demo", "locomo"):
        fake_run(root, name, experiment="exp1", dataset=name)
        for experiment in ("exp1", "exp2", "exp3"):
            fake_run(root, f"{name}-asked", experiment=experiment, dataset=name, model="tiny", k=5, limit=9)
    team_runs(root)


def team_runs(root):
    on = {"experiment": "exp7", "dataset": readme.TEAM_DATASET, "verdict": "different"}
    fake_run(root, "by-model", model="tiny", k=5, limit=9, **on)


def test_the_table_says_what_the_runs_say(tmp_path):
    fake_run(tmp_path, "ours")
    fake_run(tmp_path, "theirs", dataset="locomo", mean="0.700")
    table = readme.results_table(tmp_path)
    assert (
        "| `adaptmr` | 0.500 [0.10, 0.90] | 0.100 | 0.200 | 0.700 [0.10, 0.90] | 0.100 | 0.200 |" in table
        and "[demo: 6 conversations, 9 questions](outputs/exp3/ours/report.html)" in table
    )
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 2 + 6
    assert "*" not in "".join(lines), "no star in an exploratory table"


def test_the_verdicts_are_those_of_the_runs(tmp_path):
    all_runs(tmp_path)
    lines = readme.verdicts(tmp_path).splitlines()
    assert len(lines) == len(read_contrasts()) + sum(c.measure == "f1" for c in TEAMS) - 1
    link = "outputs/exp3/{}/report.html"
    assert lines[0] == (
        "- *Does the type of a question matter for what is found?* `adaptmr` − `gated`, recall: "
        + "; ".join(
            f"[{n}]({link.format(n)}) undecided, +0.010 [-0.010, +0.030] (could have shown 0.040)"
            for n in readme.DATASETS
        )
        + "."
    )
    assert f"[demo]({link.format('demo')}) undecided, +0.010 (could" in lines[1], (
        "a dash: there is no interval"
    )
    (planned,) = (line for line in lines if "`qarp`" in line)
    assert planned.count("undecided") == 2 and link.format("demo-asked") in planned
    assert lines[1].count("with tiny as the reader") == 2, "F1 depends on the reader"
    assert "exp2/locomo-asked/report.html) with tiny as the reader undecided, +0.010 (could" in lines[1]
    assert "as the reader" not in lines[0], "recall doesn't"


def test_what_teams_show_is_said_as_far_as_it_was_recorded(tmp_path):
    team_runs(tmp_path)
    lines = readme.team_verdicts(tmp_path)
    assert lines[0] == (
        f"- *{TEAMS[0].asks}* `team_full` − `team_bare`, F1 on hotpotqa_40: "
        "[tiny](outputs/exp7/by-model/report.html) different, +0.020 [+0.010, +0.030]."
    )
    assert not any("one_agent" in line for line in lines), "not in the run"


def test_both_readers_are_named_with_what_they_fail(tmp_path):
    all_runs(tmp_path)
    line = readme.readers(tmp_path)
    assert line.count("46 % ([40, 52]; n = 9)") == 4
    assert "[locomo, rules](outputs/exp1/locomo/report.html)" in line
    assert "[demo, tiny](outputs/exp1/demo-asked/report.html)" in line


def test_a_comparison_has_one_verdict_everywhere(tmp_path):
    """The table, the report's answer box and the README read one row."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "system": s,
            "conversation": f"c{i % 8}",
            "question": i,
            "recall_fraction": 0.5 + rng.normal(0, 0.01),
        }
        for s in ("adaptmr", "gated")
        for i in range(400)
    ]
    table = contrast_table(pd.DataFrame(rows), read_contrasts())
    (one,) = table.to_dict("records")
    assert one["verdict"] == "equivalent"
    all_runs(tmp_path)
    file = tmp_path / "outputs/exp3/demo/tables/contrasts.csv"
    table.assign(measure="recall").to_csv(file, index=False)
    line = readme.verdicts(tmp_path).splitlines()
    first = next(part for part in line[0].split("; ") if "exp3/demo/" in part)
    assert "equivalent" in first and "equivalent" in contrast_sentence(one)
    assert contrast_answer(one)[0] == "No." and "equivalent" in contrast_answer(one)[1]
    others = {"different", "undecided", "equivalent"} - {"equivalent"}
    said = first.split("recall: ")[-1], contrast_sentence(one), contrast_answer(one)[1]
    assert not [word for word in others for text in said if word in text]


def test_the_example_shows_what_the_systems_put_first(tmp_path):
    fake_run(tmp_path, "full")
    lines = readme.worked_example(tmp_path).splitlines()
    assert lines[0].endswith("*Where do I live now?*")
    first = lines[4].split(" | ")
    assert first[0] == "| 1" and "(outdated)" in first[1] and "(**current**)" in first[2]
    assert len(lines) == 7 and all(len(line) < 320 for line in lines)


@pytest.mark.parametrize(
    "other",
    [
        {"limit": 20},
        {"model": "gpt-4o-mini"},
        {"dataset": "locomo"},
        {"split": "en1"},
        {"systems": "unified"},
        {"k": 5},
    ],
)
def test_only_the_full_run_counts(tmp_path, other):
    fake_run(tmp_path, "decoy", created="2026-02-02T00:00:00Z", mean="0.999", **other)
    with pytest.raises(NoRun, match="make exp3"):
        readme.results_table(tmp_path)
    assert "decoy" in readme.report_list(tmp_path), "but its report is linked"


def test_a_missing_run_or_part_of_one_is_named(tmp_path):
    folder = fake_run(tmp_path, "full")
    with pytest.raises(NoRun, match=r"exp3 is committed .*adaptmr run exp3 -p dataset locomo"):
        readme.results_table(tmp_path)
    all_runs(tmp_path / "other")
    table = folder / "tables" / "table2_overall.csv"
    table.write_text(table.read_text().replace("gated,", "gates,"))
    fake_run(tmp_path, "theirs", dataset="locomo")
    with pytest.raises(NoRun, match="full has no row of gated"):
        readme.results_table(tmp_path)
    table.unlink()
    with pytest.raises(NoRun, match="full has no table table2_overall"):
        readme.results_table(tmp_path)


def test_a_contrast_that_no_run_has_is_named(tmp_path):
    all_runs(tmp_path)
    for name in ("demo", "locomo"):
        file = tmp_path / f"outputs/exp3/{name}-asked/tables/contrasts.csv"
        file.write_text(file.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    with pytest.raises(NoRun, match="contrast qarp − token_matched in F1"):
        readme.verdicts(tmp_path)


def test_two_committed_runs_of_the_same_parameters_are_named(tmp_path):
    fake_run(tmp_path, "a", created="2026-03-03T00:00:00Z", mean="0.333")
    fake_run(tmp_path, "b", mean="0.111")
    with pytest.raises(
        SeveralRuns, match=r"exp3/a and exp3/b are committed with the same experiment and parameters.*git rm"
    ):
        readme.results_table(tmp_path)


def test_write_changes_only_what_is_between_the_markers(tmp_path):
    page = tmp_path / "README.md"
    first, *others = map(readme.begin, readme.BLOCKS)
    before = (
        f"# before\n{first}\nold\n{readme.END}\nbetween\n"
        + "".join(f"{other}\n{readme.END}\n" for other in others)
        + "after\n"
    )
    page.write_text(before, encoding="utf-8")
    fake_run(tmp_path, "ours")
    with pytest.raises(NoRun, match="locomo"):
        readme.write(tmp_path)
    assert page.read_text(encoding="utf-8") == before, "all or none"
    git(tmp_path, "rm", "-rqf", "outputs")
    all_runs(tmp_path)
    assert readme.write(tmp_path) and not readme.write(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# before\n") and "\nbetween\n" in text and text.endswith("\nafter\n")
    for block, table in readme.BLOCKS.items():
        assert readme.between_markers(text, block) == table(tmp_path)
    for broken in ("no place", before.replace(readme.END, "", 1)):
        page.write_text(broken, encoding="utf-8")
        with pytest.raises(ValueError, match="no place for the results"):
            readme.write(tmp_path)


# --- which runs are read


def numbered(folder, experiment="exp3", **numbers):
    """Put headline numbers into a run's manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            {
                **manifest,
                "experiment": experiment,
                "models": [manifest["params"]["model"]],
                "numbers": numbers,
            }
        )
    )
    return folder


def test_an_experiment_run_before_the_tests_changes_nothing(tmp_path):
    numbered(fake_run(tmp_path, "committed", mean="0.500"), **{"hybrid F1": 0.5})
    before = readme.main_figure(tmp_path), committed_numbers(tmp_path)
    newer = fake_run(
        tmp_path, "just-now", created="2027-01-01T00:00:00Z", mean="0.777", verdict="different", tracked=False
    )
    numbered(newer, **{"hybrid F1": 0.777})
    assert (readme.main_figure(tmp_path), committed_numbers(tmp_path)) == before
    assert readme.full_run(tmp_path)[0].name == "committed" and list(before[1].values()) == [
        {"hybrid F1": 0.5}
    ]
    git(tmp_path, "add", "outputs")
    for read in (readme.main_figure, committed_numbers):
        with pytest.raises(SeveralRuns, match="exp3/committed and exp3/just-now"):
            read(tmp_path)


def test_a_run_that_is_not_committed_is_no_run(tmp_path):
    git(tmp_path, "init", "-q")
    numbered(fake_run(tmp_path, "mine", tracked=False))
    with pytest.raises(NoRun, match="make exp3"):
        readme.main_figure(tmp_path)
    assert committed_numbers(tmp_path) == {}


def test_a_committed_run_that_was_deleted_is_named(tmp_path):
    folder = numbered(fake_run(tmp_path, "full"))
    (folder / "manifest.json").unlink()
    for read in (readme.main_figure, committed_numbers):
        with pytest.raises(NoRun, match=r"outputs/exp3/full/manifest\.json is committed and not there"):
            read(tmp_path)


def test_an_exported_copy_says_that_it_has_no_git(tmp_path, monkeypatch):
    numbered(fake_run(tmp_path, "full", tracked=False))
    inner = tmp_path / "inside"
    numbered(fake_run(inner, "full", tracked=False))
    for root in (tmp_path, inner):
        for read in (readme.main_figure, committed_numbers):
            with pytest.raises(NoCheckout, match="no git checkout"):
                read(root)
        git(tmp_path, "init", "-q")  # a copy that lies inside another repository isn't that repository
    assert committed_numbers(tmp_path) == {}
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoCheckout, match="git is not installed"):
        committed_numbers(tmp_path)
