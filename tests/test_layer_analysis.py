"""What each road of a layered memory adds and takes, and how a memory grows."""

from __future__ import annotations

import math
from itertools import pairwise

import pandas as pd
import pytest
from layered_store import turns_of

import adaptmr as am
from adaptmr.eval.analysis.filled_memories import as_it_was, fill_memories
from adaptmr.eval.analysis.layer_shares import (
    ALL,
    FAMILIES,
    TURNS_ALONE,
    answer_words,
    contribution_table,
    contributions,
    layer_rows,
    rows_without,
    sources_behind,
    take_roads,
    variants,
)
from adaptmr.eval.analysis.memory_growth import (
    COMPRESSED,
    WHOLE,
    count_lines,
    grow,
    growth_answer,
    growth_sentences,
    largest_deviation,
    long_conversation,
)
from adaptmr.eval.analysis.road_times import (
    AT_ONCE,
    PROMPT,
    TURNS,
    WAYS,
    more_than_turns,
    road_time_table,
    time_roads,
)
from adaptmr.eval.runner.timings import timed_questions
from adaptmr.memory.config import MemoryConfig
from adaptmr.memory.prompt import build_prompt
from adaptmr.systems.layered import LayeredSystem
from adaptmr.types import Question


@pytest.fixture(scope="module")
def data():
    return am.load("demo", split=["en1", "zh1"])


@pytest.fixture(scope="module")
def memories(data):
    return fill_memories(data, embedder="hash", per_type=2)


@pytest.fixture(scope="module")
def rows(memories, data):
    return layer_rows(memories, data.name)[0]


# --- leaving out a road


def test_each_road_is_left_out_once_and_pmemo_searches_no_turns():
    assert FAMILIES["layered"] == (*FAMILIES["pmemo"], "turns")
    assert set(variants(FAMILIES["layered"])) == {ALL, *FAMILIES["layered"], TURNS_ALONE}
    assert TURNS_ALONE not in variants(FAMILIES["pmemo"])
    assert variants(FAMILIES["pmemo"])["key"] == ("long_term", "mid_term", "short_term")


def test_leaving_out_a_road_is_the_same_as_never_taking_it(memories):
    memory = memories[0]
    roads = {name: road for name, road in memory.system.roads.items() if name != "mid_term"}
    other = LayeredSystem("layered", roads, memory.system.config, embedder="hash")
    other.ingest(memory.conversation)
    for asked in memory.visible:
        left_out = take_roads(memory.system.recall(asked), tuple(roads))
        one, two = (build_prompt(f, asked, memory.system.config) for f in (left_out, other.recall(asked)))
        assert one.text == two.text


def test_what_a_prompt_shows_stands_behind_it(memories):
    found = memories[0].system.recall(memories[0].visible[0])
    prompt = build_prompt(found, found.question, memories[0].system.config)
    behind = sources_behind(found, prompt)
    assert set(prompt.turn_sources.values()) < set(behind) and len(behind) == len(set(behind))
    assert set(behind) <= {m.source for m in memories[0].conversation.turns}


def test_the_words_of_the_best_gold_answer_are_counted():
    asked = Question("q", "?", ["the red house", "a blue boat"])
    assert answer_words(asked, "A BLUE car, a red bike!") == 0.5
    assert answer_words(asked, "blue boat") == 1 and answer_words(asked, "") == 0
    assert math.isnan(answer_words(Question("q", "?", [], answerable=False), "blue"))


def test_a_contribution_is_the_difference_on_the_same_questions():
    cells = [("nothing", 0.9, 100.0), ("key", 0.4, 60.0)]
    rows = pd.DataFrame(
        [
            {"system": "x", "without": w, "conversation": f"c{c}", "question": f"q{c}"}
            | {"shown": v - 0.01 * c * (w == "key"), "behind": v, "answer_words": v, "f1": 0.5, "tokens": t}
            for w, v, t in cells
            for c in range(6)
        ]
    )
    gained = contributions(rows).set_index("measure")
    assert gained.loc["shown", "difference"] == pytest.approx(0.525) and gained.loc["shown", "low"] > 0.5
    assert gained.loc["tokens", "difference"] == 40 and gained.loc["f1", "difference"] == 0
    first, second = contribution_table(rows, contributions(rows)).to_dict("records")
    assert (first["contribution of"], first["tokens"], first["F1"]) == ("all roads: means", "100", "0.500")
    assert second["gold turns shown"].startswith("+0.525 [") and second["F1"] == "0"


def test_the_turns_carry_a_layered_memory(rows, memories):
    assert len(rows) == sum(len(m.questions) for m in memories) * (7 + 5)
    means = rows.groupby(["system", "without"])["shown"].mean()
    assert means["layered", ALL] > means["layered", "turns"] == means["pmemo", ALL]
    assert (rows["behind"] >= rows["shown"])[rows["shown"].notna()].all()
    tokens = rows.groupby(["system", "without"])["tokens"].mean()
    assert tokens["layered", TURNS_ALONE] < tokens["layered", ALL]
    alone, full = (rows_without(rows, w, "layered") for w in (TURNS_ALONE, ALL))
    assert alone["prediction"].tolist() == full["prediction"].tolist(), "the rules read turns alone"


def test_measuring_leaves_the_memories_as_they_were(memories):
    before = [m.system.state_version() for m in memories]
    layer_rows(memories[:1], "demo")
    time_roads(memories[:1], repeats=1, per_type=1)
    assert [m.system.state_version() for m in memories] == before
    texts = {m.id: m.text for m in memories[0].system.store.memories}
    with pytest.raises(RuntimeError), as_it_was(memories[0]):
        memories[0].system.memory.pin("Answer in French.")
        raise RuntimeError
    assert {m.id: m.text for m in memories[0].system.store.memories} == texts


# --- times


def test_every_way_is_timed_on_the_same_questions(memories):
    times = time_roads(memories[:1], repeats=2, per_type=1)
    assert set(times["way"]) == {*WAYS, PROMPT} and not times.duplicated(["way", "question"]).any()
    asked = {q.id for q in timed_questions(memories[0].questions, 1)}
    assert len(asked) == 5 and (times.groupby("way")["question"].agg(set) == asked).all()
    assert (times["ms"] > 0).all()
    for wrong in ({"repeats": 0}, {"per_type": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            time_roads(memories, **wrong)


def test_more_time_is_a_ratio_of_sums():
    ms = (
        {AT_ONCE: 12.0, PROMPT: 1.0}
        | {way: 2.5 for way in WAYS if way not in (AT_ONCE, TURNS)}
        | {TURNS: 10.0}
    )
    times = pd.DataFrame(
        [
            {"way": way, "conversation": f"c{c}", "question": f"q{c}", "ms": base * (1 + c)}
            for way, base in ms.items()
            for c in range(5)
        ]
    )
    more = more_than_turns(times).set_index("way")
    assert more.loc[AT_ONCE, "more"] == pytest.approx(0.2) and more.loc[PROMPT, "more"] == pytest.approx(-0.9)
    assert more.loc[AT_ONCE, ["low", "high"]].tolist() == pytest.approx([0.2, 0.2])
    assert math.isnan(more.loc[TURNS, "low"]), "no difference, no interval"
    table = road_time_table(times).set_index("way")
    assert table.loc[TURNS, "ms_share"] == "50 %" and table.loc[PROMPT, "ms_share"] == "–"
    assert table.loc[AT_ONCE, "ms_more"] == "+20 % [+20, +20]"


# --- growth


def test_a_long_conversation_repeats_what_there_is(data):
    talk = data.conversations[0]
    turns, new = long_conversation(data, 400)
    assert new == len(talk) == 182 and len(turns) == 400, "those in the language of the first"
    assert [m.step for m in turns] == list(range(1, 401)) and len({m.source for m in turns}) == 400
    assert [turns[i].text for i in (182, 364)] == [talk.turns[0].text] * 2
    assert all(a.at <= b.at for a, b in pairwise(turns))
    assert (turns[182].at - turns[181].at).total_seconds() == 86400
    assert long_conversation(data, 100)[1] == 100


def test_compression_gives_up_pages_and_keeps_topics_short():
    configs = {
        name: MemoryConfig(
            max_topic_pages=4, tail_pages=2, topic_threshold=0, enable_compression=name == COMPRESSED
        )
        for name in (COMPRESSED, WHOLE)
    }
    turns = turns_of(120)
    growth = grow(turns, [Question("q", "Where was I?")], embedder="hash", every=40, configs=configs)
    assert growth["turn"].tolist() == [40, 80, 120] * 2
    small, whole = (growth[growth["memory"] == name] for name in configs)
    assert (
        whole["pages in use"].tolist() == whole["pages written"].tolist() == small["pages written"].tolist()
    )
    assert (small["pages of the largest topic"] <= 4).all() and whole["pages of the largest topic"].iloc[
        -1
    ] > 4
    assert (small["pages in use"] < small["pages written"]).iloc[-1]
    lines = count_lines(growth)
    assert len(lines) == 4 * 3 and (lines["low"] == lines["high"]).all()
    with pytest.raises(ValueError, match="no questions"):
        grow(turns, [], embedder="hash")


def test_level_means_within_a_tenth_from_turn_200_on():
    row = {"memory": COMPRESSED, "topics": 3, "pages written": 40, "pages in use": 30}
    row |= {"pages of the largest topic": 9}
    growth = pd.DataFrame(
        [
            row | {"turn": turn, "tokens": t}
            for turn, t in ((100, 10.0), (200, 90.0), (300, 110.0), (400, 100.0))
        ]
    )
    assert largest_deviation(growth, COMPRESSED) == 0.1 and growth_answer(growth)[1] == "Yes."
    assert growth_answer(growth)[2] == (
        "100 tokens from turn 200 to 400, at most 10 % from that at any mark; 30 of 40 pages in use"
    )
    steeper = growth.assign(tokens=[10.0, 80.0, 120.0, 100.0])
    assert growth_answer(steeper)[1] == "No." and "is not level" in growth_sentences(steeper)[0]
    assert math.isnan(largest_deviation(growth, WHOLE))
