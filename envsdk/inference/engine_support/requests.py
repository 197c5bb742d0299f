"""Pure: requests that wait for a place at the server, structures in a server's words, and results."""

from __future__ import annotations

import json
import re

from envsdk.inference.sampling import OutputStructure
from envsdk.inference.tagged_json import structural_tag

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
