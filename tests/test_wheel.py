"""The wheel, built and installed into an empty folder: what a user does first works without a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("settings.ini", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
ROWS = (
    {"id": "1", "at": "2024-03-15T09:00", "speaker": "Maya", "text": "I adopted a cat called Biscuit."},
    {"id": "2", "at": "2024-03-15T09:01", "speaker": "Ben", "text": "Lovely, how old is she?"},
    {"id": "3", "at": "2024-05-02T18:00", "speaker": "Maya", "text": "I moved to Hangzhou in April."},
    {"question": "What is Maya's cat called?", "answers": ["Biscuit"], "evidence": ["1"]},
    {"question": "Where does Maya live?", "answers": ["Hangzhou"], "evidence": ["3"]},
)
SYSTEMS = "unified,hybrid,adaptmr,oracle_evidence,present"  # exp1 compares with the first four
STRATEGY = """
import adaptmr as am

@am.system("present")
def present(question, now):
    "Recent memories weigh more."
    return am.RetrievalPlan(weights={"hybrid": 1.0, "time": 1.0}, prefer_latest=True)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Build the wheel from a copy of the sources and install it into a folder."""
    scratch = tmp_path_factory.mktemp("wheel")
    copy = scratch / "source"
    copy.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    for name in ("adaptmr", "nbs/experiments", "params"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", scratch, copy], check=True, timeout=300)
    (wheel,) = scratch.glob("*.whl")
    into = ("--quiet", "--no-deps", "--no-index", "--target", scratch / "site")
    subprocess.run([*pip, "install", *into, wheel], check=True, timeout=300)
    return scratch / "site"


@pytest.fixture(scope="module")
def empty(installed, tmp_path_factory) -> Path:
    """An empty folder in which a user begins; it holds a chat and a strategy."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "mystrat.py").write_text(STRATEGY)
    return folder


@pytest.fixture
def user(installed, empty):
    """Run Python with the installed wheel, and no checkout, in the user's folder; return what it prints."""

    def run(*arguments: object) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ADAPTMR_", "OPENAI_"))}
        env |= {"PYTHONPATH": str(installed), "ADAPTMR_CACHE": str(empty / "cache")}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=empty,
            env=env,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def test_the_installed_package_is_used(user, installed):
    place = user("-c", "import adaptmr; print(adaptmr.__file__)").strip()
    assert Path(place) == installed / "adaptmr" / "__init__.py"
    assert user("-m", "adaptmr", "--version").split()[-1] == "0.1.0"


def test_systems_are_listed_with_those_of_a_file(user):
    listed = json.loads(user("-m", "adaptmr", "systems", "--json", "--import", "./mystrat.py"))
    assert {"unified", "hybrid", "adaptmr", "present"} <= {s["name"] for s in listed}


def test_an_experiment_on_ones_own_chat_with_ones_own_strategy(user, empty):
    chosen = {"dataset": "./chat.jsonl", "systems": SYSTEMS, "embedder": "hash"}
    pairs = [part for name, value in chosen.items() for part in ("-p", name, value)]
    made = user("-m", "adaptmr", "run", "exp1", *pairs, "--import", "./mystrat.py")
    run = Path(made.strip().splitlines()[-1]).parent
    assert run.is_relative_to(empty / "outputs" / "exp1") and (run / "report.html").stat().st_size > 10_000
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["systems"] == SYSTEMS.split(",")
    assert manifest["params"]["dataset"] == "chat.jsonl"
    assert (run / "plugins" / "mystrat.py").read_text() == STRATEGY


def test_memories_are_added_and_asked(user):
    user("-m", "adaptmr", "add", "m.db", "I moved to Hangzhou in April.")
    assert "Hangzhou" in user("-m", "adaptmr", "ask", "m.db", "Where did I move?")


def test_an_estimate_without_recorded_runs_says_so(user):
    code = """import adaptmr as am
print(am.estimate(["qarp"], am.load("demo", limit=4), am.LLM("gpt-4o-mini")))"""
    assert "unknown: no run of this kind is recorded in the folder of runs" in user("-c", code)
