"""Check that the package is what its notebooks export, and that the notebooks are clean.

The notebooks are exported into an empty folder and the two packages compared, which also finds modules whose
notebook was deleted. As a script, it prints a line per difference and exits with status 1.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BY_HAND = {"__init__.py", "__main__.py"}  # written by hand, not exported


def exported(folder: Path) -> dict[str, bytes]:
    """Return the exported modules under a folder, by their path in it."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*.py"))
        if p.name not in BY_HAND and "__pycache__" not in p.parts
    }


def export_differences(root: Path = ROOT) -> list[str]:
    """List the differences between the package and a fresh export."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copy(root / "settings.ini", copy)
        shutil.copytree(root / "nbs", copy / "nbs", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        (copy / "adaptmr").mkdir()
        (copy / "adaptmr" / "__init__.py").write_bytes((root / "adaptmr" / "__init__.py").read_bytes())
        subprocess.run(
            [str(Path(sys.executable).parent / "nbdev_export")],
            cwd=copy,
            check=True,
            capture_output=True,
            text=True,
        )
        fresh, here = exported(copy / "adaptmr"), exported(root / "adaptmr")
    return (
        [f"adaptmr/{n}: no notebook exports it" for n in sorted(here.keys() - fresh.keys())]
        + [f"adaptmr/{n}: not exported yet, run nbdev_export" for n in sorted(fresh.keys() - here.keys())]
        + [
            f"adaptmr/{n}: differs from its notebook, run nbdev_export"
            for n in sorted(fresh.keys() & here.keys())
            if fresh[n] != here[n]
        ]
    )


def unclean_notebooks(root: Path = ROOT) -> list[str]:
    """List what source notebooks must not contain: execution counts, metadata, errors, another layout."""
    found = []
    for path in sorted((root / "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        name = path.relative_to(root)
        if text != json.dumps(notebook, sort_keys=True, indent=1, ensure_ascii=False) + "\n":
            found.append(f"{name}: not in the form in which nbdev saves notebooks, run nbdev_clean")
        if set(notebook["metadata"]) - {"kernelspec", "papermill"}:
            found.append(f"{name}: metadata {sorted(notebook['metadata'])}, run nbdev_clean")
        for cell in notebook["cells"]:
            if set(cell["metadata"]) - {"tags", "papermill"}:
                found.append(f"{name}: cell metadata {sorted(cell['metadata'])}, run nbdev_clean")
            if cell.get("execution_count"):
                found.append(f"{name}: has execution counts, run `make refresh`")
            if any(o["output_type"] == "error" for o in cell.get("outputs", [])):
                found.append(f"{name}: shows an error, run `make refresh`")
    return found


if __name__ == "__main__":
    problems = export_differences() + unclean_notebooks()
    print("\n".join(problems) or "the package is what its notebooks export, and the notebooks are clean")
    sys.exit(bool(problems))
