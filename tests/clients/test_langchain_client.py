"""LangChain's ChatOpenAI, its structured output and its agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("langchain_openai", reason="needs langchain-openai: make test-clients")
pytestmark = pytest.mark.clients

from langchain.agents import create_agent  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from policies import MODEL, Served, call, sampling, scripted  # noqa: E402
from pydantic import BaseModel, SecretStr  # noqa: E402


class Step(BaseModel):
    """Where to go."""

    where: Literal["up", "down"]
    far: bool


@tool
def look(where: Literal["up", "down"]) -> str:
    """What is there."""
    return f"ice {where}"


def chat_of(served: Served, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=served.base_url, api_key=SecretStr(served.key), max_retries=0, **fields
    )


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_structured_output_is_of_its_schema(
    folder: Path, method: Literal["function_calling", "json_schema"]
) -> None:
    with sampling(folder) as served:
        assert isinstance(chat_of(served).with_structured_output(Step, method=method).invoke("go"), Step)


def test_tools_are_bound_without_parallel_calls(folder: Path) -> None:
    with scripted(folder, [call("look", where="up") * 2]) as served:
        bound = chat_of(served).bind_tools([look], parallel_tool_calls=False)
        assert [each["name"] for each in bound.invoke("go").tool_calls] == ["look"]
    with sampling(folder) as served:
        forced = chat_of(served).bind_tools([look], tool_choice="any", parallel_tool_calls=False)
        assert [each["name"] for each in forced.invoke("go").tool_calls] == ["look"]


@pytest.mark.parametrize("use_responses_api", [False, True])
def test_an_agent_with_a_tool_plays_one_line(folder: Path, use_responses_api: bool) -> None:
    with scripted(folder, ["I look." + call("look", where="up"), "It is ice."]) as served:
        chat = chat_of(served, use_responses_api=use_responses_api)
        agent = create_agent(chat, tools=[look], system_prompt="You walk.", name="walker")
        said = agent.invoke({"messages": [{"role": "user", "content": "go"}]})["messages"]
        assert [each.type for each in said] == ["human", "ai", "tool", "ai"]
        assert said[-1].text == "It is ice."
        assert (len(served.replies), served.num_lines) == (2, 1)


def test_a_stream_with_log_probabilities(folder: Path) -> None:
    with sampling(folder) as served:
        chunks = list(chat_of(served, logprobs=True, top_logprobs=2, max_completion_tokens=5).stream("go"))
    content = [
        each
        for chunk in chunks
        for each in (chunk.response_metadata.get("logprobs") or {}).get("content") or ()
    ]
    assert [len(each["top_logprobs"]) for each in content] == [2] * 5
