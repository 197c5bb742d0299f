"""Rows of known formats under the standard names. Pure.

ROLL        id source difficulty prompt messages ground_truth case_type test_case_function test_cases tag
GSM8K       question answer (`... #### 72`)          MATH-500    problem solution answer subject level
DeepMath    question final_answer difficulty topic    AIME        Problem Answer ID
Big-Math    problem answer domain llama8b_solve_rate  KodCode     question solution test style
ORZ         [{from: human, value}, {from: assistant, ground_truth: {value}}]
verl        prompt (a chat), reward_model {ground_truth}, data_source
ToolACE     system conversations tools answer
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from envsdk.contracts.failures import without_lone_surrogates
from envsdk.contracts.prompts import Message

COLUMNS_OF: Mapping[str, Sequence[str]] = {
    "prompt": ("prompt", "question", "problem", "Problem", "Question", "instruction"),
    "messages": ("messages", "conversations"),
    "system": ("system", "raw_system"),
    "ground_truth": ("ground_truth", "final_answer", "answer", "Answer"),
    "id": ("id", "ID", "unique_id", "question_id"),
    "source": ("source", "data_source"),
    "difficulty": ("difficulty", "level"),
}
"""Standard name -> columns that it is read from, the first that is there."""
_AFTER_HASHES = re.compile(r"####\s*(.+?)\s*$", re.DOTALL)
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    **{name: name for name in ("user", "assistant", "system", "tool")},
}


_UNSEEN = ("image", "images", "video", "videos", "audio", "audios")
"""Columns of what a prompt shows beside its text."""


class UnusableRow(ValueError):
    """Why a row cannot be asked, in one line."""


class _NoPrompt(Exception):
    """No column is one of a prompt."""


def standard_row(value: Any, columns: Mapping[str, str]) -> tuple[list[Message], dict[str, Any]]:
    """The prompt as a chat, and all fields under their standard names. Raises UnusableRow.

    `columns` (standard name -> column) goes before the formats that are known.
    """
    fields = _fields(value)
    for name, known in COLUMNS_OF.items():
        column = columns.get(name) or next((each for each in known if each in fields), None)
        if column is not None and fields.get(column) is not None:
            fields[name] = fields[column]
    for name, column in columns.items():
        if name not in COLUMNS_OF and column in fields:
            fields[name] = fields[column]
    if unseen := [name for name in _UNSEEN if _holds(fields.get(name))]:
        raise UnusableRow(f"has {unseen[0]}: only text can be shown")
    _add_truth(fields)
    try:
        return _messages(fields, columns), fields
    except _NoPrompt:
        there = ", ".join(map(str, value)) if isinstance(value, dict) else ""
        raise UnusableRow(f"has no prompt; its columns are {there or 'none'}") from None


def _holds(value: Any) -> bool:
    """Whether there is something in it: in Parquet a picture that is absent may be a struct of nulls."""
    if isinstance(value, dict | list):
        return any(map(_holds, value.values() if isinstance(value, dict) else value))
    return value not in (None, "")


def key_of(fields: Mapping[str, Any]) -> str:
    """What decides the domain of a row: its `domain`, or else its `tag`."""
    for name in ("domain", "tag"):
        value = fields.get(name)
        if isinstance(value, str | int) and value != "":
            return str(value)
    return ""


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return _orz_fields(value)
    raise UnusableRow(f"is no JSON object, but {_kind(value)}")


def _orz_fields(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """A row that is a conversation; the last message has the ground truth."""
    last = turns[-1].get("ground_truth")
    truth = last.get("value") if isinstance(last, dict) else last
    asked = turns[:-1] if truth is not None else turns
    return {"messages": asked, "ground_truth": truth}


def _add_truth(fields: dict[str, Any]) -> None:
    """The reference answer, taken out of GSM8K's worked solution and verl's section."""
    truth = fields.get("ground_truth")
    if truth is None and isinstance(fields.get("reward_model"), dict):
        truth = fields["reward_model"].get("ground_truth")
    if isinstance(truth, str) and (found := _AFTER_HASHES.search(truth)):
        fields.setdefault("solution", truth)
        truth = found[1].replace(",", "")
    if truth is not None:
        fields["ground_truth"] = truth


def _messages(fields: Mapping[str, Any], columns: Mapping[str, str]) -> list[Message]:
    chat = fields.get("messages")
    prompt = fields.get("prompt")
    if "prompt" in columns and "messages" not in columns:
        chat = None
    if chat in ("", []):
        chat = None
    if chat is None and isinstance(prompt, list):
        chat = prompt
    if chat is not None:
        messages = _chat(chat)
        system = fields.get("system")
        if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
            return [{"role": "system", "content": without_lone_surrogates(system)}, *messages]
        return messages
    if prompt is None:
        raise _NoPrompt
    if not isinstance(prompt, str):
        raise UnusableRow(f"its prompt is {_kind(prompt)}")
    if not prompt.strip():
        raise UnusableRow("its prompt is empty")
    return [{"role": "user", "content": without_lone_surrogates(prompt)}]


def _chat(chat: Any) -> list[Message]:
    if isinstance(chat, str):
        try:
            chat = json.loads(chat)
        except json.JSONDecodeError as error:
            raise UnusableRow(f"its messages are no JSON: {error.msg}") from None
    if not isinstance(chat, list) or not chat:
        raise UnusableRow(f"its messages are {_kind(chat)}, not a list of them")
    messages = [_message(each) for each in chat]
    roles = [each["role"] for each in messages]
    if roles[-1] != "user":
        raise UnusableRow(f"its messages end with one of the {roles[-1]}, not with the user's")
    if not messages[-1]["content"].strip():
        raise UnusableRow("its last message is empty")
    if "system" in roles[1:]:
        raise UnusableRow("has a system message that is not its first")
    return messages


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise UnusableRow(f"a message is {_kind(value)}, not an object with role and content")
    role, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
    if not isinstance(role, str) or role not in _ROLES:
        raise UnusableRow(f"a message has the role {str(role)[:40]!r}; known: system, user, assistant, tool")
    if not isinstance(content, str):
        raise UnusableRow(f"the content of a message is {_kind(content)}, not text: images cannot be shown")
    return {"role": _ROLES[role], "content": without_lone_surrogates(content)}


def _kind(value: Any) -> str:
    kinds = {str: "a text", list: "a list", dict: "an object", type(None): "null", bool: "a truth value"}
    return kinds.get(type(value), "a number")
