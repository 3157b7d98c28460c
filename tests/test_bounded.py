"""`adaptmr.llm.transport`: servers that send slowly, without end, or compressed bombs."""

from __future__ import annotations

import threading
import time
import tracemalloc
from typing import Any

import openai  # noqa: F401 - its import takes a second, which is not the server's
import pytest
from server import (
    Server,
    bomb,
    chunked,
    completion,
    dripping_body,
    dripping_headers,
    no_model_server,
    ok,
)

from adaptmr.llm import LLM, ServerError, transport

HELLO = [{"role": "user", "content": "Where do I live now?"}]
PATIENCE = 6.0  # seconds; without a deadline each of these servers takes twenty or more


@pytest.fixture(autouse=True)
def _no_env(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model_server(monkeypatch)


def model(server: Server, **kw: Any) -> LLM:
    return LLM("m", base_url=server.url, sleep=lambda s: None, **{"timeout": 0.3, "max_retries": 0, **kw})


@pytest.mark.parametrize("slow", [dripping_body, dripping_headers])
def test_a_time_out_is_a_deadline_for_the_whole_attempt(slow: Any) -> None:
    with Server(slow) as s:
        begun = time.monotonic()
        with pytest.raises(ServerError, match=r"time-out after 1 attempts: not over after 0\.3 s"):
            model(s).complete(HELLO)
        assert 0.3 <= time.monotonic() - begun < PATIENCE


def test_a_late_attempt_is_made_again_on_another_connection() -> None:
    with Server(dripping_body, dripping_headers, ok("quick")) as s:
        llm = model(s, max_retries=2)
        assert llm.complete(HELLO).text == "quick" and llm.complete(HELLO).text == "quick"
    assert llm.event_counts == {"retry: time-out": 2, "sent": 4}


def test_the_thread_of_a_late_attempt_ends() -> None:
    def open_calls() -> list[str]:
        return [t.name for t in threading.enumerate() if "(work)" in t.name]

    with Server(dripping_body) as s:
        with pytest.raises(ServerError):
            model(s).complete(HELLO)
        until = time.monotonic() + PATIENCE
        while open_calls() and time.monotonic() < until:
            time.sleep(0.01)
        assert not open_calls(), "its connection was closed"


def test_a_late_attempt_does_not_disturb_others() -> None:
    slow = threading.Event()

    def behave(h: Any, body: dict[str, Any]) -> None:
        if "slow" in body["messages"][0]["content"]:
            slow.set()
            dripping_body(h, body)
        else:
            h.server.released.wait(0.2)
            h.reply(200, completion("well"))

    with Server(behave) as s:
        llm = model(s, timeout=3.0)  # on a busy machine too, the others have their replies by then
        replies: list[str] = []

        def late() -> None:
            with pytest.raises(ServerError):
                llm.complete([{"role": "user", "content": "slow"}])

        def good(i: int) -> None:
            replies.append(llm.complete([{"role": "user", "content": f"{i}"}]).text)

        threads = [
            threading.Thread(target=late),
            *(threading.Thread(target=good, args=(i,)) for i in range(4)),
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert slow.is_set() and replies == ["well"] * 4


def endless_body(h: Any, body: dict[str, Any]) -> None:
    chunked(h, (b" " * 65536 for _ in range(100_000)))


@pytest.mark.parametrize(
    "big", [bomb(20), endless_body, bomb(20, 400)], ids=["bomb", "endless", "bomb in an error"]
)
def test_the_size_of_a_body_is_bounded(big: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 1_000_000)
    with Server(big) as s:
        llm = model(s, timeout=10.0)
        tracemalloc.start()
        with pytest.raises(ServerError, match=r"broken reply after 1 attempts.*more than 1,000,000 bytes"):
            llm.complete(HELLO)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 12_000_000, "the body was not read to its end"


def test_a_connection_is_kept_for_the_next_call() -> None:
    ports = []

    def behave(h: Any, body: dict[str, Any]) -> None:
        ports.append(h.client_address[1])
        h.reply(200, completion("x"))

    with Server(behave) as s:
        llm = model(s, timeout=5.0)
        for _ in range(3):
            llm.complete(HELLO)
    assert len(set(ports)) == 1
