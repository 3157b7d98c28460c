"""The magics `%memory` and `%%ask`, in a real IPython shell."""

from __future__ import annotations

import html

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import adaptmr as am


@pytest.fixture
def shell():
    made = InteractiveShell()
    made.run_line_magic("load_ext", "adaptmr")
    yield made
    made.run_line_magic("unload_ext", "adaptmr")


def failure(shell, cell: str) -> str:
    """Run a cell that must fail with a usage error, and return its one line."""
    with capture_output() as shown:
        result = shell.run_cell(cell)
    assert type(result.error_in_exec).__name__ == "UsageError", result.error_in_exec
    assert "Traceback" not in shown.stdout + shown.stderr
    return str(result.error_in_exec)


def test_a_question_is_answered_from_the_chosen_memory(shell):
    with capture_output() as said:
        store = shell.run_cell("%memory demo --embedder hash").result
    assert len(store) == 182 and "en1 of demo; the others are en2" in said.stdout
    asked = shell.run_cell("%%ask --k 3\nWhere do I\nlive now?\n").result
    assert asked.question == "Where do I live now?" and len(asked.evidence) == 3
    assert asked.plan == asked.evidence.plan and asked.plan.planner == "update"
    assert asked.answer == am.answer(asked.question, asked.evidence)
    markup = html.unescape(asked._repr_html_())
    assert asked.answer.text in markup and "prefer_latest" in markup and "P(evidence found)" in markup


def test_a_variable_is_used_and_left_open(shell):
    with am.MemoryStore(embedder="hash") as mine:
        mine.add("I live in Bergen.")
        shell.user_ns["mine"] = mine
        assert shell.run_cell("%memory mine").result is mine
        assert shell.run_cell("%memory").result is mine
        shell.run_cell("%memory demo zh1 --embedder hash")
        assert len(mine) == 1


def test_the_file_of_a_store_and_a_chat_are_opened(shell, tmp_path):
    with am.MemoryStore(tmp_path / "my memories.db", embedder="hash") as store:
        store.add("I live in Bergen.")
    opened = shell.run_cell(f"%memory '{tmp_path / 'my memories.db'}'").result
    assert [m.text for m in opened.recent()] == ["I live in Bergen."]
    chat = tmp_path / "chat.csv"
    chat.write_text("conversation,speaker,text,at\nc1,Ann,I moved to Oslo.,2024-05-01\n")
    read = shell.run_cell(f"%memory {chat} --embedder hash").result
    assert read is not opened and [m.text for m in read.recent()] == ["I moved to Oslo."]
    with pytest.raises(RuntimeError, match="closed"):
        opened.recent()  # what the magic opened, it closes


def test_type_and_plan_choose_how_it_is_looked_for(shell):
    shell.user_ns |= {
        "lexical": am.RetrievalPlan(weights={"lexical": 1.0}, planner="words"),
        "router": am.Router(name="r"),
    }
    shell.run_cell("%memory demo en1 --embedder hash")
    plans = [
        shell.run_cell(f"%%ask {option}\nWhere do I live now?").result.plan.planner
        for option in ("--type abstention", "--plan lexical", "--plan router")
    ]
    assert plans == ["abstention", "words", "update"]


def test_a_mistake_in_a_question_is_one_line(shell, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    shell.user_ns |= {"my_plan": am.RetrievalPlan(), "mine": am.MemoryStore(embedder="hash")}
    shell.user_ns["mine"].add("I live in Bergen.")
    assert "no memory is chosen: write %memory demo" in failure(shell, "%%ask\nWhere?")
    shell.run_cell("%memory mine")
    for cell, said in (
        ("%memory dmeo", "did you mean 'demo'"),
        ('%memory "demo', "can't be read: No closing quotation"),
        ("%%ask\n\n", "write a question on the lines below it"),
        ("%%ask --plan myplan\nWhere?", "no variable 'myplan' with a plan (did you mean 'my_plan'?)"),
        ("%%ask --type abstention --plan my_plan\nWhere?", "give one of them"),
        ("%%ask --modle x\nWhere?", "%%ask: No such option '--modle'. Did you mean '--model'"),
        ("%%ask --model gpt-4o-mini\nWhere do I live?", "no API key for 'gpt-4o-mini'"),
    ):
        assert said in failure(shell, cell)
