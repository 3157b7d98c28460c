"""Teams: loops, limits, failing players, threads, prompts, traces, memories, and the faults of the design."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted, ScriptedLLM
from server import Server, ok_json

from adaptmr.agents.episode import Episode, PlayerError
from adaptmr.agents.players import ModelPlayer
from adaptmr.agents.prompts import Move, PlayerPrompt, PromptStyle, PlayerView, player_prompt, system_prompt
from adaptmr.agents.task_memory import OtherTasks, Reading, TaskMemory, repeats_in_vain
from adaptmr.agents.team import TEAMS, Team, make_team
from adaptmr.eval.runner.evaluate import evaluate
from adaptmr.llm import LLM
from adaptmr.llm.spending import count_tokens
from adaptmr.llm.transport import LLMError
from adaptmr.memory.team.meta import Experience, Insight, MetaMemory, Trajectory
from adaptmr.memory.team.records import ROLES, EvidencePiece, Extraction, Lesson, ReasoningStep, Triple
from adaptmr.memory.team.steps import Action, TeamStep, parse_action
from adaptmr.memory.team.team import PrivateMemory, SharedMemory, TeamMemory
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
_STATED = re.compile(r"([A-Z]\w+ [A-Z]\w+) was (designed by|born in) ([A-Z]\w+(?: [A-Z]\w+)?)")


def read(question: str, step: TeamStep) -> Extraction:
    """What a model would read in these pages."""
    facts = tuple(Triple(*found) for found in _STATED.findall(step.observation))
    if not facts:
        return Extraction()
    bridge = facts[-1].value if facts[-1].relation == "designed by" else ""
    return Extraction(facts[-1].value, 0.6, facts, (bridge,) if bridge else (), bridge=bridge)


def talk(id: str = "velm", pages: Mapping[str, tuple[str, ...]] = PAGES) -> Conversation:
    said = [(t, f"{t.replace(' ', '_')}#{i}", s) for t, texts in pages.items() for i, s in enumerate(texts)]
    turns = [
        Memory(f"{id}/{source}", sentence, session=title, source=source, step=n)
        for n, (title, source, sentence) in enumerate(said)
    ]
    return Conversation(id, (), turns)


def team(*solver: str | Move | Exception, **options: Any) -> Team:
    """A team whose solver follows a script; `retriever` and `verifier` are those of the others."""
    scripts = {"retriever": options.pop("retriever", ("",)), "solver": solver}
    scripts["verifier"] = options.pop("verifier", ("",))
    made = Team(
        options.pop("name", "scripted"),
        {role: Scripted(role, *script) for role, script in scripts.items()},
        **{"curator": True, "embedder": "hash", "read": read, **options},
    )
    made.ingest(talk())
    return made


def play(*solver: str | Move | Exception, question: str = QUESTION, **options: Any) -> Episode:
    episode = team(*solver, **options).begin(question)
    episode.play()
    return episode


def views(episode: Episode, role: str) -> list[PlayerView]:
    return episode.players[role].views


# --- loops


def test_an_action_that_is_repeated_in_vain_is_noted_and_another_one_is_done():
    episode = play(FIRST, "Search[the velm bridge]", "Finish[Orlby]", verifier=(SECOND, ""))
    assert [str(s) for s in episode.transcript.steps] == [FIRST, SECOND, "Finish[Orlby]"]
    memory = episode.memory.team
    assert "Search[the velm bridge]" in [x.about for x in memory.private["solver"].board.all(Lesson)]
    assert memory.private["verifier"].peer("solver").status == "repeats Search[the velm bridge]"
    assert any("loop" in item.description for item in memory.private["verifier"].pending())
    (asked, _) = views(episode, "verifier")
    assert (str(asked.suggestion), asked.proposal) == ("Search[the velm bridge]", "")
    assert "repeats Search[the velm bridge] in vain" in asked.messages[1]["content"]
    assert episode.counts["loops"] == 1 and [r.agent for r in episode.rows if r.loop] == ["solver"]
    (done,) = (r for r in episode.rows if r.observation is not None and r.agent == "verifier")
    assert done.action == SECOND


PAGE = TeamStep("Search", "Velm Bridge", "Velm Bridge: It was designed by Edda Quill.")
FOUND = TeamStep("Lookup", "designed", "(Result 1/1) It was designed by Edda Quill.")
NO_MORE = TeamStep("Lookup", "designed", 'No more sentences of "Velm Bridge" with "designed".')


@pytest.mark.parametrize(
    ("doing", "steps", "in_vain"),
    [
        (Action("Search", "bridge VELM"), [PAGE], True),
        (Action("Search", "Edda Quill"), [PAGE], False),
        (Action("Lookup", "designed"), [PAGE, FOUND], False),
        (Action("Lookup", "Designed"), [PAGE, FOUND, NO_MORE], True),
        (Action("Lookup", "opened"), [PAGE, FOUND, NO_MORE], False),
        (Action("Lookup", "designed"), [PAGE, NO_MORE, PAGE], False),
        (Action("Finish", "Orlby"), [PAGE, TeamStep("Finish", "Orlby")], False),
        ("I don't know.", [TeamStep("", "I don't know.", "That is no action.", False)], True),
        ("I don't know.", [PAGE], False),
    ],
)
def test_what_is_repeated_in_vain(doing, steps, in_vain):
    assert repeats_in_vain(doing, steps) is in_vain


# --- limits


def test_the_last_turn_gives_the_best_answer_that_is_known():
    episode = play(FIRST, SECOND, "Search[Osk Tunnel]", max_turns=3)
    assert episode.transcript.answer == "Orlby" and len(episode.transcript.steps) == 3
    assert not episode.success and episode.memory.team.shared.task.state == "failed"
    assert (episode.rows[-1].agent, episode.rows[-1].why) == ("team", "the turns are used up")
    assert [v.turns_left for v in views(episode, "solver")] == [3, 2, 1]


def test_an_objection_costs_a_turn_and_the_last_one_changes_nothing():
    episode = play("Finish[Velm]", verifier=(FIRST, SECOND, "Search[Osk Tunnel]"), max_turns=3)
    assert [str(s) for s in episode.transcript.steps] == [FIRST, SECOND, "Finish[Velm]"]
    assert not episode.success and "objects" in episode.reason
    lessons = [x.about for x in episode.memory.team.private["solver"].board.all(Lesson)]
    assert "Finish[Velm]" in lessons, "the solver knows what was doubted"


def test_a_verifier_that_doubts_without_another_action_ends_the_task_without_success():
    doubt = Move(None, "Velm stands nowhere", doubts=True)
    episode = play(FIRST, "Finish[Velm]", verifier=(doubt,))
    assert episode.transcript.answer == "Velm" and not episode.success
    assert episode.memory.team.shared.task.reason == "the verifier objects: Velm stands nowhere"


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
    assert [(t.succeeded, "failed in turn 2" in t.reason) for t in made.meta.tasks] == [
        (False, True),
        (True, False),
    ]


@pytest.mark.parametrize("error", [LLMError("the server is gone"), KeyboardInterrupt()])
def test_what_is_not_the_players_fault_passes(error):
    made = team(FIRST, error)
    episode = made.begin(QUESTION)
    with pytest.raises(type(error)):
        episode.play()
    assert episode.memory.team.shared.task.state == "failed"
    with pytest.raises(type(error)):
        team(error).solve(Question("", QUESTION))


# --- prompts

EXPERIENCE = Experience(
    successes=(
        Trajectory(id="t", task="Who built Sula?", steps=("Search[Sula]", "Finish[Aske]"), succeeded=True),
    ),
    failures=(Trajectory(id="f", task="Who built Rane?", reason="the turns are used up"),),
    insights=(Insight(id="i", rule="Search for names."),),
)
HEADINGS = {
    "en": (
        "Shared Memory",
        "Private Memory",
        "=====",
        "## Your Past",
        "## Insights",
        "## Your Turn",
    ),
    "zh": ("共享记忆", "私有记忆", "=====", "## 你过去的成功", "## 经验", "## 轮到你了"),
}


def prompt_of(
    view: PlayerView, style: PromptStyle, role: str = "solver", language: str = "en"
) -> PlayerPrompt:
    blocks = {"shared": "【Shared Memory】\n- a", "private": "【Private Memory】\n- b"}
    if language == "zh":
        blocks = {"shared": "【共享记忆】\n- a", "private": "【私有记忆】\n- b"}
    return player_prompt(ROLES[role], view, style=style, **blocks)


@pytest.mark.parametrize(("language", "question"), [("en", QUESTION), ("zh", "月渡桥的设计者出生在哪里？")])
def test_the_parts_have_the_order_of_the_document(language, question):
    view = PlayerView(
        question, 3, 5, last=PAGE, suggestion=Action("Search", "Edda Quill"), experience=EXPERIENCE
    )
    prompt = prompt_of(view, PromptStyle(), language=language)
    system, user = (m["content"] for m in prompt.messages)
    assert system.startswith(system_prompt(ROLES["solver"], language)) and system.endswith(prompt.examples)
    at = [user.index(heading) for heading in HEADINGS[language]]
    assert at == sorted(at), "shared, private, line, past, insights, task"
    end = user[at[-1] :]
    order = [end.index(part) for part in (question, str(PAGE), PAGE.observation, "Search[Edda Quill]")]
    assert order == sorted(order)
    assert prompt.shown == {name: count_tokens(getattr(prompt, name)) for name in prompt.shown}
    assert list(prompt.shown) == ["role", "shared", "private", "examples", "past", "insights", "task"]


@given(
    observation=st.text(max_size=3_000),
    question=st.text(min_size=1, max_size=400),
    blocks=st.tuples(st.text(max_size=1_500), st.text(max_size=1_500)),
    tokens=st.integers(900),
    role=st.sampled_from(sorted(ROLES)),
    steps=st.integers(0, 4),
)
def test_no_prompt_passes_its_budget(observation, question, blocks, tokens, role, steps):
    last = TeamStep("Search", "x", observation)
    view = PlayerView(
        question, 2, 2, last=last, suggestion=Action("Search", "y"), proposal="z", experience=EXPERIENCE
    )
    style = PromptStyle(tokens=tokens)
    prompt = player_prompt(
        ROLES[role], view, shared=blocks[0], private=blocks[1], steps=[last] * steps, style=style
    )
    assert prompt.tokens <= tokens


# --- players that are models

REPLY = {"thought": "her page", "extracted_info": "born in Orlby", "action": "Finish[Orlby]"}


def asked(role: str = "solver", question: str = QUESTION) -> PlayerView:
    view = PlayerView(question, 2, 3, last=PAGE, proposal="Orlby" if role == "verifier" else "")
    return replace(view, messages=player_prompt(ROLES[role], view).messages)


def test_a_model_is_sent_the_prompt_of_the_view_and_its_reply_is_kept():
    with Server(ok_json(REPLY)) as server:
        move = ModelPlayer(LLM("m", base_url=server.url, cache=None), ROLES["solver"]).act(asked())
    assert server.requests[0]["messages"] == list(asked().messages)
    assert str(move.action) == "Finish[Orlby]" and move.why == "her page | born in Orlby"
    assert json.loads(move.raw) == REPLY and move.usage.calls == 1


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ({"reason": "it says so", "accept": True, "action": ""}, None),
        ({"reason": "it says so", "accept": True, "action": SECOND}, None),
        ({"reason": "no page", "accept": False, "action": SECOND}, SECOND),
    ],
)
def test_a_verifier_accepts_or_names_an_action(value, action):
    with Server(ok_json(value)) as server:
        move = ModelPlayer(LLM("m", base_url=server.url, cache=None), ROLES["verifier"]).act(
            asked("verifier")
        )
    assert (str(move.action) if move.action else None) == action and json.loads(move.raw) == value


def test_what_a_model_says_in_vain_is_no_move_and_without_a_model_nobody_plays():
    llm = ScriptedLLM(team_solve="I would rather not.", team_verify="No.", team_retrieve="?")
    solver, verifier, retriever = (ModelPlayer(llm, ROLES[n]) for n in ("solver", "verifier", "retriever"))
    assert solver.act(asked()).action is None and solver.act(asked()).raw == "I would rather not."
    assert verifier.act(asked("verifier")).doubts and retriever.act(asked("retriever")).action is None
    with pytest.raises(LLMError, match=r"the retriever of a team needs a model.*run exp7"):
        make_team("team_full", embedder="hash").solve(Question("", QUESTION))


# --- the trace

FIELDS = {
    "turn", "agent", "shown", "found", "why", "raw", "action", "trigger", "loop", "observation",
    "answer_read", "valid", "served",
}  # fmt: skip


def test_every_move_is_in_the_record():
    made = team(FIRST, SECOND, "Finish[Orlby]", retriever=(FIRST, SECOND, ""))
    solution = made.solve(Question("", QUESTION))
    rows = json.loads(solution.record)
    assert [(r["turn"], r["agent"]) for r in rows] == [
        (turn, agent) for turn in (1, 2, 3) for agent in ("retriever", "solver")
    ] + [(3, "verifier")]
    assert all(set(r) == FIELDS for r in rows)
    done = [r for r in rows if r["observation"] is not None]
    assert [r["action"] for r in done] == [FIRST, SECOND] and done[1]["answer_read"] == "Orlby"
    assert done[0]["observation"] == "Velm Bridge: " + " ".join(PAGES["Velm Bridge"])
    kinds = {f["kind"] for f in rows[3]["found"]}
    assert {"shared/hop", "shared/fact", "shared/search", "private/evidence"} <= kinds
    assert rows[0]["shown"]["task"] > 0 == rows[0]["shown"]["private"] < rows[3]["shown"]["private"]
    assert solution.counts["shown_tokens"] >= sum(sum(r["shown"].values()) for r in rows)
    assert solution.evidence.sources == [
        f"{t.replace(' ', '_')}#{i}" for t in list(PAGES)[:2] for i in (0, 1)
    ]


# --- what stays between tasks


def two_tasks(**options: Any) -> tuple[Team, list[PlayerView]]:
    """A team after a task with a success, and what its solver sees of another task."""
    made = team(FIRST, SECOND, "Finish[Orlby]", **options)
    made.solve(Question("", QUESTION))
    made.ingest(talk("brann", OTHER_PAGES))
    made.players["solver"] = Scripted("solver", "Search[Nowhere]", "Search[Ilse Maro]", "Finish[Vardby]")
    made.solve(Question("", OTHER_QUESTION))
    return made, made.players["solver"].views


@pytest.mark.parametrize(("curator", "turns"), [(False, [1, 2, 3]), (True, [2, 3])])
def test_experience_comes_from_the_memory_across_tasks_and_with_a_curator_when_it_is_needed(curator, turns):
    made, seen = two_tasks(meta=True, curator=curator)
    assert [v.turn for v in seen if v.experience.successes] == turns
    assert ("Velm" in json.dumps([v.messages for v in seen])) is True, "the past success is shown"
    first, second = made.meta.tasks
    assert (first.uses, first.successes) == (1, 1) and second.uses == 0, "what helped is reinforced"


def test_a_reward_replaces_the_judgement_and_comes_by_learn_only():
    made = team(FIRST, SECOND, "Finish[Tarnby]", meta=True)
    question = Question("", QUESTION)
    made.solve(question)
    assert [(t.succeeded, t.by) for t in made.meta.tasks] == [(True, "verifier")]
    made.learn(question, {"f1": 0.0, "em": 0.0})
    assert [(t.succeeded, t.by) for t in made.meta.tasks] == [(False, "reward")]
    with pytest.raises(ValueError, match="has not just answered"):
        made.learn(Question("", OTHER_QUESTION), {"f1": 1.0})
    team(FIRST).learn(question, {"f1": 1.0})  # nothing to remember it in


# --- no gold

MARKER = "Qwyzzgold"
DATA = Dataset(
    "toy",
    [talk("velm"), talk("brann", OTHER_PAGES)],
    [
        Question("q1", QUESTION, [MARKER], evidence=["Edda_Quill#1"], conversation="velm"),
        Question("q2", OTHER_QUESTION, [f"{MARKER} town"], evidence=["Ilse_Maro#1"], conversation="brann"),
    ],
)


@pytest.mark.parametrize("name", ["team_full", "team_shuffled"])
def test_no_gold_answer_is_in_any_memory(name, monkeypatch):
    stores, states = list[Any](), list[str]()
    begin, save = Team.begin, Team.learn

    def spy(self: Team, question: str) -> Episode:
        stores.append(begin(self, question))
        return stores[-1]

    def after(self: Team, question: Question, scores: Mapping[str, float]) -> None:
        assert question.answers == [] and not question.evidence
        save(self, question, scores)
        states.append(json.dumps([m.text + json.dumps(dict(m.meta)) for m in self.meta.store.memories]))

    monkeypatch.setattr(Team, "begin", spy)
    monkeypatch.setattr(Team, "learn", after)
    frame = evaluate([name], DATA, ScriptedLLM(), embedder="hash", progress=False, train=["q1", "q2"])
    assert frame["answers"].str.contains(MARKER).all() and frame["train"].all(), "the gold is there"
    held = [m for e in stores for m in e.memory.team.shared.board.store.memories]
    assert len(states) == 2 and len(held) > 20
    assert MARKER not in json.dumps([m.text + json.dumps(dict(m.meta)) for m in held])
    assert all(MARKER not in text for text in (*states, *frame["transcript"]))
    assert OTHER_QUESTION in states[1]


# --- the teams that are compared


@pytest.mark.parametrize("name", TEAMS)
def test_the_memories_of_the_teams(name):
    made = make_system(name, embedder="hash")
    expected = {
        "team_bare": (False, False, False, False, "task"),
        "team_private": (True, False, False, False, "task"),
        "team_shared": (True, True, False, False, "task"),
        "team_meta": (True, True, False, True, "run"),
        "team_full": (True, True, True, True, "run"),
        "team_shuffled": (True, True, True, True, "run"),
        "one_agent": (True, True, True, False, "task"),
    }[name]
    setting = made.setting
    found = (setting.private, setting.shared, setting.curator, made.meta is not None, made.scope)
    assert found == expected and known_systems("team")[name]
    declared = get_capabilities(made)
    assert (declared.matches == "team_full") is (name == "one_agent")
    assert declared.one_at_a_time is (declared.scope == "run")


def test_every_team_answers_through_evaluate():
    frame = evaluate(list(TEAMS), DATA, ScriptedLLM(), embedder="hash", progress=False).set_index(
        ["system", "question"]
    )
    assert (frame["hits"] > 0).all() and (frame["repeated_searches"].drop("team_bare", level=0) >= 0).all()
    shared = frame.loc[["team_shared", "team_meta", "team_full", "team_shuffled", "one_agent"]]
    assert (shared["repeated_searches"] == 0).all()
    assert (frame.loc["one_agent", "shown_tokens"] <= frame.loc["team_full", "shown_tokens"]).all()
    assert (frame.loc["team_full", "facts"] > 0).all() and (frame.loc["team_shared", "facts"] == 0).all()


@given(
    own=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5),
    other=st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=8),
)
def test_as_many_new_facts_and_none_of_its_own(own, other):
    def reading(task: str, numbers: list[int]) -> Reading:
        facts = tuple(Triple("e", "r", str(n)) for n in numbers)
        return Reading(task, f"{task} page", Extraction("a" if numbers else None, facts=facts))

    others = OtherTasks("own", [reading("own", n) for n in own] + [reading("other", n) for n in other])
    handed, seen = list[Triple](), set[int]()
    for numbers in own:
        observation, got = others.instead_of(reading("own", numbers).extraction)
        seen |= set(numbers)
        handed += got.facts
        assert observation == "other page" and (got.answer is not None) <= bool(numbers)
        assert not {int(f.value) for f in got.facts} & seen
    available = {n for numbers in other for n in numbers}
    assert len(handed) == len(set(handed)) and len(handed) <= len(seen)
    assert len(handed) == len(seen) or len(available - seen) < len(seen)


# --- the twelve faults of the design: each check holds, and fails where the fault is put back

Check = Callable[[], None]


def two_hops() -> Episode:
    """A task of two hops; its solver thinks aloud, as a model does, and repeats its first search."""
    thought = Move(parse_action(SECOND), "Edda Quill is the designer", raw="…")
    return play(FIRST, thought, FIRST, "Finish[Orlby]", retriever=(FIRST, SECOND, ""))


def written(**changed: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """A fault: something is not written to the memories."""
    write = TeamMemory.write

    def faulty(self, agent, question, action, observation, read=None, turn=0, valid=True):
        return write(self, agent, question, action, observation, replace(read, **changed), turn, valid)

    return lambda patch: patch.setattr(TeamMemory, "write", faulty)


def replaced(owner: type, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A fault: `owner.name` is what `make` makes of it."""
    original = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, make(original))


def answers_are_kept() -> None:
    assert [h.answer for h in two_hops().memory.team.shared.hops][1] == "Orlby"


def the_bridge_is_known_in_the_next_hop() -> None:
    second = views(two_hops(), "solver")[1]
    assert "Plan: → Edda Quill" in memory_part(second)


def facts_grow() -> None:
    blocks = [memory_part(v) for v in views(two_hops(), "solver")]
    seen = [block.count("· designed by:") + block.count("· born in:") for block in blocks]
    assert 0 == seen[0] < seen[1] < seen[2]


def a_search_is_made_once() -> None:
    episode = two_hops()
    assert episode.counts["served_searches"] == 1 and episode.transcript.n_repeated_searches == 0


def evidence_is_what_was_found() -> None:
    memory = two_hops().memory.team
    (first, _) = memory.private["retriever"].board.all(EvidencePiece)
    assert first.content.startswith("Velm Bridge → ") and "Edda Quill" in first.content
    assert any("Edda Quill" in e.content for e in memory.private["solver"].board.all(EvidencePiece))


def thoughts_are_kept() -> None:
    steps = two_hops().memory.team.private["solver"].board.all(ReasoningStep)
    assert "Edda Quill is the designer" in [s.conclusion for s in steps]


def memory_part(view: PlayerView) -> str:
    """What stands before the line that separates memory from task."""
    return view.messages[1]["content"].rpartition("=" * 60)[0]


def what_was_found_is_in_the_next_prompt() -> None:
    blocks = [memory_part(v) for v in views(two_hops(), "solver")]
    assert "Edda Quill" not in blocks[0] and "designer" in blocks[1] and "Orlby" in blocks[2]


def a_query_has_two_fields() -> None:
    queries = [v.found.query for v in views(two_hops(), "solver")]
    assert queries[:2] == ["Velm Bridge", "Edda Quill"], "the sub-question; its bridge is in it"
    assert all(len(q.split()) <= 5 for q in queries)


def a_hop_says_what_was_asked() -> None:
    assert [h.question for h in two_hops().memory.team.shared.hops][:2] == ["Velm Bridge", "Edda Quill"]


def replies_are_in_the_record() -> None:
    assert "…" in [r["raw"] for r in json.loads(two_hops().record)]


def recent_successes_are_found() -> None:
    successes = two_hops().memory.team.private["solver"].get_recent_successes(1)
    assert [e.answered for e in successes] == [True]


def lessons_outlive_their_task() -> None:
    made, seen = two_tasks(meta=True)
    assert any(v.experience for v in seen) and len(made.meta.get_recent_successes(5)) == 2


def _silent(result: Any = None) -> Callable[[Any], Callable[..., Any]]:
    return lambda original: lambda *_, **__: result


def _with_first(change: Callable[[str], str]) -> Callable[[Any], Callable[..., Any]]:
    return lambda original: lambda self, first, *rest, **more: original(self, change(first), *rest, **more)


LONG = "## Successful Examples " + "Question: Who was it? Search[a] → Finish[b] " * 20
FAULTS: list[tuple[Check, Callable[[pytest.MonkeyPatch], None]]] = [
    (answers_are_kept, written(answer=None)),
    (the_bridge_is_known_in_the_next_hop, written(bridge="", next_queries=())),
    (facts_grow, written(facts=())),
    (a_search_is_made_once, replaced(SharedMemory, "find_search", _silent())),
    (
        evidence_is_what_was_found,
        replaced(PrivateMemory, "observe", _with_first(lambda text: "Suggested: Search[…]")),
    ),
    (thoughts_are_kept, replaced(TaskMemory, "note_thought", _silent())),
    (what_was_found_is_in_the_next_prompt, replaced(TaskMemory, "blocks", _silent({}))),
    (
        a_query_has_two_fields,
        replaced(
            TaskMemory,
            "found",
            lambda found: (
                lambda self, agent, asked="", entity="": found(self, agent, f"{LONG} {asked}", entity)
            ),
        ),
    ),
    (
        a_hop_says_what_was_asked,
        replaced(SharedMemory, "add_hop", _with_first(lambda text: "Turn 3 execution")),
    ),
    (
        replies_are_in_the_record,
        replaced(Episode, "record", lambda record: property(lambda self: record.fget(self).replace("…", ""))),
    ),
    (
        recent_successes_are_found,
        replaced(
            PrivateMemory,
            "observe",
            lambda observe: lambda self, *a, **k: observe(self, *a, **{**k, "answered": False}),
        ),
    ),
    (lessons_outlive_their_task, replaced(MetaMemory, "recall", _silent(Experience()))),
]


@pytest.mark.parametrize(("check", "fault"), FAULTS, ids=[check.__name__ for check, _ in FAULTS])
def test_the_faults_of_the_design_are_cured_and_would_be_seen(check, fault, monkeypatch):
    check()
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()
