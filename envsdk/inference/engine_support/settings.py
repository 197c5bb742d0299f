"""Settings of an engine in front of a program that has arguments of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from envsdk.inference.settings import EngineSettings
from envsdk.settings.nearest import suggest


class PassThroughSettings(EngineSettings):
    """Takes the arguments of the program behind the engine too, by their names there, and no others."""

    model_config = ConfigDict(extra="allow")

    argument_names: ClassVar[frozenset[str]]
    """Arguments of the program."""
    set_by_engine: ClassVar[Mapping[str, str]]
    """Those of them that follow from the run's own keys, and what each is."""

    @model_validator(mode="after")
    def _only_known_arguments(self) -> Self:
        problems = [
            InitErrorDetails(
                type=PydanticCustomError("value_error", "{error}", {"error": problem}),
                loc=(name,),
                input=value,
            )
            for name, value in (self.model_extra or {}).items()
            if (problem := self.problem_of(name))
        ]
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def problem_of(self, name: str) -> str:
        """Why a key that is no field of this model is refused; empty for an argument that passes through."""
        if name in self.set_by_engine:
            return f"it cannot be set here: it {self.set_by_engine[name]}"
        if name in self.argument_names:
            return ""
        known = (self.argument_names | type(self).model_fields.keys()) - self.set_by_engine.keys()
        return f"unknown key; {suggest(name, sorted(known), known='known keys')}"
