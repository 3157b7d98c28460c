"""`adaptmr.llm` and `adaptmr.llm.transport` against a local HTTP server with chosen faults."""

from __future__ import annotations

import json
import socket
import threading
import time
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
    ok,
    raw,
    status,
    waits_for,
)

from adaptmr.llm import (
    LLM,
    AuthError,
    BadRequest,
    BudgetExceeded,
    EmptyReply,
    LLMError,
    ModelNotFound,
    RateLimited,
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
    proxies = [p for name in ("http_proxy", "https_proxy", "all_proxy") for p in (name, name.upper())]
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *proxies):
        monkeypatch.delenv(name, raising=False)


def model(server: Server, waits: list[float] | None = None, **kw: Any) -> LLM:
    kw.setdefault("timeout", 5.0)
    return LLM(
        kw.pop("name", "m"), base_url=server.url, sleep=(waits if waits is not None else []).append, **kw
    )


def test_a_good_reply_is_counted_and_priced() -> None:
    with Server(ok("Hangzhou", prompt=20, done=4)) as s:
        llm = model(s, name="openai/gpt-4o-mini")
        r = llm.complete(HELLO, max_tokens=33)
    assert (r.text, r.cached, r.finish_reason, r.usage.prompt_tokens, r.usage.completion_tokens) == (
        "Hangzhou",
        False,
        "stop",
        20,
        4,
    )
    assert r.usage.cost_usd == pytest.approx((20 * 0.15 + 4 * 0.60) / 1e6)
    assert llm.usage == r.usage and llm.event_counts == {"sent": 1}
    assert s.requests[0] == {
        "messages": HELLO,
        "model": "openai/gpt-4o-mini",
        "max_tokens": 33,
        "temperature": 0.0,
    }
    assert s.paths == ["/v1/chat/completions"]


def test_an_unknown_price_is_unknown_not_free() -> None:
    with Server(ok("x")) as s:
        assert model(s).complete(HELLO).usage.cost_usd is None
    assert (
        price("nobody/knows") is None
        and LLM("m", prices={"M": {"prompt": 1, "completion": 2}}).cost(10**6, 10**6) == 3.0
    )


def test_an_invalid_price_file_is_named_in_the_error(tmp_path: Any) -> None:
    (tmp_path / "p.yaml").write_text("models: [1]")
    with pytest.raises(ValueError, match=r"p\.yaml"):
        LLM("m", prices=tmp_path / "p.yaml")


def test_429_waits_as_long_as_the_server_asks() -> None:
    waits: list[float] = []
    with Server(
        status(429, headers={"Retry-After": "7"}), status(429, headers={"Retry-After-Ms": "1500"}), ok("x")
    ) as s:
        llm = model(s, waits)
        assert llm.complete(HELLO).text == "x"
    assert waits == [7.0, 1.5] and llm.event_counts == {"sent": 3, "retry: 429": 2}


def test_repeated_429_and_a_retry_after_of_an_hour_raise_rate_limited() -> None:
    with Server(status(429)) as s:
        with pytest.raises(RateLimited, match="429 after 3 attempts"):
            model(s, max_retries=2).complete(HELLO)
        assert len(s.requests) == 3
    waits: list[float] = []
    with (
        Server(status(429, headers={"Retry-After": "3600"})) as s,
        pytest.raises(RateLimited, match="asks to wait 3600 s"),
    ):
        model(s, waits).complete(HELLO)
    assert waits == []


def test_an_unreadable_retry_after_is_ignored_and_a_date_is_understood() -> None:
    waits: list[float] = []
    with Server(
        status(429, headers={"Retry-After": "soon"}),
        status(503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        ok("x"),
    ) as s:
        assert model(s, waits).complete(HELLO).text == "x"
    assert 0.375 <= waits[0] <= 0.625 and waits[1] == 0.0


@pytest.mark.parametrize(
    "form", ["%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S -0000", "%a %b %d %H:%M:%S %Y"]
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_a_date_in_retry_after_is_in_gmt_wherever_this_machine_is(
    form: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    until = time.strftime(form, time.gmtime(time.time() + 40))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with Server(status(429, headers={"Retry-After": until}), ok("x")) as s:
            assert model(s, waits).complete(HELLO).text == "x"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert 0 < waits[0] <= 40


def test_exhausted_quota_raises_auth_error_without_retry() -> None:
    with Server(status(429, "You exceeded your quota", code="insufficient_quota")) as s:
        with pytest.raises(AuthError, match="quota"):
            model(s).complete(HELLO)
        assert len(s.requests) == 1


def test_waits_after_500_are_the_same_for_the_same_seed() -> None:
    seen = []
    for seed in (1, 1, 2):
        waits: list[float] = []
        with Server(status(500), status(502), status(500), ok("x")) as s:
            assert model(s, waits, seed=seed).complete(HELLO).text == "x"
        seen.append(waits)
    assert seen[0] == seen[1] != seen[2]
    assert all(0.75 * base <= w <= 1.25 * base for w, base in zip(seen[0], (0.5, 1.0, 2.0)))


def test_repeated_500_raises_server_error_with_the_message() -> None:
    with Server(status(500, "out of memory")) as s:
        llm = model(s, max_retries=1)
        with pytest.raises(ServerError, match=r"500 after 2 attempts.*out of memory"):
            llm.complete(HELLO)
    assert llm.event_counts == {"retry: 500": 1, "sent": 2} and llm.usage.calls == 0


def test_a_server_that_hangs_times_out() -> None:
    with Server(hang, ok("x")) as s:
        llm = model(s, timeout=0.2)
        assert llm.complete(HELLO).text == "x" and llm.event_counts == {"retry: time-out": 1, "sent": 2}
    with Server(hang) as s, pytest.raises(ServerError, match="time-out after 1 attempts"):
        model(s, timeout=0.2, max_retries=0).complete(HELLO)


@pytest.mark.parametrize(
    "broken",
    [
        cut_body,
        half_json,
        raw(200, b"<html>hello</html>", {"Content-Type": "text/html"}),
        raw(200, b""),
        raw(200, [1, 2]),
        raw(200, {"choices": 3}),
    ],
)
def test_a_broken_body_is_retried_and_never_returned(broken: Any) -> None:
    with Server(broken, ok("whole")) as s:
        llm = model(s)
        assert llm.complete(HELLO).text == "whole" and len(s.requests) == 2
        assert sum(v for k, v in llm.event_counts.items() if k.startswith("retry")) == 1
    with Server(broken) as s, pytest.raises(ServerError):
        model(s, max_retries=1).complete(HELLO)


@pytest.mark.parametrize(
    "empty",
    [
        raw(200, {**completion("x"), "choices": []}),
        raw(200, {**completion("x"), "choices": None}),
        ok(None, finish="length"),
        ok(""),
        ok(None, refusal="I won't"),
        raw(200, {**completion("x"), "choices": [{"index": 0, "finish_reason": "stop"}]}),
    ],
)
def test_an_empty_reply_is_an_error_with_its_cost(empty: Any) -> None:
    with Server(empty) as s:
        llm = model(s)
        with pytest.raises(EmptyReply) as e:
            llm.complete(HELLO)
    assert e.value.usage.tokens == 15 == llm.usage.tokens and llm.event_counts["empty reply"] == 1


def test_an_empty_reply_replays_as_empty() -> None:
    cache = ReplayCache()
    with Server(ok(None)) as s, pytest.raises(EmptyReply):
        model(s, cache=cache).complete(HELLO)
    with pytest.raises(EmptyReply):
        LLM("m", cache=cache).complete(HELLO)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (401, AuthError, "OPENAI_API_KEY"),
        (403, AuthError, "api_key"),
        (404, ModelNotFound, "base_url"),
        (413, BadRequest, "413"),
    ],
)
def test_errors_that_the_user_must_correct_are_not_retried(
    code: int, error: type[LLMError], message: str
) -> None:
    with Server(status(code, "key sk-very-secret is bad")) as s:
        llm = model(s, api_key="sk-very-secret")
        with pytest.raises(error, match=message) as e:
            llm.complete(HELLO)
        assert len(s.requests) == 1 and s.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(e.value) + repr(llm)


def test_a_missing_key_is_an_error_only_when_openai_is_called() -> None:
    llm = LLM("gpt-4o-mini")
    with pytest.raises(AuthError, match=r"set OPENAI_API_KEY or pass api_key"):
        llm.complete(HELLO)
    with Server(ok("x")) as s:
        assert model(s).complete(HELLO).text == "x"  # a local server needs none


def test_a_refused_connection_is_an_error_without_retry() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    waits: list[float] = []
    llm = LLM("m", base_url=f"http://127.0.0.1:{port}/v1", sleep=waits.append)
    with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port}.*Start the server"):
        llm.complete(HELLO)
    assert waits == []


def test_a_connection_refused_after_a_reply_is_retried() -> None:
    waits: list[float] = []
    with Server(raw(200, completion("x"), {"Connection": "close"})) as s:
        llm = model(s, waits, max_retries=2)
        llm.complete(HELLO)
    with pytest.raises(ServerError, match="connection after 3 attempts"):
        llm.complete(HELLO)
    assert len(waits) == 2


def test_the_schema_is_sent_strict() -> None:
    with Server(ok("{}")) as s:
        model(s).complete(HELLO, schema=SCHEMA)
    assert s.requests[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "strict": True, "schema": SCHEMA},
    }


@pytest.mark.parametrize(
    ("accepts", "counted", "first_calls"),
    [
        (
            lambda f: f and f["type"] == "json_schema" and "maxLength" not in json.dumps(f),
            "adapted: json_schema without bounds",
            2,
        ),
        (lambda f: f and f["type"] == "json_object", "adapted: json_object", 3),
        (lambda f: f is None, "adapted: text", 4),
    ],
)
def test_a_response_format_that_a_server_accepts_is_found_once(
    accepts: Any, counted: str, first_calls: int
) -> None:
    with Server(
        answering(
            lambda b: (
                ok("{}")
                if accepts(b.get("response_format"))
                else status(400, "response_format is not supported")
            )
        )
    ) as s:
        llm = model(s)
        llm.complete(HELLO, schema=SCHEMA)
        assert len(s.requests) == first_calls
        llm.complete(HELLO, schema=SCHEMA)
        assert (
            len(s.requests) == first_calls + 1 and llm.event_counts[counted] == 1
        )  # the format is remembered


def test_parameters_a_model_refuses_are_renamed_and_dropped_once() -> None:
    def new_model(b: dict[str, Any]) -> Any:
        if "max_tokens" in b:
            return status(
                400,
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
            )
        if "temperature" in b:
            return status(400, "Unsupported value: 'temperature' does not support 0.0 with this model.")
        return ok("x")

    with Server(answering(new_model)) as s:
        llm = model(s)
        assert llm.complete(HELLO).text == "x" and len(s.requests) == 3
        llm.complete(HELLO)
        assert len(s.requests) == 4 and s.requests[3] == {
            "model": "m",
            "messages": HELLO,
            "max_completion_tokens": 512,
        }
    assert llm.event_counts == {"adapted: max_completion_tokens": 1, "adapted: no temperature": 1, "sent": 4}


def test_a_prompt_that_is_too_long_raises_bad_request_without_retry() -> None:
    with Server(status(400, "This model's maximum context length is 4096 tokens")) as s:
        with pytest.raises(BadRequest, match="lower k"):
            model(s).complete(HELLO, schema=SCHEMA)
        assert len(s.requests) == 1


def test_a_400_for_every_response_format_shows_the_first_message() -> None:
    with (
        Server(answering(lambda b: status(400, "strange" if "response_format" in b else "stranger"))) as s,
        pytest.raises(BadRequest, match="strange\\."),
    ):
        model(s).complete(HELLO, schema=SCHEMA)


def test_at_most_concurrency_requests_are_sent_at_once() -> None:
    with Server(waits_for(3, ok("x"))) as s:
        llm = model(s, concurrency=3)
        with ThreadPoolExecutor(9) as pool:
            replies = list(
                pool.map(lambda i: llm.complete([{"role": "user", "content": str(i)}]).text, range(9))
            )
        assert replies == ["x"] * 9 and s.most_at_once == 3
    assert llm.usage.calls == 9 and llm.event_counts["sent"] == 9


def test_the_budget_is_checked_before_sending() -> None:
    with Server(ok("x", prompt=30, done=10)) as s:
        llm = model(s, token_budget=100)
        need = count_tokens(HELLO[0]["content"]) + 4
        llm.complete(HELLO, max_tokens=100 - need)
        with pytest.raises(BudgetExceeded, match="40 are spent"):
            llm.complete(HELLO, max_tokens=61 - need)
        assert len(s.requests) == 1
        llm.complete(HELLO, max_tokens=60 - need)  # exactly what is left


def test_running_calls_reserve_tokens_of_the_budget() -> None:
    with Server(hang) as s:
        llm = model(s, token_budget=100, timeout=5, max_retries=0)

        def failing_call() -> None:
            with pytest.raises(ServerError):
                llm.complete(HELLO, max_tokens=80)

        t = threading.Thread(target=failing_call)
        t.start()
        while not s.requests:
            t.join(0.005)
        with pytest.raises(BudgetExceeded):
            llm.complete(HELLO, max_tokens=80)
        s.released.set()
        t.join()


def test_cached_replies_need_no_server_key_or_budget() -> None:
    cache = ReplayCache()
    with Server(ok("Hangzhou", prompt=20, done=4)) as s:
        first = model(s, cache=cache).complete(HELLO, schema=SCHEMA, task="answer")
    cache.mode = "replay"
    llm = LLM("m", cache=cache, token_budget=0)
    again = llm.complete(HELLO, schema=SCHEMA, task="answer")
    assert again.cached and (again.text, again.usage.tokens, again.usage.calls, again.usage.cached_calls) == (
        first.text,
        24,
        1,
        1,
    )
    with pytest.raises(ReplayMiss, match=r"'answer'.*Where do I live"):
        llm.complete(HELLO, max_tokens=7, task="answer")


def test_what_is_and_is_not_part_of_the_key() -> None:
    cache = ReplayCache()
    with Server(ok("x")) as s:
        for kw in ({}, {"api_key": "other"}, {"seed": 5}):
            model(s, cache=cache, **kw).complete(HELLO)
        assert len(s.requests) == 1  # the cache key has neither the API key nor, at temperature 0, the seed
        for seed in (5, 6):
            model(s, cache=cache, seed=seed).complete(HELLO, temperature=0.5)
        model(s, cache=cache).complete(HELLO, schema=SCHEMA)
        model(s, cache=cache, name="m2").complete(HELLO)
        assert len(s.requests) == 5 and s.requests[1]["seed"] == 5 and "seed" not in s.requests[0]


def test_control_characters_and_lone_surrogates_are_sent() -> None:
    text = "a\x00b \ud800 😀 \u202eabc {x} $y %s " + "长" * 1000
    with Server(ok("x")) as s:
        assert model(s, cache=ReplayCache()).complete([{"role": "user", "content": text}]).text == "x"
        assert s.requests[0]["messages"][0]["content"] == text.replace("\ud800", "?")


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"model": ""}, "model"),
        ({"timeout": 0}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"concurrency": 0}, "concurrency"),
        ({"token_budget": -1}, "token_budget"),
    ],
)
def test_bad_parameters_are_named_in_the_error(kw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"LLM\.{message}"):
        LLM(**kw)


def test_the_environment_limits_the_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LLM().concurrency == 8
    monkeypatch.setenv("ADAPTMR_CONCURRENCY", "1")
    with Server(ok("x")) as s:
        llm = model(s)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: llm.complete([{"role": "user", "content": str(i)}]), range(8)))
        assert s.most_at_once == 1
    assert LLM(concurrency=3).concurrency == 3
    for wrong in ("two", "-1", ""):
        monkeypatch.setenv("ADAPTMR_CONCURRENCY", wrong)
        with pytest.raises(ValueError, match="ADAPTMR_CONCURRENCY"):
            LLM()


def test_offline_answers_no_prompts_and_costs_nothing() -> None:
    llm = LLM()
    assert llm.is_offline and llm.cost(10**9, 10**9) == 0.0
    with pytest.raises(LLMError, match="Task"):
        llm.complete(HELLO)


def in_body(text: bytes) -> Any:
    """A complete reply whose body has `text` in place of the number 777."""
    return raw(200, json.dumps(completion("good", extra=777)).encode().replace(b"777", text))


@pytest.mark.parametrize(
    "body",
    [in_body(b"[" * 10_000 + b"]" * 10_000), in_body(b'{"a":' * 10_000 + b"1" + b"}" * 10_000)],
    ids=["[", "{"],
)
def test_an_unreadable_reply_is_recorded_as_an_empty_one(body: Any) -> None:
    cache = ReplayCache()
    with Server(body) as s:
        llm = model(s, cache=cache)
        with pytest.raises(EmptyReply, match="nested too deep") as e:
            llm.complete(HELLO)
    assert e.value.usage.prompt_tokens > 0 and llm.event_counts == {
        "estimated usage": 1,
        "sent": 1,
        "unreadable reply": 1,
    }
    with pytest.raises(EmptyReply, match="nested too deep"):
        LLM("m", cache=cache).complete(HELLO)


def test_a_large_number_and_invalid_utf8_are_read() -> None:
    with Server(in_body(b"9" * 5000)) as s:
        assert model(s).complete(HELLO).text == "good"
    broken = json.dumps(completion("Hang-zhou")).encode().replace(b"-", b"\xff\xfe")
    with Server(raw(200, broken)) as s:
        assert model(s).complete(HELLO).text == "Hang\ufffd\ufffdzhou"


@pytest.mark.parametrize(
    "prompt, done",
    [(10**30, 5), (10, -(10**6)), (-1, 1), (1e30, 5), (True, 5), ("12", 5), (0, 5), (10, 10**9)],
)
def test_implausible_usage_is_estimated_and_counted(prompt: Any, done: int) -> None:
    cache = ReplayCache()
    with Server(
        raw(200, {**completion("in Hangzhou"), "usage": {"prompt_tokens": prompt, "completion_tokens": done}})
    ) as s:
        llm = model(s, cache=cache, token_budget=600)
        r = llm.complete(HELLO)
        assert (r.usage.prompt_tokens, r.usage.completion_tokens) == (
            count_tokens(HELLO[0]["content"]) + 4,
            count_tokens("in Hangzhou"),
        )
        assert llm.event_counts == {"implausible usage": 1, "sent": 1}
        with pytest.raises(BudgetExceeded):
            llm.complete([{"role": "user", "content": "x" * 400}], max_tokens=512)
    again = LLM("m", cache=cache)
    assert (
        again.complete(HELLO).usage.tokens == r.usage.tokens and again.event_counts["implausible usage"] == 1
    ), "also when it is replayed"
