"""Pure: what clients ask for, checked. Refusals are `ApiError`s that name the field.

The fields are those of OpenAI's chat completions and completions, with vLLM's `top_k`, `min_p`,
`repetition_penalty`, `stop_token_ids`, `ignore_eos`, `return_token_ids` and `structured_outputs`. A field
that would change the reply and is not supported is refused unless it holds the value that changes nothing.
What never changes a reply is ignored, and counted (`SamplingFields.ignored`): clients send more than was
asked of them, and repeat whole messages.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from envsdk.engines.endpoint.errors import invalid, unsupported
from envsdk.engines.endpoint.messages import FIRST, read_message
from envsdk.engines.endpoint.parsing import MAX_STOPS, ClosedBody, GrowingList, read_json, validate
from envsdk.engines.sampling import LogitChanges, MinP, OutputStructure, TaggedJson, Temperature, TopK, TopP
from envsdk.engines.tool_calls.formats import OPENING, call_of

COMPLETION_MAX_TOKENS = 16
"""Longest reply of `/v1/completions` where a request says nothing, as OpenAI has it."""
MAX_CHOICES = 128
"""Most replies to one prompt."""
MAX_REPLIES = 1024
"""Most replies to one request with several prompts."""
MAX_STOP_TOKENS = 128
"""Most stop tokens of one request."""
MAX_REGEX_CHARS = 1 << 13
MAX_STRUCTURE_CHARS = 1 << 16
"""Longest schema, and all choices together: an engine reads each within half a second."""
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
"""Most tokens that `logit_bias` may name."""

NOT_HELD = "tools[].format"
"""What is counted where calls are not held to the grammar of a tool."""

_FIELDS = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
_NEUTRAL: Mapping[str, Sequence[Any]] = _FIELDS["neutral"]
_INSTEAD: Mapping[str, str] = _FIELDS["instead"]
_WITHOUT_EFFECT = frozenset(_FIELDS["without_effect"])
Parsed = TypeVar("Parsed", bound="SamplingFields")


class StreamOptions(ClosedBody):
    """Options of a streamed reply."""

    include_usage: bool = False
    """Whether a last chunk tells the number of tokens."""
    include_obfuscation: bool = False
    """Taken and ignored."""


class JsonSchema(ClosedBody):
    """`json_schema` of a `response_format`. `strict` or not, replies are held to the schema."""

    name: str = ""
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(ClosedBody):
    """What the text of a reply must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(ClosedBody):
    """vLLM's way to say it: one of these."""

    regex: Annotated[str, Field(max_length=MAX_REGEX_CHARS)] | None = None
    choice: Annotated[list[str], Field(min_length=1), FIRST] | None = None
    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None


Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,9})$")]


class SamplingFields(ClosedBody):
    """What both kinds of requests have in common."""

    model_config = ConfigDict(allow_inf_nan=False)

    top_field: ClassVar[str] = ""
    """The field that asks for `num_top`."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[TopK, BeforeValidator(lambda k: 0 if k == -1 else k)] | None = None
    """0 and -1 are off."""
    min_p: MinP | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASED_TOKENS)] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS), FIRST] | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOP_TOKENS), FIRST]
        | None
    ) = None
    ignore_eos: bool | None = None
    """Go on behind the tokens that end a reply."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    _ignored: tuple[str, ...] = PrivateAttr(default=())
    _is_cut_to_room: bool = PrivateAttr(default=False)

    @property
    def is_cut_to_room(self) -> bool:
        """Whether a reply may be shorter than asked for where the context has no room for more."""
        return self._is_cut_to_room

    @property
    def ignored(self) -> Sequence[str]:
        """Fields that were given and never change a reply; one name for all messages: `messages[].NAME`."""
        return self._ignored

    @property
    def changes(self) -> LogitChanges | None:
        """What is done to the logits; None where nothing is."""
        changes = LogitChanges(
            bias=tuple((int(token), value) for token, value in (self.logit_bias or {}).items() if value),
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
        )
        return None if changes == LogitChanges() else changes

    @property
    def change_fields(self) -> Sequence[str]:
        """The fields that ask for `changes`."""
        off = {"logit_bias": {}, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}
        given = {name: getattr(self, name) for name in off}
        return [name for name, value in given.items() if value is not None and value != off[name]]

    @property
    def num_top(self) -> int:
        """Likeliest tokens to tell at each position."""
        return 0

    @property
    def structure_field(self) -> str:
        """The field that asks for `structure`."""
        return "structured_outputs" if self.structured_outputs is not None else "response_format"

    @property
    def structure(self) -> OutputStructure | None:
        """What the text must be; raises ApiError for what cannot be meant, or is too long."""
        return self._checked(self._structure())

    def _checked(self, structure: OutputStructure | None) -> OutputStructure | None:
        if structure is not None:
            length = len(structure.json_schema or "") + sum(map(len, structure.choices))
            length += sum(len(each.begin) + len(each.json_schema) for each in structure.tagged)
            if length > MAX_STRUCTURE_CHARS:
                raise invalid(
                    self.structure_field,
                    f"its {length} characters are more than {MAX_STRUCTURE_CHARS}",
                )
        return structure

    def _structure(self) -> OutputStructure | None:
        asked, own = self.response_format, self.structured_outputs
        if own is not None:
            if asked is not None and asked.type != "text":
                raise invalid("structured_outputs", "give it or `response_format`, not both")
            schema = json.dumps(own.json_) if isinstance(own.json_, dict) else own.json_
            try:
                return OutputStructure(regex=own.regex, json_schema=schema, choices=tuple(own.choice or ()))
            except ValueError as error:
                raise invalid("structured_outputs", "give one of regex, json and choice") from error
        if asked is None or asked.type == "text":
            return None
        if asked.type == "json_object":
            return OutputStructure(json_schema='{"type": "object"}')
        if asked.json_schema is None:
            raise invalid("response_format", "`response_format.json_schema` is missing")
        return OutputStructure(json_schema=json.dumps(asked.json_schema.schema_))

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a reply, none empty."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in dict.fromkeys(stops) if stop)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    default_max_tokens: ClassVar[int | None] = None
    """Longest reply where a request says nothing; None leaves it to the context."""

    @property
    def longest_reply(self) -> int | None:
        """In tokens; None when the client leaves it open."""
        return self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        raise NotImplementedError


class CompletionFields(SamplingFields):
    """`POST /v1/completions`."""

    default_max_tokens: ClassVar[int | None] = COMPLETION_MAX_TOKENS
    prompt_field: ClassVar[str] = "prompt"
    top_field = "logprobs"
    """What requests call the field `prompt`."""

    prompt: (
        str
        | Annotated[list[int], FIRST]
        | Annotated[list[str], FIRST]
        | Annotated[list[Annotated[list[int], FIRST]], FIRST]
    )
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    """The prompt comes before the reply; with `logprobs`, those of its tokens too."""

    @property
    def longest_reply(self) -> int | None:
        return None if self.max_tokens is None else max(self.max_tokens, 1)

    @property
    def num_top(self) -> int:
        return self.logprobs or 0

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return bool(self.echo) and self.wants_logprobs

    @property
    def is_without_reply(self) -> bool:
        """Whether nothing but the prompt is to come back."""
        return self.max_tokens == 0

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each is text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and isinstance(prompt[0], int):
            return [[token for token in prompt if isinstance(token, int)]]
        return [each for each in prompt if not isinstance(each, int)]

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


class NamedFunction(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    name: str


class NamedTool(ClosedBody):
    """`tool_choice`: this function is to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatFields(SamplingFields):
    """`POST /v1/chat/completions`."""

    top_field = "top_logprobs"
    messages: Annotated[list[Any], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[dict[str, Any]], FIRST] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    _conversation: Sequence[dict[str, Any]] = PrivateAttr(default=())
    _patterns: Mapping[str, str] = PrivateAttr(default_factory=dict)
    """Regular expressions of the one argument, `input`, of functions by name; the policy is shown none."""

    @property
    def conversation(self) -> Sequence[dict[str, Any]]:
        """The messages as chat templates read them. They stay as they are: later requests share them."""
        return self._conversation

    @property
    def longest_reply(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def num_top(self) -> int:
        return self.top_logprobs or 0

    @property
    def reads_tool_calls(self) -> bool:
        """Whether calls in the reply are to be found."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def ends_with_first_call(self) -> bool:
        """Whether the reply ends behind its first call."""
        return self.reads_tool_calls and self.parallel_tool_calls is False

    @property
    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        """The functions of which the reply must call one; empty where it may be anything."""
        functions = [tool["function"] for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool):
            return [each for each in functions if each["name"] == self.tool_choice.function.name]
        return functions if self.tool_choice == "required" else ()

    @property
    def call_structure(self) -> OutputStructure | None:
        """What calls must be in a reply that may do without: None where no tool has a grammar.

        All begin as a call of one of the tools; the arguments of those without a grammar are any object.
        """
        if not self._patterns or not self.reads_tool_calls:
            return None
        calls = [
            self._call(each) if each["name"] in self._patterns else call_of(each["name"], {"type": "object"})
            for each in (tool["function"] for tool in self.tools or ())
        ]
        return self._checked(OutputStructure(tagged=tuple(calls), opening=OPENING))

    @property
    def structure_field(self) -> str:
        if self.callable_tools:
            return "tool_choice"
        asked = super().structure_field
        return NOT_HELD if self._patterns and getattr(self, asked) is None else asked

    def _structure(self) -> OutputStructure | None:
        """A forced call comes before what the text of a reply should be: there is no other text."""
        if functions := self.callable_tools:
            return OutputStructure(tagged=tuple(map(self._call, functions)))
        return super()._structure()

    def _call(self, function: Mapping[str, Any]) -> TaggedJson:
        name = function["name"]
        if name not in self._patterns:
            return call_of(name, function.get("parameters"))
        given = {"input": {"type": "string", "pattern": self._patterns[name]}}
        return call_of(name, {"properties": given, "required": ["input"]})


def read_chat(body: bytes, history: GrowingList | None = None) -> ChatFields:
    """Raises ApiError. `history`: of the session."""
    fields = read_fields(ChatFields, read_json(body))
    _check_chat(fields)
    fields._ignored += tuple(_take_messages(fields, history))
    return fields


def chat_fields(
    values: Mapping[str, Any],
    ignored: Iterable[str],
    history: GrowingList | None = None,
    *,
    patterns: Mapping[str, str] | None = None,
) -> ChatFields:
    """The chat request that a request of another protocol means, cut to room. Raises ApiError.

    `patterns`: regular expressions of the one argument, `input`, of functions by name.
    """
    fields = validate(ChatFields, values)
    _check_chat(fields)
    _take_messages(fields, history)
    fields._ignored = tuple(ignored)
    fields._is_cut_to_room = True
    fields._patterns = patterns or {}
    return fields


def _take_messages(fields: ChatFields, history: GrowingList | None) -> Iterable[str]:
    """The fields of messages that change nothing."""
    read = (history or GrowingList()).read(fields.messages, read_message)
    fields._conversation = [message for message, _ in read]
    return [name for _, names in read for name in names]


def _check_chat(fields: ChatFields) -> None:
    for number, tool in enumerate(fields.tools or []):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or "name" not in function:
            raise invalid(f"tools[{number}]", "a tool is {'type': 'function', 'function': {'name': ...}}")
        if not isinstance(function["name"], str):
            raise invalid(f"tools[{number}].function.name", "a function's name is text")
        if not isinstance(function.get("parameters") or {}, dict):
            raise invalid(f"tools[{number}].function.parameters", "parameters are a JSON schema, an object")
    forced = fields.tool_choice
    if forced is not None and forced not in ("auto", "none") and not fields.callable_tools:
        if isinstance(forced, NamedTool):
            names = ", ".join(f"`{tool['function']['name']}`" for tool in fields.tools or ()) or "none"
            raise invalid("tool_choice", f"no tool `{forced.function.name}` is given; given: {names}")
        raise invalid("tool_choice", "`required` needs `tools`")
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`")


def read_completion(body: bytes) -> CompletionFields:
    """Raises ApiError."""
    fields = read_fields(CompletionFields, read_json(body))
    if fields.is_without_reply and not fields.echo:
        raise invalid("max_tokens", "`max_tokens` is 0, so that nothing would come back: give `echo` too")
    if len(fields.prompts) * fields.num_choices > MAX_REPLIES:
        raise invalid("prompt", f"asks for more than {MAX_REPLIES} replies at once")
    if not fields.prompts or any(len(prompt) == 0 for prompt in fields.prompts):
        raise invalid("prompt", "the prompt is empty")
    return fields


def read_fields(
    model: type[Parsed],
    values: dict[str, Any],
    ignored: Iterable[str] = (),
    *,
    ignoring: Container[str] = _WITHOUT_EFFECT,
) -> Parsed:
    """The request in `values`; what changes nothing goes to `ignored`. Raises ApiError."""
    ignored = [*ignored]
    for name in list(values):
        value = values[name]
        if name in ignoring:
            del values[name]
            ignored += [name] if value is not None else []
        elif name in _NEUTRAL and (value is None or value in _NEUTRAL[name]):
            del values[name]
        elif name in _NEUTRAL:
            raise unsupported(name, f"is not supported: {_INSTEAD.get(name, 'leave it out')}")
    fields = validate(model, values)
    fields._ignored = tuple(ignored)
    return fields
