"""A small BERT of random weights, saved for sentence-transformers: prompts, length, normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptmr.embed import embedder

pytestmark = pytest.mark.numbers

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] query passage ask : where do i live now hangzhou cat tea".split()


def save_model(folder: Path, prompts: dict[str, str] | None = None, max_length: int = 16) -> str:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    bert = folder / "bert"
    bert.mkdir(parents=True)
    (bert / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    BertTokenizerFast(str(bert / "vocab.txt")).save_pretrained(bert)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(bert)
    word = Transformer(str(bert), max_seq_length=max_length)
    pooling = Pooling(word.get_embedding_dimension())
    SentenceTransformer(modules=[word, pooling], prompts=prompts).save(str(folder / "model"))
    return str(folder / "model")


def reference(folder: str, texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(folder)
    return model.encode(texts, prompt="", normalize_embeddings=True)


def test_the_prompts_of_the_model_are_put_before_questions_and_documents(tmp_path: Path) -> None:
    folder = save_model(tmp_path, {"query": "ask : ", "document": "passage : "})
    encoder = embedder(folder, cache=False)
    for kind, prompt in (("query", "ask : "), ("passage", "passage : ")):
        got = encoder.encode(["where do i live"], kind)
        assert np.allclose(got, reference(folder, [f"{prompt}where do i live"]), atol=1e-3)


def test_without_prompts_both_kinds_have_the_same_unit_vector(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    encoder = embedder(folder, cache=False)
    query, passage = encoder.encode(["hangzhou cat"], "query"), encoder.encode(["hangzhou cat"])
    assert np.array_equal(query, passage)
    assert np.allclose(passage, reference(folder, ["hangzhou cat"]), atol=1e-3)
    assert np.linalg.norm(passage) == pytest.approx(1, abs=1e-2)


def test_an_e5_without_prompts_in_its_configuration_has_those_of_e5(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "e5-tiny")
    renamed = Path(folder).rename(tmp_path / "e5-tiny" / "e5-small")
    got = embedder(str(renamed), cache=False).encode(["tea"], "query")
    assert np.allclose(got, reference(str(renamed), ["query: tea"]), atol=1e-3)


def test_what_comes_after_the_longest_length_of_the_model_changes_nothing(tmp_path: Path) -> None:
    encoder = embedder(save_model(tmp_path, max_length=6), cache=False)
    a, b, c = encoder.encode(["where do i live now", "where do i live tea cat", "where do cat live"])
    assert np.array_equal(a, b) and not np.allclose(a, c, atol=1e-3)
