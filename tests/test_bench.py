"""The bench times functions in turns and reports what it couldn't measure; no test depends on a time."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

import numpy as np
import pytest

from adaptmr.data.registry import load
from adaptmr.embed import embedder
from adaptmr.llm import LLM
from adaptmr.llm.tasks import TASKS, schema_violation
from adaptmr.perf import bench, clock, large_file, mock_server
from adaptmr.systems import ablations  # noqa: F401  (its import brings every task with it)


def test_compared_functions_are_timed_in_turns():
    order = []
    times = clock.time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=1
    )
    assert order == ["a", "b"] * 4
    assert {name: ms.shape for name, ms in times.items()} == {"a": (3,), "b": (3,)} and all(
        (ms >= 0).all() for ms in times.values()
    )
    assert clock.time_repeats(lambda: None, repeats=2).shape == (2,)


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeats_is_an_error(repeats):
    with pytest.raises(ValueError, match=f"repeats={repeats} must be 1 or more"):
        clock.time_repeats(lambda: None, repeats)


def test_the_floor_is_one_product():
    rows = clock.clustered_vectors(50, 8, seed=3)
    assert (
        rows.shape == (50, 8)
        and rows.dtype == np.float32
        and np.array_equal(rows, rows.astype(np.float16).astype(np.float32))
    )
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)
    assert np.array_equal(clock.floor_product(50, 8, 3)(), rows @ rows[0])


def test_lookup_embedder_raises_for_an_unknown_text():
    known = bench.LookupEmbedder(["a", "b"], np.eye(2, dtype=np.float32))
    assert known.dim == 2 and known.encode(["b", "a"], kind="query").tolist() == [[0, 1], [1, 0]]
    with pytest.raises(KeyError, match="c"):
        known.encode(["c"])


def test_caching_embedder_encodes_no_text_twice():
    asked = []

    class Counting:
        name, dim, precision, revision, cache = "counting", 64, "exact", "1", None

        def encode(self, texts, kind="passage"):
            asked.extend(texts)
            return embedder("hash").encode(texts)

    kept = bench.CachingEmbedder(Counting())
    first = kept.encode(["x", "y", "x"], kind="query")
    assert np.array_equal(first, kept.encode(["x", "y", "x"], kind="query")) and asked == ["x", "y"]
    assert kept.encode([]).shape == (0, 64)


def test_synthetic_memories_are_found():
    with bench.synthetic_store(300) as store:
        assert [store.search(str(i), k=1)[0].memory.text for i in (0, 17, 299)] == ["0", "17", "299"]


def test_plans_and_search_are_timed_per_question():
    data = load("demo", split="en1", limit=4)
    questions = [q.blind() for q in data.questions]
    assert bench.search_ms(data.conversations[0], questions, embedder("hash")).shape == (4,)
    assert {
        name: ms.shape
        for name, ms in bench.execute_ms(data.conversations[0], questions, embedder("hash")).items()
    } == {"hybrid": (4,), "adaptmr": (4,)}


def test_bandwidths_are_positive_and_leave_no_file(tmp_path):
    assert 0 < clock.memory_bandwidth(megabytes=1, repeats=1) < float("inf")
    assert (
        0 < clock.disk_bandwidth(tmp_path, megabytes=1, repeats=1) < float("inf")
        and list(tmp_path.iterdir()) == []
    )


@pytest.mark.parametrize("bandwidth", [clock.memory_bandwidth, clock.disk_bandwidth])
def test_bandwidth_of_nothing_is_an_error(bandwidth):
    with pytest.raises(ValueError, match="megabytes=0 must be 1 or more"):
        bandwidth(megabytes=0)
    with pytest.raises(ValueError, match="repeats=0 must be 1 or more"):
        bandwidth(megabytes=1, repeats=0)


@pytest.mark.parametrize(
    ("goal", "text", "reached"),
    [
        (clock.Goal("g", 1.0, "s", below=2), "< 2 s", "yes"),
        (clock.Goal("g", 2.0, "s", below=2), "< 2 s", "no"),
        (clock.Goal("g", 3.0, "×", above=2), "> 2 ×", "yes"),
        (clock.Goal("g", 2.0, "×", above=2), "> 2 ×", "no"),
        (clock.Goal("g", 0.995, "", above=0.99), "> 0.99", "yes"),
        (clock.Goal("g", 2.0, "ms"), "–", "–"),
        (clock.Goal("g", None, "MB", below=1, note="no pip"), "< 1 MB", "not measured"),
    ],
)
def test_a_goal_says_whether_it_was_reached(goal, text, reached):
    row = clock.goals_table([goal]).iloc[0]
    assert (row["goal"], row["reached"], row["note"]) == (text, reached, goal.note)


def test_import_is_light():
    seconds, heavy = bench.import_cost(repeats=2)
    assert seconds.shape == (2,) and heavy == []


def test_a_wheel_that_cant_be_built_says_why(tmp_path):
    assert bench.wheel_bytes(tmp_path) == (None, "no checkout around the package")
    (tmp_path / "adaptmr").mkdir()
    (tmp_path / "settings.ini").write_text("[DEFAULT]\n")
    (tmp_path / "setup.py").write_text("raise SystemExit('this setup is broken')\n")
    size, why = bench.wheel_bytes(tmp_path)
    assert size is None and why


def test_one_run_keeps_its_measurements_and_its_goals(tmp_path):
    run = bench.Bench(load("demo", split="en1", limit=2), repeats=2)
    curve = run.scaling([100, 200])
    assert (
        curve["memories"].tolist() == [100, 200]
        and curve["ratio"].tolist() == (curve["search, ms"] / curve["floor, ms"]).tolist()
    )
    assert [s["repeat"] for s in run.samples if s["measure"] == "floor, 200 memories"] == [0, 1]
    assert [g.what for g in run.goals] == ["store.search at 200 memories over one matrix product"], (
        "the goal applies to the last size"
    )
    assert (
        len(run.one_conversation(encoder="hash")) == 3
        and len(run.ingest("hash", turns=4)) == 2
        and len(run.package(tmp_path)) == 2
    )
    assert [(g.what, g.note) for g in run.goals if g.value is None] == [
        ("the wheel", "no checkout around the package")
    ]
    assert set(run.numbers()) == {g.what for g in run.goals} - {"the wheel"}
    measured = [(s["measure"], s["repeat"]) for s in run.samples]
    assert len(set(measured)) == len(measured), "measure and repeat identify every row"


@pytest.mark.parametrize(("name", "goal"), [("demo", "–"), ("locomo", "< 120 s")])
def test_the_goal_of_a_comparison_applies_to_locomo_only(name, goal, monkeypatch):
    monkeypatch.setattr(bench, "warm_up", lambda data: None)
    monkeypatch.setattr(bench, "comparison_seconds", lambda data, systems: (1.5, 7))
    table = bench.Bench(replace(load("demo", split="en1", limit=2), name=name)).comparison()
    assert table["goal"].tolist() == [goal] and table["note"][0].startswith("7 answers, once; ")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_smallest_reply_fits_the_schema_of_every_task(name):
    assert schema_violation(mock_server.minimal_instance(TASKS[name].schema), TASKS[name].schema) == ""


def test_mock_server_takes_its_time_for_each_reply():
    with mock_server.MockServer(seconds=0.05, slots=2) as server:
        llm = LLM("m", base_url=server.url, concurrency=6)
        with ThreadPoolExecutor(6) as many:
            begun = monotonic()
            replies = list(
                many.map(lambda i: llm.complete([{"role": "user", "content": str(i)}]).text, range(6))
            )
        assert replies == ['"none"'] * 6 and server.request_count == 6 and monotonic() - begun >= 0.15, (
            "six replies, two at once, 50 ms each"
        )


def test_overhead_is_measured_with_every_call_recorded():
    data = load("demo", split="en1", limit=5)
    spent, rows = mock_server.time_replay(data, ("qarp", "unified"), embedder="hash")
    assert (
        len(rows) == 10
        and (rows["prompt_tokens"] > 0).all()
        and (mock_server.overhead_ms(rows) > 0).all()
        and mock_server.overhead_ms(rows).sum() < spent * 1000
    )


def test_an_interrupted_run_ends():
    assert mock_server.interrupt_seconds() > 0


def test_the_analysis_is_measured():
    made = bench.Bench(load("demo", split="en1", limit=6), repeats=1)
    table = made.analysis(megabytes=1)
    file = "a file of LongMemEval's size"
    assert {g.what for g in made.goals} == {
        "causes of 500 failures, by rule",
        f"{file}, first question",
        f"{file}, memory",
    }
    assert len(table) == 3 and all(g.value > 0 for g in made.goals)


def test_a_large_file_is_the_same_for_the_same_seed(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        large_file.write_synthetic_file(tmp_path / name, 0.3, questions=5, seed=seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c and json.loads(a)[4]["question_id"] == "q4"
    with pytest.raises(subprocess.CalledProcessError):
        large_file.measure_open_cost(tmp_path / "missing")
