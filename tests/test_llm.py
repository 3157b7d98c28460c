"""`adaptmr.llm` and `adaptmr.llm.transport` against a local HTTP server with chosen faults."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from server import (
    Server,
    answering,
    completion,
    cut_body,
    half_json,
    hang,
    no_model_server,
    ok,
    raw,
    status,
    waits_for,
)

from adaptmr.llm import (
    LLM,
    AuthError,
    BadRequest,
    EmptyReply,
    LLMError,
    ModelNotFound,
    ServerError,
    count_tokens,
    price,
)
from adaptmr.llm.replay import ReplayCache, ReplayMiss

HELLO = [{"role": "user", "content": "Where do I live now?"}]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 99}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def _no_env(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model_server(monkeypatch)


def model(server: Server, waits: list[float] | None = None, **kw: Any) -> LLM:
    sleep = (waits if waits is not None else []).append
    return LLM(kw.pop("name", "m"), base_url=server.url, sleep=sleep, **{"timeout": 5.0, **kw})


def test_a_good_reply_is_counted_and_priced() -> None:
    with Server(ok("Hangzhou", prompt=20, done=4)) as s:
        llm = model(s, name="openai/gpt-4o-mini")
        r = llm.complete(HELLO, max_tokens=33)
    assert (r.text, r.cached, r.finish_reason, r.usage.tokens) == ("Hangzhou", False, "stop", 24)
    assert r.usage.cost_usd == pytest.approx((20 * 0.15 + 4 * 0.60) / 1e6)
    assert llm.usage == r.usage and llm.event_counts == {"sent": 1} and s.paths == ["/v1/chat/completions"]
    sent = {"messages": HELLO, "model": "openai/gpt-4o-mini", "max_tokens": 33, "temperature": 0.0}
    assert s.requests == [sent]


def test_an_unknown_price_is_unknown_and_a_wrong_list_of_prices_is_named(tmp_path: Any) -> None:
    assert price("nobody/knows") is None and LLM("nobody/knows").cost(1, 1) is None
    assert LLM("m", prices={"M": {"prompt": 1, "completion": 2}}).cost(10**6, 10**6) == 3.0
    (tmp_path / "p.yaml").write_text("models: [1]")
    with pytest.raises(ValueError, match=r"p\.yaml"):
        LLM("m", prices=tmp_path / "p.yaml")


# -- waits and retries ---------------------------------------------------------------------------------------


def test_429_waits_as_long_as_the_server_asks() -> None:
    waits: list[float] = []
    asks = [{"Retry-After": "7"}, {"Retry-After-Ms": "1500"}, {"Retry-After": "soon"}]
    with Server(*(status(429, headers=h) for h in asks), ok("x")) as s:
        llm = model(s, waits)
        assert llm.complete(HELLO).text == "x" and llm.event_counts == {"sent": 4, "retry: 429": 3}
    assert waits[:2] == [7.0, 1.5] and 1.5 <= waits[2] <= 2.5


def test_repeated_429_and_a_retry_after_of_an_hour_are_errors() -> None:
    with Server(status(429)) as s:
        with pytest.raises(ServerError, match="429 after 3 attempts"):
            model(s, max_retries=2).complete(HELLO)
        assert len(s.requests) == 3
    waits: list[float] = []
    with Server(status(429, headers={"Retry-After": "3600"})) as s:
        with pytest.raises(ServerError, match="asks to wait 3600 s"):
            model(s, waits).complete(HELLO)
        assert waits == []


def test_a_server_that_hangs_times_out() -> None:
    with Server(hang, ok("x")) as s:
        llm = model(s, timeout=0.2)
        assert llm.complete(HELLO).text == "x" and llm.event_counts == {"retry: time-out": 1, "sent": 2}
    with Server(hang) as s, pytest.raises(ServerError, match="time-out after 1 attempts"):
        model(s, timeout=0.2, max_retries=0).complete(HELLO)


PAGE = raw(200, b"<html>hello</html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize(
    "broken", [cut_body, half_json, PAGE, raw(200, b'{"choices": ' + b"[" * 10_000), raw(200, [1, 2])]
)
def test_a_broken_body_is_retried_and_never_returned(broken: Any) -> None:
    with Server(broken, ok("whole")) as s:
        llm = model(s)
        assert llm.complete(HELLO).text == "whole" and len(s.requests) == 2
        assert sum(v for k, v in llm.event_counts.items() if k.startswith("retry")) == 1
    with Server(broken) as s, pytest.raises(ServerError):
        model(s, max_retries=1).complete(HELLO)


# -- replies that can't be used ------------------------------------------------------------------------------


def test_an_empty_reply_is_an_error_with_its_cost_also_when_it_is_replayed() -> None:
    whole = completion("x")
    silent = {"index": 0, "finish_reason": "stop"}
    bodies = [{**whole, "choices": choices} for choices in ([], None, [silent])]
    empty = [*(raw(200, b) for b in bodies), ok(None, finish="length"), ok(""), ok(None, refusal="I won't")]
    for behaviour in empty:
        cache = ReplayCache()
        with Server(behaviour) as s:
            llm = model(s, cache=cache)
            with pytest.raises(EmptyReply) as e:
                llm.complete(HELLO)
        assert e.value.usage.tokens == 15 == llm.usage.tokens and llm.event_counts["empty reply"] == 1
        with pytest.raises(EmptyReply):
            LLM("m", cache=cache).complete(HELLO)


def test_usage_that_cannot_be_is_estimated_and_counted() -> None:
    counts = [(10**30, 5), (10, -(10**6)), (-1, 1), (True, 5), ("12", 5)]
    for prompt, done in counts:
        cache, usage = ReplayCache(), {"prompt_tokens": prompt, "completion_tokens": done}
        with Server(raw(200, {**completion("in Hangzhou"), "usage": usage})) as s:
            llm = model(s, cache=cache)
            r = llm.complete(HELLO)
            assert r.usage.prompt_tokens == count_tokens(HELLO[0]["content"]) + 4
            assert r.usage.completion_tokens == count_tokens("in Hangzhou")
            assert llm.event_counts == {"estimated usage": 1, "sent": 1}
        again = LLM("m", cache=cache)
        assert again.complete(HELLO).usage.tokens == r.usage.tokens
        assert again.event_counts["estimated usage"] == 1, "also when it is replayed"


# -- errors that the user corrects ---------------------------------------------------------------------------


def test_errors_that_the_user_must_correct_are_not_retried() -> None:
    cases: list[tuple[Any, type[LLMError], str]] = [
        (status(401, "key sk-very-secret is bad"), AuthError, "OPENAI_API_KEY"),
        (status(403), AuthError, "api_key"),
        (status(404), ModelNotFound, "base_url"),
        (status(413), BadRequest, "413"),
        (status(429, "You exceeded your quota", code="insufficient_quota"), AuthError, "quota"),
        (status(400, "This model's maximum context length is 4096 tokens"), BadRequest, "lower k"),
    ]
    for behaviour, error, message in cases:
        with Server(behaviour) as s:
            llm = model(s, api_key="sk-very-secret")
            with pytest.raises(error, match=message) as e:
                llm.complete(HELLO, schema=SCHEMA)
            assert len(s.requests) == 1 and s.headers[0]["authorization"] == "Bearer sk-very-secret"
        assert "sk-very-secret" not in str(e.value) + repr(llm)


def test_a_missing_key_is_an_error_only_when_openai_is_called() -> None:
    with pytest.raises(AuthError, match=r"set OPENAI_API_KEY or pass api_key"):
        LLM("gpt-4o-mini").complete(HELLO)
    with Server(ok("x")) as s:
        assert model(s).complete(HELLO).text == "x"  # a local server needs none
    with pytest.raises(LLMError, match="Task"):
        LLM().complete(HELLO)


def test_a_refused_connection_is_retried_only_after_a_reply() -> None:
    waits: list[float] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ServerError, match=rf"{url}.*connection refused.*No server listens there"):
        LLM("m", base_url=url, sleep=waits.append).complete(HELLO)
    assert waits == []
    with Server(raw(200, completion("x"), {"Connection": "close"})) as s:
        llm = model(s, waits, max_retries=2)
        llm.complete(HELLO)
    with pytest.raises(ServerError, match="connection refused after 3 attempts"):
        llm.complete(HELLO)
    assert len(waits) == 2


def test_bad_parameters_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bad: dict[str, Any] = {"timeout": 0, "max_retries": -1, "concurrency": 0}
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"{name}={value}"):
            LLM(**{name: value})
    for wrong in ("two", "-1", ""):
        monkeypatch.setenv("ADAPTMR_CONCURRENCY", wrong)
        with pytest.raises(ValueError, match="ADAPTMR_CONCURRENCY"):
            LLM()


# -- what a server accepts -----------------------------------------------------------------------------------


def test_a_response_format_that_a_server_accepts_is_found_once() -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": SCHEMA}}
    for accepts, counted, first_calls in (
        (lambda f: f == strict, "", 1),
        (lambda f: f and "maxLength" not in json.dumps(f), "adapted: json_schema without bounds", 2),
        (lambda f: f and f["type"] == "json_object", "adapted: json_object", 3),
        (lambda f: f is None, "adapted: text", 4),
    ):

        def reply(body: dict[str, Any], accepts: Any = accepts) -> Any:
            return ok("{}") if accepts(body.get("response_format")) else status(400, "not supported")

        with Server(answering(reply)) as s:
            llm = model(s)
            llm.complete(HELLO, schema=SCHEMA)
            assert len(s.requests) == first_calls
            llm.complete(HELLO, schema=SCHEMA)
            assert len(s.requests) == first_calls + 1, "the format is remembered"
        assert llm.event_counts.get(counted, 1) == 1


def test_parameters_a_model_refuses_are_renamed_and_dropped_once() -> None:
    def new_model(b: dict[str, Any]) -> Any:
        if "max_tokens" in b:
            return status(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        if "temperature" in b:
            return status(400, "Unsupported value: 'temperature' does not support 0.0 with this model.")
        return ok("x")

    with Server(answering(new_model)) as s:
        llm = model(s)
        assert llm.complete(HELLO).text == "x" and len(s.requests) == 3
        llm.complete(HELLO)
        assert len(s.requests) == 4
        assert s.requests[3] == {"model": "m", "messages": HELLO, "max_completion_tokens": 512}
    assert llm.event_counts == {"adapted: max_completion_tokens": 1, "adapted: no temperature": 1, "sent": 4}


# -- limits and the cache ------------------------------------------------------------------------------------


def test_at_most_concurrency_requests_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LLM().concurrency == 8
    monkeypatch.setenv("ADAPTMR_CONCURRENCY", "1")
    for n, given in ((3, {"concurrency": 3}), (1, {})):
        with Server(waits_for(n, ok("x"))) as s:
            llm = model(s, **given)
            asked = [[{"role": "user", "content": str(i)}] for i in range(9)]
            with ThreadPoolExecutor(9) as pool:
                assert [r.text for r in pool.map(llm.complete, asked)] == ["x"] * 9
            assert s.most_at_once == n
        assert llm.usage.calls == 9 and llm.event_counts["sent"] == 9


def test_cached_replies_need_no_server_or_key() -> None:
    cache = ReplayCache()
    with Server(ok("Hangzhou", prompt=20, done=4)) as s:
        first = model(s, cache=cache).complete(HELLO, schema=SCHEMA, task="answer")
    cache.mode = "replay"
    llm = LLM("m", cache=cache)
    again = llm.complete(HELLO, schema=SCHEMA, task="answer")
    assert again.cached and again.text == first.text
    assert (again.usage.tokens, again.usage.calls, again.usage.cached_calls) == (24, 1, 1)
    with pytest.raises(ReplayMiss, match=r"'answer'.*Where do I live"):
        llm.complete(HELLO, max_tokens=7, task="answer")


def test_what_is_and_is_not_part_of_the_key() -> None:
    cache = ReplayCache()
    with Server(ok("x")) as s:
        for kw in ({}, {"api_key": "other"}):
            model(s, cache=cache, **kw).complete(HELLO)
        assert len(s.requests) == 1  # the key of the cache has no API key
        model(s, cache=cache).complete(HELLO, schema=SCHEMA)
        model(s, cache=cache, name="m2").complete(HELLO)
        assert len(s.requests) == 3
