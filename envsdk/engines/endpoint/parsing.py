"""Pure: bodies of requests as models. An error names the first field that is wrong."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from envsdk.base.settings.nearest import suggest
from envsdk.contracts.failures import without_lone_surrogates
from envsdk.engines.endpoint.errors import ApiError, invalid, unsupported

MAX_PARAMETERS = 100
"""Most fields of one request."""
MAX_STOPS = 16
"""Most stop strings of one request."""

_SEVERAL_TYPES = {
    "prompt": "text, a list of token ids, or a list of either",
    "stop": f"a string or a list of at most {MAX_STOPS} strings",
    "tool_choice": "`auto`, `none`, `required` or {'type': 'function', 'function': {'name': ...}}",
}
"""Fields whose validation errors would name a type of Python's."""

_OF_SEVERAL_TYPES = frozenset({"content", "input"})
"""Lists whose entries have a type each: pydantic names it behind the entry's position."""

Model = TypeVar("Model", bound=BaseModel)


class ClosedBody(BaseModel):
    """What has the known fields alone."""

    model_config = ConfigDict(extra="forbid", strict=True)


class OpenBody(BaseModel):
    """What may have further fields, which are counted (`unknown_in`) unless one is misspelled."""

    model_config = ConfigDict(extra="allow", strict=True)


def unknown_in(body: OpenBody, where: str = "") -> list[str]:
    """Names of the fields that nothing is known of, with a list's entries under one name."""
    found = [where + name for name, value in (body.model_extra or {}).items() if value]
    for name, value in body.__dict__.items():
        if isinstance(value, OpenBody):
            found += unknown_in(value, f"{where}{name}.")
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, OpenBody):
                    found += unknown_in(each, f"{where}{name}[].")
    return found


def check_names(body: OpenBody) -> None:
    """ApiError for an unknown field that is near to a known one: each of those changes the reply."""
    known = {name.casefold(): name for name in type(body).model_fields}
    for name, value in (body.model_extra or {}).items():
        meant = get_close_matches(name.casefold(), known, n=1, cutoff=_MISSPELLED)
        if meant and value is not None:
            hint = f"did you mean `{known[meant[0]]}`?"
            raise ApiError(400, f"unknown parameter `{name}`; {hint}", code="unknown_parameter", param=name)


_MISSPELLED = 0.8
"""Similarity from which on one name is meant for the other. Of the fields of chat and of Responses only
`top_k` in Responses is so near to another."""


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; an empty body is an empty one. Raises ApiError.

    Halves of surrogate pairs, which no answer could hold, count as U+FFFD.
    """
    try:
        value = from_json(body or b"{}")
    except ValueError:
        value = _repaired(body)
    if not isinstance(value, dict):
        raise invalid(None, f"the body must be a JSON object, not {type(value).__name__}")
    if len(value) > MAX_PARAMETERS:
        raise invalid(None, f"the body has {len(value)} parameters; no request has over {MAX_PARAMETERS}")
    return value


def _repaired(body: bytes) -> Any:
    """What pydantic's parser refuses: half a surrogate pair, deep nesting, a byte order mark."""
    try:
        return json.loads(without_lone_surrogates(json.dumps(json.loads(body), ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise invalid(None, f"the body is not JSON: {error}") from error


def validate(model: type[Model], values: Any, *, at: tuple[str | int, ...] = ()) -> Model:
    """`values`, which stand at this place of the request, as a `model`.

    ApiError names the first field that is wrong.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _first_problem(model, error, at) from error


def _first_problem(model: type[BaseModel], error: ValidationError, at: tuple[str | int, ...]) -> ApiError:
    problem = error.errors(include_url=False, include_input=False)[0]
    location = (*at, *problem["loc"])
    place = [
        part
        for number, part in enumerate(location)
        if not (number > 1 and isinstance(part, str) and location[number - 2] in _OF_SEVERAL_TYPES)
    ]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    top = str(place[0]) if place else ""
    if problem["type"] == "extra_forbidden":
        hint = suggest(top, model.model_fields, known="parameters") if len(place) == 1 else ""
        return ApiError(400, f"unknown parameter `{path}`; {hint}", code="unknown_parameter", param=path)
    if problem["type"] == "union_tag_invalid":
        given, known = problem["ctx"]["tag"], problem["ctx"]["expected_tags"].replace("'", "`")
        return unsupported(path, f"is of type `{given}`, which is not supported; supported: {known}")
    if top in _SEVERAL_TYPES and len(place) > 1:
        return invalid(top, f"`{top}` must be {_SEVERAL_TYPES[top]}")
    if problem["type"] == "missing":
        return ApiError(400, f"`{path}` is missing", code="missing_required_parameter", param=path)
    return invalid(path, f"`{path}`: {problem['msg']}")


Entry = TypeVar("Entry")


@dataclass(slots=True)
class GrowingList:
    """What the entries of the latest list were read as.

    history = GrowingList()
    history.read(["a", "b"], read)          # reads both
    history.read(["a", "b", "c"], read)     # reads "c"
    history.read(["a", "x"], read)          # reads "x"
    """

    _latest: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    """The entries as they were given, and as they were read."""

    def read(self, given: Sequence[Any], read: Callable[[Any, int], Entry]) -> list[Entry]:
        """Each entry as `read(entry, its position)` gives it: always the same function, whose results stay as
        they are. What it raises leaves the latest list in place.
        """
        before, known = self._latest
        count = len(before)
        if given[:count] != before:
            pairs = zip(given, before, strict=False)
            count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        found = [*known[:count], *(read(given[at], at) for at in range(count, len(given)))]
        self._latest = given, found
        return found


class Histories(defaultdict[str, GrowingList]):
    """The lists of one session, by what they are."""

    def __init__(self) -> None:
        super().__init__(GrowingList)
