"""What clients ask: an endpoint on a thread of its own, before a model that samples or a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.processes.background_loop import on_background_loop
from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.endpoint.record import RecordedReply
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.endpoint.sessions import Session
from envsdk.engines.engine import Engine, EngineConfig
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_random_model, write_tokenizer

LENGTH = 16384
PROGRAMS = Path(__file__).resolve().parents[2] / ".venv-programs" / "node_modules"
MODEL = "policy"


@dataclass
class Served:
    """One session of an endpoint."""

    endpoint: Endpoint
    session: Session
    chat: ChatTokenizer

    @property
    def base_url(self) -> str:
        return self.endpoint.base_url(self.session)

    @property
    def url(self) -> str:
        """Base URL for Anthropic's clients, which add `/v1` themselves."""
        return self.endpoint.session_url(self.session)

    @property
    def key(self) -> str:
        return self.session.api_key

    @property
    def replies(self) -> list[RecordedReply]:
        return self.session.record.replies

    @property
    def num_lines(self) -> int:
        return len(self.session.record.lines())

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self.session.ignored)


TEMPLATE = """{%- if tools -%}
{{- '<|system|>' -}}{%- for tool in tools -%}{{- tool | tojson -}}{%- endfor -%}{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|' + message.role + '|>' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson + '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""
"""Tools and calls as Hermes and Qwen write them."""


def write_model(folder: Path) -> Path:
    """Random weights, tokens that are words or bytes, and a chat template with tools."""
    words = "You can call the tools below. Use tool calls and code to answer the task. final answer result"
    tokenizer = build_tokenizer([words] * 3)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, tokenizer, sequence_length=LENGTH)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    write_random_model(
        folder, tokenizer, hidden_size=16, num_layers=1, num_heads=2, sequence_length=LENGTH, seed=0
    )
    return folder


def call(name: str, **arguments: Any) -> str:
    """A reply's tool call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def program(name: str, pattern: str) -> Path:
    """A program that `make test-clients` installs with npm; the test is skipped where it is missing."""
    found = next(PROGRAMS.glob(pattern), None)
    if found is None:
        pytest.skip(f"needs the program `{name}`: make test-clients, on a machine with npm")
    return found


@contextmanager
def sampling(folder: Path) -> Iterator[Served]:
    """The random model of `write_model`."""
    config = EngineConfig(model=folder, sequence_length=LENGTH, max_running=4)
    with _on_thread(_serving(EmbeddedEngine.create(config), ChatTokenizer.load(folder))) as served:
        yield served


@contextmanager
def scripted(folder: Path, replies: Sequence[str], length: int = LENGTH) -> Iterator[Served]:
    """These replies in turn; the tokenizer is the one of `write_model`."""
    chat = ChatTokenizer.load(folder)
    script = {"reply": [chat.reply(reply) for reply in replies]}
    engine = MockEngine.create(EngineConfig(model=None, sequence_length=length, strategy_config=script))
    with _on_thread(_serving(engine, chat, length)) as served:
        yield served


@asynccontextmanager
async def _serving(engine: Engine, chat: ChatTokenizer, length: int = LENGTH) -> AsyncIterator[Served]:
    await engine.start()
    proxy = InferenceProxy({"local": LocalLink(engine)})
    proxy.start()
    endpoint = Endpoint(proxy, chat, EndpointConfig(model_name=MODEL, sequence_length=length))
    await endpoint.start()
    try:
        yield Served(endpoint, endpoint.sessions.open(rules=SamplingRules()), chat)
    finally:
        await endpoint.close()
        await proxy.close()
        await engine.close()


@contextmanager
def _on_thread(serving: Any) -> Iterator[Served]:
    served = on_background_loop(serving.__aenter__())
    try:
        yield served
    finally:
        on_background_loop(serving.__aexit__(None, None, None))
