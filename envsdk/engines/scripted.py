"""The scripted engine: replies that a person wrote, so that an agent can be tried without a model.

    Let me look.                                                        a line of text is a reply
    {"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]}  and so is a JSON object
    {"match": "title", "content": "A title"}                            answers what holds this text

The first line answers a conversation without replies, the next one a conversation with one reply, and so on.
Where a conversation is follows from its text alone: each session and each conversation reads the script
from its beginning, and a request that is sent again gets the same reply.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import jinja2
from pydantic import BeforeValidator, Field
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.endpoint.messages import spelled_out
from envsdk.engines.engine import EngineConfig, EngineFailure, ErrorKind, GenerationRequest
from envsdk.engines.front import EngineFront
from envsdk.engines.mock import MockCore, MockSettings, PlannedReply, planned
from envsdk.engines.tool_calls.formats import read_reply

SCRIPTED_LENGTH = 131_072
"""Context without a model's folder: prompts of agents have 8,000 tokens and more, and it costs nothing."""
_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def _object(value: Any) -> Any:
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str) else value
    return value


class ScriptedCall(StrictSettings):
    """A tool call of a reply."""

    name: str = Field(min_length=1)
    arguments: Annotated[dict[str, Any], BeforeValidator(_object)] = Field(default_factory=dict)
    """An object, or its JSON in a string; `{"input": TEXT}` for a custom tool of the Responses API."""


class ScriptedReply(StrictSettings):
    """One line of a script that is a JSON object."""

    content: str = ""
    tool_calls: list[ScriptedCall] = Field(default_factory=list)
    match: str | None = Field(default=None, min_length=1)
    """The reply answers every request whose messages behind the last reply hold this text, and takes no place
    in the order of the others."""

    def text(self, chat: ChatTokenizer) -> str:
        """As the chat template writes it, or as Hermes and Qwen do where its calls could not be read."""
        if not self.tool_calls:
            return self.content
        calls = [
            {"id": f"{number:09d}", "type": "function", "function": call.model_dump()}
            for number, call in enumerate(self.tool_calls)
        ]
        message = {"role": "assistant", "content": self.content, "tool_calls": calls}
        asked = [{"role": "user", "content": "a"}]
        with suppress(jinja2.TemplateError):
            rendered = chat.render([*asked, message], add_generation_prompt=False)
            written = rendered.removeprefix(chat.render(asked)).rpartition(_closing_of(chat))[0]
            if len(read_reply(written).calls) == len(calls):
                return written
        return str(spelled_out([message], None)[0]["content"])


def read_script(path: Path) -> list[ScriptedReply]:
    """The replies in a file. ConfigurationError names the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--scripted: cannot read {path}: {error}") from error
    replies = [_read_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if all(reply.match is not None for reply in replies):
        raise ConfigurationError(f"--scripted: {path} holds no reply without `match`: write one per line")
    return replies


def _read_line(line: str, where: str) -> ScriptedReply:
    try:
        values = json.loads(line)
    except ValueError as error:
        if not line.lstrip().startswith("{"):
            return ScriptedReply(content=line)
        raise ConfigurationError(
            f"{where}: a line that begins with {{ is a JSON object, and this one is none: {error}"
        ) from error
    if isinstance(values, list | str):
        raise ConfigurationError(f'{where}: this JSON is no object: as text, write it in {{"content": ...}}')
    if not isinstance(values, dict):
        return ScriptedReply(content=line)  # 42, true: an answer
    reply = validated(ScriptedReply, values, where)
    if not (reply.content or reply.tool_calls):
        raise ConfigurationError(f"{where}: the reply is empty: give `content`, `tool_calls` or both")
    return reply


def scripted_chat() -> ChatTokenizer:
    """A tokenizer of English and code, with some three characters to a token; made in half a second."""
    from pydoc_data.topics import topics  # 0.5 MB of prose about code that comes with Python

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        topics.values(),
        trainers.BpeTrainer(vocab_size=16_384, initial_alphabet=alphabet, show_progress=False),
    )
    special = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return ChatTokenizer(tokenizer, _TEMPLATE)


class ScriptedCore(MockCore):
    """See the module's text. Replies were not sampled: they have no log-probabilities.

    What a request asks of the sampling and of the reply's structure is taken, and changes nothing.
    """

    abilities = replace(MockCore.abilities, structured_output=True, logit_changes=True, logprobs=False)

    def __init__(
        self, script: Sequence[ScriptedReply], chat: ChatTokenizer, config: EngineConfig, *, name: str
    ) -> None:
        """`name` of the script, for messages. ConfigurationError when the chat template marks no reply."""
        super().__init__(config, MockSettings())
        self.chat = chat
        self._name = name
        lines = [(reply.match, chat.reply(reply.text(chat))) for reply in script]
        self._in_order = [token_ids for match, token_ids in lines if match is None]
        self._matching = [(match, token_ids) for match, token_ids in lines if match is not None]
        self._header = _header_of_replies(chat)
        self._closing = _closing_of(chat)

    def why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        if self._reply_to(request) is not None:
            return None
        return EngineFailure(
            f"the script {self._name} has ended: this conversation holds all its replies "
            f"({len(self._in_order)}). Add a line to it, or begin another conversation",
            ErrorKind.SCRIPT_ENDED,
        )

    def plan(self, request: GenerationRequest, arrival: int) -> PlannedReply:
        token_ids = self._reply_to(request)
        assert token_ids is not None, "the front asks `why_refused` first"
        budget = min(request.sampling.max_new_tokens, self._sequence_length - len(request.prompt_ids))
        return planned(token_ids, budget, request.sampling.stop_token_ids, math.nan)

    def _reply_to(self, request: GenerationRequest) -> list[int] | None:
        """The tokens of the script's reply; None where it has none."""
        text = self.chat.decode(request.prompt_ids.tolist(), skip_special_tokens=False)
        opening, *turns = text.split(self._header)
        # Behind each header a reply and what answers it; behind the last one nothing yet.
        asked = [opening, *(turn.partition(self._closing)[2] for turn in turns[:-1])]
        *before, last = [
            next((token_ids for match, token_ids in self._matching if match in each), None) for each in asked
        ]
        place = before.count(None)
        return last or (self._in_order[place] if place < len(self._in_order) else None)


def _header_of_replies(chat: ChatTokenizer) -> str:
    """What begins each reply of a conversation in the model's chat template."""
    asked = [{"role": "user", "content": "a"}]
    before = len(chat.render(asked, add_generation_prompt=False))
    replied = chat.render([*asked, {"role": "assistant", "content": "b"}, *asked])
    same = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(chat.render(asked), replied, strict=False)
    )
    header = "".join(character for character, _ in same)[before:].strip()
    if not header:
        raise ConfigurationError("--scripted: the model's chat template does not mark where a reply begins")
    return header


def _closing_of(chat: ChatTokenizer) -> str:
    """What ends each reply."""
    return chat.decode(chat.stop_token_ids[:1], skip_special_tokens=False).strip()


class ScriptedEngine(EngineFront):
    """A script behind the engine contract."""

    core: ScriptedCore

    @classmethod
    def create(cls, config: EngineConfig) -> Self:
        """`strategy_config` has the `script`'s path. Without a `model` the tokenizer is `scripted_chat`."""
        path = Path(config.strategy_config["script"])
        chat = scripted_chat() if config.model is None else ChatTokenizer.load(config.model)
        core = ScriptedCore(read_script(path), chat, config, name=str(path))
        return cls(core, name="scripted", sequence_length=config.sequence_length)
