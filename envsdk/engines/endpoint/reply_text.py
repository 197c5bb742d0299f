"""Pure: from sampled tokens to text, piece by piece.

    token* -> (some text may be shown)* -> finish: the rest

The pieces put together are the text of all tokens, whole characters at a time; text that may turn out to be
a stop string or the start of a tool call is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from envsdk.engines.endpoint.tool_calls import CLOSING, end_of_first_call

Decode = Callable[[Sequence[int]], str]

THOUGHT = "<think>", "</think>"
"""What a reply's thought stands between."""
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

    text = ReplyText(decode, stops=["\\n"], hold_from="<tool_call>")
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
        hold_from: str = "",
        ends_with_first_call: bool = False,
    ) -> None:
        """Nothing after the first `hold_from` is shown before `finish`; empty is off.

        With `ends_with_first_call` the first tool call that can be read ends the reply, and belongs to it.
        """
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._hold_from = hold_from
        self._ends_with_first_call = ends_with_first_call
        self._longest_stop = max(map(len, (*stops, CLOSING)))
        self._markers = [*stops, hold_from] if hold_from else list(stops)
        self._num_shown = 0
        self._is_held = False
        self.whole = ""
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
        if self._ends_with_first_call and CLOSING in self.whole[search_from:]:
            behind = end_of_first_call(self.whole)
            ends += [(behind, "")] if behind is not None else []
        if ends:
            end, self.stop = min(ends)
            self.whole = self.whole[:end]
            self.is_stopped = True

    def _safe_end(self) -> int:
        if self._hold_from and not self._is_held:
            at = self.whole.find(self._hold_from, self._num_shown)
            if at >= 0:
                self._is_held = True
                return at
        if self._is_held:
            return self._num_shown
        if self.is_stopped:
            return len(self.whole)
        return len(self.whole) - _longest_beginning(self.whole, self._markers)

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
            if self._waiting.startswith(opening):
                self.part, self._waiting = "thinking", self._waiting[len(opening) :]
                given.append(("thinking", ""))
            elif not opening.startswith(self._waiting):
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
