"""Query-aware memory retrieval for language-model agents.

The names below are the public API. Each is imported when it is first used, so that `import adaptmr` stays
quick.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "types": (
        "Answer", "Conversation", "Dataset", "Evidence", "Finding", "Hit", "Memory", "Question", "QueryType",
        "Usage",
    ),
    "llm": ("LLM", "ReplayCache", "Task"),
    "embed": ("Embedder", "embedder"),
    "rerank": ("Reranker", "reranker"),
    "reader": ("answer",),
    "store.view": ("Filter",),
    "store.vectors": ("VectorIndex",),
    "retrieval.plan": ("Planner", "RetrievalPlan"),
    "retrieval.execute": ("execute",),
    # with the store comes what prepares it for questions: see `MemoryStore(warm=…)`
    "retrieval.strategies": ("MemoryStore", "Router", "aretrieve", "retrieve", "warm"),
    "planning.qarp": ("QARP",),
    "planning.routed": ("Mixture", "Routed"),
    "data.read_chat": ("read_chat",),
    "data.registry": ("datasets", "load"),
    "data.validation": ("DatasetError",),
    "systems.base": ("MemorySystem", "make_system"),
    "systems.own": ("WrappedSystem", "strategy", "system"),
    "plugins": ("register_embedder",),
    "eval.judges.accuracy": ("judge",),
    "eval.runner.evaluate": ("evaluate",),
    "eval.analysis.run_cost": ("estimate",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_ROOMS = ("data", "eval", "llm", "planning", "reader", "rerank", "retrieval", "store", "systems", "times")

__all__ = ["__version__", *_HOME_OF, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        from adaptmr.checks import did_you_mean

        raise AttributeError(f"adaptmr has no {name!r}{did_you_mean(name, __all__)}; it has {sorted(__all__)}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]: return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def load_ipython_extension(shell: Any) -> None:
    """Add the magics `%memory` and `%%ask` to a notebook: what `%load_ext adaptmr` calls."""
    from adaptmr.integrations.magics import add_magics

    add_magics(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again, and close the store that they opened."""
    from adaptmr.integrations.magics import remove_magics

    remove_magics(shell)


if TYPE_CHECKING:
    from adaptmr import data, eval, llm, planning, reader, rerank, retrieval, store, systems, times
    from adaptmr.data.read_chat import read_chat
    from adaptmr.data.registry import datasets, load
    from adaptmr.data.validation import DatasetError
    from adaptmr.embed import Embedder, embedder
    from adaptmr.eval.analysis.run_cost import estimate
    from adaptmr.eval.judges.accuracy import judge
    from adaptmr.eval.runner.evaluate import evaluate
    from adaptmr.llm import LLM, ReplayCache, Task
    from adaptmr.planning.qarp import QARP
    from adaptmr.planning.routed import Mixture, Routed
    from adaptmr.plugins import register_embedder
    from adaptmr.reader import answer
    from adaptmr.rerank import Reranker, reranker
    from adaptmr.retrieval.execute import execute
    from adaptmr.retrieval.plan import Planner, RetrievalPlan
    from adaptmr.retrieval.strategies import Router, aretrieve, retrieve
    from adaptmr.store.memory_store import Filter, MemoryStore
    from adaptmr.store.vectors import VectorIndex
    from adaptmr.systems.base import MemorySystem, make_system
    from adaptmr.systems.own import WrappedSystem, strategy, system
    from adaptmr.types import (
        Answer,
        Conversation,
        Dataset,
        Evidence,
        Finding,
        Hit,
        Memory,
        QueryType,
        Question,
        Usage,
    )
