"""Attribution of failures: known causes, ties and doubles, skipped calls, the limit of calls, a whole run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import server as s
from hypothesis import given, settings
from hypothesis import strategies as st

import adaptmr as am
from adaptmr.eval.analysis import attribution as c
from adaptmr.eval.analysis import causes
from adaptmr.eval.analysis import causes as h
from adaptmr.eval.analysis.attribution import REPAIRS, Failure, outdated_hits
from adaptmr.eval.annotation.labels import CAUSES
from adaptmr.llm import LLM
from adaptmr.llm.replay import ReplayCache
from adaptmr.retrieval.evidence import render_context
from adaptmr.systems.fixed import without_times
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, QueryType, Question

DAY0 = datetime(2024, 1, 1, tzinfo=UTC)
SAID = [
    "I live in Oslo, near the harbour.",
    "The slugs are back.",
    "I live in Bergen now.",
    "My cat is called Snowy.",
    "I like tea.",
]
TALK = Conversation(
    "c",
    ("Ann",),
    [
        Memory(f"m{i}", text, "Ann", DAY0 + timedelta(days=10 * i), session=f"s{i}", step=i, source=f"D{i}")
        for i, text in enumerate(SAID)
    ],
)
OLD, SLUGS, NEW, CAT, TEA = TALK.turns
WHERE = Question(
    "q1", "Where do I live now?", ["Bergen"], QueryType.knowledge_update, evidence=["D2"], conversation="c"
)


def found(*turns, **more):
    hits = [Hit(m, 1 - i / 10) for i, m in enumerate(turns)]
    return Evidence(hits, context=render_context(hits), **more)


def reply(text):
    return s.ok_json({"answer": text or "", "abstain": not text})


def memories(body):
    return body["messages"][1]["content"].split("<memories>\n")[1].split("\n</memories>")[0].split("\n")


@pytest.fixture
def reader():
    """Makes a real client of a server on loopback that answers by a function of the memories' lines."""
    open_ = []

    def make(says, **more):
        server = s.Server(s.answering(lambda body: reply(says(memories(body)))))
        server.__enter__()
        open_.append(server)
        return LLM("m", base_url=server.url, api_key="k", **more), server

    yield make
    for server in open_:
        server.__exit__()


def has(lines, *words):
    return all(any(w in line for line in lines) for w in words)


# --- each cause alone, by a reader that needs exactly that


def test_miss(reader):
    llm, server = reader(lambda lines: "Bergen" if has(lines, "Bergen") else "tea")
    d = c.diagnose(WHERE, found(TEA, SLUGS), TALK, llm)
    assert d.cause == "MISS"
    assert d.minimal_repairs == (frozenset({"MISS"}),)
    assert d.complete
    assert d.usage.calls == len(server.requests) - 1
    shown = memories(server.requests[1])
    assert has(shown, "tea", "slugs") and shown[0].endswith("Bergen now."), "the rest is kept, gold on top"


FIRST = Question(
    "q",
    "Which came first, the cat or the slugs?",
    ["slugs"],
    QueryType.temporal_reasoning,
    evidence=["D1", "D3"],
)
UNDATED = replace(SLUGS, at=datetime(1970, 1, 1), step=0)


@pytest.mark.parametrize(
    ("cause", "question", "turns", "says"),
    [
        ("TEMPORAL", FIRST, (CAT, SLUGS), lambda lines: "slugs" if "slugs" in lines[0] else "cat"),
        # dates that a system lost come back
        (
            "TEMPORAL",
            FIRST,
            (UNDATED, CAT),
            lambda x: "slugs" if has(x, "2024-01-11", "2024-01-31") else "cat",
        ),
        # taking out the distractors takes out too much for this reader
        (
            "CONFLICT",
            WHERE,
            (OLD, NEW, TEA),
            lambda x: "Bergen" if has(x, "Bergen", "tea") > has(x, "Oslo") else "",
        ),
        ("OVERLOAD", WHERE, (NEW, TEA, CAT), lambda lines: "Bergen" if len(lines) < 2 else "tea"),
        ("unstable", WHERE, (OLD,), lambda lines: "Bergen"),
    ],
)
def test_each_cause_alone_by_a_reader_that_needs_exactly_that(reader, cause, question, turns, says):
    llm, server = reader(says)
    d = c.diagnose(question, found(*turns), TALK, llm)
    assert d.cause == cause and d.usage.calls == len(server.requests) - 1


# --- ties, doubles, all together


def test_a_tie_is_shown_and_shared(reader):
    llm, _ = reader(lambda lines: "Oslo" if has(lines, "Oslo") else "Bergen")
    d = c.diagnose(WHERE, found(OLD, NEW), TALK, llm)
    assert d.cause == "CONFLICT|OVERLOAD"
    assert d.minimal_repairs == (frozenset({"CONFLICT"}), frozenset({"OVERLOAD"}))
    assert c.primary_cause(d.cause) == "CONFLICT"


def test_shapley_values_by_hand():
    worth = {"": 0.0, "M": 0.4, "O": 0.2, "MO": 0.8}
    shares = c.shapley_values("MO", lambda some: worth["".join(sorted(some))])
    assert shares == pytest.approx({"M": 0.5, "O": 0.3}) and c.shapley_values("", lambda some: 1.0) == {}


# --- gains: what each repair gives back, graded


def test_gains_by_hand(reader):
    """With the gold added the F1 is 1/2, with the old address removed as well 1; that alone doesn't help."""

    def says(lines):
        if not has(lines, "Bergen"):
            return "tea"
        return "Bergen or Oslo" if has(lines, "Oslo") else "Bergen"

    llm, _ = reader(says)
    where = replace(WHERE, answers=["Bergen"])
    d = c.diagnose(where, found(OLD, TEA), TALK, llm)
    # "Bergen or Oslo" has an F1 of 1/2. Of the six orders of the three repairs, MISS is first in two and adds
    # 0.5, else it adds 1; CONFLICT adds 0.5 in the order MISS, CONFLICT, OVERLOAD only
    assert d.gains == pytest.approx({"MISS": 5 / 6, "CONFLICT": 1 / 12, "OVERLOAD": 1 / 12, "TEMPORAL": 0})
    assert (d.score, d.repaired) == (0, 1) and sum(d.gains.values()) == pytest.approx(1)
    assert set(d.seen) == {"MISS", "CONFLICT", "OVERLOAD", "TEMPORAL"} and d.complete


@given(st.lists(st.integers(0, 4), unique=True, max_size=5), st.booleans())
@settings(deadline=None)
def test_gains_add_up_to_what_all_repairs_give_back(turns, undated):
    hits = found(*(TALK.turns[i] for i in turns)).hits
    if undated:
        hits = [replace(h, memory=without_times(h.memory)) for h in hits]
    d = c.diagnose(WHERE, Evidence(hits, context=render_context(hits)), TALK)
    if d.cause != "unstable":
        assert sum(d.gains.values()) == pytest.approx(d.repaired - d.score, abs=1e-9)
        assert all(gain == 0 for name, gain in d.gains.items() if name not in d.seen)


def test_without_dates_a_lost_time_is_a_cause():
    """The rules take a date from the memory; where a system shows none, TEMPORAL can occur, else not."""
    text, kind = "When did the slugs come back?", QueryType.temporal_reasoning
    when = Question("q", text, ["11 January 2024"], kind, evidence=["D1"])
    bare = [Hit(without_times(m), 1 - i / 10) for i, m in enumerate((SLUGS, CAT))]
    lost = c.diagnose(when, Evidence(bare, context=render_context(bare)), TALK)
    assert "TEMPORAL" in lost.seen and lost.gains["TEMPORAL"] > 0.5 and "TEMPORAL" in lost.cause
    dated = c.diagnose(replace(when, answers=["banana"]), found(SLUGS, CAT), TALK)
    assert "TEMPORAL" not in dated.seen and dated.gains["TEMPORAL"] == 0


# --- what is skipped, and the budget


def test_what_the_reader_cannot_see_is_not_asked(reader):
    llm, server = reader(lambda lines: "x")
    d = c.diagnose(WHERE, found(NEW), TALK, llm)
    assert d.cause == "GEN"
    assert d.usage.calls == 0
    assert d.tried == ()
    assert d.complete
    assert len(server.requests) == 1, "one gold turn alone: nothing could be put right"
    offline = c.diagnose(
        Question("q", "When did the slugs come?", ["x"], evidence=["D1", "D3"]), found(CAT, SLUGS), TALK
    )
    assert frozenset({"TEMPORAL"}) not in offline.tried, "the rules don't see an order"


# --- the interventions themselves


def test_outdated_versions():
    def same(hits):
        return np.ones((len(hits), len(hits)))

    assert (
        outdated_hits(found(OLD, NEW, TEA).hits, Failure.of(WHERE, TALK))
        == {"m0"}
        == outdated_hits(found(OLD, TEA).hits, Failure.of(WHERE, TALK))
    )
    past = replace(WHERE, text="Where did I live before?", evidence=["D0"], type=QueryType.factual_extraction)
    assert "m0" not in outdated_hits(found(OLD, NEW).hits, Failure.of(past, TALK)), (
        "the newest gold turn stays, though a newer version is there"
    )
    hops, hits = replace(WHERE, evidence=["D0", "D2"], type=QueryType.multi_hop), found(OLD, NEW).hits
    assert outdated_hits(hits, Failure.of(hops, TALK, same)) == set()
    assert outdated_hits(hits, Failure.of(replace(hops, type=WHERE.type), TALK)) == {"m0"}
    drink = replace(WHERE, text="What do I drink?", evidence=["D4"])
    assert outdated_hits(
        found(CAT, SLUGS, TEA).hits, Failure.of(drink, TALK, lambda h: np.full((len(h), len(h)), 0.6))
    ) == {"m1", "m3"}
    assert (
        outdated_hits(found(CAT, SLUGS, TEA).hits, Failure.of(drink, TALK))
        == set()
        == outdated_hits([], Failure.of(drink, TALK))
    )


# --- a whole run


@pytest.fixture(scope="module")
def demo():
    return am.load("demo", split="en1", limit=24)


@pytest.fixture(scope="module")
def frame(demo):
    return am.evaluate(
        ["random", "unified", "adaptmr", "full_context", "oracle_evidence"],
        demo,
        embedder="hash",
        progress=False,
    )


def test_every_failure_and_no_other(demo, frame):
    named = ["unified", "full_context", "oracle_evidence"]
    why = c.attribute_failures(frame, demo, named, embedder="hash")
    low = frame[(frame["f1"] < 0.3) & frame["system"].isin(named)]
    assert set(zip(why.system, why.question)) == set(zip(low.system, low.question))
    assert len(why) == len(low) > 8
    assert why.equals(c.attribute_failures(frame, demo, named, embedder="hash"))
    assert (why["calls"] == 0).all()
    assert why["complete"].all()
    assert "MISS" not in set(why[why.system == "full_context"]["first"]), "nothing is missing from everything"
    assert set(why[why.system == "oracle_evidence"]["cause"]) <= {"GEN", "TEMPORAL"}, (
        "with the gold evidence alone little is left to put right"
    )
    unanswerable = {q.id for q in demo.questions if not q.answerable}
    made_up, without_answer = why["cause"].str.contains("HALLUC"), why["question"].isin(unanswerable)
    assert (made_up == without_answer).all() and made_up.any()


def test_gold_reaches_no_system(demo, frame):
    asked = []

    class Spy:
        name = "unified"

        def __init__(self):
            self.inner = am.make_system("unified", embedder="hash")

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def retrieve(self, question, k):
            asked.append(question)
            return self.inner.retrieve(question, k)

    c.attribute_failures(frame, demo, [Spy()], embedder="hash")
    assert asked and all(q == q.blind() for q in asked)


def test_another_search_is_an_error(demo, frame):
    with pytest.raises(ValueError, match=r"'random' finds other memories.*seed"):
        c.attribute_failures(frame, demo, ["random"], embedder="hash", seed=1)
    with pytest.raises(ValueError, match="no rows of 'hybrid'"):
        c.attribute_failures(frame, demo, ["hybrid"])
    assert list(c.attribute_failures(frame.assign(f1=1.0), demo, ["unified"]).columns) == c.DIAGNOSIS_COLUMNS


def test_a_system_with_another_ones_budget_gets_it_again(demo):
    few = Dataset("demo", demo.conversations[:1], demo.questions_on("en1")[:5])
    with s.Server(
        s.answering(lambda body: s.ok_json({"order": [2, 1]}) if "order" in str(body) else reply("banana"))
    ) as server:
        llm = LLM("m", base_url=server.url, api_key="k")
        rows = am.evaluate(["qarp", "token_matched"], few, llm, embedder="hash", progress=False)
        why = c.attribute_failures(rows, few, ["token_matched", "qarp"], llm, embedder="hash")
    assert set(why["system"]) == {"token_matched", "qarp"}


def test_with_a_model_in_threads(demo, tmp_path):
    few = Dataset("demo", demo.conversations[:1], demo.questions_on("en1")[:8])
    with s.Server(s.ok_json({"answer": "banana", "abstain": False})) as server:
        llm = LLM(
            "m", base_url=server.url, api_key="k", cache=ReplayCache(tmp_path / "calls.sqlite"), concurrency=4
        )
        rows = am.evaluate(["unified"], few, llm, embedder="hash", progress=False)
        asked = len(server.requests)
        why = c.attribute_failures(rows, few, ["unified"], llm, embedder="hash")
        assert why["question"].tolist() == [q.id for q in few.questions] and (why["calls"] <= 15).all()
        assert len(server.requests) - asked <= why["calls"].sum()
        assert why["prompt_tokens"].gt(0).any()
        assert why["ways"].str.contains("answer:model").any()
        asked = len(server.requests)
        assert c.attribute_failures(rows, few, ["unified"], llm, embedder="hash").equals(why)
        assert len(server.requests) == asked, "recorded: nothing is asked"


# --- tables


def diagnosed(*causes, type="multi_hop"):
    """Make diagnoses with these labels; each loses 1, of which every named repair gives back as much."""
    rows = []
    for i, cause in enumerate(causes):
        named = {name for part in c.parse_cause_label(cause) for name in part}
        repairs = [name for name in REPAIRS if name in named]
        rows.append(
            {
                "system": "u",
                "conversation": f"c{i % 2}",
                "question": f"q{i}",
                "type": type,
                "cause": cause,
                "calls": i,
                "complete": i != 1,
                "answerable": cause != "HALLUC",
                "lost": 1.0,
                "left": float("nan") if cause == "HALLUC" else float(not repairs),
                **{f"gain_{name}": (name in repairs) / max(1, len(repairs)) for name in REPAIRS},
                **{f"seen_{name}": name in repairs for name in REPAIRS},
            }
        )
    columns = ["system", "conversation", "question", "type", "cause", "calls", "complete", "answerable"]
    gains = [f"{what}_{name}" for what in ("gain", "seen") for name in REPAIRS]
    return pd.DataFrame(rows, columns=[*columns, "lost", "left", *gains])


def test_shares_add_up():
    given = diagnosed("MISS", "MISS|CONFLICT", "MISS+OVERLOAD", "GEN", "unstable", "HALLUC")
    table = causes.cause_shares(given)
    whole = table[table.type == "overall"].set_index("cause")
    shares = {"MISS": 0.5, "CONFLICT": 0.125, "OVERLOAD": 0.125, "GEN": 0.25}
    assert whole["mean"].round(9).to_dict() == shares
    assert whole["gain"].round(9).to_dict() == whole["mean"].round(9).to_dict(), "each lost 1"
    assert whole["seen"].to_dict() == {"MISS": 3, "CONFLICT": 1, "OVERLOAD": 1, "GEN": 4}
    assert whole["helps"].to_dict() == {"MISS": 3, "CONFLICT": 1, "OVERLOAD": 1, "GEN": 1}
    assert set(whole.n) == {4} and set(whole.unstable) == {1}
    assert table[["low", "high"]].isna().all(axis=None)
    assert set(table.level) == {"too few"}, "two conversations"
    more = causes.cause_shares(
        diagnosed(*["MISS", "GEN", "MISS|CONFLICT"] * 4).assign(conversation=[f"c{i % 5}" for i in range(12)])
    )
    assert (more["low"] <= more["mean"]).all() and (more["mean"] <= more["high"]).all()


def test_outcomes():
    assert len(causes.cause_shares(diagnosed())) == 0
    labels = ("MISS", "MISS|CONFLICT", "MISS+OVERLOAD", "GEN", "unstable", "MISS+OVERLOAD|MISS+CONFLICT")
    row = causes.outcome_table(diagnosed(*labels, "HALLUC")).iloc[0]
    counted = [
        *("failures", "unanswerable", "unstable", "one cause", "ties", "several together"),
        *("nothing helps", "calls, most", "cut short"),
    ]
    assert row[counted].tolist() == [7, 1, 1, 1, 2, 1, 1, 6, 1]


def test_agreement_with_hand_labels():
    found_ = diagnosed("MISS", "CONFLICT|OVERLOAD", "GEN", "MISS", "unstable", "HALLUC")
    hand = found_[["system", "conversation", "question"]].assign(
        cause=["MISS", "OVERLOAD", "GEN", "GEN", "GEN", "HALLUC"]
    )
    table = h.hand_agreement(found_, hand.iloc[::-1]).set_index(["failures", "reading"])
    assert table["n"].tolist() == [5, 5, 4, 4] and table["agreement"].tolist() == [0.6, 0.8, 0.5, 0.75]
    assert table.loc[("all", "strict"), "kappa"] == pytest.approx((0.6 - 0.2) / 0.8)
    assert (
        table.loc[("all", "lenient"), "kappa"]
        > table.loc[("all", "strict"), "kappa"]
        > table.loc[("without HALLUC", "strict"), "kappa"]
    )
    for bad, match in (
        (hand.assign(cause="LUCK"), "LUCK"),
        (pd.concat([hand, hand]), "not unique"),
        (hand.assign(system="v"), "no failure"),
    ):
        with pytest.raises(ValueError, match=match):
            h.hand_agreement(found_, bad)
    counts = h.hand_confusion(found_, hand).set_index("label")
    assert counts.loc["GEN"].to_dict() == {**dict.fromkeys(CAUSES, 0), "GEN": 1, "MISS": 1}
    assert counts.to_numpy().sum() == 5


def test_a_label_counts_for_the_answer_that_was_read():
    mine = h.hand_labels("locomo")
    assert len(mine) >= 100 and set(mine["cause"]) <= set(CAUSES) and h.hand_labels("demo").empty
    assert set(mine.columns) == {
        "system",
        "conversation",
        "question",
        "type",
        "answer",
        "cause",
        "again",
        "on",
    }
    assert mine["answer"].str.fullmatch("[0-9a-f]{12}").all()
    said = mine[h.LABEL_KEY].iloc[:2].assign(prediction=["another answer", "and another"])
    assert h.hand_labels("locomo", said).empty
    with pytest.raises(KeyError):
        h.hand_labels("locomo", said.drop(columns="prediction"))


@pytest.mark.slow
def test_labels_agree_with_the_replays(locomo_file):
    data = am.load("locomo", split="conv-30")
    systems = ["unified_as_documented", "unified", "adaptmr"]
    frame = am.evaluate(systems, data, progress=False)
    labels = h.hand_labels("locomo", frame)
    assert len(labels) >= 50, "the labelled answers are still those that the package gives"
    chosen = frame.merge(labels[h.LABEL_KEY], on=h.LABEL_KEY)
    chosen.attrs = dict(frame.attrs)
    table = h.hand_agreement(c.attribute_failures(chosen, data, systems), labels)
    strict = table[(table["failures"] == "all") & (table["reading"] == "strict")].set_index("system")
    assert strict.loc["all", "kappa"] >= 0.4 and strict.loc["all", "n"] >= 50
