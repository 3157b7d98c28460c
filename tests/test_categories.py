"""Tables by a data set's own types of question, and the recall that is possible in each."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from adaptmr.eval.analysis.breakdowns import (
    categories_of,
    category_table,
    has_finer_categories,
    measure_by_category,
    recall_bound,
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


@pytest.mark.parametrize(("n", "k", "bound"), [(1, 10, 1.0), (10, 10, 1.0), (16, 10, 0.625), (4, 0, 0.0)])
def test_recall_is_bounded_by_k_over_the_gold_turns(n: int, k: int, bound: float) -> None:
    assert recall_bound(n, k) == bound


def test_a_question_without_gold_has_no_bound() -> None:
    assert math.isnan(recall_bound(0, 10))


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
