"""The endpoint in front of models of several families: their calls, their thoughts, and what is recorded."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.endpoint.reply_text import ReplyReader
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.wire import read_chat
from envsdk.engines.tool_calls.reading import AttemptStatus, attempt_metric, attempt_of
from tests.envsdk.contracts.test_chat import GLM, GLM_TOKENS, byte_level_tokenizer
from tests.envsdk.engines.endpoint_models import QWEN_LIKE, chat_with_template
from tests.envsdk.engines.test_endpoint_server import CALL, CHAT, TOOLS, events, serving
from tests.envsdk.engines.test_tool_formats import CHATS, REPLIES, TEMPLATE, format_name, written

LOOK = [("look", {"where": "up"})]
HELLO = {"role": "user", "content": "hello"}
SHOWS_TOOLS = "{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
FAMILIES = {
    name: chat_with_template(SHOWS_TOOLS + TEMPLATE.format(reply=reply)) for name, reply in REPLIES.items()
}
THINKS = chat_with_template(
    QWEN_LIKE.replace(
        "'<|im_start|>assistant\\n' }}{%- endif %}", "'<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
    )
)


def joined(chunks: list[dict[str, Any]], name: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks)


@pytest.mark.parametrize("name", REPLIES)
async def test_calls_are_read_in_the_format_of_the_model_whole_and_streamed(name: str) -> None:
    chat = FAMILIES[name]
    content = "" if format_name(name) == "harmony" else "Wait."
    async with serving(chat=chat, reply=chat.reply(written(name, LOOK, content))) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        message = (await served.chat(url, tools=TOOLS)).json()["choices"][0]["message"]
        chunks = events(await served.chat(url, tools=TOOLS, stream=True))
        forced = await served.chat(tools=TOOLS, tool_choice="required")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"where": "up"}'}
    assert (message["content"] or "").strip() == joined(chunks, "content").strip() == content
    assert chunks[-1]["choices"][0]["delta"]["tool_calls"][0]["function"] == call["function"]
    assert [reply.attempt for reply in session.record.replies] == [AttemptStatus.OK] * 2
    if name != "hermes":
        assert (forced.status_code, forced.json()["error"]["param"]) == (400, "tool_choice")
        assert format_name(name) in forced.json()["error"]["message"]


async def test_a_thought_is_reasoning_content_and_calls_in_it_do_not_count() -> None:
    thought = 'I write <tool_call>{"name": "look"}</tool_call>.'
    reply = CHAT.reply(f"<think>{thought}</think>hello")
    async with serving(reply=reply) as served:
        message = (await served.chat(tools=TOOLS)).json()["choices"][0]["message"]
        chunks = events(await served.chat(tools=TOOLS, stream=True))
    assert message["reasoning_content"] == joined(chunks, "reasoning_content") == thought
    assert message["content"] == joined(chunks, "content") == "hello"
    assert "tool_calls" not in message


async def test_a_prompt_may_open_the_thought() -> None:
    reply = THINKS.reply("Hm.</think>\n\nhello")
    async with serving(chat=THINKS, reply=[reply, THINKS.reply("Hm. It")]) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        message = (await served.chat(url)).json()["choices"][0]["message"]
        said = {"role": "assistant", "content": message["content"]}
        unfinished = (await served.chat(url, messages=[HELLO, said, HELLO])).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"].strip()) == ("Hm.", "hello")
    assert (unfinished["reasoning_content"], unfinished["content"]) == ("Hm. It", "")
    first, second = session.record.replies
    assert second.parent is first
    assert first.text.startswith("Hm.</think>")
    asked = {"model": "policy", "messages": [HELLO], "tools": TOOLS, "tool_choice": "required"}
    assert ReplyReader(THINKS, "auto").text(read_chat(json.dumps(asked).encode())).whole == ""


@pytest.mark.parametrize("given", ["hello", "\nhello", "<think>Hm.</think>hello"])
async def test_a_client_may_leave_out_a_thought(given: str) -> None:
    async with serving(reply=CHAT.reply("<think>Hm.</think>\nhello")) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        for messages in ([HELLO], [HELLO, {"role": "assistant", "content": given}, HELLO]):
            await served.chat(f"/sessions/{session.session_id}", messages=messages)
    first, second = session.record.replies
    assert second.parent is first


async def test_the_statuses_of_attempts_are_recorded_with_the_turns() -> None:
    broken = [CHAT.reply("<tool_call>look</tool_call>"), CHAT.reply('<tool_call>\n{"name": "look"')]
    async with serving(reply=[CALL, *broken, CHAT.reply("hello")]) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        for text in ("a", "b", "c", "d"):
            await served.chat(url, messages=[{"role": "user", "content": text}], tools=TOOLS)
        await served.chat(url, messages=[{"role": "user", "content": "e"}])
        await served.chat(url, messages=[{"role": "user", "content": "f"}], tools=TOOLS, max_tokens=3)
        await served.post(f"{url}/end", {})
    found = {turn.observation: attempt_of(turn) for each in served.ended for turn in each.turns}
    malformed = AttemptStatus.MALFORMED
    assert [found[name] for name in "abcd"] == [AttemptStatus.OK, malformed, malformed, AttemptStatus.NONE]
    assert found["e"] is None
    recorded = {turn.observation: turn.metrics for each in served.ended for turn in each.turns}
    assert recorded["b"] == recorded["c"] == attempt_metric(malformed)


async def test_an_environment_that_saw_the_text_alone_does_not_say_how_the_attempt_went() -> None:
    async with serving(reply=CALL) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        await served.chat(url, tools=TOOLS)
        session.reward(1.0, {"a": 1.0, **attempt_metric(AttemptStatus.NONE)})
        await served.post(f"{url}/end", {})
    assert served.ended[0].turns[0].metrics == {"a": 1.0, **attempt_metric(AttemptStatus.OK)}


async def test_a_call_that_the_limit_cuts_is_cut() -> None:
    async with serving(reply=CHAT.reply('<tool_call>\n{"name": "look", "arguments": {}}')) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        await served.chat(url, tools=TOOLS, max_tokens=12)
        await served.post(f"{url}/end", {})
    assert [attempt_of(turn) for turn in served.ended[0].turns] == [AttemptStatus.CUT]


def test_a_template_in_no_known_format_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    odd = chat_with_template(SHOWS_TOOLS + TEMPLATE.format(reply="{{ calls[0].name }}"))
    with caplog.at_level(logging.WARNING):
        assert ReplyReader(odd, "auto").calls.name == "hermes"
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "tool_parser" in caplog.text
        assert ReplyReader(odd, "glm").calls.name == "glm"
        assert (
            ReplyReader(CHATS["mistral"], "auto").calls.name == "hermes"
        )  # it shows no tools: we spell them out
    assert len(caplog.records) == 1


def test_what_cannot_continue_a_line_is_named_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    unbroken = QWEN_LIKE.replace(
        "message.content + '\\n</tool_response>", "raise_exception('no results') + '"
    )
    with caplog.at_level(logging.WARNING):
        ReplyReader(chat_with_template(QWEN_LIKE), "auto")
        assert not caplog.records
        ReplyReader(chat_with_template(unbroken), "auto")
    assert (
        "the result of a call and the results of several calls: each begins a line of its own" in caplog.text
    )


async def test_a_result_continues_the_line_where_it_ends_the_reply_as_glm_has_it() -> None:
    tokenizer = byte_level_tokenizer(GLM_TOKENS)
    stops = [tokenizer.token_to_id(stop) for stop in ("<|user|>", "<|observation|>")]
    chat = ChatTokenizer(tokenizer, SHOWS_TOOLS + GLM, stop_token_ids=stops)
    call = "\n<tool_call>look<arg_key>where</arg_key><arg_value>up</arg_value></tool_call><|observation|>"
    async with serving(chat=chat, reply=[chat.encode(call), chat.encode("ice<|user|>")]) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        message = (await served.chat(url, tools=TOOLS)).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ice"}
        await served.chat(url, tools=TOOLS, messages=[HELLO, message, result])
    first, second = session.record.replies
    assert second.parent is first
    whole = chat.decode(second.ids, skip_special_tokens=False)
    assert whole.count("<|observation|>") == 1
    assert whole.endswith(
        "</tool_call><|observation|>\n<tool_response>\nice\n</tool_response><|assistant|>\nice<|user|>"
    )
