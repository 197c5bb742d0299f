"""A constructor made of a model of its keywords."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import Field

from envsdk.envs.arguments import EnvArguments, keywords_of
from envsdk.testing.strategies import choices_of


class Shared(EnvArguments):
    quiet: bool = False


class Arguments(Shared):
    size: int = Field(4, ge=2)
    kind: Literal["plain", "odd"] = "plain"
    speed: float = Field(1.0, gt=0)


class Env:
    @keywords_of(Arguments)
    def __init__(self, args: Arguments) -> None:
        self.args = args


class Other(Env):
    def __init__(self, *, color: str) -> None:
        super().__init__(size=3)


def test_the_constructor_shows_the_fields_as_keywords_its_own_first() -> None:
    parameters = inspect.signature(Env).parameters
    assert list(parameters) == ["size", "kind", "speed", "quiet"]
    assert parameters["size"].default == 4
    assert parameters["size"].annotation is int
    assert choices_of(Env) == {"kind": ("plain", "odd"), "quiet": (False, True)}


def test_a_class_that_derives_from_it_may_take_other_keywords() -> None:
    assert list(inspect.signature(Other).parameters) == ["color"]
    assert Other(color="red").args.size == 3


def test_a_number_of_numpy_is_a_number() -> None:
    assert Env(size=np.int64(5), speed=np.float64(0.5)).args == Arguments(size=5, speed=0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 1}, "^size: must be at least 2, not 1$"),
        ({"size": "4"}, "^size: must be a whole number, not '4'; leave the quotes out$"),
        ({"speed": 0}, "^speed: must be above 0, not 0$"),
        ({"kind": "even"}, "^kind: must be one of plain, odd, not 'even'$"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Env(**given)


def test_an_unknown_keyword_is_refused_as_python_does() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'"):
        Env(sise=4)
