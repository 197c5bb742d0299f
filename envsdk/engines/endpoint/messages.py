"""Pure: the messages of a conversation, as clients send them and as chat templates read them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import jinja2
from pydantic import FailFast

from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.chat_template import CALL
from envsdk.contracts.prompts import Message
from envsdk.engines.endpoint.errors import invalid, unsupported
from envsdk.engines.endpoint.parsing import OpenBody, unknown_in, validate
from envsdk.engines.tool_calls.formats import CLOSING, OPENING

CARRIES_CONTENT = frozenset(
    {"audio", "file", "files", "function_call", "image", "image_url", "images", "input_audio", "refusal",
     "video", "videos"}
)  # fmt: skip
"""Fields of a message that hold a part of it. Of the others that are not known nothing reaches the policy."""


class FirstProblem(FailFast):
    """Ends a list's validation at its first problem: a list of a million would take seconds to name.

    Hashable, as what stands in a union must be.
    """

    __hash__ = object.__hash__


FIRST = FirstProblem()


class FunctionCall(OpenBody):
    name: str
    arguments: str = "{}"


class ToolCallFields(OpenBody):
    """A call that an assistant's message holds."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class MessageFields(OpenBody):
    """One message of a conversation. Clients repeat those that they got, with fields of their own."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallFields], FIRST] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Reasoning of an assistant's message: the text between `<think>` and `</think>`, before its content."""
    reasoning: str | None = None
    """The same, by another name."""


def read_message(given: Any, number: int) -> tuple[dict[str, Any], list[str]]:
    """A message as chat templates read it, and its fields that change nothing. Raises ApiError."""
    message = validate(MessageFields, given, at=("messages", number))
    return _template_message(message, number), _ignored_in(message, number)


def _ignored_in(message: MessageFields, number: int) -> list[str]:
    for name, value in (message.model_extra or {}).items():
        if value and name in CARRIES_CONTENT:
            where = f"messages[{number}].{name}"
            raise unsupported(where, "is not supported: messages hold text and `tool_calls`")
    parts = message.content if isinstance(message.content, list) else ()
    found = [name for part in parts for name in part.keys() - {"type", "text"} if part[name]]
    return unknown_in(message, "messages[].") + [f"messages[].content[].{name}" for name in found]


def takes_system(chat: ChatTokenizer) -> bool:
    """Whether the model's chat template writes a system message inside a conversation where it stands."""
    turns = [("user", "envsdk1"), ("system", "envsdk2"), ("assistant", "envsdk3"), ("user", "envsdk4")]
    try:
        text = chat.render([{"role": role, "content": content} for role, content in turns])
    except jinja2.TemplateError:
        return False
    places = [text.find(content) for _, content in turns]
    return min(places) >= 0 and places == sorted(places)


def breaks_lines(chat: ChatTokenizer) -> list[str]:
    """What no conversation can be continued with in the model's own tokens: it would be a line of its own."""
    asked, call = {"role": "user", "content": "a"}, CALL["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": "b"}
    found = []
    for what, num_calls in (("the result of a call", 1), ("the results of several calls", 2)):
        reply = {**CALL, "tool_calls": [call] * num_calls}
        try:
            chat.behind_reply([asked, reply, *[result] * num_calls], 1, reply_closed=True)
        except jinja2.TemplateError:
            found.append(what)
    return found


def observation(messages: Sequence[Mapping[str, Any]], behind: int = 0) -> str:
    """The text behind the policy's last message, but for the system message at the beginning of all.

    Results of tools stand in their tags.
    """
    return "\n".join(_spelled_out(each)["content"] for each in messages[_observed_from(messages, behind) :])


def history(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> list[Message]:
    """The messages before the observation; tools, calls and results are text in them."""
    before = spelled_out(messages[: _observed_from(messages)], tools)
    return [{"role": each["role"], "content": each["content"]} for each in before]


def _observed_from(messages: Sequence[Mapping[str, Any]], behind: int = 0) -> int:
    for number in range(len(messages), behind, -1):
        role = messages[number - 1]["role"]
        if role == "assistant" or (role == "system" and number == 1):
            return number
    return behind


def settled(messages: Sequence[dict[str, Any]], *, takes_system: bool) -> list[dict[str, Any]]:
    """Messages whose system messages stand where templates take them.

    One between a tool's call and its result comes behind the result. Where `takes_system` says that the
    template takes none inside a conversation, it becomes a part of the next user's message, of the one before
    when the policy speaks next, or a user's message where there is neither.

    Nothing moves past a message of the assistant: what was settled before more is said stays as it is.
    """
    if "system" not in {message["role"] for message in messages[1:]}:
        return list(messages)
    placed: list[dict[str, Any]] = []
    for _, run in itertools.groupby(messages, key=lambda message: message["role"] == "assistant"):
        turn = list(run)
        head = turn[:1] if not placed else []
        turn = _behind_results(turn[len(head) :])
        placed += [*head, *turn] if takes_system else _without_system([*head, *turn], is_first=not placed)
    return placed


def _behind_results(turn: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    end = max((number for number, each in enumerate(turn, start=1) if each["role"] == "tool"), default=0)
    moved = [each for each in turn[:end] if each["role"] == "system"]
    return [*(each for each in turn[:end] if each["role"] != "system"), *moved, *turn[end:]]


def _without_system(turn: Sequence[dict[str, Any]], *, is_first: bool) -> list[dict[str, Any]]:
    """One turn of others than the policy, its system messages parts of the user's; the first of all stays."""
    plain: list[dict[str, Any]] = []
    waiting: list[str] = []
    for number, message in enumerate(turn):
        if message["role"] == "system" and not (is_first and number == 0):
            waiting.append(message["content"])
        elif message["role"] == "user":
            plain.append({**message, "content": "\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            plain.append(message)
    if waiting and plain and plain[-1]["role"] == "user":
        plain[-1] = {**plain[-1], "content": "\n".join([plain[-1]["content"], *waiting])}
    elif waiting:
        plain.append({"role": "user", "content": "\n".join(waiting)})
    return plain


def _template_message(message: MessageFields, number: int) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message, number)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if reasoning and role == "assistant":
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        if role != "assistant":
            raise invalid(f"messages[{number}].tool_calls", "only an assistant's message calls tools")
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return plain


def _arguments(text: str) -> Any:
    """Templates write arguments as JSON themselves."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(message: MessageFields, number: int) -> str:
    content = message.content
    where = f"messages[{number}].content"
    if content is None:
        if message.role == "assistant":
            return ""
        raise invalid(where, f"`{where}` is missing")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"`{where}` must be text or a list of parts")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise unsupported(where, f"has a part of type `{kind}`; only `text` is supported")
        texts.append(part["text"])
    return "".join(texts)


_TOOLS = """You may call functions to assist with the user's request. Their signatures, as JSON:
<tools>
{tools}
</tools>

For each call, write a JSON object with the function's name and its arguments in these tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def spelled_out(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Messages for a chat template without tools: the system message has those, calls and results are text.

    Each has its place; a system message comes in front where there is none and there are tools.
    """
    plain = [_spelled_out(message) for message in messages]
    if tools:
        shown = _TOOLS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        if not plain or plain[0]["role"] != "system":
            plain.insert(0, {"role": "system", "content": ""})
        plain[0]["content"] = f"{plain[0]['content']}\n\n{shown}".strip()
    return plain


def _spelled_out(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [
        f"{OPENING}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CLOSING}"
        for call in message.get("tool_calls", ())
    ]
    return {**message, "content": "\n".join(filter(None, [message["content"], *calls]))}


Messages = Sequence[Mapping[str, Any]]

_USER: dict[str, Any] = {"role": "user", "content": "envsdk"}
_SYSTEM: dict[str, Any] = {"role": "system", "content": "envsdk"}
_REPLY: dict[str, Any] = {"role": "assistant", "content": "envsdk"}
_FUNCTION: dict[str, Any] = {"name": "look", "arguments": {"where": "up"}}
_CALL = {**_REPLY, "tool_calls": [{"id": "envsdk123", "type": "function", "function": _FUNCTION}]}
_RESULT: dict[str, Any] = {"role": "tool", "content": "envsdk", "tool_call_id": "envsdk123"}
_LOOK = {"name": "look", "description": "", "parameters": {"type": "object"}}
_TOOL = {"type": "function", "function": _LOOK}

_BEFORE: Sequence[Messages] = (
    [_SYSTEM, _USER],
    [_USER, _REPLY, _USER],
    [_USER, _REPLY] * 4 + [_USER],
    [_SYSTEM, _USER, _CALL, _RESULT, _RESULT],
    [_USER, _CALL, _RESULT, _CALL, _RESULT, _REPLY, _USER, _CALL, _RESULT],
)
_BEHIND: Sequence[Messages] = ([], [_USER], [_RESULT], [_RESULT, _RESULT], [_RESULT, _USER], [_SYSTEM, _USER])


class RecentMessages:
    """Cuts conversations for one chat template.

    Most templates write the same whatever was said before the reply. Then a turn renders what is new, and not
    the conversation again.
    """

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat
        cases = itertools.product(_BEFORE, _BEHIND, (None, [_TOOL]))
        self.are_enough = all(self._are_enough(*case) for case in cases)
        """Whether the template looks no further back than this."""

    def _are_enough(self, before: Messages, behind: Messages, tools: Messages | None) -> bool:
        whole, at = [*before, _REPLY, *behind], len(before)
        return self._written(whole, at, tools) == self._written(*_cut(whole, at), tools)

    def _written(self, messages: Messages, at: int, tools: Messages | None) -> list[int] | None:
        try:
            return self._chat.behind_reply(messages, at, reply_closed=False, tools=tools)
        except jinja2.TemplateError:
            return None

    def of(self, messages: Messages, at: int) -> tuple[Messages, int]:
        """Messages with the reply `messages[at]` behind which the template writes the same, and its place."""
        if self.are_enough and all(message["role"] != "assistant" for message in messages[at + 1 :]):
            return _cut(messages, at)
        return messages, at


def _cut(messages: Messages, at: int) -> tuple[Messages, int]:
    head = [*(message for message in messages[:1] if message["role"] == "system"), _USER]
    return [*head, *messages[at:]], len(head)
