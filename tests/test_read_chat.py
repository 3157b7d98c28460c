"""Chat logs as data sets: forms, encodings, times, faults with their rows, and what a run on them records."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adaptmr as am
from adaptmr.data.registry import DatasetUnavailable, is_file_name

SAID = [
    {"id": "m1", "at": "2024-05-01T21:30", "speaker": "Ann", "text": "I moved to a yellow house in Bergen."},
    {"id": "m2", "at": "2024-05-01T21:31", "speaker": "Bo", "text": "Then we are nearly neighbours, nice!"},
    {"id": "m3", "at": "2024-05-02T08:00", "speaker": "Ann", "text": "It rained the whole night on my roof."},
]
GOLD = {"answers": ["Bergen"], "evidence": ["m1"], "type": "factual_extraction"}
ASKED = [{"question": "Where does Ann live?", **GOLD}, {"question": "Who has a dog?", "type": "abstention"}]


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def put(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTMR_DATA", raising=False)
    (tmp_path / "mine").mkdir()

    def write(content, name="chat.jsonl", encoding="utf-8"):
        path = tmp_path / "mine" / name
        text = content if isinstance(content, (str, bytes)) else jsonl(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return write


def error_of(*args, **options):
    with pytest.raises(am.DatasetError) as caught:
        am.read_chat(*args, **options)
    return caught.value


# --- the forms


def test_a_file_of_messages_and_questions(put):
    data = am.read_chat(put(SAID + ASKED))
    (chat,) = data.conversations
    assert [m.source for m in chat.turns] == ["m1", "m2", "m3"] and chat.id == "c1"
    assert [m.session for m in chat.turns] == ["S1", "S1", "S2"], "a night is a pause of more than six hours"
    assert [m.step for m in chat.turns] == [0, 1, 2] and chat.speakers == ("Ann", "Bo")
    first, second = data.questions
    assert (first.id, first.answers, first.evidence) == ("c1/q1", ["Bergen"], ["m1"])
    assert first.asked_at == datetime(2024, 5, 2, 8, tzinfo=UTC), "when the conversation ended"
    assert first.answerable and not second.answerable and second.type == am.QueryType.abstention
    assert not data.ours and data.complete and data.notes == {} and data.name == "chat"


def test_all_forms_give_the_same_conversation(put):
    expected = am.read_chat(SAID).conversations
    messages = [{"role": m["speaker"], "content": m["text"], "at": m["at"], "id": m["id"]} for m in SAID]
    frame = pd.DataFrame(SAID)
    renamed = {"id": "Nr", "at": "When", "speaker": "Who", "text": "What"}
    for source in (
        put(SAID),
        put(json.dumps(SAID), "a.json"),
        put(json.dumps({"messages": messages}), "b.json"),
        put(frame.to_csv(index=False), "a.csv"),
        put(frame.to_csv(index=False, sep="\t"), "a.tsv"),
        frame,
        frame.assign(at=pd.to_datetime(frame["at"])),
        messages,
    ):
        assert am.read_chat(source).conversations == expected
    assert am.read_chat(frame.rename(columns=renamed), **renamed).conversations == expected
    assert [am.Conversation.from_messages(messages)] == expected


def test_a_conversation_and_a_store_read_a_message_alike():
    for message, said in (
        ({"role": "user", "content": "Hi"}, ("user", "Hi", "", (), "")),
        ({"name": "Ann", "content": [{"text": "Hi"}, {"image_url": {}}]}, ("Ann", "Hi", "", (), "")),
        ({"content": "Hi", "user": "ann", "agent": "a", "tags": ["t"]}, ("", "Hi", "ann", ("t",), "a")),
        ({"role": "system", "content": "Be kind."}, None),
        ({"role": "user", "content": "Hi", "sesion": "s1"}, "'sesion'"),
        ({"role": "user", "text": "Hi"}, "called content"),
    ):
        store = am.MemoryStore(embedder="hash")
        if isinstance(said, str):
            for read in (am.Conversation.from_messages, store.add):
                with pytest.raises(ValueError, match=said):
                    read([message])
            continue
        store.add([message])
        for memories in (am.Conversation.from_messages([message]).turns, store.memories):
            read = [(m.speaker, m.text, m.owner, m.tags, m.meta.get("agent", "")) for m in memories]
            assert read == ([] if said is None else [said])


def test_fine_tuning_data_has_a_conversation_a_line_and_what_nobody_said_is_counted(put):
    look = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {}}]
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": look},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    data = am.read_chat(put([{"messages": messages}, {"messages": messages[1:]}]))
    assert [c.id for c in data] == ["c1", "c2"]
    assert [[m.text for m in c.turns] for c in data] == [["Look"], ["Look"]]
    assert data.notes["messages_without_text"] == 2 and data.notes["system_messages_left_out"] == 1


# --- times


def test_mixed_time_zones_and_the_newest_first():
    rows = [{"at": "2024-05-01T21:30+02:00", "text": "a"}, {"at": "2024-05-01T21:31", "text": "b"}]
    error = error_of(rows, name="mine")
    assert error.counts == {"times without a zone among times with one": 1}
    assert "mine, row 2: '2024-05-01T21:31'" in str(error) and "tz=" in str(error)
    turns = am.read_chat(rows, tz="Europe/Oslo").conversations[0].turns
    assert turns[1].at - turns[0].at == timedelta(minutes=1)
    aware = [{"at": "2024-05-01T21:30+02:00", "text": "a"}, {"at": "2024-05-01T21:30+00:00", "text": "b"}]
    assert am.read_chat(aware).notes == {}, "different zones are no fault"
    data = am.read_chat(SAID[::-1])
    assert data.conversations == am.read_chat(SAID).conversations, "newest first is sorted and counted"
    assert data.notes == {"rows_dated_before_the_previous_and_sorted": 2}


# --- encodings and broken files


FAULTS = [  # the text of a file, its ending, the kind of the fault, and where it is
    ("id,text\nm1,It rains, always\n", "csv", "rows of another length", "line 2: 3 cells"),
    ('text\n"a\nb"\nc\n"d\n', "csv", "lines that are not CSV", "line 5"),
    ("text,text\na,b\n", "csv", "columns given twice", "line 1: 'text'"),
    ('{"text": "a"}\n{"text":\n', "jsonl", "lines that are not JSON", "line 2"),
    ('{"text": "a"}\n[1]\n', "jsonl", "rows that are not objects", "line 2: a list"),
    ("[" * 100_000, "jsonl", "lines that are not JSON", "line 1"),
    ('{"text": "a"}\n{"body": "b"}\n', "jsonl", "rows without a text", "line 2"),
    ("at,text\nsoon,a\n", "csv", "times that can't be read", "line 2: 'soon'"),
    ("at,text\n2024-05-01,a\n,b\n", "csv", "turns without a date among dated ones", "line 3"),
    ("id,text\nm 1,a\n", "csv", "ids that are not plain", "line 2: 'm 1'"),
    ("id,text\nm1,a\nm2,b\nm1,c\n", "csv", "sources given twice", "line 2 and a.csv, line 4"),
    ("session,text\ns,a\n,b\n", "csv", "rows without a session among rows with one", "line 3"),
    ("text,question,type\na,,\n,Why?,when\n", "csv", "unknown question types", "line 3: 'when'"),
    ("text,question,evidence\na,,\n,Why?,m9\n", "csv", "evidence that names no turn", "line 3"),
    ("text,question\na,\n,Why?\n", "csv", "answerable questions without an answer", "line 3"),
    ("text,question,asked_at\na,,\n,Why?,soon\n", "csv", "times that can't be read", "line 3: asked_at"),
    ("text,question,chat\na,,x\n,Why?,y\n", "csv", "questions on an unknown conversation", "line 3: 'y'"),
]


def test_a_fault_is_named_with_its_row(put):
    for content, ending, kind, line in FAULTS:
        error, place = error_of(put(content, f"a.{ending}")), f"a.{ending}, {line}"
        assert kind in error.counts and place in str(error), str(error)
        assert not error.check and any(place in row for _, _, row in error.check.rows())


def test_all_faults_are_reported_at_once_and_quote_nothing_that_was_said(put):
    secret = "marmalade"
    lines = "".join(f"m{n},never,{secret} {n}\n" for n in range(50)) + f"m50,never,{secret},{secret}\n"
    error = error_of(put("id,at,text\n" + lines, "a.csv"))
    assert error.counts == {"rows of another length": 1, "times that can't be read": 50}
    assert "and 47 more" in str(error) and len(error.check.rows()) == 51
    assert secret not in str(error) and secret not in repr(error.check)


# --- conversations, questions elsewhere, names


def test_questions_in_another_file(put):
    chat = put(SAID)
    questions = put("question,answers,evidence\nWhere?,Bergen | in Bergen,m1 m3\n", "q.csv")
    data = am.read_chat(chat, questions=questions)
    assert data.questions[0].answers == ["Bergen", "in Bergen"] and data.questions[0].evidence == ["m1", "m3"]
    assert data.sha256 != am.read_chat(chat).sha256
    assert am.read_chat(chat, questions=pd.read_csv(questions)).questions == data.questions
    assert "q.csv, line 1: byte" in str(error_of(chat, questions=put(b"\xff\xfa", "q.csv")))


# --- round trips

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(str.strip)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "speaker": st.sampled_from(["Ann", "Bo", "小明", 'O\'Hara; "x"']),
            "text": st.one_of(texts, st.just("two\nlines, and a | mark")),
            "at": st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)).map(
                lambda t: t.replace(microsecond=0, fold=0).isoformat()
            ),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(messages, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.sampled_from(",;\t"))
def test_csv_and_jsonl_round_trips(tmp_path_factory, rows, encoding, separator):
    rows = sorted(rows, key=lambda row: row["at"])
    folder = tmp_path_factory.mktemp("chat")
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    (folder / "a.csv").write_bytes(out.getvalue().encode(encoding))
    (folder / "a.jsonl").write_bytes(jsonl(rows).encode(encoding))
    table, lines = am.read_chat(folder / "a.csv"), am.read_chat(folder / "a.jsonl")
    assert table.conversations == lines.conversations == am.read_chat(rows).conversations
    read = [(m.speaker, m.text, m.at.replace(tzinfo=None).isoformat()) for m in lines.conversations[0].turns]
    assert read == [(row["speaker"], row["text"], row["at"]) for row in rows]
    assert am.read_chat(pd.DataFrame(rows)).conversations == lines.conversations


@given(st.binary(max_size=200), st.sampled_from([".csv", ".jsonl", ".json", ".txt"]))
def test_any_bytes_are_read_or_refused_with_a_message(tmp_path_factory, data, suffix):
    path = tmp_path_factory.mktemp("chat") / f"a{suffix}"
    path.write_bytes(data)
    try:
        am.read_chat(path)
    except am.DatasetError as e:
        assert f"a{suffix}" in str(e)


def test_a_long_chat_is_read_in_linear_time(put):
    start = datetime(2024, 1, 1)
    rows = [f"{start + timedelta(hours=7 * n):%d/%m/%Y %H:%M},Ann,message {n}" for n in range(5_000)]
    data = am.read_chat(put("at,speaker,text\n" + "\n".join(rows), "long.csv"))
    assert len(data.conversations[0]) == len(data.conversations[0].sessions) == 5_000


# --- a path is a data set


def test_load_reads_a_path(put, monkeypatch):
    path = put(SAID + ASKED)
    data = am.load(str(path))
    assert data == am.load(path) == am.read_chat(path) and data.label == "chat: 1 conversations, 2 questions"
    assert am.load(path, limit=1).label == "part of chat: 1 conversations, 1 questions"
    with pytest.raises(DatasetUnavailable, match=r"no file chat\.jsonl .*ADAPTMR_DATA"):
        am.load("chat.jsonl")
    monkeypatch.setenv("ADAPTMR_DATA", str(path.parent))
    assert am.load("chat.jsonl") == data, "a name alone is looked for in ADAPTMR_DATA"
    assert is_file_name("chat.csv") and is_file_name("./chat") and not is_file_name("demo")


def test_the_example_of_the_guide_is_sound():
    path = Path(__file__).parent.parent / "nbs" / "guides" / "your_chat_logs.jsonl"
    data = am.read_chat(path)
    assert data.notes == {} and len(data.conversations) >= 4 and data.check().rows() == []
