"""`adaptmr.llm.replay`: keys, modes, damaged files, threads and processes on one cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.llm.replay import ReplayCache, ReplayError, ReplayMiss, dump_canonical, request_key


def ask(text: str = "hi", **kw: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **kw}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(st.characters()), s, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_the_key_ignores_the_order_of_keys_and_canonical_json_is_lossless(request: dict[str, Any]) -> None:
    assert request_key(dict(reversed(request.items()))) == request_key(request)
    assert json.loads(dump_canonical(request)) == request and dump_canonical(request).isascii()


def test_the_key_is_the_sha256_of_the_canonical_json() -> None:
    text = b'{"a":null,"b":[1,"\\u00e9"]}'
    assert request_key({"b": [1, "é"], "a": None}) == hashlib.sha256(text).hexdigest()
    assert request_key({"t": "e\u0301"}) != request_key({"t": "\u00e9"}), "not normalised: two prompts"
    with pytest.raises(ValueError, match="JSON"):
        request_key({"t": float("nan")})


def test_any_text_is_stored_and_read_back(tmp_path: Path) -> None:
    texts = ["", "x" * 10**6, "a\x00b", "\ud800", "😀", "\u202eשלום", "'; DROP TABLE calls; --"]
    cache = ReplayCache(tmp_path / "c.db")
    for text in texts:
        cache.put(ask(text), {"text": text})
    cache.dump(tmp_path / "calls.jsonl.gz")
    for held in (cache, ReplayCache.from_file(tmp_path / "calls.jsonl.gz")):
        assert [held.get(ask(text)) for text in texts] == [{"text": text} for text in texts]


def test_modes(tmp_path: Path) -> None:
    auto = ReplayCache(tmp_path / "deep" / "er" / "c.db")
    assert auto.get(ask()) is None and auto.put(ask(), {"text": "1"}) == {"text": "1"} and ask() in auto
    replay = ReplayCache(auto.path, "replay")
    assert replay.get(ask()) == {"text": "1"}
    with pytest.raises(ReplayMiss, match=r"'plan'.*Where do I live") as e:
        replay.get(ask("Where   do\nI live?"), task="plan")
    assert e.value.key == request_key(ask("Where   do\nI live?"))
    off = ReplayCache(tmp_path / "off.db", "off")
    assert off.put(ask(), {"text": "2"}) == {"text": "2"} and off.get(ask()) is None
    assert len(off) == 0 and ask() not in off
    assert not (tmp_path / "off.db").exists()
    with pytest.raises(ValueError, match="'online' must be one of"):
        ReplayCache(mode="online")
    with pytest.raises(ReplayError, match="off"):
        off.load(tmp_path / "x")


def test_the_first_reply_stays_and_a_closed_cache_opens_again(tmp_path: Path) -> None:
    with ReplayCache(tmp_path / "c.db") as cache:
        cache.put(ask(), {"text": "first"})
    assert cache.put(ask(), {"text": "second"}) == {"text": "first"}
    assert ReplayCache(tmp_path / "c.db").get(ask()) == {"text": "first"}


def test_a_run_dumps_its_own_calls_only(tmp_path: Path) -> None:
    ReplayCache(tmp_path / "c.db").put(ask("another run"), {"text": "0"})
    cache = ReplayCache(tmp_path / "c.db")
    cache.put(ask("b"), {"text": "b"})
    cache.get(ask("b"))
    cache.get(ask("a"))
    assert cache.used == {request_key(ask("b"))} and len(cache) == 2
    assert cache.dump(tmp_path / "calls.jsonl.gz", cache.used) == 1
    with pytest.raises(KeyError, match="1 of 1 keys"):
        cache.dump(tmp_path / "calls.jsonl.gz", ["0" * 64])
    assert len(ReplayCache.from_file(tmp_path / "calls.jsonl.gz")) == 1, "the failed dump changed nothing"
    assert [p.name for p in tmp_path.glob("*.part")] == []


def test_a_dump_has_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    requests = [ask(c, temperature=0.5) for c in "abcdé"]
    found = set()
    for order in (requests, requests[::-1], [*requests[2:], *requests[:2]]):
        cache = ReplayCache()
        for r in order:
            cache.put(r, {"text": r["messages"][0]["content"]}, task="t")
        cache.dump(tmp_path / "x.gz")
        ReplayCache.from_file(tmp_path / "x.gz").dump(tmp_path / "y.gz")
        found |= {(tmp_path / name).read_bytes() for name in ("x.gz", "y.gz")}
    (data,) = found
    lines = [json.loads(line) for line in gzip.decompress(data).splitlines()]
    assert [line["key"] for line in lines] == sorted(map(request_key, requests))
    assert data[4:8] == bytes(4) and data[3] == 0, "no time, no name"


def test_a_loaded_call_replaces_a_stored_one(tmp_path: Path) -> None:
    run = ReplayCache()
    run.put(ask(), {"text": "the run's"})
    run.dump(tmp_path / "calls.jsonl.gz")
    mine = ReplayCache()
    mine.put(ask(), {"text": "mine"})
    assert mine.load(tmp_path / "calls.jsonl.gz") == 1 and mine.get(ask()) == {"text": "the run's"}


def test_a_damaged_file_of_calls_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    good = {"key": request_key(ask()), "task": "t", "request": ask(), "reply": {"text": "x"}}
    path, cache = tmp_path / "calls.jsonl.gz", ReplayCache()
    lines = ([good, {**good, "request": ask("other")}], [{"request": ask()}], [[1]])
    packed = [gzip.compress("\n".join(map(json.dumps, line)).encode()) for line in lines]
    others = [gzip.compress(data) for data in (b"{half", b"\n", b"\xff\xfe")]
    for data in (*packed, *others, gzip.compress(json.dumps(good).encode())[:-9], b"not gzip"):
        path.write_bytes(data)
        with pytest.raises(ReplayError, match=r"calls\.jsonl\.gz.*Fetch it again"):
            cache.load(path)
    assert len(cache) == 0
    with pytest.raises(FileNotFoundError):
        ReplayCache.from_file("nowhere/calls.jsonl.gz")


def test_a_damaged_cache_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(ReplayError, match=r"c\.db.*move it away"):
        ReplayCache(path)
    path.unlink()
    cache = ReplayCache(path)
    for i in range(200):
        cache.put(ask(str(i)), {"text": "x" * 500})
    cache.close()
    for extra in ("-wal", "-shm"):
        Path(f"{path}{extra}").unlink(missing_ok=True)
    data = bytearray(path.read_bytes())
    data[4096:-4096] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(ReplayError, match=r"c\.db"):
        damaged = ReplayCache(path)
        for i in range(200):
            damaged.get(ask(str(i)))


@pytest.mark.slow
def test_two_processes_write_one_cache(tmp_path: Path) -> None:
    code = (
        "import sys; from adaptmr.llm.replay import ReplayCache\n"
        "c = ReplayCache(sys.argv[1]); me = sys.argv[2]\n"
        "for i in range(100):\n"
        "    r = {'model': 'm', 'messages': [{'role': 'user', 'content': str(i)}]}\n"
        "    assert c.put(r, {'text': me})['text'] == c.get(r)['text']\n"
        "    c.put({**r, 'model': me}, {'text': me})\n"
    )
    path = tmp_path / "c.db"
    command, here = [sys.executable, "-c", code, str(path)], Path(__file__).parents[1]
    processes = [subprocess.Popen([*command, me], cwd=here, stderr=subprocess.PIPE) for me in "ab"]
    for p in processes:
        _, err = p.communicate(timeout=60)
        assert p.returncode == 0, err.decode()
    cache = ReplayCache(path)
    assert len(cache) == 300 and {r["reply"]["text"] for r in cache.records()} <= {"a", "b"}
    assert all(cache.get(ask(str(i), model=me)) == {"text": me} for i in range(100) for me in "ab")
