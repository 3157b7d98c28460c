"""Tables by a data set's own types of question, and LoCoMo by the counts of others."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from adaptmr.data.locomo import LOCOMO
from adaptmr.eval.analysis.breakdowns import (
    CONVMEMORY,
    categories_of,
    category_table,
    convmemory_tests,
    has_finer_categories,
    measure_by_category,
    protocol_table,
    read_published,
    recall_by_category,
)
from adaptmr.types import Conversation, Dataset, QueryType, Question

HOP, FACT = QueryType.multi_hop, QueryType.factual_extraction


def question(id: str, type: QueryType, category: str, n_gold: int, answerable: bool = True) -> Question:
    gold = [str(i) for i in range(n_gold)]
    return Question(id, f"{id}?", ["x"], type, category, gold, None, answerable, f"c{id[-1]}")


ASKED = [
    question("s1", HOP, "summary", 20),
    question("s2", HOP, "summary", 4),
    question("h1", HOP, "sessions", 2),
    question("h2", HOP, "sessions", 0),
    question("f1", FACT, "fact", 1),
    question("u1", FACT, "unsaid", 1, answerable=False),
]
DATA = Dataset("small", [Conversation("c1", ("a",), []), Conversation("c2", ("a",), [])], ASKED)
ROWS = pd.DataFrame(
    [
        {"system": system, "conversation": q.conversation, "question": q.id, "category": q.category}
        | {"recall_fraction": recall if q.evidence and q.answerable else math.nan, "f1": recall / 2}
        for system, recall in (("a", 0.5), ("b", 1.0))
        for q in ASKED
    ]
)


def test_categories_are_finer_where_a_type_holds_several() -> None:
    assert has_finer_categories(DATA)
    assert not has_finer_categories(Dataset("one", DATA.conversations, [ASKED[0], ASKED[4], ASKED[5]])), (
        "an unanswerable question's category doesn't count"
    )
    assert categories_of(DATA) == ["fact", "unsaid", "sessions", "summary"]


def test_the_table_counts_questions_gold_and_bounds() -> None:
    table = category_table(DATA, k=10).set_index("category")
    assert table["questions"].to_dict() == {"fact": 1, "unsaid": 1, "sessions": 2, "summary": 2}
    assert table["with gold"].to_dict() == {"fact": 1, "unsaid": 0, "sessions": 1, "summary": 2}
    assert table.at["summary", "gold turns, mean"] == 12.0
    assert table.at["summary", "recall@10 bound"] == 0.75, "(10/20 + 1) / 2"
    assert math.isnan(table.at["unsaid", "recall@10 bound"])


def test_measures_stand_below_their_bound() -> None:
    table = recall_by_category(ROWS, DATA, k=10)
    assert list(table.columns) == ["fact (n=1)", "sessions (n=1)", "summary (n=2)"]
    assert list(table.index) == ["bound at k = 10", "a", "b"]
    assert table.loc["bound at k = 10"].tolist() == ["1.000", "1.000", "0.750"]
    assert [cell[:5] for cell in table.loc["a"]] == ["0.500"] * 3
    f1 = measure_by_category(ROWS, DATA, "f1")
    assert list(f1.columns)[1] == "unsaid (n=1)" and f1.loc["b"].str[:5].tolist() == ["0.500"] * 4


# --- LoCoMo by the counts of others

TEN = sorted(c for split in LOCOMO.splits.values() for c in split)


def rows(conversations: list[str]) -> pd.DataFrame:
    """Two systems on an answerable question and an unanswerable one of each conversation.

    "gated" refuses the unanswerable ones; "open" finds their turn; both find half of what is asked.
    """
    made = []
    for system in ("open", "gated"):
        for c in conversations:
            asked = {"question": f"{c}/1", "recall_fraction": 0.5}
            asked |= {"retrieved": "D1:1 D7:7", "evidence": "D1:1 D2:2"}
            found = "D3:3" if system == "open" else ""
            twisted = {"question": f"{c}/2", "recall_fraction": math.nan}
            twisted |= {"retrieved": found, "evidence": "D3:3"}
            made += [{"system": system, "conversation": c, "f1": 0.25, **q} for q in (asked, twisted)]
    return pd.DataFrame(made)


def test_each_split_tests_another_half_and_the_splits_repeat() -> None:
    tests = convmemory_tests(TEN)
    assert tests == convmemory_tests(TEN[::-1]) and len({tuple(sorted(t)) for t in tests}) == 5
    assert all(len(set(t)) == 5 and set(t) <= set(TEN) for t in tests)
    assert sorted(tests[0]) == ["conv-26", "conv-41", "conv-44", "conv-47", "conv-50"]


def test_the_unanswerable_count_and_a_gate_pays_for_them() -> None:
    table = protocol_table(rows(TEN), 10)
    assert list(table) == [
        "recall@10, dev (n=5)",
        "recall@10, all (n=10)",
        "recall@10 with category 5, dev (n=10)",
        "recall@10 with category 5, all (n=20)",
        "F1, dev (n=10)",
        "F1, all (n=20)",
        f"{CONVMEMORY} (n=50)",
    ]
    means = table.map(lambda cell: float(cell.split(" ")[0]))
    assert means.loc["open"].tolist() == [0.5, 0.5, 0.75, 0.75, 0.25, 0.25, 0.75]
    assert means.loc["gated"].tolist() == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]


def test_what_others_published_is_whole(tmp_path) -> None:  # type: ignore[no-untyped-def]
    values = [e["value"] for e in read_published()]
    assert values == sorted(values, reverse=True) and len(values) >= 5
    assert all(e["source"].startswith("https://") for e in read_published())
    path = tmp_path / "published.yaml"
    for bad in ("value: 0.5, scope: c", "value: 0.5, scope: c, source: ''", "value: 50, scope: c, source: d"):
        path.write_text(f"- {{name: a, needs: b, {bad}}}\n")
        with pytest.raises(ValueError, match=r"published\.yaml: .*'a'"):
            read_published(path)
