"""Players that follow rules: what they read, and what each memory changes in what they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.agents.comparing import Value, compare, read_comparison, value_of
from adaptmr.agents.reading import Reading, asked_for, read
from adaptmr.agents.rule_players import RuleRetriever, RuleSolver, RuleVerifier
from adaptmr.agents.searching import names_of, next_queries
from adaptmr.agents.situation import Situation, note, title_of
from adaptmr.agents.systems import make_team
from adaptmr.agents.view import TeamKnowledge, View
from adaptmr.data.registry import load
from adaptmr.eval.analysis.team_timeline import timeline
from adaptmr.memory.curator.triggers import Skill, query_form
from adaptmr.memory.meta.records import Experience
from adaptmr.memory.team.actions import Action
from adaptmr.memory.team.extraction import Extraction, Triple
from adaptmr.memory.team.steps import Step
from adaptmr.memory.team.team import TeamMemory
from adaptmr.store.memory_store import MemoryStore
from adaptmr.text import split_sentences
from adaptmr.types import Conversation, Memory, Question

BORN = "In which town was the designer of the Old Salt Tower born?"
OLDER = "Which lighthouse is older, Salt Tower or Gull Tower?"
TOWER = Step("Search", "Old Salt Tower", "Old Salt Tower: The Old Salt Tower was designed by Ida Moser.")
IDA = Step(
    "Search", "Ida Moser", "Ida Moser: Ida Moser was an architect. She was born in the town of Lindau."
)
REUS = Step("Search", "town born", "Juan Pons: Juan Pons was an architect. He was born in the town of Reus.")
SALT = Step("Search", "Salt Tower", "Salt Tower: The Salt Tower is a lighthouse. It was built in 1840.")
GULL = Step("Search", "Gull Tower", "Gull Tower: The Gull Tower is a lighthouse. It was built in 1795.")


def team(question: str, *steps: Step, facts: tuple[Triple, ...] = ()) -> TeamMemory:
    """A memory in which the solver wrote these steps, the facts with the first of them."""
    memory = TeamMemory(question, store=MemoryStore(embedder="hash"))
    for turn, step in enumerate(steps, 1):
        if step.action == "Search":
            memory.shared.search(step.argument, lambda query, seen=step.observation: seen, "solver", turn)
        read_here = note(question, step)
        extraction = Extraction(read_here.answer, read_here.confidence, facts if turn == 1 else ())
        memory.write("solver", question, str(step), step.observation, extraction, turn, step.valid)
    return memory


def view(question: str, last: Step | None = None, memory: TeamMemory | None = None, **more) -> View:
    """What a solver sees in the fourth of eight turns, with all memories or with none."""
    known = TeamKnowledge.of(memory.shared, memory.of("solver")) if memory else TeamKnowledge()
    return replace(View(question, 4, 5, last, known=known), **more)


# --- knowledge


def test_knowledge_is_a_copy_and_empty_where_a_memory_is_missing():
    memory = team(BORN, TOWER, facts=(Triple("Old Salt Tower", "designer", "Ida Moser"),))
    both = TeamKnowledge.of(memory.shared, memory.of("solver"))
    memory.shared.add_fact("Ida Moser", "place of birth", "Lindau")
    assert [f.value for f in both.values("The Old Salt Tower", ("designer",))] == ["Ida Moser"]
    assert both.has_searched("the old salt tower?") and not both.about("Ida Moser")
    assert TeamKnowledge.of(memory.shared).hypotheses == () != both.hypotheses
    own = TeamKnowledge.of(None, memory.of("solver"))
    assert own.hypotheses and not own.facts and not own.searches and not own.hops
    assert not TeamKnowledge.of()


def test_values_come_in_the_order_of_the_relations_then_the_surest():
    memory = team(BORN)
    for relation, value, confidence in (("b", "1", 0.5), ("a", "2", 0.5), ("b", "3", 0.9), ("c", "4", 1.0)):
        memory.shared.add_fact("Tower", relation, value, confidence)
    assert [f.value for f in TeamKnowledge.of(memory.shared).values("tower", ("a", "b"))] == ["2", "3", "1"]


# --- reading


@pytest.mark.parametrize(
    "question, answer",
    [
        ("In which year was the choir founded?", "1931"),
        ("How many singers does the choir have?", "forty"),
        ("Which composer wrote the hymn of the choir?", "Juan Pons"),
        ("Which hymn did the choir sing first?", "Salt Roads"),
    ],
)
def test_an_answer_is_of_the_kind_asked_for_and_near_the_words(question, answer):
    seen = (
        "Gull Bay Choir: The Gull Bay Choir is a choir of forty singers in Gull Bay. It was founded in 1931. "
        "The composer Juan Pons wrote the hymn Salt Roads for it in 1958."
    )
    best = read(question, Step("Search", "Gull Bay Choir", seen)).best
    assert best is not None and best.text == answer


@pytest.mark.parametrize(
    "step",
    [
        Step("Search", "x", 'Could not find "x". No title is similar.'),
        Step("Lookup", "x", "No passage is open to look in.", valid=False),
        Step("Finish", "x", "The answer is given."),
    ],
)
def test_a_step_that_shows_no_passage_has_an_empty_reading(step):
    assert read(BORN, step) == Reading() and note(BORN, step).answer is None


def test_what_the_question_names_is_neither_answer_nor_lead():
    reading = read("Who designed the Old Salt Tower?", TOWER)
    assert reading.topic == "Old Salt Tower"
    assert "Ida Moser" in reading.leads and "Old Salt Tower" not in reading.leads
    assert [c.text for c in reading.candidates] == ["Ida Moser"]


def test_a_number_or_year_is_asked_for_wherever_the_question_says_so():
    assert asked_for("It is a school with how many pupils?").kind == "number"
    assert asked_for("The tower was built in what year?").kind == "year"
    assert asked_for("Who built the tower?").kind == "person"


@given(st.text(max_size=200), st.text(max_size=300))
def test_any_text_can_be_read(question, observation):
    reading = read(question, Step("Search", "x", observation))
    assert all(0 <= c.probability <= 1 for c in reading.candidates)
    assert list(reading.candidates) == sorted(reading.candidates, key=lambda c: -c.probability)
    read_comparison(question)


def test_chinese_is_read_by_the_curators_rules():
    step = Step("Search", "盐塔", "盐塔位于鸥湾。盐塔的设计者是林薇。林薇出生于杭州。")
    assert read("盐塔位于哪里？", step).best.text == "鸥湾"


# --- Chinese

ZH_PAGES = {
    "白鹭桥": "白鹭桥位于芦洲，建成于1931年。白鹭桥由工程师韩若川设计。",
    "白鹭塔": "白鹭塔位于芦洲。白鹭塔由杜明远设计。",
    "韩若川": "韩若川，1898年出生于松亭县。他的妻子是钢琴家罗清音。",
    "罗清音": "罗清音毕业于南浦音乐学院。",
    "南浦音乐学院": "南浦音乐学院成立于1907年5月。学院有三百名学生。",
    "杜明远": "杜明远，1911年3月2日出生于石浦镇。他的妻子是教师何晓。",
    "《灯塔笔记》": "《灯塔笔记》是一部1962年出版的小说，作者是程雨眠。",
    "程雨眠": "程雨眠，1920年出生于沙门岛。她的父亲是船长程大海。",
    "青石湖": "青石湖是一座湖。湖深52米。",
    "红石湖": "红石湖是一座湖。湖深31米。",
}
ZH_CASES = [
    ("白鹭桥的设计者出生于什么地方？", "松亭县"),
    ("白鹭塔的设计者的妻子是谁？", "何晓"),
    ("罗清音毕业的学院成立于哪一年？", "1907年"),
    ("《灯塔笔记》的作者的父亲是谁？", "程大海"),
    ("韩若川和杜明远，谁出生得更晚？", "杜明远"),
    ("哪个湖更深，青石湖还是红石湖？", "青石湖"),
]


@pytest.mark.parametrize("question, answer", ZH_CASES)
def test_a_team_answers_chinese_questions_in_two_hops(question, answer):
    turns = [
        Memory(f"{title}#{n}", text, session=title.strip("《》"))
        for title, page in ZH_PAGES.items()
        for n, text in enumerate(split_sentences(page))
    ]
    made = make_team("team_shared", embedder="hash")
    made.ingest(Conversation("zh", turns=turns))
    assert made.solve(Question("", question)).answer.text == answer


def test_an_inner_relation_leads_on_and_answers_nothing():
    reading = read("白鹭塔的设计者的妻子是谁？", Step("Search", "白鹭塔", f"白鹭塔: {ZH_PAGES['白鹭塔']}"))
    assert reading.topic == "白鹭塔" and reading.leads[0] == "杜明远" and not reading.candidates


@pytest.mark.parametrize(
    "page, lead",
    [
        ("《南风》是一部1988年的影片，导演是柳叶青。", "柳叶青"),
        ("影片由画家柳叶青于1988年拍摄。", "柳叶青"),
        ("柳叶青在1988年拍摄了这部影片。", "柳叶青"),
    ],
)
def test_a_sentence_that_leaves_the_title_out_leads_on(page, lead):
    assert read("《南风》的导演出生于什么地方？", Step("Search", "南风", f"南风: {page}")).leads[0] == lead


def test_what_is_asked_is_of_the_kind_of_the_question_word():
    page = "柳叶青: 柳叶青1950年生于桂溪县，是一名导演。"
    assert read("《南风》的导演出生于什么地方？", Step("Search", "柳叶青", page)).best.text == "桂溪县"


@pytest.mark.parametrize(
    "question, names",
    [
        ("《灯塔笔记》的作者的父亲是谁？", ("灯塔笔记",)),
        ("罗清音毕业的学院成立于哪一年？", ("罗清音",)),
        ("白鹭桥的设计者出生于什么地方？", ("白鹭桥",)),
    ],
)
def test_a_chinese_question_names_what_its_relations_start_from(question, names):
    assert names_of(question)[: len(names)] == names


@pytest.mark.parametrize(
    "question, about",
    [
        ("韩若川和杜明远，谁出生得更早？", "earlier"),
        ("《甲报》与《乙报》，哪一份报纸更晚创立？", "later"),
        ("青石湖和红石湖哪个更大？", "more"),
        ("白鹭桥和白鹭塔都位于哪里？", None),
    ],
)
def test_chinese_comparisons_are_recognised(question, about):
    comparison = read_comparison(question)
    assert (comparison.about if comparison else None) == about


def test_chinese_dates_are_compared_to_the_day():
    comparison = read_comparison("韩若川和杜明远，谁出生得更早？")
    values = dict(zip(comparison.entities, (Value("1911年3月12日", 0.8), Value("1911年3月2日", 0.8))))
    assert compare(comparison, values).text == "杜明远"


# --- comparing


@pytest.mark.parametrize(
    "question, entities, about",
    [
        (OLDER, ("Salt Tower", "Gull Tower"), "earlier"),
        ("Who is younger, Ida Moser or Juan Pons?", ("Ida Moser", "Juan Pons"), "later"),
        ("Which has more floors, Salt Tower or Gull Tower?", ("Salt Tower", "Gull Tower"), "more"),
        ("Which is a river, the Aver or the Bode?", ("the Aver", "the Bode"), "either"),
        ("Are Ida Moser and Juan Pons both architects?", ("Ida Moser", "Juan Pons"), "both"),
        ("Are Ida Moser and Juan Pons of the same nationality?", ("Ida Moser", "Juan Pons"), "same"),
        ("What occupation do Ida Moser and Juan Pons share?", ("Ida Moser", "Juan Pons"), "common"),
    ],
)
def test_comparisons_are_recognised(question, entities, about):
    comparison = read_comparison(question)
    assert comparison is not None and (comparison.entities, comparison.about) == (entities, about)


@pytest.mark.parametrize("question", [BORN, "Who designed the tower and the bridge?", "", "?"])
def test_other_questions_compare_nothing(question):
    assert read_comparison(question) is None


@pytest.mark.parametrize(
    "question, a, b, answer",
    [
        ("Which is older, Salt Tower or Gull Tower?", "12 May 1840", "13 May 1840", "Salt Tower"),
        ("Which is older, Salt Tower or Gull Tower?", "May 1840", "1795", "Gull Tower"),
        ("Which opened later, Salt Tower or Gull Tower?", "1840", "1795", "Salt Tower"),
        ("Which has more floors, Salt Tower or Gull Tower?", "nine", "12", "Gull Tower"),
        ("Which has fewer floors, Salt Tower or Gull Tower?", "1,200", "800", "Gull Tower"),
        ("Are Salt Tower and Gull Tower in the same country?", "Norway", "Norway", "yes"),
        ("Are Salt Tower and Gull Tower in the same country?", "Norway", "Spain", "no"),
        ("Are Salt Tower and Gull Tower both white?", "yes", "no", "no"),
        (
            "What occupation do Salt Tower and Gull Tower share?",
            "poet; painter",
            "singer; painter",
            "painter",
        ),
    ],
)
def test_the_answer_follows_from_both_values(question, a, b, answer):
    comparison = read_comparison(question)
    values = {e: Value(v, 0.8) for e, v in zip(comparison.entities, (a, b))}
    assert compare(comparison, values).text == answer
    for entity in comparison.entities:
        assert compare(comparison, {entity: values[entity]}) is None, "one value decides nothing"


def test_a_value_is_that_of_the_asked_relation():
    comparison = read_comparison("Who was born first, Ida Moser or Juan Pons?")
    facts = [Triple("Ida Moser", "date of death", "1980"), Triple("Ida Moser", "date of birth", "1901")]
    assert value_of(comparison, facts).text == "1901"
    assert value_of(comparison, []) is None


# --- the solver: each case fails without the memory that it uses


def test_two_things_are_compared_when_the_memory_holds_the_first():
    seen = view(OLDER, GULL, team(OLDER, SALT, GULL))
    assert RuleSolver().act(seen).action == Action("Finish", "Gull Tower")
    alone = RuleSolver().act(view(OLDER, GULL)).action
    assert alone.verb == "Search", "without memory the first date isn't known"


def test_a_fact_of_the_curator_is_enough_for_one_of_the_two():
    memory = team(OLDER)
    memory.shared.add_fact("Salt Tower", "founded", "1840")
    assert RuleSolver().act(view(OLDER, GULL, memory)).action == Action("Finish", "Gull Tower")


def test_a_better_answer_of_an_earlier_hop_is_remembered():
    last = Step("Search", "Gull Bay", "Gull Bay: Gull Bay is a bay. Its harbour is old.")
    memory = team(BORN, TOWER, IDA, last)
    move = RuleSolver().act(view(BORN, last, memory, turns_left=1))
    assert move.action == Action("Finish", "Lindau")
    assert move.used and memory.shared.board.get(move.used[0]).answer == "Lindau"
    assert RuleSolver().act(view(BORN, last, turns_left=1)).action != move.action


def test_a_private_memory_remembers_the_answer_too():
    last = Step("Search", "Gull Bay", "Gull Bay: Gull Bay is a bay. Its harbour is old.")
    known = TeamKnowledge.of(None, team(BORN, TOWER, IDA, last).of("solver"))
    move = RuleSolver().act(view(BORN, last, known=known, turns_left=1))
    assert move.action == Action("Finish", "Lindau")


def test_an_answer_counts_for_more_where_a_fact_led_to_its_passage():
    found = replace(IDA, argument="town born")  # by words, not by the name
    led = team(BORN, TOWER, found, facts=(Triple("Old Salt Tower", "designer", "Ida Moser"),))
    plain = team(BORN, TOWER, found)
    first, second = (Situation(view(BORN, found, m)).answer for m in (led, plain))
    assert first.text == second.text == "Lindau" and first.probability > second.probability


def test_the_passage_that_was_led_to_wins_over_one_that_shares_more_words():
    facts = (Triple("Old Salt Tower", "designer", "Ida Moser"),)
    move = RuleSolver().act(view(BORN, REUS, team(BORN, TOWER, IDA, REUS, facts=facts), turns_left=1))
    assert move.action == Action("Finish", "Lindau")
    assert RuleSolver().act(view(BORN, REUS, turns_left=1)).action == Action("Finish", "Reus")


def test_a_suggestion_that_was_searched_for_is_not_followed():
    suggestion = Action("Search", "the Old Salt Tower")
    knows = RuleSolver().act(view(BORN, IDA, team(BORN, TOWER, IDA), suggestion=suggestion, turn=2)).action
    assert knows != suggestion and knows.verb == "Search"
    assert RuleSolver().act(view(BORN, IDA, suggestion=suggestion, turn=2)).action == suggestion


def test_the_last_turn_is_used_for_an_answer():
    for question in (BORN, OLDER, "Are Ida Moser and Juan Pons both architects?"):
        assert RuleSolver().act(View(question, 8, 1)).action.verb == "Finish"


# --- a private memory alone


def private(memory: TeamMemory, agent: str = "solver") -> TeamKnowledge:
    """What a member knows by its own memory, without a shared one."""
    return TeamKnowledge.of(None, memory.of(agent))


def test_a_player_with_a_private_memory_does_not_repeat_its_own_searches():
    memory, last = team(BORN, TOWER, IDA), Step("Search", "Gull Bay", "Gull Bay: Gull Bay is a bay.")
    own, alone = view(BORN, last, known=private(memory)), view(BORN, last)
    assert private(memory).has_searched("the old salt tower?") and not private(memory).has_searched(
        "Gull Bay"
    )
    assert RuleSolver().act(replace(alone, turn=2)).action == Action("Search", "Old Salt Tower")
    assert not {"Old Salt Tower", "Ida Moser"} & {q.text for q in next_queries(Situation(own))}


def test_what_a_teammate_did_is_not_in_a_private_memory():
    memory = team(BORN, TOWER, IDA)
    assert not private(memory, "retriever") and not private(memory, "verifier").queries
    assert (
        not RuleVerifier()
        .judge(view(BORN, TOWER, known=private(memory, "verifier"), proposal="Lindau"))
        .holds
    )
    memory.of("retriever").observe("Ida Moser → Lindau", BORN, 2, action=str(IDA), answered=True)
    told = view(BORN, TOWER, known=private(memory, "retriever"))
    assert RuleRetriever().act(told).action != RuleRetriever().act(view(BORN, TOWER)).action


def test_a_loop_that_a_private_memory_was_told_of_is_not_searched_for_again():
    memory = team(BORN)
    memory.note_loop("solver", str(TOWER), 3)
    for agent in ("solver", "verifier"):
        assert private(memory, agent).has_searched("Old Salt Tower")


def test_own_evidence_says_of_what_a_value_is():
    known = private(team(OLDER, SALT, GULL))
    assert RuleSolver().act(view(OLDER, GULL, known=known)).action == Action("Finish", "Gull Tower")
    without = replace(known, evidence=())
    assert RuleSolver().act(view(OLDER, GULL, known=without)).action.verb == "Search"


def test_own_evidence_is_not_handed_out_beside_a_shared_memory():
    memory = team(BORN, TOWER, IDA)
    both = TeamKnowledge.of(memory.shared, memory.of("solver"))
    assert not both.evidence and [e.action for e in private(memory).evidence] == [str(TOWER), str(IDA)]
    assert {q for q, _ in both.queries} == {"Old Salt Tower", "Ida Moser"}


# --- the retriever


def test_the_retriever_follows_the_name_that_the_passage_leads_to():
    assert RuleRetriever().act(View(BORN)).action == Action("Search", "Old Salt Tower")
    assert RuleRetriever().act(view(BORN, TOWER)).action == Action("Search", "Ida Moser")


def test_no_search_is_suggested_twice():
    memory, last = team(BORN, TOWER, IDA), IDA
    queries = {q.text for q in next_queries(Situation(view(BORN, last, memory)))}
    assert queries and not {"Old Salt Tower", "Ida Moser"} & queries
    assert "Old Salt Tower" in {q.text for q in next_queries(Situation(view(BORN, last)))}


def test_a_known_fact_leads_on_when_the_latest_passage_does_not():
    memory = team(BORN, TOWER, facts=(Triple("Old Salt Tower", "designer", "Ida Moser"),))
    last = Step("Search", BORN, "Could not find it. No title is similar.")
    memory.shared.search(BORN, lambda query: last.observation)
    move = RuleRetriever().act(view(BORN, last, memory))
    assert move.action == Action("Search", "Ida Moser") and move.used[0] == memory.shared.facts[0].id


def test_forms_that_worked_in_earlier_tasks_come_first():
    question = 'Who wrote "Salt Roads", the hymn of the Gull Bay Choir?'
    skill = Skill(query_form(question, {}), uses=4, successes=4)
    learned = View(question, experience=Experience(skills=(skill,)))
    assert RuleRetriever().act(View(question)).action == Action("Search", "Salt Roads")
    assert RuleRetriever().act(learned).action == Action("Search", question)


def test_nothing_is_suggested_when_nothing_is_left():
    memory = team("Who?", Step("Search", "Who?", "Could not find it."))
    assert RuleRetriever().act(view("Who?", None, memory)).action is None


def test_names_are_quoted_titles_then_long_names():
    assert names_of('Who sang "Salt Roads" in Lindau with the Gull Bay Choir?') == (
        "Salt Roads",
        "Gull Bay Choir",
        "Lindau",
    )


# --- which memory decided


def test_a_search_rests_on_the_records_that_ruled_out_better_ones():
    last = Step("Search", "Gull Bay", "Gull Bay: Gull Bay is a bay.")
    memory = team(BORN, TOWER)
    move = RuleRetriever().act(view(BORN, last, memory))
    (search,) = TeamKnowledge.of(memory.shared).searches
    assert move.action == Action("Search", BORN) and move.used == (search.id,)
    assert RuleRetriever().act(view(BORN, TOWER, memory)).used == (), "it sees the latest step without memory"
    assert RuleRetriever().act(view(BORN, last)).used == ()


def test_a_solver_names_the_record_that_rules_out_a_suggestion():
    memory = team(BORN, TOWER, IDA)
    suggested = view(BORN, IDA, memory, suggestion=Action("Search", "the Old Salt Tower"), turn=2)
    used = RuleSolver().act(suggested).used
    assert [memory.shared.board.get(id).text for id in used] == ["Old Salt Tower"]
    assert not RuleSolver().act(replace(suggested, known=TeamKnowledge())).used


def test_a_comparison_rests_on_the_value_that_was_stored():
    memory = team(OLDER, SALT, GULL)
    finish = RuleSolver().act(view(OLDER, GULL, memory))
    assert finish.action.verb == "Finish"
    assert [memory.shared.board.get(id).observation for id in finish.used] == [SALT.observation]
    verdict = RuleVerifier().judge(view(OLDER, GULL, memory, proposal="Gull Tower"))
    assert verdict.holds and SALT.observation in [
        memory.shared.board.get(id).observation for id in verdict.used
    ]
    facts = team(OLDER)
    facts.shared.add_fact("Salt Tower", "keeper", "Juan Pons")
    founded = facts.shared.add_fact("Salt Tower", "founded", "1840")
    assert RuleSolver().act(view(OLDER, GULL, facts)).used == (founded.id,)


def test_what_decided_a_move_has_its_text_in_the_record():
    data, team_shared = load("demo_multihop", split="en"), make_team("team_shared", embedder="hash")
    used = []
    for conversation, question in zip(data.conversations, data.questions):
        team_shared.ingest(conversation)
        lines = timeline(team_shared.solve(question).record)
        used += [u for step in lines.steps for u in step.used]
    assert {"search", "hop"} <= {u.kind for u in used} and all(u.text for u in used)


# --- the verifier


def test_an_answer_that_stands_near_the_words_holds():
    verdict = RuleVerifier().judge(view(BORN, IDA, proposal="Lindau"))
    assert verdict.holds and "Ida Moser" in verdict.why
    assert RuleVerifier().act(view(BORN, IDA, proposal="Lindau")).action is None


def test_an_answer_that_stands_nowhere_does_not_hold_and_another_search_is_named():
    move = RuleVerifier().act(view(BORN, TOWER, proposal="Vienna"))
    assert move.action == Action("Search", "Ida Moser") and "Vienna" in move.why


def test_a_verifier_objects_also_when_nothing_is_left_to_search_for():
    memory = team("Who?", Step("Search", "Who?", "Could not find it."))
    nothing_left = view("Who?", None, memory, proposal="Vienna")
    assert RuleRetriever().act(nothing_left).action is None
    move = RuleVerifier().act(nothing_left)
    assert move.action is None and move.doubts and "Vienna" in move.why
    assert not RuleVerifier().act(view(BORN, IDA, proposal="Lindau")).doubts


def test_the_verifier_finds_the_answer_in_an_earlier_hop():
    memory = team(BORN, TOWER, IDA, TOWER, facts=(Triple("Old Salt Tower", "designer", "Ida Moser"),))
    verdict = RuleVerifier().judge(view(BORN, TOWER, memory, proposal="Lindau"))
    assert verdict.holds and memory.shared.board.get(verdict.used[0]).answer == "Lindau"
    assert not RuleVerifier().judge(view(BORN, TOWER, proposal="Lindau")).holds


def test_a_fact_that_says_otherwise_contradicts():
    question = "In which town was Ida Moser born?"
    memory = team(question, IDA)
    proposal = view(question, IDA, memory, proposal="Lindau")
    assert RuleVerifier().judge(proposal).holds
    fact = memory.shared.add_fact("Ida Moser", "place of birth", "Bregenz")
    against = view(question, IDA, memory, proposal="Lindau")
    verdict = RuleVerifier().judge(against)
    assert not verdict.holds and "Bregenz" in verdict.why and verdict.used == (fact.id,)


def test_a_comparison_holds_only_with_both_values():
    both = view(OLDER, GULL, team(OLDER, SALT, GULL), proposal="Gull Tower")
    assert RuleVerifier().judge(both).holds
    assert not RuleVerifier().judge(replace(both, proposal="Salt Tower")).holds
    alone = RuleVerifier().judge(view(OLDER, GULL, proposal="Gull Tower"))
    assert not alone.holds and "Salt Tower" in alone.why


def test_a_team_that_repeats_itself_is_named_another_search():
    memory = team(BORN, TOWER)
    move = RuleVerifier().act(view(BORN, TOWER, memory))
    assert move.action is not None and not TeamKnowledge.of(memory.shared).has_searched(move.action.argument)


def test_titles_lose_their_qualifier():
    assert title_of("Salt Tower (lighthouse): It is old.") == "Salt Tower"
    assert title_of("It is old.") == ""
