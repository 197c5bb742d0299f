"""Turns a pydantic error into problems that a person can act on."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union

from pydantic import BaseModel, ValidationError

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem, describe, dotted
from envsdk.contracts.failures import ConfigurationError

SettingsT = TypeVar("SettingsT", bound=BaseModel)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Pattern of names that become a folder's."""

_ARTICLES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "list_type": "must be a list, such as [a, b]",
    "sequence_str": "must be a list, such as [a, b]",
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must be a section of keys",
    "model_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "path_type": "must be a path",
    "none_required": "must be null",
}


def validated(
    model: type[SettingsT],
    values: Any,
    source: str,
    *,
    owner: str = "",
    origin: Callable[[KeyPath], str] = lambda _: "",
) -> SettingsT:
    """`values` as `model`; ConfigurationError names `source`, every bad key and the nearest known one.

    `owner` names the plug-in whose keys they are, `origin` where a key was written.
    """
    try:
        return model.model_validate(dict(values) if isinstance(values, Mapping) else values)
    except ValidationError as error:
        problems = list(problems_in(error, model, owner=owner))
        raise ConfigurationError(describe(problems, source=source, origin=origin)) from error


def problems_in(
    error: ValidationError,
    model: type[BaseModel],
    *,
    base: KeyPath = (),
    written_at: Mapping[str, KeyPath] | None = None,
    owner: str = "",
) -> Iterator[Problem]:
    """One problem per key. `base` is where `model`'s keys are written, `written_at` the exceptions.

    `owner` names the plug-in whose keys they are.
    """
    found: dict[KeyPath, list[Any]] = {}
    for details in error.errors(include_url=False):
        found.setdefault(_written(model, details)[0], []).append(details)
    for path, alternatives in found.items():
        if any(len(other) > len(path) and other[: len(path)] == path for other in found):
            continue  # the value is nearer to another type of the union
        moved = (written_at or {}).get(str(path[0])) if path else None
        full = (*base, *path) if moved is None else (*moved, *path[1:])
        unknown = next((each for each in alternatives if each["type"] == "extra_forbidden"), None)
        yield Problem(full, _unknown_key(model, unknown, owner) if unknown else wrong_value(alternatives))


def _written(model: type[BaseModel], details: Any) -> tuple[KeyPath, Any]:
    """A location as it stands in a file, without pydantic's names for the types of a union; and the type that
    its last part is a key of."""
    path: list[str | int] = []
    around: Any = None
    current: Any = model
    for part in details["loc"]:
        nested, annotation = model_in(current), unwrapped(current)
        if typing.get_origin(annotation) in (Union, types.UnionType):
            current = _member(annotation, part)
            continue
        path.append(part)
        around = current
        if nested is not None:
            info = nested.model_fields.get(str(part))
            current = info.annotation if info is not None else None
        else:
            arguments = [each for each in typing.get_args(annotation) if each is not Ellipsis]
            current = arguments[-1] if arguments else None
    if details["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(details["ctx"]["discriminator"].strip("'"))
    return tuple(path), around


def _member(union: Any, name: str | int) -> Any:
    """The type of a union that pydantic calls so: by its kind, or else by its own name."""
    for member in map(unwrapped, typing.get_args(union)):
        model = model_in(member)
        kinds = [typing.get_args(info.annotation) for info in model.model_fields.values()] if model else ()
        own = getattr(typing.get_origin(member) or member, "__name__", "")
        if str(name).partition("[")[0] == own or any(name in kind for kind in kinds):
            return member
    return None


def _unknown_key(model: type[BaseModel], details: Any, owner: str) -> str:
    name = str(details["loc"][-1])
    section = model_in(_written(model, details)[1])
    siblings = list(section.model_fields) if section is not None else []
    elsewhere = [path for path in key_paths(model) if path[-1] == name]
    if elsewhere:
        likely = min(elsewhere, key=lambda path: _num_optional(model, path))
        return f"unknown key here; did you mean `{dotted(likely)}`?"
    if owner and not siblings:
        return f"unknown key: {owner} has no settings; to set those of another, give its `name`"
    whose = f" of {owner}" if owner else ""
    return f"unknown key{whose}; {suggest(name, siblings, known='known keys')}"


def wrong_value(alternatives: Sequence[Any]) -> str:
    """What is wrong with one value, by the errors of all types of a union that it could have had."""
    rules = dict.fromkeys(_rule(details).removeprefix("must be ") for details in alternatives)
    if len(rules) == 1:
        return value_problem(alternatives[0])
    return f"must be {' or '.join(rules)}, not {shown(alternatives[0]['input'])}"


def value_problem(details: Any) -> str:
    kind, value = details["type"], details["input"]
    if kind in ("missing", "union_tag_not_found"):
        return "is required and missing"
    if kind == "union_tag_invalid":
        expected = " or ".join(details["ctx"]["expected_tags"].rsplit(", ", 1))
        return f"must be {expected}, not {shown(details['ctx']['tag'])}"
    if kind == "literal_error":
        return f"must be {details['ctx']['expected']}, not {shown(value)}"
    if kind == "value_error":
        reason = str(details["ctx"]["error"])
        return reason if isinstance(value, Mapping | BaseModel) else f"{reason} (given: {shown(value)})"
    if kind == "string_pattern_mismatch":
        pattern = details["ctx"]["pattern"]
        if pattern == NAME_PATTERN:
            return (
                f"{shown(value)} holds characters that are not allowed; use letters, digits, `.`, `_` and `-`"
            )
        return f"must match {pattern}, not {shown(value)}"
    if kind == "too_short":  # of what may be long, or secret
        return f"{_rule(details)}, not {details['ctx']['actual_length']}"
    return f"{_rule(details)}, not {shown(value)}{_quoting_hint(kind, value)}"


def _rule(details: Any) -> str:
    """What the value must be: our words for pydantic's."""
    if details["type"] == "too_short":
        least, is_text = details["ctx"]["min_length"], isinstance(details["input"], str)
        what = "characters" if is_text else "entry" if least == 1 else "entries"
        return f"must have at least {least} {what}"
    rule = _ARTICLES.get(details["type"]) or re.sub(r"^(Input|Value) should", "must", details["msg"])
    if rule.startswith("must be a list") and re.fullmatch(r"[\w./:-]+", str(details["input"])):
        rule = f"must be a list, such as [{details['input']}]"
    return rule.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _quoting_hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        return "; leave the quotes out" if _is_number(value) else ""
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("true", "false")
    return True


def shown(value: Any) -> str:
    """A value as YAML spells it, cut short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a section of keys" if value else "{}"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _num_optional(model: type[BaseModel], path: KeyPath) -> int:
    """How many of the sections around a key a file may leave out without there being any."""
    count, section = 0, model_in(model)
    for part in path[:-1]:
        info = section.model_fields.get(str(part)) if section is not None else None
        count += info is not None and info.default is None
        section = model_in(info.annotation) if info is not None else None
    return count


def key_paths(model: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key described by `model`, those of `custom_envs` under the name TAG."""
    for name, info in model.model_fields.items():
        path: KeyPath = (*prefix, name)
        yield path
        annotation = unwrapped(info.annotation)
        nested = model_in(annotation)
        if nested is None and typing.get_origin(annotation) is dict:
            nested, path = model_in(typing.get_args(annotation)[1]), (*path, "TAG")
        if nested is not None:
            yield from key_paths(nested, path)


def unwrapped(annotation: Any) -> Any:
    """The type inside `Annotated[...]` and `... | None`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return unwrapped(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        members = [each for each in typing.get_args(annotation) if each is not type(None)]
        return unwrapped(members[0]) if len(members) == 1 else annotation
    return annotation


def model_in(annotation: Any) -> type[BaseModel] | None:
    annotation = unwrapped(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
