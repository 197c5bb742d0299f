"""openai-agents, with its model of chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="needs openai-agents: make test-clients")
pytestmark = pytest.mark.clients

import openai  # noqa: E402
from agents import (  # noqa: E402
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from policies import MODEL, Served, call, sampling, scripted  # noqa: E402
from pydantic import BaseModel  # noqa: E402

set_tracing_disabled(True)


class Step(BaseModel):
    far: bool


@function_tool
def look(where: str) -> str:
    """What is there."""
    return f"ice {where}"


def client_of(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)


def agent_of(served: Served, **fields: Any) -> Agent[Any]:
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client_of(served))
    return Agent(name="walker", instructions="You walk.", model=model, **fields)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agent_with_a_tool_plays_one_line(folder: Path, stream: bool) -> None:
    with scripted(folder, [call("look", where="up"), "It is ice."]) as served:
        agent = agent_of(served, tools=[look], model_settings=ModelSettings(parallel_tool_calls=False))
        if stream:
            streamed = Runner.run_streamed(agent, "go")
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == "It is ice."
        else:
            assert (await Runner.run(agent, "go")).final_output == "It is ice."
        assert (len(served.replies), served.num_lines) == (2, 1)


async def test_its_output_is_of_its_type(folder: Path) -> None:
    with sampling(folder) as served:
        ended = await Runner.run(agent_of(served, output_type=Step), "go")
    assert isinstance(ended.final_output, Step)


async def test_its_default_api_plays_one_line(folder: Path) -> None:
    with scripted(folder, [call("look", where="up"), "It is ice."]) as served:
        model = OpenAIResponsesModel(model=MODEL, openai_client=client_of(served))
        agent = Agent(name="walker", instructions="You walk.", model=model, tools=[look])
        assert (await Runner.run(agent, "go")).final_output == "It is ice."
        assert (len(served.replies), served.num_lines) == (2, 1)
