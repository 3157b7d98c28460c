"""Memories that were made from others: what they show, what stands behind them, and who counts which."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from adaptmr.eval.analysis.attribution import Failure, attribute_failures, outdated_hits
from adaptmr.eval.analysis.budget_curves import coverage_curves, measure_coverage, system_similarity
from adaptmr.eval.analysis.causes import evidence_table
from adaptmr.eval.report.run_folder import redaction_problems
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.planning.qarp import QARP
from adaptmr.systems.own import WrappedSystem
from adaptmr.types import Conversation, Dataset, Evidence, Hit, Memory, QueryType, Question, Usage

DAY = datetime(2024, 1, 1, tzinfo=UTC)


def turn(source: str, text: str, n: int) -> Memory:
    at = DAY + timedelta(days=n)
    return Memory(f"c/{source}", text, "Ann", at, session=source[:2], step=n, source=source)


TURNS = [
    turn("S1:1", "I adopted a cat.", 0),
    turn("S1:2", "It rains.", 1),
    turn("S1:3", "The cat is white.", 2),
    turn("S1:4", "I like tea.", 3),
    turn("S2:1", "The cat is called Snowy.", 4),
]
PAGE = Memory("page-1", "Ann adopted a cat. It rains.", at=DAY + timedelta(days=1), layer="pages")
SUMMARY = Memory("summary-1", "Ann talked about a pet.", at=DAY + timedelta(days=4), layer="summaries")
HITS = [
    Hit(PAGE, 0.9, quoted=("S1:1", "S1:2"), behind=("S1:1", "S1:2", "S1:3")),
    Hit(TURNS[3], 0.8),
    Hit(SUMMARY, 0.7, behind=("S2:1",)),
]
GOLD = ["S1:1", "S1:3", "S2:1"]
ASKED = Question("q", "What is the cat called?", ["Snowy"], category="fact", evidence=GOLD, conversation="c")
DATA = Dataset("toy", [Conversation("c", ("Ann",), TURNS)], [ASKED], ours=True)


class Derived:
    """A system that returns these hits whatever is asked."""

    name = "derived"

    def __init__(self, hits=None):
        self.hits = HITS if hits is None else hits

    def reset(self):
        pass

    def ingest(self, conversation):
        return Usage()

    def retrieve(self, question, k=10):
        return Evidence(self.hits[:k])


def run(*systems, data=DATA, k=3):
    return evaluate(list(systems), data, k=k, embedder="hash", progress=False)


# --- what a hit shows


def test_a_turn_shows_itself_and_a_derived_memory_what_it_quotes():
    assert Hit(TURNS[0], 1.0).sources == Hit(TURNS[0], 1.0).all_sources == ("S1:1",)
    assert Hit(Memory("m", "x"), 1.0).sources == ("m",), "a turn without a source goes by its id"
    page, _, summary = HITS
    assert page.sources == ("S1:1", "S1:2") and page.all_sources == ("S1:1", "S1:2", "S1:3")
    assert summary.sources == () and summary.all_sources == ("S2:1",)


# --- at the door


# --- rows


def test_a_row_by_hand():
    row = run(Derived()).iloc[0]
    assert (row.hits, row.retrieved, row.behind) == (3, "S1:1 S1:2 S1:4", "S1:3 S2:1")
    assert (row.recall_any, row.recall_all, row.recall_fraction) == (1, 0, pytest.approx(1 / 3))
    assert row.recall_behind == 1.0, "the page stands on S1:3, the summary on S2:1"
    assert row.precision == pytest.approx(1 / 3), "one place of three shows evidence, whatever it quotes"
    assert row.mrr == 1 and row.ndcg == pytest.approx(1 / (1 + 1 / math.log2(3) + 1 / 2))
    assert (row.session_any, row.session_all) == (1, 0), "S2 is only behind the summary"


def test_the_columns_are_there_where_something_is_behind_and_hold_for_all_systems():
    both = run("lexical", Derived())
    others = both[both.system == "lexical"]
    assert others.recall_behind.tolist() == others.recall_fraction.tolist() and set(others.behind) == {""}
    for frame in (run("lexical"), run(Derived([Hit(PAGE, 1.0, quoted=("S1:1",), behind=("S1:1",))]))):
        assert not {"recall_behind", "behind"} & set(frame), "nothing is behind that isn't shown"
    assert redaction_problems(both[["behind", "recall_behind"]]) == []


def test_versions_and_what_was_taken_for_outdated():
    old, new = "S1:1", "S2:1"
    asked = replace(ASKED, evidence=[old, new], parts={"current": (new,), "stale": (old,)})
    data = replace(DATA, questions=[asked])
    both = Hit(PAGE, 0.9, quoted=(old, new))
    assert run(Derived([both]), data=data).iloc[0].current_before_stale == 1.0, "as for a turn with both"
    assert (
        run(Derived([replace(both, quoted=(old,)), Hit(TURNS[4], 0.5)]), data=data)
        .iloc[0]
        .current_before_stale
        == 0.0
    )

    class Dropping(Derived):
        def retrieve(self, question, k=10):
            return Evidence([Hit(TURNS[0], 1.0)], outdated=list(Hit(PAGE, 1.0, quoted=(new,)).sources))

    assert run(Dropping(), data=data).iloc[0].kept == 0.0, "the only valid gold was dropped with the page"


# --- analysis


def test_a_memory_that_quotes_the_newest_version_is_not_outdated():
    asked = replace(
        ASKED, text="Where does Ann live now?", type=QueryType.knowledge_update, evidence=["S1:1", "S2:1"]
    )
    turns = [turn("S1:1", "I live in Leeds now.", 0), turn("S2:1", "I live in Bristol now.", 4)]
    known = Failure.of(asked, Conversation("c", ("Ann",), turns))
    page = replace(PAGE, text="Ann: I live in Leeds now. Ann: I live in Bristol now.", speaker="Ann")
    hits = [Hit(turns[0], 1.0), Hit(page, 0.9, quoted=("S1:1", "S2:1"))]
    assert outdated_hits(hits, known) == {"c/S1:1"}
    assert outdated_hits([hits[0], replace(hits[1], quoted=("S1:1",))], known) >= {"c/S1:1"}


def test_failures_of_derived_memories_are_attributed():
    frame = run(Derived())
    diagnoses = attribute_failures(frame, DATA, [Derived()], k=3, threshold=1.01, embedder="hash")
    assert len(diagnoses) == 1
    lost = diagnoses.assign(cause="MISS", left=0.0, lost=1.0)
    table = evidence_table(lost, frame)
    assert table.set_index("evidence")["n"].to_dict() == {"all": 0, "behind": 1, "some": 0, "none": 0}
    turns_only = frame.drop(columns=["recall_behind", "behind"])
    assert evidence_table(lost, turns_only).set_index("evidence")["n"].to_dict() == {
        "all": 0,
        "some": 1,
        "none": 0,
    }


def test_coverage_counts_what_is_shown_and_what_is_behind():
    frame = measure_coverage([Derived()], DATA, budgets=(12, 400), embedder="hash")
    assert frame.recall.tolist() == pytest.approx([1 / 3, 1 / 3])
    assert frame.recall_behind.tolist() == pytest.approx([2 / 3, 1.0]), "12 tokens hold the page alone"
    curves = coverage_curves(frame, value="recall_behind")
    assert curves["mean"].tolist() == pytest.approx([2 / 3, 1.0])
    assert "recall_behind" not in measure_coverage(["lexical"], DATA, budgets=(400,), embedder="hash")
    assert system_similarity(Derived())(HITS) is None


# --- a plan over another system's derived memories


def test_a_wrapped_system_keeps_the_provenance_of_its_hits():
    wrapped = WrappedSystem(Derived(), QARP(), embedder="hash")
    wrapped.ingest(DATA.conversations[0])
    found = wrapped.retrieve(ASKED.blind(), 3)
    kept = {h.memory.id: (h.quoted, h.behind) for h in found.hits}
    assert kept and all(kept[h.memory.id] == (h.quoted, h.behind) for h in HITS if h.memory.id in kept)
    assert {"page-1", "summary-1"} <= set(kept)
    frame = evaluate([wrapped], DATA, k=3, embedder="hash", progress=False)
    assert isinstance(frame, pd.DataFrame) and frame.recall_behind.notna().all()
