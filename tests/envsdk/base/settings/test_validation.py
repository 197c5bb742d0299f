"""Wrong values of keys that may be of several types: one problem, at the key as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError


class Even(StrictSettings):
    kind: Literal["even"] = "even"
    rate: float


class Late(StrictSettings):
    kind: Literal["late"]
    delay_s: float


class Settings(StrictSettings):
    modules: Literal["all-linear"] | list[str] = "all-linear"
    when: Literal["pause", "overlap"] | Even = "pause"
    reply: list[int] | list[list[int]] | Literal["echo"] = "echo"
    spread: Annotated[Even | Late, Field(discriminator="kind")] = Even(rate=1.0)
    reward: float | dict[str, float] | None = None
    tags: Sequence[str] = ()


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        ({"modules": "q_proj"}, ["modules: must be 'all-linear' or a list, such as [q_proj], not 'q_proj'"]),
        ({"modules": ["q", 3]}, ["modules[1]: must be text, not 3; put it in quotes"]),
        ({"modules": {"a": 1}}, ["modules: must be 'all-linear' or a list, such as [a, b], not a section"]),
        ({"when": "stop"}, ["when: must be 'pause' or 'overlap' or a section of keys, not 'stop'"]),
        ({"when": {"rat": 1}}, ["when.rate: is required", "when.rat: unknown key; did you mean `rate`?"]),
        ({"reply": ["a"]}, ["reply[0]: must be a whole number or a list, such as [a], not 'a'"]),
        ({"reply": [["a"]]}, ["reply[0][0]: must be a whole number, not 'a'"]),
        ({"spread": {"kind": "evn"}}, ["spread.kind: must be 'even' or 'late', not 'evn'"]),
        ({"spread": {"rate": 1.0}}, ["spread.kind: is required and missing"]),
        ({"spread": 3}, ["spread: must be a section of keys, not 3"]),
        ({"spread": {"kind": "late", "delay": 1}},
         ["spread.delay_s: is required", "spread.delay: unknown key; did you mean `delay_s`?"]),
        ({"reward": {"a": "x"}}, ["reward.a: must be a number, not 'x'"]),
        ({"tags": "Lake"}, ["tags: must be a list, such as [Lake], not 'Lake'"]),
        ({"tags": "Lake, Box"}, ["tags: must be a list, such as [a, b], not 'Lake, Box'"]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_problem_of_its_key(values: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        validated(Settings, values, "file")
    first, *lines = str(error.value).splitlines()
    assert first == f"file: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    for line, said in zip(lines, problems, strict=True):
        assert line.startswith(f"  {said}")
