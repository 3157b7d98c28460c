"""The memory across tasks: what it keeps of a task, learns from it, gives to a team and stores."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from scripted import LESSON, ScriptedLLM
from server import Server, ok_json

from adaptmr.llm import LLM
from adaptmr.memory.team.curator import Reflection
from adaptmr.memory.team.meta import (
    FIRST_SCORE,
    MAX_ABOUT,
    REVISE,
    Insight,
    MetaConfig,
    MetaMemory,
    Skill,
    Trajectory,
    agree,
    best_skills,
    count_skills,
    edit,
    remove,
    revise,
)
from adaptmr.memory.team.records import read_record
from adaptmr.memory.team.steps import TeamStep, Transcript
from adaptmr.store.memory_store import MemoryStore


def play(film="Harbour Lights", director="Ana Petrov", spouse="Lin Wei", said="Right.", lost=False):
    """Return a task: to find a film, its director, and whom the director is married to."""
    found = TeamStep("Search", film, f"{film} is a drama film directed by {director}.")
    person = TeamStep(
        "Search", director, f"{director} (born 1960) is a director. She is married to {spouse}."
    )
    nothing = TeamStep("Search", "film spouse", "Could not find it.")
    steps = (
        found,
        nothing if lost else person,
        TeamStep("Finish", director if lost else spouse, said, done=True),
    )
    return Transcript(f"Who is married to the director of {film}?", steps)


FILMS = (("Salt Roads", "Joe Okafor", "Ida Berg"), ("Winter Bells", "Per Dahl", "Eva Lund"))
QUESTION = "Who is married to the director of Paper Moons?"


def everything(meta: MetaMemory) -> str:
    """Return all that a memory holds, with its past versions and log, as text."""
    memories = [*meta.store.memories, *(v for m in meta.store.memories for v in meta.store.history(m.id))]
    return repr(memories) + repr(meta.store.events())


# -- records


# -- what comes in


def test_nothing_that_is_said_after_finish_is_kept():
    """Some environments tell the right answer there: a memory that holds it answers the test."""
    meta = MetaMemory()
    meta.remember(play(said="Wrong. The right answer is Zebedee."), False)
    meta.remember(play(said="The right answer is Zebedee."), True, by="reward")
    assert "Zebedee" not in everything(meta)


def test_lessons_and_skills_hold_neither_the_answer_nor_other_names():
    meta = MetaMemory(llm=ScriptedLLM())
    for lost in (False, True):
        meta.remember(play(lost=lost), not lost)
        for film in FILMS:
            meta.remember(play(*film, lost=lost), not lost)
    names = [n for film in (*FILMS, ("Harbour Lights", "Ana Petrov", "Lin Wei")) for n in film]
    meta.llm.replies["reflect"] = {
        "lessons": [{"text": "Lin Wei is found by Ana Petrov's page.", "tags": ["x"]}]
    }
    meta.remember(play(), True)
    learnt = [m for m in meta.store.memories if m.layer in ("meta/insight", "meta/skill")]
    assert len(learnt) >= 3
    assert not [n for n in names for m in learnt if n in repr(m)]


# -- the two judges are kept apart


def test_counts_of_verifier_and_reward_are_never_added():
    meta = MetaMemory(llm=ScriptedLLM())
    meta.remember(play(), True)
    meta.remember(play(*FILMS[0]), True, by="reward")
    scores = sorted((i.by, i.score) for i in meta.insights)
    assert scores == [("reward", FIRST_SCORE), ("verifier", FIRST_SCORE)], "one rule, judged by each once"
    rule = {i.rule for i in meta.insights}
    assert len(rule) == 1, "and shown once, as the reward judged it"
    assert [(i.rule, i.by) for i in meta.recall(QUESTION).insights] == [(*rule, "reward")]
    skills = [read_record(m, Skill) for m in meta.store.memories if m.layer == "meta/skill"]
    assert {(s.by, s.form, s.uses) for s in skills} == {(by, "<name>", 1) for by in ("verifier", "reward")}


def test_a_reward_takes_over_what_the_verifier_judged():
    meta = MetaMemory(llm=ScriptedLLM())
    believed = meta.remember(play(), True)
    (rule,) = meta.insights
    rewarded = meta.remember(play(), False, by="reward", reason="the answer is wrong")
    assert len(meta) == 1 and rewarded.id == believed.id
    assert (rewarded.succeeded, rewarded.by, rewarded.reason) == (False, "reward", "the answer is wrong")
    assert meta.get_recent_successes() == () and not meta.recall(QUESTION).successes
    assert next(i for i in meta.insights if i.id == rule.id).score == FIRST_SCORE - 1
    confirmed = MetaMemory(llm=ScriptedLLM())
    confirmed.remember(play(), True)
    confirmed.remember(play(), True, by="reward")
    assert [i.score for i in confirmed.insights] == [FIRST_SCORE, FIRST_SCORE], (
        "no point is lost, none is added"
    )


# -- recall


def test_recent_successes_are_successes_only_the_latest_first():
    """In the document the call returned hypotheses, or nothing."""
    meta = MetaMemory()
    meta.remember(play(), True)
    meta.remember(play(*FILMS[0], lost=True), False)
    meta.remember(play(*FILMS[1]), True)
    assert [t.turn for t in meta.get_recent_successes(2)] == [3, 1]
    assert [t.turn for t in meta.get_recent_successes(1)] == [3] and meta.get_recent_successes(0) == ()


def test_successes_and_failures_have_their_own_places():
    meta = MetaMemory(llm=ScriptedLLM())
    for film in FILMS:
        meta.remember(play(*film), True)
        meta.remember(play(*film, lost=True), False)
    found = meta.recall(QUESTION, k=1)
    assert [t.succeeded for t in (*found.successes, *found.failures)] == [True, False]
    assert set(found.ids) >= {found.successes[0].id, found.failures[0].id, *(i.id for i in found.insights)}
    assert meta.recall(QUESTION, k=0).successes == ()


def test_a_neighbour_in_the_graph_teaches_what_a_search_does_not_reach():
    meta = MetaMemory(config=MetaConfig(pool=1, edge_similarity=0.0))
    first = meta.remember(
        Transcript("Which river flows through Oslo?", (TeamStep("Search", "a", "b"),)), True
    )
    rule = meta.add("Look at a map.", about=[first.id])
    last = meta.remember(Transcript("Which castle stands in Turku?", (TeamStep("Search", "c", "d"),)), True)
    assert last.similar == (first.id,)
    assert rule.id in meta.recall("Which castle stands in Visby?").ids


# -- insights


def test_points_of_an_insight():
    rule = Insight(rule="Search first.", score=FIRST_SCORE, about=("t1",))
    assert (agree(rule, "t2").score, agree(rule, "t2").about) == (FIRST_SCORE + 1, ("t1", "t2"))
    assert agree(rule, "t1").about == ("t1",)
    changed = edit(rule, "Search for the film first.", "t3")
    assert (changed.rule, changed.score) == ("Search for the film first.", FIRST_SCORE + 1)
    assert remove(rule).score == FIRST_SCORE - 1 and remove(replace(rule, score=1)) is None
    for n in range(2 * MAX_ABOUT):
        rule = agree(rule, f"task {n}")
    assert len(rule.about) == MAX_ABOUT and rule.about[-1] == f"task {2 * MAX_ABOUT - 1}"


def test_a_model_chooses_the_operations():
    operations = [
        {"kind": "edit", "number": 1, "rule": "Search for the film, then for its director."},
        {"kind": "remove", "number": 2, "rule": ""},
        {"kind": "add", "number": 0, "rule": "Ask Ana Petrov first."},
    ]
    known = [Insight(id="i1", rule="Search.", score=2), Insight(id="i2", rule="Guess.", score=1)]
    lesson = Reflection("Search for Harbour Lights first.", ("success", "chain"))
    with Server(ok_json({"operations": operations})) as server:
        llm = LLM("m", base_url=server.url, sleep=lambda s: None, timeout=5)
        revision = revise([lesson], known, Insight(rule="-", about=("t1",)), llm=llm)
        (request,) = server.requests
    assert [(i.rule, i.score) for i in revision.kept] == [
        ("Search for the film, then for its director.", 3),
        ("Ask <name> first.", FIRST_SCORE),
    ]
    assert revision.removed == ("i2",) and revision.kept[1].topics == lesson.tags
    assert "Harbour Lights" not in str(request["messages"]), "a model is shown general rules only"


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        ({"kind": "agree", "number": 3, "rule": ""}, "number 3"),
        ({"kind": "remove", "number": 0, "rule": ""}, "number 0"),
        ({"kind": "add", "number": 0, "rule": " "}, "no rule"),
    ],
)
def test_operations_that_cannot_be_are_refused(operation, problem):
    inputs = {"rules": ("Search.",), "known": (Insight(rule="Guess."),)}
    assert problem in REVISE.validate({"operations": [operation]}, inputs)


def test_skills_are_counted_by_success():
    film = TeamStep("Search", "Harbour Lights", "Harbour Lights is a film.")
    again, nothing = replace(film, argument="the Harbour Lights"), TeamStep("Search", "spouse", "Not found.")
    known: dict[str, Skill] = {}
    played = Transcript("Who?", (film, again, nothing))
    for turn in (1, 2):
        task = Trajectory(task="Who?", succeeded=True, turn=turn)
        told = count_skills(known, played, {"Harbour Lights": "film"}, task)
        known |= {s.form: s for s in told}
    counts = {form: (s.uses, s.successes) for form, s in known.items()}
    assert counts == {"<film>": (2, 2), "spouse": (2, 0)}, "a repeat counts once"
    assert best_skills(known.values(), 5) == [known["<film>"]]


# -- the store


def test_a_file_keeps_it(tmp_path):
    with MemoryStore(tmp_path / "meta.db") as store:
        meta = MetaMemory(store)
        meta.remember(play(), True)
        meta.remember(play(*FILMS[0], lost=True), False)
        said, tasks = meta.recall(QUESTION), meta.tasks
    with MemoryStore(tmp_path / "meta.db") as store:
        again = MetaMemory(store)
        assert again.recall(QUESTION) == said and again.tasks == tasks
        assert again.remember(play(*FILMS[1]), True).turn == 3


# -- threads


def test_threads_remember_and_recall_at_once():
    meta, errors = MetaMemory(llm=ScriptedLLM()), []

    def work(name):
        try:
            for n in range(4):
                meta.remember(play(f"{name} Lights {n}", "Ana Petrov", "Lin Wei"), True)
                assert meta.recall(QUESTION).successes
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("Harbour", "Winter", "Salt")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(meta) == 12
    assert sorted(t.turn for t in meta.tasks) == list(range(1, 13))
    assert [i.score for i in meta.insights] == [FIRST_SCORE + 11], "no agreement is lost"
    assert MetaMemory(meta.store).tasks == meta.tasks


def test_without_a_model_tasks_are_remembered_and_lessons_only_by_hand():
    meta = MetaMemory()
    meta.remember(play(), True)
    assert len(meta) == 1 and meta.insights == () and meta.recall(QUESTION).successes
    assert meta.add(LESSON).score == FIRST_SCORE and meta.recall(QUESTION).insights[0].rule == LESSON


def test_equal_words_agree_and_a_useless_rule_goes_without_a_model():
    known = [Insight(id="i1", rule=LESSON, score=2), Insight(id="i2", rule="Guess.", score=1, uses=5)]
    again = Reflection("search for the name, that the question gives")
    found = revise([again], known, Insight(rule="-", about=("t",)))
    assert [(i.id, i.score, i.about) for i in found.kept] == [("i1", 3, ("t",))] and found.removed == ("i2",)
