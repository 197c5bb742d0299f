"""The endpoint over real sockets, before a mock engine: protocol, sessions, keys, failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.failures import Boundary, ConfigurationError, StorageError
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.engines.endpoint import answering, session_routes
from envsdk.engines.endpoint.recorder import SessionRecorder
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.endpoint.session_routes import OnEnded
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.engines.sampling import OutputStructure, TaggedJson
from tests.envsdk.engines.endpoint_models import CHATS

CHAT = CHATS["qwen_like_chat"]
HELLO = CHAT.reply("hello 漢字")
CALL = CHAT.reply('Wait.<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>')
NAMED = {"type": "function", "function": {"name": "look"}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
LOOK = TaggedJson(
    begin='<tool_call>\n{"name": "look", "arguments": ',
    json_schema='{"type": "object"}',
    end="}\n</tool_call>",
)
GO = {"type": "function", "function": {"name": "go", "description": "Go.", "strict": True}}
GOING = TaggedJson(
    begin='<tool_call>\n{"name": "go", "arguments": ',
    json_schema='{"type": "object", "properties": {}, "additionalProperties": false}',
    end="}\n</tool_call>",
)
SLOW = {"kind": "per_token", "token_s": 0.02}
HUNG = {"kind": "constant", "mean_s": 3600.0}


@dataclass
class Served:
    endpoint: Endpoint
    engine: MockEngine
    http: httpx2.AsyncClient
    ended: list[Trajectory] = field(default_factory=list)

    async def post(self, url: str, body: Any, **kwargs: Any) -> httpx2.Response:
        return await self.http.post(self.endpoint.url + url, content=json.dumps(body).encode(), **kwargs)

    async def chat(self, url: str = "", **fields: Any) -> httpx2.Response:
        body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}], **fields}
        return await self.post(f"{url}/v1/chat/completions", body)

    async def running(self, count: int) -> None:
        while self.engine.health().num_running != count:  # noqa: ASYNC110 - the engine calls nobody back
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    *,
    rules: SamplingRules | None = None,
    session_idle_s: float = 3600.0,
    chat: ChatTokenizer = CHAT,
    max_body_bytes: int = 100_000,
    on_ended: OnEnded | None = None,
    length: int = 300,
    model_name: str = "policy",
    **script: Any,
) -> AsyncIterator[Served]:
    config = {"reply": HELLO, **script}
    engine = MockEngine.create(EngineConfig(model=None, sequence_length=length, strategy_config=config))
    await engine.start()
    proxy = InferenceProxy({"mock": LocalLink(engine)})
    proxy.start()
    ended: list[Trajectory] = []

    async def keep(trajectories: list[Trajectory]) -> None:
        ended.extend(trajectories)

    endpoint = Endpoint(
        proxy,
        chat,
        EndpointConfig(
            model_name=model_name,
            sequence_length=length,
            rules=rules or SamplingRules(),
            max_body_bytes=max_body_bytes,
            session_idle_s=session_idle_s,
            max_sessions=3,
        ),
        on_ended=on_ended or keep,
    )
    await endpoint.start()
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    try:
        async with httpx2.AsyncClient(headers=headers, timeout=60, verify=False) as http:
            yield Served(endpoint, engine, http, ended)
    finally:
        await endpoint.close()
        await proxy.close()
        await engine.close()


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_a_reply_comes_with_its_tokens_logprobs_and_usage() -> None:
    async with serving() as served:
        body = (await served.chat(return_token_ids=True, logprobs=True)).json()
    prompt = CHAT.first_prompt(system="", user="hello")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello 漢字", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == HELLO
    assert choice["version_spans"] == [[0, 0, len(HELLO)]]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-1.0] * len(HELLO)
    assert body["prompt_token_ids"] == prompt
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(HELLO),
        "total_tokens": len(prompt) + len(HELLO),
    }


@pytest.mark.parametrize("latency", [{"kind": "constant", "mean_s": 0.0}, SLOW], ids=["at_once", "slow"])
async def test_a_stream_says_what_the_whole_reply_says(latency: dict[str, Any]) -> None:
    async with serving(latency=latency) as served:
        asked = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        response = await served.chat(**asked, logprobs=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    assert chunks[-1]["usage"]["completion_tokens"] == len(HELLO)
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "hello 漢字"
    assert [token for choice in choices for token in choice.get("token_ids", [])] == HELLO
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_a_stream_of_slow_tokens_shows_the_first_before_the_last_is_sampled() -> None:
    async with serving(latency={"kind": "per_token", "token_s": 0.2}, num_tokens=50) as served:
        body = {"model": "policy", "prompt": "a", "stream": True, "max_tokens": 50}
        url = f"{served.endpoint.base_url()}/completions"
        async with served.http.stream("POST", url, json=body) as response:
            async for _ in httpx2.EventSource(response):
                assert served.engine.health().num_running == 1
                break


async def test_replies_name_the_weights_of_their_last_token_and_the_model_those_it_has_now() -> None:
    async with serving(latency=SLOW) as served:
        models = f"{served.endpoint.base_url()}/models"
        before = (await served.http.get(models)).json()["data"][0]
        running = asyncio.ensure_future(served.chat(stream=True))
        await served.running(1)
        await served.engine.load_weights([], 7)
        served.endpoint.tell_version(7)
        during = events(await running)
        after = (await served.chat()).json()
        model = (await served.http.get(f"{models}/policy")).json()
    assert "version" not in before
    assert during[-1]["system_fingerprint"] == after["system_fingerprint"] == "version-7"
    assert model["version"] == 7


async def test_tools_are_called_whole_and_streamed() -> None:
    async with serving(reply=CALL) as served:
        whole = (await served.chat(tools=TOOLS)).json()["choices"][0]
        chunks = events(await served.chat(tools=TOOLS, stream=True))
        ignored = (await served.chat(tools=TOOLS, tool_choice="none")).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Wait."
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"where": "up"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "Wait."
    (streamed,) = deltas[-1]["tool_calls"]
    assert streamed["function"] == call["function"]
    assert ignored["finish_reason"] == "stop"
    assert "<tool_call>" in ignored["message"]["content"]


async def test_the_end_of_a_session_is_answered_again_as_it_was() -> None:
    async with serving() as served:
        for _ in range(2):
            await served.post("/sessions", {"id": "a"})
            await served.chat("/sessions/a")
            first = await served.post("/sessions/a/end", {"reward": 0.5})
            again = await served.post("/sessions/a/end", {"reward": 0.7})
            assert (again.status_code, again.json()) == (200, first.json())
        assert len(served.ended) == 2
        assert (await served.post("/sessions/b/end", {})).status_code == 404


async def test_the_log_says_once_that_requests_without_a_session_are_not_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        await served.post("/sessions", {"id": "a"})
        await served.chat("/sessions/a")
        assert not caplog.records
        for _ in range(2):
            await served.chat()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "answered and not recorded: open a session (`POST /sessions`)" in caplog.text


async def test_a_session_records_tokens_through_tool_calls_and_becomes_a_trajectory() -> None:
    async with serving(reply=[CALL, HELLO]) as served:
        opened = (await served.post("/sessions", {"id": "one", "tag": "maze", "index": 7, "seed": 3})).json()
        session = f"/sessions/{opened['id']}"
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        fields = {"tools": TOOLS, "return_token_ids": True}
        first = (await served.chat(session, messages=messages, **fields, seed=0)).json()
        message = first["choices"][0]["message"]
        call_id = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": call_id, "content": "ice"}]
        second = (await served.chat(session, messages=messages, **fields, seed=1)).json()
        before = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
        assert first["choices"][0]["token_ids"] == CALL
        assert second["prompt_token_ids"][: len(before)] == before
        status = (await served.http.get(served.endpoint.url + session)).json()
        assert status["num_replies"] == 2
        told = await served.post(f"{session}/end", {"reward": 0.5, "success": True})
        assert told.json()["trajectories"][0]["turns"] == 2
        assert (await served.chat(session)).status_code == 404
    (trajectory,) = served.ended
    assert trajectory.tokens is not None
    assert trajectory.tokens.ids.tolist() == second["prompt_token_ids"] + second["choices"][0]["token_ids"]
    assert trajectory.task.tag == "maze"
    assert (trajectory.task.index, trajectory.group_id, trajectory.seed) == (7, 7, 3)
    assert trajectory.total_reward == 0.5
    assert trajectory.success
    assert trajectory.outcome is Outcome.TERMINATED
    tagged = "<tool_response>\nice\n</tool_response>"  # as the policy saw it
    assert [turn.observation for turn in trajectory.turns] == ["hello", tagged]
    sampled = trajectory.tokens.response_mask == 1
    assert np.all(trajectory.tokens.behavior_logprobs[sampled] == -1.0)


async def test_several_choices_and_prompts_are_answered_side_by_side() -> None:
    async with serving(reply=[HELLO, CALL]) as served:
        body = {"model": "policy", "prompt": ["a", "b"], "n": 2, "seed": 0, "max_tokens": 99}
        answer = (await served.post("/v1/completions", body)).json()
        streamed = events(await served.post("/v1/completions", {**body, "stream": True}))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
    assert texts[0] == texts[2]
    assert texts[1] == texts[3] != texts[0]
    for index, text in texts.items():
        of_choice = [chunk["choices"][0] for chunk in streamed if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in of_choice) == text


async def test_a_stop_string_ends_the_reply_and_the_request() -> None:
    async with serving(latency=SLOW, num_tokens=200) as served:
        opened = (await served.post("/sessions", {})).json()
        body = (await served.chat(f"/sessions/{opened['id']}", stop=["o 漢"])).json()
        assert body["choices"][0]["message"]["content"] == "hell"
        assert body["choices"][0]["finish_reason"] == "stop"
        await served.running(0)
        await served.post(f"/sessions/{opened['id']}/end", {})
    (trajectory,) = served.ended
    assert trajectory.turns[0].reply.startswith("hello 漢")
    assert trajectory.tokens is not None
    assert len(trajectory.tokens.ids) < 100


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_goes_away_cancels_its_request(stream: bool) -> None:
    async with serving(latency=HUNG) as served:
        asking = asyncio.ensure_future(served.chat(stream=stream))
        await served.running(1)
        asking.cancel()
        await served.running(0)


async def test_ending_a_session_ends_its_replies() -> None:
    async with serving(latency=HUNG) as served:
        opened = (await served.post("/sessions", {})).json()
        asking = asyncio.ensure_future(served.chat(f"/sessions/{opened['id']}"))
        await served.running(1)
        assert (await served.post(f"/sessions/{opened['id']}/end", {})).json()["trajectories"] == []
        assert (await asking).status_code == 409
        await served.running(0)


async def test_an_engine_that_fails_is_a_server_error_whole_and_streamed() -> None:
    async with serving(failure={"rate": 1.0}) as served:
        whole = await served.chat()
        streamed = events(await served.chat(stream=True))
    assert whole.status_code == 503
    assert whole.json()["error"]["code"] == "engine_error"
    assert streamed[-1]["error"]["code"] == "engine_error"


async def test_the_token_opens_everything_and_a_sessions_key_its_own_paths() -> None:
    async with serving() as served:
        one, two = [(await served.post("/sessions", {"id": name})).json() for name in ("one", "two")]
        url = served.endpoint.url

        del served.http.headers["Authorization"]

        async def status(path: str, key: str) -> int:
            headers = {"Authorization": key} if key else {}
            return (await served.http.get(url + path, headers=headers)).status_code

        for path in ("/v1/models", "/sessions/one", "/sessions/one/v1/models", "/sessions/three"):
            assert await status(path, "") == 401
            assert await status(path, "Bearer wrong") == 401
            assert await status(path, f"Basic {served.endpoint.token}") == 401
            assert await status(path, f"Bearer {two['api_key']}") == 401
        assert await status("/sessions/one", f"Bearer {one['api_key']}") == 200
        assert await status("/sessions/one/v1/models", f"Bearer {one['api_key']}") == 200
        assert await status("/v1/models", f"Bearer {one['api_key']}") == 401
        assert await status("/sessions/three", f"Bearer {served.endpoint.token}") == 404


async def test_sessions_need_an_id_of_their_own_and_are_not_without_number() -> None:
    async with serving() as served:
        statuses = [
            (await served.post("/sessions", {"id": name})).status_code
            for name in ("a", "a", "../a", "", "b", "c", "d")
        ]
    assert statuses == [201, 409, 400, 400, 201, 201, 429]


async def test_a_session_that_was_left_behind_is_ended_as_failed() -> None:
    async with serving(session_idle_s=0.0) as served:
        await served.post("/sessions", {"id": "a"})
        await served.chat("/sessions/a")
        await served.post("/sessions", {"id": "b"})
        assert [session.session_id for session in served.endpoint.sessions.all()] == ["b"]
    (trajectory,) = served.ended
    assert trajectory.failure is not None
    assert (trajectory.failure.boundary, trajectory.failure.kind) == (Boundary.AGENT, "session_idle")


async def test_a_session_with_a_running_reply_is_not_left_behind() -> None:
    async with serving(session_idle_s=0.0, latency=HUNG) as served:
        await served.post("/sessions", {"id": "a"})
        asking = asyncio.ensure_future(served.chat("/sessions/a"))
        await served.running(1)
        await served.post("/sessions", {"id": "b"})
        assert len(served.endpoint.sessions) == 2
        asking.cancel()


async def test_an_episode_that_failed_is_recorded_as_the_agents_failure() -> None:
    async with serving() as served:
        opened = (await served.post("/sessions", {})).json()
        url = f"/sessions/{opened['id']}"
        await served.chat(url)
        assert (await served.post(f"{url}/end", {"failure": "why"})).status_code == 400
        await served.post(f"{url}/reward", {"reward": 0.25, "metrics": {"valid": 1.0}})
        fields = {"outcome": "failed", "failure": "it fell over", "success": True}
        told = await served.post(f"{url}/end", fields)
        assert told.json()["reward"] == 0.25
    (trajectory,) = served.ended
    assert trajectory.failure is not None
    assert trajectory.failure.boundary is Boundary.AGENT
    assert trajectory.failure.message == "it fell over"
    assert not trajectory.success
    assert trajectory.turns[0].metrics == {"valid": 1.0}


async def test_a_session_that_is_trained_on_refuses_another_distribution() -> None:
    async with serving(rules=SamplingRules(is_fixed=True, temperature=1.0, max_new_tokens=3)) as served:
        other = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1}
        other |= {"presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1}
        for name, value in (other | {"logit_bias": {"5": 1}}).items():
            refused = await served.chat(**{name: value})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == name
        taken = await served.chat(temperature=1, top_p=1.0, top_k=-1, max_tokens=50, return_token_ids=True)
        assert taken.json()["choices"][0]["token_ids"] == HELLO[:3]
        assert taken.json()["choices"][0]["finish_reason"] == "length"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "did you mean `temperature`"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": 1e-308}, "greedy"),
    ({"temperature": 1e308}, "temperature"),
    ({"top_k": 2**31}, "top_k"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"messages": [{}] * 20_000}, "messages[0].role"),
    ({f"p{number}": 0 for number in range(101)}, "103 parameters"),
    ({"structured_outputs": {"choice": ["a" * 33_000, "b" * 33_000]}}, "65536"),
    ({"structured_outputs": {"regex": "a" * 9_000}}, "regex"),
    ({"n": 0}, "n"),
    ({"frequency_penalty": 0.5}, "`frequency_penalty` is not possible here"),
    ({"logit_bias": {"5": 1}, "presence_penalty": 1}, "`logit_bias, presence_penalty` is not possible here"),
    ({"repetition_penalty": 2.5}, "repetition_penalty"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"05": 1}}, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "outside [0, "),
    ({"best_of": 2}, "`n` replies"),
    ({"functions": [{"name": "a"}]}, "give `tools` instead"),
    ({"reasoning_effort": "high"}, "leave it out"),
    ({"response_format": {"type": "json_object"}}, "no tokenizer"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "json_schema"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "one of regex, json and choice"),
    ({"structured_outputs": {"grammar": "a"}}, "structured_outputs"),
    ({"logprobs": True, "top_logprobs": 3}, "`top_logprobs` is not possible here"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "needs `logprobs: true`"),
    (
        {"tools": TOOLS, "tool_choice": "required"},
        "`tool_choice` is not possible here: the engine cannot",
    ),
    ({"tools": TOOLS, "tool_choice": "any"}, "`tool_choice` must be `auto`, `none`, `required` or"),
    (
        {"tools": TOOLS, "tool_choice": NAMED | {"function": {"name": "lok"}}},
        "no tool `lok` is given; given: `look`",
    ),
    ({"tool_choice": "required"}, "`required` needs `tools`"),
    ({"tools": [{"type": "web"}]}, "tool"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]}, "a JSON schema"),
    ({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "messages[0].images"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "a"}}]}, "messages[0].function_call"),
    ({"messages": [{"role": "assistant", "refusal": "No."}]}, "messages[0].refusal"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    ({"messages": [{"role": "nobody", "content": "a"}]}, "role"),
    ({"max_tokens": 10_000}, "context"),
    ({"model": "gpt-4"}, "`policy` is served"),
    ({"stop": 5}, "stop"),
]


@pytest.mark.parametrize(
    ("fields", "structure"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OutputStructure(json_schema='{"type": "object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": 1}}}},
            OutputStructure(json_schema='{"a": 1}'),
        ),
        ({"structured_outputs": {"choice": ["a", "b"]}}, OutputStructure(choices=("a", "b"))),
        ({"structured_outputs": {"regex": "a+"}}, OutputStructure(regex="a+")),
        ({"structured_outputs": {"json": {"a": 1}}}, OutputStructure(json_schema='{"a": 1}')),
        ({"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False}, None),
        ({"tools": TOOLS, "tool_choice": "required"}, OutputStructure(tagged=(LOOK,))),
        (
            {"tools": TOOLS, "tool_choice": NAMED, "response_format": {"type": "json_object"}},
            OutputStructure(tagged=(LOOK,)),
        ),
        ({"tools": [*TOOLS, GO], "tool_choice": "required"}, OutputStructure(tagged=(LOOK, GOING))),
        ({"tools": [*TOOLS, GO], "tool_choice": NAMED}, OutputStructure(tagged=(LOOK,))),
    ],
)
async def test_the_structure_that_a_client_asks_for_reaches_the_engine(
    fields: dict[str, Any], structure: OutputStructure | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[OutputStructure | None] = []
    async with serving() as served:
        submit = served.engine.submit

        def watched(request: GenerationRequest) -> Any:
            asked.append(request.sampling.structure)
            return submit(replace(request, sampling=replace(request.sampling, structure=None)))

        monkeypatch.setattr(served.engine, "submit", watched)
        assert (await served.chat(**fields)).status_code == 200
    assert asked == [structure]


async def test_a_session_that_is_trained_on_lets_nobody_change_the_structure() -> None:
    asked: dict[str, dict[str, Any]] = {
        "structured_outputs": {"structured_outputs": {"regex": "a"}},
        "response_format": {"response_format": {"type": "json_object"}},
        "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
    }
    async with serving(rules=SamplingRules(is_fixed=True)) as served:
        for name, fields in asked.items():
            response = await served.chat(**fields)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == name
            assert "structured_output in its run" in response.json()["error"]["message"]


async def test_without_parallel_calls_the_first_one_ends_the_reply_and_the_request() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"where": "up </tool_call>"}}\n</tool_call>'
    twice = CHAT.reply(f"Wait.{call}\n{call} and then some")
    one_call = {"tools": TOOLS, "parallel_tool_calls": False}
    async with serving(reply=twice, latency={"kind": "per_token", "token_s": 0.004}) as served:
        opened = (await served.post("/sessions", {})).json()
        url = f"/sessions/{opened['id']}"
        (choice,) = (await served.chat(url, **one_call)).json()["choices"]
        await served.running(0)
        streamed = events(await served.chat(**one_call, stream=True))
        unread = (await served.chat(**one_call, tool_choice="none")).json()["choices"][0]
        toolless = (await served.chat(parallel_tool_calls=False)).json()["choices"][0]
        await served.post(f"{url}/end", {})
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Wait."
    (found,) = choice["message"]["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"where": "up </tool_call>"}
    assert len(streamed[-1]["choices"][0]["delta"]["tool_calls"]) == 1
    assert unread["message"]["content"].endswith("and then some")
    assert toolless["message"]["content"].endswith("and then some")
    (trajectory,) = served.ended
    assert trajectory.turns[0].reply == f"Wait.{call}"


ECHOES: list[dict[str, Any]] = [
    {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
    {"provider_specific_fields": {"refusal": None}, "function_call": None},
    {"reasoning_content": None, "thinking_blocks": [], "refusal": "", "extra": {"cost": 0}},
]
"""What openai, litellm and others put into a message that they got and give back."""


@pytest.mark.parametrize("echo", ECHOES, ids=["openai", "litellm", "others"])
async def test_a_message_that_comes_back_with_fields_of_the_clients_own_goes_on_from_what_was_recorded(
    echo: dict[str, Any],
) -> None:
    async with serving(reply=[HELLO, HELLO]) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        message = (await served.chat(url)).json()["choices"][0]["message"]
        asked = [{"role": "user", "content": "hello"}, {**message, **echo}, {"role": "user", "content": "a"}]
        told = await served.chat(url, messages=asked, user="me", metadata={"run": "1"}, store=True)
        assert told.status_code == 200, told.text
        status = (await served.http.get(served.endpoint.url + url)).json()
    first, second = session.record.replies
    assert second.parent is first
    given = {f"messages[].{name}" for name, value in echo.items() if value}
    assert set(status["ignored"]) == given | {"user", "metadata", "store"}
    assert served.endpoint.ignored == status["ignored"]


async def test_fields_of_parts_and_calls_are_ignored_and_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger=answering.__name__)
    part = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    function = {"name": "look", "arguments": "{}", "parsed": {"a": 1}}
    called = {"id": "1", "type": "function", "index": 1, "function": function}
    messages = [
        {"role": "developer", "content": "hello", "name": "a"},
        {"role": "user", "content": [part]},
        {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "1", "content": [part]},
    ]
    async with serving() as served:
        for _ in range(2):
            assert (await served.chat(messages=messages, service_tier="auto")).status_code == 200
        assert served.endpoint.ignored == {
            "service_tier": 2,
            "messages[].content[].cache_control": 4,
            "messages[].tool_calls[].index": 2,
            "messages[].tool_calls[].function.parsed": 2,
        }
    logged = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(logged) == 4


async def test_an_echo_without_log_probabilities_needs_no_ability() -> None:
    async with serving() as served:
        body = {"model": "policy", "prompt": "hello ", "echo": True, "max_tokens": 99}
        whole = (await served.post("/v1/completions", body)).json()
        of_ids = (await served.post("/v1/completions", {**body, "prompt": CHAT.encode("hello")})).json()
        chunks = events(await served.post("/v1/completions", {**body, "stream": True}))
        nothing = events(await served.post("/v1/completions", {**body, "max_tokens": 0, "stream": True}))
    assert whole["choices"][0]["text"] == "hello hello 漢字"
    assert of_ids["choices"][0]["text"] == "hellohello 漢字"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello hello 漢字"
    assert "".join(chunk["choices"][0]["text"] for chunk in nothing) == "hello "


async def test_reasoning_that_a_client_cut_out_of_a_reply_is_still_its_reply() -> None:
    thought = CHAT.reply("<think>ice is slippery</think>hello")
    async with serving(reply=thought) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        await served.chat(url)
        cut = {"role": "assistant", "content": "hello", "reasoning_content": "ice is slippery"}
        hello = {"role": "user", "content": "hello"}
        await served.chat(url, messages=[hello, cut, hello])
        named = {"role": "assistant", "content": "hello", "reasoning": "ice is slippery", "name": "walker"}
        await served.chat(url, messages=[hello, named, hello])
        other = cut | {"reasoning_content": "ice is cold"}
        await served.chat(url, messages=[hello, other, hello])
    first, second, third, fourth = session.record.replies
    assert second.parent is third.parent is first
    assert fourth.parent is None


async def test_half_of_a_surrogate_pair_counts_as_the_replacement_character() -> None:
    """JSON is able to say it, UTF-8 is not."""
    async with serving() as served:
        session = (await served.post("/sessions", {})).json()
        url = f"/sessions/{session['id']}"
        for _ in range(2):
            told = (await served.chat(url, messages=[{"role": "user", "content": "a\ud800"}])).json()
            assert told["usage"]["prompt_tokens"] == len(CHAT.first_prompt(system="", user="a\ufffd"))
        for stream in (False, True):
            asked = {"model": "policy", "prompt": "a\ud800", "stream": stream}
            assert (await served.post(f"{url}/v1/completions", asked)).status_code == 200
        refused = await served.chat(model="\ud800")
        assert (refused.status_code, refused.json()["error"]["message"][:23]) == (
            404,
            "there is no model `\ufffd`; ",
        )
        ended = await served.post(f"{url}/end", {"final_observation": "\ud800"})
        assert ended.json()["num_replies"] == 4
        (episode,) = served.ended
        assert len(episode.turns) == 4


async def test_a_model_with_a_name_answers_to_policy_too() -> None:
    async with serving(model_name="smollm2") as served:
        for name, status in (("policy", 200), ("smollm2", 200), ("other", 404)):
            assert (await served.chat(model=name)).status_code == status
        listed = await served.http.get(f"{served.endpoint.url}/v1/models")
        assert [each["id"] for each in listed.json()["data"]] == ["smollm2"]


async def test_what_is_not_supported_is_refused_and_named() -> None:
    async with serving() as served:
        for fields, named in REFUSALS:
            response = await served.chat(**fields)
            assert response.status_code in (400, 404), fields
            assert named in response.json()["error"]["message"], fields
        neutral = {"frequency_penalty": 0, "n": None, "top_logprobs": None, "user": "me", "logit_bias": {}}
        assert (await served.chat(**neutral)).status_code == 200


async def test_bodies_routes_and_methods_that_are_wrong_are_told_in_the_same_format() -> None:
    async with serving() as served:
        url = served.endpoint.base_url() + "/completions"
        broken = await served.http.post(url, content=b"{")
        array = await served.http.post(url, content=b"[]")
        deep = await served.http.post(url, content=b'{"a":' * 5_000)
        long = await served.http.post(url, content=b" " * 100_001)
        nowhere = await served.http.get(served.endpoint.url + "/v2")
        responses = await served.http.get(served.endpoint.base_url() + "/responses/resp_1")
        without_echo = {"model": "policy", "prompt": "a", "max_tokens": 0}
        nothing = await served.post("/v1/completions", without_echo)
        method = await served.http.get(url)
        empty = await served.post("/v1/completions", {"model": "policy", "prompt": ""})
        many = await served.post("/v1/completions", {"model": "policy", "prompt": ["a"] * 9, "n": 128})
        alternatives = await served.post("/v1/completions", {"model": "policy", "prompt": "a", "logprobs": 5})
    assert [r.status_code for r in (broken, array, long, nowhere, method)] == [400, 400, 413, 404, 405]
    assert deep.status_code == empty.status_code == many.status_code == alternatives.status_code == 400
    assert (responses.status_code, nothing.status_code) == (404, 400)
    assert "Responses are not stored" in responses.json()["error"]["message"]
    assert "give `echo` too" in nothing.json()["error"]["message"]
    for response in (broken, array, deep, long, nowhere, method, empty, many, alternatives):
        assert response.json()["error"]["message"]


async def test_a_short_token_is_refused_and_no_token_is_shown() -> None:
    with pytest.raises(ConfigurationError, match="characters"):
        Endpoint(InferenceProxy({}), CHAT, EndpointConfig(model_name="m", sequence_length=9, token="short"))
    assert "secret" not in repr(EndpointConfig(model_name="m", sequence_length=9, token="secret" * 4))


async def test_openais_own_client_plays_a_session() -> None:
    async with serving(reply=[CALL, HELLO], latency=SLOW) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        async with openai.AsyncOpenAI(
            base_url=served.endpoint.base_url(session), api_key=session.api_key, max_retries=0
        ) as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
            messages: list[Any] = [{"role": "user", "content": "hello"}]
            tools: Any = TOOLS
            first = await client.chat.completions.create(
                model="policy", messages=messages, tools=tools, seed=0
            )
            message = first.choices[0].message
            assert message.tool_calls is not None
            messages += [
                message.model_dump(),
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ice"},
            ]
            text = ""
            stream = await client.chat.completions.create(
                model="policy", messages=messages, tools=tools, seed=1, stream=True
            )
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
            assert text == "hello 漢字"
            completion = await client.completions.create(model="policy", prompt="a", logprobs=0, seed=1)
            assert completion.choices[0].logprobs is not None
            with pytest.raises(openai.BadRequestError) as refused:
                await client.completions.create(model="policy", prompt="a", best_of=3)
            assert refused.value.param == "best_of"
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="gpt-4", messages=messages)
        replies = session.record.replies
    assert replies[1].parent is replies[0]
    assert replies[1].text == "hello 漢字"


class PatientChat(ChatTokenizer):
    """Tokenizes long texts only when it may."""

    may = threading.Event()

    def encode(self, text: str, *, room: int | None = None) -> list[int]:
        if len(text) > 10_000:
            assert self.may.wait(timeout=60)
        return super().encode(text, room=room)


async def test_a_short_request_is_answered_while_a_long_one_is_tokenized() -> None:
    chat = PatientChat.__new__(PatientChat)
    chat.__dict__.update(CHAT.__dict__)
    async with serving(chat=chat) as served:
        long = asyncio.ensure_future(served.chat(messages=[{"role": "user", "content": "x " * 20_000}]))
        assert (await served.chat()).status_code == 200
        assert not long.done()
        chat.may.set()
        refused = await long
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("num_bytes", [50_000, 1_100_000])
async def test_a_prompt_far_too_long_is_refused_like_one_that_is_a_little_too_long(num_bytes: int) -> None:
    """Before it is tokenized to its end, or parsed."""
    async with serving(max_body_bytes=2_000_000) as served:
        session = (await served.post("/sessions", {})).json()
        prompt = "x " * (num_bytes // 2)
        answers = [
            await served.chat(f"/sessions/{session['id']}", messages=[{"role": "user", "content": prompt}]),
            await served.post("/v1/completions", {"model": "policy", "prompt": prompt}),
        ]
        (opened,) = served.endpoint.sessions.all()
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "300 tokens" in answer.json()["error"]["message"]
    assert opened.full is not None
    assert opened.full.num_prompt_tokens > 300


@pytest.mark.parametrize(
    "fields",
    [
        {"index": 2**63},
        {"index": -1},
        {"index": True},
        {"index": 1.0},
        {"group_id": 2**63},
        {"group_id": -(2**63) - 1},
        {"seed": 2**70},
        {"seed": "7"},
        {"tag": ""},
        {"tag": "a\x00b"},
        {"tag": "\x1b]0;x\x07"},
        {"split": "x" * 201},
        {"id": "../x"},
    ],
)
async def test_a_session_whose_episode_could_not_be_stored_is_not_opened(fields: dict[str, Any]) -> None:
    async with serving() as served:
        refused = await served.post("/sessions", fields)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(fields))
        assert len(served.endpoint.sessions) == 0


async def test_every_session_that_is_opened_can_be_stored(tmp_path: Path) -> None:
    extremes: list[dict[str, Any]] = [
        {"index": 2**63 - 1, "group_id": -(2**63), "seed": 2**63 - 1, "tag": "漢" * 200},
        {"seed": -(2**63), "tag": "\ud800", "split": "\u2028"},
    ]
    with SessionRecorder(tmp_path, model_name="m") as recorder:
        async with serving(on_ended=recorder.add) as served:
            for number, fields in enumerate(extremes):
                session = (await served.post("/sessions", fields)).json()
                url = f"/sessions/{session['id']}"
                assert (await served.chat(url)).status_code == 200
                rewards = {"reward": 1e30, "metrics": {"m": -1e30}}
                for _ in range(2):
                    assert (await served.post(f"{url}/reward", rewards)).status_code == 200
                ended = await served.post(f"{url}/end", {"reward": 1e30, "final_observation": "\x00"})
                assert ended.status_code == 200, ended.text
                assert recorder.num_trajectories == number + 1
    parts = [tmp_path / f"part-{number:05d}.parquet" for number in range(len(extremes))]
    stored = [each for part in parts for each in read_trajectories(part)]
    assert [each.seed for each in stored] == [2**63 - 1, -(2**63)]
    assert stored[0].task.index == 2**63 - 1


@pytest.mark.parametrize("value", [1e31, 1e308, "1", True, None])
async def test_a_reward_that_could_not_be_added_up_is_refused(value: Any) -> None:
    async with serving() as served:
        session = (await served.post("/sessions", {})).json()
        for path, body in (
            ("reward", {"reward": value}),
            ("reward", {"reward": 0.0, "metrics": {"m": value}}),
            ("end", {"reward": value}),
        ):
            assert (await served.post(f"/sessions/{session['id']}/{path}", body)).status_code == 400


async def test_a_session_that_cannot_be_stored_stays_open_whatever_went_wrong() -> None:
    attempts: list[list[Trajectory]] = []

    async def fails_once(ended: list[Trajectory]) -> None:
        attempts.append(ended)
        if len(attempts) == 1:
            raise OverflowError("a number that does not fit")

    async with serving(on_ended=fails_once) as served:
        session = (await served.post("/sessions", {})).json()
        url = f"/sessions/{session['id']}"
        await served.chat(url)
        assert (await served.post(f"{url}/end", {"reward": 1.0})).status_code == 500
        assert (await served.post(f"{url}/end", {"reward": 1.0})).status_code == 200
    assert [[each.total_reward for each in ended] for ended in attempts] == [[1.0], [1.0]]


async def test_a_session_left_behind_that_cannot_be_stored_is_kept_and_stands_in_nobodys_way() -> None:
    async def fails(_: list[Trajectory]) -> None:
        raise StorageError("the disk is full")

    async with serving(on_ended=fails, session_idle_s=0.0) as served:
        first = (await served.post("/sessions", {})).json()
        await served.chat(f"/sessions/{first['id']}")
        assert (await served.post("/sessions", {})).status_code == 201
        assert served.endpoint.sessions.get(first["id"]).record.replies


async def test_a_host_header_that_is_no_host_is_not_repeated() -> None:
    async with serving() as served:
        for host in ("evil.example/x", 'a"b', "<script>"):
            refused = await served.post("/sessions", {}, headers={"Host": host})
            assert refused.status_code == 400
            assert len(served.endpoint.sessions) == 0
        behind_proxy = await served.post("/sessions", {}, headers={"Host": "models.example:8443"})
        assert behind_proxy.json()["base_url"].startswith("http://models.example:8443/sessions/")


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_routes, "BODY_TIMEOUT_S", 0.05)
    async with serving() as served:
        host, port = served.endpoint.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /sessions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {served.endpoint.token}\r\n"
        writer.write(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_a_path_names_the_role_of_a_line() -> None:
    async with serving(reply=CHAT.reply("hello")) as served:
        session = served.endpoint.sessions.open(rules=SamplingRules())
        url = f"/sessions/{session.session_id}"
        said = (await served.chat(url)).json()["choices"][0]["message"]
        messages = [{"role": "user", "content": "review it"}]
        body = {"model": "policy", "messages": messages, "max_tokens": 8}
        reviewed = await served.post(f"{url}/roles/reviewer/v1/messages", body)
        messages = [{"role": "user", "content": "hello"}, said, {"role": "user", "content": "on"}]
        await served.chat(url, messages=messages)
        refused = [await served.chat(f"{url}/roles/{name}") for name in ("summary", "-x", "a%20b")]
        await served.post(f"{url}/end", {})
    assert reviewed.status_code == 200
    (trajectory,) = served.ended
    assert [turn.role for turn in trajectory.turns] == ["", "reviewer", ""]
    parts = [(segment.role, len(segment.turns)) for segment in trajectory.segments()]
    assert parts == [("", 2), ("reviewer", 1)]
    assert [(each.status_code, each.json()["error"]["param"]) for each in refused] == [(400, "role")] * 3
