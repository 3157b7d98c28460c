"""The annotation tool: keys, clicks on the widgets, and errors while saving."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.annotation import widget
from adaptmr.eval.annotation.labels import AnnotationCase, Labels, ShownTurn


def cases(n=4):
    turns = (
        ShownTurn("D1:9", "[2024-03-02] Ada: Rome.", False, True),
        ShownTurn("D1:4", "[2024-03-03] Ada: yes.", True, True),
        ShownTurn("D1:3", "moved", True, False),
    )
    rest = (("yes",), "no", 0.25, ("D1:3", "D1:4"), turns, 2)
    return [
        AnnotationCase(f"c/q{i}", "unified", "c", f"q{i}", "multi_hop", f"Question {i}?", *rest)
        for i in range(n)
    ]


@pytest.fixture
def tool(tmp_path):
    return widget.Annotator(cases(), Labels(tmp_path / "a.json", cases(), by="Ada"))


def saved(tool):
    return Labels(tool.labels.path).causes()


def test_each_label_is_saved_before_the_next_key(tool):
    for i, key in enumerate("1264"):
        assert tool.case.id == f"c/q{i}" and tool.handle_key(key) and len(saved(tool)) == i + 1
    assert saved(tool) == {"c/q0": "MISS", "c/q1": "TEMPORAL", "c/q2": "GEN", "c/q3": "HALLUC"}
    assert tool.done == 4 and "all cases are labelled" in tool.message and not tool.failed


@given(st.lists(st.sampled_from("123456unbx 我"), max_size=30))
@settings(max_examples=30, deadline=None)
def test_file_and_tool_agree_after_any_keys(tmp_path_factory, keys):
    labels = Labels(tmp_path_factory.mktemp("a") / "a.json", cases(3), by="Ada")
    tool = widget.Annotator(cases(3), labels)
    for key in keys:
        tool.handle_key(key)
        assert 0 <= tool.at < 3
    assert Labels(labels.path).causes() == labels.causes() and tool.done == len(labels.causes())


# --- HTML of a case


def test_html_of_a_case():
    page = widget.annotation_html(cases()[0])
    assert [page.index(f">{s}<") for s in ("D1:9", "D1:4", "D1:3")] == sorted(
        page.index(f">{s}<") for s in ("D1:9", "D1:4", "D1:3")
    )
    assert (
        page.count(">✓<") == page.count(">✗<") == page.count(">·<") == 1
        and "1 of 2 gold turns retrieved; 2 more turns" in page
        and "0.25" in page
    )
    none = widget.annotation_html(AnnotationCase("c/q", "s", "c", "q", "abstention", "", (), "", 0.0))
    assert "be answered from the conversation" in none and "(nothing)" in none and "no gold turns" in none


def test_html_in_the_data_is_escaped():
    from html.parser import HTMLParser

    for text in ("<script>alert(1)</script>", "'><b>", '" onmouseover="x', "&lt;i&gt;"):
        turns = (ShownTurn(text, text, True, True),)
        page = widget.annotation_html(AnnotationCase(*[text] * 6, (text,), text, 0.0, (text,), turns))
        tags: list = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attrs, tags=tags: tags.append((tag, [k for k, _ in attrs]))
        parser.feed(page)
        assert {t for t, _ in tags} == {"table", "tr", "td", "p"} and text not in page
        assert {k for _, ks in tags for k in ks} <= {"style", "title"}


# --- the widget


def parts(tool):
    (bar, count), shown, buttons, (note,), (keys, back, forward, undo, message), _ = (
        getattr(c, "children", c) for c in tool.show().children
    )
    return {
        "bar": bar,
        "count": count,
        "shown": shown,
        "buttons": buttons,
        "note": note,
        "keys": keys,
        "back": back,
        "next": forward,
        "undo": undo,
        "message": message,
    }


def test_clicks_on_the_buttons(tool):
    w = parts(tool)
    w["note"].value = "by the way"
    w["buttons"][2].click()
    assert saved(tool) == {"c/q0": "CONFLICT"} and Labels(tool.labels.path)["c/q0"].note == "by the way"
    assert (
        w["bar"].value == 1
        and "1 of 4" in w["count"].value
        and "Question 1?" in w["shown"].value
        and w["note"].value == ""
        and "saved" in w["message"].value
    )
    w["back"].click()
    assert w["note"].value == "by the way" and [b.button_style for b in w["buttons"]] == [
        "",
        "",
        "success",
        "",
        "",
        "",
    ]
    w["note"].value = "on second thoughts"
    assert Labels(tool.labels.path)["c/q0"].note == "on second thoughts" and tool.case.id == "c/q0"
    w["next"].click()
    w["undo"].click()
    w["undo"].click()
    w["undo"].click()
    assert saved(tool) == {} and "Question 0?" in w["shown"].value and w["bar"].value == 0


def test_keys_in_the_text_box(tool):
    w = parts(tool)
    for text in ("1", "12", "123u"):
        w["keys"].value = text
    assert (
        saved(tool) == {"c/q0": "MISS", "c/q1": "TEMPORAL"}
        and w["keys"].value == "123u"
        and "2 of 4" in w["count"].value
    )
    w["keys"].value = "123ux"
    assert "does nothing" in w["message"].value and "#a3251b" in w["message"].value
    again = parts(tool)  # shown a second time: its text box is empty at first, and works
    again["keys"].value = "6"
    assert saved(tool)["c/q2"] == "GEN"
