"""What generated rows have in common: ROLL's format, and the split by the prompt."""

import hashlib
import json
from typing import Any


def is_held_out(prompt: str, one_in: int) -> bool:
    """Whether the prompt belongs to the validation rows; one in so many does."""
    return hashlib.sha256(prompt.encode()).digest()[0] % one_in == 0


def generated_row(*, tag: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """A row with the columns of ROLL's, those that are not given empty."""
    return {
        "id": f"{tag}-{prompt}",
        "source": "generated",
        "difficulty": 1,
        "prompt": prompt,
        "messages": json.dumps([{"role": "user", "content": prompt}]),
        "ground_truth": "",
        "case_type": "",
        "test_case_function": "",
        "test_cases": "",
        "tag": tag,
        **fields,
    }
