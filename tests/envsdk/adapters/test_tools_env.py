"""Any environment with tools beside it: the wrapper `envsdk/ToolUse-v1`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import envsdk
from envsdk.adapters.tools import SPEC, ToolUnavailable, tool
from envsdk.contracts.env import Info
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.rollouts.play.local_runner import play_tasks
from envsdk.testing import check_text_env
from tests.envsdk.engines.endpoint_models import CHATS
from tests.envsdk.engines.test_engine_policy import ScriptedProxy

CLOCK = [sys.executable, str(Path(__file__).with_name("mcp_clock_server.py"))]
LAKE = {"env": "envsdk/FrozenLake-v1", "env_config": {"size": 2, "p": 1.0, "legend": False}}


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


def gone() -> str:
    raise ToolUnavailable("the server is gone")


def make(**options: Any) -> envsdk.TextEnv:
    return envsdk.make("envsdk/ToolUse-v1", **{**LAKE, "tools": [double, gone], **options})


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def told(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def test_the_first_observation_lists_the_tools() -> None:
    observation, info = make().reset(seed=0)
    assert observation.startswith('Tools:\n{"name": "double", "description": "Twice the number."')
    assert observation.endswith("\n\nP_\n_G")
    assert info == {}


def test_the_chat_template_can_get_them_instead() -> None:
    observation, info = make(tool_list="template").reset(seed=0)
    assert observation == "P_\n_G"
    assert [tool["function"]["name"] for tool in info["tools"]] == ["double", "gone"]
    assert make(tool_list="none").reset(seed=0) == ("P_\n_G", {})


@pytest.mark.parametrize("kind", ["qwen_like_chat", "tiny_chat"])
async def test_a_models_chat_template_or_its_system_message_writes_them_into_its_first_prompt(
    kind: str,
) -> None:
    chat = CHATS[kind]
    replies = ['<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>', "Up", "Up"]
    proxy = ScriptedProxy(*(chat.reply(reply) for reply in replies))
    generating = SamplingParams(max_new_tokens=64)
    blueprint = EnvBlueprint(spec=SPEC, env_config={**LAKE, "tools": [double], "tool_list": "template"})
    played: list[Trajectory] = []
    await play_tasks(
        [(0, Task(tag="Lake", split="train", index=0))],
        setups={"Lake": TagSetup(tag="Lake", blueprint=blueprint, max_turns=3)},
        policy=lambda _: EnginePolicy(proxy, chat, generating, sequence_length=4096),
        run_seed=0,
        num_slots_per_tag=1,
        on_trajectory=lambda _, trajectory: played.append(trajectory),
    )
    (trajectory,) = played
    assert trajectory.tokens is not None
    text = chat.decode(trajectory.tokens.ids.tolist(), skip_special_tokens=False)
    description = json.dumps(tool(double).described())
    assert text.count(description) == 1
    assert text.index(description) < text.index("P_\n_G") < text.index(told("8"))


def test_calls_are_answered_between_moves_and_the_environment_does_not_see_them() -> None:
    env = make(call_penalty=0.25)
    env.reset(seed=0)
    reply = "Twice three is " + call("double", '{"number": 3}')
    metrics = {"action_is_valid": 1.0, "tool_calls": 1.0, "tool_errors": 0.0, "call_attempt.ok": 1.0}
    assert env.step(reply) == (told("6"), -0.25, False, False, {"success": False, "metrics": metrics})
    assert env.step("<answer>Right</answer>")[0] == "_P\n_G"
    observation, reward, terminated, _, info = env.step("<answer>Down</answer>")
    assert (observation, reward, terminated, info["success"]) == ("__\n_V", 1.0, True, True)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ('[TOOL_CALLS]double[ARGS]{"number": 3}', "ok"),
        ('{"name": "double", "parameters": {"number": 3}}', "ok"),
        ("<tool_call>double<arg_key>number</arg_key><arg_value>3</arg_value></tool_call>", "ok"),
        ("<tool_call>double(3)</tool_call>", "malformed"),
        ('<tool_call>{"name": "dou', "cut"),
        (call("doubel"), "unknown_tool"),
        (f"<think>{call('double')}</think><answer>Right</answer>", "none"),
        ('{"name": "Right"}', "none"),
    ],
)
def test_each_turn_says_how_its_attempt_to_call_went_in_any_format(reply: str, status: str) -> None:
    env = make()
    env.reset(seed=0)
    observation, *_, info = env.step(reply)
    assert info["metrics"][f"call_attempt.{status}"] == 1.0
    assert (observation == told("6")) is (status == "ok")
    assert observation.startswith("<tool_response>") is (status != "none")


def test_a_wrong_call_costs_a_turn_and_the_penalty() -> None:
    env = make(invalid_penalty=0.5, max_steps=2)
    env.reset(seed=0)
    observation, reward, _, _, info = env.step(call("double", '{"number": "three"}'))
    assert observation == told("Error: double: number: 'three' is not of type 'integer'")
    assert reward == -0.5
    assert info["metrics"]["action_is_valid"] == 0.0
    assert env.step(call("doubel"))[3] is True


def test_the_calls_of_an_episode_are_limited() -> None:
    env = make(max_calls=1)
    for _ in range(2):
        env.reset(seed=0)
        assert env.step(call("double", '{"number": 1}'))[0] == told("2")
        assert env.step(call("double", '{"number": 1}'))[0] == told("Error: no calls are left")


def test_a_broken_tool_raises_out_of_step() -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ToolUnavailable):
        env.step(call("gone"))
    # The next episode is played.
    env.reset(seed=0)
    assert env.step(call("double", '{"number": 1}'))[0] == told("2")


def test_servers_are_connected_once_or_for_each_episode() -> None:
    kept = {"command": CLOCK, "only": ["tick"], "prefix": "kept_"}
    fresh = {"command": CLOCK, "only": ["tick", "die"], "is_fresh": True}
    env = make(mcp_servers={"kept": kept, "fresh": fresh})
    try:
        seen = []
        for _ in range(2):
            env.reset(seed=0)
            seen += [env.step(call(name))[0] for name in ("kept_tick", "tick")]
        assert seen == [told("1"), told("1"), told("2"), told("1")]
        with pytest.raises(ToolUnavailable, match="MCP server 'fresh'"):
            env.step(call("die"))
    finally:
        env.close()


def test_it_keeps_the_contract() -> None:
    lake = {"max_steps": 12}
    check_text_env(lambda: make(env_config=lake, max_steps=12, tools=[double]), max_examples=3)


class Plain(envsdk.TextEnv):
    """Has no optional ability."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        return "say something", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "said", 1.0, True, False, {"success": True}


def test_it_can_do_what_the_environment_inside_can() -> None:
    envsdk.register(envsdk.EnvSpec(id="test/Plain-v0", entry_point=Plain))
    assert make(env="test/Plain-v0", env_config={}).abilities() == frozenset()
    assert make().abilities() == {"oracle", "legal_actions", "state_hash"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tools": []}, "tools: give some, or mcp_servers"),
        ({"tool_list": "prompt"}, "tool_list: must be one of observation, template, none"),
        ({"max_calls": -1}, "max_calls"),
        ({"max_steps": 0}, "max_steps"),
        ({"tools": ["json:dumpss"]}, "tool 'json:dumpss' cannot be loaded"),
        ({"env": "envsdk/FrozenLak-v1"}, "Did you mean 'envsdk/FrozenLake-v1'"),
        ({"env_config": {"sice": 3}}, "Did you mean 'size'"),
        ({"mcp_servers": {"clock": {"comand": ["x"]}}}, "unknown key; did you mean `command`?"),
        ({"mcp_servers": {"clock": {}}}, "give either `command` or `url`"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make(**options)
    assert says in str(raised.value)
