"""litellm, and mini-swe-agent, which stands on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

litellm = pytest.importorskip("litellm", reason="needs litellm: make test-clients")
pytestmark = pytest.mark.clients

from policies import MODEL, call, scripted  # noqa: E402

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
def test_its_own_messages_sent_back_continue_the_line(folder: Path, provider: str) -> None:
    thought = "<think>ice is slippery</think>" + call("look")
    with scripted(folder, [thought, call("look"), "done"]) as served:
        asked: dict[str, Any] = {
            "model": f"{provider}/{MODEL}", "api_base": served.base_url, "api_key": served.key,
            "tools": [LOOK],
        }  # fmt: skip
        messages: list[Any] = [{"role": "user", "content": "answer"}]
        for _ in range(2):
            message = litellm.completion(messages=messages, **asked).choices[0].message
            messages += [
                message.model_dump(),
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ice"},
            ]
        last = litellm.completion(messages=messages, **asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in last) == "done"
        assert (len(served.replies), served.num_lines) == (3, 1)


def test_mini_swe_agent_works_until_it_submits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "config"))
    pytest.importorskip("minisweagent", reason="needs mini-swe-agent: make test-clients")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat answer"
    steps = [
        f"I try step {number}." + call("bash", command=command)
        for number, command in enumerate(("echo 42 > answer", "ls", submit))
    ]
    with scripted(folder, steps) as served:
        model = LitellmModel(
            model_name=f"openai/{MODEL}",
            model_kwargs={
                "api_base": served.base_url,
                "api_key": served.key,
                "drop_params": True,
                "parallel_tool_calls": True,
            },
            cost_tracking="ignore_errors",
        )
        agent = DefaultAgent(
            model,
            LocalEnvironment(cwd=str(tmp_path)),
            system_template="You use bash.",
            instance_template="Task: {{task}}",
        )
        ended = agent.run("write 42")
        assert ended == {"exit_status": "Submitted", "submission": "42\n"}
        assert (len(served.replies), served.num_lines) == (3, 1)
        assert set(served.ignored) <= {"messages[].provider_specific_fields"}
