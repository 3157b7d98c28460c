"""How often a judge is wrong: cases, rates, corrected accuracies against hand computation and simulation."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adaptmr.data.registry import load
from adaptmr.eval.judges import calibration
from adaptmr.eval.judges.accuracy import judge_answers, judged_accuracy_table, shipped_rates, write_rates
from adaptmr.eval.judges.calibration import (
    WRONG_KINDS,
    Calibration,
    CalibrationCase,
    alternative_gold_cases,
    calibrate,
    calibration_cases,
    corrected_accuracy,
    held_out_refusals,
)
from adaptmr.eval.judges.judge import RuleJudge, Verdict
from adaptmr.eval.stats.intervals import Interval
from adaptmr.types import Conversation, Dataset, QueryType, Question, Usage

LINE = {"question_id": "k1", "category": 2, "question": "When did I buy the kayak?", "gold": "8 June 2024"}
LINE |= {"answer": "9 June 2024", "kind": "specific_wrong"}


def rate(p: float, n: int) -> Interval:
    return Interval(p, p, p, n)


def rates(
    specific: float = 0.1, vague: float = 0.3, rejected: float = 0.05, judge: str = "toy"
) -> Calibration:
    return Calibration(judge, *(rate(p, 250) for p in (specific, vague, rejected)))


class KeywordJudge:
    """A judge that accepts answers with the word "right", and records what it judged."""

    name = "keyword"

    def __init__(self) -> None:
        self.judged: list[tuple[str, str, bool]] = []

    def judge(self, question: Question, prediction: str, abstained: bool) -> Verdict:
        self.judged.append((question.id, prediction, abstained))
        right = "right" in prediction and not abstained if question.answerable else abstained
        return Verdict(right, (right, True, right), Usage(3, 0, 20, 10), "rule")


def make_case(prediction: str, kind: str, correct: bool = False) -> CalibrationCase:
    return CalibrationCase(Question("q", "What?", ["x"]), prediction, kind, correct)


# -- cases


def test_calibration_cases_are_read_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    path, vague = (
        tmp_path / "cases.jsonl",
        {**LINE, "kind": "vague_wrong", "gold": 3},
    )
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps(vague)}\n", encoding="utf-8")
    one, two = calibration_cases(path)
    assert (one.kind, two.kind) == WRONG_KINDS and not one.correct
    kayak = Question("k1", LINE["question"], ["8 June 2024"], QueryType.temporal_reasoning, "2")
    assert one.question == kayak and two.question.answers == ["3"]
    changes = {"kind": "right"}, {"category": 9}, {"answer": 5}
    for bad in ("{", "[1]", "null", "\0\0", *(json.dumps({**LINE, **change}) for change in changes)):
        path.write_text("\n".join((json.dumps(LINE), "", bad)), encoding="utf-8")
        with pytest.raises(ValueError, match=r"cases\.jsonl, line 3 is no calibration case"):
            calibration_cases(path)


def test_alternative_gold_answers_are_judged_by_one_another() -> None:
    cases = alternative_gold_cases(load("demo"), 100)
    assert len(cases) == 100 and all(c.correct and len(c.question.answers) == 1 for c in cases)
    assert all(c.prediction not in c.question.answers for c in cases)
    rejected = calibrate(RuleJudge(), [], cases).false_reject
    assert 0.05 < rejected.mean < 0.4, "the rules know no synonyms"


# -- rates


def test_rates_agree_with_hand_computed_ones() -> None:
    wrong = [make_case(said, "specific_wrong") for said in ("right", *["no"] * 9)]
    wrong += [make_case("right", "vague_wrong"), make_case("no", "vague_wrong")]
    right = [make_case(said, "case", True) for said in ("right", "right", "right", "no")]
    found = calibrate(KeywordJudge(), wrong, right)
    assert [(r.mean, r.n) for r in found.rates] == [(0.1, 10), (0.5, 2), (0.25, 4)]
    # Wilson, by hand for 1 of 10: (0.1 + 0.19207 ± 1.96 sqrt(0.009 + 0.0096037)) / 1.38415
    ends = found.false_accept_specific.low, found.false_accept_specific.high
    assert ends == (pytest.approx(0.01788, abs=2e-5), pytest.approx(0.40415, abs=2e-5))
    assert found.usage == Usage(48, 0, 320, 160) and found.judge == "keyword"
    assert found.sentence() == (
        "Judge keyword: accepts 10.0% [1.8%, 40.4%] (n=10) of specific and "
        "50.0% [9.5%, 90.5%] (n=2) of vague wrong answers, "
        "refuses 25.0% [4.6%, 69.9%] (n=4) of right answers written another way."
    )
    assert "10.0% [1.8%, 40.4%]" in found._repr_html_()
    assert "&lt;b&gt;" in replace(found, judge="<b>")._repr_html_()


class LengthJudge:
    """A judge that accepts answers of at most `10 * threshold` characters."""

    def __init__(self, threshold: float) -> None:
        self.name, self.limit = "length", 10 * threshold

    def judge(self, question: Question, prediction: str, abstained: bool) -> Verdict:
        right = len(prediction) <= self.limit
        return Verdict(right, (right,))


def test_the_threshold_does_not_see_the_conversation_that_it_is_measured_on() -> None:
    right = [
        CalibrationCase(Question("q", "What?", ["x"], conversation=name), "x" * n, "rewording", True)
        for name, lengths in {"a": (2, 2), "b": (2, 2), "c": (6, 6, 6, 6, 6)}.items()
        for n in lengths
    ]
    # without c both thresholds are as good, so the first one counts, and refuses c; without a or b it is 0.6
    refused = held_out_refusals(LengthJudge, (0.3, 0.6), [make_case("x" * 7, "vague_wrong")], right)
    assert refused == {"a": (0, 2), "b": (0, 2), "c": (5, 5)}
    strict = held_out_refusals(LengthJudge, (0.6, 0.3), [make_case("x" * 5, "vague_wrong")], right)
    assert strict["c"] == (5, 5), "0.6 accepts wrong ones"


# -- corrected accuracies


def test_corrections_agree_with_hand_computed_ones() -> None:
    for found, expected in (
        (corrected_accuracy(0.55, 200, rates(0.1, 0.3, 0), 1), 0.5),  # (0.55 - 0.1) / 0.9
        (corrected_accuracy(0.55, 200, rates(0.1, 0.3, 0)), 0.4375),  # (0.55 - 0.2) / 0.8
        (corrected_accuracy(0.55, 200, rates(0.1, 0.3, 0.05), 0), 0.25 / 0.65),
        (corrected_accuracy(0.3, 200, rates(0.1, 0.3, 0), 1, answered=0.5), 0.25 / 0.9),
        (corrected_accuracy(0.6, 200, rates(0, 0, 0)), 0.6),
        (corrected_accuracy(0.05, 200, rates()), 0),
        (corrected_accuracy(1, 200, rates()), 1),
    ):
        assert found.mean == pytest.approx(expected)
    with pytest.raises(ValueError, match="can't tell right from wrong"):
        corrected_accuracy(0.5, 200, rates(0.6, 0.6, 0.5))


@pytest.mark.parametrize(
    ("truth", "specific", "vague", "rejected", "weight", "answered"),
    [
        (0.6, 0.13, 0.6, 0.05, 0.5, 1.0),
        (0.3, 0.01, 0.03, 0.15, 0.5, 1.0),
        (0.85, 0.05, 0.2, 0.02, 0.8, 1.0),
        (0.5, 0.1, 0.3, 0.1, 0.5, 0.8),
        (0.4, 0.0, 0.02, 0.0, 0.5, 1.0),
    ],
)
def test_interval_covers_the_true_accuracy_in_about_95_percent(
    truth, specific, vague, rejected, weight, answered, monkeypatch
) -> None:
    monkeypatch.setattr(calibration, "MONTE_CARLO_DRAWS", 1_500)
    rng, runs, n, covered = np.random.default_rng(7), 500, 300, 0
    for i in range(runs):
        right, wrong, silent = rng.multinomial(n, [truth, answered - truth, 1 - answered])
        of_wrong = rng.binomial(wrong, weight * specific + (1 - weight) * vague)
        accepted = rng.binomial(right, 1 - rejected) + of_wrong
        seen = Calibration("j", *(rate(rng.binomial(250, p) / 250, 250) for p in (specific, vague, rejected)))
        it = corrected_accuracy(accepted / n, n, seen, weight, answered=1 - silent / n, seed=i)
        covered += it.low <= truth <= it.high
    assert 0.92 <= covered / runs <= 0.985, covered / runs


# -- tables

KINDS = QueryType.knowledge_update, QueryType.multi_hop
DATA = Dataset(
    "d",
    [Conversation("a"), Conversation("b")],
    [Question(f"{c}{i}", "What?", ["x"], KINDS[i % 2], conversation=c) for c in "ab" for i in range(20)]
    + [Question(f"{c}u", "What?", [], QueryType.abstention, answerable=False, conversation=c) for c in "ab"],
)


def rows() -> pd.DataFrame:
    frame = pd.DataFrame(
        [
            {
                **{"system": s, "conversation": q.conversation, "question": q.id, "type": str(q.type)},
                **{"answerable": q.answerable, "prediction": "right" if i % 3 else "no"},
                "abstained": i % 10 == 0 or q.id == "au",
            }
            for s in ("one", "two")
            for i, q in enumerate(DATA.questions)
        ]
    )
    frame.attrs["label"] = "kept"
    return frame


def test_equal_answers_are_judged_once() -> None:
    judge, frame = KeywordJudge(), rows()
    out = judge_answers(frame, DATA, judge)
    assert len(judge.judged) == len(DATA.questions), "both systems gave the same answers"
    assert "correct" not in frame and out["correct"].dtype == bool and list(out.index) == list(frame.index)
    assert set(out["votes"]) == {"010", "111"} and set(out["judge"]) == {"keyword"}
    spent = {"calls": 126, "cached_calls": 0, "prompt_tokens": 840, "completion_tokens": 420}
    cost = {"judge": "keyword", **spent, "seconds": 0.0, "cost_usd": 0.0, "how": {"rule": 42}}
    assert out.attrs == {"label": "kept", "judging": cost}
    assert out["correct"][1] and out["votes"][1] == "111" and not out["correct"][0], "the first one abstained"


def test_judged_accuracy_table() -> None:
    frame, toy = judge_answers(rows(), DATA, KeywordJudge()), rates(judge="keyword")
    table = judged_accuracy_table(frame, toy)
    assert list(table["system"].unique()) == ["one", "two"]
    assert list(table["label"][:4]) == ["update", "multi-hop", "all answerable", "unanswerable"]
    whole, part = table.iloc[2], frame[(frame["system"] == "one") & frame["answerable"]]
    share, answered = part["correct"].mean(), 1 - part["abstained"].mean()
    assert whole["n"] == 40 and whole["judged right"] == f"{share:.3f} – too few"
    for column, weight in (("corrected", 0.5), ("if all specific", 1), ("if all vague", 0)):
        mean = corrected_accuracy(share, 40, toy, weight, answered=answered).mean
        assert whole[column].startswith(f"{mean:.3f} – too few"), column
    apart = frame.assign(conversation=[f"c{i % 6}" for i in range(len(frame))])
    wide = judged_accuracy_table(apart, toy).iloc[2]
    for column in ("judged right", "corrected"):
        assert wide[column].startswith(f"{whole[column].split()[0]} ["), "the same share, and an interval"
    assert (table["corrected"][3], table["judged right"][3][:5], table["n"][3]) == ("–", "0.500", 2)
    assert table.attrs["caption"].startswith(toy.sentence())
    assert table.equals(judged_accuracy_table(frame, toy))


# -- the real file


def test_the_shipped_rates_are_those_of_rewordings_and_of_the_real_file(tmp_path: Path) -> None:
    known = shipped_rates("rules")
    assert shipped_rates("somebody") is None and known.false_accept_specific.n >= 200
    assert known.false_reject.n == len(alternative_gold_cases(load("demo")))
    assert 0.1 < known.false_reject.mean < 0.3 and known.false_reject.high - known.false_reject.low > 0.03
    path = Path(os.environ.get("ADAPTMR_DATA", ".")) / "judge_calibration.jsonl"
    if not path.exists():
        pytest.skip("judge_calibration.jsonl is not in a folder that ADAPTMR_DATA names")
    cases = calibration_cases(path)
    assert len(cases) == 500 and known.false_accept_specific.n == known.false_accept_vague.n == 250
    assert known.false_accept_specific.high < 0.03 and known.false_accept_vague.high < 0.06
    assert write_rates(tmp_path / "rates.json") == known
    shipped = Path(calibration.__file__).with_name("rates.json")
    assert (tmp_path / "rates.json").read_bytes() == shipped.read_bytes()
