"""The retrievers for LangChain and LlamaIndex: what `retrieve` finds, in the form that each expects."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import pytest

import adaptmr as am
from adaptmr.integrations.metadata import hit_metadata
from adaptmr.retrieval.strategies import Router

LIBRARIES = {"langchain": "langchain_core", "llamaindex": "llama_index"}
QUESTIONS = ["Where do I live?", "What is my cat called?"]


@pytest.fixture
def store() -> am.MemoryStore:
    store = am.MemoryStore(embedder="hash")
    store.add("I live in Bergen.", user="ann", speaker="Ann", session="s1", at="2024-05-01", id="a1")
    store.add("My cat is called Momo.", user="ann", speaker="Ann", session="s2", at="2024-06-01", id="a2")
    store.add("I live in Rome with my dog.", user="bob", speaker="Bob", id="b1")
    store.update(replace(store.get("a1"), text="I live in Oslo.", at=datetime(2024, 8, 1, tzinfo=UTC)))
    return store


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Retriever:
    """The retriever of one library, used in the same way as that of the other; its finds are plain values."""

    def __init__(self, name: str) -> None:
        if find_spec(LIBRARIES[name]) is None:
            pytest.skip(f'not installed: pip install "adaptmr[{name}]"')
        self.module = importlib.import_module(f"adaptmr.integrations.{name}")
        self.is_langchain = name == "langchain"

    def make(self, store: am.MemoryStore, **options: Any) -> Any:
        if self.is_langchain:
            return self.module.LangChainRetriever(store=store, **options)
        return self.module.LlamaIndexRetriever(store, **options)

    def documents(self, made: Any, question: str) -> list[Any]:
        found = made.invoke(question) if self.is_langchain else made.retrieve(question)
        assert self.plain(asyncio.run((made.ainvoke if self.is_langchain else made.aretrieve)(question))) == (
            self.plain(found)
        ), "without blocking the event loop"
        return found

    def plain(self, documents: list[Any]) -> list[tuple[str, str, dict[str, Any]]]:
        if self.is_langchain:
            return [(d.id, d.page_content, d.metadata) for d in documents]
        return [(n.node_id, n.text, n.metadata) for n in documents]


@pytest.fixture(params=["langchain", pytest.param("llamaindex", marks=pytest.mark.slow)])  # a slow import
def library(request: pytest.FixtureRequest) -> Retriever:
    return Retriever(request.param)


class CountingRouter(Router):
    """A router that counts its questions."""

    asked = 0

    def plan(self, query: Any, store: Any) -> Any:
        type(self).asked += 1
        return super().plan(query, store)


def expected(store: am.MemoryStore, question: str, **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
    hits = am.retrieve(question, store, **options).hits
    return [(h.memory.id, h.memory.text, hit_metadata(h)) for h in hits]


@pytest.mark.parametrize("name", LIBRARIES)
def test_without_its_library_a_retriever_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == LIBRARIES[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    monkeypatch.delitem(sys.modules, f"adaptmr.integrations.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "adaptmr\[{name}\]"'):
        importlib.import_module(f"adaptmr.integrations.{name}")


def test_a_retriever_gives_what_retrieve_finds(store: am.MemoryStore, library: Retriever) -> None:
    for options in ({"k": 2, "where": am.Filter(user="ann")}, {"as_of": "2024-07-01"}, {"token_budget": 1}):
        made = library.make(store, **options)
        for question in QUESTIONS:
            wanted = expected(store, question, **options)
            assert library.plain(library.documents(made, question)) == wanted
            assert len(wanted) == (0 if "token_budget" in options else options.get("k", 3))
    before = CountingRouter.asked
    library.documents(library.make(store, planner=CountingRouter()), "live")
    assert CountingRouter.asked == before + 2


def test_what_is_found_can_be_sent_and_saved(store: am.MemoryStore, library: Retriever) -> None:
    """A text may end in half a character, where a program cut it."""
    store.add("I laughed \ud83d", user="ann", speaker="Ann \ud83d", id="cut")
    found = library.documents(library.make(store, where=am.Filter(user="ann")), "laughed")
    if library.is_langchain:
        again = [type(d).model_validate_json(d.model_dump_json()) for d in found]
    else:
        again = [type(n.node).from_json(n.node.to_json()) for n in found]
    assert library.plain(again) == library.plain(found) and "cut" in [id for id, *_ in library.plain(found)]
    assert all((text + str(about)).encode() for _, text, about in library.plain(found))


@pytest.fixture
def langchain() -> Retriever:
    return Retriever("langchain")


@pytest.fixture
def llamaindex() -> Retriever:
    return Retriever("llamaindex")


def test_a_call_of_langchain_may_change_number_user_and_time(
    store: am.MemoryStore, langchain: Retriever
) -> None:
    retriever = langchain.make(store, where=am.Filter(user="ann"))
    assert len(retriever.invoke("live", k=1)) == 1
    assert [d.id for d in retriever.invoke("live", where=am.Filter(user="bob"))] == ["b1"]
    then = {d.id: d.page_content for d in retriever.invoke("live", as_of="2024-07-01")}
    now = {d.id: d.page_content for d in retriever.invoke("live")}
    assert (then["a1"], now["a1"]) == ("I live in Bergen.", "I live in Oslo.")
    for wrong in ({"top_k": 1}, {"where": None}):  # no filter would open the memories of all users
        with pytest.raises(TypeError, match=next(iter(wrong))):
            retriever.invoke("live", **wrong)
    with pytest.raises(TypeError, match="where=None"):
        asyncio.run(retriever.ainvoke("live", where=None))
    with pytest.raises(ValueError, match="user"):
        langchain.make(store, user="ann")


@pytest.mark.slow
def test_a_query_engine_of_llamaindex_answers_without_the_network_and_is_told_to_callbacks(
    store: am.MemoryStore, llamaindex: Retriever, no_network: None
) -> None:
    from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine

    watch = LlamaDebugHandler(print_trace_on_end=False)
    told = {"callback_manager": CallbackManager([watch])}
    retriever = llamaindex.make(store, k=1, where=am.Filter(user="ann"), **told)
    (node,) = retriever.retrieve(QUESTIONS[1])
    assert node.score == node.metadata["score"] and len(watch.get_event_pairs()) == 1
    answer = RetrieverQueryEngine.from_args(retriever, llm=MockLLM()).query(QUESTIONS[1])
    assert [n.node_id for n in answer.source_nodes] == ["a2"]
    prompt = str(answer)  # this model repeats it
    assert "speaker: Ann\ntime: 2024-06-01T00:00:00+00:00\n\nMy cat is called Momo." in prompt
    assert "score" not in prompt and "user: ann" not in prompt
