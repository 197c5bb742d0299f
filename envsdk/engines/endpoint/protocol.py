"""Pure: what a protocol defines: how requests are read, and how answers and errors are written.

read -> whole
     -> (first, echo?, piece*, last) of each choice -> end        streamed, or `failed` at any point
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.contracts.trajectory import VersionSpan
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.parsing import Histories
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.wire import ChatFields, CompletionFields
from envsdk.engines.engine import PromptScores, TopTokens
from envsdk.engines.tool_calls.reading import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What an answer says of itself."""

    unique: str
    """Part of its id: hexadecimal digits that no other answer has."""
    created: int
    """Unix time, seconds."""
    model: str
    """The one that is served."""
    token_text: Callable[[int], str]
    """The text of a token, special ones included."""
    histories: Histories = field(default_factory=Histories)
    """Lists of the session that the request belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWriter(ABC):
    """One request, and how the answer to it is written.

    Each method for streamed answers returns server-sent events as text: none, one or several.
    """

    fields: ChatFields | CompletionFields
    """The request, in the form in which it is answered."""
    head: ReplyHead

    @abstractmethod
    def whole(self, prompts: Sequence[Prompt], answers: Sequence[tuple[Prompt, Answer]]) -> dict[str, Any]:
        """The answer to a request that does not stream; `answers` in the order of their choices."""

    @abstractmethod
    def first(self, index: int, prompt: Prompt) -> str:
        """What comes before a choice's first piece."""

    @abstractmethod
    def piece(self, index: int, piece: Piece) -> str:
        """Some more of a choice."""

    @abstractmethod
    def last(self, index: int, answer: Answer) -> str:
        """The end of a choice, with what was held back."""

    @abstractmethod
    def end(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> str:
        """What comes after the last choice."""

    @abstractmethod
    def failed(self, error: ApiError) -> str:
        """What ends a stream that fails."""

    def ping(self) -> str:
        """What keeps a client waiting while nothing is sampled; empty where clients wait anyway."""
        return ""

    @property
    def echoes(self) -> bool:
        """Whether the prompt comes before each reply."""
        return False

    @property
    def scores_prompt(self) -> bool:
        """Whether it comes with log-probabilities, which are known when the reply has ended."""
        return False

    def echo(self, index: int, prompt: Prompt, scores: PromptScores | None) -> str:
        """The prompt, where it comes before each reply."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One way to ask for replies."""

    path: str
    """Where it is served: there and under `/sessions/ID`."""
    read: Callable[[bytes, ReplyHead], ReplyWriter]
    """The body of a request, checked. Raises ApiError."""
    error_body: Callable[[ApiError], Mapping[str, Any]] = ApiError.body
    """The JSON of an error, also on the paths below `path`."""
    count_body: Callable[[int], Mapping[str, Any]] | None = None
    """The answer of `PATH/count_tokens`, which is asked as `PATH` is; None where there is no such path."""


def server_sent(content: Mapping[str, Any], *, event: str = "") -> str:
    """One server-sent event with a name, or without."""
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"event: {event}\ndata: {data}\n\n" if event else f"data: {data}\n\n"


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
