"""The keywords of an environment's constructor as one pydantic model: typed, checked and described once.

class Arguments(EnvArguments):
    size: int = Field(4, ge=2)
    \"""Side of the map.\"""

class Env(TextEnv):
    @keywords_of(Arguments)
    def __init__(self, arguments: Arguments) -> None: ...

Env(size=1)     ValueError: size: must be at least 2, not 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar

import numpy as np
from pydantic import ConfigDict, ValidationError

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import value_problem

ArgumentsT = TypeVar("ArgumentsT", bound="EnvArguments")
Init = Callable[[Any, ArgumentsT], None]


class EnvArguments(StrictSettings):
    """Base of such a model. A text is no number, and a number no text."""

    model_config = ConfigDict(strict=True, allow_inf_nan=True)


def keywords_of(
    model: type[ArgumentsT],
) -> Callable[[Callable[[Any, ArgumentsT], None]], Callable[..., None]]:
    """Decorates an `__init__` that takes `model`: callers give its fields as keywords, inherited ones last.

    The constructor raises TypeError for an unknown keyword, and ValueError for a value that does not fit.
    """
    by_class = [name for each in model.__mro__ for name in vars(each).get("__annotations__", ())]
    fields = {
        model.model_fields[name].alias or name: model.model_fields[name]
        for name in by_class
        if name in model.model_fields
    }
    shown = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
        for name, field in fields.items()
    ]
    signature = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *shown])

    def decorate(init: Init[ArgumentsT]) -> Callable[..., None]:
        @wraps(init)
        def construct(*given: Any, **keywords: Any) -> None:
            signature.bind(*given, **keywords)
            (env,) = given
            init(env, _checked(model, keywords))

        construct.__annotations__ = {name: field.annotation for name, field in fields.items()}
        for name, value in (("__signature__", signature), ("wrong_keywords", partial(_wrong, model))):
            setattr(construct, name, value)  # no attributes that type checkers know
        return construct

    return decorate


def _checked(model: type[ArgumentsT], keywords: Mapping[str, Any]) -> ArgumentsT:
    try:
        return _made(model, keywords)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        raise ValueError(f"{details['loc'][0]}: {_problem(details)}") from None


def _wrong(model: type[EnvArguments], keywords: Mapping[str, Any]) -> dict[str, str]:
    """Problems of the given values by keyword, without making the environment."""
    try:
        _made(model, keywords)
    except ValidationError as error:
        # Of several problems of one value the first, as the constructor says it.
        found = {str(each["loc"][0]): _problem(each) for each in reversed(error.errors(include_url=False))}
        return {name: problem for name, problem in found.items() if name in keywords}
    return {}


def _made(model: type[ArgumentsT], keywords: Mapping[str, Any]) -> ArgumentsT:
    return model.model_validate(
        {name: value.item() if isinstance(value, np.generic) else value for name, value in keywords.items()}
    )


def _problem(details: Any) -> str:
    if details["type"] == "literal_error":
        known = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"must be one of {known}, not {details['input']!r}"
    return value_problem(details).replace("greater than", "above")
