"""The repository: no licensed text, keys or local paths; notebooks match the package; imports go downward."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import shutil
import sys
from functools import lru_cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import check_sync
from committed import NoCheckout, tracked_files
from quotations import long_texts, quoted, texts

from adaptmr.data.hotpotqa import HOTPOTQA
from adaptmr.data.registry import find_file

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(p for p in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)


@lru_cache(maxsize=1)
def tracked() -> tuple[Path, ...]:
    """Return the files of the repository, and those that the next `git add` would add, except runs."""
    try:
        committed, found = set(tracked_files(ROOT)), tracked_files(ROOT, untracked=True)
    except NoCheckout as e:
        pytest.skip(str(e))
    runs = ROOT / "outputs"
    return tuple(p for p in found if p.is_file() and (p in committed or runs not in p.parents))


@lru_cache(maxsize=1)
def contents() -> tuple[tuple[str, str], ...]:
    return tuple(
        (p.relative_to(ROOT).as_posix(), "\n".join(texts(p.name, p.read_bytes())))
        for p in tracked()
        if p.suffix != ".png"
    )


# --- licensed text


def test_no_text_of_locomo(locomo_file):
    data = json.loads(locomo_file.read_bytes())
    kept = [{**c["conversation"], "qa": c["qa"]} for c in data]
    assert len(long_texts(kept)) > 1000, "there are texts to search for"
    assert quoted(long_texts(kept), contents()) == []


WITH_ATTRIBUTION = ("outputs/", "adaptmr/data/hotpotqa_40.json")  # its entry and the runs name it


def test_text_of_hotpotqa_is_in_runs_and_in_the_part_that_ships_only():
    """Its licence allows quoting with attribution, which runs have, and the entry of the part that ships."""
    path = find_file(HOTPOTQA) if os.environ.get("ADAPTMR_DATA") else None
    if path is None:
        pytest.skip("ADAPTMR_DATA names no folder with a file of HotpotQA")
    kept = [[q["question"], *(s for _, sentences in q["context"] for s in sentences)] for q in read(path[0])]
    assert len(long_texts(kept)) > 1000, "there are texts to search for"
    assert quoted(long_texts(kept), [c for c in contents() if not c[0].startswith(WITH_ATTRIBUTION)]) == []


def test_quotations_are_found(tmp_path):
    secret = (
        "My neighbour's parrot has learned to imitate the doorbell, "
        "and now nobody in the house answers it any more"
    )
    short = "Extraordinarily melancholic hippopotamuses cartwheeled"
    data = [{"text": secret}, {"text": short}]
    for text in (
        f"x {secret} y",
        secret.upper(),
        "the parrot has learned to imitate the doorbell, and now nobody",
        f"so: {short}!",
        secret.replace(" ", "\n   "),
    ):
        assert quoted(long_texts(data), [("f", text)]), text
    for text in ("has learned to imitate the doorbell", "melancholic hippopotamuses cartwheeled", ""):
        assert not quoted(long_texts(data), [("f", text)])
    import pandas as pd

    pd.DataFrame({"a": [1], "b": [secret]}).to_parquet(tmp_path / "r.parquet")
    (tmp_path / "calls.jsonl.gz").write_bytes(
        gzip.compress((json.dumps({"m": [{"content": secret}]}) + "\n").encode())
    )
    (tmp_path / "n.ipynb").write_text(
        json.dumps(
            {
                "cells": [
                    {
                        "source": [secret[:30], secret[30:]],
                        "outputs": [{"data": {"text/html": f"<td>{secret}</td>"}}],
                    }
                ]
            }
        )
    )
    for path in tmp_path.iterdir():
        text = "\n".join(texts(path.name, path.read_bytes()))
        assert quoted(long_texts(data), [(path.name, text)]), path.name


# --- local paths and keys

PLACES = re.compile(
    "|".join(
        (r"/wor" r"k/", r"/roo" r"t/", r"\.\./share" r"d", r"/hom" r"e/(?!ada\b|user\b|you\b|me\b)[a-z]+/")
    )
)
KEYS = re.compile(
    r"\bsk-[A-Za-z0-9_-]{20,}|\bghp_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY"
)


def test_no_local_path():
    found = [
        f"{name}: {text[max(0, m.start() - 30) : m.end() + 30]!r}"
        for name, text in contents()
        if name not in (".ci/run", "tests/test_repository.py")
        for m in PLACES.finditer(text)
        if not name.startswith("tests/") or "/root/" not in m[0]
    ]  # tests of path handling need a path
    assert found == []


def test_no_key():
    assert [
        f"{name}: {m[0][:12]}…"
        for name, text in contents()
        for m in KEYS.finditer(text)
        if not name.startswith("tests/")
    ] == []


def test_no_generated_file_is_committed():
    bad = re.compile(
        r"(?:^|/)(?:__pycache__|\.ipynb_checkpoints|\.venv|node_modules|[^/]+\.egg-info)/|"
        r"\.(?:pyc|db|db-wal|sqlite|safetensors|bin|part)$|(?:^|/)failed\.ipynb$"
    )
    assert [n for n, _ in contents() if bad.search(n)] == []
    assert [n for n, _ in contents() if (ROOT / n).stat().st_size > 5_000_000] == []


# --- notebooks and package


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout that a test may damage."""
    to = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "settings.ini", to)
    for folder in ("nbs", "adaptmr"):
        shutil.copytree(
            ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        )
    return to


def test_the_package_matches_its_notebooks_and_they_are_clean():
    assert check_sync.export_differences(ROOT) + check_sync.unclean_notebooks(ROOT) == []


def test_export_differences_are_reported(copy):
    edited, removed, orphan = (
        copy / "adaptmr" / "text.py",
        copy / "adaptmr" / "systems" / "fixed.py",
        copy / "adaptmr" / "store" / "leftover.py",
    )
    for path, change in (
        (edited, lambda p: p.write_text(p.read_text(encoding="utf-8") + "\nx = 1\n", encoding="utf-8")),
        (removed, Path.unlink),
        (orphan, lambda p: p.write_text("x = 1\n")),
    ):
        change(path)
    assert check_sync.export_differences(copy) == [
        "adaptmr/store/leftover.py: no notebook exports it",
        "adaptmr/systems/fixed.py: not exported yet, run nbdev_export",
        "adaptmr/text.py: differs from its notebook, run nbdev_export",
    ]


def test_unclean_notebooks_are_reported(tmp_path):
    clean = {
        "cell_type": "code",
        "id": "a",
        "metadata": {"tags": ["parameters"]},
        "source": "1",
        "outputs": [],
        "execution_count": None,
    }

    def notebook(folder, metadata=None, cell=None, sort_keys=True):
        (tmp_path / "nbs" / folder).mkdir(parents=True, exist_ok=True)
        content = {
            "nbformat_minor": 5,
            "nbformat": 4,
            "metadata": metadata or {"kernelspec": {}},
            "cells": [{**clean, **(cell or {})}],
        }
        text = json.dumps(content, sort_keys=sort_keys, indent=1, ensure_ascii=False) + "\n"
        (tmp_path / "nbs" / folder / "n.ipynb").write_text(text)
        return check_sync.unclean_notebooks(tmp_path)

    assert notebook("") == []
    assert "metadata ['kernelspec', 'widgets']" in notebook("", {"kernelspec": {}, "widgets": {}})[0]
    assert "cell metadata ['collapsed']" in notebook("", cell={"metadata": {"collapsed": True}})[0]
    assert "has execution counts" in notebook("", cell={"execution_count": 3})[0]
    assert "shows an error" in notebook("", cell={"outputs": [{"output_type": "error"}]})[0]
    assert "run nbdev_clean" in notebook("", sort_keys=False)[0]
    assert notebook("", cell={"outputs": [{"output_type": "stream"}]}) == []


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.relative_to(ROOT / "nbs").as_posix())
def test_the_form_of_a_notebook(path):
    notebook = read(path)
    assert notebook["nbformat"] == 4 and notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    first = "".join(cells[0]["source"])
    head = re.match(r"# \S[^\n]*\n\n> \S[^\n]+(?:\n|$)", first)
    assert cells[0]["cell_type"] == "markdown" and head, (
        "a notebook begins with a title and a one-line subtitle"
    )
    assert (
        sum(
            len(re.findall(r"^# ", "".join(c["source"]), re.M)) for c in cells if c["cell_type"] == "markdown"
        )
        == 1
    ), "one title"
    tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    exports = [
        c
        for c in cells
        if c["cell_type"] == "code" and re.search(r"^#\| ?(?:default_exp|export)", "".join(c["source"]), re.M)
    ]
    if "experiments" in path.parts:
        assert len(tagged) == 1 and not exports, "an experiment has parameters and no module"
        source = "".join(tagged[0]["source"])
        wanted = {"out_dir", "seed"} | ({"dataset"} if path.name.startswith("exp") else set())
        assert wanted <= {
            t.id
            for n in ast.parse(source).body
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        }
        code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        assert not [c for c in code if re.search(r"^(?:def|class|for|while) ", c, re.M)], (
            "an experiment defines no functions, classes or loops"
        )
        assert "skip_exec: true" in "".join(cells[-1]["source"]), (
            "without it, tests that run the experiment would write into the checkout's outputs"
        )
    else:
        assert not tagged
        if "guides" not in path.parts:
            assert len([c for c in exports if "default_exp" in "".join(c["source"])]) == 1
    prose = sum(c["cell_type"] == "markdown" for c in cells)
    assert prose >= len(cells) / 4, f"{prose} of {len(cells)} cells are prose"


# --- floors: a subpackage imports only from lower ones

FLOORS = [
    {"markup", "checks"},
    {"types"},
    {"text", "files", "sqlite", "progress", "provenance"},
    {"registry"},
    {"times"},
    {"llm"},
    {"embed"},
    {"rerank", "reader"},
    {"store"},
    {"retrieval"},
    {"planning"},
    {"memory"},
    {"systems"},
    {"agents"},
    {"data"},
    {"eval"},
    {"training", "perf", "sections"},
    {"plugins", "own_embedder"},
    {"experiments", "integrations"},
    {"cli", "__main__"},
]
FLOOR = {subpackage: i for i, subpackages in enumerate(FLOORS) for subpackage in subpackages}


def imports(path: Path) -> set[tuple[str, bool]]:
    """Return the subpackages that a module imports, each with whether only type checkers see the import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = list(path.relative_to(ROOT).with_suffix("").parts)[:-1]
    for_types = {
        id(n)
        for t in ast.walk(tree)
        if isinstance(t, ast.If) and "TYPE_CHECKING" in ast.unparse(t.test)
        for n in ast.walk(t)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [
                ".".join([*module, a.name]) if len(module) == 1 else ".".join(module) for a in node.names
            ]
        else:
            continue
        found |= {(n.split(".")[1], id(node) in for_types) for n in names if n.startswith("adaptmr.")}
    return found


MODULES = sorted(
    p
    for p in (ROOT / "adaptmr").rglob("*.py")
    if p.name not in ("_modidx.py",) and p != ROOT / "adaptmr" / "__init__.py"
)


def test_every_subpackage_has_a_floor():
    subpackages = {p.relative_to(ROOT / "adaptmr").with_suffix("").parts[0] for p in MODULES}
    assert subpackages <= set(FLOOR), f"add {sorted(subpackages - set(FLOOR))} to a floor"


def test_imports_are_found():
    assert {"types", "text", "retrieval"} - {
        subpackage for subpackage, _ in imports(ROOT / "adaptmr" / "retrieval" / "signals.py")
    } <= {"types"}
    assert ("systems", False) in imports(ROOT / "adaptmr" / "eval" / "runner" / "evaluate.py") and (
        "retrieval",
        False,
    ) in imports(ROOT / "adaptmr" / "systems" / "base.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT / "adaptmr").as_posix())
def test_modules_import_downward(path):
    own = path.relative_to(ROOT / "adaptmr").with_suffix("").parts[0]
    upward = sorted(
        subpackage
        for subpackage, for_types in imports(path)
        if not for_types and subpackage in FLOOR and FLOOR[subpackage] > FLOOR[own]
    )
    assert upward == [], f"{own} is on floor {FLOOR[own]} and imports from a higher one"
    unknown = sorted(
        subpackage
        for subpackage, _ in imports(path)
        if subpackage not in FLOOR and subpackage != "__version__"
    )
    assert unknown == []


EVAL_FLOORS = [
    {"metrics", "stats"},
    {"report"},
    {"annotation"},
    {"judges"},
    {"runner"},
    {"analysis"},
]
EVAL_FLOOR = {subpackage: i for i, subpackages in enumerate(EVAL_FLOORS) for subpackage in subpackages}
EVAL_MODULES = sorted((ROOT / "adaptmr" / "eval").glob("*/*.py"))


def eval_subpackages(path: Path) -> set[str]:
    """Return the subpackages of `eval` that a module imports from."""
    package = list(path.relative_to(ROOT).with_suffix("").parts)[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            for name in node.names:
                if module[:2] == ["adaptmr", "eval"]:
                    found.add([*module, name.name][2])
    return found


@pytest.mark.parametrize("path", EVAL_MODULES, ids=lambda p: p.relative_to(ROOT / "adaptmr").as_posix())
def test_subpackages_of_eval_import_downward(path):
    own = path.parent.name
    upward = {
        subpackage
        for subpackage in eval_subpackages(path)
        if subpackage != own and EVAL_FLOOR[subpackage] >= EVAL_FLOOR[own]
    }
    assert upward == set(), f"eval/{own} is on floor {EVAL_FLOOR[own]}"


def test_the_package_needs_no_nbdev():
    for path in MODULES:
        names = {
            n.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for n in node.names
        }
        names |= {
            node.module.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
        }
        assert not names & {"nbdev", "fastcore", "execnb", "ghapi", "fastgit"}, path


def test_links_and_make_targets_of_the_readme_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = [
        t for t in re.findall(r"\]\(([^)#\s]+)\)", readme) if "://" not in t and not t.startswith("mailto:")
    ]
    assert [t for t in linked if not (ROOT / t).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [
        t
        for t in re.findall(r"`make ([a-z0-9-]+)`|^make ([a-z0-9-]+)", readme, re.M)
        if not re.search(rf"^{''.join(t)}:", makefile, re.M)
    ] == []
