"""`tool_choice: required` and a named function, before an engine that samples with a random model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.endpoint.sessions import Session
from envsdk.engines.engine import EngineConfig
from envsdk.engines.proxy import InferenceProxy, LocalLink
from tests.tiny_policies import write_tiny_policy

LENGTH = 1024
PLACE = {"enum": ["up", "down"]}
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"where": {"$ref": "#/$defs/Place"}, "far": {"type": "boolean"}},
    "required": ["where", "far"],
    "$defs": {"Place": PLACE},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "parameters": LOOK}},
    {"type": "function", "function": {"name": "wait"}},
]
"""As pydantic describes functions, with references of their own, and with no schema at all."""
CALLS = {
    "look": [{"where": where, "far": far} for where in PLACE["enum"] for far in (True, False)],
    "wait": [{}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(
        tmp_path_factory.mktemp("model"),
        ['hello <tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'] * 3,
        hidden_size=32,
        num_heads=4,
        sequence_length=LENGTH,
    )


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[openai.AsyncOpenAI, Session]]:
    engine = EmbeddedEngine.create(EngineConfig(model=folder, sequence_length=LENGTH))
    await engine.start()
    proxy = InferenceProxy({"local": LocalLink(engine)})
    proxy.start()
    config = EndpointConfig(model_name="policy", sequence_length=LENGTH)
    endpoint = Endpoint(proxy, ChatTokenizer.load(folder), config)
    await endpoint.start()
    session = endpoint.sessions.open(rules=SamplingRules())
    try:
        async with openai.AsyncOpenAI(
            base_url=endpoint.base_url(session), api_key=session.api_key, max_retries=0
        ) as client:
            yield client, session
    finally:
        await endpoint.close()
        await proxy.close()
        await engine.close()


async def test_a_reply_that_must_call_a_tool_is_one_call_that_the_tools_schema_allows(folder: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    async with serving(folder) as (client, session):
        for seed in range(8):
            answer = await client.chat.completions.create(
                model="policy", messages=messages, tools=TOOLS, tool_choice="required", seed=seed
            )
            choice = answer.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert not choice.message.content
            (call,) = choice.message.tool_calls or ()
            assert call.type == "function"
            assert json.loads(call.function.arguments) in CALLS[call.function.name]
        replies = session.record.replies
    texts = {reply.text for reply in replies}
    as_templates_write = {
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, all_arguments in CALLS.items()
        for arguments in all_arguments
    }
    assert texts <= as_templates_write


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_function_that_is_named_is_called(folder: Path, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    named: Any = {"type": "function", "function": {"name": "look"}}
    async with serving(folder) as (client, _):
        # As LangChain asks for an answer of a schema.
        answer = await client.chat.completions.create(
            model="policy",
            messages=messages,
            tools=TOOLS,
            tool_choice=named,
            parallel_tool_calls=False,
            stream=stream,
        )
        if stream:
            calls = [
                call
                async for chunk in answer
                for choice in chunk.choices
                for call in choice.delta.tool_calls or ()
            ]
        else:
            calls = answer.choices[0].message.tool_calls
    (call,) = calls
    assert call.function.name == "look"
    assert json.loads(call.function.arguments) in CALLS["look"]


async def test_a_schema_that_no_reply_can_be_held_to_is_an_error_that_names_tool_choice(folder: Path) -> None:
    broken: list[Any] = [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "nonsense"}}}
    ]
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    async with serving(folder) as (client, _):
        with pytest.raises(openai.BadRequestError, match="nonsense") as refused:
            await client.chat.completions.create(
                model="policy", messages=messages, tools=broken, tool_choice="required"
            )
    assert refused.value.param == "tool_choice"
