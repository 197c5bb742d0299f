"""The contract of prompt data: rows by number, wherever they come from.

prompts = open_prompts(PromptSource(files=["data/math.jsonl"], tags=["deepmath_103k"]))
prompts[17].messages       # [{"role": "user", "content": "What is 2 + 2?"}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.prompts import Message


class PromptSource(StrictSettings):
    """Where prompts come from, and which of them."""

    files: list[str] = Field(min_length=1)
    """JSONL, JSON and Parquet files, folders of them, patterns such as `data/*.jsonl`, data sets of Hugging
    Face by name or folder, and `generated:NAME`."""
    tags: list[str] = Field(default_factory=list)
    """Only rows whose `domain`, or else `tag`, is one of these; all rows when empty."""
    except_tags: list[str] = Field(default_factory=list)
    """Only rows whose `domain`, or else `tag`, is none of these."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Standard name -> column of the file, where a file has other names: `{prompt: question}`."""
    longest_prompt: int | None = Field(default=None, ge=1)
    """Rows whose prompt has more tokens cannot be used. Needs `tokenizer`."""
    tokenizer: str | None = None
    """Folder of the model whose tokens are counted."""
    num_workers: int = Field(default=1, ge=1)
    """Processes that read the files when they are opened for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One row that can be used."""

    messages: Sequence[Message]
    """The prompt as a chat; the last message is the user's."""
    fields: Mapping[str, Any]
    """All fields under their standard names: `id`, `source`, `difficulty`, `ground_truth`, `tag`, ..."""
    place: str
    """`FILE:LINE`, for messages."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A row that is never asked."""

    place: str
    reason: str
