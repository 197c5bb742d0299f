"""A policy behind `/chat/completions`: any server of OpenAI's protocol, text in and text out.

It keeps no tokens: episodes can be kept as messages, replayed and imitated, and not trained on token by
token. The `openai` engine does that, with servers that return token ids.

    endpoint = ChatEndpoint(base_url="http://127.0.0.1:8000/v1", model="qwen", generating=settings)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.policy import ContextFull, Policy, PolicyFailed, Reply, TurnContext
from envsdk.contracts.prompts import TagPrompts
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable, Unreachable, no_server
from envsdk.engines.engine_support.http import http_client, post_json, with_retries
from envsdk.engines.rate_limits import RateGate
from envsdk.engines.refusals import is_full_context
from envsdk.engines.sampling import SamplingParams, recorded
from envsdk.engines.settings import api_key_of

_CONNECT_TIMEOUT_S = 10.0
_IN_PROTOCOL = ("temperature", "top_p")
"""Sampling parameters of OpenAI's protocol; others are sent where they are on."""
_FINISH_REASONS = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEndpoint:
    """Where to ask, and how. Picklable."""

    base_url: str
    """Where `/chat/completions` is, such as `http://127.0.0.1:8000/v1`."""
    model: str
    """Name of the model as the server knows it."""
    generating: SamplingParams
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's key; no key is sent when absent."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request; null leaves out one that would be sent."""
    silence_timeout_s: float = 300.0
    max_retries: int = 5
    backoff_s: float = 0.5

    def describe(self) -> dict[str, Any]:
        """What decides its replies, as JSON."""
        return {
            "endpoint_model": self.model,
            "generating": recorded(self.generating),
            **({"extra_body": dict(self.extra_body)} if self.extra_body else {}),
        }

    def body(self, messages: list[dict[str, str]], *, max_tokens: int, seed: int) -> dict[str, Any]:
        """A request as JSON."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "seed": seed,
            **{
                name: value
                for name, value in self.generating.shape().items()
                if value or name in _IN_PROTOCOL
            },
            **self.extra_body,
        }
        return {name: value for name, value in body.items() if value is not None}


class Message(BaseModel):
    content: str | None = None


class Choice(BaseModel):
    message: Message
    finish_reason: str | None = None


class Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class Completion(BaseModel):
    """A server's answer, as far as it is read."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None


def read_completion(text: str) -> tuple[str, FinishReason, int]:
    """`(reply, finish reason, tokens used)` of a server's answer; ReplyRefused when it holds no reply."""
    try:
        completion = Completion.model_validate_json(text)
    except ValidationError as error:
        raise ReplyRefused(f"the server sent no chat completion but {text[:200]!r}") from error
    choice = completion.choices[0]
    reason = choice.finish_reason or "stop"
    if reason not in _FINISH_REASONS:
        raise ReplyRefused(f"the server ended the reply with finish_reason `{reason}`")
    if choice.message.content is None:
        raise ReplyRefused("the server's message has no content")
    num_tokens = completion.usage.total_tokens if completion.usage else 0
    return choice.message.content, FinishReason(reason), num_tokens


class ChatClient:
    """Connections to one server, shared by all its policies.

    async with ChatClient(endpoint, gate) as client: ...
    """

    def __init__(self, endpoint: ChatEndpoint, gate: RateGate | None = None) -> None:
        """ConfigurationError when the variable of the key is not set."""
        self.endpoint = endpoint
        self._gate = gate
        self._url = endpoint.base_url.rstrip("/") + "/chat/completions"
        self._draw = random.Random()
        self._was_reached = False
        self._http = http_client(
            api_key=api_key_of(endpoint.api_key_env, where="--api-key-env"),
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            silence_timeout_s=endpoint.silence_timeout_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(self, body: Mapping[str, Any]) -> tuple[str, FinishReason]:
        """`(reply, finish reason)`. Raises ReplyRefused, and Unavailable after the last retry.

        EngineError when the server has never been reached.
        """
        return await with_retries(
            lambda: self._ask(body),
            max_retries=self.endpoint.max_retries,
            backoff_s=self.endpoint.backoff_s,
            draw=self._draw,
        )

    async def _ask(self, body: Mapping[str, Any]) -> tuple[str, FinishReason]:
        if self._gate is not None:
            await self._gate.admit()
        try:
            answer = await post_json(self._http, self._url, body)
        except Unreachable as error:
            if not self._was_reached:
                raise no_server(f"at {self.endpoint.base_url}", error) from error
            raise
        except (Unavailable, ReplyRefused):
            self._was_reached = True
            raise
        self._was_reached = True
        reply, reason, num_tokens = read_completion(answer)
        if self._gate is not None:
            self._gate.charge(num_tokens)
        return reply, reason


class ChatPolicy(Policy):
    """Asks a chat endpoint; the conversation is rendered anew from the episode's turns each time."""

    name = "endpoint"

    def __init__(self, client: ChatClient, prompts: TagPrompts) -> None:
        self._client = client
        self._prompts = prompts

    async def act(self, turn: TurnContext) -> Reply:
        messages = self._prompts.asked(turn)
        body = self._client.endpoint.body(messages, max_tokens=self._prompts.max_new_tokens, seed=turn.seed)
        try:
            text, reason = await self._client.complete(body)
        except (ReplyRefused, Unavailable) as error:
            if is_full_context(error):
                raise ContextFull(str(error)) from error
            kind = "reply_refused" if isinstance(error, ReplyRefused) else "unavailable"
            raise PolicyFailed(
                Failure(boundary=Boundary.ENGINE, kind=kind, message=str(error)[:500])
            ) from error
        return Reply(text=text, finish_reason=reason)
