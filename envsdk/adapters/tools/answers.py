"""The answer to a policy's reply: its calls are read, validated, carried out and answered.

    toolbox = Toolbox([add])
    answer = toolbox.answer('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>')
    answer.observation      # "<tool_response>\\n3\\n</tool_response>"

Calls are read in the formats of all families of models. What is wrong with a call is an answer, never an
exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from envsdk.adapters.missing import import_extra
from envsdk.adapters.tools.definition import Tool, ToolError, ToolUnavailable, tool
from envsdk.base.settings.nearest import did_you_mean
from envsdk.base.settings.problems import leaves
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.engines.tool_calls.formats import EXAMPLE, read_reply, schemas_of
from envsdk.engines.tool_calls.reading import AttemptStatus, ToolCall, attempt_metric

_LONGEST_REASON = 400
NO_CALLS = {"tool_calls": 0.0, "tool_errors": 0.0, **attempt_metric(AttemptStatus.NONE)}
"""Metrics of a reply that calls nothing."""


class CallStatus(StrEnum):
    """What became of one call."""

    OK = "ok"
    UNREADABLE = "unreadable"
    """The reply's calls could not be read; none of them was carried out."""
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    TOOL_FAILED = "tool_failed"
    OVER_LIMIT = "over_limit"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reply's calls came to."""

    observation: str
    """For the policy: one `<tool_response>` per call, in their order."""
    statuses: tuple[CallStatus, ...]
    """One per call; a single UNREADABLE when they could not be read."""
    attempt: AttemptStatus
    """How the reply's attempt to call went: whether its calls could be read, and are offered."""

    @property
    def is_valid(self) -> bool:
        """Whether every call could be carried out: a tool that failed was called well."""
        return all(status in (CallStatus.OK, CallStatus.TOOL_FAILED) for status in self.statuses)

    @property
    def num_carried_out(self) -> int:
        return sum(status in (CallStatus.OK, CallStatus.TOOL_FAILED) for status in self.statuses)

    def metrics(self) -> dict[str, float]:
        """For `info["metrics"]`."""
        return {
            "action_is_valid": float(self.is_valid),
            "tool_calls": float(self.num_carried_out),
            "tool_errors": float(sum(status is not CallStatus.OK for status in self.statuses)),
            **attempt_metric(self.attempt),
        }


class Toolbox:
    """Tools by name, and the limits of a reply. Keeps nothing between replies."""

    def __init__(
        self,
        tools: Sequence[Tool | Callable[..., Any]],
        *,
        max_calls_per_reply: int = 8,
        max_output_chars: int = 4000,
    ) -> None:
        """
        Args:
            tools: Tools, or functions that `tool` makes some of.
            max_calls_per_reply: Those beyond are answered with an error.
            max_output_chars: Longest output of one call; the middle of a longer one is left out.

        Raises ConfigurationError for two tools of one name, a schema that is none, and limits below 1.
        """
        if max_calls_per_reply < 1:
            raise ConfigurationError(f"max_calls_per_reply: must be at least 1, not {max_calls_per_reply}")
        if max_output_chars < 100:
            raise ConfigurationError(f"max_output_chars: must be at least 100, not {max_output_chars}")
        self.tools: dict[str, Tool] = {}
        self._validators: dict[str, Any] = {}
        for item in tools:
            added = item if isinstance(item, Tool) else tool(item)
            if added.name in self.tools:
                raise ConfigurationError(f"two tools are named {added.name!r}: rename one of them")
            self.tools[added.name] = added
            self._validators[added.name] = _validator(added)
        if not self.tools:
            raise ConfigurationError("a toolbox needs a tool")
        self._schemas = schemas_of(self.described())
        self._max_calls_per_reply = max_calls_per_reply
        self._max_output_chars = max_output_chars

    def described(self) -> list[dict[str, Any]]:
        """The tools as chat templates and OpenAI's protocol take them in `tools`."""
        return [each.described() for each in self.tools.values()]

    def as_text(self) -> str:
        """The tools and how to call them, for a prompt."""
        lines = [json.dumps(each["function"], ensure_ascii=False) for each in self.described()]
        return "\n".join(["Tools:", *lines, f"Call one: {EXAMPLE}"])

    def answer(self, reply: str, *, num_calls_left: int | None = None) -> Answer | None:
        """Carry out the calls of a reply; None when it holds none.

        `num_calls_left`: calls beyond are answered with an error. Raises ToolUnavailable, from a tool.
        """
        reading = read_reply(reply, tools=self._schemas)
        if reading.status is AttemptStatus.NONE:
            return None
        if not reading.calls:
            reason = f"Error: no call was made: {_cut(reading.problem, _LONGEST_REASON)}"
            return Answer(self._response(reason), (CallStatus.UNREADABLE,), reading.status)
        limit = self._max_calls_per_reply
        reason = f"at most {limit} calls fit into one reply"
        if num_calls_left is not None and num_calls_left < limit:
            limit, reason = num_calls_left, "no calls are left"
        responses, statuses = [], []
        for number, call in enumerate(reading.calls):
            status, output = (
                self._carry_out(call) if number < limit else (CallStatus.OVER_LIMIT, f"Error: {reason}")
            )
            statuses.append(status)
            # Calls beyond the limit get one error.
            if number <= limit:
                responses.append(self._response(output))
        return Answer("\n".join(responses), tuple(statuses), reading.status)

    def _carry_out(self, call: ToolCall) -> tuple[CallStatus, str]:
        known = self.tools.get(call.name)
        if known is None:
            hint = did_you_mean(call.name, self.tools)
            names = ", ".join(self.tools)
            error = f"Error: there is no tool {_cut(call.name, 64)!r}.{hint} Tools: {names}"
            return CallStatus.UNKNOWN_TOOL, error
        arguments, reason = self._read(call)
        if reason:
            return CallStatus.INVALID_ARGUMENTS, f"Error: {call.name}: {_cut(reason, _LONGEST_REASON)}"
        try:
            output = known.call(arguments)
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
        except ToolUnavailable:
            raise
        except ToolError as error:
            return CallStatus.TOOL_FAILED, f"Error: {error}"
        except Exception as error:  # noqa: BLE001 - boundary: the policy gets what a tool raises
            return CallStatus.TOOL_FAILED, f"Error: {call.name} failed: {describe_error(error)}"
        return CallStatus.OK, text

    def _read(self, call: ToolCall) -> tuple[dict[str, Any], str]:
        """The arguments, and what is wrong with them."""
        try:
            arguments: dict[str, Any] = json.loads(call.arguments, parse_constant=_refuse_constant)
            worst = _jsonschema().exceptions.best_match(self._validators[call.name].iter_errors(arguments))
        except ValueError as error:
            return {}, str(error)
        except RecursionError:
            return {}, "the arguments are nested too deeply"
        if worst is None:
            return arguments, ""
        where = worst.json_path.removeprefix("$").removeprefix(".")
        return {}, f"{where}: {worst.message}" if where else worst.message

    def _response(self, output: str) -> str:
        # A lone surrogate cannot be stored or tokenized.
        text = _cut(output, self._max_output_chars).encode("utf-8", "replace").decode()
        return f"<tool_response>\n{text}\n</tool_response>"


def _validator(added: Tool) -> Any:
    if added.parameters.get("type", "object") != "object":
        raise ConfigurationError(f"tool {added.name!r}: its schema must be that of an object")
    jsonschema = _jsonschema()
    cls = jsonschema.validators.validator_for(added.parameters, default=jsonschema.Draft202012Validator)
    try:
        cls.check_schema(added.parameters)
    except jsonschema.SchemaError as error:
        raise ConfigurationError(f"tool {added.name!r}: its schema is none: {error.message}") from error
    for path, reference in leaves(added.parameters, in_lists=True):
        # Nothing is fetched from the network.
        if path[-1:] == ("$ref",) and isinstance(reference, str) and not reference.startswith("#"):
            raise ConfigurationError(f"tool {added.name!r}: its schema refers to {reference}, elsewhere")
    return cls(added.parameters)


def _jsonschema() -> Any:
    return import_extra("jsonschema", extra="tools")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _cut(text: str, limit: int) -> str:
    """The text with its middle left out where it is too long."""
    if len(text) <= limit:
        return text
    note = f"\n... {len(text) - limit} characters left out ...\n"
    kept = max(limit - len(note), 0)
    tail = kept // 2
    return text[: kept - tail] + note + (text[-tail:] if tail else "")
