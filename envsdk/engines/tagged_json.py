"""Pure: structures, JSON between fixed texts and changes of logits, as servers and libraries spell them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from envsdk.engines.sampling import LogitChanges, OutputStructure

_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_PARTS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf")
"""Keywords whose values are schemas by name, and schemas or lists of them."""
_COMBINING = {"$ref", "anyOf", "oneOf"}
_PLAIN = {"$defs", "$id", "$schema", "definitions", "description", "properties", "required", "title", "type"}


def held_schema(json_schema: str) -> Any:
    """For llguidance: a part of what `json_schema` allows, whose end a weak policy finds, too.

    - JSON has the spaces that `json.dumps` and the `tojson` of chat templates write, not any number of them.
      A schema with an `x-guidance` of its own keeps that.
    - An object has the properties that are named and no others, where nothing is said of others and no other
      part of the schema could ask for them. XGrammar does so, too.
    """
    schema = json.loads(json_schema)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return schema
    return {"x-guidance": _SPACES} | (schema if _is_combined(schema) else _closed(schema))


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name in _MAPS:
        yield from schema[name].values() if isinstance(schema.get(name), dict) else ()
    for name in _PARTS:
        part = schema.get(name)
        yield from part if isinstance(part, list) else (part,)


def _is_combined(schema: Any) -> bool:
    """Whether an object may get properties from two places."""
    if not isinstance(schema, dict):
        return False
    is_extended = "properties" in schema and not _COMBINING.isdisjoint(schema)
    return "allOf" in schema or is_extended or any(map(_is_combined, _parts(schema)))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _closed(each) for key, each in schema[name].items()}
    closed |= {name: _closed(schema[name]) for name in _PARTS if name in schema}
    named, required = schema.get("properties"), schema.get("required", [])
    are_known = (
        isinstance(named, dict) and isinstance(required, list) and all(map(named.__contains__, required))
    )
    if are_known and schema.keys() <= _PLAIN:
        closed["additionalProperties"] = False
    return closed


def lark_grammar(structure: OutputStructure) -> str:
    """`tagged` for llguidance, also by way of vLLM's `guidance`."""
    opening = structure.opening
    parts = " | ".join(f"part{number}" for number in range(len(structure.tagged)))
    rules = [f"start: {parts}"]
    if opening:
        rules = [
            f'start: TEXT | begun part ("\\n" {json.dumps(opening)} part)*',
            f"part: {parts}",
            f"begun[lazy]: TEXT {json.dumps(opening)}",
            r"TEXT: /(.|\n)*/",
        ]
    for number, each in enumerate(structure.tagged):
        # JSON's escapes are those of the grammar's strings.
        begin = json.dumps(each.begin.removeprefix(opening))
        rules += [
            f"part{number}: {begin} json{number} {json.dumps(each.end)}",
            f"json{number}: %json {json.dumps(held_schema(each.json_schema))}",
        ]
    return "\n".join(rules) + "\n"


def structural_tag(structure: OutputStructure) -> dict[str, Any]:
    """`tagged` for XGrammar, by way of a server of vLLM's or SGLang's."""
    tags = [
        {
            "type": "tag",
            "begin": each.begin,
            "content": {"type": "json_schema", "json_schema": json.loads(each.json_schema)},
            "end": each.end,
        }
        for each in structure.tagged
    ]
    form: dict[str, Any] = tags[0] if len(tags) == 1 else {"type": "or", "elements": tags}
    if structure.opening:
        form = {"type": "triggered_tags", "triggers": [structure.opening], "tags": tags}
    return {"type": "structural_tag", "format": form}


_SPECIAL = re.compile(r"[][.^$*+?(){}|\\]")


def sglang_structure(structure: OutputStructure) -> dict[str, str]:
    """Fields of SGLang's sampling parameters, and of its completions."""
    if structure.regex is not None:
        return {"regex": structure.regex}
    if structure.json_schema is not None:
        return {"json_schema": structure.json_schema}
    if structure.tagged:
        return {"structural_tag": json.dumps(structural_tag(structure))}
    # Only what means something else is escaped: not each of SGLang's grammar backends takes more.
    return {"regex": "|".join(_SPECIAL.sub(r"\\\g<0>", choice) for choice in structure.choices)}


def change_fields(changes: LogitChanges) -> dict[str, Any]:
    """As OpenAI's protocol, vLLM's and SGLang's servers name them."""
    return {
        "logit_bias": {str(token): value for token, value in changes.bias},
        "repetition_penalty": changes.repetition_penalty,
        "frequency_penalty": changes.frequency_penalty,
        "presence_penalty": changes.presence_penalty,
    }
