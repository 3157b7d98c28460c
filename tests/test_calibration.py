"""Error rates of judges and corrected accuracies: hand-computed values, coverage, damaged files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from server import Server, answering, ok_json, status, waits_for

from adaptmr.data.registry import load
from adaptmr.eval.judges import calibration
from adaptmr.eval.judges.accuracy import (
    judge_answers,
    judged_accuracy_table,
    shipped_rates,
    write_rates,
)
from adaptmr.eval.judges.calibration import (
    WRONG_KINDS,
    Calibration,
    CalibrationCase,
    alternative_gold_cases,
    calibrate,
    calibration_cases,
    calibration_from_votes,
    corrected_accuracy,
    effective_n,
    held_out_refusals,
    share_interval,
)
from adaptmr.eval.judges.judge import LLMJudge, RuleJudge, Verdict
from adaptmr.eval.stats.intervals import Interval
from adaptmr.llm import LLM, AuthError
from adaptmr.types import Conversation, Dataset, QueryType, Question, Usage

LINE = {
    "question_id": "k1",
    "category": 2,
    "question": "When did the kayak arrive?",
    "gold": "8 June 2024",
    "answer": "9 June 2024",
    "kind": "specific_wrong",
    "is_correct": False,
    "gpt_4o_mini_votes": [False, True, True],
}


def rate(p: float, n: int) -> Interval:
    return Interval(p, p, p, n)


def rates(
    specific: float = 0.1, vague: float = 0.3, rejected: float = 0.05, n: int = 250, judge: str = "toy"
) -> Calibration:
    return Calibration(judge, rate(specific, n), rate(vague, n), rate(rejected, n))


class KeywordJudge:
    """A judge that accepts answers with the word "right", and records what it judged."""

    name = "keyword"

    def __init__(self) -> None:
        self.judged: list[tuple[str, str, bool]] = []

    def judge(self, question: Question, prediction: str, abstained: bool) -> Verdict:
        self.judged.append((question.id, prediction, abstained))
        right = (
            abstained is not question.answerable
            if not question.answerable
            else "right" in prediction and not abstained
        )
        return Verdict(right, (right, True, right), Usage(3, 0, 20, 10), "rule")


# -- cases


def write(folder: Path, *lines: str) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_calibration_cases_are_read(tmp_path: Path) -> None:
    cases = calibration_cases(
        write(
            tmp_path,
            json.dumps(LINE),
            "",
            json.dumps({**LINE, "kind": "vague_wrong", "gold": 3, "gpt_4o_mini_votes": []}),
            "",
        )
    )
    assert (
        [c.kind for c in cases] == list(WRONG_KINDS)
        and cases[0].votes == (False, True, True)
        and not cases[0].correct
    )
    assert cases[0].question == Question(
        "k1", LINE["question"], ["8 June 2024"], QueryType.temporal_reasoning, "2"
    ) and cases[1].question.answers == ["3"]


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[1]",
        "null",
        "7",
        '"text"',
        json.dumps({k: v for k, v in LINE.items() if k != "answer"}),
        json.dumps({**LINE, "kind": "right"}),
        json.dumps({**LINE, "category": 9}),
        json.dumps({**LINE, "category": None}),
        json.dumps({**LINE, "answer": 5}),
        json.dumps({**LINE, "gpt_4o_mini_votes": [1, 0]}),
        json.dumps({**LINE, "gpt_4o_mini_votes": 3}),
        "\0\0",
    ],
)
def test_damaged_line_is_named(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path, json.dumps(LINE), "", bad, json.dumps(LINE))
    with pytest.raises(ValueError, match=r"cases\.jsonl, line 3 is no calibration case"):
        calibration_cases(path)


# -- right answers, written another way


def test_alternative_gold_answers_are_judged_by_one_another() -> None:
    cases = alternative_gold_cases(load("demo"), 300)
    assert len(cases) == 300 and all(
        len(c.question.answers) == 1 and c.prediction not in c.question.answers and c.correct for c in cases
    )
    rejected = calibrate(RuleJudge(), [], cases).false_reject
    assert 0.05 < rejected.mean < 0.3, (
        "the rules know no synonyms, so they reject more of these than of rewritings by rule"
    )


# -- rates


def make_case(prediction: str, kind: str, correct: bool = False) -> CalibrationCase:
    return CalibrationCase(Question("q", "What?", ["x"]), prediction, kind, correct)


def test_rates_agree_with_hand_computed_ones() -> None:
    wrong = (
        [make_case("right", "specific_wrong")]
        + [make_case("no", "specific_wrong")] * 9
        + [make_case("right", "vague_wrong"), make_case("no", "vague_wrong")]
    )
    found = calibrate(
        KeywordJudge(), wrong, [make_case("right", "case", True)] * 3 + [make_case("no", "case", True)]
    )
    assert [
        (r.mean, r.n) for r in (found.false_accept_specific, found.false_accept_vague, found.false_reject)
    ] == [(0.1, 10), (0.5, 2), (0.25, 4)]
    # Wilson, by hand for 1 of 10: (0.1 + 0.19207 ± 1.96 sqrt(0.009 + 0.0096037)) / 1.38415
    assert (found.false_accept_specific.low, found.false_accept_specific.high) == (
        pytest.approx(0.01788, abs=2e-5),
        pytest.approx(0.40415, abs=2e-5),
    )
    assert found.usage == Usage(48, 0, 320, 160) and found.judge == "keyword"
    assert found.sentence() == (
        "Judge keyword: accepts 10.0% [1.8%, 40.4%] (n=10) of specific and "
        "50.0% [9.5%, 90.5%] (n=2) of vague wrong answers, "
        "refuses 25.0% [4.6%, 69.9%] (n=4) of right answers written another way."
    )
    assert (
        "10.0% [1.8%, 40.4%]" in found._repr_html_()
        and "&lt;b&gt;" in replace(found, judge="<b>")._repr_html_()
    )


def test_model_judges_several_answers_at_a_time() -> None:
    def reply(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        return ok_json(
            {"yes": ("good" in text.split("<answer>")[1].split("</answer>")[0]) != text.endswith("wrong?")}
        )

    wrong = [make_case(f"good {i}" if i < 3 else f"bad {i}", "specific_wrong") for i in range(12)]
    with Server(waits_for(2, answering(reply))) as s:
        found = calibrate(
            LLMJudge(LLM("m", base_url=s.url, concurrency=4)), wrong, [make_case("good one", "case", True)]
        )
        assert (
            found.false_accept_specific.mean == 0.25
            and found.false_reject.mean == 0
            and found.usage.calls == 39 == len(s.requests)
            and s.most_at_once > 1
        )
    with Server(status(401)) as s, pytest.raises(AuthError):
        calibrate(LLMJudge(LLM("m", base_url=s.url)), wrong, [])


# -- refusals of rewordings, held out by conversation


class LengthJudge:
    """A judge that accepts answers of at most `10 * threshold` characters."""

    def __init__(self, threshold: float) -> None:
        self.name, self.limit = "length", 10 * threshold

    def judge(self, question: Question, prediction: str, abstained: bool) -> Verdict:
        right = len(prediction) <= self.limit
        return Verdict(right, (right,))


def reworded(conversation: str, *lengths: int) -> list[CalibrationCase]:
    question = Question("q", "What?", ["x"], conversation=conversation)
    return [CalibrationCase(question, "x" * n, "rewording", True) for n in lengths]


def test_the_threshold_does_not_see_the_conversation_that_it_is_measured_on() -> None:
    wrong = [make_case("x" * 7, "vague_wrong")]
    right = [*reworded("a", 2, 2), *reworded("b", 2, 2), *reworded("c", 6, 6, 6, 6, 6)]
    # without c both thresholds are as good, so the first one counts, and refuses c; without a or b it is 0.6
    assert held_out_refusals(LengthJudge, (0.3, 0.6), wrong, right) == {"a": (0, 2), "b": (0, 2), "c": (5, 5)}
    strict = [make_case("x" * 5, "vague_wrong")]
    assert held_out_refusals(LengthJudge, (0.6, 0.3), strict, right)["c"] == (5, 5), "0.6 accepts wrong ones"


def test_shares_have_the_spread_of_conversations() -> None:
    talks = [name for name in "abcd" for _ in range(50)]
    apart = [name in "ab" for name in talks]  # two conversations all true, two all false
    over, cases = share_interval(apart, talks), share_interval(apart, ["a"] * 200)
    assert over.mean == cases.mean == 0.5 and over.high - over.low > 3 * (cases.high - cases.low)
    assert effective_n(over) < 5 < 150 < effective_n(cases) <= 200
    assert share_interval([False] * 200, talks).high > 0.01, "0 of 200 still has a width"
    assert effective_n(share_interval([False] * 200, talks)) == 200


def test_the_shipped_rates_of_the_rules_are_those_of_rewordings() -> None:
    known = shipped_rates("rules")
    assert known is not None
    cases = alternative_gold_cases(load("demo"))
    assert known.false_reject.n == len(cases) and 0.1 < known.false_reject.mean < 0.3
    assert known.false_reject.high - known.false_reject.low > 0.03, "over conversations"


# -- corrected accuracies


def test_corrections_agree_with_hand_computed_ones() -> None:
    assert corrected_accuracy(0.55, 200, rates(0.1, 0.3, 0), 1).mean == pytest.approx(
        0.5
    )  # (0.55 - 0.1) / 0.9
    assert corrected_accuracy(0.55, 200, rates(0.1, 0.3, 0)).mean == pytest.approx(
        0.4375
    )  # (0.55 - 0.2) / 0.8
    assert corrected_accuracy(0.55, 200, rates(0.1, 0.3, 0.05), 0).mean == pytest.approx(0.25 / 0.65)
    assert corrected_accuracy(0.3, 200, rates(0.1, 0.3, 0), 1, answered=0.5).mean == pytest.approx(0.25 / 0.9)
    assert (
        corrected_accuracy(0.6, 200, rates(0, 0, 0)).mean == pytest.approx(0.6)
        and corrected_accuracy(0.05, 200, rates()).mean == 0
        and corrected_accuracy(1, 200, rates()).mean == 1
    )


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
    truth: float,
    specific: float,
    vague: float,
    rejected: float,
    weight: float,
    answered: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "MONTE_CARLO_DRAWS", 1_500)
    rng, runs, n, covered = np.random.default_rng(7), 500, 300, 0
    for i in range(runs):
        right, wrong, silent = rng.multinomial(n, [truth, answered - truth, 1 - answered])
        accepted = rng.binomial(right, 1 - rejected) + rng.binomial(
            wrong, weight * specific + (1 - weight) * vague
        )
        seen = Calibration("j", *(rate(rng.binomial(250, p) / 250, 250) for p in (specific, vague, rejected)))
        it = corrected_accuracy(accepted / n, n, seen, weight, answered=1 - silent / n, seed=i)
        covered += it.low <= truth <= it.high
    assert 0.92 <= covered / runs <= 0.985, covered / runs


# -- tables

DATA = Dataset(
    "d",
    [Conversation("a"), Conversation("b")],
    [
        *(
            Question(
                f"{c}{i}",
                "What?",
                ["x"],
                QueryType.multi_hop if i % 2 else QueryType.knowledge_update,
                conversation=c,
            )
            for c in "ab"
            for i in range(20)
        ),
        *(
            Question(f"{c}u", "What?", [], QueryType.abstention, answerable=False, conversation=c)
            for c in "ab"
        ),
    ],
)


def rows(*systems: str) -> pd.DataFrame:
    frame = pd.DataFrame(
        [
            {
                "system": s,
                "conversation": q.conversation,
                "question": q.id,
                "type": str(q.type),
                "answerable": q.answerable,
                "prediction": "right" if i % 3 else "no",
                "abstained": i % 10 == 0 or (not q.answerable and q.id == "au"),
            }
            for s in systems
            for i, q in enumerate(DATA.questions)
        ]
    )
    frame.attrs["label"] = "kept"
    return frame


def test_equal_answers_are_judged_once() -> None:
    judge = KeywordJudge()
    frame = rows("one", "two")
    out = judge_answers(frame, DATA, judge)
    assert len(judge.judged) == len(DATA.questions) == len(set(judge.judged)) and "correct" not in frame, (
        "both systems gave the same answers"
    )
    assert (
        out["correct"].dtype == bool
        and set(out["votes"]) == {"010", "111"}
        and set(out["judge"]) == {"keyword"}
        and list(out.index) == list(frame.index)
    )
    assert out.attrs["label"] == "kept" and out.attrs["judging"] == {
        "judge": "keyword",
        "calls": 126,
        "cached_calls": 0,
        "prompt_tokens": 840,
        "completion_tokens": 420,
        "seconds": 0.0,
        "cost_usd": 0.0,
        "how": {"rule": 42},
    }
    i = DATA.questions.index(next(q for q in DATA.questions if q.id == "a1"))
    assert out["correct"][i] and out["votes"][i] == "111" and not out["correct"][0], "the first one abstained"


def test_judged_accuracy_table() -> None:
    frame = judge_answers(rows("one", "two"), DATA, KeywordJudge())
    table = judged_accuracy_table(frame, rates(judge="keyword"))
    assert list(table["system"].unique()) == ["one", "two"] and list(table["label"][:4]) == [
        "update",
        "multi-hop",
        "all answerable",
        "unanswerable",
    ]
    whole = table.iloc[2]
    part = frame[(frame["system"] == "one") & frame["answerable"]]
    share, answered = part["correct"].mean(), 1 - part["abstained"].mean()
    assert whole["n"] == 40 and whole["judged right"] == f"{share:.3f} – too few"
    for column, weight in (("corrected", 0.5), ("if all specific", 1), ("if all vague", 0)):
        assert whole[column].startswith(
            f"{corrected_accuracy(share, 40, rates(), weight, answered=answered).mean:.3f} – too few"
        ), column
    wide = judged_accuracy_table(
        frame.assign(conversation=[f"c{i % 6}" for i in range(len(frame))]), rates(judge="keyword")
    ).iloc[2]
    for column in ("judged right", "corrected"):
        assert wide[column].startswith(f"{whole[column].split()[0]} ["), (
            "the same share, and enough conversations for an interval"
        )
    assert (
        table["corrected"][3] == "–" and table["judged right"][3].startswith("0.500") and table["n"][3] == 2
    )
    assert table.attrs["caption"].startswith(rates(judge="keyword").sentence()) and table.equals(
        judged_accuracy_table(frame, rates(judge="keyword"))
    )


# -- the real file


def test_error_rates_of_the_rules_on_the_real_file() -> None:
    folder = os.environ.get("ADAPTMR_DATA")
    if not folder:
        pytest.skip("ADAPTMR_DATA is not set: it names the folder with judge_calibration.jsonl")
    if not (path := Path(folder) / "judge_calibration.jsonl").exists():
        pytest.skip(f"no judge_calibration.jsonl in ADAPTMR_DATA={folder}")
    cases = calibration_cases(path)
    mine, theirs = (
        calibrate(RuleJudge(), cases, []),
        calibration_from_votes(cases),
    )
    assert len(cases) == 500 and mine.false_accept_specific.n == mine.false_accept_vague.n == 250
    assert (
        mine.false_accept_specific.high < 0.03
        and mine.false_accept_vague.high < 0.06
    )
    assert (theirs.false_accept_specific.mean, theirs.false_accept_vague.mean) == (0.128, 0.6)


def test_shipped_rates_equal_measured_ones(tmp_path: Path) -> None:
    assert shipped_rates("somebody") is None and shipped_rates("rules").false_accept_specific.n >= 200
    folder = os.environ.get("ADAPTMR_DATA")
    if not folder or not (Path(folder) / "judge_calibration.jsonl").exists():
        pytest.skip("judge_calibration.jsonl is not in a folder that ADAPTMR_DATA names")
    assert write_rates(tmp_path / "rates.json") == shipped_rates("rules")
    assert (tmp_path / "rates.json").read_bytes() == Path(calibration.__file__).with_name(
        "rates.json"
    ).read_bytes()
