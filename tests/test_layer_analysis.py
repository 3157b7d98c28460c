"""What exp6 measures: roads left out, times, growth, the form of answers, and the acceptance list."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest

import adaptmr as am
from adaptmr.eval.analysis.memory_layers import (
    ALL,
    AT_ONCE,
    CATEGORY_LINE,
    F1_LINE,
    TURNS,
    VERDICTS,
    WAYS,
    acceptance_answers,
    acceptance_table,
    answer_form,
    contribution_table,
    contributions,
    deletion_steps,
    fill_memories,
    form_table,
    function_lines,
    growth_answer,
    is_traceable,
    largest_deviation,
    latency_line,
    leave_out,
    long_conversation,
    manual_key_steps,
    more_than_turns,
    quality_lines,
    rows_by_road,
    several,
    time_roads,
)
from adaptmr.memory.layered import LayeredMemory
from adaptmr.memory.layers import KEY
from adaptmr.memory.prompt import build_prompt
from adaptmr.memory.roads import LAYERED_ROADS
from adaptmr.systems.layered import LayeredSystem


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split=["en1", "zh1"])


@pytest.fixture(scope="module")
def memories(data):
    return fill_memories(data, embedder="hash", per_type=1)


# --- leaving out a road


def test_leaving_out_a_road_is_the_same_as_never_taking_it(memories):
    memory = memories[0]
    roads = {name: road for name, road in memory.system.roads.items() if name != "mid_term"}
    other = LayeredSystem("layered", roads, memory.system.config, embedder="hash")
    other.ingest(memory.conversation)
    for asked in memory.visible:
        left_out = leave_out(memory.system.recall(asked), "mid_term")
        one, two = (build_prompt(f, asked, memory.system.config) for f in (left_out, other.recall(asked)))
        assert one.text == two.text


def test_measuring_shows_that_turns_carry_a_memory_and_leaves_it_as_it_was(memories, data):
    before = [m.system.state_version() for m in memories]
    rows, _ = rows_by_road(memories, data.name)
    assert len(rows) == sum(len(m.questions) for m in memories) * 6
    means = rows.groupby("without")["shown"].mean()
    assert means[ALL] > means["turns"]
    assert contribution_table(rows, contributions(rows))["contribution of"].tolist()[1:] == [*LAYERED_ROADS]
    assert (rows["behind"] >= rows["shown"])[rows["shown"].notna()].all()
    times = time_roads(memories[:1], repeats=1, per_type=1)
    assert set(times["way"]) == {*WAYS} and not times.duplicated(["way", "question"]).any()
    assert [m.system.state_version() for m in memories] == before
    texts = {m.id: m.text for m in memories[0].system.store.memories}
    with pytest.raises(RuntimeError), memories[0].as_it_was() as memory:
        memory.pin("Answer in French.")
        raise RuntimeError
    assert {m.id: m.text for m in memories[0].system.store.memories} == texts


def test_more_time_is_a_ratio_of_sums():
    times = pd.DataFrame(
        {"way": way, "conversation": f"c{c}", "question": f"q{c}", "ms": base * (1 + c)}
        for way, base in {AT_ONCE: 12.0, TURNS: 10.0}.items()
        for c in range(5)
    )
    more = more_than_turns(times)
    assert [more[end] for end in ("more", "low", "high")] == pytest.approx([0.2] * 3)
    assert math.isnan(more_than_turns(times[times["conversation"] == "c1"])["low"]), "one conversation"


# --- growth


def test_a_long_conversation_repeats_what_there_is(data):
    talk = data.conversations[0]
    turns, new = long_conversation(data, 400)
    assert new == len(talk) == 182 and len(turns) == 400, "those in the language of the first"
    assert [m.step for m in turns] == list(range(1, 401)) and len({m.source for m in turns}) == 400
    assert all(a.at <= b.at for a, b in pairwise(turns))
    assert (turns[182].at - turns[181].at).total_seconds() == 86400


def test_level_means_within_a_tenth_from_turn_200_on():
    row = {"topics": 3, "pages written": 40, "pages in use": 30}
    marks = ((100, 10.0), (200, 90.0), (300, 110.0), (400, 100.0))
    growth = pd.DataFrame([row | {"turn": turn, "tokens": t} for turn, t in marks])
    assert largest_deviation(growth) == 0.1 and growth_answer(growth)[1] == "Yes."
    assert growth_answer(growth)[2] == (
        "100 tokens from turn 200 to 400, at most 10 % from that at any mark; 30 of 40 pages in use"
    )
    steeper = growth.assign(tokens=[10.0, 80.0, 120.0, 100.0])
    assert growth_answer(steeper)[1] == "No."


# --- the form of answers


def said(system: str, *answers: str) -> list[dict[str, Any]]:
    return [
        {"system": system, "conversation": f"c{n}", "question": f"q{n}", "type": "aabb"[n]}
        | {"prediction": text, "abstained": not text, "f1": float(bool(text))}
        for n, text in enumerate(answers)
    ]


def test_the_forms_of_answers():
    for text, form in (
        ("?!", "no answer"),
        ("二〇二三年五月", "date"),
        ("pottery, swimming and a camping trip", "list"),
        ("a half marathon", "phrase"),
        ("She moved to Leeds.", "sentence"),
        ("we met in 2023 when the whole street had been flooded", "phrase"),
    ):
        assert answer_form(text) == form and answer_form(text, abstained=True) == "no answer"
    (x,) = form_table(pd.DataFrame(said("x", "Leeds", "York", "", "7 May 2023"))).to_dict("records")
    assert (x["n"], x["phrase"], x["date"], x["list"]) == (4, 0.5, 0.25, 0.0)
    assert x["no answer"].startswith("0.25 [") and x["usual form"].startswith("0.75 ["), "ties by FORMS"


# --- the acceptance list


def test_what_works_leaves_no_trace_and_what_does_not_is_found_out(memories, monkeypatch):
    before = [{m.id: m.text for m in one.system.store.memories} for one in memories]
    lines, _ = function_lines(memories)
    assert [line.verdict for line in lines] == ["reached"] * 3
    assert lines[0].found == lines[2].found == "12 of 12 steps on 2 conversations"
    assert [{m.id: m.text for m in one.system.store.memories} for one in memories] == before
    with monkeypatch.context() as patch:
        patch.setattr(LayeredMemory, "restore", lambda self, *args: True)
        with memories[0].as_it_was() as memory:
            steps = deletion_steps(memory)
        assert not steps["turn restored"] and not steps["topic restored"] and steps["turn deleted"]
    monkeypatch.setattr(LayeredMemory, "delete", lambda self, *args, **options: True)
    with memories[0].as_it_was() as memory:
        steps = manual_key_steps(memory)
    assert not steps["deleted"] and steps["added"] and steps["changed"]
    line = function_lines(memories)[0][2]
    failed = "failed: turn deleted, nothing left of it, topic deleted, not erased by one call"
    assert line.verdict == "not reached" and line.found.endswith(failed)


def test_a_key_memory_without_its_trace_is_not_traceable(memories):
    memory = memories[0].system.memory
    key = next(m for m in memory.store.memories if m.layer == KEY)
    assert is_traceable(key, memory) and not is_traceable(replace(key, derived_from=()), memory)
    trace = key.meta["trace"]
    wrong = {"rule": "", "session_ids": ["topic:none"], "page_ids": trace["session_ids"]}
    for name, value in wrong.items():
        assert not is_traceable(replace(key, meta={**key.meta, "trace": {**trace, name: value}}), memory)


def test_a_verdict_is_that_of_the_whole_interval():
    yes, no, open_, few = "reached", "not reached", "undecided", "too few"
    for low, high, verdict in (
        (0.1, 0.2, yes),
        (-0.02, 0.2, open_),
        (-0.2, -0.02, no),
        (math.nan,) * 2 + (few,),
    ):
        assert VERDICTS.at_least(low, high, -0.02) == verdict == VERDICTS.at_most(-high, -low, 0.02)
    for verdicts, verdict in (
        ([yes, yes, no], yes),
        ([yes, no, few], open_),
        ([no, no, open_], no),
        ([few, few, few], few),
    ):
        assert several(verdicts) == verdict


def scores(gains: dict[str, float]) -> pd.DataFrame:
    """Six conversations with two questions of each type; `gains` are those of the system `mine` by type."""
    return pd.DataFrame(
        {"system": s, "conversation": f"c{c}", "question": f"c{c}{t}{q}", "type": t}
        | {"f1": 0.4 + (s == "mine") * (gain + 0.001 * c)}
        for s in ("base", "mine")
        for c in range(6)
        for t, gain in gains.items()
        for q in range(2)
    )


def test_quality_is_read_from_paired_differences():
    frame = scores({"temporal_reasoning": 0.1, "open_domain": -0.1, "abstention": 0.2})
    lines = quality_lines(frame, ["mine"], ["base"])
    assert [(x.criterion, x.verdict) for x in lines] == [(F1_LINE, "reached"), (CATEGORY_LINE, "reached")]
    assert lines[0].found.startswith("+0.069 [") and "3, open-domain: -0.098 [" in lines[1].found
    worse = quality_lines(scores({"temporal_reasoning": 0.1, "abstention": -0.3}), ["mine"], ["base"])
    assert [x.verdict for x in worse] == ["not reached", "not reached"]
    more = {"more": 0.5, "low": 0.4, "high": 0.6}
    answers = acceptance_answers(acceptance_table(lines, [latency_line(more)]), "base")
    assert [answer for _, answer, _ in answers] == ["Yes.", "Yes.", "No."]
    assert answers[0][0] == "mine: Is F1 not below the baseline's?"
    assert answers[2][2] == "layered less turns alone: +50 % [+40, +60], not reached"
