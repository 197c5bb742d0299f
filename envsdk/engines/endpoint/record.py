"""Pure: what one session sampled, as a tree of replies.

    find the reply that a request goes on from -> sample -> add -> ... -> lines

A request that repeats a recorded conversation and goes on from it continues its *line*: the recorded tokens
stand where the text stood, and only what is new is tokenized. A request that differs earlier branches off at
the last reply it shares, or starts a line of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.contracts.prompts import Message
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.tool_calls.reading import AttemptStatus, split_thought


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedReply:
    """One reply, and what of its prompt was new."""

    number: int
    """Position in the session, from 0, in the order the replies ended."""
    parent: RecordedReply | None
    """The reply that its prompt goes on from."""
    prompt_ids: Sequence[int]
    """Tokens between the parent's and this reply's; the whole prompt without a parent."""
    token_ids: Sequence[int]
    """Sampled, a stop token included."""
    logprobs: Sequence[float]
    version_spans: Sequence[VersionSpan]
    finish_reason: FinishReason
    text: str
    """As the policy wrote it, without special tokens."""
    observation: str
    """Text of what was new in the prompt."""
    state_hash: str | None = None
    """The environment's state that was replied to; None where it is not known."""
    asked_at: float = 0.0
    """As `time.perf_counter` says."""
    generate_s: float = 0.0
    thought: str = ""
    """What stands in `<think>` and `</think>` at its beginning."""
    attempt: AttemptStatus | None = None
    """How its attempt to call tools went; None where no tools were given."""
    history: Sequence[Message] = ()
    """The messages before the observation, where the reply begins a line."""
    segment: str | None = None
    """The new part of the prompt and the reply as text, where the prompt was text."""
    role: str = ""
    """Which of the episode's agents asked, where the path says so."""
    support: Support | None = None
    """Which tokens could be drawn, where that is recorded."""
    _ids: array[int] | None = field(default=None, init=False, repr=False)

    @property
    def path(self) -> list[RecordedReply]:
        """The replies from the line's beginning to this one."""
        path: list[RecordedReply] = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]

    @property
    def ids(self) -> array[int]:
        """Every token of the line up to this reply's last; a line's newest reply keeps them."""
        if self._ids is None:
            known = self.parent._ids if self.parent is not None else None
            self._ids = array("i", known or ())
            for reply in [self] if known else self.path:
                self._ids.extend(reply.prompt_ids)
                self._ids.extend(reply.token_ids)
            if self.parent is not None:
                self.parent._ids = None
        return self._ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one reply is sampled from."""

    ids: Sequence[int]
    """All tokens."""
    new_ids: Sequence[int]
    """Those behind the parent's reply."""
    parent: RecordedReply | None
    observation: str
    """Text of what is new."""
    history: Sequence[Message] = ()
    """What stands before it where a line begins, as text."""
    key: str | None = None
    """Key of the conversation, for chat."""
    new_text: str | None = None
    """What is new, where the prompt was given as text."""
    text: str = ""
    """All of it, for `/v1/completions`."""
    role: str = ""
    """As of `RecordedReply`."""


_EndOf = Callable[[RecordedReply, int], int | None]
"""Where a reply that begins at a position of the prompt ends; None when the prompt says something else."""


@dataclass(slots=True)
class ConversationRecord:
    """The replies of one session. Owner: the session."""

    replies: list[RecordedReply] = field(default_factory=list)
    num_tokens: int = 0
    """Tokens of all replies and of what was new in their prompts."""
    _by_key: dict[str, list[RecordedReply]] = field(default_factory=dict)
    _children: dict[int | None, list[RecordedReply]] = field(default_factory=dict)

    def add(self, reply: RecordedReply, *, key: str | None = None) -> None:
        """`key`: of the conversation up to this reply (`message_keys`)."""
        assert reply.number == len(self.replies), "numbered in order"
        self.replies.append(reply)
        self.num_tokens += len(reply.prompt_ids) + len(reply.token_ids)
        self._children.setdefault(reply.parent.number if reply.parent else None, []).append(reply)
        if key is not None:
            self._by_key.setdefault(key, []).append(reply)

    @property
    def generate_s(self) -> float:
        """Seconds in which at least one reply was waited for."""
        seconds, until = 0.0, -math.inf
        for reply in sorted(self.replies, key=lambda reply: reply.asked_at):
            end = reply.asked_at + reply.generate_s
            seconds += max(0.0, end - max(until, reply.asked_at))
            until = max(until, end)
        return seconds

    def continued_by_messages(
        self, keys: Sequence[str], messages: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[RecordedReply, int] | None:
        """The longest recorded conversation that these messages repeat, and how many of them it is.

        `keys` are those of `message_keys`. The newest of equal replies counts, and none whose thought is
        another than its message gives.
        """
        for count in range(len(keys) - 1, 0, -1):
            message = messages[count - 1] if messages else {"content": ""}
            given = message.get("reasoning_content") or split_thought(message["content"])[0]
            for reply in reversed(self._by_key.get(keys[count], ())):
                if given.strip() in ("", reply.thought.strip()):
                    return reply, count
        return None

    def continued_by_ids(self, ids: Sequence[int]) -> tuple[RecordedReply, int] | None:
        """The reply whose line `ids` begins with: the longest, and its number of tokens."""
        ids = list(ids)

        def end_of(reply: RecordedReply, start: int) -> int | None:
            own = [*reply.prompt_ids, *reply.token_ids]
            return start + len(own) if ids[start : start + len(own)] == own else None

        return self._descend(end_of)

    def continued_by_text(self, text: str) -> tuple[RecordedReply, int] | None:
        """The reply whose line `text` begins with: the longest, and the number of characters."""

        def end_of(reply: RecordedReply, start: int) -> int | None:
            if reply.segment is None or not text.startswith(reply.segment, start):
                return None
            return start + len(reply.segment)

        return self._descend(end_of)

    def _descend(self, end_of: _EndOf) -> tuple[RecordedReply, int] | None:
        """The deepest match; of several the newest."""
        best: tuple[RecordedReply, int] | None = None
        waiting: list[tuple[int | None, int]] = [(None, 0)]
        while waiting:
            number, start = waiting.pop()
            for reply in self._children.get(number, ()):
                end = end_of(reply, start)
                if end is not None:
                    waiting.append((reply.number, end))
                    if best is None or (end, reply.number) > (best[1], best[0].number):
                        best = reply, end
        return best

    def lines(self) -> list[list[RecordedReply]]:
        """Every line: the path to each reply that nothing goes on from."""
        return [reply.path for reply in self.replies if reply.number not in self._children]


def message_keys(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> list[str]:
    """Entry i stands for the first i messages under these tools; equal for equal conversations.

    Of an assistant's tool calls the names and arguments count, not the ids. Its thoughts do not count, nor
    white space around its text: clients leave them out.
    """
    keys = [_digest("", list(tools or []))]
    for message in messages:
        keys.append(next_key(keys[-1], message))
    return keys


def next_key(key: str, message: Mapping[str, Any]) -> str:
    """The key of a conversation with one more message."""
    return _digest(key, _identity(message))


def _identity(message: Mapping[str, Any]) -> dict[str, Any]:
    identity = dict(message)
    if message["role"] == "assistant":
        identity.pop("name", None)  # clients label replies with the names of their agents
        if not identity.pop("reasoning_content", None):
            identity["content"] = split_thought(identity["content"])[1]
        identity["content"] = identity["content"].strip()  # clients drop white space at a reply's ends
    if calls := identity.pop("tool_calls", None):
        identity["tool_calls"] = [[call["function"]["name"], call["function"]["arguments"]] for call in calls]
    return identity


def _digest(before: str, value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()
