"""For tests of the command line: call it, and make run folders with results by question."""

from __future__ import annotations

from pathlib import Path

import checkout
import pandas as pd
import pytest

from adaptmr.cli import main


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run a command; return its status and what it printed, which is never a traceback."""
    status = main([str(w) for w in words])
    caught = capsys.readouterr()
    assert "Traceback" not in caught.err
    return status, caught.out, caught.err


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must be refused as a wrong call, in one line; return the line."""
    status, out, err = said(capsys, *words)
    assert status == 2 and out == "" and len(err.strip().split("\n")) == 1, err
    return err


TYPES = ("factual_extraction", "multi_hop")


def results(scores: dict[str, float], conversations: int = 6, questions: int = 4) -> pd.DataFrame:
    """Make results in which a system scores its number, a little more or less by conversation.

    The first conversation has 0.03 less, the last 0.03 more, so that a mean over them is the number itself.
    """
    return pd.DataFrame(
        [
            {
                "system": system,
                "conversation": f"c{c}",
                "question": f"c{c}/q{q}",
                "type": TYPES[q % 2],
                "recall_fraction": score + (0.03 if c == conversations - 1 else -0.03 if c == 0 else 0.0),
                "f1": score / 2,
            }
            for system, score in scores.items()
            for c in range(conversations)
            for q in range(questions)
        ]
    )


def make(root: Path, run_id: str, frame: pd.DataFrame, sha256: str = "d1", **params: object) -> Path:
    """Write a run of the experiment `tiny` into the outputs of a checkout, and return its folder."""
    folder = checkout.received(
        root / "outputs" / "tiny" / run_id,
        {"k": 10, **params},
        data={"label": f"data {sha256}", "sha256": sha256, "notes": {"empty_turns": 2}},
        systems=list(dict.fromkeys(frame["system"])),
        numbers={"a recall": 0.4},
    )
    frame.to_parquet(folder / "results.parquet")
    return folder
