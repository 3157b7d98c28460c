"""The retrievers for LangChain and LlamaIndex: what `retrieve` finds, in the form that each expects."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

import adaptmr as am
from adaptmr.integrations.metadata import hit_metadata
from adaptmr.retrieval.strategies import Router
from adaptmr.types import Hit, Memory

needs_langchain = pytest.mark.skipif(
    find_spec("langchain_core") is None, reason='not installed: pip install "adaptmr[langchain]"'
)
needs_llamaindex = pytest.mark.skipif(
    find_spec("llama_index") is None, reason='not installed: pip install "adaptmr[llamaindex]"'
)
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


@pytest.fixture
def langchain() -> ModuleType:
    return importlib.import_module("adaptmr.integrations.langchain")


@pytest.fixture
def llamaindex() -> ModuleType:
    return importlib.import_module("adaptmr.integrations.llamaindex")


class CountingRouter(Router):
    """A router that counts its questions."""

    asked = 0

    def plan(self, query: Any, store: Any) -> Any:
        type(self).asked += 1
        return super().plan(query, store)


def expected(store: am.MemoryStore, question: str, **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
    hits = am.retrieve(question, store, **options).hits
    return [(h.memory.id, h.memory.text, hit_metadata(h)) for h in hits]


def test_the_metadata_of_a_hit_is_plain_and_says_why() -> None:
    about: dict[str, Any] = {"tags": ("cat", "home"), "meta": {"agent": "pets"}}
    m = Memory("m", "A cat.", "Ann", datetime(2024, 1, 2, 3, tzinfo=UTC), owner="ann", session="s", **about)
    said = hit_metadata(Hit(m, 0.5, {"lexical": 1.0, "dense": 2.5, "time": 0.25, "role": -3.0}, "updated"))
    assert said == {
        **{"id": "m", "user": "ann", "agent": "pets", "session": "s", "speaker": "Ann", "tags": "cat, home"},
        **{"time": "2024-01-02T03:00:00+00:00", "score": 0.5, "note": "updated"},
        "why": "dense +2.50, lexical +1.00, time +0.25",
    }
    assert json.loads(json.dumps(said)) == said


@pytest.mark.parametrize("name, library", [("langchain", "langchain_core"), ("llamaindex", "llama_index")])
def test_without_its_library_a_retriever_names_the_extra(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"adaptmr.integrations.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "adaptmr\[{name}\]"'):
        importlib.import_module(f"adaptmr.integrations.{name}")


@needs_langchain
def test_langchain_gives_what_retrieve_finds(
    store: am.MemoryStore, langchain: ModuleType, no_network: None
) -> None:
    ann = am.Filter(user="ann")
    retriever = langchain.LangChainRetriever(store=store, k=2, where=ann)
    wanted = [expected(store, q, k=2, where=ann) for q in QUESTIONS]
    assert all(len(found) == 2 for found in wanted)

    def plain(documents: list[Any]) -> list[tuple[str, str, dict[str, Any]]]:
        return [(d.id, d.page_content, d.metadata) for d in documents]

    assert [plain(retriever.invoke(q)) for q in QUESTIONS] == wanted
    assert [plain(found) for found in retriever.batch(QUESTIONS)] == wanted


@needs_langchain
def test_langchain_asks_without_blocking_the_event_loop_by_its_planner_and_budget(
    store: am.MemoryStore, langchain: ModuleType
) -> None:
    before = CountingRouter.asked
    retriever = langchain.LangChainRetriever(store=store, k=2, planner=CountingRouter())
    expected = [retriever.invoke(q) for q in QUESTIONS]
    assert asyncio.run(retriever.abatch(QUESTIONS)) == expected and CountingRouter.asked == before + 4
    assert langchain.LangChainRetriever(store=store, token_budget=1).invoke("live") == []


@needs_langchain
def test_a_call_of_langchain_may_change_number_user_and_time(
    store: am.MemoryStore, langchain: ModuleType
) -> None:
    retriever = langchain.LangChainRetriever(store=store, where=am.Filter(user="ann"))
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
        langchain.LangChainRetriever(store=store, user="ann")


@needs_langchain
def test_a_document_of_langchain_can_be_sent_and_saved(store: am.MemoryStore, langchain: ModuleType) -> None:
    """A text may end in half a character, where a program cut it."""
    from langchain_core.documents import Document

    store.add("I laughed \ud83d", user="ann", speaker="Ann \ud83d", id="cut")
    documents = langchain.LangChainRetriever(store=store, where=am.Filter(user="ann")).invoke("laughed")
    assert "cut" in [d.id for d in documents]
    again = [Document.model_validate_json(d.model_dump_json()) for d in documents]
    assert [(d.id, d.page_content, d.metadata) for d in again] == [
        (d.id, d.page_content, d.metadata) for d in documents
    ]
    assert all((d.page_content + str(d.metadata)).encode() for d in documents)


@needs_llamaindex
def test_llamaindex_gives_what_retrieve_finds(
    store: am.MemoryStore, llamaindex: ModuleType, no_network: None
) -> None:
    ann = am.Filter(user="ann")
    retriever = llamaindex.LlamaIndexRetriever(store, 2, where=ann)
    for question in QUESTIONS:
        nodes = retriever.retrieve(question)
        plain = [(n.node_id, n.text, n.metadata) for n in nodes]
        assert plain == expected(store, question, k=2, where=ann) and len(nodes) == 2
        assert [n.score for n in nodes] == [n.metadata["score"] for n in nodes]


@needs_llamaindex
def test_llamaindex_tells_its_callbacks_and_its_nodes_can_be_saved(
    store: am.MemoryStore, llamaindex: ModuleType
) -> None:
    from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
    from llama_index.core.schema import TextNode

    store.add("I laughed \ud83d", user="ann", id="cut")
    watch = LlamaDebugHandler(print_trace_on_end=False)
    retriever = llamaindex.LlamaIndexRetriever(
        store, where=am.Filter(user="ann"), callback_manager=CallbackManager([watch])
    )
    nodes = retriever.retrieve("laughed")
    assert len(watch.get_event_pairs()) == 1 and "cut" in [n.node_id for n in nodes]
    again = [TextNode.from_json(n.node.to_json()) for n in nodes]
    assert [(n.node_id, n.text, n.metadata, n.hash) for n in again] == [
        (n.node_id, n.node.text, n.metadata, n.node.hash) for n in nodes
    ]


@needs_llamaindex
def test_llamaindex_passes_its_options_on_and_does_not_block_the_event_loop(
    store: am.MemoryStore, llamaindex: ModuleType
) -> None:
    before = CountingRouter.asked
    retriever = llamaindex.LlamaIndexRetriever(store, as_of="2024-07-01", planner=CountingRouter())
    found = retriever.retrieve("live")
    assert asyncio.run(retriever.aretrieve("live")) == found and CountingRouter.asked == before + 2
    assert {n.node_id: n.text for n in found}["a1"] == "I live in Bergen."
    assert llamaindex.LlamaIndexRetriever(store, token_budget=1).retrieve("live") == []


@needs_llamaindex
def test_a_query_engine_of_llamaindex_answers_without_the_network(
    store: am.MemoryStore, llamaindex: ModuleType, no_network: None
) -> None:
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine

    retriever = llamaindex.LlamaIndexRetriever(store, 1, where=am.Filter(user="ann"))
    answer = RetrieverQueryEngine.from_args(retriever, llm=MockLLM()).query(QUESTIONS[1])
    assert [n.node_id for n in answer.source_nodes] == ["a2"]
    prompt = str(answer)  # this model repeats it
    assert "speaker: Ann\ntime: 2024-06-01T00:00:00+00:00\n\nMy cat is called Momo." in prompt
    assert "score" not in prompt and "user: ann" not in prompt
