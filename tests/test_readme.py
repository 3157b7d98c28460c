"""The README: its numbers are those of the committed runs, its links lead somewhere, its code runs."""

import json
import re
import shlex
from itertools import pairwise

import pytest
import readme
from committed import NoCheckout, NoRun, SeveralRuns

from adaptmr.eval.stats.contrasts import read_contrasts
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
