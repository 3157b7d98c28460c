"""LongMemEval: streaming, neutral ids, the official retrieval table, and the paper's own baseline."""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.data import longmemeval, registry
from adaptmr.data.longmemeval import (
    CATEGORY_TO_TYPE,
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
from adaptmr.systems.base import make_system
from adaptmr.systems.longmemeval_rag import (
    LongMemEvalRAG,
    TimeAwarePlanner,
    group_rounds,
)
from adaptmr.types import Conversation, Dataset, Memory, QueryType, Question


def allocated(work):
    """Return the bytes still allocated after a piece of work, and their peak."""
    tracemalloc.start()
    try:
        result = work()
        return result, *tracemalloc.get_traced_memory()
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
@settings(max_examples=60, deadline=None)
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
        (b'{"a": 1}', "byte 1: .*one array"),
        (b'[{"a": nope}]' + b" " * 99, "from byte 1 on are not JSON"),
        (b'[{"a": 1}] [', "byte 12: .*one array"),
        (b"[" * 200_000, "ends before|not JSON"),
    ):
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.json.*({why})"):
            list(iter_elements(tmp_path / "a.json"))


# ---------------------------------------------------------------- synthetic files


def question(
    id="q1", question_type="knowledge-update", n=3, evidence=((0, 0),), answer="seven", words=4, **more
):
    """A question with `n` sessions of two rounds each; `evidence` are (session, turn) pairs."""

    def turn(s, t):
        text = f"{id} s{s} t{t} " + "word " * words
        return {"role": ("user", "assistant")[t % 2], "content": text, "has_answer": (s, t) in evidence}

    held = sorted({s for s, _ in evidence})
    return {
        "question_id": id,
        "question_type": question_type,
        "question": f"What of {id}?",
        "answer": answer,
        "question_date": "2024/06/01 (Sat) 10:00",
        "haystack_dates": [f"2024/0{1 + s // 28}/{1 + s % 28:02} (Mon) 09:30" for s in range(n)],
        "haystack_session_ids": [f"answer_{id}_{s}" if s in held else f"noise_{s}" for s in range(n)],
        "haystack_sessions": [[turn(s, t) for t in range(4)] for s in range(n)],
        "answer_session_ids": [f"answer_{id}_{s}" for s in held],
    } | more


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path))

    def write(*rows, name="longmemeval_s_cleaned.json"):
        (tmp_path / name).write_text(json.dumps(list(rows)), encoding="utf-8")
        return tmp_path / name

    return write


def test_a_question_and_its_haystack_which_reveals_no_gold(put):
    said_never = {"answer": "never said", "answer_session_ids": []}
    put(question(evidence=((0, 0), (2, 2))), question("q2_abs", "multi-session", evidence=(), **said_never))
    data = load("longmemeval_s")
    assert data.label == "part of longmemeval_s: 2 conversations, 2 questions"
    assert data.licence == "MIT" and not data.complete and data.notes == {}
    one, two = data.questions
    assert (one.id, one.type, one.category) == ("q1", QueryType.knowledge_update, "knowledge-update")
    assert (one.evidence, one.sessions, one.answers) == (["S1:1", "S3:3"], ("S1", "S3"), ["seven"])
    assert one.asked_at == datetime(2024, 6, 1, 10, tzinfo=UTC)
    assert (two.type, two.answerable, two.evidence, two.sessions) == (QueryType.abstention, False, [], ())
    assert two.category == "multi-session"
    c = data.conversation(one.conversation)
    assert len(c) == len(c.turns) == 12 and c.sessions == ["S1", "S2", "S3"]
    assert [m.step for m in c.turns] == list(range(12)) and c.speakers == ("user", "assistant")
    assert all(a.at <= b.at for a, b in pairwise(c.turns))
    assert c.turns[8].id == f"{c.id}/S3:1" and c.turns[8].source == "S3:1"
    for q, c in zip(data.questions, data.conversations):
        seen = repr((replace(q.blind(), text=""), c, [replace(m, text="") for m in c.turns]))
        assert [gold for gold in ("answer_q", "_abs", "has_answer", "q1", "q2") if gold in seen] == []


def test_irregularities_are_counted_and_kept(put):
    dates = ["2024/07/01 (Mon) 09:30", "2024/01/02 (Tue)", "2024/01/03 (Wed) 09:30"]
    late = question("late", haystack_dates=dates, answer=7)
    bare = question("bare", answer_session_ids=["noise_1", "gone"])
    bare["haystack_sessions"] = [[{"role": "user", "content": c}] for c in (" ", "\ud83d")] + [[]]
    ids = ["x", "answer_theirs_1", "x"]
    theirs = question("theirs", "single-session-assistant", evidence=((1, 1),), haystack_session_ids=ids)
    never = question("never_abs", evidence=(), answer=None, answer_session_ids=[])
    put(late, bare, theirs, never)
    data = load("longmemeval_s")
    assert {name for name, n in data.notes.items() if n == 1} == set(data.notes) - {
        "questions_without_evidence_by_the_user"
    }
    assert set(data.notes) == set(
        "answer_sessions_missing answers_that_are_numbers haystacks_out_of_order sessions_after_the_question "
        "questions_asked_before_their_evidence questions_without_answer questions_without_evidence "
        "questions_without_evidence_by_the_user questions_without_labelled_turns session_ids_twice "
        "sessions_empty turns_empty".split()
    )
    one, two, three, four = data.questions
    assert (one.evidence, one.sessions) == (["S3:1"], ("S3",)), "sorted by time"
    assert data.conversations[0].turns[8].text.startswith("late s0")
    assert (two.evidence, two.sessions, three.evidence, four.answers) == ([], ("S2",), ["S2:2"], [])
    assert data.conversations[1].turns[1].text == "\ud83d" and len(data.conversations[1]) == 2


def test_a_file_of_another_form_is_named(put):
    for rows, why in (
        ([question(question_type="riddle")], "unknown type 'riddle'"),
        ([question(question_date="yesterday")], "'yesterday' is not written as"),
        ([{"a": 1}], "byte 1.*KeyError"),
        ([question(haystack_dates=["2024/01/01"])], "'q1' has 1, 3, 3 dates"),
        ([question(), question()], "a question's id twice"),
    ):
        put(*rows)
        with pytest.raises(ValueError, match=rf"longmemeval_s.*{why}"):
            load("longmemeval_s")


def test_a_file_changed_after_opening_is_an_error(put):
    put(question("q1"), question("q2"))
    data = load("longmemeval_s")
    put(question("q2"), question("q1"))
    with pytest.raises(ValueError, match="was changed after it was opened"):
        _ = data.conversations[0].turns


def test_split_by_question_and_limit(put):
    put(*(question(f"q{i}", list(CATEGORY_TO_TYPE)[i % 6]) for i in range(12)))
    data = load("longmemeval_s", split="q7, q2")
    assert {q.category: q.type for q in load("longmemeval_s").questions} == CATEGORY_TO_TYPE
    assert [q.id for q in data.questions] == ["q2", "q7"]
    assert [c.id for c in data] == [conversation_id("q2"), conversation_id("q7")]
    assert load("longmemeval_s", split=conversation_id("q7")).questions == data.questions[1:]
    few = load("longmemeval_s", limit=5)
    assert len(few.questions) == len(few.conversations) == 5 and not few.complete


def test_only_a_few_haystacks_are_in_memory(put):
    load("demo")  # what is imported is not counted
    peaks = []
    for n in (9, 27):  # 5 and 16 MB, 600 kB a question
        put(*(question(f"q{i}", n=12, words=2_500) for i in range(n)))
        data, left, peak = allocated(lambda: load("longmemeval_s"))
        assert left < 300_000, "what stays of a question"
        size, _, read = allocated(lambda data=data: sum(len(m.text) for c in data for m in c.turns))
        assert size > n * 590_000
        peaks.append((peak, read))
    assert max(map(max, peaks)) < 12_000_000 and max(b / a for a, b in zip(*peaks)) < 1.1, (
        "memory grows with the file",
        peaks,
    )
    cache = data.conversations[0]._read.func
    assert cache.cache_info().currsize == longmemeval._CACHE_SIZE and cache.cache_info().misses == 27


def test_timestamps():
    assert parse_timestamp("2023/05/30 (Tue) 23:40") == datetime(2023, 5, 30, 23, 40, tzinfo=UTC)
    assert parse_timestamp(" 2023/5/3 ") == datetime(2023, 5, 3, tzinfo=UTC)
    assert parse_question_time("2023/05/30 (Tue)") == datetime(2023, 5, 30, 23, 59, tzinfo=UTC)
    assert parse_question_time("2023/05/30 (Tue) 09:15") == datetime(2023, 5, 30, 9, 15, tzinfo=UTC)
    for text in ("", "2023-05-30", "2023/02/30", "2023/05/30 (Tue) 24:00"):
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
        assert q.conversation == c.id and [m.step for m in c.turns] == list(range(len(sources)))
        assert all(a.at <= b.at for a, b in pairwise(c.turns))
        assert {m.speaker for m in c.turns} <= {"user", "assistant"}
        assert all(sources[e].session in q.sessions for e in q.evidence)
        assert set(q.sessions) <= set(c.sessions) and q.answers and q.asked_at
        assert q.answerable == (not q.id.endswith("_abs")) == (q.type is not QueryType.abstention)


@pytest.mark.parametrize(
    "name, sessions, turns", [("longmemeval_oracle", 948, 10_960), ("longmemeval_s", 23_867, 246_750)]
)
def test_the_real_files(name, sessions, turns):
    data = load_real(name)
    check_dataset(data)
    if not data.complete:
        return  # a sample: the counts are those of the whole file
    counts = Counter(q.category for q in data.questions)
    assert [counts[c] for c in CATEGORY_TO_TYPE] == [70, 56, 30, 133, 133, 78]
    assert sum(not q.answerable for q in data.questions) == 30
    assert data.notes["questions_without_evidence_by_the_user"] == 51
    assert (sum(len(c.sessions) for c in data), sum(len(c) for c in data)) == (sessions, turns)


# ---------------------------------------------------------------- the official retrieval table


def turns_of(*sizes):
    return [
        Memory(f"c/S{s}:{t}", "x", "user", session=f"S{s}", source=f"S{s}:{t}")
        for s, n in enumerate(sizes, 1)
        for t in range(1, n + 1)
    ]


@st.composite
def haystacks(draw):
    turns = turns_of(*draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    gold = draw(st.lists(st.sampled_from([m.source for m in turns]), min_size=1, max_size=4, unique=True))
    return turns, gold, draw(st.permutations([m.source for m in turns])), draw(st.integers(1, 8))


@given(haystacks())
@settings(max_examples=100, deadline=None)
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
    q = HaystackQuestion("q", "?", evidence=gold, sessions=tuple(sorted(held)))
    ours = score_ranking(ranking, q, Conversation("c", turns=turns), k)["turn_to_session"]
    assert all(math.isclose(ours[m], theirs[m]) for m in theirs)


def test_hand_computed_scores():
    q = HaystackQuestion("q", "?", evidence=["S1:1", "S3:2"], sessions=("S1", "S3"))
    ranking = ["S1:2", "S2:1", "S3:2", "S1:1", "S2:2", "S3:1"]
    found = score_ranking(ranking, q, Conversation("c", turns=turns_of(2, 2, 2)), 3)
    ndcg = pytest.approx((1 / math.log2(3)) / 2)
    assert found["turn"] == {"recall_any": 1.0, "recall_all": 0.0, "ndcg_any": ndcg}
    assert found["session"]["recall_all"] == 1.0 and found["answer_session"] == found["session"]
    assert found["session"]["ndcg_any"] == pytest.approx((1 + 1 / math.log2(3)) / 2), "sessions S1, S2, S3"
    assert found["turn_to_session"]["recall_any"] == 1.0 and found["turn_to_session"]["recall_all"] == 0.0, (
        "S1 was only seen by a turn that isn't evidence"
    )


def toy() -> Dataset:
    """Four questions: ordinary, with evidence by the assistant, unlabelled, unanswerable."""
    talks, asked = [], []
    kinds = [(["S1:1"], ("S1",), True), (["S1:2"], ("S1",), True), ([], ("S2",), True), ([], (), False)]
    for i, (evidence, sessions, answerable) in enumerate(kinds):
        c = f"c{i}"
        turns = []
        for n, word in enumerate(("apples", "bananas", "cherries", "dates")):
            s, t = n // 2 + 1, n % 2 + 1
            about = {"session": f"S{s}", "step": n, "source": f"S{s}:{t}"}
            speaker = ("user", "assistant")[t == 2]
            at = datetime(2024, 1, s)
            turns.append(Memory(f"{c}/S{s}:{t}", f"{word} number {i}", speaker, at, **about))
        talks.append(Conversation(c, ("user", "assistant"), turns))
        text = ("apples?", "bananas?", "cherries?", "plums?")[i]
        gold = {"evidence": evidence, "sessions": sessions, "answerable": answerable}
        asked.append(HaystackQuestion(f"q{i}", text, ["x"], conversation=c, **gold))
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


# ---------------------------------------------------------------- the paper's baseline

TALK = [
    Memory(f"c/S{s}:{t}", text, who, datetime(2023, s, 5), session=f"S{s}", step=n, source=f"S{s}:{t}")
    for n, (s, t, who, text) in enumerate(
        [
            (1, 1, "user", "I adopted a cat yesterday. What do cats eat?"),
            (1, 2, "assistant", "Mostly meat."),
            (1, 3, "user", "Thanks!"),
            (2, 1, "assistant", "Welcome back!"),
            (2, 2, "user", "Which paint dries fast?"),
            (2, 3, "assistant", "Acrylic paint does."),
            (3, 1, "user", "I painted my fence."),
            (3, 2, "assistant", "Nice."),
        ]
    )
]


def test_a_round_is_a_turn_with_its_replies():
    rounds = [["S1:1", "S1:2"], ["S1:3"], ["S2:1"], ["S2:2", "S2:3"], ["S3:1", "S3:2"]]
    assert [[m.source for m in r] for r in group_rounds(TALK)] == rounds
    two = [replace(m, speaker="Ann" if m.speaker == "user" else "Ben") for m in TALK]
    assert group_rounds([]) == [] and group_rounds(two) == [[m] for m in two]


def test_keys_contain_facts_hits_are_turns_and_the_time_window_is_hard_unless_it_is_empty():
    system = LongMemEvalRAG(embedder="hash")
    system.ingest(Conversation("c", ("user", "assistant"), TALK))
    keys = {m.source: m.text for m in system.store.memories}
    assert keys["S1:1"].endswith("\nI adopted a cat yesterday (4 January 2023).")
    assert keys["S2:2"] == "Which paint dries fast?" and keys["S2:1"] == "Welcome back!"
    found = system.retrieve("cat", 2)
    assert found.sources == ["S1:1", "S1:2"] and found.hits[0].score == found.hits[1].score
    asked = Question("", "What did I say in February 2023?", asked_at=datetime(2023, 9, 1))
    assert {s[:2] for s in system.retrieve(asked, 10).sources} == {"S2"}
    assert len(system.retrieve(replace(asked, text="What did I say in June 2021?"), 10)) == 8
    plan = TimeAwarePlanner().plan(Question("", "Which cat?"), system.store)
    assert (plan.time_window, plan.weights, plan.window_rule) == (None, {"dense": 1.0}, "hard")


# ---------------------------------------------------------------- a file of the real size
