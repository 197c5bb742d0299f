"""OpenAI's Responses: what requests mean, how replies are written, and that both ends of it meet."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from envsdk.contracts.trajectory import VersionSpan
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.parsing import Histories
from envsdk.engines.endpoint.protocol import Answer, Piece, ReplyHead
from envsdk.engines.endpoint.protocols.responses import RESPONSES, ResponsesWriter
from envsdk.engines.endpoint.protocols.responses_request import ResponsesRequest
from envsdk.engines.endpoint.protocols.responses_request import read_responses as read_request
from envsdk.engines.endpoint.record import Prompt, message_keys
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.endpoint.sessions import Session
from envsdk.engines.endpoint.wire import read_chat
from envsdk.engines.engine import EngineConfig
from envsdk.engines.scripted import SCRIPTED_LENGTH, ScriptedEngine
from envsdk.engines.tool_calls.formats import read_reply
from envsdk.rollouts.play.model import running

FUNCTION = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": GRAMMAR}
SPAWN = {"type": "function", "name": "spawn", "description": "", "parameters": {}}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [SPAWN]}
TOOLS: list[Any] = [FUNCTION, PATCH, NAMESPACE, {"type": "web_search", "external_web_access": True}]
HEAD = ReplyHead(unique="ab12", created=1, model="policy", token_text=str)
PROMPT = Prompt(ids=[1, 2, 3], new_ids=[1, 2, 3], parent=None, observation="")

TEXT = st.text(alphabet='ab <>/\n{"}é漢', max_size=10)
ARGUMENTS = st.dictionaries(st.sampled_from(["where", "n"]), TEXT | st.integers(), max_size=2)


def read_responses(body: bytes) -> ResponsesRequest:
    return read_request(body, Histories())


def body(given: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "policy", "input": given, "tools": TOOLS, **fields}).encode()


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "c1", "type": "function", "function": function}


def as_item(call: dict[str, Any]) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name == "apply_patch":
        return {
            "type": "custom_tool_call",
            "call_id": "c1",
            "name": name,
            "input": json.loads(arguments)["input"],
        }
    item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments}
    if name == "agents__spawn":
        item |= {"name": "spawn", "namespace": "agents"}
    return item


CALL = st.builds(called, st.sampled_from(["look", "agents__spawn"]), ARGUMENTS) | st.builds(
    lambda text: called("apply_patch", {"input": text}), TEXT
)
SAID = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "developer", "system"]), TEXT
)
RESULT = st.builds(lambda text: {"role": "tool", "tool_call_id": "c1", "content": text}, TEXT)
REPLY = st.builds(
    lambda thought, text, calls: (
        {"role": "assistant", "content": text}
        | ({"reasoning_content": thought} if thought else {})
        | ({"tool_calls": calls} if calls else {})
    ),
    st.none() | TEXT.filter(lambda text: "</think>" not in text),
    TEXT,
    st.lists(CALL, max_size=3),
)


def items_of(message: dict[str, Any], *, in_parts: bool) -> list[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "tool":
        output: Any = [{"type": "input_text", "text": content}] if in_parts else content
        kind = "custom_tool_call_output" if in_parts else "function_call_output"
        return [{"type": kind, "call_id": "c1", "output": output}]
    kind = "output_text" if role == "assistant" else "input_text"
    parts: Any = [{"type": kind, "text": content}] if in_parts else content
    items: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        items.append(
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
        )
    items.append({"role": role, "content": parts} | ({"type": "message"} if in_parts else {}))
    return items + [as_item(call) for call in message.get("tool_calls", ())]


@given(messages=st.lists(SAID | RESULT | REPLY, min_size=1, max_size=8), in_parts=st.booleans())
def test_a_conversation_in_items_gives_the_messages_of_its_chat_form(
    messages: list[dict[str, Any]], in_parts: bool
) -> None:
    items = [item for message in messages for item in items_of(message, in_parts=in_parts)]
    asked = read_responses(body(items)).fields
    same = read_chat(json.dumps({"model": "policy", "messages": messages}).encode())
    assert asked.conversation == same.conversation


def written(name: str, arguments: dict[str, Any]) -> str:
    return (
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    )


WRITTEN = st.builds(written, st.sampled_from(["look", "agents__spawn", "unknown"]), ARGUMENTS) | st.builds(
    lambda text: written("apply_patch", {"input": text}), TEXT
)
THOUGHT = st.sampled_from(["", "<think>Hm.</think>", "<think></think>", "<think>Hm.", "<think>"])
POLICY_TEXT = st.builds(
    lambda thought, text, calls: thought + text + "\n".join(calls),
    THOUGHT,
    TEXT,
    st.lists(WRITTEN, max_size=3),
)


def answer_of(text: str, *, is_cut: bool, num_shown: int = 0) -> Answer:
    reading = read_reply(text)
    content = reading.shown
    calls = [replace(call, id=f"call_{number}") for number, call in enumerate(reading.calls)]
    return Answer(
        content=content,
        tool_calls=calls,
        rest=content[num_shown:],
        token_ids=[7, 8],
        logprobs=[-1.0, -1.0],
        version_spans=[VersionSpan(version=0, start=0, end=2)],
        finish_reason="tool_calls" if calls else "length" if is_cut else "stop",
        top=(),
        prompt_scores=None,
    )


def writer(**fields: Any) -> ResponsesWriter:
    made = RESPONSES.read(body("go", **fields), HEAD)
    assert isinstance(made, ResponsesWriter)
    return made


def read_events(text: str) -> list[dict[str, Any]]:
    events = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a client makes of added items and deltas alone; each is compared with its end."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items.append(json.loads(json.dumps(event["item"])))
        elif kind == "content_part.added":
            items[-1]["content"].append(json.loads(json.dumps(event["part"])))
        elif kind.endswith(".delta"):
            assert items[-1]["id"] == event["item_id"]
            if kind.startswith(("output_text", "reasoning_text")):
                items[-1]["content"][-1]["text"] += event["delta"]
            else:
                items[-1]["input" if "custom" in kind else "arguments"] += event["delta"]
        elif kind == "output_item.done":
            assert event["output_index"] == len(items) - 1
            ended = dict(event["item"])
            assert ended.pop("status") in ("completed", "incomplete")
            ended.pop("encrypted_content", None)
            assert items[-1].pop("status") == "in_progress"
            assert items[-1] == ended
            items[-1] = event["item"]
    return items


@given(
    text=POLICY_TEXT, cuts=st.lists(st.integers(0, 60), max_size=6), is_cut=st.booleans(), seals=st.booleans()
)
def test_streamed_events_together_are_the_whole_answer(
    text: str, cuts: list[int], is_cut: bool, seals: bool
) -> None:
    include = ["reasoning.encrypted_content"] if seals else []
    content = read_reply(text).shown
    places = sorted({min(cut, len(content)) for cut in cuts} | {0})
    streaming = writer(include=include)
    sent = streaming.first(0, PROMPT)
    for start, end in itertools.pairwise(places):
        piece = Piece(text=content[start:end], token_ids=[7], logprobs=[-1.0], version=0)
        sent += streaming.piece(0, piece)
    answer = answer_of(text, is_cut=is_cut, num_shown=places[-1])
    sent += streaming.last(0, answer) + streaming.end([PROMPT], [answer])
    events = read_events(sent)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = writer(include=include).whole([PROMPT], [(PROMPT, answer_of(text, is_cut=is_cut))])
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert events[-1]["response"] == whole
    assert folded(events) == whole["output"]
    assert len({item["id"] for item in whole["output"]}) == len(whole["output"])


@given(text=POLICY_TEXT, is_cut=st.booleans(), seals=st.booleans())
def test_items_that_come_back_are_the_reply_that_was_recorded(text: str, is_cut: bool, seals: bool) -> None:
    """Whether the client keeps the reasoning's text, or only its sealed form, as Codex does."""
    asked = writer(include=["reasoning.encrypted_content"] if seals else [])
    answer = answer_of(text, is_cut=is_cut)
    items = asked.whole([PROMPT], [(PROMPT, answer)])["output"]
    if seals:
        items = [{**item, "content": None} if item["type"] == "reasoning" else item for item in items]
    calls = [
        {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in answer.tool_calls
    ]
    recorded: dict[str, Any] = {"role": "assistant", "content": answer.content}
    recorded |= {"tool_calls": calls} if calls else {}
    again = read_responses(body([{"role": "user", "content": "go"}, *items])).fields.conversation
    assert len(again) == 2
    assert message_keys(again)[-1] == message_keys([again[0], recorded])[-1]


def test_tools_are_functions_for_the_policy() -> None:
    asked = read_responses(
        body("go", instructions="Be short.", tool_choice={"type": "custom", "name": "apply_patch"})
    )
    fields = asked.fields
    assert [(message["role"], message["content"]) for message in fields.conversation] == [
        ("system", "Be short."),
        ("user", "go"),
    ]
    look, patch, spawn = [tool["function"] for tool in fields.tools or ()]
    assert look == {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert patch["description"] == "Edits.\n\nThe input follows this lark grammar:\nstart: /.+/"
    assert patch["parameters"]["required"] == ["input"]
    assert fields.call_structure is not None
    assert spawn["name"] == "agents__spawn"
    assert [each["name"] for each in fields.callable_tools] == ["apply_patch"]
    assert set(fields.ignored) == {"tools[].web_search", "tools[].external_web_access"}


def test_what_is_not_known_is_counted_by_its_name() -> None:
    items = [
        {"type": "message", "role": "user", "id": "m", "status": "completed", "phase": "x", "content": "go"},
        {"type": "reasoning", "summary": [], "encrypted_content": "of another server"},
    ]
    asked = read_responses(
        body(
            items,
            tools=[],
            store=True,
            reasoning={"effort": "high"},
            novelty=1,
            text={"verbosity": "low"},
            include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        )
    )
    assert sorted(asked.fields.ignored) == [
        "include[].message.output_text.logprobs",
        "input[].encrypted_content",
        "input[].phase",
        "novelty",
        "reasoning",
        "store",
        "text.verbosity",
    ]
    assert len(asked.fields.messages) == 1


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"previous_response_id": "resp_1"},
            "previous_response_id",
            "send the whole conversation as `input`",
        ),
        ({"conversation": "c"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "ask for a stream"),
        ({"prompt": {"id": "p"}}, "prompt", "send its text"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "is `web_search`; supported: `auto`"),
        ({"tool_choice": {"type": "function", "name": "go"}}, "tool_choice", "no tool `go` is given"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1]", "two tools have the name `look`"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "a tool has no name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "is missing"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "Input should be 'text'"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0]", "is of type `item_reference`"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "'input_text'",
        ),
    ],
)
def test_what_would_make_it_another_request_is_refused_by_its_name(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(ApiError) as refused:
        read_responses(body("go", **fields))
    told: Any = RESPONSES.error_body(refused.value)["error"]
    assert (refused.value.status, told["param"]) == (400, param)
    assert message in told["message"]


@asynccontextmanager
async def serving(script: Path, replies: list[Any], length: int = SCRIPTED_LENGTH) -> AsyncIterator[Endpoint]:
    lines = "".join(json.dumps(reply) + "\n" for reply in replies)
    await asyncio.to_thread(script.write_text, lines)
    engine = ScriptedEngine.create(
        EngineConfig(model=None, sequence_length=length, strategy_config={"script": script})
    )
    async with running(engine) as proxy:
        config = EndpointConfig(model_name="policy", sequence_length=length)
        endpoint = Endpoint(proxy, engine.core.chat, config)
        await endpoint.start()
        try:
            yield endpoint
        finally:
            await endpoint.close()


def client_of(endpoint: Endpoint, session: Session | None = None) -> openai.AsyncOpenAI:
    url = endpoint.base_url(session)
    return openai.AsyncOpenAI(base_url=url, api_key=endpoint.token, max_retries=0)


def reply(content: str = "", **calls: dict[str, Any]) -> dict[str, Any]:
    return {
        "content": content,
        "tool_calls": [{"name": name, "arguments": each} for name, each in calls.items()],
    }


async def test_thirty_turns_with_every_kind_of_item_are_one_line(tmp_path: Path) -> None:
    patch = {"input": "*** Begin Patch\n*** End Patch"}
    kinds = [
        reply("<think>Hm.</think>\n\n", look={"where": "up"}),
        reply("Both.", apply_patch=patch, look={"where": "down", "n": 1.0}),
        reply("<think></think>", agents__spawn={}),
    ]
    async with serving(tmp_path / "script.jsonl", [*kinds * 10, reply("done")]) as endpoint:
        session = endpoint.sessions.open(rules=SamplingRules())
        async with client_of(endpoint, session) as client:
            items: list[Any] = [{"role": "user", "content": "go"}]
            for turn in range(31):
                asked: dict[str, Any] = {"model": "policy", "input": items, "tools": TOOLS}
                asked["instructions"] = "Be short."
                if turn % 2:
                    asked["include"] = ["reasoning.encrypted_content"]
                if turn % 3:
                    async with client.responses.stream(**asked) as stream:
                        events = [event async for event in stream]
                        answer = await stream.get_final_response()
                    assert events[-1].type == "response.completed"
                else:
                    answer = await client.responses.create(**asked)
                ids = {getattr(item, "id", None) for item in items if not isinstance(item, dict)}
                assert not ids & {item.id for item in answer.output}
                items += answer.output
                for item in answer.output:
                    if item.type == "function_call":
                        items.append(
                            {"type": "function_call_output", "call_id": item.call_id, "output": "ice"}
                        )
                    elif item.type == "custom_tool_call":
                        assert (item.name, item.input) == ("apply_patch", patch["input"])
                        output = {
                            "type": "custom_tool_call_output",
                            "call_id": item.call_id,
                            "output": "done",
                        }
                        items.append(output)
        (spawned, *_) = [item for item in items if getattr(item, "namespace", None)]
        assert (spawned.name, spawned.namespace) == ("spawn", "agents")
        assert answer.output_text == "done"
        assert (len(session.record.replies), len(session.record.lines())) == (31, 1)


class Step(BaseModel):
    far: bool


async def test_a_schema_is_parsed_and_a_cut_reply_is_incomplete(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "script.jsonl", [reply('{"far": true}')]) as endpoint,
        client_of(endpoint) as client,
    ):
        parsed = await client.responses.parse(model="policy", input="go", text_format=Step)
        cut = await client.responses.create(model="policy", input="go", max_output_tokens=2)
    assert parsed.output_parsed == Step(far=True)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage is not None
    assert cut.usage.output_tokens == 2


async def test_failures_are_told_in_this_protocol(tmp_path: Path) -> None:
    ended = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    async with (
        serving(tmp_path / "script.jsonl", [reply("a")], length=100) as endpoint,
        client_of(endpoint) as client,
    ):
        stream = await client.responses.create(model="policy", input=ended, stream=True)  # type: ignore[arg-type]
        events = [event async for event in stream]
        with pytest.raises(openai.BadRequestError) as over:
            await client.responses.create(model="policy", input=ended)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError) as full:
            await client.responses.create(model="policy", input="word " * 200)
        with pytest.raises(openai.NotFoundError, match="not stored"):
            await client.responses.retrieve("resp_1")
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Authorization": f"Bearer {endpoint.token}",
        }
        async with httpx2.AsyncClient(verify=False) as http:
            upgrade = await http.get(f"{endpoint.base_url()}/responses", headers=headers)
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    failed = events[-1].response  # type: ignore[union-attr]
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, over.value.code) == ("invalid_prompt", "script_ended")  # Codex asks once
    assert "has ended" in failed.error.message
    assert (full.value.code, full.value.param) == ("context_length_exceeded", "input")
    assert upgrade.status_code == 426
    assert "send a POST" in upgrade.json()["error"]["message"]


async def test_ids_are_unique(tmp_path: Path) -> None:
    async with serving(tmp_path / "script.jsonl", [reply("a")]) as endpoint:
        session = endpoint.sessions.open(rules=SamplingRules())
        async with client_of(endpoint, session) as client:
            answers = await asyncio.gather(
                *(client.responses.create(model="policy", input="go") for _ in range(8))
            )
    assert len({answer.id for answer in answers}) == 8
    assert len({answer.output[0].id for answer in answers}) == 8
