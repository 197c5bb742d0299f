"""Pure: what a reply says, thinks and calls, and how its attempt to call went.

A format reads the calls of one family of models. Any text is read: what is wrong with a call is a status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from envsdk.contracts.trajectory import FinishReason, Turn

ToolParser = Literal["auto", "hermes", "qwen3_coder", "glm", "mistral", "deepseek", "harmony", "llama3"]
"""The format that calls are read in; `auto`: that which the model's chat template writes."""
Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters, by the names of functions."""
THOUGHT = "<think>", "</think>"
"""What a reply's thought stands between."""
ATTEMPT = "call_attempt."
"""What the metric of a turn that stands for its `AttemptStatus` begins with."""
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.-]+")
_BEGUN = re.compile(
    r"|-|\.|[eE][+-]?|t(ru?)?|f(a(ls?)?)?|n(ul?)?|Na?|-?I(n(f(i(n(i(ty?)?)?)?)?)?)?|\\?u[0-9a-fA-F]{0,3}"
)
"""What may stand between the place that the JSON decoder names and the end of a text that is cut."""


class AttemptStatus(StrEnum):
    """How a reply's attempt to call tools went: none of its calls counts when one cannot be read."""

    NONE = "none"
    OK = "ok"
    MALFORMED = "malformed"
    CUT = "cut"
    """It ends inside a call: of a turn, by the token limit."""
    UNKNOWN_TOOL = "unknown_tool"
    """It calls a tool that was not offered."""


_CUT, _MALFORMED = (f"{ATTEMPT}{status}" for status in (AttemptStatus.CUT, AttemptStatus.MALFORMED))


def attempt_metric(status: AttemptStatus | None) -> dict[str, float]:
    """For `Turn.metrics`: one number, whose name says it; none where calls were not looked for."""
    return {} if status is None else {f"{ATTEMPT}{status}": 1.0}


def as_ended(metrics: Mapping[str, float], finish_reason: FinishReason) -> Mapping[str, float]:
    """A turn's metrics: the attempt of a reply that stopped inside a call by itself is malformed."""
    if finish_reason is not FinishReason.STOP or _CUT not in metrics:
        return metrics
    return {_MALFORMED if name == _CUT else name: value for name, value in metrics.items()}


def attempt_of(turn: Turn) -> AttemptStatus | None:
    """None where calls were not looked for."""
    metrics = as_ended(turn.metrics, turn.finish_reason)
    return next((status for status in AttemptStatus if f"{ATTEMPT}{status}" in metrics), None)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the policy asks for."""

    name: str
    arguments: str
    """JSON of an object."""
    id: str = ""
    """Its name in the messages of clients, which repeat it and give its result."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply was read as."""

    status: AttemptStatus
    shown: str
    """The reply up to its calls and the white space before them, all of it where none can be read; a thought
    in `<think>` and `</think>`."""
    calls: tuple[ToolCall, ...] = ()
    problem: str = ""
    """Why calls cannot be read, for the policy."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How the models of one family write calls."""

    name: str
    """For `tool_parser`."""
    openings: tuple[str, ...]
    """Calls begin with one of these. A streamed reply is shown up to it, the rest when it has ended."""
    calls: Callable[[Cursor, Schemas], Iterator[ToolCall]]
    """Reads calls up to the first text that is none. Raises Unreadable."""
    closing: str = ""
    """What ends each call; empty where calls end together."""
    plain: Callable[[str], str] | None = None
    """For formats that mark all text: makes a reply one whose thought stands between `THOUGHT`."""

    def find(self, text: str) -> int | None:
        """Where calls begin in a text behind a thought."""
        return min((at for each in self.openings if (at := text.find(each)) >= 0), default=None)

    def read(self, reply: str, tools: Schemas) -> Reading:
        """One reply; whether a tool is unknown, `read_reply` says."""
        text = reply if self.plain is None else self.plain(reply)
        behind = split_thought(text)[1]
        if (start := self.find(behind)) is None:
            return Reading(AttemptStatus.NONE, text)
        cursor = Cursor(behind, start)
        try:
            calls = tuple(self.calls(cursor, tools))
            cursor.expect_end()
        except (Unreadable, RecursionError) as error:
            status = AttemptStatus.CUT if isinstance(error, Cut) else AttemptStatus.MALFORMED
            return Reading(status, text, problem=str(error))
        return Reading(AttemptStatus.OK, text[: len(text) - len(behind) + start].rstrip(), calls)


def split_thought(reply: str) -> tuple[str, str]:
    """A reply's thought, and its text behind it. The prompt may have opened the thought."""
    opening, closing = THOUGHT
    thought, closed, text = reply.partition(closing)
    if not reply.lstrip().startswith(opening) and (not closed or opening in thought):
        return "", reply
    return thought.lstrip().removeprefix(opening), text


class Unreadable(ValueError):
    """Text that begins like a call and is none; the message says why, for the policy."""


class Cut(Unreadable):
    """Text that ends inside a call."""

    def __init__(self) -> None:
        super().__init__("the reply ends inside a call")


@dataclass(slots=True)
class Cursor:
    """A place in a text that is read from left to right. White space before what is read does not count."""

    text: str
    at: int = 0

    def stands(self, literal: str) -> bool:
        """Whether `literal` comes next."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space is not None else self.at
        return self.text.startswith(literal, self.at)

    def take(self, literal: str) -> bool:
        """Whether `literal` came next: it is behind the cursor then. Cut where the text ends inside it."""
        if self.stands(literal):
            self.at += len(literal)
            return True
        rest = self.text[self.at : self.at + len(literal)]
        if rest and self.at + len(rest) == len(self.text) and literal.startswith(rest):
            raise Cut
        return False

    def expect(self, literal: str) -> None:
        """Take `literal`; Unreadable where something else comes."""
        if not self.take(literal):
            raise Cut() if self.at == len(self.text) else Unreadable(f"{literal} is missing")

    def expect_end(self) -> None:
        self.stands("")
        if self.at < len(self.text):
            raise Unreadable("nothing may follow the last call or stand between two")

    def up_to(self, literal: str) -> str:
        """What stands before the next `literal`, which is taken, too."""
        end = self.text.find(literal, self.at)
        if end < 0:
            raise Cut
        found, self.at = self.text[self.at : end], end + len(literal)
        return found

    def name(self) -> str:
        """Letters, digits, `_`, `.` and `-`."""
        self.stands("")
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise Cut() if self.at == len(self.text) else Unreadable("the name of a function is missing")
        self.at = found.end()
        return found[0]

    def json(self) -> Any:
        """A JSON value. It ends where it ends, whatever its strings hold."""
        self.stands("")
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            is_cut = "Unterminated" in error.msg or _BEGUN.fullmatch(self.text[error.pos :].strip())
            raise Cut() if is_cut else Unreadable(f"a call is not JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise Unreadable("a call is not JSON: it is nested too deeply, or a number too long") from error
        return value


def call_from(value: Any, key: str = "arguments") -> ToolCall:
    """The call that a JSON object says. Raises Unreadable."""
    if not isinstance(value, dict):
        raise Unreadable("a call must be an object")
    name, arguments = value.get("name"), value.get(key, value.get("arguments", {}))
    if not isinstance(name, str) or not name:
        raise Unreadable('a call needs a "name"')
    if not isinstance(arguments, dict):
        raise Unreadable(f'"{key}" must be an object')
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
