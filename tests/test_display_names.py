"""Display names: tables mark systems that called no model, and show identical systems once."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from rerankers import SharedWords

import adaptmr as am
from adaptmr.experiments import Experiment
from adaptmr.systems.base import known_systems, uses_llm
from adaptmr.systems.display_names import OFFLINE_EQUIVALENTS, offline_name

ASKING = [name for name in known_systems(None) if uses_llm(name)]


def test_what_would_ask_a_model_is_called_by_rule_and_nothing_else():
    named = {name: offline_name(name) for name in known_systems(None)}
    assert {n for n, shown in named.items() if shown != n} == {*ASKING, *OFFLINE_EQUIVALENTS} == set(ASKING)
    assert named["qarp"] == "qarp by rule" and named["ircot"] == named["multi_round"] == "multi_round by rule"
    assert (
        named["token_matched"] == "hybrid"
        and named["qarp w/o refinement"] == "adaptmr"
        and named["adaptmr"] == "adaptmr"
    )
    assert offline_name("somebody's own") == "somebody's own"


@pytest.mark.slow
def test_the_same_systems_are_the_same_and_no_others_are():
    """By what they return and answer on questions of every type, in both languages."""
    data = am.load("demo", split="en2,zh2")  # the gate closes on a question of each
    differing = ["adaptmr", "gated", "hybrid", "qarp", "multi_round", "flare"]
    searching = list(dict.fromkeys([*differing, *OFFLINE_EQUIVALENTS, *OFFLINE_EQUIVALENTS.values()]))
    frame = am.evaluate(searching, data, embedder="hash", reranker=SharedWords(), progress=False)
    rows = {
        name: part[["retrieved", "prediction", "relevance", "f1", "context_tokens"]].to_dict("records")
        for name, part in frame.groupby("system")
    }
    for one, other in OFFLINE_EQUIVALENTS.items():
        assert rows[one] == rows[other], (one, other)
    named = {name: offline_name(name) for name in searching}
    assert all(rows[a] != rows[b] for a, b in combinations(differing, 2)), named


def test_a_run_without_a_model_says_so_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    given = [
        "unified",
        "hybrid",
        "adaptmr",
        "qarp",
        "qarp planned by rules",
        "multi_round",
        "ircot",
        "token_matched",
        "qarp w/o refinement",
    ]
    run = Experiment(
        "exp4", {"systems": given, "split": ["en1"], "limit": 10, "embedder": "hash", "k": 3}, tmp_path
    )
    assert run.params["systems"] == given, "the parameters are what was asked for"
    frame = run.evaluate()
    honest = ["unified", "hybrid", "adaptmr", "qarp by rule", "multi_round by rule"]
    assert list(frame["system"].unique()) == honest and [i["system"] for i in frame.attrs["ingest"]] == honest
    table = run.systems_table().set_index("system")["what it does"]
    assert list(table.index) == honest and table["hybrid"].endswith(
        "without a model token_matched is the same"
    )
    assert "a rule decides" in table["qarp by rule"] and table["multi_round by rule"].endswith(
        "without a model ircot is the same"
    )
    assert list(run.gains("unified")["f1"]["system"].unique()) == honest[1:]
    lost = run.ablations({"qarp": ("qarp planned by rules", "qarp w/o refinement")})["qarp"]["f1"]
    assert list(lost["system"].unique()) == ["adaptmr"] and set(lost["baseline"]) == {"qarp by rule"}
    assert set(
        run.display_names.rename_pairs(
            {"plan": ("qarp", "qarp planned by rules"), "refinement": ("qarp", "qarp w/o refinement")}
        )
    ) == {"refinement"}
    path = run.finish().path
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["systems"] == honest and {n.rsplit(" ", 1)[0] for n in manifest["numbers"]} == set(honest)
    assert run.display_names.restore_names(run.display_names.rename_systems(frame))[
        "system"
    ].unique().tolist() == [
        "unified",
        "hybrid",
        "adaptmr",
        "qarp",
        "multi_round",
    ]
