"""Labels by hand: sampling of failures, label files, rejected input, and that no saved label is lost."""

import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.annotation.labels import (
    CAUSES,
    AnnotationCase,
    Label,
    LabelError,
    Labels,
    ShownTurn,
    disagreements,
    label_confusion,
    one_line,
    sample_blind,
    sample_failures,
)
from adaptmr.eval.report.run_folder import find_quotes, redaction_problems
from adaptmr.types import Conversation, Dataset, Memory, QueryType, Question

NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
AWKWARD = [
    '=HYPERLINK("http://x.org")',
    "+1 555",
    "-5 °C",
    "@ada",
    "'=x",
    "''",
    'a;b,c\t"d"',
    "我住在杭州",
    "🙂",
]
AWKWARD += [
    "مرحبا",
    "\ud800 lone",
    "NUL\x00NUL",
    "a\r\nb\u2028c",
    "",
    "x" * 5000,
    "✓ D1:1 fake",
    "#N/A",
    "003",
]


def case(i=1, text="When?", **more):
    turns = (
        ShownTurn("D1:9", "[2024-03-02] Ada: Rome.", False, True),
        ShownTurn("D1:3", "[2024-06-01] Ada: moved.", True, False),
    )
    given_ = {
        "reference": ("in June",),
        "prediction": "in March",
        "f1": 0.125,
        "gold": ("D1:3",),
        "turns": turns,
    }
    return AnnotationCase(
        f"c1/q{i}", "unified", "c1", f"q{i}", "temporal_reasoning", text, **{**given_, **more}
    )


def start(tmp_path, n=4, name="a.json", by="Ada"):
    return Labels(tmp_path / name, [case(i) for i in range(1, n + 1)], by=by, now=lambda: NOW)


# --- sampling failures


def failures(systems=("unified",), **sizes):
    """A frame of failures and its data; of the two gold turns D1:1 was missed and D1:2 retrieved."""
    talks, questions = [], []
    for name, n in sizes.items():
        turns = [
            Memory(f"{name}/{i}", f"turn {i}", "Ada", datetime(2024, 1, i, tzinfo=UTC), source=f"D1:{i}")
            for i in range(1, 9)
        ]
        talks.append(Conversation(name, ("Ada",), turns))
        questions += [
            Question(
                f"q{i}", f"what is {i}?", ["x"], QueryType.multi_hop, "x", ["D1:1", "D1:2"], conversation=name
            )
            for i in range(n)
        ]
    found = {"f1": 0.1, "prediction": "no", "retrieved": "D1:2 D1:5"}
    rows = [
        {"system": s, "conversation": q.conversation, "question": q.id, "type": str(q.type), **found}
        for s in systems
        for q in questions
    ]
    return pd.DataFrame(rows), Dataset("demo", talks, questions, ours=True)


def test_failures_are_sampled_evenly_over_conversations():
    frame, data = failures(c1=30, c2=10, c3=3)
    cases = sample_failures(frame, data, "unified", per_type=15)
    assert Counter(x.conversation for x in cases) == {"c1": 6, "c2": 6, "c3": 3}
    assert max(Counter(x.conversation for x in cases[:6]).values()) == 2, "the first few are as even as all"
    assert len({x.id for x in cases}) == 15 and len(sample_failures(frame, data, "unified")) == 40
    assert cases == sample_failures(frame.sample(frac=1, random_state=5), data, "unified", per_type=15)
    assert cases == sample_failures(frame, data, "unified", per_type=30)[:15], "a larger sample contains it"
    other = sample_failures(frame, data, "unified", per_type=15, seed=1)
    assert {x.id for x in cases} != {x.id for x in other}


def test_a_case_shows_retrieved_and_missed_turns():
    frame, data = failures(c1=1)
    (found,) = sample_failures(frame, data, "unified")
    assert [(t.source, t.mark) for t in found.turns] == [("D1:2", "✓"), ("D1:5", "·"), ("D1:1", "✗")]
    assert found.turns[0].line == "[2024-01-02] Ada: turn 2"
    assert found.gold == ("D1:1", "D1:2") and found.id == "c1/q0"
    (short,) = sample_failures(frame, data, "unified", turns=1)
    assert short.unshown == 1 and [(t.source, t.mark) for t in short.turns] == [("D1:2", "✓"), ("D1:1", "✗")]
    (unknown,) = sample_failures(frame.assign(retrieved="D9:9"), data, "unified")
    assert "no such turn" in unknown.turns[0].line and not unknown.turns[0].gold
    with pytest.raises(KeyError, match="redacted run"):
        sample_failures(frame.drop(columns="prediction"), data, "unified")


def test_blind_cases_hide_the_system_and_lose_nothing():
    names = ["unified", "lexical", "random"]
    frame, data = failures(names, c1=4, c2=4)
    cases, key = sample_blind(frame, data, names, per_type=3)
    assert {c.system for c in cases} == {""} and list(key) == [c.id for c in cases] and len(key) == 9
    drawn = {name: sample_failures(frame, data, name, per_type=3) for name in names}
    alone = {(name, c.question, c.conversation) for name, some in drawn.items() for c in some}
    assert {(key[c.id], c.question, c.conversation) for c in cases} == alone
    order = [key[c.id] for c in cases]
    assert order != sorted(order, key=names.index), "mixed"
    again, same = sample_blind(frame.sample(frac=1, random_state=1), data, names[::-1], per_type=3)
    assert same == key and again == cases, "neither the rows' order nor the systems' shows"


# --- the file

TEXT = (st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(AWKWARD)).map(one_line)
ROW = st.tuples(TEXT, TEXT, TEXT, TEXT, st.sampled_from(["", *CAUSES]), st.booleans(), st.booleans())


@given(st.lists(ROW, min_size=1, max_size=3))
@settings(max_examples=8)
def test_json_and_csv_round_trip(tmp_path_factory, rows):
    cases = [
        case(
            i,
            text,
            prediction=answer,
            reference=tuple(filter(None, [answer, note])),
            f1=round(i / 7, 3),
            turns=(ShownTurn("S1:1", line, gold or not found, found),),
        )
        for i, (text, answer, note, line, _, gold, found) in enumerate(rows)
    ]
    for name in ("a.json", "a.csv"):
        labels = Labels(tmp_path_factory.mktemp("labels") / name, cases, by="Zoë", now=lambda: NOW)
        for i, row in enumerate(rows):
            labels.set(f"c1/q{i}", row[4], row[2])
        back = Labels(labels.path)
        assert back.cases == labels.cases and all(back[i] == labels[i] for i in labels.cases)


def test_labels_are_saved_and_can_be_undone(tmp_path):
    labels = start(tmp_path)
    assert labels.path.exists() and (labels.done, len(labels)) == (0, 4), "an editor can be used at once"
    labels.set("c1/q1", "MISS")
    labels.set("c1/q2", "GEN", "  two\nlines ")
    assert Labels(labels.path)["c1/q2"] == Label("GEN", "two lines", "Ada", "2026-11-22T09:30:00+00:00")
    labels.set("c1/q1", "CONFLICT")
    assert [labels.undo() for _ in range(4)] == ["c1/q1", "c1/q2", "c1/q1", None]
    assert Labels(labels.path).causes() == {}
    labels.set("c1/q3", "MISS", "why")
    labels.set("c1/q3", "TEMPORAL")
    assert labels["c1/q3"].note == "why"
    assert [labels.progress(goal)["left"].tolist() for goal in (20, 1)] == [[3], [0]]
    labels.set("c1/q3", "")
    assert labels.causes() == {} and labels["c1/q3"] == Label("", "why")
    assert list(tmp_path.glob("*.tmp")) == []


def test_an_existing_file_is_continued(tmp_path):
    start(tmp_path).set("c1/q2", "MISS")
    more = start(tmp_path, 6, by="Bob")
    assert more.causes() == {"c1/q2": "MISS"} and more["c1/q2"].by == "Ada"
    more.set("c1/q6", "GEN")
    again = Labels(tmp_path / "a.json")
    assert {id: again[id].by for id in again.causes()} == {"c1/q2": "Ada", "c1/q6": "Bob"}
    with pytest.raises(LabelError, match=r"5 cases .*'c1/q2'"):
        start(tmp_path, 1)
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        Labels(tmp_path / "nothing.json")
    with pytest.raises(LabelError, match="ends in"):
        start(tmp_path, name="a.xlsx")


def test_damaged_files_are_rejected_with_the_place(tmp_path):
    for n, (ending, old, new, message) in enumerate(
        (
            ("csv", ",GEN,", ",Genn,", "line 4: cause 'Genn' .did you mean 'GEN'.*is none of MISS"),
            ("csv", "2026-11-22T09:30:00+00:00", "22.11.26", "line 4: date '22.11.26'.*2026-11-22"),
            ("csv", "c1/q3", "c1/q2", "line 6: case 'c1/q2' is there already"),
            ("csv", "0.125", "much", "line 2: the case .* is damaged .*much"),
            ("csv", "✗ D1:3", "D1:3", "line 2: the turn 'D1:3"),
            ("json", '"cause": "GEN"', '"cause": "7"', "case 2: cause '7' is none"),
            ("json", "c1/q3", "c1/q2", "case 3: case 'c1/q2' is there already"),
            ("json", '"f1": 0.125', '"f1": "much"', "case 1: the case .* is damaged"),
        )
    ):
        labels = start(tmp_path, name=f"{n}.{ending}")
        labels.set("c1/q2", "GEN")
        text = labels.path.read_text(encoding="utf-8-sig")
        assert old in text
        labels.path.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(LabelError, match=rf"{n}\.{ending}, {message}"):
            Labels(labels.path)


# --- no saved label is lost


def test_a_change_by_another_program_is_not_overwritten(tmp_path):
    one, two = start(tmp_path), start(tmp_path)
    two.set("c1/q1", "GEN")
    with pytest.raises(LabelError, match="another program"):
        one.set("c1/q2", "MISS")
    assert one.causes() == {} and one.undo() is None and Labels(one.path).causes() == {"c1/q1": "GEN"}
    two.path.unlink()
    with pytest.raises(LabelError, match="another program"):
        two.set("c1/q2", "MISS")


WRITER = """
import sys
from adaptmr.eval.annotation.labels import CAUSES, AnnotationCase, Labels
rest = ("multi_hop", "x" * 3000, ("a",), "b", 0.0)
cases = [AnnotationCase(f"c1/q{i}", "unified", "c1", f"q{i}", *rest) for i in range(60)]
labels, causes, n = Labels(sys.argv[1], cases, by="Ada"), list(CAUSES), 0
print("ready", flush=True)
while True:
    labels.set(f"c1/q{n % 60}", causes[n // 60 % 6])
    n += 1
    print(n, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize(("name", "seen"), [("a.json", 3), ("a.json", 40), ("a.csv", 75)])
def test_labels_survive_a_kill_while_saving(name, seen, tmp_path):
    """Each label that `set` returned is in the file, whenever the process is killed; at most one more is."""
    path, order = tmp_path / name, list(CAUSES)
    for _ in range(2):  # the second time, what the first kill left is there
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        printed = [process.stdout.readline() for _ in range(seen)]
        time.sleep(0.0007 * seen % 0.003)  # somewhere in the middle of the next
        os.kill(process.pid, signal.SIGKILL)
        printed += process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        told = int([s for s in printed if s.strip().isdigit()][-1])
        causes = Labels(path).causes()
        for i in range(min(60, told)):
            last = max(n for n in range(told) if n % 60 == i)
            allowed = {order[last // 60 % 6], order[told // 60 % 6] if told % 60 == i else ""}
            assert causes[f"c1/q{i}"] in allowed
        path.unlink()
        Path(f"{path}.tmp").write_bytes(b"half of a fi")  # what a kill may leave behind does no harm


# --- publishing labels, and two annotators


def test_redacted_labels_hold_no_text(tmp_path):
    question = "where did Ada leave the small green suitcase of her aunt"
    cases = [case(i, question) for i in range(1, 5)]
    labels = Labels(tmp_path / "a.json", cases, by="Ada Lovelace", now=lambda: NOW)
    labels.set("c1/q1", "MISS", "she says that the suitcase of her aunt is green")
    labels.set("c1/q2", "GEN")
    frame = labels.redacted()
    assert redaction_problems(frame) == [] and len(frame) == 2 and frame["on"][0] == "2026-11-22"
    frame.to_csv(tmp_path / "r.csv")
    assert find_quotes(tmp_path / "r.csv", [question], 20) == []
    assert not {"Ada", "suitcase"} & set((tmp_path / "r.csv").read_text().replace(",", " ").split())
    assert redaction_problems(start(tmp_path, name="none.json").redacted()) == []


def test_disagreements_and_confusion_of_two_annotators(tmp_path):
    a, b = start(tmp_path, 12), start(tmp_path, 12, "b.csv", "Bob")
    for i in range(1, 11):
        a.set(f"c1/q{i}", "MISS" if i <= 7 else "GEN")
        b.set(f"c1/q{i}", "MISS" if i <= 4 else "GEN", f"note {i}")
    a.set("c1/q11", "HALLUC")
    table = disagreements(a, b)
    assert table["case"].tolist() == ["c1/q5", "c1/q6", "c1/q7"] and set(table["a"]) == {"MISS"}
    assert table["note_b"].tolist() == ["note 5", "note 6", "note 7"]
    assert table.attrs == {"n": 10, "agreed": 7, "kappa": pytest.approx(0.24 / 0.54), "only_one": 1}
    confusion = label_confusion(a, b)
    assert confusion.loc["MISS", "GEN"] == confusion.loc["GEN", "GEN"] == 3
    assert confusion.to_numpy().sum() == 10 and confusion.shape == (6, 6)
    assert disagreements(b, a)["a"].tolist() == ["GEN"] * 3 and disagreements(a, a).empty
    with pytest.raises(LabelError, match="different cases, such as 'c1/q10'"):
        disagreements(a, start(tmp_path, 2, "c.json"))
    nobody = disagreements(a, start(tmp_path, 12, "d.json"))
    assert math.isnan(nobody.attrs["kappa"]) and nobody.attrs["n"] == 0
