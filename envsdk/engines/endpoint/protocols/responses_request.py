"""Pure: a request in the format of OpenAI's Responses, checked, as the chat request that it means.

What the format has and chat has not:

- A reply is several items: its reasoning, its text and each of its calls. Together they are one message.
- A custom tool takes text, not JSON: here it is a function with the one argument `input`.
- A namespace holds tools: the function `NAMESPACE__NAME` is called.
- Fields that are not known, and tools that OpenAI's servers run, are counted by name and change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, RootModel, Tag

from envsdk.engines.endpoint.errors import invalid, unsupported
from envsdk.engines.endpoint.messages import FIRST
from envsdk.engines.endpoint.parsing import Histories, OpenBody, check_names, read_json, unknown_in, validate
from envsdk.engines.endpoint.wire import NOT_HELD, ChatFields, chat_fields
from envsdk.engines.sampling import Temperature, TopP
from envsdk.engines.tool_calls.input_grammar import Inexpressible, input_pattern
from envsdk.engines.tool_calls.reading import THOUGHT

ENCRYPTED = "reasoning.encrypted_content"
"""What `include` names where reasoning is to come as a text that the client sends back as it is."""
SEALED = "envsdk:"
"""Begins such a text; the reasoning follows as the policy wrote it, with its tags."""


def _parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


class Part(OpenBody):
    """A part of a message, of a result, or of reasoning."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "text"]
    text: str
    annotations: Any = None
    logprobs: Any = None


Texts = Annotated[list[Part], FIRST, BeforeValidator(_parts)]


class Item(OpenBody):
    """One item of `input`."""

    id: Any = None
    status: str | None = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts

    @cached_property
    def text(self) -> str:
        return _text(self.content)


class ReasoningItem(Item):
    type: Literal["reasoning"]
    content: Texts | None = None
    summary: Any = None
    encrypted_content: str | None = None

    @property
    def written(self) -> str:
        """As the policy wrote it, with its tags; empty where another model thought, which nobody can read."""
        if self.encrypted_content is not None and self.encrypted_content.startswith(SEALED):
            return self.encrypted_content.removeprefix(SEALED)
        if self.content is None:
            return ""
        return THOUGHT[0] + _text(self.content) + ("" if self.status == "incomplete" else THOUGHT[1])


class CallItem(Item):
    """A call of a function, or of a custom tool."""

    type: Literal["function_call", "custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str = "{}"
    input: str = ""

    @property
    def call(self) -> dict[str, Any]:
        arguments = self.arguments if self.type == "function_call" else json.dumps({"input": self.input})
        function = {"name": _called(self.namespace, self.name), "arguments": arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class ResultItem(Item):
    """What a call came to."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Texts

    @cached_property
    def text(self) -> str:
        return _text(self.output)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallItem, Tag("custom_tool_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ResultItem, Tag("custom_tool_call_output")],
    Discriminator(lambda item: item.get("type", "message") if isinstance(item, dict) else None),
]


class _Item(RootModel[InputItem]):
    """Any of them."""


def _read_item(given: Any, number: int) -> tuple[Item, list[str]]:
    """The item, and its fields that change nothing."""
    item = validate(_Item, given, at=("input", number)).root
    return item, unknown_in(item, "input[].")


class ToolFormat(OpenBody):
    """What the input of a custom tool must be."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] = "lark"
    definition: str = ""


class Tool(OpenBody):
    """A function, a custom tool, a namespace of both, or a tool that OpenAI's servers run."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None
    tools: Annotated[list[Tool], FIRST] | None = None


class TextConfig(OpenBody):
    """What the text of a reply must be."""

    format: dict[str, Any] | None = None


class ResponsesFields(OpenBody):
    """`POST /v1/responses`."""

    model: str
    input: Annotated[list[Any], Field(min_length=1), BeforeValidator(
        lambda given: [{"role": "user", "content": given}] if isinstance(given, str) else given
    )]  # fmt: skip
    instructions: str | None = None
    tools: Annotated[list[Tool], FIRST] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: TextConfig | None = None
    include: Annotated[list[str], FIRST] | None = None
    stream: bool | None = None


_REFUSED: Mapping[str, str] = {
    "background": "ask for a stream, or wait for the answer",
    "conversation": "send the whole conversation as `input`",
    "previous_response_id": "send the whole conversation as `input`, with the items of the earlier answers",
    "prompt": "send its text as `instructions` or `input`",
}
"""Fields whose loss would make another request of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A request as it is answered."""

    fields: ChatFields
    tools: Mapping[str, tuple[str | None, Tool]]
    """The tools with their namespaces, by the names under which the policy calls them."""
    echoed: Mapping[str, Any]
    """Fields that the answer repeats."""
    seals_reasoning: bool
    """Whether reasoning comes as `encrypted_content` too."""


def read_responses(body: bytes, histories: Histories) -> ResponsesRequest:
    """Raises ApiError, some with the field as the chat request has it: see `NAMES`."""
    values = read_json(body)
    for name, why in _REFUSED.items():
        if values.get(name):
            raise unsupported(name, f"is not supported, since nothing is stored: {why}")
    asked = validate(ResponsesFields, values)
    check_names(asked)
    ignored = unknown_in(asked)
    items = histories["responses"].read(asked.input, _read_item)
    ignored += [name for _, names in items for name in names]
    ignored += [f"include[].{name}" for name in asked.include or () if name != ENCRYPTED]
    tools: list[dict[str, Any]] = []
    names: dict[str, tuple[str | None, Tool]] = {}
    patterns: dict[str, str] = {}
    for number, (namespace, tool) in enumerate(_tools(asked.tools or (), ignored)):
        name = _called(namespace, tool.name)
        if not tool.name or name in names:
            problem = f"two tools have the name `{name}`" if tool.name else "a tool has no name"
            raise invalid(f"tools[{number}]", problem)
        names[name] = namespace, tool
        if tool.format is not None and tool.format.type == "grammar":
            if not tool.format.definition:
                raise invalid(f"tools[{number}].format.definition", f"`{name}`: is missing or empty")
            try:
                patterns[name] = input_pattern(tool.format.syntax, tool.format.definition)
            except Inexpressible:
                ignored.append(NOT_HELD)
            except ValueError as error:
                raise invalid(f"tools[{number}].format.definition", f"`{name}`: {error}") from error
        tools.append({"type": "function", "function": {"name": name, **_function(tool)}})
    chat: dict[str, Any] = {
        "model": asked.model,
        "messages": _messages(asked.instructions, [item for item, _ in items], ignored),
        "max_tokens": asked.max_output_tokens,
        "stream": asked.stream,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "tools": tools or None,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "tool_choice": _choice(asked.tool_choice),
        "response_format": _format(asked.text.format) if asked.text and asked.text.format else None,
    }
    return ResponsesRequest(
        fields=chat_fields(chat, ignored, histories["chat"], patterns=patterns),
        tools=names,
        echoed={name: values.get(name, default) for name, default in _ECHOED.items()},
        seals_reasoning=ENCRYPTED in (asked.include or ()),
    )


_ECHOED: Mapping[str, Any] = {
    **dict.fromkeys(["instructions", "max_output_tokens", "reasoning", "temperature", "top_p"]),
    **{"metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []},
    "text": {"format": {"type": "text"}},
}
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
"""Fields of the chat request, as they are called here."""


def _called(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts)


def _messages(instructions: str | None, items: Sequence[Item], ignored: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    place = 0
    """Place of the last item in the assistant's message: 1 reasoning, 2 text, 3 a call; 0 without one."""
    for item in items:
        match item:
            case ResultItem():
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.text})
                place = 0
            case MessageItem() if item.role != "assistant":
                messages.append({"role": item.role, "content": item.text})
                place = 0
            case ReasoningItem(written=""):
                ignored.append("input[].encrypted_content")
            case ReasoningItem() | MessageItem() | CallItem():
                here = {"reasoning": 1, "message": 2}.get(item.type, 3)
                if place == 0 or here < place or here == place != 3:
                    messages.append({"role": "assistant", "content": ""})
                _add(messages[-1], item)
                place = here
    return messages


def _add(message: dict[str, Any], item: ReasoningItem | MessageItem | CallItem) -> None:
    """One item more of the assistant's message."""
    match item:
        case ReasoningItem():
            thought = item.written.removeprefix(THOUGHT[0])
            if thought.endswith(THOUGHT[1]) and thought != THOUGHT[1]:
                message["reasoning_content"] = thought.removesuffix(THOUGHT[1])
            else:  # empty, or cut
                message["content"] = item.written
        case MessageItem():
            message["content"] += item.text
        case CallItem():
            message.setdefault("tool_calls", []).append(item.call)


def _tools(given: Sequence[Tool], ignored: list[str]) -> Iterator[tuple[str | None, Tool]]:
    """Functions and custom tools with their namespaces; the types of others go to `ignored`."""
    for tool in given:
        namespace = tool.name if tool.type == "namespace" else None
        for each in (tool.tools or ()) if namespace is not None else (tool,):
            if each.type in ("function", "custom"):
                yield namespace, each
            else:
                ignored.append(f"tools[].{each.type}")


def _function(tool: Tool) -> dict[str, Any]:
    if tool.type == "function":
        return {"description": tool.description or "", "parameters": tool.parameters or {}}
    description = tool.description or ""
    if tool.format is not None and tool.format.definition:
        description += f"\n\nThe input follows this {tool.format.syntax} grammar:\n{tool.format.definition}"
    taken = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"description": description.strip(), "parameters": taken}


def _choice(given: Any) -> Any:
    if given is None or given in ("auto", "none", "required"):
        return given
    kind = given.get("type") if isinstance(given, dict) else given
    if kind not in ("function", "custom"):
        raise unsupported(
            "tool_choice",
            f"is `{kind}`; supported: `auto`, `none`, `required`, and a function or custom tool",
        )
    return {"type": "function", "function": {"name": _called(given.get("namespace"), str(given.get("name")))}}


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in given.items() if name != "type"}
    return {"type": given.get("type"), **({"json_schema": rest} if rest else {})}
