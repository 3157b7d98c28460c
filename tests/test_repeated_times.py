"""Repeated times: the same questions in random order, encoding before the clock, medians over repetitions."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import adaptmr as am
from adaptmr.embed.encoders import HashEmbedder
from adaptmr.eval.runner.timings import time_systems, timed_questions, with_repeated_times
from adaptmr.types import Dataset, QueryType, Question

SYSTEMS = ["unified_bare", "unified", "lexical"]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return am.load("demo", split="en1", limit=10)


@pytest.fixture(scope="module")
def frame(data) -> pd.DataFrame:
    return am.evaluate(SYSTEMS, data, embedder="hash", progress=False)


def test_the_first_questions_of_each_type_are_timed():
    kinds = ["multi_hop", "multi_hop", "abstention", "multi_hop", "multi_hop", "abstention"]
    questions = [Question(f"q{i}", "?", type=QueryType(kind)) for i, kind in enumerate(kinds)]
    assert [q.id for q in timed_questions(questions, 1)] == ["q0", "q2"]
    assert [q.id for q in timed_questions(questions, 2)] == ["q0", "q1", "q2", "q5"]
    assert timed_questions(questions[:1], 5) == questions[:1]


def test_every_pair_is_timed_as_often_and_in_another_order_each_time(data, frame):
    times = time_systems(frame, data, embedder="hash", repeats=4, per_type=2)
    n = len(timed_questions(data.questions, 2))
    assert len(times) == 4 * 3 * n and times.groupby(["system", "question"]).size().eq(4).all()
    orders = {tuple(part.sort_values("place")["system"]) for _, part in times.groupby("repeat")}
    assert len(orders) == 4
    blocks = [tuple(name for name in SYSTEMS for _ in range(n)), tuple(SYSTEMS) * n]
    assert not orders & set(blocks), "neither one system after another nor always the same turn"
    again = time_systems(frame, data, embedder="hash", repeats=4, per_type=2)
    assert times[["system", "question", "place"]].equals(again[["system", "question", "place"]])
    assert (times["ms_retrieve"] > 0).all()
    for wrong in ({"repeats": 0}, {"per_type": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            time_systems(frame, data, embedder="hash", **wrong)


def test_nothing_is_encoded_for_the_first_time_while_the_clock_runs(data, frame, monkeypatch):
    seen, late, clock = set(), [], []
    encode = HashEmbedder.encode

    def spy(self, texts, kind="passage"):
        texts = list(texts)
        late.extend(t for t in texts if clock and t not in seen)
        seen.update(texts)
        return encode(self, texts, kind=kind)

    from adaptmr.eval.runner import timings

    shuffle = timings.Random.shuffle

    def started(self, pairs):
        clock.append(True)
        shuffle(self, pairs)

    monkeypatch.setattr(HashEmbedder, "encode", spy)
    monkeypatch.setattr(timings.Random, "shuffle", started)
    time_systems(frame, data, embedder="hash", repeats=2, per_type=2)
    assert clock and seen and late == []


def test_a_question_has_the_median_of_its_times():
    about = {"conversation": "c", "question": "q1"}
    frame = pd.DataFrame([{"system": s, "f1": 1.0, "ms_retrieve": 99.0, **about} for s in "ab"])
    frame = pd.concat([frame, frame.assign(question="q2")], ignore_index=True)
    times = pd.DataFrame(
        [
            {"system": s, **about, "ms_retrieve": base + ms, "ms_answer": ms, "ms_recorded": 0.0}
            for s, base in (("a", 0.0), ("b", 10.0))
            for ms in (1.0, 500.0, 2.0)
        ]
    )
    found = with_repeated_times(frame, times).set_index(["system", "question"])
    assert found.loc[("a", "q1"), "ms_retrieve"] == 2 and found.loc[("b", "q1"), "ms_retrieve"] == 12
    assert math.isnan(found.loc[("a", "q2"), "ms_retrieve"]) and (found["f1"] == 1).all()
    assert found["repeats"].to_dict() == {("a", "q1"): 3, ("b", "q1"): 3, ("a", "q2"): 0, ("b", "q2"): 0}
