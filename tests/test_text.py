"""Words, names and sentences: hand-written cases, properties of any string, malformed input, speed."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.text import (
    STOPWORDS,
    clean,
    content_words,
    detect_language,
    find_names,
    remove_names,
    split_sentences,
    tokenize,
)

ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=200)  # with lone surrogates and NULs
PIECES = (
    "I Caroline 's ’s 我 小王 叫 跑步 。 ! … Dr. 3.5 “ ” ( \0 \ud83d 🙂 مرحبا é İ ß ｆｕｌｌ don't O'Brien "
    "名叫 《 》 running 2023"
).split(" ")
MIXED = st.lists(st.sampled_from([*PIECES, " ", ". ", "\n", "West Lake"]), max_size=25).map("".join)
TEXTS = st.one_of(ANY, MIXED)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I moved to Hangzhou", ["move", "hangzhou"]),
        ("Running runners run", ["run", "runner", "run"]),
        ("Caroline's dog", ["carolin", "dog"]),
        ("Caroline’s dog", ["carolin", "dog"]),
        ("5 km in 2023", ["5", "km", "2023"]),
        ("don't you?", []),
        ("我喜欢跑步", ["我喜", "喜欢", "欢跑", "跑步"]),
        ("猫", ["猫"]),
        ("3个月", ["3", "个月"]),
        ("ＡＢＣ ﬁsh", ["abc", "fish"]),
        ("我用Python写code", ["我用", "python", "写", "code"]),
        ("Café naïve", ["café", "naïv"]),
        ("", []),
        ("\0\ud83d🙂…", []),
        ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
        ("हिन्दी", ["हिन्दी"]),
    ],
)
def test_tokenize(text, tokens):
    assert tokenize(text) == tokens


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_tokenize_any_string(text):
    for stem in (True, False):
        tokens = tokenize(text, stem=stem)
        assert all(t and not t.isspace() and len(t) <= 64 for t in tokens) and tokens == tokenize(
            text, stem=stem
        )
        assert not stem or not set(tokenize(text, stem=False)) & STOPWORDS
    plain = tokenize(text, stem=False, stopwords=False)
    assert tokenize(" ".join(plain), stem=False, stopwords=False) == plain
    assert (
        tokenize(text + " ") == tokenize(text) == tokenize(clean(text))
        or "\0" in text
        or re.search("[\ud800-\udfff]", text)
    )


@pytest.mark.parametrize(
    ("text", "lang"),
    [
        ("", "en"),
        ("Hello", "en"),
        ("你好", "zh"),
        ("I live in 杭州西湖", "en"),
        ("我的 iPhone 丢了", "zh"),
        ("123", "en"),
        ("مرحبا", "en"),
        ("我现在住在哪里？", "zh"),
        ("🙂", "en"),
        ("\ud83d", "en"),
        ("Do you like 火锅?", "en"),
    ],
)
def test_detect_language(text, lang):
    assert detect_language(text) == lang


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_clean(text):
    out = clean(text)
    out.encode("utf-8")
    assert "\0" not in out and clean(out) == out
    assert out == text or "\0" in text or re.search("[\ud800-\udfff]", text)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Li ran 3.5 km. Wow!\n我搬家了。你呢？", ["Dr. Li ran 3.5 km.", "Wow!", "我搬家了。", "你呢？"]),
        ("One", ["One"]),
        ("", []),
        (" \n ", []),
        ("Hi!! Really?! Yes...", ["Hi!!", "Really?!", "Yes..."]),
        ("He said “no.” Then he left.", ["He said “no.”", "Then he left."]),
        ("e.g. this. J. Smith came", ["e.g. this.", "J. Smith came"]),
        ("“好。”他说。走吧", ["“好。”", "他说。", "走吧"]),
        ("example.com is up", ["example.com is up"]),
        ("你好!走吧", ["你好!", "走吧"]),
    ],
)
def test_split_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Yesterday Caroline and I walked round West Lake.", ("Caroline", "West Lake")),
        ("What is my cat called?", ()),
        ("Melanie's cat is called Bailey.", ("Melanie", "Bailey")),
        ("Running helps. Books are nice. Finally we met.", ()),
        ("I study at the University of Michigan in May", ("University of Michigan",)),
        ("Thanks, Caroline! Great job.", ("Caroline",)),
        ('On Monday I read "The Old Tower".', ("The Old Tower",)),
        ("WOW that is GREAT", ()),
        ("NASA called", ()),
        ("we saw NASA", ("NASA",)),
        ("I'm in New York", ("New York",)),
        ("我的猫叫咪咪，小王在读《三体》", ("咪咪", "小王", "三体")),
        ("猫叫什么名字？", ()),
        ("小时候我在小学上课", ()),
        ("老师和王老师去见阿强", ("王老师", "阿强")),
        ("我女儿名叫小花。", ("小花",)),
        ("", ()),
        ("我叫李明。", ("李明",)),
        ("我和张伟去爬山", ("张伟",)),
        ("「黄山」很高", ("黄山",)),
        ("مرحبا \0 \ud83d", ()),
    ],
)
def test_find_names(text, found):
    assert find_names(text) == found


@pytest.mark.parametrize(
    ("text", "people", "left"),
    [
        ("What did Caroline say about Melanie's dog?", ["caroline", "Melanie"], "What did say about dog?"),
        ("小王喜欢什么？", ["小王"], "喜欢什么？"),
        ("Caroline", ["Caroline"], "Caroline"),
        ("Caroline, how are you?", ["Caroline"], "how are you?"),
        ("Carolines Carol", ["Carol"], "Carolines"),
        ("Is Ann there? ANN!", ["Ann"], "Is there?!"),
        ("", ["Ann"], ""),
        ("no names", [], "no names"),
        ("Anna Lee met Anna", ["Anna", "Anna Lee"], "met"),
        ("a+b (c", ["a+b"], "(c"),
        ("Ann  is   here", ["Bob"], "Ann  is   here"),
        ("我王", ["王"], "我王"),
        ("Ann’s car", ["Ann"], "car"),
    ],
)
def test_remove_names(text, people, left):
    assert remove_names(text, people) == left


def test_content_words():
    assert content_words("Where does Caroline currently want to move?") == ("carolin", "move")
    assert content_words("我现在住在哪里？") == ("住",) and content_words("什么时候搬到杭州的？") == (
        "搬",
        "杭州",
    )
    assert content_words("what did you do?") == content_words("") == content_words("我是谁？") == ()
    assert "runner" in content_words("Runners run") and len(content_words("run run running")) == 1


@pytest.mark.parametrize("piece", ["A ", "小王", "(Aa ", "“", "U.S. ", "\ud83d", "İ"])
def test_a_megabyte_takes_linear_time(piece):
    def seconds(n):
        text, began = (piece * (n // len(piece) + 1))[:n], time.process_time()
        for f in (tokenize, find_names, content_words, split_sentences, clean, detect_language):
            f(text)
        remove_names(text, ("Ann", "小王", "A"))
        return time.process_time() - began

    seconds(1_000)
    small, large = (min(seconds(n) for _ in range(3)) for n in (10_000, 100_000))
    assert large < 50 * max(small, 1e-3) or large < 3, (
        f"{small:.4f} s for 10 kB, {large:.3f} s for 100 kB: expected ten times as long, not a hundred"
    )
