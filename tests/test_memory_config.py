"""The parameters of the layered memory: names, YAML, and errors that say what to do."""

from __future__ import annotations

from dataclasses import fields

import pytest

from adaptmr.memory import config as module
from adaptmr.memory.config import TASK_NAMES, MemoryConfig

DOCUMENT = """
    STM_CAPACITY MTM_CAPACITY LTM_CAPACITY KTM_CAPACITY KEY_PROMOTION_HIT_RATE KEY_PROMOTION_MIN_HITS
    KEY_PROMOTION_HEAT TOP_K_KEY TOP_K_LTM TOP_K_MTM_PAGES ENABLE_SOFT_DELETE ENABLE_AUTO_KEY_PROMOTION
""".split()


def test_every_name_of_the_document_is_there_with_its_start_value():
    names = {f.name for f in fields(MemoryConfig)}
    assert {n.lower() for n in DOCUMENT} <= names
    c = MemoryConfig()
    assert (c.key_promotion_hit_rate, c.key_promotion_min_hits, c.key_promotion_heat) == (0.35, 8, 6.0)
    assert c.source_weights == {"key": 1.2, "long_term": 0.9, "mid_term": 1.0}
    assert c.enable_soft_delete and c.enable_auto_key_promotion


def test_every_numeric_parameter_has_a_range():
    numeric = {f.name for f in fields(MemoryConfig) if f.type in ("int", "float")}
    assert set(module._RANGES) == numeric | set(module._TABLES)


@pytest.mark.parametrize("name", DOCUMENT)
def test_upper_and_lower_case_names_mean_the_same(name):
    value = False if name.startswith("ENABLE") else 0.5 if name.endswith("RATE") else 7
    config = MemoryConfig.from_mapping({name: value})
    assert getattr(config, name.lower()) == value
    assert config == MemoryConfig.from_mapping({name.lower(): value})


def test_yaml(tmp_path):
    path = tmp_path / "memory.yaml"
    path.write_text("STM_CAPACITY: 4\nsection_tokens: {key: 99}\nrule_only: [keywords]\n")
    config = MemoryConfig.from_yaml(path)
    assert (config.stm_capacity, config.section_tokens["key"], config.rule_only) == (4, 99, ("keywords",))
    assert config.section_tokens["mid_term"] == MemoryConfig().section_tokens["mid_term"]
    path.write_text("")
    assert MemoryConfig.from_yaml(path) == MemoryConfig()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("stm_capacty: 4", "unknown key 'stm_capacty'; there are break_hours"),
        ("stm_capacity: 4\nSTM_CAPACITY: 5", "'stm_capacity' is given twice"),
        ("- 4", "holds a list"),
        ("a: [", "not YAML"),
        ("stm_capacity: 0", "stm_capacity is 0; give a whole number from 1 to 1000"),
        ("stm_capacity: 2.5", "stm_capacity is 2.5; give a whole number"),
        ("stm_capacity: true", "stm_capacity is True"),
        ("key_promotion_hit_rate: 35", "key_promotion_hit_rate is 35; give a number from 0 to 1"),
        ("key_promotion_hit_rate: .nan", "key_promotion_hit_rate is nan"),
        ("break_hours: -1", "break_hours is -1; give a number of 0 or more"),
        ("enable_compression: 1", "enable_compression is 1; give true or false"),
        ("source_weights: {KTM: 1}", "give a table with some of the keys key, long_term, mid_term"),
        ("source_weights: {key: high}", "source_weights[key] is 'high'; give a number from 0 to 10"),
        ("score_weights: 1", "score_weights is 1; give a table"),
        ("rule_only: [summaries]", "give a list of some of page_summary, keywords"),
        ("rule_only: [[profile]]", "rule_only is [['profile']]; give a list of some of"),
        ("tail_pages: 12", "tail_pages is 12; give fewer than max_topic_pages (12)"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_the_remedy(tmp_path, text, wanted):
    path = tmp_path / "memory.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as e:
        MemoryConfig.from_yaml(path)
    assert wanted in str(e.value) and str(path) in str(e.value)


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        MemoryConfig().stm_capacity = 3  # type: ignore[misc]
    assert MemoryConfig(rule_only=TASK_NAMES).rule_only == TASK_NAMES
