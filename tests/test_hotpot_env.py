"""The environment of HotpotQA: searching passages, actions in texts, limits, and a gold that stays inside."""

from __future__ import annotations

import pytest

from adaptmr.agents.hotpot import Corpus, HotpotEnv, Passage
from adaptmr.memory.team.steps import Action, TeamStep, parse_action
from adaptmr.types import Conversation, Memory

TOWER = Passage(
    "Old Salt Tower",
    ("The Old Salt Tower is a lighthouse.", "It was designed by Ida Moser.", "The tower is 31 metres tall."),
)
IDA = Passage("Ida Moser", ("Ida Moser, born in Lindau, was an architect.", "She built three lighthouses."))
WHO = Passage("The Who", ("An English band.",))
LAKE = Passage("西湖", ("西湖位于杭州。", "湖上有三座小岛。", "小岛上有塔。"))
LONG = Passage("Long", tuple(f"Sentence number {i} says nothing of note about anything." for i in range(60)))
CORPUS = Corpus((TOWER, IDA, WHO, LAKE, LONG))
QUESTION = "In which town was the architect of the Old Salt Tower born?"


def play(*texts: str, corpus: Corpus = CORPUS, **limits: int) -> HotpotEnv:
    env = HotpotEnv(corpus, QUESTION, **limits)
    for text in texts:
        env.step(text)
    return env


def observations(*texts: str, **more: int) -> list[str]:
    return [s.observation for s in play(*texts, **more).transcript.steps]


# --- actions in a text


@pytest.mark.parametrize(
    ("text", "verb", "argument"),
    [
        ("Search[Ed Wood (film)]", "Search", "Ed Wood (film)"),
        ("  sEARCH [ X ] ", "Search", "X"),
        ("LOOKUP［关键词］", "Lookup", "关键词"),
        ("Finish【杭州】", "Finish", "杭州"),
        ("Finish\u3000〔a〕", "Finish", "a"),
        ("Search「西湖」。", "Search", "西湖"),
        ("Search【Titanic]", "Search", "Titanic"),
        ("Finish[AbC  d]", "Finish", "AbC  d"),
        ("Finish[a [b] c]", "Finish", "a [b] c"),
        ("Finish[a [b]", "Finish", "a [b"),
        ("Search[a] then Lookup[b]", "Search", "a"),
        ("Thought: Lookup[x] would do.\nAction 12: Search[y]\nObservation: Finish[z]", "Search", "y"),
        ("Thought: so be it. Action: Finish[yes]", "Finish", "yes"),
        ("**Action:** `Search[y]`", "Search", "y"),
        ("- Search[y]", "Search", "y"),
        ("行动 2：Search[y]", "Search", "y"),
        ("Search[]\nSearch[y]", "Search", "y"),
    ],
)
def test_an_action_is_found(text: str, verb: str, argument: str) -> None:
    assert parse_action(text) == Action(verb, argument)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Search",
        "Search[]",
        "Search[ ]",
        "Search[open",
        "Search(x)",
        "Think[x]",
        "I might Search[x]",
        "ſearch[x]",
    ],
)
def test_other_texts_hold_no_action(text: str) -> None:
    assert parse_action(text) is None


# --- search


@pytest.mark.parametrize("query", ["Old Salt Tower", "old salt  TOWER", "Old_Salt_Tower", "“Old Salt Tower”"])
def test_a_title_is_found_in_any_form(query: str) -> None:
    assert CORPUS.find(query) is TOWER


@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_words_find_a_passage_in_a_corpus_of_any_size(others: int) -> None:
    """BM25's idf is 0 or negative in very small corpora: sharing a word decides, not the score's sign."""
    fill = tuple(Passage(f"P{i}", (f"Filler {i}.",)) for i in range(others))
    corpus = Corpus((*fill, IDA))
    assert corpus.find("Who was born in Lindau?") is IDA
    assert corpus.find("quantum chromodynamics") is None


def test_what_is_not_found_is_answered_with_similar_titles() -> None:
    text, nothing = observations("Search[Mosser]", "Search[…]")
    assert text.startswith('Could not find "Mosser". Similar titles: Ida Moser')
    assert nothing == 'Could not find "…". No title is similar.'
    assert all(s.valid for s in play("Search[Mosser]").transcript.steps)


def test_a_search_shows_the_passage_and_names_its_sentences() -> None:
    step = play("Search[born in Lindau]").transcript.steps[0]
    assert step == TeamStep("Search", "born in Lindau", f"Ida Moser: {IDA.text}", True, False, IDA.sources)
    assert IDA.sources == ("Ida Moser#0", "Ida Moser#1")


def test_a_long_passage_is_cut_between_sentences_and_says_so() -> None:
    step = play("Search[Long]", observation_chars=300).transcript.steps[0]
    assert len(step.observation) <= 300 and step.observation.endswith(
        "(60 sentences in all: use Lookup[word])"
    )
    assert step.shown == LONG.sources[: len(step.shown)] and 1 <= len(step.shown) < 60
    assert step.observation.count("Sentence number") == len(step.shown)
    one = Corpus((Passage("One", ("word " * 500,)),))
    step = play("Search[One]", corpus=one, observation_chars=300).transcript.steps[0]
    assert len(step.observation) <= 300 and step.shown == ("One#0",) and "…" in step.observation


def test_a_conversation_is_a_corpus_of_its_sessions() -> None:
    turns = [
        Memory("1", "Ida Moser: Born in Lindau.", session="Ida Moser", source="Ida_Moser#0"),
        Memory("2", "", session="Ida Moser", source="Ida_Moser#1"),
        Memory("3", "I like tea.", "Ann", session="S2", source="D2:1"),
        Memory("4", "Ida Moser: She built towers.", session="Ida Moser", source="Ida_Moser#2"),
    ]
    ida, other = Corpus.from_conversation(Conversation("c", (), turns)).passages
    assert ida == Passage(
        "Ida Moser",
        ("Born in Lindau.", "", "She built towers."),
        ("Ida_Moser#0", "Ida_Moser#1", "Ida_Moser#2"),
    )
    assert ida.text == "Born in Lindau. She built towers." and other.sentences == ("Ann: I like tea.",)


# --- lookup


def test_lookup_steps_through_the_sentences_with_a_word() -> None:
    assert observations("Search[Old Salt Tower]", "Lookup[tower]", "lookup[TOWER]", "Lookup[Tower]")[1:] == [
        "(Result 1/2) The Old Salt Tower is a lighthouse.",
        "(Result 2/2) The tower is 31 metres tall.",
        'No more sentences of "Old Salt Tower" with "Tower".',
    ]
    assert observations("Search[西湖]", "Lookup【小岛】", "Lookup【小岛】")[1:] == [
        "(Result 1/2) 湖上有三座小岛。",
        "(Result 2/2) 小岛上有塔。",
    ]


def test_a_search_without_result_leaves_the_passage_open() -> None:
    assert observations("Search[Ida Moser]", "Search[zzz]", "Lookup[Lindau]")[2].startswith("(Result 1/1)")


# --- the episode


def test_what_is_not_allowed_is_answered_and_counted() -> None:
    transcript = play("Lookup[x]", "Fly[away]", "Search[西湖]").transcript
    assert [s.valid for s in transcript.steps] == [False, False, True] and transcript.n_invalid == 2
    assert "Search[title or words] first" in transcript.steps[0].observation
    allowed = transcript.steps[1]
    assert (allowed.action, allowed.argument) == ("", "Fly[away]")
    assert all(f"{verb}[" in allowed.observation for verb in ("Search", "Lookup", "Finish"))


def test_after_the_end_nothing_happens() -> None:
    env = play("Finish[Lindau]")
    before = env.transcript
    late = env.step("Finish[Bregenz]")
    assert (late.valid, late.done, late.observation) == (False, True, "The episode is over.")
    assert env.transcript == before


def test_repeated_searches_are_counted_in_any_spelling() -> None:
    transcript = play("Search[Ida Moser]", "Search[“ida  moser”]", "Search[Lindau]", "Lookup[a]").transcript
    assert transcript.n_repeated_searches == 1
    assert (
        play(
            "Search[Lindau tower]", "Search[the Tower of Lindau]", "Search[Lindau]"
        ).transcript.n_repeated_searches
        == 1
    )
    assert transcript.shown == IDA.sources, "each sentence once"
