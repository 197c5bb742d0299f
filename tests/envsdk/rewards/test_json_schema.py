"""JSON in responses, held against a schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.json_schema import find_json
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "string", "format": "date"}},
    "required": ["name"],
    "additionalProperties": False,
}


def load(**settings: Any) -> RewardFunction:
    return load_reward("envsdk.rewards.json_schema:JSONSchema", settings)


def score(response: str, row: dict[str, Any] | None = None, **settings: Any) -> Reward:
    if row is None:
        settings = {"json_schema": SCHEMA, **settings}
    return load(**settings).score(Sample(response=response, row=row or {}))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(values, st.sampled_from(["```json\n{}\n```", "Here:\n\n```\n{}\n```\nDone.", "{}", "\n {}\n"]))
def test_json_is_found_fenced_and_bare(value: Any, around: str) -> None:
    assert find_json(around.replace("{}", json.dumps(value))) == (value,)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(), values, min_size=1, max_size=3))
def test_an_object_is_found_inside_prose(value: dict[str, Any]) -> None:
    assert find_json(f"With braces { {1} } and [x], it is {json.dumps(value)}, I think.") == (value,)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("no answer", None),
        ('```json\n{"a": 1}\n```\nor rather\n```json\n{"a": 2}\n```', ({"a": 2},)),
        ('```json\n{"a": 1}\n```\n```python\nprint()\n```', ({"a": 1},)),
        ('{"a": 1} and {"a": 2}', ({"a": 2},)),
        ('{"a": NaN}', None),
        ('{"a": {"b": 1}', ({"b": 1},)),
        ("null", (None,)),
        ("9" * 5000, None),
        ("[" * 200_000, None),
        ("[" * 100_000 + "]" * 100_000, None),
        ('{"a":' * 100_000, None),
    ],
)
def test_the_last_json_counts(text: str, found: Any) -> None:
    assert find_json(text) == found


def test_json_that_keeps_to_the_schema_is_worth_1() -> None:
    reward = score('```json\n{"name": "Ada", "born": "1815-12-10"}\n```')
    assert (reward.value, reward.success, reward.parts) == (1, True, {"json": 1, "valid": 1})


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("no", "no JSON found"),
        ("{}", "$: 'name' is a required property"),
        ('{"name": 1}', "$.name: 1 is not of type 'string'"),
        ('{"name": "Ada", "born": "soon"}', "$.born: 'soon' is not a 'date'"),
        ('<think>{"name": "Ada"}', "no answer: <think> is not closed"),
        ('<think>{"name": "Ada"}</think>{"name": 2}', "$.name: 2 is not of type 'string'"),
    ],
)
def test_what_is_wrong_is_said(response: str, verdict: str) -> None:
    reward = score(response)
    assert (reward.value, reward.success, reward.verdict) == (0, False, verdict)


def test_a_long_wrong_value_does_not_fill_the_verdict() -> None:
    assert len(score(json.dumps({"name": ["x" * 1000]})).verdict) < 250


def test_json_that_breaks_the_schema_may_be_worth_something() -> None:
    assert score("{}", parses_value=0.2).value == 0.2
    assert score("no", parses_value=0.2).value == 0


def test_formats_need_not_be_checked() -> None:
    assert score('{"name": "Ada", "born": "soon"}', checks_formats=False).value == 1


def test_each_row_may_have_its_schema() -> None:
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        assert score('{"name": "Ada"}', {"json_schema": schema}).value == 1
        assert score("{}", {"spec": schema}, schema_column="spec").value == 0


def test_the_schema_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    assert load(schema_file=str(file)).score(Sample(response='{"name": "Ada"}')).value == 1
    with pytest.raises(ConfigurationError, match="schema_file"):
        load(schema_file=str(tmp_path / "missing.json"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "no field `json_schema`"),
        ({"json_schema": "{"}, "is no JSON"),
        ({"json_schema": "3"}, "a JSON schema is a section of keys, not int"),
        ({"json_schema": {"type": "text"}}, "the JSON schema is wrong at $.type"),
    ],
)
def test_a_row_without_a_schema_is_never_scored(row: dict[str, Any], message: str) -> None:
    reward = load()
    problem = reward.problem(row)
    assert problem is not None
    assert message in problem
    with pytest.raises(RewardError):
        reward.score(Sample(response="{}", row=row))


def test_a_reference_to_another_schema_is_not_fetched() -> None:
    with pytest.raises(RewardError, match="example"):
        score("{}", {"json_schema": {"$ref": "http://127.0.0.1:1/example.json"}})


def test_a_wrong_schema_in_the_settings_is_told_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"wrong at \$\.type"):
        load(json_schema={"type": "text"})
    with pytest.raises(ConfigurationError, match="not both"):
        load(json_schema={}, schema_file="x.json")


def test_a_recursive_schema_on_a_deep_value_is_wrong_not_an_error() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    deep = '{"a":' * 400 + "{}" + "}" * 400
    assert score(deep, {"json_schema": schema}).value in (0, 1)


def test_the_reference_is_a_ground_truth_that_holds_json() -> None:
    reward = load(json_schema=SCHEMA)
    assert reward.reference(Sample(response="", row={"ground_truth": '{"name": "Ada"}'})) is not None
    assert reward.reference(Sample(response="", row={"ground_truth": "Ada"})) is None
