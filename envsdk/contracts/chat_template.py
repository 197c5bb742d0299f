"""A chat template: compiled as transformers does it, and the forms of messages that templates differ in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

Message = Mapping[str, Any]
"""A message for the template: `role`, `content`, and other keys that it reads, such as `tool_calls`."""

CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
    ],
}
"""A call, to find out in which form the template takes calls."""


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks an assistant's text; here the text is rendered without the mark."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(chat_template: str) -> jinja2.Template:
    """Compile as transformers does: the same sandbox, white space rules, filters and globals."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(chat_template)


def with_text_arguments(message: Message) -> Message:
    """The message with the arguments of its calls as JSON in a text, as DeepSeek's templates take them."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": calls}


def ending_in(reply: Message, mark: str) -> Message:
    """The reply with the mark as the argument of its last call."""
    *before, last = reply["tool_calls"]
    call = {**last, "function": {**last["function"], "arguments": {"mark": mark}}}
    return {**reply, "tool_calls": [*before, call]}
