"""openai's own client, which the other clients stand on."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Any

import openai
import pytest
from policies import MODEL, Served, call, sampling, scripted
from pydantic import BaseModel

MESSAGES: list[Any] = [{"role": "user", "content": "answer the task"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"where": {"enum": ["up", "down"]}},
                "required": ["where"],
                "additionalProperties": False,
            },
        },
    }
]


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)


def test_a_conversation_with_tools_continues_its_line(folder: Path) -> None:
    with scripted(folder, [call("look", where="up"), "It is ice."]) as served, client_of(served) as client:
        messages = list(MESSAGES)
        message = (
            client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
        )
        assert message.tool_calls
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ice"}]
        streamed = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        assert text == "It is ice."
        assert served.num_lines == 1


def test_the_likeliest_tokens_hold_the_sampled_one_of_a_greedy_reply(folder: Path) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    with sampling(folder) as served, client_of(served) as client:
        whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=4).choices[0]
        plain = client.chat.completions.create(**asked).choices[0]
        stream = client.chat.completions.create(**asked, logprobs=True, top_logprobs=4, stream=True)
        streamed = [
            each
            for chunk in stream
            if chunk.choices[0].logprobs
            for each in chunk.choices[0].logprobs.content
        ]
    assert whole.message.content == plain.message.content
    assert whole.logprobs is not None
    content = whole.logprobs.content or []
    assert len(content) == 8
    for each in content:
        assert len(each.top_logprobs) == 4
        assert each.top_logprobs[0].logprob == each.logprob
        assert each.top_logprobs[0].token == each.token
        values = [other.logprob for other in each.top_logprobs]
        assert values == sorted(values, reverse=True)
    assert [each.token for each in streamed] == [each.token for each in content]
    values = [other.logprob for each in streamed for other in each.top_logprobs]
    assert values == pytest.approx(
        [other.logprob for each in content for other in each.top_logprobs], abs=1e-4
    )


def test_a_bias_and_penalties_change_the_reply_and_its_log_probabilities(folder: Path) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 12,
        "seed": 3,
        "logprobs": True,
    }
    with sampling(folder) as served, client_of(served) as client:
        only = client.chat.completions.create(**asked, logit_bias={"40": 100}).choices[0]
        two = client.chat.completions.create(
            **asked, logit_bias={"40": 100, "41": 100}, presence_penalty=2, frequency_penalty=2, temperature=0
        ).choices[0]
        with pytest.raises(openai.BadRequestError) as outside:
            client.chat.completions.create(**asked, logit_bias={"4000000": 1})
    assert outside.value.param == "logit_bias"
    assert only.logprobs is not None
    assert {round(each.logprob, 3) for each in only.logprobs.content or ()} == {0.0}
    assert len({each.token for each in only.logprobs.content or ()}) == 1
    assert two.logprobs is not None
    assert len({each.token for each in two.logprobs.content or ()}) == 2


class Place(StrEnum):
    up = "up"
    down = "down"


class Step(BaseModel):
    where: Place
    far: bool


def test_a_pydantic_model_is_parsed_and_forced_calls_are_made(folder: Path) -> None:
    forced: list[Any] = ["required", {"type": "function", "function": {"name": "look"}}]
    with sampling(folder) as served, client_of(served) as client:
        parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Step)
        for choice in forced:
            answer = client.chat.completions.create(
                model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False
            )
            (made,) = answer.choices[0].message.tool_calls or ()
            assert made.type == "function"
            assert json.loads(made.function.arguments)["where"] in ("up", "down")
    assert isinstance(parsed.choices[0].message.parsed, Step)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_echo_scores_the_prompt(folder: Path, stream: bool) -> None:
    prompt = "answer the task"
    with sampling(folder) as served, client_of(served) as client:
        ids = served.chat.encode(prompt)
        asked: dict[str, Any] = {"model": MODEL, "prompt": ids, "echo": True, "logprobs": 2, "temperature": 0}
        if stream:
            parts = [
                chunk.choices[0] for chunk in client.completions.create(**asked, max_tokens=2, stream=True)
            ]
            text = "".join(part.text for part in parts)
            logprobs = [part.logprobs for part in parts if part.logprobs]
            tokens = [token for each in logprobs for token in each.tokens or ()]
            values = [value for each in logprobs for value in each.token_logprobs or ()]
            top = [each for part in logprobs for each in part.top_logprobs or ()]
        else:
            whole = client.completions.create(**asked, max_tokens=2).choices[0]
            assert whole.logprobs is not None
            text, tokens = whole.text, whole.logprobs.tokens or []
            values, top = whole.logprobs.token_logprobs or [], whole.logprobs.top_logprobs or []
        none = client.completions.create(**asked, max_tokens=0).choices[0]
        num_recorded = len(served.replies)
    assert text.startswith(prompt)
    assert none.text == prompt
    assert none.logprobs is not None
    assert none.logprobs.token_logprobs == values[: len(ids)]
    assert len(tokens) == len(values) == len(top) == len(ids) + 2
    assert values[0] is None
    assert all(value is not None and math.isfinite(value) and value <= 0 for value in values[1:])
    assert num_recorded == 1  # what only scores a prompt samples nothing


FLAT: list[Any] = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "edit", "description": "Edits."},
]


def test_responses_continue_their_line(folder: Path) -> None:
    edit = call("edit", input="*** Begin Patch")
    with (
        scripted(folder, ["<think>Hm.</think>" + call("look", where="up"), edit, "It is ice."]) as served,
        client_of(served) as client,
    ):
        items: list[Any] = [{"role": "user", "content": "answer the task"}]
        first = client.responses.create(model=MODEL, input=items, tools=FLAT)
        thought, look = first.output
        assert (thought.type, look.type) == ("reasoning", "function_call")
        assert look.type == "function_call"
        items += first.output
        items.append({"type": "function_call_output", "call_id": look.call_id, "output": "ice"})
        with client.responses.stream(model=MODEL, input=items, tools=FLAT) as stream:
            assert "response.custom_tool_call_input.done" in [event.type for event in stream]
            second = stream.get_final_response()
        (edited,) = second.output
        assert edited.type == "custom_tool_call"
        assert edited.input == "*** Begin Patch"
        items += second.output
        items.append({"type": "custom_tool_call_output", "call_id": edited.call_id, "output": "done"})
        assert client.responses.create(model=MODEL, input=items, tools=FLAT).output_text == "It is ice."
        assert (len(served.replies), served.num_lines) == (3, 1)


def test_responses_are_parsed_and_calls_forced(folder: Path) -> None:
    with sampling(folder) as served, client_of(served) as client:
        parsed = client.responses.parse(model=MODEL, input="answer the task", text_format=Step)
        forced = client.responses.create(
            model=MODEL, input="go", tools=FLAT, tool_choice={"type": "custom", "name": "edit"}
        )
    assert isinstance(parsed.output_parsed, Step)
    assert [item.type for item in forced.output] == ["custom_tool_call"]


def test_what_is_not_served_says_what_to_do(folder: Path) -> None:
    with scripted(folder, ["a"]) as served, client_of(served) as client:
        with pytest.raises(openai.NotFoundError, match="not stored"):
            client.responses.retrieve("resp_1")
        with pytest.raises(openai.BadRequestError, match="does not score prompts") as refused:
            client.completions.create(model=MODEL, prompt="a", echo=True, logprobs=0)
        assert refused.value.param == "echo"
        with pytest.raises(openai.BadRequestError, match="docs/choosing-an-engine") as biased:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, frequency_penalty=1)
        assert biased.value.param == "frequency_penalty"
        several = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=3, user="me", store=True)
        assert len(several.choices) == 3
        assert served.ignored == {"user": 1, "store": 1}
