"""Pure: structures and changes of logits in a server's words."""

from __future__ import annotations

import json
import re
from typing import Any

from envsdk.engines.sampling import LogitChanges, OutputStructure
from envsdk.engines.tagged_json import structural_tag

_SPECIAL = re.compile(r"[][.^$*+?(){}|\\]")


def sglang_structure(structure: OutputStructure) -> dict[str, str]:
    """Fields of SGLang's sampling parameters, and of its completions."""
    if structure.regex is not None:
        return {"regex": structure.regex}
    if structure.json_schema is not None:
        return {"json_schema": structure.json_schema}
    if structure.tagged:
        return {"structural_tag": json.dumps(structural_tag(structure.tagged))}
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
