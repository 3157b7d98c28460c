"""The bench measures what it says, in turns with plain encoding; no test depends on a time."""

import json

import numpy as np
import pytest

from adaptmr import bench
from adaptmr.cli.command import main
from adaptmr.data.registry import load
from adaptmr.embed import embedder
from adaptmr.store.memory_store import MemoryStore


def test_every_question_is_new_and_encoded_plainly_beside_it():
    turns, questions = bench.english_part(load("demo"), 40)
    plain = []

    def encode(texts):
        plain.append(tuple(texts))
        return embedder("hash").encode(texts)

    times = bench.measure_waiting(turns, questions[:6], encode, name="hash", rounds=2)
    assert [len(values) for values in times.values()] == [2, 2, 6, 2, 4]
    texts = tuple(m.text_with_speaker for m in turns)
    asked = [(q,) for q in questions[:6]]
    assert plain == [("a",), texts, *asked[::2], texts, *asked[1::2]]


def test_goals_are_compared_with_the_medians():
    times = {"texts": [100.0], "add": [150.0], "plain": [10.0, 30.0, 20.0], "first": [90.0], "later": [30.0]}
    names = ("encode plainly: the texts", "add the turns", "encode plainly: a question")
    named = dict(zip((*names, "first question", "later question"), map(np.array, times.values())))
    goals = bench.waiting_goals(named)
    assert [(g.value, g.reached) for g in goals] == [(1.5, "yes"), (3.0, "no"), (1.5, "yes")]
    assert bench.goals_answer(goals)[1] == "2 of 3."
    assert list(bench.goals_table(goals)["goal"]) == ["≤ 2 ×", "≤ 2 ×", "≤ 1.8 ×"]


def test_synthetic_memories_have_the_shape_of_real_ones():
    memories = bench.synthetic_memories(0, 400)
    lengths = [len(m.text.split()) for m in memories]
    assert 18 < np.median(lengths) < 28 and len({m.id for m in memories}) == 400
    assert memories[100:] == bench.synthetic_memories(100, 400) != bench.synthetic_memories(100, 400, seed=1)
    model = bench.SyntheticEmbedder()
    with MemoryStore(embedder=model) as store:
        store.add(memories)
        assert store.search(memories[7].text_with_speaker, 1)[0].memory.id == memories[7].id
    rows = model.encode([m.text for m in memories])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)
    assert np.array_equal(rows, rows.astype(np.float16).astype(np.float32)) and model.seconds > 0


@pytest.mark.slow
def test_the_bench_runs_and_is_shown(tmp_path, capsys):
    small = ["-p", "sizes", "[50, 100]", "-p", "out_dir", str(tmp_path)]
    assert main(["run", "bench", "-p", "turns", "40", "-p", "questions", "6", *small]) == 0
    (run,) = (tmp_path / "bench").iterdir()
    numbers = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["numbers"]
    assert numbers["dense search over one matrix product"] > 0 and (run / "report.html").exists()
