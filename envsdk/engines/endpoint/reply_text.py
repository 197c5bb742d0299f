"""Pure: from sampled tokens to text, piece by piece, and how the replies of one model are read.

    token* -> (some text may be shown)* -> finish: the rest

The pieces put together are the text of all tokens, whole characters at a time; text that may turn out to be
a stop string or the start of a tool call is held back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import jinja2

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.endpoint.messages import breaks_lines
from envsdk.engines.endpoint.wire import ChatFields, SamplingFields
from envsdk.engines.tool_calls.formats import FORMATS, HERMES, format_of, read_reply, schemas_of, writes_tools
from envsdk.engines.tool_calls.reading import THOUGHT, AttemptStatus, CallFormat, Reading, ToolParser

Decode = Callable[[Sequence[int]], str]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What bytes that are no whole character decode to."""


class Detokenizer:
    """Text of a growing list of tokens.

    A few tokens are decoded each time: those that give the new text, and those before them, without which a
    decoder might drop a leading space.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0
        """Where the tokens begin that are decoded again each time."""
        self._num_decoded = 0
        """Tokens whose text was given."""

    def push(self, token: int) -> str:
        """The text that this token completes; empty in the middle of a character."""
        self._ids.append(token)
        return self._take(is_last=False)

    def finish(self) -> str:
        """What is left of a character that never came to its end."""
        return self._take(is_last=True)

    def _take(self, *, is_last: bool) -> str:
        before = self._decode(self._ids[self._context : self._num_decoded])
        after = self._decode(self._ids[self._context :])
        if after.endswith(_BROKEN) and not is_last:
            return ""
        if len(after) > len(before):
            self._context = self._num_decoded
        self._num_decoded = len(self._ids)
        return after[len(before) :]


class ReplyText:
    """The text of one reply as it comes.

    text = ReplyText(decode, stops=["\\n"], calls=HERMES)
    for token in tokens:
        shown += text.push(token)
        if text.is_stopped:
            break
    shown += text.finish()
    """

    def __init__(
        self,
        decode: Decode,
        *,
        stops: Sequence[str] = (),
        begun: str = "",
        calls: CallFormat | None = None,
        ends_with_first_call: bool = False,
    ) -> None:
        """`begun` is the text of a reply that begins in its prompt.

        Neither what follows the first mark of `calls` nor white space that may stand before it is shown
        before `finish`. With `ends_with_first_call` the first call that can be read ends the reply, and
        belongs to it, in formats whose calls end one by one.
        """
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._calls = calls
        self._openings = calls.openings if calls is not None else ()
        self._closing = calls.closing if calls is not None and ends_with_first_call else ""
        self._longest_stop = max(map(len, (*stops, self._closing)))
        self._markers = [*stops, *self._openings]
        self._num_shown = 0
        self._is_held = False
        self.whole = begun
        """All text so far, what is held back included; it ends before a stop string."""
        self.is_stopped = False
        """Whether the reply has ended: no further token belongs to it."""
        self.stop = ""
        """The stop string that ended it; empty where none did."""

    def push(self, token: int) -> str:
        """What may be shown now."""
        self._append(self._detokenizer.push(token))
        return self._show(self._safe_end())

    def finish(self) -> str:
        """What was held back; the reply has ended."""
        if not self.is_stopped:
            self._append(self._detokenizer.finish())
        return self._show(len(self.whole))

    def _append(self, new: str) -> None:
        search_from = max(0, len(self.whole) - self._longest_stop + 1)
        self.whole += new
        ends = [(at, stop) for stop in self._stops if (at := self.whole.find(stop, search_from)) >= 0]
        at = self.whole.find(self._closing, search_from) if self._closing else -1
        if self._calls and at >= 0 and self._calls.read(self.whole[: at + len(self._closing)], {}).calls:
            ends.append((at + len(self._closing), ""))
        if ends:
            end, self.stop = min(ends)
            self.whole = self.whole[:end]
            self.is_stopped = True

    def _safe_end(self) -> int:
        if not self._is_held:
            places = [self.whole.find(each, self._num_shown) for each in self._openings]
            at = min((place for place in places if place >= 0), default=-1)
            if at >= 0:
                self._is_held = True
                return len(self.whole[:at].rstrip())
        if self._is_held:
            return self._num_shown
        if self.is_stopped:
            return len(self.whole)
        end = len(self.whole) - _longest_beginning(self.whole, self._markers)
        return len(self.whole[:end].rstrip()) if self._openings else end

    def _show(self, end: int) -> str:
        shown, self._num_shown = self.whole[self._num_shown : end], max(end, self._num_shown)
        return shown


Part = Literal["thinking", "text"]


class ThoughtText:
    """A reply's thought, which it begins with in `<think>` and `</think>`, apart from its text.

    parts = ThoughtText()
    parts.push("<think>Hm.</th")    [("thinking", ""), ("thinking", "Hm.")]
    parts.push("ink>Yes")           [("text", "Yes")]
    parts.finish()                  []

    What may turn out to be a tag is held back. A thought begins with an empty text, since it may stay empty.
    """

    def __init__(self) -> None:
        self._waiting = ""
        self.part: Part | None = None
        """What comes next; None before it is known."""

    def push(self, text: str) -> list[tuple[Part, str]]:
        """What is certain now."""
        self._waiting += text
        given: list[tuple[Part, str]] = []
        opening, closing = THOUGHT
        if self.part is None and self._waiting:
            begun = self._waiting.lstrip()
            if begun.startswith(opening):
                self.part, self._waiting = "thinking", begun[len(opening) :]
                given.append(("thinking", ""))
            elif not opening.startswith(begun):
                self.part = "text"
        if self.part == "thinking":
            thought, found, rest = self._waiting.partition(closing)
            if not found:
                end = len(thought) - _longest_beginning(thought, [closing])
                thought, rest = thought[:end], thought[end:]
            given += [("thinking", thought)] if thought else []
            self._waiting = rest
            self.part = "text" if found else "thinking"
        if self.part == "text" and self._waiting:
            given.append(("text", self._waiting))
            self._waiting = ""
        return given

    def finish(self) -> list[tuple[Part, str]]:
        """What was held back."""
        rest, self._waiting = self._waiting, ""
        return [(self.part or "text", rest)] if rest else []


def _longest_beginning(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that one of `markers` begins with."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest


_logger = logging.getLogger(__name__)


class ReplyReader:
    """Reads the replies of one model. Keeps nothing between them."""

    def __init__(self, chat: ChatTokenizer, tool_parser: ToolParser) -> None:
        """`tool_parser` as in `EndpointConfig`."""
        self.chat = chat
        self.writes_tools = writes_tools(chat)
        found = format_of(chat) if self.writes_tools else HERMES
        if tool_parser != "auto":
            found = FORMATS[tool_parser]
        elif found is None:
            _logger.warning(
                "the chat template writes tool calls in no known format: they are read as `hermes`, unless "
                "tool_parser names another"
            )
        self.calls = found or HERMES
        if broken := breaks_lines(chat) if self.writes_tools else []:
            _logger.warning(
                "the chat template cannot be cut behind a reply for %s: each begins a line of its own, whose "
                "earlier replies are tokenized again",
                " and ".join(broken),
            )
        try:
            prompt = chat.render([{"role": "user", "content": ""}])
        except jinja2.TemplateError:
            prompt = ""
        self._begun = THOUGHT[0] if prompt.rstrip().endswith(THOUGHT[0]) else ""

    def text(self, fields: SamplingFields) -> ReplyText:
        """For one reply to a request."""
        if not isinstance(fields, ChatFields):
            return ReplyText(self.chat.decode, stops=fields.stops)
        return ReplyText(
            self.chat.decode,
            stops=fields.stops,
            begun="" if fields.structure else self._begun,
            calls=self.calls if fields.reads_tool_calls or self.calls.plain else None,
            ends_with_first_call=fields.ends_with_first_call,
        )

    def read(self, fields: SamplingFields, text: str) -> Reading:
        """What a whole reply says and calls; nothing is called where no tools are given."""
        if not isinstance(fields, ChatFields) or not (fields.reads_tool_calls or self.calls.plain):
            return Reading(AttemptStatus.NONE, text)
        reading = read_reply(text, self.calls, tools=schemas_of(fields.tools))
        if not fields.reads_tool_calls:
            return Reading(AttemptStatus.NONE, text if reading.calls else reading.shown)
        return replace(reading, calls=reading.calls[:1]) if fields.ends_with_first_call else reading
