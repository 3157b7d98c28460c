"""Encoders behind an OpenAI-compatible server, on loopback: order, faults, limits, cost, cache and replay."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from server import Behaviour, Server, answering, raw, status

from adaptmr.embed import VectorCache, VectorMiss, embedder
from adaptmr.embed.encoders import EndpointModel, VectorError
from adaptmr.llm import AuthError
from adaptmr.store.memory_store import MemoryStore

NAME = "openai:toy-embed"


def vector(text: str, dim: int = 8) -> list[float]:
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return np.float32(rng.normal(size=dim)).astype(float).tolist()


def vectors(dim: int = 8, shuffled: bool = False) -> Behaviour:
    def decide(body: dict[str, Any]) -> Behaviour:
        size = body.get("dimensions", dim)
        entries: list[dict[str, Any]] = [
            {"index": i, "embedding": vector(t, size)} for i, t in enumerate(body["input"])
        ]
        count = sum(map(len, body["input"]))
        data = entries[::-1] if shuffled else entries
        return raw(200, {"data": data, "usage": {"prompt_tokens": count}})

    return answering(decide)


def make(server: Server, name: str = NAME, **options: Any) -> Any:
    cache = VectorCache(":memory:")
    return embedder(name, base_url=server.url, api_key="sk-very-secret", cache=cache, **options)


def unit(text: str, dim: int = 8) -> np.ndarray:
    v = np.array(vector(text, dim))
    return v / np.sqrt(v @ v)


def test_the_vectors_of_shuffled_replies_belong_to_their_texts() -> None:
    texts = ["Hangzhou", "a longer text about cats", "我在北京", "x"]
    with Server(vectors(shuffled=True)) as server:
        got = make(server).encode(texts)
    assert np.allclose(got, [unit(t) for t in texts], atol=1e-3)
    assert server.paths == ["/v1/embeddings"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ([{"index": 0, "embedding": [1.0]}], "1 vectors for 2 texts"),
        ([{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}], "not one for each"),
        ([{"index": 0, "embedding": [float("nan")]}, {"index": 1, "embedding": [1.0]}], "finite numbers"),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}], "several lengths"),
        ([{"index": 0, "embedding": "??"}, {"index": 1, "embedding": [1.0]}], "finite numbers"),
    ],
)
def test_a_wrong_reply_is_an_error_that_names_the_fault(data: list[Any], what: str) -> None:
    with Server(raw(200, {"data": data})) as server, pytest.raises(VectorError, match=what):
        make(server).encode(["a", "b"])
    assert len(server.requests) == 1


def test_failed_attempts_are_repeated_and_permanent_ones_are_not() -> None:
    waits: list[float] = []
    with Server(status(500), status(429, headers={"Retry-After": "3"}), vectors()) as server:
        model = EndpointModel(NAME, server.url, "k", sleep=waits.append)
        assert model(["a"]).shape == (1, 8)
    assert waits[1] == 3 and len(server.requests) == 3
    with Server(status(401, "bad key sk-very-secret")) as server, pytest.raises(AuthError) as e:
        make(server).encode(["a"])
    assert "sk-very-secret" not in str(e.value) and len(server.requests) == 1


def test_a_long_text_is_cut_and_an_empty_one_is_sent_as_a_space() -> None:
    with Server(vectors()) as server:
        make(server).encode(["长" * 19_000, ""])
    assert sorted(len(t) for t in server.requests[0]["input"]) == [1, 5000]


def test_vectors_of_two_servers_are_kept_apart_and_replayed_by_the_servers_id(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = VectorCache(tmp_path / "v.sqlite")
    with Server(vectors(4)) as one, Server(vectors(6)) as two:
        a, b = (embedder(NAME, base_url=s.url, api_key="k", cache=cache) for s in (one, two))
        kept = a.encode(["a"])
        assert b.encode(["a"]).shape == (1, 6)
        cache.export_npz(tmp_path / "vectors.npz")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    recorded = VectorCache(":memory:")
    recorded.import_npz(tmp_path / "vectors.npz")
    again = embedder(NAME, revision=a.precision, cache=recorded)
    assert np.array_equal(again.encode(["a"]), kept)
    with pytest.raises(VectorMiss):
        again.encode(["new"])


def test_no_secret_is_in_a_name_a_cache_or_a_store(tmp_path: Any) -> None:
    with Server(vectors()) as server:
        url = server.url.replace("://", "://ann:pass-word@")
        cache = VectorCache(tmp_path / "v.sqlite")
        encoder = embedder(NAME, base_url=url, api_key="sk-very-secret", cache=cache)
        with MemoryStore(tmp_path / "m.db", embedder=encoder) as store:
            store.add(["I moved to Hangzhou."])
            assert store.search("Where do I live?", mode="dense")
        shown = f"{encoder!r} {encoder.name} {encoder.precision} {cache.made_with()}"
        cache.export_npz(tmp_path / "vectors.npz")
        cache.close()
    assert server.headers[0]["authorization"].startswith("Basic ")
    kept = b"".join(p.read_bytes() for p in tmp_path.iterdir()) + shown.encode()
    for secret in (b"sk-very-secret", b"pass-word", b"127.0.0.1"):
        assert secret not in kept


@pytest.mark.parametrize("name", ["openai:", "openai:m@0", "openai:m@x", "openai: @5"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="openai:MODEL@DIMENSIONS"):
        embedder(name)
