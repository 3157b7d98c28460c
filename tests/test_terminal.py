"""The command in a terminal: Ctrl-C, a reader that goes away, a home that can't be written."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import checkout
import pytest

from adaptmr import cli

WAITS = """import os, threading
with open(os.environ['MARK'], 'w') as f: f.write(str(os.getpid()))
threading.Event().wait()"""


def command(root, *arguments, **more):
    """Start `adaptmr …` as a terminal does: in a process group of its own, and with Ctrl-C not ignored.

    A shell that runs the tests in the background makes them ignore Ctrl-C, and a child would inherit that.
    """
    env = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1", **more}
    return subprocess.Popen(
        [sys.executable, "-m", "adaptmr", *map(str, arguments)],
        cwd=root,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc for the kernel's process")
def test_ctrl_c_is_one_line_and_leaves_no_kernel(tmp_path):
    os.mkfifo(tmp_path / "mark")
    process = command(checkout.make(tmp_path / "checkout", WAITS), "run", "tiny", MARK=str(tmp_path / "mark"))
    kernel = int((tmp_path / "mark").read_text())  # waits until the cell runs
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "adaptmr: interrupted\n" and out == "", err
    assert not is_running(kernel)


def test_ctrl_c_anywhere_is_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.command, "make_parser", interrupted)
    assert cli.main(["data"]) == 130 and capsys.readouterr().err == "adaptmr: interrupted\n"


@pytest.mark.parametrize("arguments", [("data",), ("--help",), ("runs", "list")], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(tmp_path, arguments):
    """As with `adaptmr data | head -1`, but the pipe is closed from the start: timing plays no part."""
    root = checkout.make(tmp_path / "checkout")
    checkout.received(root / "outputs" / "tiny" / "one", {})
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "adaptmr", *arguments],
        cwd=root,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.returncode == (0 if arguments == ("--help",) else 141) and done.stderr == ""


def test_head_has_its_line_and_says_nothing_else(tmp_path):
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m adaptmr data | head -1",
        shell=True,
        cwd=checkout.make(tmp_path / "checkout"),
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("\n") == 1 and done.stderr == ""


def test_a_home_that_cannot_be_written_is_explained(tmp_path):
    """A file in the place of the home folder: nobody, root neither, can write below it."""
    (tmp_path / "home").write_text("")
    away = {"HOME": str(tmp_path / "home"), "ADAPTMR_CACHE": "", "XDG_CACHE_HOME": ""}
    root = checkout.make(tmp_path / "checkout")
    process = command(root, "run", "tiny", **away)
    out, err = process.communicate(timeout=60)
    assert (
        process.returncode == 2
        and out == ""
        and err.count("\n") == 1
        and "can't be written" in err
        and "set ADAPTMR_CACHE" in err
    ), err
    process = command(root, "run", "tiny", **{**away, "ADAPTMR_CACHE": str(tmp_path / "cache")})
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out.endswith("report.html\n"), err[-2000:]
