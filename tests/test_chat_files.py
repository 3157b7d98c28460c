"""Odd files of chats: exports, languages, spreadsheets; how a file is read; what stays private."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adaptmr as am
from adaptmr.cli import main
from adaptmr.data.chat_times import parse_chat_time
from adaptmr.data.read_chat import write_settings

DAY = datetime(2024, 5, 1, 21, 30, tzinfo=UTC)


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTMR_DATA", raising=False)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")

    def write(name, content, encoding="utf-8"):
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        path = tmp_path / "mine" / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


def said(data):
    return [(turn.speaker, turn.text) for c in data.conversations for turn in c.turns]


def error_of(*args, **options):
    with pytest.raises(am.DatasetError) as caught:
        am.read_chat(*args, **options)
    return str(caught.value)


# --- times


def test_times_of_programs_and_countries_and_what_is_none():
    for value, expected in {
        "2024-05-01T21:30:00Z": DAY,
        "1714599000": DAY,
        1714599000000000: DAY,
        1714599000.0: DAY,
        "Wed, 01 May 2024 21:30:00 GMT": DAY,
        "45413.895833333": datetime(2024, 5, 1, 21, 30),
        "202405012130": datetime(2024, 5, 1, 21, 30),
        "May 1, 2024 9:30 PM": datetime(2024, 5, 1, 21, 30),
        "2024年5月1日星期三 晚上9点30分": datetime(2024, 5, 1, 21, 30),
        "2024年5月1日 下午9:30": datetime(2024, 5, 1, 21, 30),
        "1.5.24, 21.30": datetime(2024, 5, 1, 21, 30),
        "2024/5/1 12:00 a.m.": datetime(2024, 5, 1),
        "1 Sept. 2024": datetime(2024, 9, 1),
    }.items():
        assert parse_chat_time(value) == expected
    assert parse_chat_time("03/04/2024 10:00", day_first=True) == datetime(2024, 4, 3, 10)
    assert parse_chat_time("03/04/2024 10:00", day_first=False) == datetime(2024, 3, 4, 10)
    for text in (
        "12345",
        "May 2024",
        "1 May 1 2024",
        "21:30 CEST",
        "soon",
        "03/04/2024",
        "31/02/2024",
        "",
        True,
    ):
        with pytest.raises(ValueError):
            parse_chat_time(text)


# --- tables


def test_separators_and_names_of_columns(put):
    for text in (
        'text,speaker\n"Hi, you",Ann\n',
        "sep=;\r\ntext;speaker\r\nHi, you;Ann\r\n",
        '"text, as said";speaker\nHi, you;Ann\n',
        '内容,发送者\n"Hi, you",Ann\n',
        "\ufefftext\tspeaker\nHi, you\tAnn\n",
    ):
        options = {"text": "text, as said"} if "as said" in text else {}
        assert said(am.read_chat(put("a.csv", text), **options)) == [("Ann", "Hi, you")]


# --- WhatsApp in six languages

NARROW = "\u202f"
DELETED = {"deleted_messages_left_out": 1, "media_left_out": 1, "system_messages_left_out": 1}


# how a line begins, a remark of the program, one for a picture, one for a deleted message; ^: direction
IPHONE = """
[13.01.24, 21:15:00] |^Nachrichten sind verschlüsselt.|^Bild weggelassen|^Du hast diese Nachricht gelöscht.
[13/1/24, 21:15:00] |^Los mensajes están cifrados|^imagen omitida|^Se eliminó este mensaje.
[13/01/2024, 21:15:00] |^As mensagens são protegidas|^imagem ocultada|^Mensagem apagada
[2024/1/13 下午9:15:00] |^消息和通话已进行端到端加密。|^图像已省略|^此消息已删除。
[1/13/24, 9:15:00_PM] |^Missed voice call|^<attached: 1-PHOTO.jpg>|^You deleted this message.
[13.01.24, 21:15:00] |^Deze oproep is gemist|^a.pdf • ^3 Seiten ^Dokument weggelassen|Mensagem apagada
"""


def table(text):
    plain = text.replace("^", "\u200e").replace("_", NARROW).strip()
    return [line.split("|") for line in plain.split("\n")]


def test_remarks_of_an_iphone(put):
    for start, own, media, deleted in table(IPHONE):
        lines = [f"Ann: {own}", "Ann: Hi \u200e<edited>", f"Ann: {media}", f"Bo: {deleted}"]
        lines.append(f"~{NARROW}Max: a: b")
        data = am.read_chat(put("c.txt", "".join(f"\u200e{start}{line}\n" for line in lines)))
        assert said(data) == [("Ann", "Hi"), ("Max", "a: b")] and data.notes == DELETED, start
        assert data.conversations[0].turns[0].at == datetime(2024, 1, 13, 21, 15, tzinfo=UTC)


# --- exports in JSON


def chatgpt(text, parent=None, role="user", at=1714599000.5, **more):
    content = {"content_type": "text", "parts": [text]}
    message = {"author": {"role": role}, "create_time": at, "content": content, "recipient": "all"}
    return {"parent": parent, "message": message | more}


TREE = {
    "root": {"parent": None, "message": None},
    "a": chatgpt("You are helpful.", "root", "system", None),
    "b": chatgpt("I moved.", "a"),
    "c": chatgpt("To where?", "b", "assistant"),
    "d": chatgpt("Nice!", "b", "assistant", None),
    "e": chatgpt("search()", "d", "assistant", recipient="browser"),
    "f": chatgpt("found", "e", "tool"),
    "g": chatgpt({"asset_pointer": "file"}, "f", content={"content_type": "multimodal_text", "parts": [{}]}),
}


def test_chatgpt_reads_the_branch_that_was_shown(put):
    chat = {"title": "My secret", "mapping": TREE, "current_node": "g", "create_time": 1714599000.0}
    data = am.read_chat(put("conversations.json", [chat, {"mapping": {}}]))
    assert said(data) == [("user", "I moved."), ("assistant", "Nice!")] and data.conversations[0].id == "c1"
    assert data.conversations[0].turns[1].at == datetime(2024, 5, 1, 21, 30, 0, 500_000, UTC)
    assert data.notes == {
        "messages_of_other_branches_left_out": 1,
        "messages_of_tools_left_out": 2,
        "messages_without_text": 1,
        "system_messages_left_out": 1,
        "times_of_the_message_before": 1,
    }
    messages = sum(bool(node["message"]) for node in TREE.values())
    assert sum(data.notes.values()) - 1 + 2 == messages, "none is lost"
    assert "secret" not in repr(data.rows)


def test_claude_telegram_discord_and_slack(put):
    at = "2024-05-01T21:30:00Z"
    thought = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hi"}, {"type": "tool_use"}]
    claude = {"sender": "human", "created_at": at, "text": "Hi", "content": thought}
    telegram = {
        "id": 7,
        "type": "message",
        "from": "Ann",
        "date": "2024-05-02T05:30:00",
        "date_unixtime": "1714599000",
    }
    words = {**telegram, "text": ["Hi ", {"type": "bold", "text": "you"}, "!"]}
    service = {**telegram, "type": "service", "text": ""}
    chat = {"name": "Ann", "type": "personal_chat", "messages": [service, words, {**telegram, "text": ""}]}
    discord = {"type": "Default", "timestamp": at, "author": {"name": "ann", "nickname": "Ann"}, "id": "1"}
    talk = [{**discord, "content": "Hi"}, {**discord, "content": ""}, {**discord, "type": "Call"}]
    slack = {"type": "message", "user": "U1", "ts": "1714599000.0001", "text": "a &lt; b"}
    both = {"media_left_out": 1, "system_messages_left_out": 1}
    for export, expected, notes in (
        (
            [{"chat_messages": [claude, {**claude, "text": "", "content": []}]}],
            ("human", "Hi"),
            {"messages_without_text": 1},
        ),
        (chat, ("Ann", "Hi you!"), both),
        ({"about": "", "chats": {"list": [chat]}}, ("Ann", "Hi you!"), both),
        ({"guild": {}, "channel": {}, "messages": talk}, ("Ann", "Hi"), both),
        ([slack, {**slack, "subtype": "channel_join"}], ("U1", "a < b"), {"system_messages_left_out": 1}),
    ):
        data = am.read_chat(put("export.json", export))
        assert said(data) == [expected] and data.notes == notes
        assert data.conversations[0].turns[0].at.replace(microsecond=0) == DAY


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "mapping message author role content parts parent current_node chat_messages text sender "
                "type ts messages name guild channel chats list date from create_time x".split()
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=40)
@given(anything)
def test_any_json_is_read_or_refused_with_a_message(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("chat") / "a.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    try:
        am.read_chat(path)
    except am.DatasetError as e:
        assert "a.json" in str(e)


# --- questions


def test_questions_with_other_names_of_columns_and_types(put):
    chat = put("chat.csv", "id,text\n1,Hi\n2,Ho\n")
    chinese = put("q.csv", "问题,答案,证据,类型\n为什么？,因为,1、2,多跳\n谁有狗？,,,无法回答\n")
    first, second = am.read_chat(chat, questions=chinese).questions
    assert (first.answers, first.evidence, first.type) == (["因为"], ["1", "2"], am.QueryType.multi_hop)
    assert not second.answerable
    asked = {"Question": ["Why?", "Who?"], "Answer": [42.0, None], "evidence": [1.0, None]}
    frame = pd.DataFrame({**asked, "type": ["Multi-hop", "unanswerable"]})
    first, second = am.read_chat(chat, questions=frame).questions
    assert (first.answers, first.evidence, first.type) == (["42"], ["1"], am.QueryType.multi_hop)
    assert "there are q, gold" in error_of(chat, questions=put("w.csv", "q,gold\nWhy?,x\n"))
    own = put("own.csv", "question,answers,evidence,type\nWhy?,x,1,gossip\n")
    error = error_of(chat, questions=own)
    assert "'gossip'; write one of" in error and "category" in error


# --- how a file is read


def test_a_file_of_settings_is_a_data_set(put, tmp_path):
    chat = put("chat.csv", "who,body,when\nAnn,Hi,2024-05-01 21:30\n")
    put("q.csv", "question,answers,evidence\nWhy?,x,S1:1\n")
    settings = {"text": "body", "speaker": "who", "at": "when", "tz": "Europe/Oslo"}
    write_settings("home.yaml", "chat.csv", {**settings, "questions": "q.csv"})
    data = am.load("./home.yaml")
    assert data.name == "home" and data.reading == settings and len(data.questions) == 1
    assert data.conversations[0].turns[0].at.isoformat() == "2024-05-01T21:30:00+02:00"
    assert data.conversations == am.read_chat(chat, **settings).conversations
    with pytest.raises(FileExistsError, match="is there already"):
        write_settings("home.yaml", "chat.csv", settings)


def test_a_file_of_settings_with_a_fault(put):
    put("chat.csv", "body\nHi\n")
    for text, told in {
        "text: body\n": "file: chat.csv",
        "file: chat.csv\nspeeker: who\n": "did you mean 'speaker'",
        "file: chat.csv\nday_first: 1\n": "day_first: 1: Input should be a valid boolean",
    }.items():
        with pytest.raises(am.DatasetError, match=re.escape(told)):
            am.load(put("home.yaml", text))


def test_check_writes_the_settings_that_a_run_takes(put, tmp_path, capsys):
    put("chat.csv", "who,wrote,when\nAnn,Hi,2024-05-01 21:30\n")
    assert main(["run", "exp1", "-p", "dataset", "./chat.csv", "--out-dir", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "There are who, wrote, when" in told
    assert "adaptmr data check ./chat.csv" in told and "--save chat.yaml" in told
    columns = ["--text", "wrote", "--speaker", "who", "--at", "when", "--tz", "Asia/Shanghai"]
    assert main(["data", "check", "./chat.csv", *columns, "--save", "chat.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "messages 1, speakers 1, questions 0" in out and "adaptmr run exp1 -p dataset ./chat.yaml" in err
    assert am.load("./chat.yaml").reading["tz"] == "Asia/Shanghai"
    assert main(["data", "check", "./chat.yaml"]) == 0
    for wrong in (["--text", "wrote", "--save", "chat.yaml"], ["--save", "new.yaml"]):
        assert main(["data", "check", "./chat.csv", *wrong]) == 2


# --- questions without evidence


# --- private by default

CANARY = "zanzibarine"


def write_canary(put):
    """A chat with a word in every text of a person: turns, speakers, conversations, questions, answers."""
    rows = []
    for chat in ("one", "two"):
        talk = {"conversation": f"{CANARY} {chat}"}
        for n in range(6):
            text = f"I told {CANARY} about lamp {n} in the {chat} house."
            at = f"2024-05-0{n + 1}T09:00"
            rows.append({**talk, "id": f"m{n}", "at": at, "speaker": f"{CANARY} Bo", "text": text})
        for n, type in enumerate(("factual_extraction", "temporal_reasoning", "multi_hop", "abstention")):
            gold = {"answers": [f"{CANARY} Bo"], "evidence": [f"m{n}"]} if type != "abstention" else {}
            rows.append({**talk, "question": f"Who knew lamp {n} of {CANARY}?", "type": type, **gold})
    return put("chat.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def holding(folder, word):
    def text(path):
        if path.suffix == ".parquet":
            return pd.read_parquet(path).to_csv()
        return path.read_bytes().decode("utf-8", "replace")

    return [p.name for p in sorted(folder.rglob("*")) if p.is_file() and word.lower() in text(p).lower()]


@pytest.mark.slow
def test_an_experiment_holds_no_word_of_a_chat(put, tmp_path):
    folder = tmp_path / f"{CANARY}-folder"
    folder.mkdir()
    write_canary(put).rename(folder / "chat.jsonl")
    out = tmp_path / "out"
    run = ["run", "exp1", "-p", "dataset", str(folder / "chat.jsonl"), "-p", "embedder", "hash"]
    assert main([*run, "--out-dir", str(out)]) == 0
    assert holding(out, CANARY) == [] and len(list(out.rglob("*.csv"))) > 3
    assert main([*run, "--out-dir", str(tmp_path / "open"), "-p", "redact", "false"]) == 0
    shown = set(holding(tmp_path / "open", CANARY))
    assert {"report.html", "results.parquet"} <= shown, "redact=False shows it"
