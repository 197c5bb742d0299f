"""Tools that a policy may call: a name, a JSON schema of the arguments, and what carries a call out.

    def weather(city: Literal["Rome", "Oslo"], days: int = 1) -> str:
        '''The forecast for a city.'''

    weather_tool = tool(weather)
    weather_tool.parameters     # {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"] ...

The schema of a Python function is read off its annotations, by pydantic.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from envsdk.base.plugins import find_modules_here, load_object
from envsdk.contracts.failures import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

JsonSchema = Mapping[str, Any]


class ToolError(Exception):
    """Raised by a tool whose call cannot be carried out: the policy gets its text as it stands."""


class ToolUnavailable(Exception):
    """Raised by a tool that is broken, not called wrongly: the episode fails and is masked, never scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function that a policy may call."""

    name: str
    """Letters, digits, `_`, `.` and `-`; at most 64."""
    description: str
    """For the policy."""
    parameters: JsonSchema
    """JSON schema of an object: the arguments."""
    call: Callable[[dict[str, Any]], Any]
    """Carries out a call whose arguments agree with the schema; returns text, or what JSON can hold.

    The policy gets the message of any exception except ToolUnavailable.
    """

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"tool {self.name!r}: a name has 1 to 64 letters, digits, `_`, `.` or `-`"
            )

    def described(self) -> dict[str, Any]:
        """As chat templates and OpenAI's protocol take it in `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def tool(function: Callable[..., Any], *, name: str = "", description: str = "") -> Tool:
    """A Python function as a tool: named like it, described by the first paragraph of its docstring.

    Parameters without an annotation take any value; those with a default are optional;
    `Annotated[int, pydantic.Field(description=..., ge=1)]` says more. Raises ConfigurationError for
    parameters that cannot be given by name, or whose annotation has no JSON schema.
    """
    name = name or getattr(function, "__name__", "")
    model = _arguments_model(name, function)
    try:
        parameters = _without_titles(model.model_json_schema())
    except pydantic.errors.PydanticInvalidForJsonSchema as error:
        raise ConfigurationError(f"tool {name!r}: {str(error).splitlines()[0]}") from error
    parameters.pop("description", None)

    def call(arguments: dict[str, Any]) -> Any:
        try:
            read = model.model_validate(arguments)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ToolError(f"{where}: {first['msg']}") from error
        return function(**{key: getattr(read, key) for key in read.model_fields_set})

    described = description or inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return Tool(name=name, description=described, parameters=parameters, call=call)


def load_tool(path: str) -> Tool:
    """The tool that `package.module:attribute` names: a `Tool`, or a function. Raises ConfigurationError."""
    find_modules_here()
    found = load_object(path, where="tool ")
    if isinstance(found, Tool):
        return found
    if not callable(found):
        raise ConfigurationError(f"tool {path!r}: write package.module:function")
    return tool(found)


def _arguments_model(name: str, function: Callable[..., Any]) -> type[pydantic.BaseModel]:
    try:
        annotations = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigurationError(f"tool {name!r}: its signature cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"tool {name!r}: {parameter} cannot be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (annotations.get(parameter.name, Any), default)
    try:
        return pydantic.create_model(
            name, __config__=pydantic.ConfigDict(extra="forbid", protected_namespaces=()), **fields
        )
    except (pydantic.errors.PydanticUserError, NameError) as error:
        raise ConfigurationError(f"tool {name!r}: {str(error).splitlines()[0]}") from error


def _without_titles(schema: Any, *, are_names: bool = False) -> Any:
    """Pydantic titles every field, which tells a policy nothing. `are_names`: keys are property names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value, are_names=key in ("properties", "$defs") and not are_names)
        for key, value in schema.items()
        if are_names or key != "title"
    }
