"""No key and no password is in anything that is shown, raised or written.

What is kept of a failed redacted run contains no text of its data.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server import Server, answering, minimal_instance, ok, status

from adaptmr.eval.report.notebook_output import is_redacted, save_failed_notebook
from adaptmr.llm import LLM, LLMError, ModelNotFound
from adaptmr.llm.credentials import (
    SecretRedactor,
    clean_api_key,
    environment_secrets,
    parse_endpoint,
    url_secrets,
)
from adaptmr.llm.replay import ReplayCache

ROOT = Path(__file__).resolve().parent.parent
HELLO = [{"role": "user", "content": "Where do I live now?"}]
KEY, PASSWORD = "sk-canary+7Qx/9zLw", "pw-canary=4Rt&8y"


@pytest.fixture(autouse=True)
def _no_env(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = [p for name in ("http_proxy", "https_proxy", "all_proxy") for p in (name, name.upper())]
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *proxies):
        monkeypatch.delenv(name, raising=False)


def encodings(secret: str) -> list[str]:
    """Return a secret as it is, escaped for JSON and URLs, and its part in base64 at each offset.

    Written without the module's own code.
    """
    whole = [
        base64.b64encode(b"x" * offset + secret.encode() + b"x" * tail).decode()
        for offset in range(3)
        for tail in range(3)
    ]
    inner = {code[4 : 4 + (len(secret) // 3 - 1) * 4] for code in whole}
    return [
        secret,
        quote(secret, safe=""),
        quote(secret),
        json.dumps(secret)[1:-1],
        *inner,
        *(i.replace("+", "-").replace("/", "_") for i in inner),
    ]


def leaks(text: str, secret: str) -> list[str]:
    return [s for s in encodings(secret) if len(s) > 7 and s in text]


def error_text(error: BaseException) -> str:
    """Return everything that an error can show: itself, its traceback, its causes and contexts."""
    seen, one = [], error
    while one is not None:
        seen += [str(one), repr(one), *traceback.format_exception(one)]
        one = one.__cause__ or one.__context__
    return "\n".join(seen)


# -- at construction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["{} ", "{}\r", "{}\r\n", " {}\t", "\ufeff{}"])
def test_white_space_around_a_key_is_removed(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", around.format(KEY))
    with Server(ok("x")) as s:
        monkeypatch.setenv("OPENAI_BASE_URL", around.format(s.url))
        assert LLM("m").complete(HELLO).text == "x" and s.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "bad", [f"{KEY}\nX: y", f"{KEY} {KEY}", f"{KEY}\x00", f"é{KEY}", f"{KEY}\r\nHost: x"]
)
def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"LLM\.api_key holds U\+[0-9A-F]{4} as character \d+ of \d+") as e:
        LLM("m", api_key=bad)
    assert not leaks(error_text(e.value), KEY)
    if "\x00" in bad:
        return  # an environment variable can't hold that
    monkeypatch.setenv("OPENAI_API_KEY", bad)
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds"):
        LLM("m")
    assert LLM().is_offline, "the offline model needs no key"


@pytest.mark.parametrize(
    "bad",
    [
        "ftp://{}@host/v1",
        "http://a:{}@/v1",
        "http://a:{}@host:port/v1",
        "a:{}@host/v1",
        "http://a:{}@ho st/v1",
        "http://a:{}@[::1/v1",
        "http://a:{}@host/v1?x=1",
        "http://a:b@host/v1\n{}",
    ],
)
def test_an_invalid_address_is_refused_without_showing_it(bad: str) -> None:
    with pytest.raises(ValueError, match=r"LLM\.base_url must be an address") as e:
        LLM("m", base_url=bad.format(PASSWORD))
    assert not leaks(error_text(e.value), PASSWORD)


def test_credentials_in_an_address_are_used_and_not_shown() -> None:
    with Server(status(404, "none"), ok("x")) as s:
        llm = LLM("m", base_url=s.url.replace("://", f"://ann:{quote(PASSWORD, safe='')}@"), api_key=KEY)
        with pytest.raises(ModelNotFound, match=r"127\.0\.0\.1") as e:
            llm.complete(HELLO)
        assert llm.complete(HELLO).text == "x"
        assert (
            s.headers[1]["authorization"] == "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        )
    assert (
        not leaks(error_text(e.value) + repr(llm) + str(vars(llm)) + str(llm.base_url), PASSWORD)
        and repr(llm) == f"LLM('m', base_url={s.url!r})"
    )


# -- messages of a server ------------------------------------------------------------------------------------


def echo(h: Any, body: dict[str, Any], code: int = 401, before: str = "") -> None:
    sent = h.headers["Authorization"]
    secret = (
        base64.b64decode(sent.split()[1]).decode().split(":", 1)[1]
        if sent.startswith("Basic")
        else sent.removeprefix("Bearer ")
    )
    packed = base64.b64encode(secret.encode()).decode()
    h.reply(
        code,
        {
            "error": {
                "message": f"{before}{sent} {secret} {quote(secret, safe='')} {json.dumps(secret)} {packed}"
            }
        },
    )


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 429, 500])
@pytest.mark.parametrize("before", ["", "x" * 390, "x" * 398, " " * 300 + "x" * 385], ids=len)
def test_an_error_that_repeats_the_key_is_shown_without_it(code: int, before: str) -> None:
    with Server(lambda h, body: echo(h, body, code, before)) as s:
        for llm, secret in (
            (LLM("m", base_url=s.url, api_key=KEY, max_retries=0), KEY),
            (
                LLM("m", base_url=s.url.replace("://", f"://ann:{quote(PASSWORD, safe='')}@"), max_retries=0),
                PASSWORD,
            ),
        ):
            with pytest.raises(LLMError) as e:
                llm.complete(HELLO)
            said = error_text(e.value)
            assert not leaks(said, secret) and secret[:6] not in said and secret[-6:] not in said
            assert e.value.__cause__ is None and e.value.__context__ is None


def test_a_reply_that_repeats_the_key_is_recorded_without_it(tmp_path: Path) -> None:
    cache = ReplayCache(tmp_path / "calls.sqlite")
    said = (
        f"Your key is {KEY}, in base64 {base64.b64encode(KEY.encode()).decode()}, and you live in Hangzhou."
    )
    with Server(ok(said, finish=KEY), ok(None, refusal=f"No, {KEY}")) as s:
        llm = LLM("m", base_url=s.url, api_key=KEY, cache=cache)
        assert (
            llm.complete(HELLO).text.endswith("you live in Hangzhou.")
            and llm.event_counts["secret in a reply"] == 1
        )
        with pytest.raises(LLMError) as e:
            llm.complete([{"role": "user", "content": "again"}])
    cache.dump(tmp_path / "calls.jsonl.gz")
    cache.close()
    written = "\n".join(read_decoded(p) for p in tmp_path.iterdir())
    assert "Hangzhou" in written and not leaks(written + error_text(e.value), KEY)


def test_a_placeholder_key_is_not_redacted() -> None:
    with Server(ok("I run on ollama, and the list is EMPTY.")) as s:
        for key in ("ollama", "EMPTY", "x"):
            assert (
                LLM("m", base_url=s.url, api_key=key).complete(HELLO).text
                == "I run on ollama, and the list is EMPTY."
            )


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40),
    st.text(max_size=50),
    st.text(max_size=50),
)
def test_every_encoding_of_a_secret_is_redacted(secret: str, before: str, after: str) -> None:
    scrub = SecretRedactor(secret)
    packed = base64.b64encode((before + secret + after).encode("utf-8", "replace")).decode()
    text = f"{before}{secret}|{quote(secret, safe='')}|{json.dumps(secret)}|{packed}{after}"
    assert not [
        s
        for s in encodings(secret)
        if len(s) > 7 and s in scrub(text) and s not in scrub("") + before + after
    ]
    assert scrub.excerpt("y" * 95 + " " + secret, 100) == "y" * 95 + " [sec"


def test_secrets_of_the_environment() -> None:
    found = environment_secrets(
        {
            "OPENAI_API_KEY": KEY + "\r",
            "OPENAI_BASE_URL": f"https://ann:{quote(PASSWORD)}@h/v1",
            "HTTPS_PROXY": "http://token123@p:1",
            "RERANK_API_KEY": "rerank-key\r",
            "RERANK_BASE_URL": "https://bob:rerank-password@r/v1",
        }
    )
    assert {KEY, PASSWORD, f"ann:{PASSWORD}", "token123"} <= set(found)
    assert {"rerank-key", "rerank-password", "bob:rerank-password"} <= set(found)
    assert (
        url_secrets("https://host/v1") == []
        and clean_api_key(None, "x") is None
        and parse_endpoint(" ", "x") is None
    )


# -- a failed run --------------------------------------------------------------------------------------------


def write_executed_notebook(folder: Path, parameters: dict[str, Any], said: str) -> Path:
    error = {"output_type": "error", "ename": "ValueError", "evalue": said, "traceback": [said, "frames"]}
    cells = [
        {
            "cell_type": "code",
            "id": "a",
            "metadata": {"tags": ["parameters"]},
            "source": "dataset = 'demo'\nredact = None",
            "outputs": [],
            "execution_count": 1,
        },
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {},
            "source": "ask()",
            "execution_count": 2,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": said}, error],
        },
    ]
    path = folder / "executed.ipynb"
    path.write_text(
        json.dumps(
            {
                "cells": cells,
                "nbformat": 4,
                "nbformat_minor": 5,
                "metadata": {
                    "papermill": {"parameters": parameters},
                    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
                },
            }
        )
    )
    return path


@pytest.mark.parametrize(
    "parameters, kept",
    [
        ({}, True),
        ({"dataset": "locomo"}, False),
        ({"redact": True}, False),
        ({"dataset": "locomo", "redact": False}, True),
    ],
)
def test_a_failed_redacted_run_keeps_its_cells_and_no_message(
    parameters: dict[str, Any], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    said = save_failed_notebook(
        write_executed_notebook(tmp_path, parameters, f"Caroline went to the parade {KEY}"),
        tmp_path / "failed.ipynb",
        2,
        "ValueError",
        f"Caroline {KEY}",
    )
    notebook = (tmp_path / "failed.ipynb").read_text()
    assert (
        "ask()" in notebook
        and "ValueError" in notebook
        and said.startswith("cell [2] failed with ValueError")
    )
    assert ("Caroline" in notebook) == kept == ("Caroline" in said) and not leaks(notebook + said, KEY)
    assert is_redacted(parameters) == (not kept)


# -- whole runs ----------------------------------------------------------------------------------------------


def read_decoded(path: Path) -> str:
    """Return the text of a file, decompressed, and every value in it if it is a database or a table."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data += zlib.decompress(data, wbits=31)
    text = data.decode("utf-8", "replace")
    if data[:15] == b"SQLite format 3":
        with sqlite3.connect(path) as db:
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                text += "\n".join(map(str, db.execute(f'SELECT * FROM "{name}"').fetchall()))
    if path.suffix == ".parquet":
        import pandas as pd

        text += pd.read_parquet(path).to_csv()
    return text


def run_cli(url: str, out: Path, cache: Path, *more: str, data: Path | None = None) -> tuple[int, str]:
    address = url.replace("://", f"://ann:{quote(PASSWORD, safe='')}@")
    env = {
        **os.environ,
        "OPENAI_API_KEY": KEY + "\r",
        "OPENAI_BASE_URL": address,
        "ADAPTMR_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **({"ADAPTMR_DATA": str(data)} if data else {}),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "adaptmr",
            "run",
            "exp3",
            "-p",
            "model",
            "m",
            "-p",
            "systems",
            "[unified, hybrid]",
            "-p",
            "embedder",
            "hash",
            "-p",
            "limit",
            "2",
            *more,
            "--out-dir",
            str(out),
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def read_all_files(*folders: Path) -> dict[str, str]:
    return {
        p.relative_to(f.parent).as_posix(): read_decoded(p)
        for f in folders
        for p in sorted(f.rglob("*"))
        if p.is_file()
    }


def reply_with_secrets(body: dict[str, Any]) -> Any:
    value = (
        minimal_instance(body["response_format"]["json_schema"]["schema"])
        if "response_format" in body
        else {}
    )

    def behave(h: Any, body: dict[str, Any]) -> None:
        said = {"answer": f"It is {h.headers['Authorization']} {KEY} {PASSWORD}"} if "answer" in value else {}
        ok(json.dumps({**value, **said}))(h, body)

    return behave


@pytest.mark.slow
def test_a_whole_run_against_a_server_that_repeats_the_key_holds_no_secret(tmp_path: Path) -> None:
    with Server(answering(reply_with_secrets)) as s:
        code, said = run_cli(s.url, tmp_path / "out", tmp_path / "cache")
    assert code == 0, said
    written = {**read_all_files(tmp_path / "out", tmp_path / "cache"), "said": said}
    assert any(name.endswith("calls.jsonl.gz") for name in written) and any(
        name.endswith("calls.sqlite") for name in written
    )
    assert "[secret]" in next(text for name, text in written.items() if name.endswith("calls.jsonl.gz")), (
        "the server repeated the key"
    )
    assert {
        name: found for name, text in written.items() if (found := leaks(text, KEY) + leaks(text, PASSWORD))
    } == {}


MARK = "zebracanary walks along the quay"


def write_marked_locomo(folder: Path) -> None:
    """Write a file in LoCoMo's format whose turns and questions contain a marked text."""
    turns = [
        {"speaker": ("Ann", "Bob")[i % 2], "dia_id": f"D1:{i}", "text": f"{MARK} number {i}"}
        for i in range(1, 9)
    ]
    talk = {
        "speaker_a": "Ann",
        "speaker_b": "Bob",
        "session_1": turns,
        "session_1_date_time": "1:56 pm on 8 May, 2023",
    }
    asked = [
        {
            "question": f"Which {MARK} is it, {i}?",
            "answer": f"{MARK} {i}",
            "evidence": [f"D1:{i}"],
            "category": 4,
        }
        for i in (1, 2)
    ]
    folder.mkdir()
    (folder / "locomo10.json").write_text(
        json.dumps([{"sample_id": "conv-1", "conversation": talk, "qa": asked}])
    )


@pytest.mark.slow
def test_a_redacted_run_that_fails_holds_no_text_and_no_secret(tmp_path: Path) -> None:
    write_marked_locomo(tmp_path / "data")

    def repeat(h: Any, body: dict[str, Any]) -> None:
        echo(
            h,
            body,
            400,
            before="maximum context length; you said " + " ".join(m["content"] for m in body["messages"]),
        )

    with Server(repeat) as s:
        status_, said = run_cli(
            s.url, tmp_path / "out", tmp_path / "cache", "-p", "dataset", "locomo", data=tmp_path / "data"
        )
        assert any(MARK in m["content"] for body in s.requests for m in body["messages"]), (
            "the model was asked"
        )
    assert status_ == 1 and "BadRequest" in said and "redact" in said
    kept = {**read_all_files(tmp_path / "out"), "said": said}
    assert "out/failed.ipynb" in kept and "experiment.evaluate()" in kept["out/failed.ipynb"]
    for form in (*encodings(MARK), "zebracanary"):
        assert [name for name, text in kept.items() if form in text] == []
    every = {**kept, **read_all_files(tmp_path / "cache")}
    assert {
        name: found for name, text in every.items() if (found := leaks(text, KEY) + leaks(text, PASSWORD))
    } == {}
