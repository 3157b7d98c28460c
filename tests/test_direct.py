"""Test what is answered without memories: sums, courtesies, and nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptmr.llm import LLM
from adaptmr.reader import ABSTENTION_TEXT, answer, build_context
from adaptmr.reader.answering import evaluate_sum, needs_no_memory, reply_without_memories
from adaptmr.retrieval.plan import RetrievalPlan
from adaptmr.types import Evidence, Finding, Hit, Memory, Usage

SUMS = {
    "What is 2+2?": "4",
    "what's 12 × 12": "144",
    "How much is 10 - 4.5?": "5.5",
    "(3 + 4) * 2 =": "14",
    "What is seven times eight?": "56",
    "Calculate 7 / 2.": "3.5",
    "0.1 + 0.2": "0.3",
    "1 / 3": "0.3333333333",
    "12乘以5等于多少？": "60",
    "三加四等于几？": "7",
    "请问两加八是多少？": "10",
    "算一下 9 减 4": "5",
}
NO_SUMS = (
    "2024-05-01|What is 9/11?|1/0|What is 555-1234?|2**999999|7//2|()()|+|42|What is 42?|How old am I?"
    "|What is Anna + Tom?|我养了两只猫，加上小周的一共几只？"
)
COURTESIES = {
    "Good morning!": "Hello!",
    "thanks": "You're welcome!",
    "See you later.": "Goodbye!",
    "你好！": "你好！",
    "谢谢你": "不客气！",
    "晚安": "再见！",
    "Hello, where is my key?": "",
    "谢谢你上次推荐的书叫什么？": "",
    "": "",
}


def test_sums_and_courtesies():
    known = SUMS | COURTESIES | dict.fromkeys((*NO_SUMS.split("|"), "1+" * 60 + "1"), "")
    assert {question: reply_without_memories(question) for question in known} == known
    assert all(needs_no_memory(question) == bool(reply) for question, reply in known.items())


@given(st.integers(0, 10**6), st.sampled_from("+-*"), st.integers(0, 10**6))
def test_sums_are_exact(a, sign, b):
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    assert evaluate_sum(f"{a} {sign} {b}") == Fraction(value)


@given(st.text(max_size=300))
def test_any_text_is_answered_or_not(text):
    assert isinstance(reply_without_memories(text), str)


CAT = Evidence([Hit(Memory("1", "My cat is called Biscuit.", "Maya", "2024-03-01"), 1.0)])


def with_plan(evidence, style, *findings, relevant=True):
    plan = RetrievalPlan(answer_as=style)
    return Evidence(evidence.hits, relevant, plan=plan, findings=list(findings))


@pytest.mark.parametrize(("question", "lang"), [("Where do I live?", "en"), ("我住在哪里？", "zh")])
def test_without_a_model_what_no_rule_knows_is_an_abstention(question, lang):
    given = answer(question, with_plan(Evidence(), "directly"))
    assert given.abstained and given.text == ABSTENTION_TEXT[lang]


def test_the_last_draft_is_the_answer_without_a_call():
    found = with_plan(CAT, "drafted", Finding("", "Rex"), Finding("3 pets", ""), Finding("", "Biscuit"))
    given = answer("What is my cat called?", found, LLM("a-model-that-is-not-there"))
    assert (given.text, given.abstained, given.usage) == ("Biscuit", False, Usage())
    assert build_context(found).splitlines()[0] == "[worked out] 3 pets"
    assert len(build_context(found).splitlines()) == 2, "findings without a text are not shown"


def test_a_draft_that_abstains_is_an_abstention():
    for text in (ABSTENTION_TEXT["en"], "not mentioned"):
        given = answer("What is my cat called?", with_plan(CAT, "drafted", Finding("", text)))
        assert given.abstained and given.text == ABSTENTION_TEXT["en"]


def test_without_a_draft_the_reader_reads():
    assert answer("What is my cat called?", with_plan(CAT, "drafted")).text == "Biscuit"
    assert answer("What is my cat called?", with_plan(CAT, "", Finding("", "Rex"))).text == "Rex"


def test_a_closed_gate_takes_the_draft_with_it():
    closed = with_plan(Evidence(), "drafted", Finding("", "Biscuit"), relevant=False)
    assert answer("What is my cat called?", closed).abstained
