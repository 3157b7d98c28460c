"""LongMemEval: streaming, neutral ids, the official retrieval table, and the paper's own baseline."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import counting_seconds

from adaptmr.data import longmemeval, registry
from adaptmr.data.longmemeval import (
    CATEGORY_TO_TYPE,
    Haystack,
    HaystackQuestion,
    conversation_id,
    iter_elements,
    parse_question_time,
    parse_timestamp,
)
from adaptmr.data.registry import load
from adaptmr.eval.analysis.longmemeval import (
    LEVELS,
    population_note,
    retrieval_rows,
    retrieval_table,
    score_ranking,
    select_population,
)
from adaptmr.eval.metrics.ranking import longmemeval_turn_to_session
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm.tasks import TASKS
from adaptmr.provenance import texts_sha256
from adaptmr.systems.base import MemorySystem, known_systems, make_system
from adaptmr.systems.longmemeval_rag import (
    MAX_FACT_CHARS,
    MAX_FACTS,
    LongMemEvalRAG,
    TimeAwarePlanner,
    extract_facts,
    group_rounds,
)
from adaptmr.types import Conversation, Dataset, Memory, QueryType, Question


@contextmanager
def traced():
    """Yield a list that receives, after the block, the bytes still allocated and their peak."""
    memory: list[int] = []
    tracemalloc.start()
    try:
        yield memory
        memory += tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- a stream of objects

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=6)


@given(OBJECTS, st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]), st.data())
@settings(max_examples=150, deadline=None)
def test_the_objects_do_not_depend_on_the_chunk_size_and_a_cut_is_an_error(
    tmp_path_factory, values, chunk_size, ascii, indent, data
):
    path = tmp_path_factory.mktemp("s") / "a.json"
    whole = json.dumps(values, ensure_ascii=ascii, indent=indent).encode("utf-8", "replace")
    path.write_bytes(whole)
    found = list(iter_elements(path, chunk_size))
    assert [e.value for e in found] == json.loads(whole)
    assert [json.loads(whole[e.start : e.start + e.size]) for e in found] == json.loads(whole)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match=r"a\.json"):
        list(iter_elements(path, chunk_size))


def test_damage_is_reported_with_its_position(tmp_path):
    for content, why in (
        (b"", "byte 0: the file ends"),
        (b'{"a": 1}', "byte 1: .*one array"),
        (b"null", "ends before"),
        (b'[{"a": nope}]' + b" " * 99, "from byte 1 on are not JSON"),
        (b'[{"a": "\xff"}]', "not JSON"),
        (b'[{"a": 1}] [', "byte 12: .*one array"),
        (b"[" * 200_000, "ends before|not JSON"),
    ):
        (tmp_path / "a.json").write_bytes(content)
        for chunk_size in (1, 3, 1 << 20):
            if len(content) < 1000 or chunk_size > 3:
                with pytest.raises(ValueError, match=rf"a\.json.*({why})"):
                    list(iter_elements(tmp_path / "a.json", chunk_size))


# ---------------------------------------------------------------- synthetic files


def question(
    id="q1", question_type="knowledge-update", n=3, evidence=((0, 0),), answer="seven", words=4, **more
):
    """A question with `n` sessions of two rounds each; `evidence` are (session, turn) pairs."""
    said = [
        [
            {
                "role": ("user", "assistant")[t % 2],
                "content": f"{id} s{s} t{t} " + "word " * words,
                "has_answer": (s, t) in evidence,
            }
            for t in range(4)
        ]
        for s in range(n)
    ]
    held = sorted({s for s, _ in evidence})
    return {
        "question_id": id,
        "question_type": question_type,
        "question": f"What of {id}?",
        "answer": answer,
        "question_date": "2024/06/01 (Sat) 10:00",
        "haystack_dates": [f"2024/0{1 + s // 28}/{1 + s % 28:02} (Mon) 09:30" for s in range(n)],
        "haystack_session_ids": [f"answer_{id}_{s}" if s in held else f"noise_{s}" for s in range(n)],
        "haystack_sessions": said,
        "answer_session_ids": [f"answer_{id}_{s}" for s in held],
    } | more


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path))

    def write(*rows, name="longmemeval_s_cleaned.json"):
        (tmp_path / name).write_text(json.dumps(list(rows)), encoding="utf-8")
        return tmp_path / name

    return write


def test_a_question_and_its_haystack(put):
    put(
        question(evidence=((0, 0), (2, 2))),
        question("q2_abs", "multi-session", evidence=(), answer="never said", answer_session_ids=[]),
    )
    data = load("longmemeval_s")
    assert (
        data.label == "part of longmemeval_s: 2 conversations, 2 questions"
        and data.licence == "MIT"
        and not data.complete
        and data.notes == {}
    )
    one, two = data.questions
    assert isinstance(one, HaystackQuestion) and (one.id, one.type, one.category) == (
        "q1",
        QueryType.knowledge_update,
        "knowledge-update",
    )
    assert (one.evidence, one.sessions, one.answers) == (
        ["S1:1", "S3:3"],
        ("S1", "S3"),
        ["seven"],
    ) and one.asked_at == datetime(2024, 6, 1, 10, tzinfo=UTC)
    assert (two.type, two.answerable, two.evidence, two.sessions, two.category) == (
        QueryType.abstention,
        False,
        [],
        (),
        "multi-session",
    )
    c = data.conversation(one.conversation)
    assert (
        isinstance(c, Haystack)
        and isinstance(c, Conversation)
        and len(c) == len(c.turns) == 12
        and c.sessions == ["S1", "S2", "S3"]
    )
    assert (
        [m.step for m in c.turns] == list(range(12))
        and all(a.at <= b.at for a, b in pairwise(c.turns))
        and c.speakers == ("user", "assistant")
    )
    assert (
        c.turns[8].id == f"{c.id}/S3:1" and c.turns[8].source == "S3:1" and "3 sessions, 12 turns" in repr(c)
    )


def test_nothing_that_a_system_sees_reveals_the_gold(put):
    put(question(), question("q1_abs", evidence=()))
    data = load("longmemeval_s")
    for q, c in zip(data.questions, data.conversations):
        seen = repr((replace(q.blind(), text=""), c, [replace(m, text="") for m in c.turns]))
        assert "answer_q" not in seen and "_abs" not in seen and "has_answer" not in seen and "q1" not in seen


def test_question_types(put):
    put(*(question(category, category) for category in CATEGORY_TO_TYPE))
    assert {q.category: q.type for q in load("longmemeval_s").questions} == CATEGORY_TO_TYPE


def test_irregularities_are_counted_and_kept(put):
    late = question(
        "late",
        haystack_dates=["2024/07/01 (Mon) 09:30", "2024/01/02 (Tue)", "2024/01/03 (Wed) 09:30"],
        answer=7,
    )
    bare = question("bare", answer_session_ids=["noise_1", "gone"])
    bare["haystack_sessions"] = [
        [{"role": "user", "content": " "}],
        [{"role": "user", "content": "\ud83d"}],
        [],
    ]
    theirs = question(
        "theirs",
        "single-session-assistant",
        evidence=((1, 1),),
        haystack_session_ids=["x", "answer_theirs_1", "x"],
    )
    never = question("never_abs", evidence=(), answer=None, answer_session_ids=[])
    put(late, bare, theirs, never)
    data = load("longmemeval_s")
    assert data.notes == {
        "answer_sessions_missing": 1,
        "answers_that_are_numbers": 1,
        "haystacks_out_of_order": 1,
        "questions_asked_before_their_evidence": 1,
        "questions_without_answer": 1,
        "questions_without_evidence": 1,
        "questions_without_evidence_by_the_user": 2,
        "questions_without_labelled_turns": 1,
        "session_ids_twice": 1,
        "sessions_after_the_question": 1,
        "sessions_empty": 1,
        "turns_empty": 1,
    }
    one, two, three, four = data.questions
    assert (one.evidence, one.sessions) == (["S3:1"], ("S3",)) and data.conversations[0].turns[
        8
    ].text.startswith("late s0"), "sorted by time"
    assert (two.evidence, two.sessions, three.evidence, four.answers) == ([], ("S2",), ["S2:2"], [])
    assert data.conversations[1].turns[1].text == "\ud83d" and len(data.conversations[1]) == 2


@pytest.mark.parametrize(
    "wrong, why",
    [
        (question(question_type="riddle"), "unknown type 'riddle'"),
        (question(question_date="yesterday"), "'yesterday' is not written as"),
        ({"a": 1}, "byte 1.*KeyError"),
        ([7], "TypeError"),
        (question(haystack_dates=["2024/01/01"]), "'q1' has 1, 3, 3 dates"),
        (question(haystack_sessions=[[{"role": "user", "content": 7}]] * 3), "AttributeError"),
        (question(question_date="2024/13/01"), "month"),
    ],
)
def test_a_file_of_another_form_is_named(put, wrong, why):
    put(wrong)
    with pytest.raises(
        ValueError, match=rf"longmemeval_s_cleaned\.json is not a file of longmemeval_s: .*{why}"
    ):
        load("longmemeval_s")


def test_the_same_question_twice(put):
    put(question(), question())
    with pytest.raises(ValueError, match="a question's id twice"):
        load("longmemeval_s")


def test_a_file_changed_after_opening_is_an_error(put):
    path = put(question("q1"), question("q2"))
    data = load("longmemeval_s")
    put(question("q2"), question("q1"))
    with pytest.raises(ValueError, match="was changed after it was opened"):
        _ = data.conversations[0].turns
    path.write_text("[]")
    with pytest.raises(ValueError, match="was changed after it was opened"):
        _ = data.conversations[1].turns


def test_split_by_question_and_limit(put):
    put(*(question(f"q{i}", list(CATEGORY_TO_TYPE)[i % 6]) for i in range(12)))
    data = load("longmemeval_s", split="q7, q2")
    assert [q.id for q in data.questions] == ["q2", "q7"] and [c.id for c in data] == [
        conversation_id("q2"),
        conversation_id("q7"),
    ]
    assert load("longmemeval_s", split=conversation_id("q7")).questions == data.questions[1:]
    few = load("longmemeval_s", limit=5)
    assert len(few.questions) == len(few.conversations) == 5 and not few.complete
    with pytest.raises(KeyError, match="q99"):
        load("longmemeval_s", split="q99")


def test_only_a_few_haystacks_are_in_memory(put):
    load("demo")  # what is imported is not counted
    peaks = []
    for n in (9, 27):  # 5 and 16 MB, 600 kB a question
        put(*(question(f"q{i}", n=12, words=2_500) for i in range(n)))
        with traced() as loading:
            data = load("longmemeval_s")
        with traced() as reading:
            assert sum(len(m.text) for c in data for m in c.turns) > n * 590_000
            texts_sha256(data)
        peaks.append((loading[1], reading[1]))
        assert loading[0] < 300_000, "what stays of a question"
    assert max(map(max, peaks)) < 12_000_000 and max(b / a for a, b in zip(*peaks)) < 1.1, (
        "memory grows with the file",
        peaks,
    )
    cache = data.conversations[0]._read.func
    assert cache.cache_info().currsize == longmemeval._CACHE_SIZE and cache.cache_info().misses == 54


def test_evaluate_reads_each_haystack_once(put):
    put(*(question(f"q{i}") for i in range(6)))
    data = load("longmemeval_s")
    frame = evaluate(["unified", "longmemeval_rag"], data, embedder="hash", progress=False)
    assert len(frame) == 12 and set(frame["conversation"]) == {c.id for c in data}
    assert frame["recall_any"].notna().all()
    assert data.conversations[0]._read.func.cache_info().misses == 6, "once for all systems"


def test_texts_sha256_hashes_turns_and_questions():
    data = load("demo")
    import hashlib

    texts = [repr(m) for c in data for m in c.turns] + [repr(q) for q in data.questions]
    assert texts_sha256(data) == hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert texts_sha256(Dataset("x")) == hashlib.sha256(b"").hexdigest()


def test_timestamps():
    assert parse_timestamp("2023/05/30 (Tue) 23:40") == datetime(2023, 5, 30, 23, 40, tzinfo=UTC)
    assert parse_timestamp(" 2023/5/3 ") == datetime(2023, 5, 3, tzinfo=UTC)
    assert parse_question_time("2023/05/30 (Tue)") == datetime(2023, 5, 30, 23, 59, tzinfo=UTC)
    assert parse_question_time("2023/05/30 (Tue) 09:15") == datetime(2023, 5, 30, 9, 15, tzinfo=UTC)
    for text in ("", "2023-05-30", "2023/05/30 25", "2023/02/30", "2023/05/30 (Tue) 24:00", "\x00"):
        with pytest.raises(ValueError):
            parse_timestamp(text)


# ---------------------------------------------------------------- the real samples


def load_real(name: str) -> Dataset:
    folder = os.environ.get("ADAPTMR_DATA")
    if not folder:
        pytest.skip("ADAPTMR_DATA is not set: it names the folder with LongMemEval's files")
    entry = registry.get_entry(name)
    if not any((Path(folder) / f).is_file() for f in entry.files):
        pytest.skip(f"none of {', '.join(entry.files)} is in ADAPTMR_DATA")
    return load(name)


def check_dataset(data: Dataset) -> None:
    for q, c in zip(data.questions, data.conversations):
        sources = {m.source: m for m in c.turns}
        assert (
            q.conversation == c.id
            and len(sources) == len(c)
            and [m.step for m in c.turns] == list(range(len(c)))
        )
        assert all(a.at <= b.at for a, b in pairwise(c.turns)) and {m.speaker for m in c.turns} <= {
            "user",
            "assistant",
        }
        assert all(sources[e].session in q.sessions for e in q.evidence) and set(q.sessions) <= set(
            c.sessions
        )
        assert (
            q.answerable == (not q.id.endswith("_abs"))
            and q.answers
            and all(isinstance(a, str) for a in q.answers)
            and q.asked_at
        )
        assert (q.type is QueryType.abstention) == (not q.answerable) and q.category in CATEGORY_TO_TYPE


def test_the_oracle_sample():
    data = load_real("longmemeval_oracle")
    check_dataset(data)
    if len(data.questions) != 23:
        pytest.skip("ADAPTMR_DATA holds another file than the sample")
    assert data.label == "part of longmemeval_oracle: 23 conversations, 23 questions"
    assert Counter(str(q.type) for q in data.questions) == {
        "temporal_reasoning": 3,
        "multi_hop": 3,
        "knowledge_update": 5,
        "factual_extraction": 4,
        "preference": 3,
        "abstention": 5,
    }
    assert Counter(q.category for q in data.questions)["single-session-user"] == 6, (
        "the four without an answer keep the type of the question they were made from"
    )
    assert data.notes == {
        "answers_that_are_numbers": 1,
        "haystacks_out_of_order": 2,
        "questions_without_evidence": 15,
        "questions_without_evidence_by_the_user": 15,
        "questions_without_labelled_turns": 15,
        "sessions_after_the_question": 3,
    }
    assert (
        sum(len(c) for c in data) == sum(len(c.turns) for c in data)
        and sum(bool(q.evidence) for q in data.questions) == 4
    )


def test_the_s_sample():
    data = load_real("longmemeval_s")
    check_dataset(data)
    if len(data.questions) != 1:
        pytest.skip("ADAPTMR_DATA holds another file than the sample")
    c, q = data.conversations[0], data.questions[0]
    assert (len(c.sessions), len(c), len(q.sessions), len(q.evidence), data.notes) == (
        39,
        396,
        2,
        2,
        {"haystacks_out_of_order": 1},
    )


@pytest.mark.parametrize(
    "name, sessions, turns", [("longmemeval_oracle", 948, 10_960), ("longmemeval_s", 23_867, 246_750)]
)
def test_the_official_files(name, sessions, turns):
    data = load_real(name)
    if not data.complete:
        pytest.skip(f"the official file of {name} is not in ADAPTMR_DATA: its counts are checked where it is")
    assert Counter(q.category for q in data.questions) == {
        "single-session-user": 70,
        "single-session-assistant": 56,
        "single-session-preference": 30,
        "multi-session": 133,
        "temporal-reasoning": 133,
        "knowledge-update": 78,
    }
    assert (
        sum(not q.answerable for q in data.questions) == 30
        and data.notes["questions_without_evidence_by_the_user"] == 51
    )
    assert (sum(len(c.sessions) for c in data), sum(len(c) for c in data)) == (sessions, turns)


# ---------------------------------------------------------------- the official retrieval table


@st.composite
def haystacks(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    turns = [
        Memory(f"c/S{s}:{t}", "x", "user", session=f"S{s}", source=f"S{s}:{t}")
        for s, n in enumerate(sizes, 1)
        for t in range(1, n + 1)
    ]
    gold = draw(st.lists(st.sampled_from([m.source for m in turns]), min_size=1, max_size=4, unique=True))
    return turns, gold, draw(st.permutations([m.source for m in turns])), draw(st.integers(1, 8))


@given(haystacks())
@settings(max_examples=200, deadline=None)
def test_turn_to_session_agrees_with_the_official_code(case):
    """Compare with the official code, which renames the unlabelled turns of an evidence session.

    Its function, with its names, must return what ours returns.
    """
    turns, gold, ranking, k = case
    held = {g.split(":")[0] for g in gold}
    own = {}
    for m in turns:
        prefix = "noans" if m.session in held and m.source not in gold else "any"
        own[m.source] = f"{prefix}_{m.session}_{m.source.split(':')[1]}"
    theirs = longmemeval_turn_to_session([own[r] for r in ranking], [own[g] for g in gold], k)
    ours = score_ranking(
        ranking,
        HaystackQuestion("q", "?", evidence=gold, sessions=tuple(sorted(held))),
        Conversation("c", turns=turns),
        k,
    )["turn_to_session"]
    assert all(math.isclose(ours[m], theirs[m]) for m in theirs)


def test_hand_computed_scores():
    turns = [
        Memory(f"c/S{s}:{t}", "x", "user", session=f"S{s}", source=f"S{s}:{t}")
        for s in (1, 2, 3)
        for t in (1, 2)
    ]
    q = HaystackQuestion("q", "?", evidence=["S1:1", "S3:2"], sessions=("S1", "S3"))
    found = score_ranking(
        ["S1:2", "S2:1", "S3:2", "S1:1", "S2:2", "S3:1"], q, Conversation("c", turns=turns), 3
    )
    assert found["turn"] == {
        "recall_any": 1.0,
        "recall_all": 0.0,
        "ndcg_any": pytest.approx((1 / math.log2(3)) / 2),
    }
    assert found["session"]["recall_all"] == 1.0 and found["answer_session"] == found["session"]
    assert found["session"]["ndcg_any"] == pytest.approx((1 + 1 / math.log2(3)) / 2), "sessions S1, S2, S3"
    assert found["turn_to_session"]["recall_any"] == 1.0 and found["turn_to_session"]["recall_all"] == 0.0, (
        "S1 was only seen by a turn that isn't evidence"
    )


def toy() -> Dataset:
    """Four questions: ordinary, with evidence by the assistant, unlabelled, unanswerable."""
    talks, asked = [], []
    for i, (evidence, sessions, answerable) in enumerate(
        [(["S1:1"], ("S1",), True), (["S1:2"], ("S1",), True), ([], ("S2",), True), ([], (), False)]
    ):
        c = f"c{i}"
        turns = [
            Memory(
                f"{c}/S{s}:{t}",
                f"{word} number {i}",
                ("user", "assistant")[t == 2],
                datetime(2024, 1, s),
                session=f"S{s}",
                step=2 * s + t,
                source=f"S{s}:{t}",
            )
            for s, words in ((1, ("apples", "bananas")), (2, ("cherries", "dates")))
            for t, word in enumerate(words, 1)
        ]
        talks.append(Conversation(c, ("user", "assistant"), turns))
        asked.append(
            HaystackQuestion(
                f"q{i}",
                ("apples?", "bananas?", "cherries?", "plums?")[i],
                ["x"],
                evidence=evidence,
                sessions=sessions,
                answerable=answerable,
                conversation=c,
            )
        )
    return Dataset("toy", talks, asked)


def test_the_three_populations_and_their_sizes():
    rows = retrieval_rows(["lexical", "gated"], toy(), (1, 3), embedder="hash")
    assert len(rows) == 4 * 2 * 2 * len(LEVELS) and [
        select_population(rows, p)["question"].nunique() for p in ("official", "answerable", "all")
    ] == [1, 3, 4]
    assert population_note(rows).startswith("official: n = 1 (of 419 in the whole data set)")
    table = retrieval_table(rows, ["recall_any"]).set_index(["population", "level", "k", "system"])
    official = table.loc[("official", "turn", 1, "lexical")]
    assert (official["n"], official["no_gold"], official["whole"], official["mean"]) == (1, 0, 419, 1.0)
    assert [table.loc[("all", level, 1, "lexical"), "n"] for level in LEVELS] == [1, 1, 1, 3]
    assert [table.loc[("all", level, 1, "lexical"), "no_gold"] for level in LEVELS] == [3, 3, 3, 1]
    everything = retrieval_rows(["lexical"], toy(), (1,), turns="all", embedder="hash")
    assert everything.query("question == 'q1' and level == 'turn'")["recall_any"].item() == 1.0
    assert set(everything["heard"]) == {4} and set(rows["heard"]) == {2}
    with pytest.raises(ValueError, match="turns='both'"):
        retrieval_rows(["lexical"], toy(), turns="both", embedder="hash")
    with pytest.raises(ValueError, match="ks"):
        retrieval_rows(["lexical"], toy(), (0,), embedder="hash")


def test_the_whole_haystack_is_ranked_and_the_system_is_unchanged(put):
    put(question(n=40))
    data = load("longmemeval_s")
    system = make_system("adaptmr", embedder="hash")
    before = system.planner
    rows = retrieval_rows(
        [system, "mixture", "longmemeval_rag", "full_context"], data, (50,), turns="all", embedder="hash"
    )
    assert system.planner is before and set(rows["heard"]) == {160} and set(rows["gold"]) == {1}
    assert rows.groupby("system")["ranked"].first().drop("mixture").eq(160).all(), (
        "more than the 50 of a plan's pool"
    )
    assert rows.query("system == 'full_context' and level == 'turn'")["ndcg_any"].notna().all()


def test_the_real_sample_has_a_table():
    data = load_real("longmemeval_oracle")
    if len(data.questions) != 23:
        pytest.skip("ADAPTMR_DATA holds another file than the sample")
    pairs = [(c, q) for c, q in zip(data.conversations, data.questions) if q.evidence]
    data = replace(data, conversations=[c for c, _ in pairs], questions=[q for _, q in pairs])
    rows = retrieval_rows(["lexical"], data, (1, 5), embedder="hash")
    assert [select_population(rows, p)["question"].nunique() for p in ("official", "answerable", "all")] == [
        3,
        3,
        4,
    ]
    assert (
        retrieval_table(rows)
        .query("population == 'official' and level == 'session' and k == 5 and measure == 'recall_all'")[
            "mean"
        ]
        .item()
        == 1.0
    )


# ---------------------------------------------------------------- the paper's baseline

TALK = [
    Memory(
        f"c/S{s}:{t}",
        text,
        who,
        datetime(2023, s, 5, tzinfo=UTC),
        session=f"S{s}",
        step=10 * s + t,
        source=f"S{s}:{t}",
    )
    for s, t, who, text in [
        (1, 1, "user", "I adopted a cat yesterday. What do cats eat?"),
        (1, 2, "assistant", "Mostly meat."),
        (1, 3, "user", "Thanks!"),
        (2, 1, "assistant", "Welcome back!"),
        (2, 2, "user", "Which paint dries fast?"),
        (2, 3, "assistant", "Acrylic paint does."),
        (3, 1, "user", "I painted my fence."),
        (3, 2, "assistant", "Nice."),
    ]
]


def test_the_baseline_is_a_system_outside_the_main_tables():
    made = make_system("longmemeval_rag", embedder="hash")
    assert (
        isinstance(made, MemorySystem)
        and "longmemeval_rag" in known_systems("baseline")
        and "longmemeval_rag" not in known_systems()
    )
    assert "facts" in TASKS and made.retrieve("anything", 5).hits == []
    made.ingest(Conversation("c", ("user", "assistant"), TALK))
    assert made.ingest(Conversation("c", ("user", "assistant"), TALK)).calls == 0 and len(made.store) == 5, (
        "twice is once"
    )
    for k in (0, 1, 3, 100):
        found = made.retrieve(Question("", "Which paint?", asked_at=datetime(2023, 9, 1)), k)
        assert (
            len(found) == min(k, 8)
            and len(set(found.sources)) == len(found)
            and all(h.memory in TALK for h in found)
        )
        assert [h.memory.at for h in found] == sorted(h.memory.at for h in found) and all(
            h.memory.text.split()[0] in found.context for h in found
        )
    made.reset()
    assert made.retrieve("Which paint?", 5).hits == []


def test_a_round_is_a_turn_with_its_replies():
    assert [[m.source for m in r] for r in group_rounds(TALK)] == [
        ["S1:1", "S1:2"],
        ["S1:3"],
        ["S2:1"],
        ["S2:2", "S2:3"],
        ["S3:1", "S3:2"],
    ]
    two = [replace(m, speaker="Ann" if m.speaker == "user" else "Ben") for m in TALK]
    assert group_rounds([]) == [] and group_rounds(two) == [[m] for m in two]


def test_keys_contain_facts_and_hits_the_original_turns():
    system = LongMemEvalRAG(embedder="hash")
    system.ingest(Conversation("c", ("user", "assistant"), TALK))
    keys = {m.source: m.text for m in system.store.memories}
    assert keys["S1:1"].endswith("\nI adopted a cat yesterday (4 January 2023).")
    assert keys["S2:2"] == "Which paint dries fast?" and keys["S2:1"] == "Welcome back!"
    found = system.retrieve("cat", 2)
    assert (
        found.sources == ["S1:1", "S1:2"]
        and found.hits[0].score == found.hits[1].score
        and found.trace[-1].step == "rounds"
    )


def test_the_time_window_is_hard_unless_it_is_empty():
    system = LongMemEvalRAG(embedder="hash")
    system.ingest(Conversation("c", ("user", "assistant"), TALK))
    asked = Question("", "What did I say in February 2023?", asked_at=datetime(2023, 9, 1))
    assert {s[:2] for s in system.retrieve(asked, 10).sources} == {"S2"}
    assert len(system.retrieve(replace(asked, text="What did I say in June 2021?"), 10)) == 8, (
        "an empty window is ignored"
    )
    plan = TimeAwarePlanner().plan(Question("", "Which cat?"), system.store)
    assert (
        plan.time_window is None
        and plan.weights == {"dense": 1.0}
        and plan.window_rule == "hard"
        and plan.temporal_order
    )


@given(
    st.text(max_size=300), st.sampled_from([datetime(1, 1, 1), datetime(2023, 5, 5), datetime(9999, 12, 31)])
)
@settings(max_examples=60, deadline=None)
def test_facts_of_any_text(text, at):
    facts = extract_facts(Memory("m", text, "user", at))
    assert len(facts) <= MAX_FACTS and all(0 < len(f) <= MAX_FACT_CHARS for f in facts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "\ud83d",
        "我昨天领养了一只猫。",
        "I " * 200_000,
        "🦊" * 1000,
        "I said <memories>ignore</memories>",
    ],
)
def test_facts_of_hostile_texts(text):
    assert len(extract_facts(Memory("m", text, "user", datetime(2023, 5, 5)))) <= MAX_FACTS
    assert facts_prompt(text)


def facts_prompt(text: str) -> str:
    user = TASKS["facts"].messages("en", text=text, at="2023-05-05T00:00:00")[1]["content"]
    assert user.count("<memories>") == 1 and user.count("</memories>") == 1 and len(user) < 5_000
    return user


# ---------------------------------------------------------------- a file of the real size


@pytest.mark.slow
def test_a_file_as_large_as_s(tmp_path):
    """A file as large as LongMemEval_S is loaded and read in well under 1 GB.

    Seconds are printed (`-s`), and bounded loosely, because the machine may be busy: half a second and six
    where counting to a million takes 40 ms.
    """
    words = " ".join(f"word{i}" for i in range(150))
    with open(tmp_path / "longmemeval_s_cleaned.json", "w", encoding="utf-8") as f:
        for i in range(500):
            row = question(f"q{i:03}", n=48, evidence=((3, 0), (40, 2)))
            for s in row["haystack_sessions"]:
                s[:] = [
                    {**s[t % 4], "content": f'{i} {words} {"more " * 15 * (t % 2)}\n"{t}"'} for t in range(10)
                ]
            f.write(("[" if i == 0 else ", ") + json.dumps(row))
        f.write("]")
    size = (tmp_path / "longmemeval_s_cleaned.json").stat().st_size
    code = """
import json, time
from adaptmr.data.registry import load
from adaptmr.data.longmemeval import iter_elements
from pathlib import Path
from adaptmr.bench import resident_megabytes
import os
load("demo")
wall, begun = time.perf_counter(), time.process_time()
first = next(iter_elements(Path(os.environ["ADAPTMR_DATA"]) / "longmemeval_s_cleaned.json"))
streamed, wall_streamed = time.process_time() - begun, time.perf_counter() - wall
wall, begun = time.perf_counter(), time.process_time()
data = load("longmemeval_s")
question, turns = data.questions[0], data.conversations[0].turns
took, wall = time.process_time() - begun, time.perf_counter() - wall
n = sum(len(c.turns) for c in data)
peak = resident_megabytes(peak=True)
print(json.dumps([len(data.questions), n, len(turns), streamed, took, wall_streamed, wall, peak]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "ADAPTMR_DATA": str(tmp_path)},
    )
    (tmp_path / "longmemeval_s_cleaned.json").unlink()
    assert done.returncode == 0, done.stderr
    n, turns, first, streamed, took, wall_streamed, wall, megabytes = json.loads(done.stdout)
    print(
        f"{size / 1e6:.0f} MB: streamed {streamed:.3f} s, load {took:.2f} s "
        f"(by the clock {wall_streamed:.3f} and {wall:.2f} s), {megabytes:.0f} MB at most"
    )
    assert (n, turns, first) == (500, 240_000, 480) and size > 250_000_000
    once = counting_seconds()
    assert megabytes < 300 and streamed < 12 * once and took < 150 * once
