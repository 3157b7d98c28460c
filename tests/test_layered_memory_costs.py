"""The chat on which a layered memory is measured, and the measures: values by hand, no timed assertions."""

import numpy as np
import pytest

from adaptmr.memory.layered import LayeredMemory
from adaptmr.perf.layered_memory import ChatCosts, PromptSizes, measure_chat
from adaptmr.perf.synthetic_chat import ASSISTANT, USER, WordEmbedder, chat_questions, synthetic_chat


def test_a_chat_forms_every_layer():
    memory = LayeredMemory(user=USER, assistant=ASSISTANT, embedder=WordEmbedder(dim=64))
    with memory.store:
        for turn in synthetic_chat(300):
            memory.add(turn)
        assert len(memory.pages()) > len(memory.topics()) > 1, "some pages join a topic"
        assert {"summary", "fact"} <= set(memory.summaries()["layer"])
        prompt = memory.prompt(chat_questions(1)[0])
    assert min(prompt.tokens.values()) > 0, "no section is empty"


def test_a_chat_goes_on_as_it_began():
    assert synthetic_chat(120, seed=3)[:70] == synthetic_chat(70, seed=3) != synthetic_chat(70, seed=4)
    assert synthetic_chat(0) == []


def test_texts_that_share_words_are_near_and_vectors_the_same_everywhere():
    a, b, c = WordEmbedder(dim=64).encode(["red boat", "a red boat left", "green tea"])
    assert a @ b > 0.7 > 0.5 > a @ c
    assert np.array_equal(WordEmbedder(dim=64).encode(["red boat"])[0], a)
    assert WordEmbedder(dim=64).encode([]).shape == (0, 64)


def test_sizes_by_hand():
    sizes = PromptSizes(np.array([200, 1200, 2200]), np.array([900.0, 1000.0, 1100.0]))
    assert sizes.trend == pytest.approx(0.2)  # 200 more tokens, over the median of 1,000
    assert sizes.window_medians(3).tolist() == pytest.approx([-0.1, 0, 0.1])
    assert sizes.spread == pytest.approx((-0.09, 0.09))


def test_a_hump_has_no_trend_and_is_found_by_the_windows():
    tokens = np.array([1000.0] * 40 + [1500.0] * 20 + [1000.0] * 40)
    sizes = PromptSizes(np.arange(100), tokens)
    assert abs(sizes.trend) < 1e-9 and sizes.window_medians(10).max() == pytest.approx(0.5)


def test_goals_of_a_short_chat_leave_retrieval_open():
    costs = ChatCosts(
        300,
        {name: np.array([ms]) for name, ms in (("add", 2.0), ("retrieval", 9.0))}
        | {"all roads": np.array([26.0]), "the turns' road": np.array([20.0])},
        np.array([8.0]),
        PromptSizes(np.array([200, 240]), np.array([1000.0, 950.0])),
        "nothing",
    )
    reached = {g.what: g.reached for g in costs.goals()}
    assert list(reached.values()) == ["yes", "–", "no", "yes", "yes"], reached


def test_a_chat_is_measured_turn_by_turn():
    costs = measure_chat(240, questions=2)
    assert {name: len(ms) for name, ms in costs.samples.items()} == {
        "add": 240,
        "retrieval": 2,
        "all roads": 2,
        "the turns' road": 2,
    }
    assert costs.prompts.turns.tolist() == [200, 220, 240] and len(costs.table()) == 3


@pytest.mark.parametrize(("n", "questions"), [(219, 1), (220, 0)])
def test_too_little_to_measure_is_an_error(n, questions):
    with pytest.raises(ValueError, match="220 or more"):
        measure_chat(n, questions)
