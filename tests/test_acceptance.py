"""The acceptance list of the layered memory: faults are found, verdicts are those of the whole interval."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.analysis import acceptance
from adaptmr.eval.analysis.acceptance import (
    CATEGORY_LINE,
    F1_LINE,
    VERDICTS,
    acceptance_answers,
    acceptance_table,
    automatic_keys,
    category_gains,
    deletion_steps,
    function_lines,
    is_traceable,
    latency_line,
    manual_key_steps,
    quality_lines,
    several,
)
from adaptmr.eval.analysis.filled_memories import as_it_was, fill_memories
from adaptmr.eval.analysis.road_times import AT_ONCE
from adaptmr.memory.layered import LayeredMemory


@pytest.fixture(scope="module")
def memories():
    return fill_memories(am.load("demo", split=["en1", "zh1"]), embedder="hash", per_type=1)


def test_everything_works_and_leaves_no_trace(memories):
    before = [{m.id: m.text for m in one.system.store.memories} for one in memories]
    lines, usage = function_lines(memories)
    assert usage.calls == 0
    assert [line["verdict"] for line in lines] == ["reached"] * 3
    assert lines[0]["found"] == lines[2]["found"] == "12 of 12 steps on 2 conversations"
    assert [{m.id: m.text for m in one.system.store.memories} for one in memories] == before


def test_a_memory_that_forgets_to_delete_is_found_out(memories, monkeypatch):
    monkeypatch.setattr(LayeredMemory, "delete", lambda self, *args, **options: True)
    with as_it_was(memories[0]):
        steps = manual_key_steps(memories[0].system.memory)
    assert not steps["deleted"] and steps["added"] and steps["changed"]
    with as_it_was(memories[0]):
        steps = deletion_steps(memories[0].system.memory)
    assert (
        not steps["turn deleted"] and not steps["nothing left of it"] and not steps["not erased by one call"]
    )
    line = function_lines(memories)[0][2]
    assert line["verdict"] == "not reached" and line["found"].startswith("4 of 12 steps")
    assert line["found"].endswith(
        "failed: turn deleted, nothing left of it, topic deleted, not erased by one call"
    )


def test_a_restoration_that_brings_nothing_back_is_found_out(memories, monkeypatch):
    monkeypatch.setattr(LayeredMemory, "restore", lambda self, *args: True)
    with as_it_was(memories[0]):
        assert not manual_key_steps(memories[0].system.memory)["restored"]
    with as_it_was(memories[0]):
        steps = deletion_steps(memories[0].system.memory)
    assert not steps["turn restored"] and not steps["topic restored"] and steps["turn deleted"]


def test_a_key_memory_without_its_trace_is_not_traceable(memories):
    memory = memories[0].system.memory
    key = automatic_keys(memory)[0]
    assert is_traceable(key, memory)
    trace = key.meta["trace"]
    for broken in (
        {"rule": ""},
        {"session_ids": ["topic:none"]},
        {"page_ids": []},
        {"page_ids": trace["session_ids"]},
    ):
        assert not is_traceable(replace(key, meta={**key.meta, "trace": {**trace, **broken}}), memory)
    assert not is_traceable(replace(key, derived_from=()), memory)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.2, "reached"),
        (-0.02, 0.2, "undecided"),
        (-0.2, -0.02, "not reached"),
        (math.nan, math.nan, "too few"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(low, high, verdict):
    assert VERDICTS.at_least(low, high, -0.02) == verdict == VERDICTS.at_most(-high, -low, 0.02)


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (["reached", "reached", "not reached"], "reached"),
        (["reached", "not reached", "undecided"], "undecided"),
        (["reached", "not reached", "too few"], "undecided"),
        (["not reached", "not reached", "undecided"], "not reached"),
        (["too few", "too few", "too few"], "too few"),
        (["reached"], "not reached"),
        ([], "not reached"),
    ],
)
def test_two_of_the_categories_must_be_reached(verdicts, verdict):
    assert several(verdicts) == verdict


def test_the_categories_are_the_types_that_stand_for_them():
    types = ["temporal_reasoning", "preference", "abstention", "multi_hop", "overall"]
    found = category_gains(pd.DataFrame([{"type": t, "difference": n} for n, t in enumerate(types)]))
    assert {name: row["difference"] for name, row in found.items()} == {
        "2, time": 0,
        "3, open-domain": 1,
        "5, adversarial": 2,
    }
    both = category_gains(pd.DataFrame([{"type": t} for t in ("preference", "open_domain")]))
    assert [row["type"] for row in both.values()] == ["open_domain"]


def scores(gains: dict[str, float]) -> pd.DataFrame:
    """Six conversations with two questions of each type; `gains` are those of the system `mine` by type."""
    return pd.DataFrame(
        [
            {"system": s, "conversation": f"c{c}", "question": f"c{c}{t}{q}", "type": t}
            | {"f1": 0.4 + (s == "mine") * (gain + 0.001 * c)}
            for s in ("base", "mine")
            for c in range(6)
            for t, gain in gains.items()
            for q in range(2)
        ]
    )


def test_quality_is_read_from_paired_differences():
    lines = quality_lines(
        scores({"temporal_reasoning": 0.1, "open_domain": -0.1, "abstention": 0.2}), ["mine"], ["base"]
    )
    assert [(x["criterion"], x["verdict"]) for x in lines] == [
        (F1_LINE, "reached"),
        (CATEGORY_LINE, "reached"),
    ]
    assert lines[0]["found"].startswith("+0.069 [")
    assert (
        lines[1]["found"].startswith("2, time: +0.102 [") and "3, open-domain: -0.098 [" in lines[1]["found"]
    )
    worse = quality_lines(scores({"temporal_reasoning": 0.1, "abstention": -0.3}), ["mine"], ["base"])
    assert [x["verdict"] for x in worse] == ["not reached", "not reached"]


def test_the_report_has_a_line_for_each_criterion_and_one_baseline():
    more = pd.DataFrame([{"way": AT_ONCE, "more": 0.5, "low": 0.4, "high": 0.6}])
    frame = scores({"temporal_reasoning": 0.1})
    other = frame[frame["system"] == "base"].assign(system="other")
    lines = quality_lines(pd.concat([frame, other]), ["mine"], ["base", "other"])
    answers = acceptance_answers(acceptance_table(lines, [latency_line(more)]), "base")
    assert [answer for _, answer, _ in answers] == ["Yes.", "No.", "No."]
    assert answers[0][0] == "mine: Is F1 not below the baseline's?"
    assert answers[2][2] == "layered less turns alone: +50 % [+40, +60], not reached"
    assert set(acceptance._QUESTIONS) >= {line["criterion"] for line in lines}
