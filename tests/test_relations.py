"""Test relations in time: what questions ask, how events are dated, what the relation says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from adaptmr.retrieval.columns import told_times
from adaptmr.retrieval.events import (
    MAX_CHARS,
    AskedRelation,
    EventDate,
    date_in_question,
    find_relation,
    write_relation,
)
from adaptmr.times import Window
from adaptmr.types import Finding, Memory

NOW = datetime(2024, 9, 1, 12, tzinfo=UTC)

# --- what a question asks


RELATIONS = """
Did I buy the boat or sell the car first?|order|buy the boat;sell the car||which
Which came last, the wedding or the move?|order|wedding;move||later
Did I move before or after I married?|order|move;married||side
Did I move before I married?|order|move;married||before
Did I move after I married?|order|move;married||after
How many days passed between when I sent the form and when the reply came?\
|gap|sent the form;the reply came|day|
How many days lie between the deadline for flour, eggs, and milk and the day I want to rest?\
|gap|the deadline for flour, eggs, and milk;want to rest|day|
How many weeks from the offer to my first day?|gap|the offer;my first day|week|
How long after I fell did I run again?|gap|fell;run again||
How many months before the exam did I start?|gap|start;the exam|month|
How many days did it take me to answer after I got the mail?|gap|got the mail;answer|day|
How many weeks ago did I visit Rome?|ago|visit Rome|week|ago
How long has it been since I quit smoking?|ago|quit smoking||since
Put these in order: the offer, the move and the wedding.|sequence|the offer;the move;the wedding||
In which order did I paint, bake and sew?|sequence|paint;bake;sew||
我是先学车还是先买车的？|order|学车;买车||which
我搬家是在换工作之前还是之后？|order|搬家;换工作||side
我搬家之前就开始跑步了吗？|order|开始跑步;搬家||before
从交定金到拿钥匙，中间隔了多少天？|gap|交定金;拿钥匙|day|
钥匙从寄到物业到我去取，隔了几天？|gap|钥匙寄到物业;钥匙我去取|day|
面试和入职之间隔了几周？|gap|面试;入职|week|
摔倒之后过了多久才开始跑步？|gap|摔倒;开始跑步||
我戒烟到现在多久了？|ago|戒烟||since
请按时间顺序排列：搬家、结婚、换工作|sequence|搬家;结婚;换工作||"""
# the last three: no unit of time, a list of what was told, one event named twice
NO_RELATION = """
When did I move?|How many days a week do I swim?|How long is the bridge?|Do I usually run before I eat?
Who was the first to leave, Ann or Bob?|What did I do before the wedding?
我每周跑几天？|谁先到的，小王还是小李？|我什么时候搬的家？||?
How many cats did I see between the two walls|Can you list the order in which I brought up my plans?
How many days passed between the offer and the offer?"""


def test_find_relation():
    for line in RELATIONS.strip().split("\n"):
        question, kind, events, unit, form = line.split("|")
        assert find_relation(question) == AskedRelation(kind, tuple(events.split(";")), unit, form)
    for question in NO_RELATION.strip().replace("\n", "|").split("|"):
        assert find_relation(question) is None, question
    assert find_relation("between " + "a and b " * MAX_CHARS) is None


# --- when an event happened


def test_a_question_may_name_the_day_itself():
    date = date_in_question("the course starting on 5 April 2024", NOW)
    assert (str(date.window.start.date()), date.known_by) == ("2024-04-05", "question")
    assert date_in_question("the course in April", NOW) is None
    assert date_in_question("from 3 May 2024 and 9 June 2024", NOW) is None, "two days date no event"


# --- what lies in a window

MAY = datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 6, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at", "grace", "inside"),
    [
        ("We hiked.", "2024-05-31", 0, True),
        ("We hiked.", "2024-06-01", 0, False),
        ("We hiked.", "2024-06-14", 14, True),
        ("We hiked.", "2024-06-15", 14, False),
        ("We hiked.", "2024-04-30", 14, False),
        ("In May we hiked.", "2024-12-01", 0, True),
        ("In April we hiked.", "2024-05-20", 14, False),
        ("In April we hiked. Today we rest.", "2024-05-20", 0, True),
        ("In April we hiked. We liked it.", "2024-05-20", 0, True),  # a sentence without a time
        ("In 2024 we hike a lot.", "2024-05-20", 0, True),  # longer than the window: the day it was told
        ("In 2024 we hike a lot.", "2024-08-20", 0, False),
        ("上个月我们去爬山了", "2024-06-20", 0, True),
        ("四月份我们去爬山了", "2024-05-20", 0, False),
    ],
)
def test_within(text, at, grace, inside):
    assert told_times(Memory("m", text, at=at)).within(*MAY, timedelta(days=grace)) is inside


# --- the relation


def on(day, grain="day", known_by="sentence"):
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    ends = {
        "day": start + timedelta(days=1),
        "week": start + timedelta(days=7),
        "month": (start + timedelta(days=31)).replace(day=1),
        "year": start.replace(year=start.year + 1, month=1, day=1),  # no 29 February in most years
    }
    return EventDate(Window(start, ends[grain], "", grain), known_by)


BETWEEN, AFTER = (
    "How many days passed between the offer and my first day?",
    "Did I move before or after I married?",
)
WRITTEN = [  # what is asked, when the events were, the finding and its answer
    (
        *(BETWEEN, (on("2024-03-02"), on("2024-03-29"))),
        *("“the offer” 2024-03-02, “my first day” 2024-03-29: 27 days apart", "27 days"),
    ),
    (
        *("How long after the offer was my first day?", (on("2024-03-02"), on("2024-03-29"))),
        *("“the offer” 2024-03-02, “my first day” 2024-03-29: 27 days apart", "27 days (about 4 weeks)"),
    ),
    (
        *("How many weeks ago did I visit Rome?", (on("2024-08-11"),)),
        *("“visit Rome” 2024-08-11: 3 weeks ago", "3 weeks ago"),
    ),
    ("我戒烟到现在多久了？", (on("2023-01-01", "year"),), "“戒烟”2023年：约1年前", "约1年"),
    (
        *(AFTER, (on("2024-06-01", "month"), on("2024-03-02"))),
        *("“married” 2024-03-02, “move” June 2024: “married” first, about 3 months apart", "after"),
    ),
    (
        *("Did I move before I married?", (on("2024-06-01"), on("2024-03-02"))),
        *("“married” 2024-03-02, “move” 2024-06-01: “married” first, 91 days apart", "No, married first"),
    ),
    (
        *("Which came last, the wedding or the move?", (on("2024-01-05", known_by="told"), on("2024-03-02"))),
        *("“wedding” told on 2024-01-05, “move” 2024-03-02: “wedding” first", "move"),
    ),
    (
        *("从交定金到拿钥匙，隔了多少天？", (on("2024-04-01"), on("2024-04-20"))),
        *("“交定金”2024-04-01，“拿钥匙”2024-04-20：相隔19天", "19天"),
    ),
    (
        *("我搬家之前就开始跑步了吗？", (on("2024-04-01"), on("2024-04-20"))),
        *("“开始跑步”2024-04-01，“搬家”2024-04-20：“开始跑步”在先，相隔19天", "是，先开始跑步"),
    ),
    (
        "Put these in order: the offer, the move and the wedding.",
        (on("2024-05-02"), on("2024-03-01"), on("2024-04-09")),
        "“the move” 2024-03-01, “the wedding” 2024-04-09, “the offer” 2024-05-02",
        "the move, the wedding, the offer",
    ),
]
UNSETTLED = [
    (BETWEEN, (on("2024-03-02"), on("2024-03-29", known_by="told"))),
    (BETWEEN, (on("2024-03-02"), on("2024-03-02"))),
    (BETWEEN, (on("2024-03-01", "month"), on("2024-05-02"))),
    ("How many days ago did I visit Rome?", (on("2024-10-11"),)),  # it lies ahead
    (AFTER, (on("2024-06-01"), on("2024-06-01"))),
    ("Put these in order: the offer, the move.", (on("2024-05-05"), on("2024-03-01", "month"))),
]


def test_write_relation():
    for question, dates, *said in WRITTEN:
        lang = "en" if question.isascii() else "zh"
        assert write_relation(find_relation(question), dates, NOW, lang) == Finding(*said)
    for question, dates in UNSETTLED:
        assert write_relation(find_relation(question), dates, NOW, "en") is None
