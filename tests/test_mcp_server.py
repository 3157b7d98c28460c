"""The MCP server: its tools keep to one user, and the official client can use them over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from adaptmr.mcp_server import TOOLS, MemoryTools, make_server
from adaptmr.store.memory_store import Filter, MemoryStore

ROOT = Path(__file__).resolve().parent.parent
NOW = datetime(2024, 9, 1, tzinfo=UTC)
needs_mcp = pytest.mark.skipif(
    find_spec("mcp") is None, reason="the package mcp is not installed: pip install 'adaptmr[mcp]'"
)


def tools_over(store: MemoryStore, user: str = "") -> MemoryTools:
    return MemoryTools(store, user, clock=lambda: NOW)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(embedder="hash")
    store.add("I live in Bergen.", user="ann", at="2024-05-01", id="a1", tags=["home"], session="s1")
    store.add("My cat is called Momo.", user="ann", at="2024-06-01", id="a2", agent="pets")
    store.add("I live in Rome.", user="bob", at="2024-05-01", id="b1")
    return store


def test_what_is_added_is_found_and_answers(store: MemoryStore) -> None:
    tools = tools_over(store)
    made = tools.add("My bicycle is red.", user="ann", tags=["things"])["id"]
    assert store.get(made).at == NOW and store.get(made).tags == ("things",)
    found = tools.search("What colour is my bicycle?", user="ann")
    assert found["memories"][0]["id"] == made and "[2024-09-01] My bicycle is red." in found["prompt"]
    given = tools.answer("What is my cat called?", user="ann")
    assert "Momo" in given["answer"] and "a2" in given["memories"] and not given["abstained"]


def test_search_keeps_to_its_filters_and_its_budget(store: MemoryStore) -> None:
    tools = tools_over(store)

    def ids(**where: Any) -> set[str]:
        return {m["id"] for m in tools.search("live in Bergen cat", user="ann", **where)["memories"]}

    assert ids() == {"a1", "a2"} and ids(tags=["home"]) == ids(session="s1") == ids(until="2024-05-02") == {
        "a1"
    }
    assert ids(agent="pets") == ids(since="2024-05-15") == {"a2"} and ids(token_budget=1) == set()
    assert ids(as_of="2024-05-02") == {"a1"} and ids(speaker="nobody") == set()


def test_a_replaced_memory_keeps_its_history(store: MemoryStore) -> None:
    tools = tools_over(store)
    assert tools.add("I live in Oslo.", user="ann", replaces="a1") == {"id": "a1"}
    assert [v["text"] for v in tools.history("a1", user="ann")["versions"]] == [
        "I live in Bergen.",
        "I live in Oslo.",
    ]
    then = tools.search("Where do I live?", user="ann", as_of="2024-06-02")["prompt"]
    assert "Bergen" in then and "Oslo" not in then


def test_no_tool_reaches_another_users_memories(store: MemoryStore) -> None:
    for tools, user in ((tools_over(store), "bob"), (tools_over(store, "bob"), "")):
        assert [m["id"] for m in tools.search("Where do I live?", user)["memories"]] == ["b1"]
        assert tools.forget(user=user, until="2030-01-01") == {"forgotten": 1} and store.restore("b1")
        for call in (
            lambda tools=tools, user=user: tools.history("a1", user),
            lambda tools=tools, user=user: tools.forget("a1", user, for_good=True),
            lambda tools=tools, user=user: tools.add("Mine now.", user, replaces="a1"),
        ):
            with pytest.raises(ValueError, match="no memory 'a1' of the user 'bob'"):
                call()
    with pytest.raises(ValueError, match="user='ann'"):
        tools_over(store, "bob").search("Where?", user="ann")
    assert store.mask(Filter(user="ann")).sum() == 2 and not store.history("a1")


def test_forget_needs_to_know_what(store: MemoryStore) -> None:
    with pytest.raises(ValueError, match="forget needs an id"):
        tools_over(store).forget(user="ann")
    assert tools_over(store).forget(user="ann", agent="pets", for_good=True) == {"forgotten": 1}
    assert store.get("a2") is None and len(store) == 2


def test_without_the_package_the_error_names_the_extra(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'adaptmr\[mcp\]'"):
        make_server(tools_over(store))


@pytest.mark.skipif(find_spec("mcp") is not None, reason="the package mcp is installed")
def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "adaptmr", "serve", "--mcp", str(tmp_path / "m.db")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stderr.startswith("adaptmr: an MCP server needs the package mcp")


@needs_mcp
def test_the_official_client_uses_the_tools_over_stdio(store: MemoryStore, tmp_path: Path) -> None:
    from mcp import ClientSession, StdioServerParameters, stdio_client

    path = tmp_path / "m.db"
    store.export_jsonl(tmp_path / "m.jsonl")
    with MemoryStore(path, embedder="hash") as file:
        file.import_jsonl(tmp_path / "m.jsonl")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "adaptmr", "serve", "--mcp", str(path), "--user", "ann"],
        env=dict(os.environ),
        cwd=ROOT,
    )

    async def talk() -> None:
        async with stdio_client(server) as (reads, writes), ClientSession(reads, writes) as client:
            await client.initialize()
            listed = (await client.list_tools()).tools
            assert [t.name for t in listed] == list(TOOLS) and all(t.description for t in listed)

            async def call(tool: str, **arguments: Any) -> Any:
                result = await client.call_tool(tool, arguments)
                text = result.content[0].text
                return text if result.is_error else json.loads(text)

            made = await call("add", text="My bicycle is red.", at="2024-07-01")
            found = await call("search", query="What colour is my bicycle?")
            assert found["memories"][0]["id"] == made["id"] and "Rome" not in found["prompt"]
            assert "Momo" in (await call("answer", question="What is my cat called?"))["answer"]
            await call("add", text="I live in Oslo.", replaces="a1")
            assert [v["text"] for v in (await call("history", id="a1"))["versions"]] == [
                "I live in Bergen.",
                "I live in Oslo.",
            ]
            assert "no memory 'b1' of the user 'ann'" in await call("history", id="b1")
            assert "user='bob'" in await call("search", query="Rome", user="bob")
            several = await asyncio.gather(*(call("search", query="Where do I live?") for _ in range(5)))
            assert all(one == several[0] for one in several)
            assert await call("forget", id="a1") == {"forgotten": 1}

    asyncio.run(talk())
    with MemoryStore(path) as file:
        assert file.get("a1").status == "deleted" and len(file) == 3 and file.check() == []
