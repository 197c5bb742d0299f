"""Environments of ours on OpenEnv's server, with our client and over bare sockets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

import envsdk
from envsdk import serve_env
from envsdk.adapters.openenv import SPEC
from envsdk.adapters.openenv.client import OpenEnvClientEnv, OpenEnvFailed
from envsdk.base.registry import system_prompt
from envsdk.contracts.env import EnvSpec, Info, Isolation
from envsdk.contracts.failures import Boundary, ConfigurationError
from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.rollouts.play.local_runner import play_tasks
from envsdk.serve_env import env_server
from envsdk.testing import check_text_env

pytest.importorskip("openenv.core")
pytestmark = pytest.mark.openenv

from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import ClientConnection, connect  # noqa: E402

from envsdk.adapters.openenv.server import OpenEnvServer  # noqa: E402
from tests.openenv_package.open_servers import TOKEN, served, server_process  # noqa: E402

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
                "observation": {
                    "text": "P__\n___\n__G",
                    "success": None,
                    "truncated": False,
                    "metrics": {},
                    "metadata": {},
                },
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
        ({"type": ["reset"]}, "UNKNOWN_TYPE"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"message": "x"}}, "VALIDATION_ERROR"),
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


def test_the_schema_and_the_metadata_are_told(lake: OpenEnvServer) -> None:
    with http(lake) as requests:
        assert requests.get("/schema").json()["action"]["required"] == ["text"]
        assert requests.get("/metadata").json()["name"] == "envsdk/FrozenLake-v1"


def test_sessions_are_limited_and_freed() -> None:
    with served(FRAGILE, max_sessions=2) as server, session(server) as first, session(server) as second:
        assert asked(first, {"type": "reset", "data": {"seed": 1}})["data"]["observation"]["text"] == "seed 1"
        asked(second, {"type": "reset"})
        with session(server) as third:
            refused = json.loads(third.recv(timeout=90))["data"]
            assert (refused["code"], refused["max_sessions"]) == ("CAPACITY_REACHED", 2)
        with pytest.raises(OpenEnvFailed, match="2/2 sessions active"):
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


def test_a_token_that_is_not_set_or_too_short_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVER_TOKEN")
    with pytest.raises(ConfigurationError, match="SERVER_TOKEN is not set"):
        client("http://127.0.0.1:1").reset(seed=0)
    with pytest.raises(ConfigurationError, match="fewer than 16 characters"):
        env_server(FRAGILE, token="short")
