"""What `envsdk/OpenEnv-v1` says without a server and without OpenEnv's package.

With both: tests/openenv_package.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

import envsdk
from envsdk.adapters.openenv import SPEC
from envsdk.adapters.openenv.client import OpenEnvClientEnv, text_field
from envsdk.base.registry import system_prompt
from envsdk.contracts.failures import ConfigurationError
from envsdk.serve_env import env_server


def test_the_prompt_without_a_server_is_the_form_of_a_reply() -> None:
    assert system_prompt(SPEC, {"url": "http://127.0.0.1:1"}) == "Reply with the action and nothing else."


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "127.0.0.1:8000"}, "url: must look like http://HOST:PORT"),
        ({"reply": "half"}, "reply: must be one of tag, whole"),
        ({"success": True}, "success: must be rewarded, or a number"),
        ({"reset_options": {"seed": 1}}, "the seed is the task's"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_wrong_settings_of_the_client_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        OpenEnvClientEnv(**{"url": "http://127.0.0.1:1", **options})


STRING, NUMBER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("properties", "required", "field"),
    [
        ({"message": STRING, "metadata": {}}, ["message"], "message"),
        ({"text": STRING, "done": {}, "reward": {}, "success": {}}, ["text"], "text"),
        ({"text": STRING, "to": STRING}, ["text", "to"], None),
        ({"code": STRING, "language": STRING}, ["code"], None),
        ({"action": NUMBER}, ["action"], None),
        ({}, [], None),
    ],
)
def test_the_text_field_is_the_only_one_that_has_to_be_filled(
    properties: dict[str, Any], required: list[str], field: str | None
) -> None:
    assert text_field({"type": "object", "properties": properties, "required": required}) == field


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv", None)
    says = r"openenv is not installed .*pip install 'envsdk\[openenv\]'"
    named = OpenEnvClientEnv(url="http://127.0.0.1:1", action_field="text", observation_field="text")
    with pytest.raises(ConfigurationError, match=says):
        named.reset(seed=0)
    with pytest.raises(ConfigurationError, match=says):
        env_server(envsdk.spec("envsdk/FrozenLake-v1"))
