"""Tools before a chat template that has none: the policy reads them all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from envsdk.engines.endpoint.messages import spelled_out
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.engine import EngineConfig
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from tests.envsdk.engines.endpoint_models import tiny_chat

LENGTH = 4096
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>'
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "description": "Looks."}}


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    chat = tiny_chat()
    script = {"reply": [chat.reply(CALL), chat.reply("done")]}
    engine = MockEngine.create(EngineConfig(model=None, sequence_length=LENGTH, strategy_config=script))
    await engine.start()
    proxy = InferenceProxy({"local": LocalLink(engine)})
    proxy.start()
    endpoint = Endpoint(proxy, chat, EndpointConfig(model_name="policy", sequence_length=LENGTH))
    await endpoint.start()
    yield endpoint
    await endpoint.close()
    await proxy.close()
    await engine.close()


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be short."}]])
async def test_tools_calls_and_results_are_in_the_tokens_of_one_line(
    endpoint: Endpoint, system: list[dict[str, Any]]
) -> None:
    session = endpoint.sessions.open(rules=SamplingRules())
    messages: list[Any] = [*system, {"role": "user", "content": "go"}]
    async with openai.AsyncOpenAI(base_url=endpoint.base_url(session), api_key=session.api_key) as client:
        first = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        message = first.choices[0].message
        assert message.tool_calls is not None
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ice above"},
        ]
        second = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == "done"
    assert len(session.record.lines()) == 1
    read = tiny_chat().decode(session.record.replies[-1].ids, skip_special_tokens=False)
    said = "Be short.\n\nYou may call" if system else "<|system|>You may call"
    for part in (said, '"description": "Looks."', f"{CALL}<|end|><|user|><tool_response>\nice above\n"):
        assert part in read


def test_messages_without_tools_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}]
    assert spelled_out(messages, None) == messages
