"""The README: its numbers are those of the committed runs, its links lead somewhere, its code runs."""

import json
import re
import shlex
import subprocess
from itertools import pairwise

import pytest
from committed import NoCheckout, NoRun, SeveralRuns
from expected import committed_numbers

import readme

TEXT = (readme.ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.S | re.M)


def commands():
    return [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]


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


@pytest.mark.parametrize("block", [block for block in readme.BLOCKS if "exp" in block])
def test_the_prose_names_every_system_of_the_table(block):
    shown = readme.between_markers(TEXT, block)
    prose = TEXT.split("## Where it fails, and why")[1].split("## Quick start")[0]
    for d in readme.BLOCKS:
        prose = prose.replace(readme.between_markers(TEXT, d), "")
    systems = re.findall(r"^\| `(\w+)`", shown, re.M)
    assert systems, f"the README has no table of {block}: python tests/readme.py --write"
    assert [s for s in systems if f"`{s}`" not in prose] == []
    assert re.findall(r"\d\.\d|\.\d\d", prose) == [], "numbers of results are made from a run, not typed"


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_relative_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", (readme.ROOT / page).read_text(encoding="utf-8"))
    dead = [link for link in links if "://" not in link and not (readme.ROOT / link).exists()]
    assert links and dead == []


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
        assert cli.gather_params(readme.ROOT, name, files, pairs)["model"] != "offline"


def test_every_params_file_fits_an_experiment():
    from adaptmr import cli

    for path in sorted((readme.ROOT / "params").glob("*.yaml")):
        if path.stem in ("base", "contrasts", "expected", "published", *cli.experiment_names(readme.ROOT)):
            continue
        assert cli.gather_params(readme.ROOT, "exp3", [str(path)], [])


@pytest.mark.slow
def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, *others = blocks("python")
    *lines, last = code.strip().splitlines()
    names = {}
    exec("\n".join(lines), names)
    assert len(names["found"]) == 5 and names["found"].trace
    assert "12 April 2024" in eval(last, names)
    for other in others:
        exec(
            other.replace('am.LLM("gpt-4o-mini")', "am.LLM()"), names
        )  # offline: the same code without a key
    assert names["found"].plan.planner == "qarp" and names["found"].usage.calls == 0


def git(root, *words):
    subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)


def track(root, folder):
    """Let git know a folder, as `git add` does; the folder above becomes a repository of its own."""
    if not (root / ".git").exists():
        git(root, "init", "-q")
    git(root, "add", "--", str(folder))


def fake_run(
    root,
    name,
    created="2026-01-01T00:00:00Z",
    mean="0.500",
    verdict="better",
    label=None,
    experiment="exp3",
    tracked=True,
    **params,
):
    folder = root / "outputs" / experiment / name
    (folder / "tables").mkdir(parents=True)
    params = {"dataset": "demo", **readme.WANTED, **params}
    label = label or {"demo": "demo: 6 conversations, 9 questions"}.get(
        params["dataset"], "part of locomo: 2 conversations, 8 questions"
    )
    manifest = {"params": params, "when": {"created": created}, "data": {"label": label}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    kinds = ["factual", "temporal", "update", "multi-hop", "abstention", "open-domain", "overall"]
    head = ["system", *(f"{m}: {k} (n=7)" for m in ("F1", "recall@k") for k in kinds), "cost: context tokens"]
    (folder / "tables" / "costs.csv").write_text(
        'system,calls,model tokens\nhybrid,1.0,450\nadaptmr,2.25,"1,500"\n'
    )
    (folder / "tables" / "replies.csv").write_text(
        "system,task,n,clean,repaired,asked again,fallback\nqarp,plan,8,0.75,0.125,0,0.125\n"
    )
    for table in ("table3_qarp_recall_tests", "table3_qarp_f1_tests"):
        (folder / "tables" / f"{table}.csv").write_text(
            "system,type,difference,low,high,verdict\nqarp planned by rules,overall,0.05,0.01,0.09,better\n"
        )
    cells = [f'"{mean} [0.10, 0.90]"'] * 14
    (folder / "tables" / "table2.csv").write_text(
        "\n".join([",".join(head), *(",".join([s, *cells, '"1,234"']) for s in ("hybrid", "adaptmr"))]) + "\n"
    )
    tests = [
        "system,type,difference,low,high,verdict",
        f"adaptmr,temporal_reasoning,0.1,0.05,0.2,{verdict}",
        "adaptmr,overall,0.01,-0.02,0.04,no difference shown",
    ]
    (folder / "tables" / "gain_over_hybrid_recall_tests.csv").write_text("\n".join(tests) + "\n")
    (folder / "tables" / "gain_over_hybrid_f1_tests.csv").write_text(
        f"{tests[0]}\nadaptmr,overall,0.07,0.05,0.09,better\n"
    )
    if tracked:
        track(root, folder)
    return folder


def test_the_table_says_what_the_run_says(tmp_path):
    folder = fake_run(tmp_path, "full")
    table = readme.results_table(tmp_path)
    assert (
        "| `adaptmr` | 0.500 [0.10, 0.90] | 0.500 | 0.500 \\* | 0.500 | 0.500 | 0.500 [0.10, 0.90] | 1,234 |"
        in table
    )
    assert "| `hybrid` | 0.500 [0.10, 0.90] | 0.500 | 0.500 | 0.500 | 0.500 |" in table
    assert (
        "in recall: +0.010 [-0.020, +0.040], no difference shown; in F1: +0.070 [+0.050, +0.090], better."
        in table
    )
    assert "From [this run](outputs/exp3/full/report.html)" in table
    other = folder / "tables" / "gain_over_hybrid_f1_tests.csv"
    other.write_text(other.read_text().replace("better", "no difference shown"))
    assert (
        "in F1: +0.070 [+0.050, +0.090], no difference shown after Holm's correction"
        in readme.results_table(tmp_path)
    )
    other.write_text(
        "system,type,difference,low,high,verdict\nadaptmr,overall,0.07,–,–,too few\n", encoding="utf-8"
    )
    assert "in F1: +0.070 – too few. From [this run]" in readme.results_table(tmp_path)
    widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_the_table_of_locomo_says_what_others_published_and_what_ours_is(tmp_path):
    first = fake_run(tmp_path, "full", dataset="locomo")
    table = readme.results_table(tmp_path, "locomo")
    assert table.startswith(
        "| system | recall@10 | factual | temporal | multi-hop | open-domain | F1 | tokens |"
    )
    assert (
        "| `adaptmr` | 0.500 [0.10, 0.90] | 0.500 | 0.500 \\* | 0.500 | 0.500 | 0.500 [0.10, 0.90] | 1,234 |"
        in table
    )
    assert (
        "*part of locomo: 2 conversations, 8 questions, measured likewise" in table
        and "; 7 of them count for recall" in table
    )
    values = [float(v) for v in re.findall(r"^- (\d\.\d{3}) ", table, re.M)]
    assert (
        values == sorted(values, reverse=True) == [e["value"] for e in readme.published()]
        and len(values) >= 5
    )
    assert "which are these" not in table
    fitted = json.loads((readme.ROOT / "adaptmr" / "retrieval" / "fits.json").read_text(encoding="utf-8"))[
        "data"
    ]["locomo"]
    git(tmp_path, "rm", "-rqf", str(first))
    fake_run(
        tmp_path,
        "dev",
        created="2026-02-02T00:00:00Z",
        dataset="locomo",
        label=f"part of locomo: {len(fitted['conversations'])} conversations, "
        f"{fitted['questions']} questions",
    )
    assert "development conversations in view, which are these" in readme.results_table(tmp_path, "locomo")


def test_what_others_published_is_whole(tmp_path):
    assert all(e["source"].startswith("https://") for e in readme.published())
    (tmp_path / "params").mkdir()
    path = tmp_path / "params" / "published.yaml"
    for bad in ("value: 0.5, scope: c", "value: 0.5, scope: c, source: ''", "value: 50, scope: c, source: d"):
        path.write_text(f"- {{name: a, needs: b, {bad}}}\n")
        with pytest.raises(ValueError, match=r"published\.yaml: .*'a'"):
            readme.published(tmp_path)


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
    fake_run(tmp_path, "full")
    assert "0.999" not in readme.results_table(tmp_path)


def test_a_missing_run_or_part_of_one_is_named(tmp_path):
    folder = fake_run(tmp_path, "full")
    with pytest.raises(NoRun, match=r"exp3 is committed .*adaptmr run exp3 -p dataset locomo"):
        readme.results_table(tmp_path, "locomo")
    tests = folder / "tables" / "gain_over_hybrid_f1_tests.csv"
    tests.write_text("system,type,difference,low,high,verdict\n")
    with pytest.raises(NoRun, match="full has no test of adaptmr in gain_over_hybrid_f1_tests"):
        readme.results_table(tmp_path)
    tests.unlink()
    with pytest.raises(NoRun, match="full has no table gain_over_hybrid_f1_tests"):
        readme.results_table(tmp_path)


def test_two_committed_runs_of_the_same_parameters_are_named(tmp_path):
    fake_run(tmp_path, "a", created="2026-03-03T00:00:00Z", mean="0.333")
    fake_run(tmp_path, "b", mean="0.111")
    with pytest.raises(
        SeveralRuns, match=r"exp3/a and exp3/b are committed with the same experiment and parameters.*git rm"
    ):
        readme.results_table(tmp_path)


def test_the_table_of_a_run_with_a_model(tmp_path):
    git(tmp_path, "init", "-q")
    for experiment in ("exp3", "exp4"):
        with pytest.raises(NoRun, match=rf"{experiment} is committed .*adaptmr run {experiment} -f params/"):
            readme.model_table(tmp_path)
        fake_run(tmp_path, "offline", created="2026-02-02T00:00:00Z", experiment=experiment)
        fake_run(tmp_path, "asked", experiment=experiment, model="tiny", k=5, limit=9)
    table = readme.model_table(tmp_path)
    assert table.startswith("| system | recall@5 | F1 | calls | tokens |")
    assert "| `hybrid` | 0.500 [0.10, 0.90] | 0.500 [0.10, 0.90] | 1.0 | 450 |" in table
    assert "| `adaptmr` | 0.500 [0.10, 0.90] | 0.500 [0.10, 0.90] \\* | 2.2 | 1,500 |" in table
    assert (
        "planned and read by tiny" in table
        and "Of 8 plans: 75% clean, 12% repaired, 0% asked again, 12% fallback." in table
    )
    assert (
        "in recall by +0.050 [+0.010, +0.090], better" in table
        and "[its ablations](outputs/exp4/asked/report.html)" in table
    )


def fake_failures(root, name="failures", **params):
    folder = fake_run(root, name, experiment="exp1", dataset="locomo", **params) / "tables"
    kinds = ["factual", "temporal", "multi-hop", "abstention", "open-domain", "overall"]
    head = ["system", *(f"{m}: {k} (n=7)" for m in ("F1", "failures: F1 below 0.3") for k in kinds)]
    (folder / "table1.csv").write_text(
        "\n".join(
            [",".join(head), *(",".join([s, *['"0.400 [0.30, 0.50]"'] * 12]) for s in ("unified", "rrf"))]
        )
        + "\n"
    )
    (folder / "gates.csv").write_text(
        "system,best,worst,gap,low,high,verdict,n\nunified,factual,multi-hop,0.25,0.11,0.4,≥ 10 points,42\n",
        encoding="utf-8",
    )
    causes = [
        f"unified,overall,overall,{c},{m},{m - 0.1},{m + 0.1},40"
        for c, m in (("MISS", 0.25), ("TEMPORAL", 0.0), ("GEN", 0.75))
    ]
    (folder / "causes.csv").write_text("\n".join(["system,type,label,cause,mean,low,high,n", *causes]) + "\n")
    rows = [
        f"{which},{reading},{k},0.5,0.8,0.8,0.3,{n}"
        for which, n, k in (("all", 130, 0.7), ("without HALLUC", 104, 0.6))
        for reading in ("strict", "lenient")
    ]
    (folder / "hand_agreement.csv").write_text(
        "\n".join(["failures,reading,kappa,low,high,agreement,by_chance,n", *rows]) + "\n"
    )


def test_the_table_of_failures(tmp_path):
    git(tmp_path, "init", "-q")
    with pytest.raises(NoRun, match=r"adaptmr run exp1 -p dataset locomo"):
        readme.failures_table(tmp_path)
    fake_failures(tmp_path)
    table = readme.failures_table(tmp_path)
    assert (
        table.startswith("| system | failures | factual | temporal | multi-hop | open-domain | abstention |")
        and "`rrf`" not in table
    )
    assert "| `unified` | 0.400 [0.30, 0.50] | 0.400 | 0.400 | 0.400 | 0.400 | 0.400 |" in table
    assert (
        "best on factual and worst on multi-hop questions, "
        "a gap of 25.0 points of recall [11.0, 40.0]: ≥ 10 points" in table
    )
    assert (
        "put right: GEN 75% [65%, 85%], MISS 25% [15%, 35%]. Against 130 labels" in table
        and "TEMPORAL" not in table
    )
    assert (
        "κ is 0.70 [0.50, 0.80], and 0.60 [0.50, 0.80] without" in table
        and "outputs/exp1/failures/report.html" in table
    )


def test_write_changes_only_what_is_between_the_markers(tmp_path):
    fake_run(tmp_path, "full")
    fake_failures(tmp_path)
    for experiment in ("exp3", "exp4"):
        for dataset in ("demo", "locomo"):
            fake_run(tmp_path, f"{dataset}-asked", experiment=experiment, dataset=dataset, model="tiny")
    fits = tmp_path / "adaptmr/retrieval/fits.json"
    fits.parent.mkdir(parents=True)
    fits.write_bytes((readme.ROOT / "adaptmr/retrieval/fits.json").read_bytes())
    page = tmp_path / "README.md"
    first, *others = map(readme.begin, readme.BLOCKS)
    before = (
        f"# before\n{first}\nold\n{readme.END}\nbetween\n"
        + "".join(f"{other}\n{readme.END}\n" for other in others)
        + "after\n"
    )
    page.write_text(before, encoding="utf-8")
    with pytest.raises(NoRun, match="locomo"):
        readme.write(tmp_path)
    assert page.read_text(encoding="utf-8") == before, "all or none"
    fake_run(tmp_path, "theirs", dataset="locomo")
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
    before = readme.results_table(tmp_path), committed_numbers(tmp_path)
    newer = fake_run(
        tmp_path, "just-now", created="2027-01-01T00:00:00Z", mean="0.777", verdict="worse", tracked=False
    )
    numbered(newer, **{"hybrid F1": 0.777})
    assert (readme.results_table(tmp_path), committed_numbers(tmp_path)) == before
    assert readme.full_run(tmp_path)[0].name == "committed" and list(before[1].values()) == [
        {"hybrid F1": 0.5}
    ]
    git(tmp_path, "add", "outputs")
    for read in (readme.results_table, committed_numbers):
        with pytest.raises(SeveralRuns, match="exp3/committed and exp3/just-now"):
            read(tmp_path)


def test_a_run_that_is_not_committed_is_no_run(tmp_path):
    git(tmp_path, "init", "-q")
    numbered(fake_run(tmp_path, "mine", tracked=False))
    with pytest.raises(NoRun, match="make exp3"):
        readme.results_table(tmp_path)
    assert committed_numbers(tmp_path) == {}


def test_a_committed_run_that_was_deleted_is_named(tmp_path):
    folder = numbered(fake_run(tmp_path, "full"))
    (folder / "manifest.json").unlink()
    for read in (readme.results_table, committed_numbers):
        with pytest.raises(NoRun, match=r"outputs/exp3/full/manifest\.json is committed and not there"):
            read(tmp_path)


def test_an_exported_copy_says_that_it_has_no_git(tmp_path, monkeypatch):
    numbered(fake_run(tmp_path, "full", tracked=False))
    inner = tmp_path / "inside"
    numbered(fake_run(inner, "full", tracked=False))
    for root in (tmp_path, inner):
        for read in (readme.results_table, committed_numbers):
            with pytest.raises(NoCheckout, match="no git checkout"):
                read(root)
        git(tmp_path, "init", "-q")  # a copy that lies inside another repository isn't that repository
    assert committed_numbers(tmp_path) == {}
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoCheckout, match="git is not installed"):
        committed_numbers(tmp_path)
