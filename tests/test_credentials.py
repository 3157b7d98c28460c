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
from hypothesis import given, settings
from hypothesis import strategies as st
from server import Server, answering, minimal_instance, no_model_server, ok, status

from adaptmr.eval.report.notebook_output import is_redacted, save_failed_notebook
from adaptmr.llm import LLM, LLMError, ModelNotFound
from adaptmr.llm.credentials import SecretRedactor, environment_secrets, url_secrets
from adaptmr.llm.replay import ReplayCache

ROOT = Path(__file__).resolve().parent.parent
HELLO = [{"role": "user", "content": "Where do I live now?"}]
KEY, PASSWORD = "sk-canary+7Qx/9zLw", "pw-canary=4Rt&8y"


@pytest.fixture(autouse=True)
def _no_env(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model_server(monkeypatch)


def encodings(secret: str) -> list[str]:
    """Return a secret as it is, escaped for JSON and URLs, and its part in base64 at each offset."""
    packed = [b"x" * offset + secret.encode() + b"x" * tail for offset in range(3) for tail in range(3)]
    inner = {base64.b64encode(p).decode()[4 : 4 + (len(secret) // 3 - 1) * 4] for p in packed}
    safe = {i.replace("+", "-").replace("/", "_") for i in inner}
    return [secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], *inner, *safe]


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


def test_white_space_around_a_key_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for around in ("{}\r\n", " {}\t", "\ufeff{}"):
        monkeypatch.setenv("OPENAI_API_KEY", around.format(KEY))
        with Server(ok("x")) as s:
            monkeypatch.setenv("OPENAI_BASE_URL", around.format(s.url))
            assert LLM("m").complete(HELLO).text == "x" and s.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_key_that_no_header_can_hold_and_a_wrong_address_are_refused_without_showing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for bad in (f"{KEY}\nX: y", f"{KEY} {KEY}", f"{KEY}\x00", f"é{KEY}"):
        told = r"LLM\.api_key holds U\+[0-9A-F]{4} as character \d+ of \d+"
        with pytest.raises(ValueError, match=told) as e:
            LLM("m", api_key=bad)
        assert not leaks(error_text(e.value), KEY)
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY} {KEY}")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds"):
        LLM("m")
    assert LLM().is_offline, "the offline model needs no key"
    for bad in ("ftp://{}@host/v1", "a:{}@host/v1", "http://a:{}@ho st/v1", "http://a:{}@host/v1?x=1"):
        with pytest.raises(ValueError, match=r"LLM\.base_url must be an address") as e:
            LLM("m", base_url=bad.format(PASSWORD), api_key=KEY)
        assert not leaks(error_text(e.value), PASSWORD)


def test_credentials_in_an_address_are_used_and_not_shown() -> None:
    with Server(status(404, "none"), ok("x")) as s:
        llm = LLM("m", base_url=with_password(s.url), api_key=KEY)
        with pytest.raises(ModelNotFound, match=r"127\.0\.0\.1") as e:
            llm.complete(HELLO)
        assert llm.complete(HELLO).text == "x"
        packed = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        assert s.headers[1]["authorization"] == f"Basic {packed}"
        assert repr(llm) == f"LLM('m', base_url={s.url!r})"
    shown = error_text(e.value) + repr(llm) + str(vars(llm)) + str(llm.base_url)
    assert not leaks(shown, PASSWORD) and not leaks(shown, KEY)


# -- messages of a server ------------------------------------------------------------------------------------


def echo(h: Any, body: dict[str, Any], code: int = 401, before: str = "") -> None:
    sent = h.headers["Authorization"]
    secret = sent.removeprefix("Bearer ")
    if sent.startswith("Basic"):
        secret = base64.b64decode(sent.split()[1]).decode().split(":", 1)[1]
    packed = base64.b64encode(secret.encode()).decode()
    message = f"{before}{sent} {secret} {quote(secret, safe='')} {json.dumps(secret)} {packed}"
    h.reply(code, {"error": {"message": message}})


def with_password(url: str) -> str:
    return url.replace("://", f"://ann:{quote(PASSWORD, safe='')}@")


def test_an_error_that_repeats_the_key_is_shown_without_it() -> None:
    for code, before in ((400, ""), (401, "x" * 390), (404, "x" * 398), (500, " " * 300 + "x" * 385)):
        with Server(lambda h, body, code=code, before=before: echo(h, body, code, before)) as s:
            for secret, given in ((KEY, {"base_url": s.url}), (PASSWORD, {"base_url": with_password(s.url)})):
                llm = LLM("m", **given, api_key=KEY, max_retries=0)
                with pytest.raises(LLMError) as e:
                    llm.complete(HELLO)
                said = error_text(e.value)
                assert not leaks(said, secret) and secret[:6] not in said and secret[-6:] not in said
                assert e.value.__cause__ is None and e.value.__context__ is None


def test_a_reply_that_repeats_the_key_is_recorded_without_it(tmp_path: Path) -> None:
    cache = ReplayCache(tmp_path / "calls.sqlite")
    said = f"Your key is {KEY}, in base64 {base64.b64encode(KEY.encode()).decode()}. You live in Hangzhou."
    with Server(ok(said, finish=KEY), ok(None, refusal=f"No, {KEY}")) as s:
        llm = LLM("m", base_url=s.url, api_key=KEY, cache=cache)
        assert llm.complete(HELLO).text.endswith("You live in Hangzhou.")
        assert llm.event_counts["secret in a reply"] == 1
        with pytest.raises(LLMError) as e:
            llm.complete([{"role": "user", "content": "again"}])
    cache.dump(tmp_path / "calls.jsonl.gz")
    cache.close()
    written = "\n".join(read_decoded(p) for p in tmp_path.iterdir())
    assert "Hangzhou" in written and not leaks(written + error_text(e.value), KEY)


def test_a_placeholder_key_is_not_redacted() -> None:
    said = "I run on ollama, and the list is EMPTY."
    with Server(ok(said)) as s:
        for key in ("ollama", "x"):
            assert LLM("m", base_url=s.url, api_key=key).complete(HELLO).text == said


PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40)


@settings(max_examples=30)
@given(PRINTABLE, st.text(max_size=50), st.text(max_size=50))
def test_every_encoding_of_a_secret_is_redacted(secret: str, before: str, after: str) -> None:
    scrub = SecretRedactor(secret)
    packed = base64.b64encode((before + secret + after).encode("utf-8", "replace")).decode()
    text = f"{before}{secret}|{quote(secret, safe='')}|{json.dumps(secret)}|{packed}{after}"
    assert not [s for s in encodings(secret) if len(s) > 7 and s in scrub(text) and s not in before + after]
    assert scrub.excerpt("y" * 95 + " " + secret, 100) == "y" * 95 + " [sec"


def test_secrets_of_the_environment() -> None:
    environ = {"OPENAI_API_KEY": KEY + "\r", "OPENAI_BASE_URL": f"https://ann:{quote(PASSWORD)}@h/v1"}
    environ |= {"RERANK_API_KEY": "rerank-key\r", "HTTPS_PROXY": "http://token123@p:1"}
    found = environment_secrets(environ)
    assert {KEY, PASSWORD, f"ann:{PASSWORD}", "token123", "rerank-key"} <= set(found)
    assert url_secrets("https://host/v1") == []


# -- a failed run --------------------------------------------------------------------------------------------


def write_executed_notebook(folder: Path, parameters: dict[str, Any], said: str) -> Path:
    error = {"output_type": "error", "ename": "ValueError", "evalue": said, "traceback": [said, "frames"]}
    told = {"output_type": "stream", "name": "stdout", "text": said}
    tagged = {"metadata": {"tags": ["parameters"]}, "outputs": []}
    defaults = {"source": "dataset = 'demo'\nredact = None", **tagged}
    asked = {"source": "ask()", "metadata": {}, "outputs": [told, error]}
    cells = [
        {"cell_type": "code", "id": f"c{n}", "execution_count": n, **cell}
        for n, cell in enumerate((defaults, asked), 1)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"papermill": {"parameters": parameters}, "kernelspec": kernel}
    path = folder / "executed.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": metadata}))
    return path


def test_a_failed_redacted_run_keeps_its_cells_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for parameters, kept in (
        ({}, True),
        ({"dataset": "locomo"}, False),
        ({"redact": True}, False),
        ({"dataset": "locomo", "redact": False}, True),
    ):
        executed = write_executed_notebook(tmp_path, parameters, f"Caroline went to the parade {KEY}")
        why = "ValueError", f"Caroline {KEY}"
        said = save_failed_notebook(executed, tmp_path / "failed.ipynb", 2, *why)
        notebook = (tmp_path / "failed.ipynb").read_text()
        assert "ask()" in notebook and "ValueError" in notebook
        assert said.startswith("cell [2] failed with ValueError") and not leaks(notebook + said, KEY)
        assert ("Caroline" in notebook) == kept == ("Caroline" in said) == (not is_redacted(parameters))


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


def run_cli(url: str, out: Path, cache: Path) -> tuple[int, str]:
    env = {
        **os.environ,
        **{"OPENAI_API_KEY": KEY + "\r", "OPENAI_BASE_URL": with_password(url), "ADAPTMR_CACHE": str(cache)},
        **{"OMP_NUM_THREADS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
    }
    given = {"model": "m", "systems": "[unified, hybrid]", "embedder": "hash", "limit": "2"}
    words = [word for name, value in given.items() for word in ("-p", name, value)]
    command = [sys.executable, "-m", "adaptmr", "run", "exp3", *words, "--out-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def reply_with_secrets(body: dict[str, Any]) -> Any:
    schema = body["response_format"]["json_schema"]["schema"] if "response_format" in body else {}
    value = minimal_instance(schema) if schema else {}

    def behave(h: Any, body: dict[str, Any]) -> None:
        said = {"answer": f"It is {h.headers['Authorization']} {KEY} {PASSWORD}"} if "answer" in value else {}
        ok(json.dumps({**value, **said}))(h, body)

    return behave


@pytest.mark.slow
def test_a_whole_run_against_a_server_that_repeats_the_key_holds_no_secret(tmp_path: Path) -> None:
    with Server(answering(reply_with_secrets)) as s:
        code, said = run_cli(s.url, tmp_path / "out", tmp_path / "cache")
    assert code == 0, said
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    written = {**{p.name: read_decoded(p) for p in files}, "said": said}
    assert "[secret]" in written["calls.jsonl.gz"], "the server repeated the key"
    assert any(name.endswith("calls.sqlite") for name in written)
    assert [n for n, text in written.items() if leaks(text, KEY) + leaks(text, PASSWORD)] == []
