"""Figures: error bars, stable bytes, a palette that works in grey, labels that don't collide."""

import gc
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.eval.report import figures as f

SYSTEMS = ["unified", "hybrid", "adaptmr", "qarp"]
TYPES = ["factual_extraction", "temporal_reasoning", "multi_hop"]


def means():
    rows = [
        {"type": t, "system": s, "mean": 0.3 + 0.1 * i + 0.05 * j, "tokens": 100 * (i + 1)}
        for j, t in enumerate(TYPES)
        for i, s in enumerate(SYSTEMS)
    ]
    return pd.DataFrame(rows).assign(low=lambda d: d["mean"] - 0.04, high=lambda d: d["mean"] + 0.06)


def differences():
    rows = [("a", "x", 0.1, 0.05, 0.2), ("b", "y", -0.2, -0.3, -0.1), ("c", "z", 0.01, -0.1, 0.1)]
    return pd.DataFrame(rows, columns=["system", "type", "difference", "low", "high"])


def sweep():
    return pd.DataFrame(
        [
            {"k": k, "system": s, "mean": k / 10, "low": k / 10 - 0.1, "high": k / 10 + 0.1}
            for s in SYSTEMS
            for k in (1, 3, 5)
        ]
    )


def one_type():
    return means().query("type == 'multi_hop'")


FIGURES = {
    "grouped_bars": lambda: f.grouped_bars(means(), "type", title="t"),
    "heatmap": lambda: f.heatmap(means(), "type", "system"),
    "difference_plot": lambda: f.difference_plot(differences()),
    "lines": lambda: f.line_plot(sweep(), "k"),
    "pareto": lambda: f.pareto_plot(one_type(), "tokens"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_same_bytes_and_nothing_open(name, tmp_path):
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    first = [p.read_bytes() for p in f.save_figure(FIGURES[name](), tmp_path / "a", "x")]
    gc.collect()
    fig = FIGURES[name]()
    shown, meta = fig._repr_png_()  # being shown in a notebook changes nothing
    assert shown.startswith(b"\x89PNG") and meta["width"] > 300 and meta["alt"]
    again = [p.read_bytes() for p in f.save_figure(fig, tmp_path / "b", "x")]
    assert first == again
    assert plt.get_fignums() == [] and dict(plt.rcParams) == before
    assert [p.name for p in sorted((tmp_path / "a").iterdir())] == ["x.pdf", "x.png", "x.svg", "x.txt"]
    assert first[0].startswith(b"\x89PNG") and b"tEXt" not in first[0][:200]
    svg = first[1].decode()
    assert "dc:date" not in svg and "matplotlib.org" not in svg.lower()
    assert first[2].startswith(b"%PDF")
    assert not [w for w in (b"CreationDate", b"Producer", b"Creator", b"/Type3") if w in first[2]]
    assert len(first[3]) > 1


def test_every_bar_has_its_error_bar():
    from matplotlib.container import BarContainer, ErrorbarContainer

    data = means()
    ax = f.grouped_bars(data, "type").axes[0]
    bars = [r for c in ax.containers if isinstance(c, BarContainer) for r in c]
    spans = [
        seg for c in ax.containers if isinstance(c, ErrorbarContainer) for seg in c.lines[2][0].get_segments()
    ]
    assert len(bars) == len(spans) == len(data)
    want = sorted(zip(data["low"].round(9), data["high"].round(9)))
    assert sorted((round(float(s[0][1]), 9), round(float(s[1][1]), 9)) for s in spans) == want
    with pytest.raises(KeyError, match="low"):
        f.grouped_bars(data.drop(columns="low"), "type")


def test_missing_bars_are_marked():
    data = means()
    data.loc[0, ["mean", "low", "high"]] = math.nan
    ax = f.grouped_bars(data.drop(index=5), "type").axes[0]
    assert sum(t.get_text() == "–" for t in ax.texts) == 2
    texts = [t.get_text() for t in f.heatmap(data.drop(index=5), "type", "system").axes[0].texts]
    assert texts.count("–") == 2 and len(texts) == 12 and "0.35\n[0.31, 0.41]" in texts


def test_the_palette_is_distinct_in_grey():
    grey = sorted(f.lightness(c) for c in f.PALETTE)
    assert np.diff(grey).min() > 10 and grey[-1] < 85  # and the lightest still shows on white


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_pareto_front(points):
    cost, quality = zip(*points)
    front = f.pareto_front(cost, quality)

    def beats(a, b):
        return a[0] <= b[0] and a[1] >= b[1] and a != b

    assert front.tolist() == [not any(beats(o, p) for o in points) for p in points]
    assert front.any()


def test_difference_plot_shows_zero_and_what_leaves_it_out():
    ax = f.difference_plot(differences(), ["system", "type"]).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a · x", "b · y", "c · z"]
    assert any(list(line.get_xdata()) == [0, 0] for line in ax.lines)
    filled = [line.get_markerfacecolor() for line in ax.lines if line.get_marker() in ("o", "s")]
    assert [c != "white" for c in filled] == [True, True, False]
    assert len(f.difference_plot(differences().assign(difference=math.nan)).axes[0].texts) == 3


def test_text_that_the_font_lacks_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="English name"):
        f.grouped_bars(means(), "type", title="召回率")
    fig = FIGURES["lines"]()
    fig.axes[0].set_title("召回率")
    with pytest.raises(ValueError, match="English name"):
        f.save_figure(fig, tmp_path, "x")
    assert f.grouped_bars(means(), "type", title="café $5 – ΔF1 ≥ 0 $x$")  # dollars are not mathematics here
    for name in ("", "../x", "a/b", "é"):
        with pytest.raises(ValueError, match="figure name"):
            f.save_figure(FIGURES["lines"](), tmp_path, name)
