"""What policies are told of other packages' environments, where the user's own configuration says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from envsdk.base import registry

LAKE = "Walk (P) over the ice (_) to the goal (G); a hole (O) ends the episode.\n"


@pytest.mark.parametrize(
    ("id", "env_config", "told"),
    [
        ("Gem", {"id": "game:Sudoku-v0"}, "reply in the form that it asks for."),
        ("Verifiers", {"id": "gsm8k"}, "reply in the form that it asks for."),
        (
            "ReasoningGym",
            {"dataset": "gcd"},
            ".\nReply with the answer in tags: <answer>...</answer>.",
        ),
        ("ReasoningGym", {"dataset": "gcd", "reply": "whole"}, "Reply with the answer and nothing else."),
        ("OpenEnv", {"url": "http://a:1"}, "Reply with the action and nothing else."),
        ("OpenEnv", {"url": "http://a:1", "reply": "tag"}, "in tags: <answer>...</answer>."),
        ("OpenEnv", {"url": "http://a:1", "action_field": ""}, "Reply with the action as a JSON object"),
        ("ToolUse", {"env": "envsdk/FrozenLake-v1", "tools": []}, LAKE),
        ("ToolUse", {"env": "envsdk/FrozenLake-v1", "tools": []}, "You may call tools first: <tool_call>"),
    ],
)
def test_the_prompt_is_about_the_environment_and_not_about_the_adapter(
    id: str, env_config: dict[str, Any], told: str
) -> None:
    spec = registry.spec(f"envsdk/{id}-v1")
    prompt = registry.system_prompt(spec, env_config)
    assert told in prompt
    assert spec.description not in prompt


def test_an_environment_with_one_task_is_told_by_its_spec() -> None:
    spec = registry.spec("envsdk/FrozenLake-v1")
    assert registry.system_prompt(spec, {"size": 6}) == f"{spec.description}\n{spec.action_format}"
