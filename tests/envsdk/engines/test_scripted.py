"""Written replies in a model's place: which one answers, how they are recorded, what is wrong with a file."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.engine import EngineConfig, ErrorKind, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.scripted import (
    SCRIPTED_LENGTH,
    ScriptedCall,
    ScriptedCore,
    ScriptedEngine,
    ScriptedReply,
    read_script,
)
from envsdk.engines.tool_calls.formats import read_reply
from envsdk.rollouts.play.model import running
from tests.envsdk.engines.endpoint_models import CHATS

EXAMPLE = Path(__file__).parents[3] / "examples" / "scripted_replies.jsonl"
SCRIPT = [
    ScriptedReply(content="one"),
    ScriptedReply(content="a title", match="title please"),
    ScriptedReply(content="two"),
    ScriptedReply(content="three"),
]
CORES = {
    name: ScriptedCore(
        SCRIPT, CHATS[name], EngineConfig(model=None, sequence_length=4096), name="script.jsonl"
    )
    for name in ("tiny_chat", "qwen_like_chat")
}
TEXTS = st.text(alphabet='ab <>|\n/{"}é漢', max_size=12)
TOOLS: list[Any] = [{"type": "function", "function": {"name": "bash"}}]


def asked(core: ScriptedCore, messages: list[dict[str, str]]) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompt_ids=np.array(core.chat.encode(core.chat.render(messages)), np.int32),
        sampling=SamplingParams(max_new_tokens=100, stop_token_ids=core.chat.stop_token_ids),
    )


def told(core: ScriptedCore, messages: list[dict[str, str]]) -> str | None:
    """The reply's text; None where the script has ended."""
    request = asked(core, messages)
    failure = core.why_refused(request)
    if failure is not None:
        assert failure.kind is ErrorKind.SCRIPT_ENDED
        assert "script.jsonl has ended" in failure.message
        return None
    return core.chat.decode(core.plan(request, 0).token_ids.tolist())


@pytest.mark.parametrize("chat", CORES)
@given(
    system=st.none() | TEXTS,
    turns=st.lists(st.tuples(st.booleans(), TEXTS), min_size=1, max_size=6),
)
def test_the_conversation_alone_says_which_reply_is_next(
    chat: str, system: str | None, turns: list[tuple[bool, str]]
) -> None:
    core = CORES[chat]
    in_order = ["one", "two", "three"]
    messages = [] if system is None else [{"role": "system", "content": system}]
    for is_title, text in turns:
        said = f"{text} title please" if is_title else text
        messages.append({"role": "user", "content": said})
        reply = told(core, messages)
        assert reply == ("a title" if is_title else in_order.pop(0) if in_order else None)
        assert told(core, messages) == reply  # sent again
        messages.append({"role": "assistant", "content": reply or "something else"})


@asynccontextmanager
async def serving(script: Path, model: Path | None = None) -> Any:
    config = EngineConfig(model=model, sequence_length=SCRIPTED_LENGTH, strategy_config={"script": script})
    engine = ScriptedEngine.create(config)
    async with running(engine) as proxy:
        served = EndpointConfig(model_name="policy", sequence_length=SCRIPTED_LENGTH)
        endpoint = Endpoint(proxy, engine.core.chat, served)
        await endpoint.start()
        try:
            yield endpoint
        finally:
            await endpoint.close()


async def chat(endpoint: Endpoint, session: Any, messages: list[Any], **fields: Any) -> Any:
    url = endpoint.base_url(session)
    async with openai.AsyncOpenAI(base_url=url, api_key=endpoint.token, max_retries=0) as client:
        answer = await client.chat.completions.create(
            model="policy", messages=messages, tools=TOOLS, **fields
        )
    return answer.choices[0].message


async def test_each_session_reads_the_script_from_its_beginning_and_records_one_line() -> None:
    async with serving(EXAMPLE) as endpoint:

        async def play(session: Any) -> list[Any]:
            messages: list[Any] = [{"role": "user", "content": "greet"}]
            first = await chat(endpoint, session, messages)
            (call,) = first.tool_calls
            assert (call.function.name, "hello.txt" in call.function.arguments) == ("bash", True)
            messages += [first, {"role": "tool", "tool_call_id": call.id, "content": ""}]
            second = await chat(endpoint, session, messages)
            return [first.content, second.content]

        sessions = [endpoint.sessions.open(rules=SamplingRules()) for _ in range(3)]
        titles = [
            {"role": "system", "content": "You are a title generator"},
            {"role": "user", "content": "go"},
        ]
        played = await asyncio.gather(*map(play, sessions), play(None))
        title = await chat(endpoint, sessions[0], titles)
    assert played == [["I write the file.", "hello.txt greets you."]] * 4
    assert title.content == "A greeting"
    assert [len(session.record.lines()) for session in sessions] == [2, 1, 1]
    logprobs = [logprob for reply in sessions[1].record.replies for logprob in reply.logprobs]
    assert all(map(math.isnan, logprobs))


@pytest.mark.parametrize("chat", CHATS)
def test_calls_are_written_in_the_format_of_the_model(chat: str) -> None:
    tokenizer = CHATS[chat]
    calls = [ScriptedCall(name="look", arguments={"where": "up"}), ScriptedCall(name="go")]
    reply = ScriptedReply(content="Now I look and go.", tool_calls=calls)
    read = read_reply(reply.text(tokenizer))
    assert (read.shown, [call.name for call in read.calls]) == ("Now I look and go.", ["look", "go"])
    asked = [{"role": "user", "content": "a"}]
    if chat == "qwen_like_chat":
        functions = [{"type": "function", "function": call.model_dump()} for call in calls]
        message = {"role": "assistant", "content": "Now I look and go.", "tool_calls": functions}
        rendered = tokenizer.render([*asked, message], add_generation_prompt=False)
        assert rendered == f"{tokenizer.render(asked)}{reply.text(tokenizer)}<|im_end|>\n"


async def test_behind_the_last_reply_the_request_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("only\n")
    async with serving(script) as endpoint:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        fields = {"response_format": {"type": "json_object"}, "frequency_penalty": 1, "temperature": 0}
        message = await chat(endpoint, None, messages, **fields)
        with pytest.raises(openai.BadRequestError, match=r"holds all its replies \(1\)") as refused:
            await chat(endpoint, None, [*messages, message, *messages])
    assert message.content == "only"
    assert refused.value.code == "script_ended"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no reply"),
        ("\n  \n", "holds no reply"),
        ('fine\n\n{"content": "a"', ":3: a line that begins with { is a JSON object, and this one is none"),
        ('{"contents": "a"}', ":1: 1 problem\n  contents: unknown key; did you mean `content`?"),
        (
            '{"tool_calls": [{"arguments": {}}]}',
            ":1: 1 problem\n  tool_calls[0].name: is required and missing",
        ),
        (
            '{"tool_calls": [{"name": "a", "arguments": "b"}]}',
            ":1: 1 problem\n  tool_calls[0].arguments: must be a section of keys",
        ),
        (
            '{"tool_calls": [{"name": "a", "arguments": "[1]"}]}',
            ":1: 1 problem\n  tool_calls[0].arguments: must be a section of keys",
        ),
        ("fine\n[1, 2]", ":2: this JSON is no object: as text, write it in"),
        ('"I look."', ":1: this JSON is no object"),
        ('{"match": "a", "content": "b"}', "holds no reply without `match`"),
        ('fine\n{"match": "a"}', ":2: the reply is empty: give `content`, `tool_calls` or both"),
        ('{"content": "a", "match": ""}', ":1: 1 problem\n  match"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        read_script(script)
    assert str(script) in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize("given", ['{"a": [1]}', '"{\\"a\\": [1]}"'])
def test_arguments_may_be_written_as_openai_does(tmp_path: Path, given: str) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(f'{{"tool_calls": [{{"name": "look", "arguments": {given}}}]}}\n42\n[now] go\n')
    first, *others = read_script(script)
    assert first.tool_calls == [ScriptedCall(name="look", arguments={"a": [1]})]
    assert [reply.content for reply in others] == ["42", "[now] go"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--scripted: cannot read .*nowhere"):
        read_script(tmp_path / "nowhere")


def test_the_prompts_of_agents_fit() -> None:
    config = EngineConfig(model=None, sequence_length=SCRIPTED_LENGTH, strategy_config={"script": EXAMPLE})
    tokenizer = ScriptedEngine.create(config).core.chat
    code = Path(__file__).read_text()
    assert 2 < len(code) / len(tokenizer.encode(code)) < 5
