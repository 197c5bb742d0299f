from __future__ import annotations

from dataclasses import fields

import pytest

from envsdk.config import GeneratingArgs
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.sampling import SamplingRules, sampling_params
from envsdk.engines.endpoint.wire import SamplingFields
from envsdk.engines.sampling import SHAPE, SamplingParams, SamplingShape, out_of_range, recorded

DEFAULTS = {field.name: field.default for field in fields(SamplingShape)}
ELSEWHERE = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.05}


def replied_with(rules: SamplingRules, **asked: object) -> SamplingParams:
    return sampling_params(
        SamplingFields.model_validate({"model": "m", **asked}),
        rules,
        num_prompt_tokens=1,
        sequence_length=8,
        stop_token_ids=(),
        default_max_tokens=4,
        number=0,
        choice=0,
    )


def test_the_yaml_and_requests_know_every_parameter_of_the_distribution() -> None:
    assert ELSEWHERE.keys() == set(SHAPE)
    yaml = GeneratingArgs.model_fields
    assert {name: yaml[name].default for name in SHAPE} == DEFAULTS
    assert yaml.keys() == {"max_new_tokens", *SHAPE}
    assert set(SHAPE) <= SamplingFields.model_fields.keys()


def test_the_yaml_gives_the_parameters_that_engines_get() -> None:
    args = GeneratingArgs(max_new_tokens=9, **ELSEWHERE)
    assert args.sampling == SamplingParams(max_new_tokens=9, **ELSEWHERE)
    assert SamplingParams(max_new_tokens=9, **ELSEWHERE).shape() == ELSEWHERE


@pytest.mark.parametrize("name", SHAPE)
def test_a_request_changes_what_a_session_leaves_open_and_nothing_that_it_fixes(name: str) -> None:
    asked = {name: ELSEWHERE[name]}
    assert replied_with(SamplingRules(), **asked).shape() == DEFAULTS | asked
    assert replied_with(SamplingRules(**asked)).shape() == DEFAULTS | asked
    assert replied_with(SamplingRules(is_fixed=True, **asked), **asked).shape() == DEFAULTS | asked
    with pytest.raises(ApiError, match=f"is {asked[name]:g}, but this session"):
        replied_with(SamplingRules(is_fixed=True), **asked)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": 1e-30}, "temperature must be 0, which is greedy"),
        ({"top_p": 0.0}, "top_p must be greater than 0"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"min_p": 1.5, "top_p": 2.0}, "top_p must be at most 1, not 2.0; min_p must be at most 1"),
    ],
)
def test_values_that_no_engine_can_sample_with_are_named(values: dict[str, float], says: str) -> None:
    assert out_of_range(SamplingParams(max_new_tokens=1, **values)).startswith(says)
    assert not out_of_range(SamplingParams(max_new_tokens=1))


def test_files_record_every_parameter() -> None:
    shown = recorded(SamplingParams(max_new_tokens=4, min_p=0.1))
    assert shown.keys() == {"max_new_tokens", *SHAPE}
    assert (shown["max_new_tokens"], shown["min_p"], shown["top_p"]) == (4, 0.1, 1.0)
