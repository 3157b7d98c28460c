"""Test plans: any JSON is a plan or an error that names a field, and plans survive JSON."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from datetime import UTC, timedelta, timezone

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaptmr.reader import ANSWER_STYLES
from adaptmr.retrieval.plan import (
    FUSIONS,
    GATES,
    LATEST_RULES,
    SELECTIONS,
    WEIGHT_SETS,
    WINDOW_RULES,
    WINDOW_TIMES,
    PlanError,
    RetrievalPlan,
    plan_schema,
)
from adaptmr.retrieval.signals import SIGNALS
from adaptmr.types import QueryType

FIELDS = [f.name for f in fields(RetrievalPlan)]
WEIGHABLE = [*WEIGHT_SETS, *SIGNALS]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from([10**400, -1, 2**63, 1e308, -0.0, "calibrated", "hard"])
)
JSON = st.recursive(
    SCALARS,
    lambda c: (
        st.lists(c, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(WEIGHABLE), c, max_size=3)
    ),
    max_leaves=6,
)


def named(error: PlanError, *names: str) -> bool:
    return bool(re.search(rf"\b(?:{'|'.join(map(re.escape, names))})\b", str(error)))


# --- anything in: a plan, or an error with a name


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=4))
@example({"queries": 5})
@example({"queries": None})
@example({"queries": {"what": 1}})
@example({"k": 10**400})
@example({"weights": {"dense": 10**400}})
@example({"relevance_low": 10**400})
@example({"gate": []})
@example({"gate": {}})
@example({"time_window": {"start": 1, "end": 2}})
@example({"time_window": "ab"})
@example({"time_window": [5, 6]})
@settings(max_examples=100, deadline=None)
def test_any_object_is_a_plan_or_an_error_that_names_a_field(values):
    try:
        plan = RetrievalPlan.from_json(values)
    except PlanError as e:
        assert named(e, *values), e
    else:
        assert RetrievalPlan.from_json(plan.to_json()) == plan


NAN, INF = float("nan"), float("inf")
BAD = {
    "reranker": ("", 5, ["cross-encoder"]),
    "rerank_depth": (0, 1.5, None),
    "queries": ("one string", ["fine", 3], 7, None),
    "multi_step": (1, "true"),
    "interim": (1, None),
    "merge": ("max", None),
    "check": ("maybe",),
    "follow": ("hunch", ["gap"]),
    "without": ("entity", ["entities"], [{}], [None], 5),
    "pool": (0, 1_000_001, 1.5, True, "50", None),
    "weights": (
        *(["dense"], None, {"similarity": 1}, {"hybrid": -1_000_001.0}, {"hybrid": "1"}),
        *({"dense": value} for value in ("1", NAN, INF, True, None, 1_000_001)),
    ),
    "fusion": ("max", None, ["sum"], "RRF"),
    "layers": ("key", [], [None]),
    "owners": (5, {"maya": 1}),
    "tags": ([["home"]],),
    "time_window": (
        *("2024", ["2024-01-01"], ["soon", "later"], [None, None], 7),
        *(["2024-02-01", "2024-01-01"], ["2024-01-01", "2024-01-01"]),
    ),
    "window_rule": ("strict", None),
    "window_by": ("heard", None),
    "window_grace": (-1, 0.5),
    "entity_boost": (1.5,),
    "select": ("best",),
    "relate": (1,),
    "collect": ("yes",),
    "answer_as": ("poem", None),
    "temporal_order": ("yes",),
    "prefer_latest": (0, None),
    "latest_similarity": (1.01, -0.1, NAN, True),
    "latest_rule": ("newest",),
    "gate": ("open", ["none"]),
    "relevance_threshold": (2, "0.5"),
    "relevance_low": (-1, 0.9),
    "max_rounds": (0, 21),
    "confidence_threshold": (1.5,),
    "expand": (-1, 21),
    "refine": ("no",),
    "rerank_tokens": (-5,),
    "passages": (-1, 1.5),
    "k": (-1, 2.5, INF, False),
    "token_budget": (0, 1.5, "100"),
    "hint": (None, 5),
    "planner": (None,),
    "fallback": (3,),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_bad_value_is_refused_by_its_name(name):
    for value in BAD[name]:
        with pytest.raises(PlanError) as e:
            RetrievalPlan(**{name: value})
        assert named(e.value, name) and len(str(e.value)) < 500, value


# --- the way to JSON and back

TIMES = (
    st.datetimes(timezones=st.just(UTC) | st.integers(-14, 14).map(lambda h: timezone(timedelta(hours=h))))
    | st.datetimes()
)
UNIT = st.floats(0, 1)
NAMES = st.none() | st.lists(st.text(max_size=6), min_size=1, max_size=3)


@st.composite
def plans(draw):
    low, high = sorted([draw(UNIT), draw(UNIT)])
    window = draw(st.none() | st.tuples(TIMES, TIMES))
    if window is not None:
        a, b = (t if t.tzinfo else t.replace(tzinfo=UTC) for t in window)
        window = None if a == b else (min(a, b), max(a, b))
    return RetrievalPlan(
        queries=tuple(draw(st.lists(st.text(max_size=10), max_size=3))),
        multi_step=draw(st.booleans()),
        pool=draw(st.integers(1, 10**6)),
        weights=draw(st.dictionaries(st.sampled_from(WEIGHABLE), st.floats(-100, 100), max_size=4)),
        fusion=draw(st.sampled_from(FUSIONS)),
        reranker=draw(st.sampled_from([None, "mine", "endpoint:m"])),
        rerank_depth=draw(st.integers(1, 1000)),
        layers=draw(NAMES),
        owners=draw(NAMES),
        tags=draw(NAMES),
        time_window=window,
        window_rule=draw(st.sampled_from(WINDOW_RULES)),
        window_by=draw(st.sampled_from(WINDOW_TIMES)),
        window_grace=draw(st.integers(0, 3660)),
        entity_boost=draw(UNIT),
        select=draw(st.sampled_from(SELECTIONS)),
        relate=draw(st.booleans()),
        collect=draw(st.booleans()),
        answer_as=draw(st.sampled_from(ANSWER_STYLES)),
        temporal_order=draw(st.booleans()),
        prefer_latest=draw(st.booleans()),
        latest_similarity=draw(UNIT),
        latest_rule=draw(st.sampled_from(LATEST_RULES)),
        gate=draw(st.sampled_from(GATES)),
        relevance_threshold=high,
        relevance_low=low,
        max_rounds=draw(st.integers(1, 20)),
        confidence_threshold=draw(UNIT),
        expand=draw(st.integers(0, 20)),
        refine=draw(st.booleans()),
        rerank_tokens=draw(st.integers(0, 10**6)),
        passages=draw(st.integers(0, 1000)),
        k=draw(st.integers(0, 10**6)),
        token_budget=draw(st.none() | st.integers(1, 10**7)),
        hint=draw(st.text(max_size=10)),
        planner=draw(st.text(max_size=6)),
        fallback=draw(st.none() | st.text(max_size=6)),
    )


@given(plans())
@settings(max_examples=50, deadline=None)
def test_round_trip(plan):
    again = RetrievalPlan.from_json(plan.to_json())
    assert again == plan and hash(again) == hash(plan) and again.to_json() == plan.to_json()
    assert RetrievalPlan.from_json(json.loads(plan.to_json())) == plan
    assert replace(plan) == plan and {plan: 1}[again] == 1
    assert plan._repr_html_().startswith("<table>")


def test_weights_may_name_fitted_sets_and_signals():
    assert set(WEIGHT_SETS) == {"hybrid", *map(str, QueryType)}
    assert not set(WEIGHT_SETS) & set(SIGNALS), "a name is a signal or a set, never both"
    plan = RetrievalPlan(weights={"time": 1.5, "multi_hop": 1, "hybrid": 0.5})
    assert dict(plan.weights) == {"hybrid": 0.5, "multi_hop": 1.0, "time": 1.5}
    assert RetrievalPlan.from_json(plan.to_json()) == plan
    assert len({RetrievalPlan(weights={name: 1.0}) for name in WEIGHABLE}) == len(WEIGHABLE)
    with pytest.raises(PlanError, match=r"unknown signal 'hybird'.*hybrid.*multi_hop.*dense.*sentence"):
        RetrievalPlan(weights={"hybird": 1})


def test_equal_plans_have_equal_hashes():
    utc = RetrievalPlan(time_window=("2024-01-01T00:00+00:00", "2024-01-02T00:00+00:00"))
    east = RetrievalPlan(time_window=("2024-01-01T08:00+08:00", "2024-01-02T08:00+08:00"))
    assert utc == east and hash(utc) == hash(east)
    zero, minus = RetrievalPlan(relevance_threshold=0.0), RetrievalPlan(relevance_threshold=-0.0)
    assert zero == minus and hash(zero) == hash(minus)


# --- the schema is derived from the type


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_what_fits_the_schema_is_a_plan(data):
    of = {
        "boolean": st.booleans(),
        "number": UNIT,
        "string": st.text(max_size=20),
        "array": st.lists(st.text(max_size=20), max_size=4),
    }
    schema = plan_schema()
    value = {name: data.draw(of[rule["type"]]) for name, rule in schema["properties"].items()}
    jsonschema.validate(value, schema)
    assert RetrievalPlan.from_json(json.dumps(value)).temporal_order is value["temporal_order"]
