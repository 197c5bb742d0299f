"""Settings of an engine whose program has arguments of its own."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import ClassVar, Self

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from envsdk.engines.settings import EngineSettings

ROUTED_EXPERTS = "enable_return_routed_experts"
"""The argument by which vLLM and SGLang tell the experts that a mixture chose."""
_MISSPELLED = 0.85
"""How similar a name must be to a known one, as `difflib` measures it, to be a misspelling of it."""


class PassThroughSettings(EngineSettings):
    """Takes the arguments of the program behind the engine too, by their names there.

    The program refuses unknown ones when it starts. A name that differs little from a known one is a
    misspelling, and is refused before.
    """

    model_config = ConfigDict(extra="allow")

    common_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments of the program whose misspellings are found."""
    set_by_engine: ClassVar[Mapping[str, str]]
    """Arguments of the program that follow from the run's own keys, and what each is."""

    @property
    def may_tell_experts(self) -> bool:
        return bool((self.model_extra or {}).get(ROUTED_EXPERTS))

    @model_validator(mode="after")
    def _no_misspelled_arguments(self) -> Self:
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
        known = (self.common_arguments | type(self).model_fields.keys()) - self.set_by_engine.keys()
        if name in known or not (meant := get_close_matches(name, known, n=1, cutoff=_MISSPELLED)):
            return ""
        return f"unknown key; did you mean `{meant[0]}`?"
