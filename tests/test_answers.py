"""Answer metrics: official scores, hand-computed values, properties, and unusual input."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.metrics import answers as m

METRICS = (m.token_f1, m.exact_match, m.bleu1, m.rouge_l)
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["the blue van", "A blue van.", "我住在杭州", "杭州西湖区，2024年", "swimming, running", ""]
)
AWKWARD = "| |\x00|a\x00b|\ud800 lone|🙂🙃|مرحبا بالعالم|the|。！？|\u200b|ﬁne ½|x\u0301".split("|") + [
    "a" * 1000
]


def test_locomo_f1_agrees_with_official_scores(official_cases):
    cases = official_cases("locomo_official_f1.jsonl")
    assert len(cases) == 286
    wrong = [
        c for c in cases if abs(m.locomo_f1(c["prediction"], c["answer"], c["category"]) - c["score"]) > 1e-6
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("prediction", "gold", "category", "score"),
    [
        ("7 May 2023", "7 May, 2023", 2, 1.0),
        ("May 2023", "7 May 2023", 2, 0.8),  # P = 1, R = 2/3
        ("running and swimming", "swimming and running", 4, 1.0),  # 'and' is dropped, endings are stemmed
        ("swims", "swimming", 4, 1.0),
        ("a, b c", "b, c", 1, 2 / 3),  # 'a' is an article: part 'b c' gives 2/3 to both gold parts
        ("yes; of course", "yes; maybe", 3, 0.5),  # only the gold side is cut: yes of course / yes
        ("No information available", "anything", 5, 1.0),
        ("nothing", "nothing", 5, 0.0),
        ("", "", 1, 0.0),
    ],
)
def test_locomo_f1_agrees_with_hand_computed_scores(prediction, gold, category, score):
    assert m.locomo_f1(prediction, gold, category) == pytest.approx(score, abs=1e-12)


def test_locomo_category_names_and_numbers_agree():
    for number, name in m.LOCOMO_CATEGORIES.items():
        scores = {
            m.locomo_f1("not mentioned, a cat", "a cat; a dog", c)
            for c in (number, str(number), name, name.replace("-", "_"), name.upper())
        }
        assert len(scores) == 1
    for bad in (0, 6, "7", "temporal_reasoning", "", "²"):
        with pytest.raises(ValueError, match="category"):
            m.locomo_f1("a", "a", bad)


@pytest.mark.parametrize("text", AWKWARD, ids=range(len(AWKWARD)))
def test_unusual_texts_have_finite_scores(text):
    for metric in METRICS:
        assert 0 <= metric(text, "the blue van") <= 1
        assert metric(text, text) == 1
    for category in range(1, 6):
        assert 0 <= m.locomo_f1(text, text, category) <= 1
    assert m.abstains(text) in (True, False)


@given(TEXTS, TEXTS)
@settings(max_examples=150, deadline=None)
def test_bounds_and_symmetry(a, b):
    for metric in METRICS:
        assert 0 <= metric(a, b) <= 1 + 1e-12
    assert m.token_f1(a, b) == m.token_f1(b, a)
    assert m.rouge_l(a, b) == m.rouge_l(b, a)
    assert m.exact_match(a, b) <= m.token_f1(a, b)
    assert m.token_f1(a, [b, a]) == 1 and m.token_f1(a, [b]) <= m.token_f1(a, [b, "the blue van"])
    for category in range(1, 6):
        assert 0 <= m.locomo_f1(a, b, category) <= 1


def test_bleu_agrees_with_nltk():
    from nltk.translate.bleu_score import sentence_bleu

    pairs = [
        ("police kill the gunman", "police killed the gunman"),
        ("the the the", "the cat"),
        ("gunman", "police killed the gunman"),
        ("one two", "two"),
    ]
    for prediction, gold in pairs:
        assert m.bleu1(prediction, gold) == pytest.approx(
            sentence_bleu([gold.split()], prediction.split(), weights=(1,))
        )


def test_chinese_characters_are_tokens():
    assert m.answer_tokens("西湖区") == ["西", "湖", "区"]
    assert (
        m.token_f1("北京", "京北") == 1
        and m.exact_match("北京", "京北") == 0
        and m.rouge_l("北京", "京北") == 0.5
    )
    assert m.exact_match("２０２４年４月", "2024年4月") == 1
    assert m.exact_match("《三体》", "三体") == 1
    assert m.answer_tokens("naïve – café") == [
        "naïve",
        "–",
        "café",
    ]  # no East Asian character: SQuAD's rule, ASCII punctuation only
    assert m.answer_tokens("カフェ") == ["カ", "フ", "ェ"] and m.answer_tokens("한국") == ["한", "국"]


def test_answer_f1():
    assert m.answer_f1("I don't know", ["x"], answerable=False) == 1
    assert m.answer_f1("I don't know", [], answerable=False, abstained=False) == 0
    assert m.answer_f1("Paris", [], answerable=False, abstained=True) == 1
    assert (
        m.answer_f1("I don't know why, but Paris", ["Paris"], answerable=True) > 0
    )  # without the reader's flag, an answerable question is scored by its words
    assert m.answer_f1("Paris", ["Rome", "Paris"], answerable=True) == 1


def test_stems_do_not_depend_on_order():
    pairs = [("she was running", "ran and runs"), ("flies", "fly"), ("generously", "generous")]
    forward = [m.locomo_f1(a, b, 4) for a, b in pairs]
    m.stem_word.cache_clear()
    assert [m.locomo_f1(a, b, 4) for a, b in reversed(pairs)][::-1] == forward
    assert not any(map(math.isnan, forward))
