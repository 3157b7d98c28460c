"""Shared by all tests: a temporary cache folder, no time limits, and licensed data where it is available."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is slow, and that is no failure of what a test checks; without a database of examples, what
# failed before in this folder plays no part
settings.register_profile(
    "any machine", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

_CACHE = tempfile.TemporaryDirectory(prefix="adaptmr-tests-", ignore_cleanup_errors=True)
# set before the package is imported, so that no test reads or fills the user's cache
os.environ["ADAPTMR_CACHE"] = _CACHE.name


@pytest.fixture(scope="session")
def locomo_file() -> Path:
    """Return the file of LoCoMo, or of a part of it, in the folder ADAPTMR_DATA; skip if there is none."""
    folder = os.environ.get("ADAPTMR_DATA")
    if not folder:
        pytest.skip("ADAPTMR_DATA is not set: it names the folder with locomo10.json or locomo_dev.json")
    for name in ("locomo10.json", "locomo_dev.json"):
        if (path := Path(folder) / name).exists():
            return path
    pytest.skip(f"neither locomo10.json nor locomo_dev.json is in ADAPTMR_DATA={folder}")


@pytest.fixture(scope="session")
def official_cases() -> Callable[[str], list[Any]]:
    """Return a reader of a file of official scores, next to the folder ADAPTMR_DATA; it skips without one."""

    def read(name: str) -> list[Any]:
        folder = os.environ.get("ADAPTMR_DATA")
        if not folder:
            pytest.skip("ADAPTMR_DATA is not set: the official scores are missing")
        path = Path(folder).parent / "vectors" / name
        if not path.exists():
            pytest.skip(f"{path.name} is not in the folder next to ADAPTMR_DATA")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return read
