"""What teams find, do and cost; what each memory gives; the learning curve; one task turn by turn."""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adaptmr as am
from adaptmr.agents.team import Team
from adaptmr.eval.analysis.learning_curve import (
    GROWTH,
    WHOLE,
    ask_in_orders,
    curve,
    learning_answer,
    learning_sentences,
    learning_summary,
    learning_table,
    order_differences,
    slope_of,
)
from adaptmr.eval.analysis.memory_gains import (
    CONTROLS,
    MEMORY_STEPS,
    difference_table,
    pair_differences,
    step_sentences,
    team_answers,
    unseen_answers,
)
from adaptmr.eval.analysis.team_measures import (
    COST_MEASURES,
    WORK_MEASURES,
    add_team_columns,
    cost_table,
    different_searches,
    holding_table,
    measure_means,
    measure_table,
)
from adaptmr.eval.analysis.team_timeline import (
    META,
    NONE,
    PRIVATE,
    SHARED,
    choose_task,
    memory_of,
    task_timeline,
    timeline,
)
from adaptmr.eval.analysis.timeline_figure import timeline_figure
from adaptmr.eval.report.run_folder import open_run
from adaptmr.eval.report.style import NothingToDraw
from adaptmr.experiments import Experiment
from adaptmr.sections.teams import show_unseen, team_report_answers
from adaptmr.types import Dataset, Question

TURNS = [
    {"turn": 1, "agent": "retriever", "action": "Search[Salt Tower]", "shown": {"task": 50, "examples": 30}},
    {"turn": 1, "agent": "solver", "action": "Search[Salt Tower]", "observation": "Built by Ida Moser."}
    | {"answer_read": "Ida Moser", "shown": {"task": 50}},
    {"turn": 2, "agent": "retriever", "action": "Search[Ida Moser]", "used": ["f"], "shown": {"shared": 20}}
    | {"found": [{"id": "f", "kind": "shared/fact", "text": "Salt Tower · maker: Ida Moser"}]},
    {"turn": 2, "agent": "solver", "action": "Search[Ida Moser]", "observation": "Born in Lindau."}
    | {"used": ["q/meta/skill/00000003", "f"], "served": True, "shown": {"past": 7, "insights": 5}},
    {"turn": 3, "agent": "solver", "action": "Finish[Lindau]", "used": ["q/private/hypothesis/00000009"]}
    | {"valid": False, "loop": True},
]


def rows_of(**by_system: list[float]) -> pd.DataFrame:
    """Rows of systems whose F1 at each question is given."""
    return pd.DataFrame(
        [
            {"system": s, "conversation": f"q{i}", "question": f"q{i}", "f1": v, "language": "en"}
            for s, values in by_system.items()
            for i, v in enumerate(values)
        ]
    )


def full_rows(**columns: list) -> pd.DataFrame:
    """Four tasks of one team, with the columns that the measures need."""
    base = {
        "system": "team",
        "em": 0.0,
        "f1": 0.5,
        "calls": 0,
        "prompt_tokens": 10,
        "completion_tokens": 1,
        "context_tokens": 7,
        "transcript": json.dumps(TURNS),
    }
    made = [base | {"conversation": f"q{i}", "question": f"q{i}"} for i in range(4)]
    return pd.DataFrame(made).assign(**columns)


# -- measures


def test_searches_are_counted_from_the_record():
    rows = add_team_columns(full_rows())
    assert rows["searches"].tolist() == [2] * 4 and rows["model_tokens"].tolist() == [11] * 4


def test_a_suggestion_is_no_search_and_the_same_words_are_one_search():
    def record(*actions: str, seen: str = "x") -> str:
        return json.dumps([{"turn": 1, "agent": "a", "action": a, "observation": seen} for a in actions])

    assert different_searches(record("Search[Salt Tower]", "Search[tower salt]", "Lookup[x]")) == 1
    assert different_searches(record("Search[a b]", "Search[a c]")) == 2
    assert different_searches(record("Search[a]", seen="")) == 0
    assert math.isnan(different_searches(""))


def test_what_a_system_lacks_is_a_dash_and_questions_it_learnt_from_do_not_count():
    rows = full_rows(turns=[2, 4, 4, 6], calls=[1, 1, 1, 1])
    alone = full_rows(system="search", turns=math.nan, transcript="")
    both = add_team_columns(pd.concat([rows, alone], ignore_index=True))
    table = measure_table(both, (*WORK_MEASURES, *COST_MEASURES)).set_index("system")
    assert table.loc["team", "turns"].startswith("4.00 [") and table.loc["search", "turns"] == "–"
    assert table["n"].tolist() == [4, 4] and "facts" not in table
    assert measure_table(both, WORK_MEASURES)["system"].tolist() == ["team"], "nothing to say of the other"
    timed = both.assign(ms_retrieve=[1.0, 2, 3, 10] * 2, ms_answer=0.5)
    assert cost_table(timed)["ms"].tolist() == [3.0, 3.0] and "ms" not in cost_table(both)
    trained = both.assign(train=[True, False, False, False] * 2)
    means = measure_means(trained, WORK_MEASURES)
    assert means["mean"].round(3).tolist() == [4.667] and means["n"].tolist() == [3]


def test_the_memory_that_is_never_filled_is_seen():
    rows = add_team_columns(full_rows(hops=2, hops_answered=[2, 1, 0, 1], facts=0, lessons=0))
    (held,) = holding_table(rows).to_dict("records")
    assert (held["hops"], held["hops with an answer"], held["facts"]) == (8, 4, 0)
    assert held["answered"].startswith("0.50 [")
    assert held["working"] == "hops, hops with an answer, different searches"


# -- differences


def test_steps_are_paired_by_question_and_those_that_are_not_there_are_left_out():
    rows = rows_of(team_bare=[0, 0, 0, 0, 0, 0.5], team_private=[1, 1, 0.5, 0, 0.5, 1])
    found = pair_differences(rows)
    assert found["step"].tolist() == ["private memory"]
    (row,) = found.to_dict("records")
    assert row["difference"] == pytest.approx(3.5 / 6) and row["without"] == pytest.approx(0.5 / 6)
    assert difference_table(found).columns.tolist() == ["step", "F1"]
    assert pair_differences(rows, CONTROLS).empty


def test_systems_may_have_other_names_in_the_frame():
    rows = rows_of(**{"team_bare by rule": [0.0] * 6, "team_full by rule": [1, 1, 1, 1, 1, 0]})
    found = pair_differences(rows, names=lambda name: f"{name} by rule")
    assert found["step"].tolist() == ["all of it"] and found["n"].tolist() == [6]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=5, max_size=12))
def test_the_steps_add_up_to_the_whole(pairs):
    """At the same questions, the differences of neighbours sum to that of the ends."""
    names = ["team_bare", "team_private", "team_shared", "team_meta", "team_full"]
    rng = random.Random(len(pairs))
    scores = {name: [rng.choice(pair) for pair in pairs] for name in names}
    found = pair_differences(rows_of(**scores)).set_index("step")["difference"]
    parts = [pair.name for pair in MEMORY_STEPS[:-1]]
    assert math.fsum(found[parts]) == pytest.approx(found["all of it"], abs=1e-6)


@pytest.mark.parametrize(
    ("full", "said", "short"),
    [
        ([1, 1, 1, 1, 1, 0.5, 1, 1], "better (+0.9", "Yes."),
        ([0, 0.1, 0, 0.2, 0, 0.3, 0, 0.4], "no difference shown", "Not shown."),
        ([0, 0, 0, 0, 0, 0, 0, 0.1], "too few", "Not shown."),
    ],
)
def test_a_sentence_and_an_answer_say_no_more_than_the_interval(full, said, short):
    base = [0.2, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.3] if said.startswith("no") else [0.0] * 8
    steps = pair_differences(rows_of(team_bare=base, team_full=full))
    (sentence,) = step_sentences(steps)
    assert sentence.startswith("All of it: F1 ") and said in sentence
    assert team_answers(steps, pair_differences(rows_of(team_full=full), CONTROLS))[0][1] == short


def test_a_loss_is_called_one():
    steps = pair_differences(rows_of(team_bare=[1, 1, 1, 1, 1, 0.5], team_full=[0.0] * 6))
    assert "worse" in step_sentences(steps)[0] and team_answers(steps, steps)[0][1] == "No, the reverse."


def test_fewer_repeated_searches_are_better():
    rows = rows_of(team_private=[0.0] * 6, team_shared=[0.0] * 6)
    again = rows.assign(repeated_searches=[2, 1, 3, 1, 1, 2, 0, 0, 0, 0, 0, 0])
    found = pair_differences(again)
    assert "better" in step_sentences(found)[1]
    answers = {q: short for q, short, _ in team_answers(found, found.head(0))}
    assert answers["Does shared memory save repeated searches?"] == "Yes."


# -- questions that no rule was written on


@pytest.fixture
def run_of(tmp_path):
    """Make what a section reads of a run on these questions of HotpotQA, by their ids."""

    def make(*ids):
        data = Dataset("hotpotqa", questions=[Question(id, f"Who built {id}?") for id in ids])
        run = open_run("exp7", {}, data, tmp_path)
        return SimpleNamespace(run=run, data=data, display_names=str)

    return make


SEEN = "5a7613c15542994ccc9186bf"  # the first of the sample that rules were written on


def test_only_questions_that_no_rule_was_written_on_are_counted(run_of):
    rows = rows_of(team_bare=[0.0] * 7, team_full=[0.0, *[1.0] * 5, 0.8])
    rows["question"] = rows["question"].replace("q0", SEEN)
    run = run_of(*rows["question"].unique())
    shown, differences = show_unseen(run, rows)
    assert "6 of the 7 questions" in shown
    (row,) = differences.to_dict("records")
    assert (row["step"], row["measure"], row["n"]) == ("all of it", "F1", 6)
    assert row["difference"] == pytest.approx(5.8 / 6)
    written = {name: (run.run.path / "tables" / f"{name}.csv").read_text("utf-8") for name in UNSEEN_TABLES}
    assert "team_full,6," in written["unseen_answers"] and "+0.967" in written["unseen_steps"]
    assert [short for _, short, _ in unseen_answers(differences)] == ["Not tested."]
    (answer,) = (a for a in report_answers(rows, differences) if "no rule" in a[0])
    assert answer[2].startswith("F1 0.000 → 0.967: +0.967 [") and answer[2].endswith("n = 6")


UNSEEN_TABLES = ("unseen_answers", "unseen_steps")


def report_answers(rows, unseen):
    steps = pair_differences(rows)
    return team_report_answers(SimpleNamespace(tested=None), steps, steps.head(0), unseen, pd.DataFrame())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Dataset("demo_multihop", ours=True), "written by the people who wrote the rules"),
        (Dataset("hotpotqa", questions=[Question(SEEN, "?")]), "with every question of this run in view"),
        (Dataset("my.csv", questions=[Question("q1", "?")]), "no list is kept of the questions of my.csv"),
    ],
)
def test_a_run_without_such_questions_says_why_and_answers_nothing(data, said):
    rows = rows_of(team_bare=[0.0] * 6, team_full=[1.0] * 6)
    shown, differences = show_unseen(SimpleNamespace(data=data, display_names=str), rows)
    assert said in shown and differences.empty and not unseen_answers(differences)
    assert not [q for q, *_ in report_answers(rows, differences) if "no rule" in q]


# -- the learning curve


@pytest.fixture(scope="module")
def data():
    return am.load("demo_multihop")


def test_a_system_without_memory_across_tasks_learns_nothing(data):
    some = am.load("demo_multihop", split="en")

    def ask(asked, order):
        return am.evaluate(["lexical"], asked, k=3, embedder="hash", progress=False)

    rows = ask_in_orders(ask, some, orders=4)
    assert rows.groupby("order")["position"].apply(sorted).tolist() == [list(range(1, 9))] * 4
    alone = am.evaluate(["lexical"], some, k=3, embedder="hash", progress=False)
    gaps = order_differences(rows, alone)
    assert set(gaps["difference"]) == {0.0}
    assert learning_table(gaps)["mean"].tolist() == [0.0, 0.0]
    assert learning_answer(learning_table(gaps))[1] == "Not shown."


def test_an_interrupted_learning_curve_goes_on_where_it_stopped(tmp_path, monkeypatch):
    params = {"dataset": "demo_multihop", "split": "en", "systems": "team_meta", "embedder": "hash", "k": 3}
    asked, solve = [], Team.solve

    def interrupted(team, question):
        if len(asked) == 5:
            raise KeyboardInterrupt
        asked.append(question.text)
        return solve(team, question)

    def ask(experiment):
        return experiment.ask_besides("team_meta", experiment.data.shuffled(1), "order1")

    experiment = Experiment("t", params, out_dir=tmp_path)
    experiment.evaluate()
    whole = experiment.ask_besides("team_meta", experiment.data.shuffled(1), "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Team, "solve", interrupted)
        ask(experiment)
    experiment = Experiment("t", params, out_dir=tmp_path)
    experiment.evaluate()
    with monkeypatch.context() as patch:
        patch.setattr(Team, "solve", lambda team, q: asked.append(q.text) or solve(team, q))
        rows = ask(experiment)
    assert len(asked) == len(set(asked)) == len(experiment.data.questions), "each question is asked once"
    assert rows[["question", "prediction", "turns"]].equals(whole[["question", "prediction", "turns"]])
    experiment.finish()
    assert not list(experiment.journal.parent.glob(f"{experiment.run.run_id}*.jsonl"))


def learning_rows(gain, orders: int = 5, n: int = 10) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of a team that gains `gain(order, position)` over a baseline with a level per question."""
    level = {f"q{i}": i / 20 for i in range(n)}
    rows = []
    for order in range(1, orders + 1):
        names = list(level)
        random.Random(order).shuffle(names)
        rows += [
            {"order": order, "position": p, "conversation": q, "question": q, "f1": level[q] + gain(order, p)}
            for p, q in enumerate(names, 1)
        ]
    base = [{"conversation": q, "question": q, "f1": v} for q, v in level.items()]
    return pd.DataFrame(rows), pd.DataFrame(base)


def test_the_levels_of_questions_do_not_show_and_a_growth_does():
    gaps = order_differences(*learning_rows(lambda order, p: 0.01 * order * (p - 1)))
    table = learning_table(gaps).set_index("what")
    assert table.loc[GROWTH, "mean"] == pytest.approx(0.27)  # 9 steps of 0.01 to 0.05: mean 0.03
    assert table.loc[WHOLE, "mean"] == pytest.approx(0.135) and table.loc[GROWTH, "n"] == 5
    assert table.loc[GROWTH, "low"] > 0 and learning_answer(table.reset_index())[1] == "Yes."
    by_hand = np.array([0.09, 0.18, 0.27, 0.36, 0.45])
    error = by_hand.std(ddof=1) / math.sqrt(5) * 2.7764451
    assert table.loc[GROWTH, "low"] == pytest.approx(0.27 - error, abs=1e-6)


def test_the_curve_takes_positions_together():
    line = curve(order_differences(*learning_rows(lambda order, p: 0.1 * p)), places=5)
    assert line["position"].tolist() == [1.5, 3.5, 5.5, 7.5, 9.5] and line["n"].tolist() == [10] * 5
    assert line["mean"].round(6).tolist() == [0.15, 0.35, 0.55, 0.75, 0.95]
    short = curve(order_differences(*learning_rows(lambda order, p: 0.0, n=3)))
    assert len(short) == 1 and short["n"].tolist() == [15]


def test_a_summary_has_the_turns_where_both_have_them():
    rows, base = learning_rows(lambda order, p: 0.0)
    assert learning_summary(rows, base)["measure"].unique().tolist() == ["F1"]
    more, fewer = rows.assign(turns=3.0), base.assign(turns=4.0)
    whole = learning_summary(more, fewer).set_index(["measure", "what"])["mean"]
    assert whole["turns", WHOLE] == -1.0 and whole["F1", WHOLE] == 0.0


def test_a_steady_gain_is_no_growth():
    gaps = order_differences(*learning_rows(lambda order, p: 0.2 + 0.01 * (-1) ** (order + p)))
    assert learning_answer(learning_table(gaps))[1] == "Not shown."
    assert "no difference shown" not in learning_sentences(learning_table(gaps))[0]


def test_a_baseline_that_was_asked_other_questions_is_an_error():
    rows, base = learning_rows(lambda order, p: 0.0)
    for other in (base.head(3), pd.concat([base, base])):
        with pytest.raises(ValueError, match="not asked the same questions"):
            order_differences(rows, other)


def test_a_slope_by_hand():
    assert slope_of(np.array([1.0, 2, 3]), np.array([1.0, 3, 5])) == pytest.approx(2)
    assert slope_of(np.array([2.0, 2]), np.array([1.0, 3])) == 0


# -- one task


def test_a_record_says_which_memory_decided():
    line = timeline(json.dumps(TURNS), "Where was the maker born?")
    assert [s.memory for s in line.steps] == [NONE, NONE, SHARED, META, PRIVATE]
    assert [u.kind for u in line.steps[3].used] == ["skill", "fact"]
    assert line.steps[3].used[1].text == "Salt Tower · maker: Ida Moser", "recalled in another turn"
    assert line.steps[0].tokens == {SHARED: 0, PRIVATE: 0, META: 0, NONE: 80}
    assert line.steps[3].tokens[META] == 12 and line.steps[3].notes == ("served from memory",)
    assert line.steps[4].notes == ("not allowed", "loop") and line.players == ("retriever", "solver")


def test_without_texts_nothing_of_the_data_is_left():
    line = timeline(json.dumps(TURNS), "Where was the maker born?", texts=False)
    left = str(line) + line.to_frame().to_csv()
    assert not [w for w in ("Salt", "Moser", "Lindau", "maker", "born") if w in left]
    assert [s.action for s in line.steps] == ["Search"] * 4 + ["Finish"] and line.steps[1].answer


@pytest.mark.parametrize("kind", ["shared/hypothesis", "note", "meta/fact", ""])
def test_a_kind_of_no_memory_is_an_error(kind):
    with pytest.raises(ValueError, match="is of no memory"):
        memory_of(kind)


@pytest.mark.parametrize("record", ["", "[]", "{}"])
def test_what_is_no_record_is_an_error(record):
    with pytest.raises(ValueError, match="JSON list of turns"):
        timeline(record)


def test_the_task_with_the_largest_gain_is_shown_and_never_one_in_chinese():
    rows = rows_of(full=[0.5, 1, 1, 1], bare=[0, 0, 0, 0]).assign(
        transcript=[json.dumps(TURNS[:n]) for n in (5, 3, 5, 5)] * 2,
        language=["en", "en", "en", "zh"] * 2,
        text="Where?",
    )
    assert choose_task(rows, "full", "bare") == "q2", (
        "as large a gain as q1 and q3, with more memories than q1"
    )
    assert len(task_timeline(rows, "full", "q1").steps) == 3
    assert choose_task(rows.assign(transcript=""), "full", "bare") is None
    with pytest.raises(KeyError, match="no record of question 'q9'"):
        task_timeline(rows, "full", "q9")


def test_the_figure_shows_every_step_and_fits_a_telephone():
    line = timeline(json.dumps(TURNS), "Where was the maker of the Salt Tower born?")
    fig = timeline_figure(line)
    said = [t.get_text() for t in fig.axes[0].texts]
    for text in ("solver: Finish[Lindau]", "fact: Salt Tower · maker: Ida Moser", "→ read: Ida Moser"):
        assert text in said
    assert [t for t in said if t.startswith("turn ")] == ["turn 1", "turn 2", "turn 3"]
    assert fig.get_figwidth() * 105 <= 430, "390 points wide on a telephone, hardly made smaller"
    renderer = fig.canvas.get_renderer()
    edge = fig.bbox.x1
    assert all(t.get_window_extent(renderer).x1 <= edge for t in fig.axes[0].texts), "no text is cut off"


def test_a_long_text_is_wrapped_and_cut_and_chinese_is_refused():
    long = [{**TURNS[1], "answer_read": "a very long name of something " * 20}]
    fig = timeline_figure(timeline(json.dumps(long), "Why? " * 30))
    assert max(len(t.get_text()) for t in fig.axes[0].texts) < 60 and fig.get_figheight() < 4
    with pytest.raises(ValueError, match="font lacks"):
        timeline_figure(timeline(json.dumps([{**TURNS[1], "action": "Search[盐湖]"}]), "?"))
    with pytest.raises(NothingToDraw):
        timeline_figure(type(timeline(json.dumps(TURNS)))("", ()))
