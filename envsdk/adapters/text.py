"""What adapters share about text: answers in replies, and observations that any package may have written."""

from __future__ import annotations

from typing import Literal

from envsdk.contracts.turn_env import NO_ANSWER as NO_ANSWER
from envsdk.contracts.turn_env import tagged_answer as tagged_answer

ReplyFormat = Literal["tag", "whole"]
REPLY_FORMATS: tuple[ReplyFormat, ...] = ("tag", "whole")

NOTHING = "(nothing)"
"""Stands for an observation without visible text: a policy cannot answer to nothing."""

MAX_OBSERVATION_LENGTH = 1 << 15
_CUT = "\n[...]\n"

_OPEN, _CLOSE = "<answer>", "</answer>"


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
