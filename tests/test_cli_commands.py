"""The commands on data, systems, memories, the machine and the shell: output and exit status."""

from __future__ import annotations

import configparser
import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import checkout
import pytest
from cli_runs import said

import adaptmr as am
from adaptmr.cli import doctor
from adaptmr.cli.command import cli
from adaptmr.data import registry
from adaptmr.data.registry import DatasetEntry, register_dataset
from adaptmr.registry import forget_module
from adaptmr.types import Dataset

OFFICIAL = b'{"official": true}'


@pytest.fixture
def served():
    """Serve chosen replies on loopback, by path; yields the address, the replies and the requests."""
    replies: dict[str, tuple[int, bytes]] = {}
    asked: list[tuple[str, dict[str, str]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, dict(self.headers)))
            code, body = replies.get(self.path, (404, b""))
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", replies, asked
        server.shutdown()


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Give each test a cache of its own, and no model's server."""
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "cache"))
    for name in ("ADAPTMR_DATA", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


# --- help, version, completion


def commands(group, path=()):
    """Yield the words of each command that is no group, and of `adaptmr data`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def test_the_help_shows_every_command_with_an_example_and_the_version(capsys):
    assert said(capsys, "--version")[:2] == (0, f"adaptmr {am.__version__}\n")
    shown = said(capsys, "--help")[1]
    assert [name for name in cli.commands if f"\n  {name}" not in shown] == []
    for words in commands(cli):
        status, out, _ = said(capsys, *words, "--help")
        assert status == 0 and f"adaptmr {' '.join(words)}" in out.partition("example:\n")[2], words


def test_a_shell_completes_commands_and_options(capsys, monkeypatch):
    assert "_ADAPTMR_COMPLETE=zsh_complete" in said(capsys, "completion", "zsh")[1]
    monkeypatch.setenv("_ADAPTMR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setenv("COMP_WORDS", "adaptmr runs compare --ag")
    assert said(capsys)[1] == "plain,--against\n"


# --- the terminal


def test_ctrl_c_anywhere_is_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt("12 answers are in the journal")

    monkeypatch.setattr("adaptmr.cli.data_sets.datasets", interrupted)
    status, _, err = said(capsys, "data")
    assert status == 130 and err == "adaptmr: interrupted: 12 answers are in the journal\n"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """As with `adaptmr data | head -1`, but the pipe is closed from the start: timing plays no part."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "adaptmr", "data"]
    done = subprocess.run(words, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 141 and done.stderr == ""


def test_a_home_that_cannot_be_written_is_explained(tmp_path, monkeypatch, capsys):
    """A file in the place of the home folder: nobody, root neither, can write below it."""
    (tmp_path / "home").write_text("")
    monkeypatch.chdir(checkout.make(tmp_path / "checkout"))
    monkeypatch.setenv("ADAPTMR_CACHE", str(tmp_path / "home" / "cache"))
    status, out, err = said(capsys, "run", "tiny")
    assert status == 2 and out == "" and err.count("\n") == 1
    assert "can't be written" in err and "set ADAPTMR_CACHE" in err


WAITS = """import os, threading
with open(os.environ['MARK'], 'w') as f: f.write(str(os.getpid()))
threading.Event().wait()"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc for the kernel's process")
def test_ctrl_c_is_one_line_and_leaves_no_kernel(tmp_path):
    os.mkfifo(tmp_path / "mark")
    root = checkout.make(tmp_path / "checkout", WAITS)
    process = checkout.start(root, "run", "tiny", MARK=str(tmp_path / "mark"))
    kernel = Path("/proc") / (tmp_path / "mark").read_text()  # waits until the cell runs
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "", err
    assert err.startswith("adaptmr: interrupted") and err.count("\n") == 1
    assert not kernel.exists() or "Z" in (kernel / "stat").read_text().rpartition(")")[2].split()[0]


# --- data


@pytest.fixture
def toy(served):
    sha256, url = hashlib.sha256(OFFICIAL).hexdigest(), f"{served[0]}/toy.json"
    made = {"files": ("toy.json",), "url": url, "sha256": sha256}
    yield register_dataset(DatasetEntry("toy", lambda path: Dataset("toy"), "CC0", "for tests", **made))
    del registry._ENTRIES["toy"]


def test_get_fetches_once_and_checks_and_overwrites_nothing(capsys, served, toy, tmp_path, monkeypatch):
    _, replies, asked = served
    target = tmp_path / "cache" / "data" / "toy.json"
    status, _, err = said(capsys, "data", "get", "toy")
    assert status == 1 and "404" in err and "toy.json" in err
    replies["/toy.json"] = 200, b"sign in first"
    status, out, err = said(capsys, "data", "get", "toy")
    assert status == 1 and out == "" and "sha256" in err and not target.exists()
    replies["/toy.json"] = 200, OFFICIAL
    assert said(capsys, "data", "get", "toy")[:2] == (0, f"{target}\n") and target.read_bytes() == OFFICIAL
    before = len(asked)
    assert "already here" in said(capsys, "data", "get", "toy")[1]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "toy.json").write_text("mine")
    monkeypatch.setenv("ADAPTMR_DATA", str(tmp_path / "mine"))
    assert said(capsys, "data", "get", "toy")[0] == 0 and len(asked) == before
    assert (tmp_path / "mine" / "toy.json").read_text() == "mine"
    assert said(capsys, "data", "get", "demo")[:2] == (0, "demo is part of the package\n")


def test_list_says_where_each_is_and_check_what_is_wrong(capsys, toy, tmp_path):
    status, out, _ = said(capsys, "data", "list", "--json")
    places = {d["name"]: d["place"] for d in json.loads(out)}
    assert status == 0 and (places["demo"], places["toy"]) == ("package", "")
    (tmp_path / "good.csv").write_text("who,words,when\nann,I moved to Oslo,2024-05-01 10:00\n")
    columns = ["--speaker", "who", "--text", "words", "--at", "when", "--tz", "Europe/Oslo"]
    status, out, _ = said(capsys, "data", "check", "good.csv", *columns, "--json")
    assert status == 0 and json.loads(out)["valid"] is True
    (tmp_path / "bad.csv").write_text("who,words,when\nann,I moved to Oslo,yesterday\nbob,Nice,today\n")
    status, out, _ = said(capsys, "data", "check", "bad.csv", *columns, "--json")
    assert status == 1 and json.loads(out)["valid"] is False
    status, out, _ = said(capsys, "data", "check", "bad.csv", *columns)
    assert status == 1 and "2 faults" in out and "line 2" in out


def test_the_doctor_looks_for_every_extra():
    settings = configparser.ConfigParser(delimiters=["="], inline_comment_prefixes=["#"])
    settings.read(Path(__file__).parent.parent / "settings.ini", encoding="utf-8")
    named = [name for name in settings["DEFAULT"] if name.endswith("_requirements")]
    extras = {name.removesuffix("_requirements") for name in named}
    assert {extra for extra, _ in doctor.EXTRAS.values()} == extras - {"dev"}


# --- systems


def test_systems_and_those_of_a_plugin(capsys, tmp_path):
    (tmp_path / "my_strategy.py").write_text(
        "import adaptmr as am\n\n@am.system('my_own')\ndef mine(question, now):\n"
        '    "Words only."\n    return am.RetrievalPlan(weights={"lexical": 1.0})\n'
    )
    status, out, _ = said(capsys, "systems", "--json")
    listed = json.loads(out)
    names = [s["name"] for s in listed]
    assert {s["group"] for s in listed} == {"main"} and all(s["description"] for s in listed)
    assert status == 0 and {"unified", "adaptmr"} <= set(names) and "my_own" not in names
    try:
        status, out, _ = said(capsys, "systems", "--import", "./my_strategy.py")
        assert status == 0 and "my_own" in out and "Words only" in out
    finally:
        forget_module("my_strategy")
    status, _, err = said(capsys, "systems", "--group", "fast")
    assert status == 2 and "ablation" in err


# --- ask and add


def test_what_is_added_is_found_by_its_user_from_then_on(capsys):
    words = ("Ann moved to Oslo.", "Bob keeps bees.", "--said-at", "2024-05-01T10:00")
    assert said(capsys, "add", "m.db", *words)[:2] == (0, "2 new of 2; 2 memories in m.db\n")
    said(capsys, "add", "m.db", "Ann moved to Rome.", "--user", "bob")
    asked = ("ask", "m.db", "Where did Ann move?")
    found = json.loads(said(capsys, *asked, "--k", "1", "--json")[1])
    assert [m["text"] for m in found["memories"]] == ["Ann moved to Oslo."] and "Oslo" in found["answer"]
    assert found["memories"][0]["at"] == "2024-05-01T10:00:00+00:00"
    status, out, _ = said(capsys, *asked, "--as-of", "2024-04-01")
    assert status == 0 and "Ann moved to Oslo." not in out, "it was said later"
    out = said(capsys, *asked, "--user", "bob")[1]
    assert "Rome" in out and "Oslo" not in out


def test_a_chat_is_added_once(capsys, tmp_path):
    (tmp_path / "chat.csv").write_text("who,text,when\nann,I moved to Oslo,2024-05-01 10:00\nbob,Nice,\n")
    words = ["add", "m.db", "--from", "chat.csv", "--speaker", "who", "--at", "when", "--user", "ann"]
    status, _, err = said(capsys, *words)
    assert status == 2 and "chat.csv" in err and "line 3" in err, "a time is missing: nothing is added"
    (tmp_path / "chat.csv").write_text("who,text,when\nann,I moved to Oslo,2024-05-01 10:00\n")
    assert said(capsys, *words)[:2] == (0, "1 new of 1; 1 memories in m.db\n")
    assert said(capsys, *words)[:2] == (0, "0 new of 1; 1 memories in m.db\n")
    with am.MemoryStore(tmp_path / "m.db") as store:
        assert [(m.owner, m.speaker) for m in store.memories] == [("ann", "ann")]


def test_wrong_calls_of_ask_and_add_make_no_file(capsys, tmp_path):
    for words, why in (
        (["ask", "m.db", "Where?"], "there is no file m.db"),
        (["add", "m.db", "text", "--from", "chat.csv"], "either texts, with --said-at"),
        (["add", "m.db", "text", "--speaker", "who"], "either texts, with --said-at"),
        (["add", "m.db", "--from", "nowhere.csv"], "nowhere.csv"),
    ):
        status, _, err = said(capsys, *words)
        assert status == 2 and why in err, err
    assert not (tmp_path / "m.db").exists()
    (tmp_path / "m.db").write_text("no database")
    assert said(capsys, "ask", "m.db", "Where?")[0] == 2 and said(capsys, "add", "m.db", "text")[0] == 2


# --- doctor


def findings(check):
    return {f.what: f for f in check()}


def test_the_models_of_the_server_are_listed_and_the_key_is_not_shown(served, monkeypatch):
    url, replies, asked = served
    replies["/v1/models"] = 200, json.dumps({"data": [{"id": "small"}, {"id": "large"}]}).encode()
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url.replace('//', '//me:word@')}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = findings(doctor.check_model)
    (of_server,) = [f for what, f in found.items() if what.startswith("models")]
    assert of_server.state == doctor.OK and of_server.found == "small, large"
    assert asked[0][1]["Authorization"] == "Bearer sk-secret"
    assert not any(secret in repr(found) for secret in ("sk-secret", "word"))


def test_the_exit_status_and_the_document_of_doctor(capsys, monkeypatch):
    status, out, _ = said(capsys, "doctor", "--json")
    found = json.loads(out)
    by_name = {f["what"]: f for f in found["findings"]}
    assert status == 0 and found["broken"] == 0 and by_name["adaptmr"]["state"] == "ok"
    monkeypatch.setenv("ADAPTMR_DATA", str(Path("nowhere")))
    status, out, _ = said(capsys, "doctor")
    assert status == 1 and "1 broken" in out and "unset it" in out
