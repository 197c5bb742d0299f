"""The reward `json_schema`: whether the JSON of a response keeps to a schema.

The JSON is the last fenced block that parses, else the whole answer, else the last object or list in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from jsonschema import FormatChecker, SchemaError, ValidationError
from jsonschema.validators import validator_for
from pydantic import Field, model_validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.answer_text import after_thinking, is_thinking
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample

_MOST_TRIED = 1000
"""Brackets that may turn out to open no JSON, so that time stays linear in the text."""
_FENCE = re.compile(r"^[ \t]*```[^\n`]*$", re.MULTILINE)


class JSONSchemaArgs(StrictSettings):
    """Settings of the reward `json_schema`."""

    json_schema: dict[str, Any] | None = None
    """The schema of all responses; absent: each row has its own."""
    schema_file: Path | None = None
    """A JSON file with the schema of all responses, instead of `json_schema`."""
    schema_column: str = "json_schema"
    """The row's field that holds its schema, as JSON text or as a section."""
    parses_value: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The value of JSON that does not keep to the schema."""
    checks_formats: bool = True
    """Whether `format: date` and the like are checked."""

    @model_validator(mode="after")
    def _has_one_schema(self) -> Self:
        if self.json_schema is not None and self.schema_file is not None:
            raise ValueError("give json_schema or schema_file, not both")
        return self


class JSONSchema(RewardFunction):
    """See the module's text."""

    Args = JSONSchemaArgs

    def __init__(self, args: JSONSchemaArgs) -> None:
        """ConfigurationError when the schema of the settings is none."""
        self._args = args
        self._schema: Any = args.json_schema
        if args.schema_file is not None:
            try:
                self._schema = json.loads(args.schema_file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"reward `json_schema`: schema_file: {error}") from error
        if self._schema is not None and (problem := _problem_of(self._schema)):
            raise ConfigurationError(f"reward `json_schema`: {problem}")

    def score(self, sample: Sample) -> Reward:
        try:
            schema = self._schema_of(sample.row)
        except ValueError as error:
            raise RewardError(f"reward `json_schema`: {error}") from error
        if is_thinking(sample.response):
            return self._wrong("no answer: <think> is not closed", parses=False)
        found = find_json(after_thinking(sample.response))
        if found is None:
            return self._wrong("no JSON found", parses=False)
        # Without a registry of its own it would ask the network for references.
        validator = validator_for(schema)(
            schema, registry=Registry(), format_checker=FormatChecker() if self._args.checks_formats else None
        )
        try:
            broken = next(validator.iter_errors(found[0]), None)
        except Unresolvable as unresolvable:
            raise RewardError(f"reward `json_schema`: the schema has {unresolvable}") from unresolvable
        except RecursionError:
            return self._wrong("nested too deeply", parses=True)
        if broken is not None:
            return self._wrong(_in_words(broken), parses=True)
        return Reward(
            value=1.0, correct=True, verdict="keeps to the schema", parts={"json": 1.0, "valid": 1.0}
        )

    def _wrong(self, verdict: str, *, parses: bool) -> Reward:
        value = self._args.parses_value if parses else 0.0
        return Reward(
            value=value, correct=False, verdict=verdict, parts={"json": float(parses), "valid": 0.0}
        )

    def _schema_of(self, row: Mapping[str, Any]) -> Any:
        """ValueError where the row has none."""
        if self._schema is not None:
            return self._schema
        schema = row.get(self._args.schema_column)
        if schema is None or schema == "":
            raise ValueError(f"the row has no field `{self._args.schema_column}` and the settings no schema")
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise ValueError(f"`{self._args.schema_column}` is no JSON: {error}") from error
        if problem := _problem_of(schema):
            raise ValueError(problem)
        return schema

    def reference(self, sample: Sample) -> str | None:
        """The ground truth where it holds JSON."""
        truth = str(sample.row.get("ground_truth", ""))
        return truth if find_json(truth) is not None else None

    def problem(self, row: Mapping[str, Any]) -> str | None:
        try:
            self._schema_of(row)
        except ValueError as error:
            return str(error)
        return None


def _problem_of(schema: Any) -> str | None:
    if not isinstance(schema, dict | bool):
        return f"a JSON schema is a section of keys, not {type(schema).__name__}"
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"the JSON schema is wrong at {error.json_path}: {error.message}"
    return None


def _in_words(error: ValidationError) -> str:
    message = " ".join(error.message.split())
    # Messages hold the value that is wrong, which may be long; what is asked of it stands at the end.
    short = message if len(message) <= 200 else f"{message[:100]} ... {message[-95:]}"
    return f"{error.json_path}: {short}"


def find_json(text: str) -> tuple[Any] | None:
    """The JSON value of a response, in a tuple because it may be None; None where there is none."""
    for candidate in (*reversed(list(_fenced(text))), text):
        try:
            return (_DECODER.decode(candidate.strip()),)
        except (ValueError, RecursionError):
            continue
    return _last_bare(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _fenced(text: str) -> Iterator[str]:
    """What stands between each fence and the next."""
    fences = list(_FENCE.finditer(text))
    for opening, closing in zip(fences[::2], fences[1::2], strict=False):
        yield text[opening.end() : closing.start()]


def _last_bare(text: str) -> tuple[Any] | None:
    found: tuple[Any] | None = None
    position = num_failed = 0
    while num_failed < _MOST_TRIED and (start := re.compile(r"[{\[]").search(text, position)):
        try:
            value, position = _DECODER.raw_decode(text, start.start())
            found = (value,)
        except (ValueError, RecursionError):
            num_failed += 1
            position = start.end()
    return found
