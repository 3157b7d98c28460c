"""LoCoMo by the counts of others: the five splits, the questions that count, and what was published."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from adaptmr.data.locomo import LOCOMO
from adaptmr.eval.analysis.breakdowns import (
    CONVMEMORY,
    convmemory_tests,
    protocol_table,
    read_published,
)

TEN = sorted(c for split in LOCOMO.splits.values() for c in split)


def rows(conversations: list[str]) -> pd.DataFrame:
    """Two systems on an answerable question and an unanswerable one of each conversation.

    "gated" refuses the unanswerable ones; "open" finds their turn; both find half of what is asked.
    """
    made = []
    for system in ("open", "gated"):
        for c in conversations:
            asked = {
                "question": f"{c}/1",
                "recall_fraction": 0.5,
                "retrieved": "D1:1 D7:7",
                "evidence": "D1:1 D2:2",
            }
            found = "D3:3" if system == "open" else ""
            twisted = {
                "question": f"{c}/2",
                "recall_fraction": math.nan,
                "retrieved": found,
                "evidence": "D3:3",
            }
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


def test_a_part_of_the_file_has_only_the_counts_it_allows() -> None:
    dev = protocol_table(rows(list(LOCOMO.splits["dev"])), 10)
    assert len(dev.columns) == 3 and all(", dev (n=" in c for c in dev)
    assert protocol_table(rows(TEN[:2]), 10).columns.empty


def test_what_others_published_is_whole(tmp_path) -> None:  # type: ignore[no-untyped-def]
    values = [e["value"] for e in read_published()]
    assert values == sorted(values, reverse=True) and len(values) >= 5
    assert all(e["source"].startswith("https://") for e in read_published())
    path = tmp_path / "published.yaml"
    for bad in ("value: 0.5, scope: c", "value: 0.5, scope: c, source: ''", "value: 50, scope: c, source: d"):
        path.write_text(f"- {{name: a, needs: b, {bad}}}\n")
        with pytest.raises(ValueError, match=r"published\.yaml: 'a'"):
            read_published(path)
