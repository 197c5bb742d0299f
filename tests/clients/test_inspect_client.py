"""inspect_ai's provider `openai-api`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="needs inspect_ai: make test-clients")
pytestmark = pytest.mark.clients

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import GenerateConfig, get_model  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate, use_tools  # noqa: E402
from inspect_ai.tool import Tool, tool  # noqa: E402
from policies import MODEL, call, sampling, scripted  # noqa: E402


@tool
def look() -> Tool:
    async def execute(where: str) -> str:
        """What is there.

        Args:
            where: up or down
        """
        return f"ice {where}"

    return execute


@pytest.mark.parametrize("responses_api", [False, True])
def test_a_task_with_tools_is_solved_in_one_line(folder: Path, tmp_path: Path, responses_api: bool) -> None:
    with scripted(folder, ["I look." + call("look", where="up"), "It is ice."]) as served:
        model = get_model(
            f"openai-api/envsdk/{MODEL}",
            base_url=served.base_url,
            api_key=served.key,
            responses_api=responses_api,
        )
        task = Task(
            dataset=[Sample(input="what is up?", target="ice")],
            solver=[use_tools(look()), generate()],
            scorer=includes(),
        )
        (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none")
        assert log.status == "success", log.error
        assert log.results is not None
        assert log.results.scores[0].metrics["accuracy"].value == 1
        assert (len(served.replies), served.num_lines) == (2, 1)


async def test_log_probabilities_come_through(folder: Path) -> None:
    with sampling(folder) as served:
        model = get_model(f"openai-api/envsdk/{MODEL}", base_url=served.base_url, api_key=served.key)
        config = GenerateConfig(logprobs=True, top_logprobs=3, max_tokens=6, seed=1, frequency_penalty=0.5)
        output = await model.generate("go", config=config)
    assert output.choices[0].logprobs is not None
    assert [len(each.top_logprobs or ()) for each in output.choices[0].logprobs.content] == [3] * 6
