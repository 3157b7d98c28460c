"""The repository: no licensed text, keys or local paths; notebooks match the package; imports go downward."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import check_sync
import house
from committed import NoCheckout, tracked_files
from quotations import long_texts, quoted, texts

from adaptmr.data.registry import get_entry
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
def contents(part: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the text of each file: of the committed runs, or of all others."""
    return tuple(
        (p.relative_to(ROOT).as_posix(), "\n".join(texts(p.name, p.read_bytes())))
        for p in tracked()
        if p.suffix != ".png" and (ROOT / "outputs" in p.parents) == (part == "runs")
    )


PARTS = pytest.mark.parametrize("part", ["source", pytest.param("runs", marks=pytest.mark.slow)])


# --- licensed text


@PARTS
def test_no_text_of_locomo(locomo_file, part):
    data = json.loads(locomo_file.read_bytes())
    kept = [{**c["conversation"], "qa": c["qa"]} for c in data]
    assert len(long_texts(kept)) > 1000, "there are texts to search for"
    assert quoted(long_texts(kept), contents(part)) == []


WITH_ATTRIBUTION = "adaptmr/data/hotpotqa_40.json"  # in its entry in the registry


@pytest.mark.slow
def test_text_of_hotpotqa_is_in_runs_and_in_the_part_that_ships_only():
    """Its licence allows quoting with attribution, which runs have, and the entry of the part that ships."""
    path = find_file(get_entry("hotpotqa")) if os.environ.get("ADAPTMR_DATA") else None
    if path is None:
        pytest.skip("ADAPTMR_DATA names no folder with a file of HotpotQA")
    kept = [[q["question"], *(s for _, sentences in q["context"] for s in sentences)] for q in read(path[0])]
    assert len(long_texts(kept)) > 1000, "there are texts to search for"
    others = [c for c in contents("source") if c[0] != WITH_ATTRIBUTION]
    assert quoted(long_texts(kept), others) == []


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


@PARTS
def test_no_local_path(part):
    found = [
        f"{name}: {text[max(0, m.start() - 30) : m.end() + 30]!r}"
        for name, text in contents(part)
        if name not in (".ci/run", "tests/test_repository.py")
        for m in PLACES.finditer(text)
        if not name.startswith("tests/") or "/root/" not in m[0]
    ]  # tests of path handling need a path
    assert found == []


@PARTS
def test_no_key(part):
    assert [
        f"{name}: {m[0][:12]}…"
        for name, text in contents(part)
        for m in KEYS.finditer(text)
        if not name.startswith("tests/")
    ] == []


def test_no_generated_file_is_committed():
    bad = re.compile(
        r"(?:^|/)(?:__pycache__|\.ipynb_checkpoints|\.venv|node_modules|[^/]+\.egg-info)/|"
        r"\.(?:pyc|db|db-wal|sqlite|safetensors|bin|part)$|(?:^|/)failed\.ipynb$"
    )
    names = [p.relative_to(ROOT).as_posix() for p in tracked()]
    assert [n for n in names if bad.search(n) or (ROOT / n).stat().st_size > 5_000_000] == []


# --- notebooks and package


def test_the_package_matches_its_notebooks_and_they_are_clean():
    assert check_sync.export_differences(ROOT) + check_sync.unclean_notebooks(ROOT) == []


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


def exports(cell) -> bool:
    source = "".join(cell["source"])
    return cell["cell_type"] == "code" and bool(re.search(r"^#\| ?(?:default_exp|export)", source, re.M))


def faults_of_form(path: Path) -> list[str]:
    """List what a notebook's form should be and isn't."""
    notebook = read(path)
    cells = notebook["cells"]
    prose = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    tagged = ["".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])]
    exported = sum(map(exports, cells))
    wanted = {
        "kernel python3": notebook["metadata"]["kernelspec"]["name"] == "python3",
        "a title and a one-line subtitle": re.match(r"# \S[^\n]*\n\n> \S[^\n]+(?:\n|$)", prose[0]),
        "one title": sum(len(re.findall(r"^# ", text, re.M)) for text in prose) == 1,
        "a quarter of the cells in prose": len(prose) >= len(cells) / 4,
    }
    if "experiments" in path.parts:
        names = re.findall(r"^(\w+) *(?::[^=\n]*)?=", "".join(tagged), re.M)
        wanted |= {
            "parameters, out_dir and seed among them, and no module": {"out_dir", "seed"} <= {*names}
            and len(tagged) == 1
            and not exported,
            "no functions, classes or loops": not [
                c for c in code if re.search(r"^(?:def|class|for|while) ", c, re.M)
            ],
            "skip_exec: true in its last cell, so that tests write no run": "skip_exec: true"
            in "".join(cells[-1]["source"]),
        }
    elif "guides" not in path.parts:
        wanted["one default_exp"] = sum("default_exp" in c for c in code) == 1
    return [f"{path.relative_to(ROOT / 'nbs')}: {what}" for what, holds in wanted.items() if not holds]


def test_notebooks_have_their_form():
    assert [fault for path in NOTEBOOKS for fault in faults_of_form(path)] == []


# --- floors: a subpackage imports only from lower ones

EVAL_FLOORS = [{"metrics", "stats"}, {"report"}, {"annotation"}, {"judges"}, {"runner"}, {"analysis"}]
EVAL_FLOOR = {subpackage: i for i, subpackages in enumerate(EVAL_FLOORS) for subpackage in subpackages}
MODULES = sorted(p for p in (ROOT / "adaptmr").rglob("*.py") if p.name != "_modidx.py")


def imports(path: Path) -> list[str]:
    """Return what a module imports by full names, without what only type checkers see."""
    package = list(path.relative_to(ROOT).with_suffix("").parts)[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            base = package[: len(package) - node.level + 1] if node.level else []
            found += [".".join([*base, *filter(None, [node.module]), a.name]) for a in node.names]
    return found


def test_contributing_shows_the_tree_of_the_package():
    shown = house.MARKED.search(house.PAGE.read_text(encoding="utf-8"))
    assert shown and shown[0] == house.tree(), "python tests/house.py --write"


def test_modules_import_downward():
    faults, seen = [], set()
    for path in MODULES:
        room, *rest = path.relative_to(ROOT / "adaptmr").with_suffix("").parts
        if room == "__init__":
            continue
        if room not in house.FLOOR:
            faults.append(f"{path.name}: {room} has no floor: add it to FLOORS in tests/house.py")
            continue
        for name in imports(path):
            parts = name.split(".")
            seen.add((room, parts[1] if len(parts) > 1 else ""))
            if parts[0] in ("nbdev", "fastcore", "execnb", "ghapi", "fastgit"):
                faults.append(f"{path.name} imports {name}, which users don't have")
            if parts[0] != "adaptmr" or len(parts) < 2 or parts[1] == "__version__":
                continue
            if house.FLOOR.get(parts[1], 0) > house.FLOOR[room]:
                faults.append(f"{path.name}, on the floor of {room}, imports {name} from a higher one")
            if room == parts[1] == "eval" and rest and len(parts) > 2 and parts[2] != rest[0]:
                below = EVAL_FLOOR.get(parts[2], 99) < EVAL_FLOOR.get(rest[0], 99)
                faults += [] if below else [f"{path.name}, of eval/{rest[0]}, imports {name}"]
    assert faults == []
    assert {("eval", "systems"), ("systems", "retrieval")} <= seen, "imports are found"
