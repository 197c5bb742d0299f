"""Pure: JSON between fixed texts, in the words of the libraries that hold replies to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from envsdk.inference.sampling import TaggedJson


def lark_grammar(tagged: Sequence[TaggedJson]) -> str:
    """For llguidance, also by way of vLLM's `guidance`.

    The JSON has the spaces that `json.dumps` and the `tojson` of chat templates write.
    """
    rules = ["start: " + " | ".join(f"part{number}" for number in range(len(tagged)))]
    for number, each in enumerate(tagged):
        schema = json.loads(each.json_schema)
        if isinstance(schema, dict):
            schema = {"x-guidance": _SPACES} | schema
        # JSON's escapes are those of the grammar's strings.
        rules += [
            f"part{number}: {json.dumps(each.begin)} json{number} {json.dumps(each.end)}",
            f"json{number}: %json {json.dumps(schema)}",
        ]
    return "\n".join(rules) + "\n"


_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def structural_tag(tagged: Sequence[TaggedJson]) -> dict[str, Any]:
    """For XGrammar, by way of a server of vLLM's or SGLang's."""
    tags = [
        {
            "type": "tag",
            "begin": each.begin,
            "content": {"type": "json_schema", "json_schema": json.loads(each.json_schema)},
            "end": each.end,
        }
        for each in tagged
    ]
    return {
        "type": "structural_tag",
        "format": tags[0] if len(tags) == 1 else {"type": "or", "elements": tags},
    }
