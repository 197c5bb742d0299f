"""Pure: a request in Anthropic's Messages format, checked, as the chat request that it means.

What the format has and chat has not:

- A user's message holds results of tools: each becomes a message of role `tool`, before the message's text.
- Claude Code's billing header, a line of the system prompt that changes with each request, is left out.
- Fields that are not known are counted by name, as `cache_control` is, unless they are misspelled.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from envsdk.engines.endpoint.errors import unsupported
from envsdk.engines.endpoint.messages import FIRST
from envsdk.engines.endpoint.parsing import (
    MAX_STOPS,
    Histories,
    OpenBody,
    check_names,
    read_json,
    unknown_in,
    validate,
)
from envsdk.engines.endpoint.wire import ChatFields, chat_fields
from envsdk.engines.sampling import Temperature, TopK, TopP
from envsdk.engines.tool_calls.reading import THOUGHT

FINISHED, UNFINISHED = "finished", "unfinished"
"""Signatures of thoughts: of one that ended, and of one that the reply was cut in."""
ERROR = "Error: "
"""Before the result of a tool that failed."""
_BILLING = re.compile(r"\s*x-anthropic-billing-header:.*\n*")


def _blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class TextBlock(OpenBody):
    type: Literal["text"]
    text: str


class ThinkingBlock(OpenBody):
    """A thought of the policy. Its signature comes back as it was given."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(OpenBody):
    """A thought that only Anthropic's servers can read: ignored."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(OpenBody):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolReferenceBlock(OpenBody):
    """A tool that a search for tools found."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        return self.tool_name


class ToolResultBlock(OpenBody):
    """What a call came to."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            list[Annotated[TextBlock | ToolReferenceBlock, Field(discriminator="type")]],
            FIRST,
            BeforeValidator(_blocks),
        ]
        | None
    ) = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class Turn(OpenBody):
    """One message."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[list[Annotated[Block, Field(discriminator="type")]], FIRST, BeforeValidator(_blocks)]


class Tool(OpenBody):
    """A tool of the client. Tools that Anthropic defines have a `type` and no schema: they are refused."""

    name: str
    type: str | None = None
    description: str = ""
    input_schema: dict[str, Any] | None = None


class ToolChoice(OpenBody):
    """Whether and which tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class MessagesFields(OpenBody):
    """`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[Any], Field(min_length=1)]
    system: Annotated[list[TextBlock], FIRST, BeforeValidator(_blocks)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS), FIRST] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    tools: Annotated[list[Tool], FIRST] | None = None
    tool_choice: ToolChoice | None = None
    output_config: dict[str, Any] | None = None


def _read_turn(given: Any, number: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The chat messages that a message means, and its fields that change nothing."""
    turn = validate(Turn, given, at=("messages", number))
    messages = _of_assistant(turn) if turn.role == "assistant" else _of_others(turn)
    return messages, unknown_in(turn, "messages[].")


def read_messages(body: bytes, histories: Histories) -> ChatFields:
    """The chat request that this one means. Raises ApiError."""
    asked = validate(MessagesFields, read_json(body))
    check_names(asked)
    ignored = unknown_in(asked)
    messages: list[dict[str, Any]] = []
    system = [text for block in asked.system or () if (text := _without_billing(block.text, ignored))]
    if system:
        messages.append({"role": "system", "content": "\n".join(system)})
    for turn, names in histories["messages"].read(asked.messages, _read_turn):
        messages += turn
        ignored += names
    values: dict[str, Any] = {
        "model": asked.model,
        "messages": messages,
        "max_tokens": asked.max_tokens,
        "stop": asked.stop_sequences,
        "stream": asked.stream,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
    }
    if asked.tools:
        values["tools"] = [_tool(tool, number) for number, tool in enumerate(asked.tools)]
    if choice := asked.tool_choice:
        named = {"type": "function", "function": {"name": choice.name or ""}}
        values["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
        values["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    for name, setting in (asked.output_config or {}).items():
        if name == "format" and isinstance(setting, dict):
            form = {"type": setting.get("type"), "json_schema": {"schema": setting.get("schema")}}
            values["response_format"] = form
        elif setting is not None:
            ignored.append(f"output_config.{name}")
    return chat_fields(values, ignored, histories["chat"])


def _without_billing(text: str, ignored: list[str]) -> str:
    rest = _BILLING.sub("", text, count=1) if _BILLING.match(text) else text
    if rest != text:
        ignored.append("system[].x-anthropic-billing-header")
    return rest


def _of_assistant(turn: Turn) -> list[dict[str, Any]]:
    content, thoughts, calls = "", "", []
    for block in turn.content:
        match block:
            case TextBlock():
                content += block.text
            case ThinkingBlock() if block.signature == UNFINISHED:
                content += THOUGHT[0] + block.thinking
            case ThinkingBlock(thinking=""):
                content += "".join(THOUGHT)
            case ThinkingBlock():
                thoughts += block.thinking
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                raise unsupported("messages", "has a `tool_result` in a message of the assistant")
    message: dict[str, Any] = {"role": "assistant", "content": content}
    message |= {"reasoning_content": thoughts} if thoughts else {}
    return [message | ({"tool_calls": calls} if calls else {})]


def _of_others(turn: Turn) -> list[dict[str, Any]]:
    """Results first: nothing comes between a call and its result."""
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
        for block in turn.content
        if isinstance(block, ToolResultBlock)
    ]
    texts = [block.text for block in turn.content if isinstance(block, TextBlock)]
    if results and not texts:
        return results
    return [*results, {"role": turn.role, "content": "\n".join(texts)}]


def _result(block: ToolResultBlock) -> str:
    text = "\n".join(part.text for part in block.content or ())
    return ERROR + text if block.is_error else text


def _tool(tool: Tool, number: int) -> dict[str, Any]:
    if tool.input_schema is None:
        raise unsupported(
            f"tools[{number}]",
            f"(`{tool.type or tool.name}`) has no `input_schema`: Anthropic's own tools are not served",
        )
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}
