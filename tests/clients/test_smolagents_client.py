"""smolagents' two kinds of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("smolagents", reason="needs smolagents: make test-clients")
pytestmark = pytest.mark.clients

from policies import MODEL, sampling, scripted  # noqa: E402
from smolagents import CodeAgent, LiteLLMModel, LogLevel, OpenAIModel, ToolCallingAgent, tool  # noqa: E402


@tool
def look(where: str) -> str:
    """What is there.

    Args:
        where: up or down
    """
    return f"ice {where}"


def test_a_tool_calling_agent_forces_calls_that_are_made(folder: Path) -> None:
    with sampling(folder) as served:
        model = OpenAIModel(model_id=MODEL, api_base=served.base_url, api_key=served.key, max_tokens=64)
        agent = ToolCallingAgent(tools=[look], model=model, max_steps=2, verbosity_level=LogLevel.OFF)
        agent.run("look up")
        texts = [reply.text for reply in served.replies]
    assert len(texts) >= 2
    assert all(text.startswith("<tool_call>\n{") for text in texts[:2])


def test_a_code_agent_runs_its_code(folder: Path) -> None:
    steps = ["I look.\n<code>\nseen = look(where='up')\n</code>", "<code>\nfinal_answer(seen)\n</code>"]
    with scripted(folder, steps) as served:
        model = OpenAIModel(model_id=MODEL, api_base=served.base_url, api_key=served.key)
        agent = CodeAgent(tools=[look], model=model, max_steps=3, verbosity_level=LogLevel.OFF)
        assert agent.run("look up") == "ice up"
        assert len(served.replies) == 2


def test_it_plays_through_litellm_too(folder: Path) -> None:
    with scripted(folder, ["<code>\nfinal_answer(look('up'))\n</code>"]) as served:
        model = LiteLLMModel(model_id=f"openai/{MODEL}", api_base=served.base_url, api_key=served.key)
        agent = CodeAgent(tools=[look], model=model, max_steps=2, verbosity_level=LogLevel.OFF)
        assert agent.run("look up") == "ice up"
