"""A conversation to learn from, and those of an episode: without PyArrow, which no warm start needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsdk.contracts.prompts import Line, Message
from envsdk.contracts.segments import given_and_masked_replies
from envsdk.contracts.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A segment of an episode as messages; at least one is the assistant's."""

    line: Line
    num_given_replies: int = 0
    """How many of the assistant's first messages are not learned here: those of an earlier conversation, and
    worked examples."""
    masked_replies: Sequence[int] = ()
    """Which of the assistant's messages are shown but not learned, besides: random moves."""
    beginning: Sequence[Message] | None = None
    """The episode's first conversation; None: this one."""

    @property
    def messages(self) -> list[Message]:
        """All of them."""
        return self.line.messages

    @property
    def num_learned(self) -> int:
        """Replies to learn."""
        num_replies = sum(message["role"] == "assistant" for message in self.messages)
        return max(0, num_replies - self.num_given_replies - len(self.masked_replies))

    @property
    def task(self) -> str:
        """A digest of everything before the policy's first reply in the episode, equal for equal tasks."""
        messages = self.messages if self.beginning is None else self.beginning
        first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        asked = [[message["role"], message["content"]] for message in messages[:first]]
        return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


def conversations_of(trajectory: Trajectory) -> Iterator[Conversation]:
    """One for each of its segments."""
    beginning = None
    for segment in trajectory.segments():
        line = trajectory.line(segment)
        num_given, masked = given_and_masked_replies(line.messages, segment)
        yield Conversation(line=line, num_given_replies=num_given, masked_replies=masked, beginning=beginning)
        beginning = beginning or line.messages
