"""The MCP server: its tools keep to one user, and the official client can use them over stdio."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from adaptmr.cli import main
from adaptmr.integrations.mcp import MemoryTools
from adaptmr.store.memory_store import MemoryStore
from adaptmr.store.view import Filter

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

    of_a1 = {"tags": ["home"]}, {"session": "s1"}, {"until": "2024-05-02"}, {"as_of": "2024-05-02"}
    assert ids() == {"a1", "a2"} and all(ids(**where) == {"a1"} for where in of_a1)
    assert ids(agent="pets") == ids(since="2024-05-15") == {"a2"}
    assert ids(token_budget=1) == ids(speaker="nobody") == set()


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


def test_forget_needs_to_know_what_and_leaves_what_has_no_time(store: MemoryStore) -> None:
    with pytest.raises(ValueError, match="forget needs an id"):
        tools_over(store).forget(user="ann")
    assert tools_over(store).forget(user="ann", agent="pets", for_good=True) == {"forgotten": 1}
    assert store.get("a2") is None and len(store) == 2
    store.add("I am allergic to nuts.", user="ann", id="undated")
    assert tools_over(store).forget(user="ann", until="2024-05-15") == {"forgotten": 1}
    assert store.get("a1").status == "deleted" and store.get("undated").status == "active"


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["serve", "--mcp", str(tmp_path / "m.db")]) == 2
    assert "pip install 'adaptmr[mcp]'" in capsys.readouterr().err


# --- over stdio


def served(path: Path, *options: str) -> Any:
    """Return what starts a server of the file `path` as a process."""
    from mcp import StdioServerParameters

    args = ["-m", "adaptmr", "serve", "--mcp", str(path), *options]
    return StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ), cwd=ROOT)


def filled(path: Path) -> Path:
    with MemoryStore(path, embedder="hash") as file:
        file.add("I live in Bergen.", user="ann", at="2024-05-01", id="a1")
        file.add("I live in Rome.", user="bob", at="2024-05-01", id="b1")
        file.add("Half a face: \ud83d", user="ann", at="2024-05-02", id="a2")  # a text that was cut
    return path


@needs_mcp
@pytest.mark.slow
def test_the_official_client_gets_answers_and_errors_with_the_remedy(tmp_path: Path) -> None:
    from mcp import ClientSession, stdio_client

    path = filled(tmp_path / "m.db")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("add", {}, "Field required"),
        ("add", {"text": " "}, "a memory needs words"),
        ("add", {"text": "x", "at": "yesterday"}, "'yesterday' is not ISO 8601"),
        ("add", {"text": "x", "replaces": "b1"}, "no memory 'b1' of the user 'ann'; search returns the ids"),
        ("search", {"query": "x", "K": 3}, "no argument 'K' (did you mean 'k'?)"),
        ("search", {"query": "x", "user": "bob"}, "leave user out"),
        ("delete_all", {}, "delete_all"),
    ]

    async def talk() -> None:
        async with stdio_client(served(path, "--user", "ann")) as (r, w), ClientSession(r, w) as client:
            await client.initialize()
            for tool, arguments, says in wrong:
                result = await client.call_tool(tool, arguments)
                told = result.content[0].text
                assert result.is_error and says in told, (tool, arguments, told)
                assert "Traceback" not in told
            long = await client.call_tool("add", {"text": "Ann said: 我住在卑尔根。🎉 " * 20_000})
            asked = [
                client.call_tool(tool, {name: text})
                for tool, name in (("search", "query"), ("answer", "question"))
                for text in ("", "half a face", "🎉 卑尔根", "x" * 100_000)
            ]
            results = [long, *await asyncio.gather(*asked)]
            assert not any(r.is_error for r in results), [r.content[0].text for r in results]
            assert "Rome" not in "".join(r.content[0].text for r in results)

    asyncio.run(talk())
    with MemoryStore(path) as file:
        assert len(file) == 4 and file.check() == [] and not file.history("b1")


@needs_mcp
@pytest.mark.slow
def test_a_server_ends_with_its_client_and_survives_what_is_no_message(tmp_path: Path) -> None:
    path = filled(tmp_path / "m.db")
    half = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": '
    sent = "no message\n" + half + '{"text": "\\ud83d"}}}\n' + half + '{"text": "cut'
    command = [sys.executable, "-m", "adaptmr", "serve", "--mcp", str(path), "--user", "ann"]
    done = subprocess.run(command, input=sent, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0 and "Traceback" not in done.stdout
    with MemoryStore(path) as file:
        assert file.check() == [] and len(file) == 3


def test_what_is_said_later_than_now_is_refused_with_the_time(store: MemoryStore) -> None:
    with pytest.raises(ValueError, match=r"at='2024-09-01T08:00' is in the future: it is 2024-09-01T00:00"):
        tools_over(store).add("I am in Tokyo.", user="ann", at="2024-09-01T08:00")
    assert tools_over(store).add("I am in Tokyo.", user="ann", at="2024-09-01T08:00+09:00")["id"]
    assert len(store) == 4


def test_a_replaced_memory_keeps_its_history_and_a_history_its_user(store: MemoryStore) -> None:
    """The program gives Ann's memory to Bob: what it said when it was hers stays hers."""
    tools = tools_over(store)
    assert tools.add("I live in Oslo.", user="ann", replaces="a1") == {"id": "a1"}
    said = [v["text"] for v in tools.history("a1", user="ann")["versions"]]
    assert said == ["I live in Bergen.", "I live in Oslo."]
    store.update(replace(store.get("a1"), text="The flat is free.", owner="bob"))
    assert [v["text"] for v in tools.history("a1", "bob")["versions"]] == ["The flat is free."]
    with pytest.raises(ValueError, match="no memory 'a1'"):
        tools.history("a1", "ann")
