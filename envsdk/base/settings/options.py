"""The options of a command as one pydantic model, shared by command line, YAML, Python and fingerprints.

    class InitOptions(Options):
        name: Annotated[str, Argument("NAME")]
        folder: Annotated[Path | None, Option("--dir", "-d", metavar="DIR")] = None

    InitOptions.of(name="my_env")  # from Python; `envsdk.base.display.model_command` makes the command line

A field's docstring is its help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import model_in, value_problem
from envsdk.contracts.failures import ConfigurationError


class Option:
    """How a command line spells a field."""

    def __init__(
        self, *flags: str, metavar: str | None = None, reads: Callable[[Any], Any] | None = None
    ) -> None:
        """
        Args:
            flags: `--NAME` after the field's name when empty.
            reads: Makes the field's value from what the command line takes: the type of its argument.
        """
        self.flags, self.metavar, self.reads = flags, metavar, reads


@dataclass(frozen=True, slots=True)
class Argument:
    """A field that a command line takes by its position."""

    metavar: str


class Options(StrictSettings):
    """Base of the options of a command. Immutable and picklable; a field may hold further options."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=True)

    shown: ClassVar[tuple[str, ...]] = ()
    """Fields that the command line shows, in this order; all of them when empty."""

    @field_validator("*")
    @classmethod
    def _is_a_number(cls, value: Any) -> Any:
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("must be a number, not nan")
        return value

    @classmethod
    def of(cls, **values: Any) -> Self:
        """The options with these values; ConfigurationError names each wrong one by its option."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(_problems(cls, error))) from error


def spelled(name: str, field: FieldInfo) -> Option | Argument:
    """How a command line spells the field `name`."""
    for each in field.metadata:
        if isinstance(each, Argument) or (isinstance(each, Option) and each.flags):
            return each
    found = next((each for each in field.metadata if isinstance(each, Option)), Option())
    return Option(f"--{name.replace('_', '-')}", metavar=found.metavar, reads=found.reads)


def _problems(model: type[Options], error: ValidationError) -> Iterator[str]:
    for details in error.errors(include_url=False):
        owner, option = model, ""
        for part in details["loc"]:
            field = owner.model_fields.get(str(part))
            if field is None:
                option = option or f"--{str(part).replace('_', '-')}"
                break
            nested = model_in(field.annotation)
            if nested is None or not issubclass(nested, Options):
                spelling = spelled(str(part), field)
                option = spelling.metavar if isinstance(spelling, Argument) else spelling.flags[0]
                break
            owner = nested
        if details["type"] != "value_error":
            yield f"{option}: {value_problem(details)}"
        elif option:
            yield f"{option}: {details['ctx']['error']}"
        else:
            # A rule for several fields begins with the name of one.
            yield f"--{str(details['ctx']['error']).replace('_', '-')}"


def at_least(least: int) -> AfterValidator:
    """Checks a number without showing its range in the help."""

    def check(number: float) -> float:
        if not number >= least:
            raise ValueError(f"must be at least {least}, not {number:g}")
        return number

    return AfterValidator(check)


Count = Annotated[int, at_least(1)]


def split_names(names: list[str]) -> list[str]:
    """`["a,b", "c"]` as `["a", "b", "c"]`."""
    split = [name.strip() for entry in names for name in entry.split(",")]
    return list(dict.fromkeys(filter(None, split)))
