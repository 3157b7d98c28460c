"""Growth measurements: synthetic memories are deterministic, costs add up; no time is asserted."""

import hashlib
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.report.style import figure_bytes
from adaptmr.perf import growth, synthetic
from adaptmr.store.memory_store import MemoryStore
from adaptmr.types import Memory

# --- synthetic memories


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2500), st.integers(0, 300), st.integers(0, 3))
def test_a_memory_depends_on_its_number_and_the_seed_only(start, n, seed):
    some = synthetic.synthetic_memories(start, start + n, seed)
    assert some == synthetic.synthetic_memories(max(0, start - 7), start + n + 3, seed)[min(start, 7) :][:n]
    assert [m.step for m in some] == list(range(start, start + n)) and len({m.id for m in some}) == n


def test_memories_look_like_turns():
    some = synthetic.synthetic_memories(0, 1000)
    assert some != synthetic.synthetic_memories(0, 1000, seed=1)
    lengths = [len(m.text.split()) for m in some]
    assert min(lengths) >= 3 and max(lengths) <= 120 and 20 <= np.median(lengths) <= 26
    assert all(a.at < b.at for a, b in itertools.pairwise(some)) and len({m.session for m in some}) == 50
    assert len({m.speaker for m in some}) == 8 and {
        len({m.speaker for m in some if m.session == s}) for s in ("s000000", "s000049")
    } == {2}
    counts = pd.Series(" ".join(m.text for m in some).split()).value_counts()
    assert counts.iloc[0] > 10 * counts.iloc[100], "a few words are most of the text"


def test_first_questions_do_not_depend_on_how_many_are_made():
    assert (
        synthetic.synthetic_questions(20)[:5]
        == synthetic.synthetic_questions(5)
        != synthetic.synthetic_questions(5, seed=1)
    )
    assert len(set(synthetic.synthetic_questions(100))) == 100 and synthetic.synthetic_questions(0) == []


def test_the_texts_are_the_same_on_every_machine():
    texts = json.dumps(
        [[m.text for m in synthetic.synthetic_memories(0, 50)], synthetic.synthetic_questions(5)]
    ).encode()
    assert hashlib.sha256(texts).hexdigest()[:16] == "24ab348b4fdc45a5"


def test_a_vector_depends_on_text_seed_and_kind():
    texts = ["a", "b", "", "\ud800", "我"]
    one, other = synthetic.SyntheticEmbedder(32), synthetic.SyntheticEmbedder(32)
    vectors = one.encode(texts)
    assert (
        vectors.shape == (5, 32)
        and vectors.dtype == np.float32
        and np.array_equal(vectors, vectors.astype(np.float16).astype(np.float32))
    )
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=2e-3) and np.array_equal(
        vectors, other.encode(texts)
    )
    assert np.allclose(other.encode(texts[::-1])[::-1], vectors, atol=1e-3)
    assert not np.allclose(
        synthetic.SyntheticEmbedder(32, seed=1).encode(texts), vectors, atol=0.1
    ) and not np.allclose(one.encode(texts, "query"), vectors, atol=0.01)
    assert one.encode([]).shape == (0, 32) and one.seconds > 0


# --- floors, recall, clocks


def test_floors_by_hand():
    # 1,000 rows of 10 float32 are 40,000 bytes: 2 ms at 20 MB/s; 500 bytes at 1 MB/s are 0.5 ms;
    # float16 takes 20 bytes beside 80 of text
    assert growth.floors(1000, 10, text_bytes=80, written_bytes=500, read=20e6, write=1e6) == {
        "query_floor_ms": pytest.approx(2.0),
        "ingest_floor_ms": pytest.approx(0.5),
        "memory_floor_mb": pytest.approx(0.04),
        "disk_floor_bytes": 100,
    }


class Forgetful:
    """A store whose searches miss what they would have found first."""

    def __init__(self, store, missed):
        self.store, self.missed, self.matrix, self.embedder = store, missed, store.matrix, store.embedder

    def search(self, text, k):
        return self.store.search(text, k + self.missed)[self.missed :]


def test_recall_counts_what_is_missed():
    questions = synthetic.synthetic_questions(30)
    with MemoryStore(embedder=synthetic.SyntheticEmbedder(32)) as store:
        store.add(synthetic.synthetic_memories(0, 200))
        assert growth.search_recall(store, questions) == 1
        assert growth.search_recall(Forgetful(store, 3), questions) == pytest.approx(
            0.7
        ) and growth.search_recall(Forgetful(store, 1), questions, k=4) == pytest.approx(0.75)
        assert growth.search_recall(store, questions, k=500) == 1, (
            "with fewer than k memories, all of them count"
        )


def test_a_tie_is_not_a_missed_memory():
    class Same(synthetic.SyntheticEmbedder):
        def encode(self, texts, kind="passage"):
            return np.tile(np.float32([1, 0]), (len(texts), 1))

    with MemoryStore(embedder=Same(2)) as store:
        store.add([Memory(f"m{i}", str(i), step=i) for i in range(30)])
        assert growth.search_recall(store, ["x"]) == growth.search_recall(Forgetful(store, 5), ["x"]) == 1


# --- a whole run


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    folder, rates = tmp_path_factory.mktemp("growth"), iter([5e9, 4e9])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "memory_bandwidth", lambda: next(rates))
        made = growth.measure_growth([100, 300], dim=32, questions=6, batch=70, patience=1, folder=folder)
    assert list(folder.iterdir()) == [], "the folder is left as it was"
    return made


def test_every_size_is_measured(frame):
    assert (
        frame["memories"].tolist() == [100, 300]
        and frame["recall"].tolist() == [1, 1]
        and not frame["approximate"].any()
    )
    numbers = frame.drop(columns=["approximate"])
    assert not numbers.isna().any().any() and (numbers.drop(columns=["memory_mb"]) > 0).all().all()
    assert frame["indexed_ms"].tolist() == frame["ingest_ms"].tolist(), (
        "an exact search has no index to build"
    )
    assert (frame["memory_peak_mb"] >= frame["memory_all_mb"]).all()
    for mode in ("dense", "lexical", "hybrid", "plan"):
        assert (frame[f"{mode}_p50_ms"] <= frame[f"{mode}_p95_ms"]).all()
    assert frame["memory_floor_mb"].tolist() == [100 * 32 * 4 / 1e6, 300 * 32 * 4 / 1e6]
    assert frame["read_rate"].tolist() == [5e9, 5e9], "the best bandwidth is used for all floors"
    assert (
        frame["query_floor_ms"].tolist() == pytest.approx([100 * 32 * 4 / 5e6, 300 * 32 * 4 / 5e6])
        and frame["write_rate"].nunique() == 1
    )


def test_disk_and_its_floor_count_bytes(frame):
    texts = np.array([len(m.text.encode()) for m in synthetic.synthetic_memories(0, 300)])
    assert frame["disk_floor_bytes"].tolist() == pytest.approx([64 + texts[:100].mean(), 64 + texts.mean()])
    assert (frame["disk_bytes"] > frame["disk_floor_bytes"]).all()


def test_the_cost_of_an_index_is_divided_among_the_new_memories(monkeypatch, tmp_path):
    asked = {"dense_p50_ms": 1.0, "approximate": True, "recall": 1.0}
    ran = iter(
        [asked | {"first_ms": 150.0}, {"cold_ms": 50.0}, asked | {"first_ms": 70.0}, {"cold_ms": 50.0}]
    )
    for name, fake in (
        ("memory_bandwidth", lambda: 1e9),
        ("disk_bandwidth", lambda folder: 1e9),
        ("run_in_new_process", lambda name, **given: next(ran)),
        ("_ingest", lambda path, start, stop, *rest: (2.0 * (stop - start), 9 * (stop - start))),
    ):
        monkeypatch.setattr(growth, name, fake)
    frame = growth.measure_growth([100, 300], folder=tmp_path)
    assert frame["ingest_ms"].tolist() == [2, 2] and frame["indexed_ms"].tolist() == pytest.approx(
        [2 + 100 / 100, 2 + 20 / 200]
    )
    assert frame["disk_floor_bytes"].tolist() == [768 + 9] * 2


@pytest.mark.parametrize(
    "sizes", [[], [0, 10], [10, 10], [30, 10], [-5], [1.5], ["100"], [True], "[100, 300]", None, 100]
)
def test_sizes_that_dont_grow_are_an_error(sizes):
    with pytest.raises(ValueError, match=r"must be whole numbers that grow, the first 1 or more, such as"):
        growth.measure_growth(sizes)


@pytest.mark.parametrize("wrong", [{"questions": 0}, {"batch": 0}])
def test_no_questions_or_an_empty_batch_is_an_error(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=0 must be 1 or more"):
        growth.measure_growth([100], **wrong)


def test_the_error_of_a_failed_process_is_reported(tmp_path):
    (tmp_path / "other.db").write_bytes(b"this is not a store, " * 100)
    with pytest.raises(RuntimeError, match=r"(?s)measure_open\(.*failed in its process: .*other\.db"):
        growth.run_in_new_process("measure_open", path=str(tmp_path / "other.db"), dim=8, seed=0)


# --- figures and tables


def test_the_crossover_is_between_two_sizes(frame):
    assert (
        growth.crossover_size(frame) is None and growth.crossover_size(frame.assign(approximate=True)) is None
    )
    assert growth.crossover_size(frame.assign(approximate=[False, True])) == pytest.approx(
        math.sqrt(100 * 300)
    )


@pytest.mark.parametrize("approximate", [[False, False], [False, True]])
def test_the_figure_has_four_panels_with_a_floor_each(frame, approximate):
    fig = growth.growth_figure(frame.assign(approximate=approximate))
    assert len(fig.axes) == 4 == len(growth.PANELS)
    for ax, (title, unit, *_) in zip(fig.axes, growth.PANELS):
        labels = [line.get_label() for line in ax.get_lines()]
        assert (ax.get_title(loc="left"), ax.get_ylabel(), ax.get_xscale(), ax.get_yscale()) == (
            title,
            unit,
            "log",
            "log",
        )
        assert labels[0].startswith("floor: ") and ax.get_lines()[0].get_xdata().tolist() == [100, 300]
        assert ([t.get_text() for t in ax.texts] == ["approximate search →"]) is approximate[1]


def test_the_goal_is_drawn_at_a_million_memories(frame):
    queries = growth.growth_figure(frame.assign(memories=[10**5, 10**6])).axes[1]
    assert [t.get_text() for t in queries.texts] == ["goal"] and queries.get_lines()[
        -1
    ].get_xydata().tolist() == [[1e6, 2.0]]
    assert queries.get_legend() is not None and "goal" not in [
        t.get_text() for t in queries.get_legend().get_texts()
    ]


def test_the_same_numbers_give_the_same_picture(frame):
    again = [figure_bytes(growth.growth_figure(frame), "svg") for _ in range(2)]
    assert again[0] == again[1]


def test_one_size_can_be_drawn(frame):
    assert len(growth.growth_figure(frame.head(1)).axes) == 4


def test_tables_convert_units(frame):
    queries, start, resources = (
        growth.query_table(frame),
        growth.start_table(frame),
        growth.resource_table(frame),
    )
    for table in (queries, start, resources):
        assert table["memories"].tolist() == [100, 300]
    assert queries["dense, ms"].tolist() == frame["dense_p50_ms"].tolist() and queries[
        "dense search"
    ].tolist() == ["exact", "exact"]
    assert resources["ingest, µs"].tolist() == pytest.approx((frame["ingest_ms"] * 1000).tolist())
    assert start["open and ask, s"].tolist() == pytest.approx((frame["cold_ms"] / 1000).tolist())


def test_goals_apply_to_a_million_memories(frame):
    small, large = (
        growth.growth_goals(frame),
        growth.growth_goals(
            frame.assign(
                memories=[10**5, 10**6], dense_p50_ms=[9.0, 1.0], recall=[1.0, 0.995], query_floor_ms=4.0
            )
        ),
    )
    assert {g.goal for g in small} == {"–"} and all("300 memories, exact" in g.note for g in small[:3])
    assert [(g.goal, g.reached) for g in large] == [
        ("< 2 ms", "yes"),
        ("< 0.5 ms", "no"),
        ("> 0.99", "yes"),
        ("–", "–"),
    ] and large[3].value == 0.25
