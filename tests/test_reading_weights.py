"""The fit of the weights by which a player reads: its loss, its choice, and the weights that ship."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from adaptmr.agents.reading import WEIGHTS, candidate_features, read
from adaptmr.data.hotpotqa import HOTPOTQA, hotpot_dataset
from adaptmr.data.registry import find_file, load
from adaptmr.memory.team.steps import Step
from adaptmr.training.reading_weights import (
    FEATURES,
    LINKED,
    UNLINKED,
    ReadingSample,
    choice_f1,
    fit_reading,
    gather_reading,
)

pytestmark = pytest.mark.numbers

SAMPLE = "hotpotqa_distractor_200.json"
TOWER = ["Old Salt Tower", ["The Old Salt Tower is a lighthouse.", "It was designed by Ida Moser."]]
IDA = ["Ida Moser", ["Ida Moser, born in Lindau, was an architect.", "She lived in Bregenz."]]
OTHERS = [[f"Hill {n}", [f"Hill {n} is a hill near Town {n}."]] for n in "ABCD"]
RAW = {
    "_id": "q1",
    "question": "In which town was the architect of the Old Salt Tower born?",
    "answer": "Lindau",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Old Salt Tower", 1], ["Ida Moser", 0]],
    "context": [OTHERS[0], IDA, TOWER, *OTHERS[1:]],
}


def sample(y: list[float], **features: list[float]) -> ReadingSample:
    x = np.zeros((len(y), len(FEATURES)))
    for name, values in features.items():
        x[:, FEATURES.index(name)] = values
    return ReadingSample("q", x, x, np.array(y))


def test_one_weight_by_hand() -> None:
    # with one feature that the right one of two candidates has: minimise n log(1 + e^-w) + w²/2
    w = fit_reading([sample([1, 0], fact=[1, 0])] * 4)["fact"]
    assert w == pytest.approx(4 / (1 + math.exp(w)), abs=2e-3)


def test_half_an_answer_counts_for_less_than_half() -> None:
    # p₁ + p₂/4 is to be great: the first of two candidates gains four times what the second does
    both = fit_reading([sample([1, 0.5], fact=[1, 0], topic=[0, 1])] * 9)
    assert both["fact"] == pytest.approx(-both["topic"], abs=2e-3) and both["fact"] > 0


def test_the_bias_makes_the_probabilities_right_on_the_whole() -> None:
    samples = [sample([1, 0, 0, 0], fact=[1, 0, 0, 0]), sample([0, 0, 0, 0], fact=[1, 0, 0, 0])]
    fitted = fit_reading(samples)
    scores = np.concatenate([s.x @ [round(fitted[n], 1) for n in FEATURES] for s in samples])
    assert np.sum(1 / (1 + np.exp(-scores - fitted["bias"]))) == pytest.approx(1.0, abs=5e-3)


def test_nothing_to_fit_to_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_reading([sample([0, 0], fact=[1, 0])])


def test_the_first_of_the_best_candidates_is_chosen() -> None:
    samples = [sample([0.2, 0.7, 0.9], fact=[0, 1, 1]), sample([])]
    assert choice_f1(samples, {"fact": 1.0}) == [0.7, 0.0]


def test_a_sample_has_the_evidence_and_two_more_passages() -> None:
    data = hotpot_dataset([RAW])
    (made,) = gather_reading(data, data.questions)
    best = made.y == 1
    assert made.x.shape == made.played.shape == (len(made.y), len(FEATURES)) and best.any()
    linked, unlinked = (made.x[:, FEATURES.index(n)].astype(bool) for n in (LINKED, UNLINKED))
    assert linked[best].all() and unlinked.any() and not (linked & unlinked).any()
    assert not made.played[:, -2:].any()
    different = made.x[:, :-2] != made.played[:, :-2]
    assert set(np.flatnonzero(different.any(0))) <= {FEATURES.index("extracted")}


def test_comparisons_and_yes_or_no_questions_have_no_sample() -> None:
    data = hotpot_dataset([{**RAW, "type": "comparison"}, {**RAW, "_id": "q2", "question": "Is it a hill?"}])
    assert gather_reading(data, data.questions) == []


def test_a_reading_weighs_the_features_of_every_candidate() -> None:
    step = Step("Search", "Ida Moser", "Ida Moser: Ida Moser, born in Lindau, was an architect in Bregenz.")
    question = "In which town was Ida Moser born?"
    best = max(
        (1 / (1 + math.exp(-sum(WEIGHTS[n] * v for n, v in features.items()))), text)
        for text, features in candidate_features(question, step)
    )
    assert read(question, step).best == (best[1], pytest.approx(best[0], abs=1e-6))


@pytest.mark.skipif(
    not os.environ.get("ADAPTMR_DATA") or (find_file(HOTPOTQA) or [None])[0] is None,
    reason="ADAPTMR_DATA names no folder with HotpotQA",
)
def test_the_fit_gives_the_weights_that_ship() -> None:
    path, _ = find_file(HOTPOTQA) or pytest.fail("the file has gone")
    if path.name != SAMPLE:
        pytest.skip(f"the weights were fitted to every second question of {SAMPLE}; this is {path.name}")
    data = load("hotpotqa")
    fitted = fit_reading(gather_reading(data, data.questions[::2]))
    assert {n: fitted[n] for n in WEIGHTS} == pytest.approx(WEIGHTS, abs=0.1)
