"""What `adaptmr run` says before, during and after a run: its estimate, its limits, its progress, Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import threading

import checkout
import pytest
import server
from checkout import start as command

from adaptmr.progress import Progress, ProgressLine, follow_progress, progress_line

PARAMETERS = "out_dir = None\nmodel = 'offline'\nmax_tokens = None\nmax_cost_usd = None"
RUN = """from adaptmr.experiments import Experiment
experiment = Experiment(
    "tiny",
    {"model": model, "limit": 8, "systems": ["lexical"], "k": 2, "embedder": "hash",
     "max_tokens": max_tokens, "max_cost_usd": max_cost_usd},
    out_dir,
)
experiment.evaluate()
experiment.finish()"""


class Answers:
    """Answers calls until `hangs_after`; `hanging` is set by the call after that."""

    def __init__(self, hangs_after=99):
        self.n, self.hangs_after, self.hanging = 0, hangs_after, threading.Event()

    def __call__(self, body):
        self.n += 1
        if self.n > self.hangs_after:
            self.hanging.set()
            return server.hang
        return server.ok_json({"answer": f"{self.n}", "abstain": False})


def start(root, address, *more):
    surroundings = {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "k", "ADAPTMR_CONCURRENCY": "1"}
    surroundings["ADAPTMR_CACHE"] = str(root / "cache")
    words = ("run", "tiny", "-p", "model", "m", "--out-dir", root / "outputs", *more)
    return command(root, *words, **surroundings)


def finish(process):
    """Return the exit status, stdout, and stderr without the lines of progress, which depend on the clock."""
    out, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines(keepends=True) if not line.startswith("adaptmr: lexical:")]
    return process.returncode, out, "".join(lines)


@pytest.fixture
def root(tmp_path):
    made = checkout.make(tmp_path / "checkout")
    cells = checkout.cell("p", PARAMETERS, ("parameters",)), checkout.cell("r", RUN)
    (made / "nbs" / "experiments" / "tiny.ipynb").write_text(checkout.notebook(*cells))
    return made


@pytest.mark.slow
def test_a_run_from_its_limit_over_ctrl_c_to_its_report(root):
    with server.Server(server.answering(Answers())) as s:
        code, out, err = finish(start(root, s.url, "-p", "max_tokens", "45"))
        assert code == 1 and out == "" and err.count("\n") == 1 and len(s.requests) == 3
        assert "45 tokens" in err and "3 of 8 answers are in the journal: raise the limit" in err
        assert not (root / "outputs" / "failed.ipynb").exists()

    answers = Answers(hangs_after=2)
    with server.Server(server.answering(answers)) as s:
        process = start(root, s.url, "-p", "max_tokens", "1000")
        assert answers.hanging.wait(60)
        os.killpg(process.pid, signal.SIGINT)
        code, out, err = finish(process)
    assert code == 130 and out == ""
    assert err == (
        "adaptmr: resuming: 3 of 8 answers\n"
        "adaptmr: interrupted: the same command goes on with the answers that are in its journal\n"
    )

    with server.Server(server.answering(Answers())) as s:
        code, out, err = finish(start(root, s.url))
        assert code == 0 and err == "adaptmr: resuming: 5 of 8 answers\n" and len(s.requests) == 3
    folder = next((root / "outputs" / "tiny").glob("*/report.html")).parent
    for name in ("notebook.ipynb", "report.html", "manifest.json"):
        text = (folder / name).read_text()
        assert "resuming" not in text and "of 8 answers" not in text, name
    assert '"max_tokens"' not in (folder / "manifest.json").read_text(), "it is no part of the run"


@pytest.mark.slow
def test_an_estimate_asks_nobody_and_dollars_without_a_price_are_refused(root):
    with server.Server(server.status(500)) as s:
        code, out, err = finish(start(root, s.url, "--estimate"))
        assert code == 0 and s.requests == [], err
        assert "questions: counted on the data (part of demo" in out and "in all" in out
        code, _, err = finish(start(root, s.url, "-p", "max_cost_usd", "1"))
        assert code == 2 and err.count("\n") == 1 and "price of 'm' is not known" in err
    assert not (root / "outputs").exists()


def test_in_a_terminal_one_line_is_written_over_and_gone_at_the_end():
    ours, theirs = os.openpty()
    seconds = iter([0.0, 3.0, 3.1, 4.0])
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        line = ProgressLine(terminal, clock=lambda: next(seconds))
        assert line.live
        for n in (1, 2, 3, 4):
            line.show(Progress(n, 4, "qarp" if n < 3 else "b", 60.0, 1234, 0.5))
        line.close()
        shown = b""
        while not shown.endswith(b" \r"):
            shown += screen.read(4096)
    first = "adaptmr: qarp: 2 of 4, 0:01:00 left, 1,234 tokens, $0.5000"
    second = first.replace("qarp: 2", "b: 4")
    assert shown.decode() == f"\r{first}\r{second}   \r{' ' * len(second)}\r"


def test_elsewhere_there_is_a_plain_line_each_tenth_or_each_30_seconds():
    now = [0.0]
    log = io.StringIO()
    line = ProgressLine(log, clock=lambda: now[0])
    for second, done in ((5, 50), (10, 51), (11, 70), (20, 70), (30, 71), (49, 72), (50, 73)):
        now[0] = float(second)
        line.show(Progress(done, 100))
    line.close()
    assert [row.split()[1] for row in log.getvalue().splitlines()] == ["70", "73"]


def test_progress_of_another_process_is_followed_and_none_is_shown_where_none_is_wanted(
    tmp_path, monkeypatch, capsys
):
    shown = io.StringIO()
    with follow_progress(tmp_path / "p.txt", shown):
        progress_line().say("resuming: 1 of 2 answers")
    assert shown.getvalue() == "adaptmr: resuming: 1 of 2 answers\n"
    monkeypatch.setenv("ADAPTMR_PROGRESS", "off")
    progress_line().say("nobody reads this")
    progress_line(False).say("nor this")
    progress_line(True).say("but this")
    assert capsys.readouterr().err == "adaptmr: but this\n"
