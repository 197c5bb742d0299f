"""`tool_choice: required` and a named function, before an engine that samples with a random model."""

from __future__ import annotations

import json
import re
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
from envsdk.engines.tool_calls.input_grammar import input_pattern
from envsdk.engines.tool_calls.reading import AttemptStatus
from tests.envsdk.engines.patch_grammar import PATCH_GRAMMAR
from tests.envsdk.engines.test_endpoint_server import HELLO
from tests.envsdk.engines.test_endpoint_server import serving as serving_mock
from tests.tiny_policies import write_tiny_policy

LENGTH = 3000
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
async def serving(
    folder: Path, rules: SamplingRules | None = None
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Session]]:
    engine = EmbeddedEngine.create(EngineConfig(model=folder, sequence_length=LENGTH))
    await engine.start()
    proxy = InferenceProxy({"local": LocalLink(engine)})
    proxy.start()
    config = EndpointConfig(model_name="policy", sequence_length=LENGTH)
    endpoint = Endpoint(proxy, ChatTokenizer.load(folder), config)
    await endpoint.start()
    session = endpoint.sessions.open(rules=rules or SamplingRules())
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


def custom(definition: str, syntax: str = "lark") -> Any:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "edit", "description": "Edits.", "format": form}


SHORT_LINES = PATCH_GRAMMAR.replace("/(.+)/", "/[a-c]{1,3}/").replace("/(.*)/", '/[a-c"]{0,3}/')
"""A random policy ends no line that may be of any length."""
RUN: Any = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}


async def test_a_custom_tool_that_must_be_called_gets_what_its_grammar_takes(folder: Path) -> None:
    grammar = SHORT_LINES.replace("+ end", " end").replace("line+", "line").replace("changed)+", "changed)")
    asked: Any = {"model": "policy", "input": "hello", "tools": [custom(grammar), RUN]}
    asked |= {"tool_choice": {"type": "custom", "name": "edit"}}
    async with serving(folder) as (client, session):
        for _ in range(6):
            answer = await client.responses.create(**asked)
            (item,) = answer.output
            assert item.type == "custom_tool_call"
            assert re.fullmatch(input_pattern("lark", grammar), item.input), item.input
        async with client.responses.stream(**asked) as stream:
            (streamed,) = (await stream.get_final_response()).output
        assert streamed.type == "custom_tool_call"
        assert re.fullmatch(input_pattern("lark", grammar), streamed.input)
        assert not session.ignored
        assert all(reply.attempt is AttemptStatus.OK for reply in session.record.replies)


@pytest.mark.parametrize("is_told", [True, False], ids=["support", "no support"])
async def test_a_session_that_is_trained_on_holds_calls_where_the_trainer_learns_what_was_left(
    folder: Path, is_told: bool
) -> None:
    rules = SamplingRules(
        is_fixed=True, support=is_told, top_k=400, seed=3, max_new_tokens=40, temperature=20.0
    )
    async with serving(folder, rules) as (client, session):
        for _ in range(8):
            await client.responses.create(model="policy", input="hello", tools=[custom(PATCH_GRAMMAR)])
        replies = session.record.replies
        ignored = dict(session.ignored)
    assert ignored == ({} if is_told else {"tools[].format": 8})
    if is_told:
        assert all(reply.support is not None for reply in replies)


async def test_a_grammar_that_is_none_is_refused_by_name_and_one_that_is_not_regular_is_counted(
    folder: Path,
) -> None:
    async with serving(folder) as (client, session):
        for tool, param, said in [
            (custom("start: patch"), "tools[1].format.definition", "`edit`: `patch` is not defined"),
            (custom(""), "tools[1].format.definition", "`edit`: is missing or empty"),
            (custom("((", "regex"), "tools[].format", "unclosed group"),
            (custom("a", "ebnf"), "tools[1].format.syntax", "'lark' or 'regex'"),
        ]:
            with pytest.raises(openai.BadRequestError, match=re.escape(said)) as refused:
                await client.responses.create(model="policy", input="hello", tools=[RUN, tool])
            assert refused.value.param == param
        assert not session.ignored
        tools = [custom('start: "a" start | "b"')]
        await client.responses.create(model="policy", input="hello", tools=tools, max_output_tokens=4)
        assert session.ignored == {"tools[].format": 1}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_engine_that_can_hold_no_reply_answers_and_the_grammar_is_counted(stream: bool) -> None:
    async with serving_mock(length=3000, max_body_bytes=10**6) as served:
        await served.post("/sessions", {"id": "a"})
        for _ in range(2):
            asked = {"model": "policy", "input": "hello", "tools": [custom(PATCH_GRAMMAR)], "stream": stream}
            answer = await served.post("/sessions/a/v1/responses", asked)
            assert answer.status_code == 200, answer.text
            assert "hello" in answer.text
        session = served.endpoint.sessions.get("a")
    assert session.ignored == {"tools[].format": 2}
    assert [list(reply.token_ids) for reply in session.record.replies] == [HELLO, HELLO]
