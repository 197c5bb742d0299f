"""What adapters share about text: answers in replies, and observations that any package may have written."""

from __future__ import annotations

import string
from typing import Any, Literal

from gymnasium.spaces import Text

from envsdk.turn_env import NO_ANSWER as NO_ANSWER
from envsdk.turn_env import tagged_answer as tagged_answer

ReplyFormat = Literal["tag", "whole"]
REPLY_FORMATS: tuple[ReplyFormat, ...] = ("tag", "whole")

NOTHING = "(nothing)"
"""Stands for an observation without visible text: a policy cannot answer to nothing."""

MAX_OBSERVATION_LENGTH = 1 << 15
_CUT = "\n[...]\n"

_OPEN, _CLOSE = "<answer>", "</answer>"
_PRINTABLE = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")
_MAX_SAMPLED_REPLY_LENGTH = 256


def tagged(answer: str) -> str:
    """The reply that gives `answer`."""
    return f"{_OPEN}{answer}{_CLOSE}"


def as_observation(value: object) -> str:
    """`value` as text that can be tokenized and stored: encodable, not blank, not endless."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    if len(text) > MAX_OBSERVATION_LENGTH:
        half = (MAX_OBSERVATION_LENGTH - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    return text if text.strip() else NOTHING


class AnyText(Text):
    """Texts of any script. `sample()` draws printable ASCII."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length


def observation_space() -> AnyText:
    """What `as_observation` returns, with room for a note after it."""
    return AnyText(min_length=1, max_length=2 * MAX_OBSERVATION_LENGTH, charset=_PRINTABLE)


def action_space() -> Text:
    """What `sample()` draws from. `step` takes any string, of any length and script."""
    return Text(min_length=0, max_length=_MAX_SAMPLED_REPLY_LENGTH, charset=_PRINTABLE)
