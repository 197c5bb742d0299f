"""Strict parsing of an engine's `strategy_config`."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from envsdk.failures import ConfigurationError


class StrictSettings(BaseModel):
    """Base of every engine's settings: typed, immutable, and deaf to no key."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    takes_new_weights: ClassVar[bool] = True
    """Whether the engine can be trained with: its ability `weight_updates`, known without importing it."""

    def identity(self) -> dict[str, Any]:
        """What of these settings decides the replies to a given prompt and seed, as JSON."""
        return {}


SettingsT = TypeVar("SettingsT", bound=StrictSettings)


def parse_settings(settings: type[SettingsT], values: Mapping[str, Any], *, engine: str) -> SettingsT:
    """`values` as `settings`, or a ConfigurationError that names every bad key.

    An unknown key is answered with the nearest known one.
    """
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        known = sorted(set(_field_names(settings)))
        lines: list[str] = []
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                key = str(problem["loc"][-1])
                nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean `{nearest[0]}`?" if nearest else f"known keys: {', '.join(known)}"
                lines.append(f"unknown key `{path}`; {hint}")
            else:
                lines.append(f"`{path}`: {problem['msg']} (got {problem['input']!r})")
        raise ConfigurationError(f"strategy_config of engine `{engine}`: " + "; ".join(lines)) from None


def _field_names(settings: type[BaseModel]) -> Iterator[str]:
    for name, info in settings.model_fields.items():
        yield name
        for nested in _models_in(info.annotation):
            yield from _field_names(nested)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)
