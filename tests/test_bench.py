"""The bench measures in turns, says what it couldn't measure, and never judges a machine for being busy."""
import numpy as np
import pytest

from adaptmr.data.registry import load
from adaptmr.embed import embedder
from adaptmr.eval import bench


def test_what_is_compared_takes_turns():
    order = []
    times = bench.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=1)
    assert order == ["a", "b"] * 4
    assert {name: ms.shape for name, ms in times.items()} == {"a": (3,), "b": (3,)} and all((ms >= 0).all() for ms in times.values())
    assert bench.timed(lambda: None, repeats=2).shape == (2,)


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeats_is_an_error(repeats):
    with pytest.raises(ValueError, match=f"repeats={repeats} must be 1 or more"): bench.timed(lambda: None, repeats)


def test_the_floor_is_one_product():
    rows = bench.clusters(50, 8, seed=3)
    assert rows.shape == (50, 8) and rows.dtype == np.float32 and np.array_equal(rows, rows.astype(np.float16).astype(np.float32))
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)
    assert np.array_equal(bench.floor_product(50, 8, 3)(), rows @ rows[0])


def test_a_recorded_embedder_knows_its_texts_only():
    known = bench.Recorded(["a", "b"], np.eye(2, dtype=np.float32))
    assert known.dim == 2 and known.encode(["b", "a"], kind="query").tolist() == [[0, 1], [1, 0]]
    with pytest.raises(KeyError, match="c"): known.encode(["c"])


def test_a_kept_vector_is_not_made_twice():
    asked = []

    class Counting:
        name, dim, precision, revision, cache = "counting", 64, "exact", "1", None

        def encode(self, texts, kind="passage"):
            asked.extend(texts)
            return embedder("hash").encode(texts)

    kept = bench.Kept(Counting())
    first = kept.encode(["x", "y", "x"], kind="query")
    assert np.array_equal(first, kept.encode(["x", "y", "x"], kind="query")) and asked == ["x", "y"]
    assert kept.encode([]).shape == (0, 64)


def test_made_up_memories_are_found():
    with bench.made_up_store(300) as store: assert [store.search(str(i), k=1)[0].memory.text for i in (0, 17, 299)] == ["0", "17", "299"]


def test_plans_and_search_are_timed_per_question():
    data = load("demo", split="en1", limit=4)
    questions = [q.blind() for q in data.questions]
    assert bench.search_ms(data.conversations[0], questions, embedder("hash")).shape == (4,)
    assert {name: ms.shape for name, ms in bench.execute_ms(data.conversations[0], questions, embedder("hash")).items()} == {"hybrid": (4,), "adaptmr": (4,)}


@pytest.mark.parametrize(("goal", "said", "reached"), [
    (bench.Goal("g", 1.0, "s", below=2), "< 2 s", "yes"), (bench.Goal("g", 2.0, "s", below=2), "< 2 s", "no"),
    (bench.Goal("g", 3.0, "×", above=2), "> 2 ×", "yes"), (bench.Goal("g", 2.0, "×", above=2), "> 2 ×", "no"),
    (bench.Goal("g", 2.0, "ms"), "–", "–"), (bench.Goal("g", None, "MB", below=1, note="no pip"), "< 1 MB", "not measured")])
def test_a_goal_says_whether_it_was_reached(goal, said, reached):
    row = bench.goals_table([goal]).iloc[0]
    assert (row["goal"], row["reached"], row["note"]) == (said, reached, goal.note)


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
