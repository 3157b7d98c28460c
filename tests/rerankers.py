"""Rerankers for tests: by shared words, and a tiny cross-encoder with random weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] who keeps bees my sister i live in leeds good morning : ?".split()


class SharedWords:
    """Scores a text by the words that it shares with the query; `read` lists the queries and texts."""

    name = "shared words"

    def __init__(self) -> None:
        self.read: list[tuple[str, str]] = []

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        self.read += [(query, text) for text in texts]
        asked = set(re.findall(r"\w+", query.lower()))
        return [float(len(asked & set(re.findall(r"\w+", text.lower())))) for text in texts]


def make_tiny_cross_encoder(folder: Path, seed: int = 0, labels: int = 1) -> str:
    """Save a cross-encoder of two small layers with random weights: it tests mechanics, and knows nothing."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    return str(folder)
