"""Anthropic's Messages over real sockets: the routes, keys, errors, streams and the line of a session."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.endpoint import app
from envsdk.engines.endpoint.sampling import SamplingRules
from tests.envsdk.engines.endpoint_models import QWEN_LIKE, qwen_like_chat
from tests.envsdk.engines.test_endpoint_server import CALL, CHAT, HELLO, Served, serving

LOOK = {"name": "look", "input_schema": {"type": "object"}}
ASKED: dict[str, Any] = {
    "model": "policy", "max_tokens": 200, "messages": [{"role": "user", "content": "hello"}],
}  # fmt: skip


async def ask(served: Served, url: str = "", **fields: Any) -> httpx2.Response:
    return await served.post(f"{url}/v1/messages?beta=true", ASKED | fields)


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(each.partition("\ndata: ")[2]) for each in response.text.split("\n\n")[:-1]]


async def test_a_message_comes_with_its_stop_reason_and_usage() -> None:
    async with serving() as served:
        first, second = (await ask(served)).json(), (await ask(served)).json()
    assert first["content"] == [{"type": "text", "text": "hello 漢字"}]
    assert first["stop_reason"] == "end_turn"
    assert first["usage"]["input_tokens"] == len(CHAT.first_prompt(system="", user="hello"))
    assert first["usage"]["output_tokens"] == len(HELLO)
    assert first["id"] != second["id"]


async def test_a_stop_sequence_and_the_ends_of_limits_are_told() -> None:
    async with serving() as served:
        stopped = (await ask(served, stop_sequences=["never", "漢"])).json()
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "漢")
        assert stopped["content"] == [{"type": "text", "text": "hello "}]
        cut = (await ask(served, max_tokens=1)).json()
        assert cut["stop_reason"] == "max_tokens"
        # More than the context has room for: the reply gets what is left.
        long = [{"role": "user", "content": "hello " * 120}]
        assert (await ask(served, messages=long, max_tokens=100_000)).json()["stop_reason"] == "end_turn"
        num_tokens = (await ask(served, messages=long)).json()["usage"]["input_tokens"]
        assert num_tokens + 100_000 > 300
        full = await ask(served, messages=[{"role": "user", "content": "hello " * 400}])
        assert (full.status_code, full.json()["error"]["type"]) == (400, "invalid_request_error")
        assert full.json()["error"]["message"].startswith("prompt is too long: ")


async def test_a_stream_has_all_events() -> None:
    async with serving(reply=CALL) as served:
        response = await ask(served, tools=[LOOK], stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    told = events(response)
    assert [event["type"] for event in told if event["type"] != "content_block_delta"] == [
        "message_start", "ping", "content_block_start", "content_block_stop",
        "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Wait."
    assert json.loads(deltas[-1]["partial_json"]) == {"where": "up"}
    assert told[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_stream_sends_pings_while_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PING_S", 0.01)
    async with serving(latency={"kind": "constant", "mean_s": 0.2}) as served:
        kinds = [event["type"] for event in events(await ask(served, stream=True))]
        chat = await served.chat(stream=True)
    assert kinds[0] == "message_start"
    assert kinds[1:4] == ["ping"] * 3
    assert kinds[-1] == "message_stop"
    assert "ping" not in chat.text


RESPONSES_ASKED = {"model": "policy", "input": "hi"}


@pytest.mark.parametrize(
    ("path", "given", "meant"),
    [
        ("messages", {"temprature": 0}, "temperature"),
        ("messages", {"stop_sequence": ["a"]}, "stop_sequences"),
        ("messages", {"topP": 1}, "top_p"),
        ("responses", {"max_output_token": 5}, "max_output_tokens"),
        ("responses", {"temprature": 0.1}, "temperature"),
    ],
)
async def test_a_misspelled_field_is_refused_and_the_right_one_named(
    path: str, given: dict[str, Any], meant: str
) -> None:
    asked = {"messages": ASKED, "responses": RESPONSES_ASKED}[path]
    async with serving() as served:
        await served.post("/sessions", {"id": "a"})
        for place in (f"/v1/{path}", f"/sessions/a/v1/{path}"):
            refused = await served.post(place, asked | given)
            assert refused.status_code == 400
            (name,) = given
            message = refused.json()["error"]["message"]
            assert message == f"unknown parameter `{name}`; did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "messages",
            "anthropic_beta betas cache_control container context_management diagnostics fallbacks "
            "mcp_servers inference_geo max_thinking_tokens metadata output_format service_tier speed "
            "thinking user_profile_id",
        ),
        (
            "responses",
            "access_programs background_options client_metadata context_management image max_tool_calls "
            "metadata moderation prompt_cache_key prompt_cache_options prompt_cache_retention reasoning "
            "safety_identifier service_tier store stream_options top_logprobs truncation user",
        ),
    ],
)
async def test_fields_that_real_clients_send_are_counted(path: str, names: str) -> None:
    asked = {"messages": ASKED, "responses": RESPONSES_ASKED}[path]
    async with serving() as served:
        assert (
            await served.post(f"/v1/{path}", asked | dict.fromkeys(names.split(), "x"))
        ).status_code == 200
        assert set(served.endpoint.ignored) == set(names.split())


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"type": "json_schema"}, "output_config.format.schema"),
        ({"type": "xml"}, "output_config.format.type"),
    ],
)
async def test_a_wrong_form_of_the_output_is_named_as_the_client_sent_it(
    form: dict[str, Any], named: str
) -> None:
    async with serving() as served:
        refused = await ask(served, output_config={"format": form})
    message = refused.json()["error"]["message"]
    assert (refused.status_code, f"`{named}`" in message, "response_format" in message) == (400, True, False)


async def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    async with serving(failure={"rate": 1.0}) as served:
        told = events(await ask(served, stream=True))
    assert told[-1]["type"] == "error"
    assert told[-1]["error"]["type"] == "api_error"


async def test_tokens_are_counted_as_they_would_be_sampled_from() -> None:
    async with serving() as served:
        counted = await served.post("/v1/messages/count_tokens?beta=true", ASKED | {"tools": [LOOK]})
        answered = await ask(served, tools=[LOOK])
    assert counted.json() == {"input_tokens": answered.json()["usage"]["input_tokens"]}


async def test_both_kinds_of_keys_open_and_errors_are_anthropics() -> None:
    async with serving() as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"{served.endpoint.session_url(session)}/v1/messages"
        body = json.dumps(ASKED)
        async with httpx2.AsyncClient() as http:
            for headers in ({"x-api-key": session.api_key}, {"Authorization": f"Bearer {session.api_key}"}):
                assert (await http.post(url, content=body, headers=headers)).status_code == 200
            wrong = await http.post(url, content=body, headers={"x-api-key": "wrong"})
            assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
            assert wrong.headers["x-should-retry"] == "false"
            assert "x-api-key" in wrong.json()["error"]["message"]
            for path in ("/", f"/sessions/{session.session_id}"):
                assert (await http.head(served.endpoint.url + path)).status_code == 200
        other = await ask(served, model="claude-haiku-4-5")
        assert (other.status_code, other.json()["type"]) == (404, "error")
        assert other.json()["error"]["type"] == "not_found_error"
        assert "`policy` is served" in other.json()["error"]["message"]
        twice = await served.post("/v1/v1/messages", ASKED)
        assert "without it" in twice.json()["error"]["message"]
        assert (await served.post("/v1/messages/batches", ASKED)).json()["type"] == "error"
        assert (await served.http.get(f"{served.endpoint.url}/v1/messages")).json()["type"] == "error"


async def test_a_session_is_one_line_however_the_client_writes_its_history() -> None:
    """What Claude Code does: it adds reminders, moves cache marks and fills in a tool's defaults."""
    async with serving(reply=[CALL, CALL, HELLO], length=1000) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        path = f"/sessions/{session.session_id}"
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "x"}}]},
            {"role": "system", "content": "You have agents."},
        ]
        for turn in range(3):
            header = {"type": "text", "text": f"x-anthropic-billing-header: cch={turn};"}
            system = [header, {"type": "text", "text": "You are an agent."}]
            answer = (await ask(served, path, messages=messages, tools=[LOOK], system=system)).json()
            messages[0] = {"role": "user", "content": "hello"}
            for block in answer["content"]:
                if block["type"] == "tool_use":
                    block["input"] |= {"all": False}
                    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "ice"}
                    messages += [
                        {"role": "assistant", "content": answer["content"]},
                        {"role": "system", "content": "Be quick."},
                        {"role": "user", "content": [result]},
                    ]
        assert len(session.record.replies) == 3
        (line,) = session.record.lines()
        ids = CHAT.decode(line[-1].ids, skip_special_tokens=False)
        assert ids.count("ice") == 2
        assert ids.index("ice") < ids.index("Be quick.")
        assert "billing" not in ids
        assert session.ignored["system[].x-anthropic-billing-header"] == 3


REFUSING = QWEN_LIKE.replace(
    "{%- for message in messages %}",
    "{%- for message in messages %}{%- if message.role == 'system' and not loop.first %}"
    "{{- raise_exception('System message must be at the beginning.') }}{%- endif %}",
)


@pytest.mark.parametrize("template", [QWEN_LIKE, REFUSING], ids=["takes", "refuses"])
async def test_a_template_that_refuses_inline_system_messages_gets_them_in_the_users(template: str) -> None:
    chat = ChatTokenizer(qwen_like_chat()._tokenizer, template)
    inline = [{"role": "user", "content": "hello"}, {"role": "system", "content": "Be quick."}]
    async with serving(chat=chat, reply=[CHAT.reply("Up"), HELLO]) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        path = f"/sessions/{session.session_id}"
        answer = (await ask(served, path, messages=inline)).json()
        further = [
            *inline,
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": "go"},
        ]
        assert (await ask(served, path, messages=further)).status_code == 200
        (line,) = session.record.lines()
    text = chat.decode(line[-1].ids, skip_special_tokens=False)
    folded = "<|im_start|>user\nhello\nBe quick.<|im_end|>"
    assert (folded in text) == (template is REFUSING)
    assert ("<|im_start|>system\nBe quick." in text) == (template is QWEN_LIKE)
    assert line[0].observation == "hello\nBe quick."


async def test_a_trained_session_refuses_another_distribution_in_anthropics_format() -> None:
    async with serving() as served:
        session = served.endpoint.sessions.open(rules=SamplingRules(is_fixed=True, max_new_tokens=50))
        refused = await ask(served, f"/sessions/{session.session_id}", temperature=0.5)
    assert refused.status_code == 400
    assert "trained on" in refused.json()["error"]["message"]
