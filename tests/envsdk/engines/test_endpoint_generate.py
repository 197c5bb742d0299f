"""vLLM's `/inference/v1/generate` on the endpoint: token ids in, token ids out, recorded in a session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_endpoint_server import CHAT, HELLO, SLOW, Served, events, serving

from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.protocol import ReplyHead
from envsdk.engines.endpoint.protocols.generate import read_generate
from envsdk.engines.endpoint.sampling import SamplingRules, sampling_params
from envsdk.engines.endpoint.wire import CompletionFields, read_completion
from envsdk.engines.sampling import SamplingParams

PROMPT = CHAT.first_prompt(system="", user="hello")
HEAD = ReplyHead(unique="ab12", created=1, model="policy", token_text=str)


async def generate(served: Served, url: str = "", **fields: Any) -> httpx2.Response:
    body = {"token_ids": PROMPT, "sampling_params": {"logprobs": 0}, **fields}
    return await served.post(f"{url}/inference/v1/generate", body)


async def test_a_reply_is_token_ids_with_logprobs_and_weight_versions_as_vllm_writes_them() -> None:
    async with serving() as served:
        body = (await generate(served, request_id="mine", return_token_ids=True)).json()
        bare = (await generate(served, sampling_params={"max_tokens": 2})).json()
        one = (await generate(served, sampling_params={"logprobs": 1})).json()
    assert body["request_id"] == "generate-tokens-mine"
    assert (body["model"], body["output_mode"], body["prompt_token_ids"]) == ("policy", "tokens", PROMPT)
    assert body["usage"]["completion_tokens"] == len(HELLO)
    token = {"token_id": HELLO[0], "logprob": -1.0}
    choice = body["choices"][0]
    assert choice.pop("logprobs")["content"][0] == {**token, "top_logprobs": [token]}
    assert choice == {
        "index": 0,
        "finish_reason": "stop",
        "stop_reason": None,
        "weight_versions": [{"version": "0", "start": 0, "end": len(HELLO)}],
        "token_ids": HELLO,
    }
    assert one["choices"][0]["logprobs"]["content"][0] == {**token, "top_logprobs": [token]}
    assert "prompt_token_ids" not in bare
    cut = bare["choices"][0]
    assert (cut["token_ids"], cut["finish_reason"], cut["logprobs"]) == (HELLO[:2], "length", None)


async def test_a_stream_ends_with_the_versions_of_all_its_tokens() -> None:
    async with serving(latency=SLOW) as served:
        asked = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        running = asyncio.ensure_future(generate(served, **asked))
        await served.running(1)
        await served.engine.load_weights([], 7)
        first, *chunks, usage = events(await running)
    assert first["prompt_token_ids"] == PROMPT
    assert usage["usage"]["completion_tokens"] == len(HELLO)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice["token_ids"]] == HELLO
    told = [each["logprob"] for choice in choices for each in choice["logprobs"]["content"]]
    assert told == [-1.0] * len(HELLO)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert not any("weight_versions" in choice for choice in choices[:-1])
    spans = choices[-1]["weight_versions"]
    assert (spans[0]["start"], spans[-1]["version"], spans[-1]["end"]) == (0, "7", len(HELLO))


async def test_text_comes_where_it_is_asked_for() -> None:
    async with serving() as served:
        whole = (await generate(served, output_mode="text")).json()["choices"][0]
        chunks = events(await generate(served, output_mode="text", stream=True))
        stopped = await generate(served, output_mode="text", sampling_params={"stop": [" 漢"]})
    assert whole["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello 漢字"
    assert whole["logprobs"]["content"][0]["token"] == CHAT.decode(HELLO[:1])
    choice = stopped.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hello", "stop", " 漢")
    assert choice["token_ids"] == HELLO[: len(choice["token_ids"])]


async def test_a_session_records_its_replies_as_one_line() -> None:
    async with serving() as served:
        await served.post("/sessions", {"id": "a"})
        ids = list(PROMPT)
        for _ in range(3):
            reply = (await generate(served, "/sessions/a", token_ids=ids)).json()["choices"][0]["token_ids"]
            ids = [*ids, *reply, *CHAT.next_prompt(user="hello", reply_closed=True)]
        await served.post("/sessions/a/end", {})
    (trajectory,) = served.ended
    assert trajectory.tokens is not None
    assert len(trajectory.turns) == 3
    assert len(trajectory.segments()) == 1
    assert trajectory.tokens.ids.tolist() == ids[: len(trajectory.tokens.ids)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"features": {"mm_hashes": {}}}, "`features` is not supported"),
    ({"kv_transfer_params": {"do_remote_decode": True}}, "`kv_transfer_params`"),
    ({"token_ids": []}, "token_ids"),
    ({"token_ids": [10**6]}, f"token id {10**6} is outside"),
    ({"token_ids": PROMPT * 60}, "leave no room"),
    ({"model": "other"}, "no model `other`"),
    ({"messages": []}, "unknown parameter `messages`"),
    ({"sampling_params": {"max_tokens": 0}}, "at least 1"),
    ({"sampling_params": {"allowed_token_ids": [1]}}, "unknown parameter `allowed_token_ids`"),
    ({"sampling_params": {"min_tokens": 3}}, "`min_tokens` is not supported"),
    (
        {"sampling_params": {"prompt_logprobs": 1}},
        "`prompt_logprobs` is not supported: ask `/v1/completions`",
    ),
    ({"sampling_params": {"stream": True}}, "unknown parameter `stream`"),
    ({"sampling_params": {"logprobs": 3}}, "`logprobs` is not possible here"),
    ({"sampling_params": 3}, "sampling_params"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED)
async def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    async with serving() as served:
        response = await generate(served, **fields)
    assert response.status_code in (400, 404)
    assert said in response.json()["error"]["message"]


async def test_what_changes_nothing_is_counted_and_a_reply_may_be_longer_than_the_context() -> None:
    async with serving() as served:
        sampling = {"max_tokens": 5000, "detokenize": False, "spaces_between_special_tokens": True}
        response = await generate(served, priority=3, cache_salt="x", sampling_params=sampling)
        assert response.json()["choices"][0]["token_ids"] == HELLO
        assert dict(served.endpoint.ignored) == {"priority": 1, "cache_salt": 1, "detokenize": 1}


SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1.0, 3]),
        "top_p": st.floats(0.1, 1),
        "top_k": st.integers(-1, 50),
        "min_p": st.floats(0, 1),
        "seed": st.integers(0, 2**40),
        "stop_token_ids": st.lists(st.integers(0, 500), max_size=3),
        "ignore_eos": st.booleans(),
        "max_tokens": st.integers(1, 90),
        "logprobs": st.integers(0, 5),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 2),
        "logit_bias": st.dictionaries(st.integers(0, 99).map(str), st.floats(-100, 100), max_size=2),
        "structured_outputs": st.just({"regex": "a|b"}),
    },
)


def params(fields: CompletionFields) -> SamplingParams:
    return sampling_params(
        fields,
        SamplingRules(),
        num_prompt_tokens=3,
        sequence_length=100,
        stop_token_ids=(7,),
        default_max_tokens=fields.default_max_tokens,
        number=0,
        choice=0,
    )


@given(SHAPES, st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_it_samples_as_a_completion_of_the_same_tokens(shape: dict[str, Any], ids: list[int]) -> None:
    body = json.dumps({"token_ids": ids, "sampling_params": shape}).encode()
    same = {"model": "policy", "prompt": ids, "max_tokens": 97, **shape}
    same |= {"logprobs": 0} if shape.get("logprobs") == 1 else {}
    fields = read_generate(body, HEAD)
    assert params(fields) == params(read_completion(json.dumps(same).encode()))
    assert fields.prompts == [ids]


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=3), max_size=4))
def test_any_other_body_is_an_error_that_says_so(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        read_generate(json.dumps(body).encode(), HEAD)
