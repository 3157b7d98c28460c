"""Teams: loops, limits, failing players, threads, prompts, traces, memories between tasks, and the faults of the design."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import Server, ok, ok_json, status

from adaptmr.agents.episode import Episode, PlayerError
from adaptmr.agents.model_players import RETRIEVE, SOLVE, VERIFY, ModelRetriever, ModelSolver, ModelVerifier
from adaptmr.agents.passages import Passage
from adaptmr.agents.prompts import MIN_TOKENS, Prompt, PromptStyle, build_prompt, system_prompt
from adaptmr.agents.systems import TEAMS, make_team
from adaptmr.agents.task_memory import OtherTasks, Reading, Setting, TaskMemory, repeats_in_vain
from adaptmr.agents.team import Team
from adaptmr.agents.view import Move, View
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm import LLM
from adaptmr.llm.tokens import count_tokens
from adaptmr.llm.transport import LLMError
from adaptmr.memory.meta.meta import MetaMemory
from adaptmr.memory.meta.records import Experience, Insight, Trajectory
from adaptmr.memory.team.actions import Action, parse_action
from adaptmr.memory.team.extraction import Extraction, Triple
from adaptmr.memory.team.private import PrivateMemory
from adaptmr.memory.team.records import EvidencePiece, Lesson, ReasoningStep
from adaptmr.memory.team.roles import ROLES
from adaptmr.memory.team.shared import SharedMemory
from adaptmr.memory.team.steps import Step
from adaptmr.memory.team.team import TeamMemory
from adaptmr.systems.base import get_capabilities, known_systems, make_system
from adaptmr.types import Conversation, Dataset, Memory, Question

QUESTION = "In which town was the designer of the Velm Bridge born?"
PAGES = {
    "Velm Bridge": ("The Velm Bridge was designed by Edda Quill.", "The Velm Bridge was opened in 1921."),
    "Edda Quill": ("Edda Quill was an engineer.", "Edda Quill was born in Orlby."),
    "Osk Tunnel": ("The Osk Tunnel is a tunnel.",),
}
OTHER_QUESTION = "In which town was the designer of the Brann Tower born?"
OTHER_PAGES = {
    "Brann Tower": ("The Brann Tower was designed by Ilse Maro.",),
    "Ilse Maro": ("Ilse Maro was a builder.", "Ilse Maro was born in Vardby."),
}
FIRST, SECOND = "Search[Velm Bridge]", "Search[Edda Quill]"


def talk(id: str = "velm", pages: Mapping[str, tuple[str, ...]] = PAGES) -> Conversation:
    said = [(t, f"{t.replace(' ', '_')}#{i}", s) for t, texts in pages.items() for i, s in enumerate(texts)]
    turns = [
        Memory(f"{id}/{source}", sentence, session=title, source=source, step=n)
        for n, (title, source, sentence) in enumerate(said)
    ]
    return Conversation(id, (), turns)


class Scripted:
    """A player that makes these moves in turn, the last one again and again, and keeps what it was shown."""

    def __init__(self, role: str, *script: str | Move | Exception) -> None:
        self.role, self.script, self.views = ROLES[role], list(script) or [""], list[View]()

    def act(self, view: View) -> Move:
        self.views.append(view)
        move = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(move, BaseException):
            raise move
        return move if isinstance(move, Move) else Move(parse_action(move), move or "no objection")


def team(*solver: str | Move | Exception, **options: Any) -> Team:
    """A team whose solver follows a script; `retriever` and `verifier` are those of the others."""
    scripts = {"retriever": options.pop("retriever", ("",)), "solver": solver}
    scripts["verifier"] = options.pop("verifier", ("",))
    made = Team(
        options.pop("name", "scripted"),
        {role: Scripted(role, *script) for role, script in scripts.items()},
        **{"curator": True, "embedder": "hash", **options},
    )
    made.ingest(talk())
    return made


def play(*solver: str | Move | Exception, question: str = QUESTION, **options: Any) -> Episode:
    episode = team(*solver, **options).begin(question)
    episode.play()
    return episode


def views(episode: Episode, role: str) -> list[View]:
    return episode.players[role].views


# --- loops


def test_an_action_that_is_repeated_in_vain_is_noted_and_another_one_is_done():
    episode = play(FIRST, "Search[the velm bridge]", "Finish[Orlby]", verifier=(SECOND, ""))
    assert [str(s) for s in episode.transcript.steps] == [FIRST, SECOND, "Finish[Orlby]"]
    memory = episode.memory.team
    assert "Search[the velm bridge]" in [x.about for x in memory.of("solver").board.all(Lesson)]
    assert memory.of("verifier").peer("solver").status == "repeats Search[the velm bridge]"
    assert any("loop" in item.description for item in memory.of("verifier").pending())
    (asked, _) = views(episode, "verifier")
    assert (str(asked.suggestion), asked.proposal) == ("Search[the velm bridge]", "")
    assert "repeats Search[the velm bridge] in vain" in asked.messages[1]["content"]
    assert episode.counts["loops"] == 1 and [r.agent for r in episode.rows if r.loop] == ["solver"]
    (done,) = (r for r in episode.rows if r.observation is not None and r.agent == "verifier")
    assert done.action == SECOND


@pytest.mark.parametrize("named", ["", FIRST, "Finish[Orlby]"], ids=["nothing", "the same", "an answer"])
def test_without_a_better_action_the_solvers_is_done(named):
    episode = play(FIRST, FIRST, "Finish[Orlby]", verifier=(named, ""))
    assert [str(s) for s in episode.transcript.steps] == [FIRST, "Finish[Orlby]"]
    assert episode.counts["served_searches"] == 1, "from memory: no search is made twice"


@pytest.mark.parametrize(
    ("setting", "loops"),
    [({"private": False, "shared": False}, 0), ({"shared": False}, 1), ({}, 1)],
    ids=["none", "private", "shared"],
)
def test_a_loop_of_two_actions_is_noticed_with_memory_only(setting, loops):
    episode = play(FIRST, SECOND, FIRST, "Finish[Orlby]", **{"curator": False, **setting})
    assert episode.counts["loops"] == loops
    assert episode.counts["repeated_searches"] == (setting.get("shared") is False)


PAGE = Step("Search", "Velm Bridge", "Velm Bridge: It was designed by Edda Quill.")
FOUND = Step("Lookup", "designed", "(Result 1/1) It was designed by Edda Quill.")
NO_MORE = Step("Lookup", "designed", 'No more sentences of "Velm Bridge" with "designed".')


@pytest.mark.parametrize(
    ("doing", "steps", "in_vain"),
    [
        (Action("Search", "bridge VELM"), [PAGE], True),
        (Action("Search", "Edda Quill"), [PAGE], False),
        (Action("Lookup", "designed"), [PAGE, FOUND], False),
        (Action("Lookup", "Designed"), [PAGE, FOUND, NO_MORE], True),
        (Action("Lookup", "opened"), [PAGE, FOUND, NO_MORE], False),
        (Action("Lookup", "designed"), [PAGE, NO_MORE, PAGE], False),
        (Action("Finish", "Orlby"), [PAGE, Step("Finish", "Orlby")], False),
        ("I don't know.", [Step("", "I don't know.", "That is no action.", False)], True),
        ("I don't know.", [PAGE], False),
    ],
)
def test_what_is_repeated_in_vain(doing, steps, in_vain):
    assert repeats_in_vain(doing, steps) is in_vain


def test_a_suggestion_that_was_searched_for_is_dropped():
    episode = play(FIRST, SECOND, "Finish[Orlby]", retriever=(FIRST,))
    assert [str(v.suggestion) for v in views(episode, "solver")] == [FIRST, "None", "None"]
    (message,) = episode.memory.team.shared.interactions
    assert message.content == FIRST and message.helped is True


# --- limits


def test_the_last_turn_gives_the_best_answer_that_is_known():
    episode = play(FIRST, SECOND, "Search[Osk Tunnel]", max_turns=3)
    assert episode.transcript.answer == "Orlby" and len(episode.transcript.steps) == 3
    assert not episode.success and episode.memory.team.shared.task.state == "failed"
    assert (episode.rows[-1].agent, episode.rows[-1].why) == ("team", "the turns are used up")
    assert [v.turns_left for v in views(episode, "solver")] == [3, 2, 1]


def test_without_memory_the_best_answer_is_that_of_the_last_page():
    script = (SECOND, "Search[Osk Tunnel]", "Search[Velm Bridge]")
    bare = play(*script, max_turns=3, private=False, shared=False, curator=False)
    assert bare.transcript.answer != "Orlby" == play(*script, max_turns=3).transcript.answer


def test_an_objection_costs_a_turn_and_the_last_one_changes_nothing():
    episode = play("Finish[Velm]", verifier=(FIRST, SECOND, "Search[Osk Tunnel]"), max_turns=3)
    assert [str(s) for s in episode.transcript.steps] == [FIRST, SECOND, "Finish[Velm]"]
    assert not episode.success and "objects" in episode.reason
    lessons = [x.about for x in episode.memory.team.of("solver").board.all(Lesson)]
    assert "Finish[Velm]" in lessons, "the solver knows what was doubted"


def test_a_verifier_that_only_repeats_itself_ends_the_task_without_success():
    episode = play(FIRST, "Finish[Velm]", verifier=(FIRST,), max_turns=8)
    assert episode.turn == 2 and episode.transcript.answer == "Velm" and not episode.success


def test_one_agent_stops_when_its_tokens_are_used_up():
    made = make_team("one_agent", embedder="hash")
    made.players = {"solver": Scripted("solver", *(f"Search[{title}]" for title in PAGES), FIRST)}
    made.ingest(talk())
    spent = []
    for budget in (900, 1_500, 3_000):
        made.players["solver"].script = [f"Search[{i}]" for i in range(40)]
        made.match({QUESTION: budget})
        solution = made.solve(Question("", QUESTION))
        spent.append(solution.counts["shown_tokens"])
        assert spent[-1] <= budget and solution.transcript.done
        assert "the tokens are used up" in solution.record
    assert spent == sorted(spent) and spent[-1] > 2_000, "it uses what it is given"


# --- players that fail


class Lost(Exception):
    pass


@pytest.mark.parametrize("role", ["retriever", "solver", "verifier"])
def test_a_player_that_raises_fails_its_task_and_leaves_the_memory_readable(role):
    scripts: dict[str, Any] = {"retriever": ("", ""), "verifier": (SECOND,)}
    scripts |= {role: (*(("",) if role == "retriever" else ()), Lost("no idea"))} if role != "solver" else {}
    solver = (FIRST, Lost("no idea")) if role == "solver" else (FIRST, "Finish[Orlby]")
    made = team(*solver, **scripts)
    episode = made.begin(QUESTION)
    with pytest.raises(PlayerError, match=rf"^the {role} failed in turn 2 with Lost: no idea"):
        episode.play()
    shared = episode.memory.team.shared
    assert shared.task.state == "failed" and f"the {role} failed in turn 2" in shared.task.reason
    assert [h.question for h in shared.hops] == ["Velm Bridge"] and shared.facts
    assert "Edda Quill" in episode.memory.blocks("solver", episode.memory.found("solver"))["shared"]


def test_a_failed_task_has_an_empty_answer_and_the_next_one_is_played():
    made = team(FIRST, Lost("no idea"), SECOND, "Finish[Orlby]", meta=True)
    failed, right = (made.solve(Question("", QUESTION)) for _ in range(2))
    assert failed.answer.text == "" and failed.answer.abstained and not failed.counts["succeeded"]
    last = json.loads(failed.record)[-1]
    assert (last["agent"], last["why"]) == ("team", "the solver failed in turn 2 with Lost: no idea")
    assert failed.evidence.sources == ["Velm_Bridge#0", "Velm_Bridge#1"], "what it was shown stays"
    assert right.answer.text == "Orlby" and right.counts["succeeded"]
    assert [(t.succeeded, "failed in turn 2" in t.reason) for t in made.meta.tasks] == [(False, True), (True, False)]


@pytest.mark.parametrize("error", [LLMError("the server is gone"), KeyboardInterrupt()])
def test_what_is_not_the_players_fault_passes(error):
    made = team(FIRST, error)
    episode = made.begin(QUESTION)
    with pytest.raises(type(error)):
        episode.play()
    assert episode.memory.team.shared.task.state == "failed"
    with pytest.raises(type(error)):
        team(error).solve(Question("", QUESTION))


def test_what_is_no_move_is_the_players_failure():
    with pytest.raises(PlayerError, match="the solver returned a str in turn 1, not a Move"):
        made = team("")
        made.players["solver"].act = lambda view: "Search[Velm Bridge]"
        made.begin(QUESTION).play()


def test_a_text_without_an_action_is_answered():
    episode = play(Move(None, "", raw="Let me think."), FIRST, "Finish[Orlby]")
    assert [s.valid for s in episode.transcript.steps] == [False, True, True]
    assert episode.counts["invalid"] == 1 and episode.memory.team.shared.facts


# --- threads


def test_two_teams_at_once_do_not_mix():
    barrier = threading.Barrier(4, timeout=60)

    class Waiting(Scripted):
        def act(self, view: View) -> Move:
            barrier.wait()
            return super().act(view)

    def run(n: int) -> tuple[Team, Any, Episode]:
        pages, question = (PAGES, QUESTION) if n % 2 else (OTHER_PAGES, OTHER_QUESTION)
        first, second = list(pages)[:2]
        solver = Waiting("solver", f"Search[{first}]", f"Search[{second}]", "Finish[it]")
        made = Team(f"team {n}", {"solver": solver}, curator=True, embedder="hash")
        made.ingest(talk(f"c{n}", pages))
        episode = made.begin(question)
        episode.play()
        return pages, episode

    with ThreadPoolExecutor(4) as pool:
        played = list(pool.map(run, range(4)))
    for pages, episode in played:
        assert [h.question for h in episode.memory.team.shared.hops] == list(pages)[:2]
        assert {f.entity for f in episode.memory.team.shared.facts} <= set(pages)
        assert {s.split("#")[0].replace("_", " ") for s in episode.transcript.shown} == set(list(pages)[:2])


def test_one_team_may_answer_several_questions_at_once():
    made = make_team("team_shared", embedder="hash")
    made.ingest(talk())
    questions = [QUESTION, "When was the Velm Bridge opened?"] * 4
    alone = [made.solve(Question("", q)).record for q in questions]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda q: made.solve(Question("", q)).record, questions)) == alone


# --- prompts

EXPERIENCE = Experience(
    successes=(Trajectory(id="t", task="Who built Sula?", steps=("Search[Sula]", "Finish[Aske]"), succeeded=True),),
    failures=(Trajectory(id="f", task="Who built Rane?", reason="the turns are used up"),),
    insights=(Insight(id="i", rule="Search for names."),),
)
HEADINGS = {
    "en": ("Shared Memory", "Private Memory", "=====", "## Successful", "## Your Past", "## Insights", "## Your Turn"),
    "zh": ("共享记忆", "私有记忆", "=====", "## 成功示例", "## 你过去的成功", "## 经验", "## 轮到你了"),
}


def prompt_of(view: View, style: PromptStyle, role: str = "solver") -> Prompt:
    blocks = {"shared": "【Shared Memory】\n- a", "private": "【Private Memory】\n- b"}
    if style.language == "zh":
        blocks = {"shared": "【共享记忆】\n- a", "private": "【私有记忆】\n- b"}
    return build_prompt(ROLES[role], view, style=style, **blocks)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("compact", [True, False])
def test_the_parts_have_the_order_of_the_document(language, compact):
    view = View(QUESTION, 3, 5, last=PAGE, suggestion=Action("Search", "Edda Quill"), experience=EXPERIENCE)
    prompt = prompt_of(view, PromptStyle(language=language, compact=compact))
    system, user = (m["content"] for m in prompt.messages)
    assert system == system_prompt(ROLES["solver"], language)
    at = [user.index(heading) for heading in HEADINGS[language]]
    assert at == sorted(at), "shared, private, line, examples, past, insights, task"
    end = user[at[-1] :]
    order = [end.index(part) for part in (QUESTION, str(PAGE), PAGE.observation, "Search[Edda Quill]")]
    assert order == sorted(order)
    assert prompt.shown == {name: count_tokens(getattr(prompt, name)) for name in prompt.shown}
    assert list(prompt.shown) == ["role", "shared", "private", "examples", "past", "insights", "task"]


def test_compact_prompts_are_shorter_and_what_never_changes_can_come_first():
    view = View(QUESTION, last=PAGE, experience=EXPERIENCE)
    whole, compact = (prompt_of(view, PromptStyle(compact=c)) for c in (False, True))
    assert compact.shown["examples"] < whole.shown["examples"] and compact.task == whole.task
    first = prompt_of(view, PromptStyle(fixed_first=True))
    later = prompt_of(View(OTHER_QUESTION, 4, 2), PromptStyle(fixed_first=True))
    assert first.messages[0] == later.messages[0] and "## Successful" in first.messages[0]["content"]
    assert "## Successful" not in first.messages[1]["content"]


@given(
    observation=st.text(max_size=3_000),
    question=st.text(min_size=1, max_size=400),
    blocks=st.tuples(st.text(max_size=1_500), st.text(max_size=1_500)),
    tokens=st.integers(MIN_TOKENS, 900),
    role=st.sampled_from(sorted(ROLES)),
    fixed_first=st.booleans(),
    steps=st.integers(0, 4),
)
def test_no_prompt_passes_its_budget(observation, question, blocks, tokens, role, fixed_first, steps):
    last = Step("Search", "x", observation)
    view = View(question, 2, 2, last=last, suggestion=Action("Search", "y"), proposal="z", experience=EXPERIENCE)
    style = PromptStyle(tokens=tokens, fixed_first=fixed_first)
    prompt = build_prompt(
        ROLES[role], view, shared=blocks[0], private=blocks[1], steps=[last] * steps, style=style
    )
    assert prompt.tokens <= tokens


def test_a_short_budget_keeps_the_task_and_drops_the_examples_first():
    view = View(QUESTION, last=PAGE, experience=EXPERIENCE)
    sizes = [prompt_of(view, PromptStyle(tokens=n)) for n in (MIN_TOKENS, 330, 2_000)]
    assert all(QUESTION in p.task and PAGE.observation in p.task for p in sizes)
    assert not sizes[0].examples and sizes[2].examples
    assert all(p.insights for p in sizes[1:])


@pytest.mark.parametrize(
    ("values", "message"),
    [({"tokens": 10}, "tokens is 10"), ({"examples": 3}, "examples is 3"), ({"language": "de"}, "'de'")],
)
def test_a_style_out_of_range_is_an_error(values, message):
    with pytest.raises(ValueError, match=message):
        PromptStyle(**values)
