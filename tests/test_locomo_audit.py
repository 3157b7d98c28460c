"""LoCoMo's audit: the corrected answers, scores of the same predictions on both, and their ceilings."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from adaptmr.data.locomo import AUDIT_FILES, parse_locomo, parse_locomo_audited
from adaptmr.data.registry import DatasetUnavailable, load
from adaptmr.eval.analysis.breakdowns import (
    ALL_CATEGORIES,
    ANSWERABLE_CATEGORIES,
    AUDITED_F1,
    audit_table,
    rescore,
    score_ceiling,
)
from adaptmr.eval.metrics.answers import locomo_f1
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.types import Dataset, Question


def talk(sample):
    return {
        "sample_id": sample,
        "conversation": {
            "speaker_a": "Ana",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ana", "dia_id": "D1:1", "text": "I sold the kite for 30 euros."},
                {"speaker": "Ben", "dia_id": "D1:2", "text": "A red kite!"},
            ],
        },
        "qa": [
            {"question": "What was the price?", "answer": "20 euros", "evidence": ["D1:2"], "category": 4},
            {"question": "What colour  was it?", "answer": "red", "evidence": ["D1:1"], "category": 1},
            {"question": "Who flew?", "adversarial_answer": "Ben", "evidence": ["D1:1"], "category": 5},
        ],
    }


def finding(sample="c1", i=0, corrupting=True, **more):
    return {
        "sample_id": sample,
        "qa_index": i,
        "score_corrupting": corrupting,
        "question": ("What was the price?", "What colour was it?")[i],
        "correct_answer": ("30 euros", "a red one")[i],
        "correct_evidence": [("D1:1",), ("D1:2",)][i],
    } | more


@pytest.fixture
def put(tmp_path):
    def write(*findings, samples=("c1",), name=AUDIT_FILES[0]):
        (tmp_path / "locomo10.json").write_text(json.dumps([talk(s) for s in samples]), encoding="utf-8")
        (tmp_path / name).write_text(json.dumps(list(findings)), encoding="utf-8")
        return tmp_path / "locomo10.json"

    return write


def test_answers_and_evidence_are_corrected_where_the_audit_says_so(put):
    path = put(finding(), finding(i=1, corrupting=False))
    data, published = parse_locomo_audited(path), parse_locomo(path)
    price, colour, who = data.questions
    assert (price.answers, price.evidence) == (["30 euros"], ["D1:1"])
    assert (colour.answers, colour.evidence) == (["red"], ["D1:2"]), "a wrong citation of a right answer"
    assert who == published.questions[2]
    assert [q.id for q in data.questions] == [q.id for q in published.questions]
    assert {n: v for n, v in data.notes.items() if n.startswith("audit")} == {
        "audit_answers": 1,
        "audit_citations": 1,
        "audit_evidence": 2,
    }
    assert not data.complete
    assert data.sha256
    assert data.sha256 != parse_locomo_audited(put(finding())).sha256, "another key is other data"


def test_what_was_not_audited_is_left_out_and_counted(put):
    data = parse_locomo_audited(put(finding(), samples=("c1", "c2")))
    assert [c.id for c in data] == ["c1"]
    assert {q.conversation for q in data.questions} == {"c1"}
    assert data.notes["audit_conversations_left_out"] == 1


def test_findings_about_something_else(put, tmp_path):
    with pytest.raises(
        ValueError, match=r"locomo_known_errors\.json: the finding on c1/q0 quotes another question"
    ):
        parse_locomo_audited(put(finding(question="Why?")))
    path = put(finding())
    (tmp_path / AUDIT_FILES[0]).unlink()
    with pytest.raises(
        DatasetUnavailable, match=r"put locomo_known_errors\.json or locomo_dev_known_errors\.json into"
    ):
        parse_locomo_audited(path)
    with pytest.raises(KeyError):
        parse_locomo_audited(put({"sample_id": "c1"}))


def test_the_same_answers_on_both_keys(put):
    path = put(finding(), finding(i=1))
    published, audited = parse_locomo(path), parse_locomo_audited(path)
    frame = evaluate(["lexical", "full_context"], published, embedder="hash", progress=False)
    again = rescore(frame, audited)
    key = {q.id: q for q in audited.questions}
    for r in again.to_dict("records"):
        q = key[r["question"]]
        assert r[AUDITED_F1] == locomo_f1(r["prediction"], q.answers[0] if q.answers else "", q.category)
        assert r["key_changed"] == (r["question"] != "c1/q2")
    assert again.attrs == frame.attrs and AUDITED_F1 not in frame and again["f1"].equals(frame["f1"])
    table = audit_table(again).set_index(["system", "category"])
    assert table.loc[("lexical", ALL_CATEGORIES), ["n", "changed"]].tolist() == [3, 2]
    assert table.loc[("lexical", ANSWERABLE_CATEGORIES), "n"] == 2
    row = table.loc[("lexical", ALL_CATEGORIES)]
    assert math.isclose(row["audited"] - row["published"], row["difference"], abs_tol=1e-9)
    assert row.filter(regex="low|high").isna().all(), "one conversation has no interval"


def test_ceilings_by_hand():
    def key(*golds):
        asked = [
            Question(f"q{i}", "?", [g] if g else [], kind, c, answerable=c != "5", conversation="c")
            for i, (c, g) in enumerate(golds)
            for kind in ["abstention" if c == "5" else "multi_hop"]
        ]
        return Dataset("k", [], asked)

    published = key(("1", "bees, rowing"), ("2", "May 2023"), ("3", "no; she said so"), ("5", ""))
    audited = key(("1", "bees"), ("2", "June 2023"), ("3", "no; she said so"), ("5", ""))
    table = score_ceiling(published, audited).set_index("category")
    assert table.loc["1", ["published", "audited"]].tolist() == [0.5, 1.0]
    assert table.loc["2", ["published", "audited"]].tolist() == [0.5, 0.5]
    assert table.loc["5", "published"] == table.loc["5", "own_audited"] == 1.0
    assert table.loc["1", "own_published"] == 1.0
    assert table.loc["3", "published"] == table.loc["3", "own_published"] == pytest.approx(0.4), (
        "the key is cut at its semicolon, the answer is not"
    )
    assert table["n"].tolist() == [1, 1, 1, 1, 3, 4] and table["changed"].tolist() == [1, 1, 0, 0, 2, 2]
    assert table.loc[ALL_CATEGORIES, "published"] == pytest.approx((0.5 + 0.5 + 0.4 + 1) / 4)


def test_the_dev_file():
    folder = os.environ.get("ADAPTMR_DATA")
    if not folder:
        pytest.skip(
            "ADAPTMR_DATA is not set: it names the folder with LoCoMo's file and the audit's findings"
        )
    if not (Path(folder) / AUDIT_FILES[1]).exists():
        pytest.skip(f"{AUDIT_FILES[1]} is not in ADAPTMR_DATA")
    audited = load("locomo_audited", split="dev")
    published = load("locomo", split="dev")
    assert len(audited.questions) == len(published.questions) == 999 and not audited.complete
    if (Path(folder) / AUDIT_FILES[0]).exists():
        pytest.skip(f"{AUDIT_FILES[0]} is in ADAPTMR_DATA too: the counts below are the development part's")
    assert {n: v for n, v in audited.notes.items() if n.startswith("audit")} == {
        "audit_answers": 51,
        "audit_citations": 34,
        "audit_evidence": 58,
    }
    changed = Counter(
        a.category for a, p in zip(audited.questions, published.questions) if a.answers != p.answers
    )
    assert changed == {"1": 13, "2": 10, "3": 6, "4": 22}
    assert all(a.answerable == p.answerable for a, p in zip(audited.questions, published.questions))
    table = score_ceiling(published, audited).set_index("category")
    assert table.loc[ANSWERABLE_CATEGORIES, ["n", "changed"]].tolist() == [762, 51]
    assert 0.94 < table.loc[ANSWERABLE_CATEGORIES, "published"] < 0.96
    assert table.loc["5", "audited"] == 1.0
    assert isinstance(table, pd.DataFrame) and (table["own_published"] >= table["published"]).all()
