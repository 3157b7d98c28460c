"""Measures, statistics, evaluation runs, judges, analyses, annotation and reports; each room is imported when it is first used."""
from importlib import import_module
from types import ModuleType

_ROOMS = ("analysis", "annotation", "judges", "metrics", "report", "runner", "stats")


def __getattr__(name: str) -> ModuleType:
    if name not in _ROOMS:
        raise AttributeError(f"adaptmr.eval has no {name!r}; it has {_ROOMS}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
