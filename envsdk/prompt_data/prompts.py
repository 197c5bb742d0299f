"""The contract of prompt data: rows by number, wherever they come from.

prompts = open_prompts(PromptSource(files=["data/math.jsonl"], tags=["deepmath_103k"]))
prompts[17].messages       # [{"role": "user", "content": "What is 2 + 2?"}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from envsdk.prompts import Message
from envsdk.settings.strict import StrictSettings


class PromptSource(StrictSettings):
    """Where prompts come from, and which of them. Hashable once frozen to JSON; picklable."""

    files: list[str] = Field(min_length=1)
    """JSONL, JSON and Parquet files, or data sets of Hugging Face by name or folder."""
    tags: list[str] = Field(default_factory=list)
    """Only rows whose `tag` (or else `domain`) is one of these; all rows when empty."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Standard name -> column of the file, where a file has other names: `{prompt: question}`."""
    longest_prompt: int | None = Field(default=None, ge=1)
    """Rows whose prompt has more tokens cannot be used. Needs `tokenizer`."""
    tokenizer: str | None = None
    """Folder of the model whose tokens are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One row that can be used."""

    messages: Sequence[Message]
    """The prompt as a chat; the last message is the user's."""
    fields: Mapping[str, Any]
    """All fields under their standard names: `id`, `source`, `difficulty`, `ground_truth`, `tag`, ..."""
    place: str
    """`FILE:LINE` or `FILE row N`, for messages."""
