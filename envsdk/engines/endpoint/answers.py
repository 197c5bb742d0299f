"""What a reply is on its way to a client: pieces while it is sampled, and the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envsdk.contracts.trajectory import VersionSpan
from envsdk.engines.engine import PromptScores, TopTokens
from envsdk.engines.tool_calls.reading import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some more of a reply."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    top: Sequence[TopTokens] = ()
    """Likeliest tokens at the place of each token, where they are asked for."""
    version: int
    """Version of the weights that sampled its last token."""


OnPiece = Callable[[Piece], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One whole reply."""

    content: str = ""
    """Without tool calls. A thought stands before it in `<think>` and `</think>`."""
    tool_calls: Sequence[ToolCall] = ()
    rest: str = ""
    """The part of `content` that no piece showed."""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    version_spans: Sequence[VersionSpan] = ()
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    stop: str = ""
    """The stop string that ended it."""
    fills_context: bool = False
    """Whether there is no room for another token."""
    top: Sequence[TopTokens] = ()
    """Likeliest tokens at the place of each token, where they are asked for."""
    prompt_scores: PromptScores | None = None

    @property
    def version(self) -> int | None:
        """Version of the weights that sampled its last token; None when there is none."""
        return self.version_spans[-1].version if self.version_spans else None
