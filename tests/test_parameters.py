"""Replaying a received run executes this checkout's notebook with plain values, and no received code."""

from __future__ import annotations

import json
import zipfile

import checkout
import numpy as np
import pytest

from adaptmr import cli
from adaptmr.embed.vector_cache import VectorCache
from adaptmr.eval.report.parameters import UsageError


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(checkout.make(tmp_path / "checkout"))
    return tmp_path / "checkout"


def run_cli(capsys, *arguments):
    status = cli.main([str(a) for a in arguments])
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return status, message


def file_contents(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


HOSTILE_NAMES = [
    "__import__('os').system('touch {}'); z",
    "k = 1\n__import__('os').system('touch {}')\nz",
    "k, z = __import__('os').system('touch {}'), z",
    "lambda",
    "class",
    "None",
    "k ",
    " k",
    "k=",
    "",
    "1k",
    "k-1",
    "ｋ",
    "k\u0000",
    "out_dir",
    "folder",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_an_unknown_parameter_is_refused_before_anything_runs(root, tmp_path, capsys, name):
    folder = checkout.received(tmp_path / "sent", {name.format(tmp_path / "ran"): str(tmp_path / "ran")})
    before = file_contents(tmp_path)
    status, message = run_cli(capsys, "runs", "replay", folder)
    assert status == 2 and len(message.strip().split("\n")) == 1 and "sent/manifest.json" in message, message
    assert file_contents(tmp_path) == before, "nothing was run and nothing written"


@pytest.mark.parametrize(
    "value", [{"a": 1}, {"__import__('os')": 1}, [[1]], [{"a": 1}], float("nan"), float("inf")], ids=repr
)
def test_a_value_that_is_not_plain_is_refused(root, tmp_path, capsys, value):
    status, message = run_cli(capsys, "runs", "replay", checkout.received(tmp_path / "sent", {"k": value}))
    assert status == 2 and "'k'" in message and "must be text, a number" in message


@pytest.mark.parametrize(
    "experiment",
    ["../../x", "/etc/x", "../experiments/tiny", "tiny.ipynb", "", ".", None, 5, ["tiny"], {"a": 1}, "Tiny"],
    ids=repr,
)
def test_an_experiment_that_this_checkout_does_not_have_is_refused(root, tmp_path, capsys, experiment):
    hostile = checkout.notebook(
        checkout.cell("p", checkout.PARAMETERS, ("parameters",)),
        checkout.cell("r", f"open({str(tmp_path / 'ran')!r}, 'w')"),
    )
    (tmp_path / "checkout" / "x.ipynb").write_text(hostile)
    status, message = run_cli(
        capsys, "runs", "replay", checkout.received(tmp_path / "sent", {"k": 1}, experiment)
    )
    assert (
        status == 2
        and "none of this checkout's, which are tiny" in message
        and not (tmp_path / "ran").exists()
    )


@pytest.mark.parametrize("params", [None, [], "k", 5], ids=repr)
def test_parameters_that_are_not_a_mapping_are_refused(root, tmp_path, capsys, params):
    status, message = run_cli(capsys, "runs", "replay", checkout.received(tmp_path / "sent", params))
    assert status == 2 and "must map names to values" in message


@pytest.mark.parametrize(
    "text", ["[]", "null", "5", '"x"', "{half", "", "\x00", "[" * 100_000], ids=lambda t: t[:9]
)
def test_an_invalid_manifest_is_a_one_line_error(root, tmp_path, capsys, text):
    checkout.received(tmp_path / "sent", {})
    (tmp_path / "sent" / "manifest.json").write_text(text)
    status, message = run_cli(capsys, "runs", "replay", tmp_path / "sent")
    assert status == 2 and len(message.strip().split("\n")) == 1 and "sent/manifest.json" in message
    status, message = run_cli(capsys, "runs", "replay", tmp_path / "nowhere")
    assert status == 2 and "nowhere" in message


def test_a_received_model_is_not_loaded(root, tmp_path, capsys):
    (root / "encoder").mkdir()
    status, message = run_cli(
        capsys, "runs", "replay", checkout.received(tmp_path / "sent", {"embedder": "encoder"})
    )
    assert status == 2 and "is a folder here" in message


@pytest.mark.parametrize("name", HOSTILE_NAMES[:5], ids=repr)
def test_execute_refuses_unknown_parameters(root, tmp_path, name):
    with pytest.raises(UsageError):
        cli.execute_notebook(
            root / "nbs" / "experiments" / "tiny.ipynb", {name.format(tmp_path / "ran"): 1}, tmp_path
        )
    with pytest.raises(UsageError):
        cli.execute_notebook(root / "nbs" / "experiments" / "tiny.ipynb", {"k": object()}, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_replay_runs_this_checkouts_notebook_and_not_the_received_one(root, tmp_path, capsys):
    """The values would be code if they weren't quoted."""
    names = ["'; __import__('os').system('true') #", '"""', "\\", "{k}", "$(true)"]
    folder = checkout.received(tmp_path / "sent", {"k": 3, "names": names})
    (folder / "notebook.ipynb").write_text(
        checkout.notebook(checkout.cell("r", f"open({str(tmp_path / 'ran')!r}, 'w')"))
    )
    (folder / "tables").mkdir()
    (folder / "tables" / "main.csv").write_text("system,f1\na,0.500\n")
    before = file_contents(folder)
    status, message = run_cli(capsys, "runs", "replay", folder)
    assert status == 0, message
    assert (
        file_contents(folder) == before
        and not (tmp_path / "ran").exists()
        and not (root / "outputs").exists()
    )


def test_vectors_that_are_pickles_are_not_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    for name, array in (
        ("vectors_2", np.array([Evil()], dtype=object)),
        ("keys_2", np.array([Evil()], dtype=object)),
    ):
        arrays = {
            "keys_2": np.zeros((1, 32), np.uint8),
            "vectors_2": np.array([[1, 0]], np.float16),
            name: array,
        }
        np.savez(tmp_path / "vectors.npz", **arrays)
        with pytest.raises(ValueError, match="not a vectors file"):
            VectorCache(":memory:").import_npz(tmp_path / "vectors.npz")
    with zipfile.ZipFile(tmp_path / "vectors.npz", "w") as z:
        z.writestr("../ran", b"x")
    assert VectorCache(":memory:").import_npz(tmp_path / "vectors.npz") == 0, "it isn't unpacked"
    assert not (tmp_path / "ran").exists() and not (tmp_path.parent / "ran").exists()


# --- damaged run folders, and YAML


def test_a_damaged_run_folder_does_not_affect_other_runs(root, tmp_path, capsys):
    good = checkout.received(root / "outputs" / "tiny" / "good", {"k": 3})
    (good / "calls.jsonl.gz").write_bytes(b"")
    (good / "tables").mkdir()
    (good / "tables" / "main.csv").write_text("system,f1\na,0.500\n")
    for name, text in (
        ("half", '{"models": ["m'),
        ("list", "[]"),
        ("odd", '{"models": [{}, 5], "params": 3}'),
    ):
        (root / "outputs" / "tiny" / name).mkdir()
        (root / "outputs" / "tiny" / name / "manifest.json").write_text(text)
    assert cli.main(["runs", "list"]) == 0
    caught = capsys.readouterr()
    assert caught.out.split() == ["outputs/tiny/good", "outputs/tiny/odd"]
    assert (
        all(f"tiny/{name} is left out" in caught.err for name in ("half", "list"))
        and len(caught.err.strip().split("\n")) == 2
    )
    assert cli.main(["runs", "replay", "--all"]) == 0
    caught = capsys.readouterr()
    assert "tiny/good: the same tables" in caught.out and "tiny/half is left out" in caught.err


BOMB = "a: &a [lol, lol]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)


@pytest.mark.parametrize(
    "text, names",
    [
        (BOMB, ["line 2", "'a'", "alias"]),
        ("k: 1\nnames: [a]\nk: 2\n", ["'k'", "line 3", "second time"]),
        ("names: {a: 1, a: 2}\n", ["'a'", "second time"]),
        ("<<: {k: 1}\n", ["<<"]),
        ("k: " + "[" * 10_000, ["nested too deeply"]),
        ("# " + "x" * 2_000_000, ["bytes"]),
        ("k: {a: 1}\n", ["'k'", "dict"]),
        ("k: 2024-02-01\n", ["'k'", "date"]),
        ("k: .nan\n", ["'k'"]),
    ],
    ids=lambda v: v[:12] if isinstance(v, str) else None,
)
def test_ambiguous_yaml_is_refused(root, tmp_path, capsys, text, names):
    (tmp_path / "mine.yaml").write_text(text)
    status, message = run_cli(capsys, "run", "tiny", "-f", tmp_path / "mine.yaml")
    assert status == 2 and "mine.yaml" in message and all(n in message for n in names), message
    if "\n" in text and len(text) < 1000:
        status, message = run_cli(capsys, "run", "tiny", "-p", "names", text)
        assert status == 2 and "-p" in message


def test_the_recorded_parameters_are_those_that_papermill_gets(root, tmp_path):
    made = cli.run_experiment("tiny", overrides=[("names", "[a, b]")])
    manifest = json.loads((made / "manifest.json").read_text())
    assert cli.read_run_config(made, root) == (
        root / "nbs" / "experiments" / "tiny.ipynb",
        manifest["params"],
    )
