"""OpenEnv's protocol: our server, our client, and both against each other over real sockets.

Against the package itself: tests/openenv_package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import envsdk
from envsdk import serve_env
from envsdk.adapters.openenv import SPEC
from envsdk.adapters.openenv.client import OpenEnvClientEnv, OpenEnvFailed
from envsdk.adapters.openenv.messages import schemas, text_field
from envsdk.adapters.openenv.server import OpenEnvServer
from envsdk.env import EnvSpec, Info, Isolation
from envsdk.failures import Boundary, ConfigurationError
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.play.local_runner import play_tasks
from envsdk.policy import Policy, Reply, TurnContext
from envsdk.registry import system_prompt
from envsdk.serve_env import env_server
from envsdk.testing import check_text_env
from envsdk.trajectory import Outcome, Task, Trajectory
from tests.envsdk.adapters.open_servers import TOKEN, served, server_process

LAKE = {"size": 3, "p": 1.0, "legend": False}


class Fragile(envsdk.TextEnv):
    """Raises when asked to, and knows its own instances."""

    instances = 0

    def __init__(self) -> None:
        Fragile.instances += 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if seed == 13:
            raise ValueError("thirteen")
        return f"seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if action == "boom":
            raise RuntimeError("it broke")
        return (
            action,
            0.5,
            False,
            action == "enough",
            {"success": False, "metrics": {"length": float(len(action))}},
        )

    def close(self) -> None:
        Fragile.instances -= 1


FRAGILE = EnvSpec(id="test/Fragile-v0", entry_point=Fragile)


@pytest.fixture(scope="module")
def lake() -> Iterator[OpenEnvServer]:
    with served("FrozenLake", LAKE) as server:
        yield server


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_TOKEN", TOKEN)


def client(server: OpenEnvServer | str, **options: Any) -> OpenEnvClientEnv:
    url = server if isinstance(server, str) else server.url
    env = envsdk.make("envsdk/OpenEnv-v1", **{"url": url, "token_variable": "SERVER_TOKEN", **options})
    assert isinstance(env, OpenEnvClientEnv)
    return env


def session(server: OpenEnvServer) -> ClientConnection:
    return connect(
        server.url.replace("http", "ws") + "/ws", additional_headers={"Authorization": f"Bearer {TOKEN}"}
    )


def asked(connection: ClientConnection, message: Any) -> dict[str, Any]:
    connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
    answer: dict[str, Any] = json.loads(connection.recv(timeout=90))
    return answer


def http(server: OpenEnvServer) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"})


def test_an_episode_through_server_and_client_is_the_same_as_without(lake: OpenEnvServer) -> None:
    ours, theirs = envsdk.make("envsdk/FrozenLake-v1", **LAKE), client(lake)
    for seed in (0, 7):
        assert theirs.reset(seed=seed) == ours.reset(seed=seed)
        for reply in ("nonsense", "\ud800", *["<answer>Right</answer>", "<answer>Down</answer>"] * 2):
            assert theirs.step(reply) == ours.step(reply)
    assert theirs.state()["step_count"] == 6
    assert theirs.state()["done"] is True
    theirs.close()


def test_an_episode_cut_at_the_servers_limit_is_truncated(lake: OpenEnvServer) -> None:
    with served("FrozenLake", {**LAKE, "max_steps": 4}) as server:
        env = client(server)
        env.reset(seed=0)
        for _ in range(4):
            _, _, terminated, truncated, info = env.step("")
        assert (terminated, truncated, info["success"]) == (False, True, False)
        env.close()


def test_a_served_environment_keeps_the_contract() -> None:
    with served("FrozenLake") as server:
        check_text_env(lambda: client(server, max_steps=20), max_examples=1)


def test_messages_have_the_shapes_of_the_protocol(lake: OpenEnvServer) -> None:
    with session(lake) as connection:
        assert asked(connection, {"type": "reset", "data": {"seed": 0, "episode_id": "e1", "other": 1}}) == {
            "type": "observation",
            "data": {
                "observation": {"text": "P__\n___\n__G", "success": None, "truncated": False, "metrics": {}},
                "reward": None,
                "done": False,
            },
        }
        step = asked(
            connection, {"type": "step", "data": {"text": "<answer>Down</answer>", "metadata": {"a": 1}}}
        )
        assert step["data"]["observation"]["metrics"] == {"action_is_valid": 1.0, "action_is_effective": 1.0}
        assert asked(connection, {"type": "state"}) == {
            "type": "state",
            "data": {"episode_id": "e1", "step_count": 1, "seed": 0, "done": False},
        }
        connection.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=90)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        (b"{}", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("[]", "UNKNOWN_TYPE"),
        ({"type": "mcp", "data": {}}, "UNKNOWN_TYPE"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"message": "x"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "x"}}, "EXECUTION_ERROR"),
    ],
)
def test_a_wrong_message_is_answered_with_its_error(lake: OpenEnvServer, message: Any, code: str) -> None:
    with session(lake) as connection:
        answer = asked(connection, message)
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert asked(connection, {"type": "reset"})["type"] == "observation"


def test_without_the_token_only_health_is_told(lake: OpenEnvServer) -> None:
    assert httpx2.get(f"{lake.url}/health").json() == {"status": "healthy"}
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Basic ???"}):
        assert httpx2.get(f"{lake.url}/schema", headers=headers).status_code == 401
    with pytest.raises(InvalidStatus, match="403"), connect(lake.url.replace("http", "ws") + "/ws"):
        pass
    # As clients do that can only be given an address.
    address = lake.url.replace("http://", f"ws://any:{TOKEN}@")
    with connect(f"{address}/ws") as connection:
        assert asked(connection, {"type": "reset"})["type"] == "observation"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "Reply with the action and nothing else."),
        ({"action_field": ""}, 'Its fields: {"text": {'),
    ],
)
def test_the_prompt_has_the_servers_task_and_what_an_action_is(
    lake: OpenEnvServer, options: dict[str, Any], told: str
) -> None:
    prompt = system_prompt(SPEC, {"url": lake.url, "token_variable": "SERVER_TOKEN", **options})
    assert envsdk.spec("envsdk/FrozenLake-v1").description in prompt
    assert "<answer>Left</answer>" in prompt
    assert told in prompt


def test_the_prompt_without_a_server_is_the_form_of_a_reply() -> None:
    assert system_prompt(SPEC, {"url": "http://127.0.0.1:1"}) == "Reply with the action and nothing else."


def test_the_schema_and_the_metadata_are_told(lake: OpenEnvServer) -> None:
    with http(lake) as requests:
        assert requests.get("/schema").json() == schemas()
        assert requests.get("/metadata").json()["name"] == "envsdk/FrozenLake-v1"


def test_episodes_over_http_are_kept_apart_by_their_ids(lake: OpenEnvServer) -> None:
    def step(requests: httpx2.Client, episode_id: str, move: str) -> httpx2.Response:
        action = {"text": f"<answer>{move}</answer>"}
        return requests.post("/step", json={"action": action, "episode_id": episode_id})

    with http(lake) as requests:
        a = requests.post("/reset", json={"seed": 0}).json()["episode_id"]
        b = requests.post("/reset", json={"seed": 0, "episode_id": "b"}).json()["episode_id"]
        assert step(requests, a, "Right").json()["observation"]["text"] == "_P_\n___\n__G"
        assert step(requests, b, "Down").json()["observation"]["text"] == "___\nP__\n__G"
        assert requests.get("/state", params={"episode_id": b}).json()["step_count"] == 1
        moves = [step(requests, a, move).json() for move in ("Right", "Down", "Down")]
        assert [(move["reward"], move["done"]) for move in moves] == [(0.0, False), (0.0, False), (1.0, True)]
        # An episode that is done is closed.
        assert step(requests, a, "Left").status_code == 404
        assert requests.post("/step", json={"action": {"text": ""}}).status_code == 404
        assert requests.post("/step", json={"action": "Left"}).status_code == 422
        assert requests.post("/reset", content=b"{").status_code == 400
        assert requests.post("/reset", content=b" " * 2_000_000).status_code == 422


def test_sessions_are_limited_and_freed() -> None:
    with served(FRAGILE, max_sessions=2) as server, session(server) as first, session(server) as second:
        assert asked(first, {"type": "reset", "data": {"seed": 1}})["data"]["observation"]["text"] == "seed 1"
        asked(second, {"type": "reset"})
        with session(server) as third:
            refused = json.loads(third.recv(timeout=90))["data"]
            assert (refused["code"], refused["max_sessions"]) == ("CAPACITY_REACHED", 2)
        with pytest.raises(OpenEnvFailed, match="2 of 2 sessions are open"):
            client(server).reset(seed=0)
        assert Fragile.instances == 2
        first.close()
        second.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            second.recv(timeout=90)
        with session(server) as again:
            asked(again, {"type": "reset"})
            assert Fragile.instances <= 2
    assert Fragile.instances == 0


def test_idle_episodes_over_http_make_room() -> None:
    with served(FRAGILE, max_sessions=1, session_idle_s=0.0) as server, http(server) as requests:
        for name in ("a", "b"):
            assert requests.post("/reset", json={"episode_id": name}).status_code == 200
        assert requests.get("/state", params={"episode_id": "a"}).status_code == 404


def test_an_environment_that_raises_fails_the_episode_and_not_the_server() -> None:
    with served(FRAGILE) as server:
        env = client(server)
        env.reset(seed=0)
        assert env.step("hello")[4]["metrics"] == {"action_is_valid": 1.0, "length": 5.0}
        with pytest.raises(OpenEnvFailed, match=r"step: .*it broke .*EXECUTION_ERROR"):
            env.step("boom")
        with pytest.raises(OpenEnvFailed, match="thirteen"):
            env.reset(seed=13)
        assert env.reset(seed=2)[0] == "seed 2"
        env.close()


class Killer(Policy):
    """Kills the server in its second turn."""

    name = "killer"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def act(self, turn: TurnContext) -> Reply:
        if turn.turn_index == 1:
            self._process.kill()
            self._process.wait()
        return Reply(text="<answer>Right</answer>")


async def test_a_server_that_dies_in_an_episode_is_a_masked_failure() -> None:
    played: list[Trajectory] = []
    with server_process("FrozenLake", "size=3") as (process, url):
        config = {"url": url, "token_variable": "SERVER_TOKEN"}
        blueprint = EnvBlueprint(spec=SPEC, env_config=config, isolation=Isolation.THREAD)
        await play_tasks(
            [(index, Task(tag="Lake", split="train", index=index)) for index in range(2)],
            setups={"Lake": TagSetup(tag="Lake", blueprint=blueprint, max_turns=10)},
            policy=lambda _: Killer(process),
            run_seed=0,
            num_slots_per_tag=1,
            on_trajectory=lambda _, trajectory: played.append(trajectory),
        )
    failures = [trajectory.failure for trajectory in played]
    assert [trajectory.outcome for trajectory in played] == [Outcome.FAILED] * 2
    assert [failure and failure.boundary for failure in failures] == [Boundary.ENVIRONMENT] * 2
    assert [failure and failure.kind for failure in failures] == ["step_raised", "reset_raised"]
    assert f"OpenEnvFailed: OpenEnv server {url}: step" in str(failures[0])
    assert "cannot read /schema: ConnectError" in str(failures[1])


def test_the_command_serves_until_it_is_told_to_stop() -> None:
    with server_process("envsdk/Sokoban-v1", "dim=[5,5]", "--isolation", "process") as (process, url):
        env = client(url)
        assert env.reset(seed=3)[0] == envsdk.make("envsdk/Sokoban-v1", dim=[5, 5]).reset(seed=3)[0]
        env.close()
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["FrozenLak"], "Did you mean 'envsdk/FrozenLake-v1'"),
        (["FrozenLake", "size=1"], "size: must be at least 2"),
        (["FrozenLake", "--host", "203.0.113.7"], "cannot serve on 203.0.113.7:8000: "),
    ],
)
def test_what_cannot_be_served_is_said(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve_env.main(arguments) == 2
    assert says in capsys.readouterr().err


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
    with pytest.raises(ConfigurationError, match=says):
        client("http://127.0.0.1:1", **options)


def test_a_token_that_is_not_set_or_too_short_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVER_TOKEN")
    with pytest.raises(ConfigurationError, match="SERVER_TOKEN is not set"):
        client("http://127.0.0.1:1").reset(seed=0)
    with pytest.raises(ConfigurationError, match="fewer than 16 characters"):
        env_server(FRAGILE, token="short")


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
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigurationError, match=r"envsdk\[openenv\]"):
        client("http://127.0.0.1:1").reset(seed=0)
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(ConfigurationError, match=r"envsdk\[openenv\]"):
        env_server(FRAGILE)
