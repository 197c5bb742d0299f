"""How the replies of one model are read: where a thought begins, in which format calls are written."""

from __future__ import annotations

import logging
from dataclasses import replace

import jinja2

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.endpoint.messages import breaks_lines
from envsdk.engines.endpoint.reply_text import ReplyText
from envsdk.engines.endpoint.wire import ChatFields, SamplingFields
from envsdk.engines.tool_calls.formats import FORMATS, HERMES, format_of, read_reply, schemas_of, writes_tools
from envsdk.engines.tool_calls.reading import THOUGHT, AttemptStatus, Reading, ToolParser

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
