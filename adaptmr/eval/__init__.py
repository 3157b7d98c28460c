"""Measures, statistics, evaluation runs, tables, figures and reports; each module is imported when it is first used."""
from importlib import import_module
from types import ModuleType

_MODULES = ("agreement", "analysis", "annotate", "bench", "calibration", "causes", "ceilings", "clock", "coverage", "efficiency", "experiment",
            "failure_figures", "failures", "figures", "fitting", "growth", "hand_labels", "interventions", "intervals", "judge", "judging", "keys", "kinds",
            "labels", "longmemeval", "made_up", "metrics", "pages", "provenance", "publish", "ranking", "report", "run", "stats", "style",
            "tables", "trust")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES: raise AttributeError(f"adaptmr.eval has no {name!r}; it has {_MODULES}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]: return sorted({*globals(), *_MODULES})
