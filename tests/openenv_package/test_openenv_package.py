"""Both ways against OpenEnv's own package: their server with our client, our server with their clients."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import envsdk
from envsdk.adapters.openenv.client import OpenEnvClientEnv, OpenEnvFailed

openenv = pytest.importorskip("openenv.core")
pytestmark = pytest.mark.openenv

from tests.openenv_package.open_servers import TOKEN, served  # noqa: E402

SERVER = Path(__file__).with_name("guessing_server.py")


@contextmanager
def guessing(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Their server: its process and its address."""
    command = [sys.executable, str(SERVER), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def text_server() -> Iterator[str]:
    with guessing("text") as (_, url):
        yield url


def client(url: str, **options: Any) -> OpenEnvClientEnv:
    env = envsdk.make("envsdk/OpenEnv-v1", url=url, **options)
    assert isinstance(env, OpenEnvClientEnv)
    return env


def number_of(seed: int, highest: int = 9) -> int:
    return random.Random(seed).randint(1, highest)


def test_an_episode_of_their_server_is_played_here(text_server: str) -> None:
    env = client(text_server, reset_options={"highest": 5})
    for seed in (0, 1):
        number = number_of(seed, 5)
        assert env.reset(seed=seed) == ("1 to 5?", {})
        info = {"success": False, "metrics": {"action_is_valid": 1.0}}
        assert env.step("nonsense \ud800") == ("higher", 0.0, False, False, info)
        assert env.step(str(number + 1))[0] == "lower"
        assert env.state()["step_count"] == 2
        observation, reward, terminated, truncated, info = env.step(str(number))
        assert (observation, reward, terminated, truncated) == ("right", 1.0, True, False)
        assert info["success"] is True
        assert env.step("1")[:4] == ("right", 0.0, True, False)
    env.close()


def test_success_can_be_a_return_that_has_to_be_reached(text_server: str) -> None:
    env = client(text_server, success=1.5)
    env.reset(seed=0)
    assert env.step(str(number_of(0)))[4]["success"] is False
    env.close()


def test_actions_of_several_fields_are_json_and_checked_by_the_server() -> None:
    with guessing("fields") as (_, url):
        env = client(url, invalid_penalty=0.5)
        observation, _ = env.reset(seed=0)
        assert json.loads(observation) == {"hint": "1 to 9?", "num_guesses": 0}
        told, reward, _, _, info = env.step('{"number": 99}')
        assert told.endswith("Invalid action: number: Input should be less than or equal to 9")
        assert (reward, info["metrics"]["action_is_valid"]) == (-0.5, 0.0)
        assert env.step("seven")[0].endswith("Invalid action: not a JSON object.")
        assert env.state()["step_count"] == 0
        assert env.step(json.dumps({"number": number_of(0), "comment": "sure"}))[2] is True
        env.reset(seed=0)
        env.step(json.dumps({"number": number_of(0) % 9 + 1}))
        told, _, _, _, info = env.step(json.dumps({"number": number_of(0)}))
        assert json.loads(told) == {"hint": "right", "num_guesses": 2}
        assert info["success"] is False  # the metadata of a second guess says so
        env.close()

        hint = client(url, observation_field="hint", reply="tag")
        assert hint.reset(seed=0)[0] == "1 to 9?"
        answer = json.dumps({"number": number_of(0)})
        assert hint.step(f"I think <answer>{answer}</answer>")[0] == "right"
        hint.close()


def test_what_breaks_there_fails_the_episode_here(text_server: str) -> None:
    env = client(text_server)
    env.reset(seed=0)
    with pytest.raises(OpenEnvFailed, match=r"step: the game is broken \(EXECUTION_ERROR\)"):
        env.step("crash")
    assert env.reset(seed=0)[0] == "1 to 9?"
    env.close()


def test_a_full_server_and_a_dead_one_fail_the_episode() -> None:
    with guessing("text", "1") as (process, url):
        first, second = client(url), client(url)
        first.reset(seed=0)
        with pytest.raises(OpenEnvFailed, match=r"CAPACITY_REACHED\); raise its max_concurrent_envs"):
            second.reset(seed=0)
        process.kill()
        process.wait()
        with pytest.raises(OpenEnvFailed, match="step"):
            first.step("1")
        with pytest.raises(OpenEnvFailed, match="cannot connect"):
            second.reset(seed=0)


def moves(seed: int) -> list[str]:
    env = envsdk.make("envsdk/FrozenLake-v1")
    env.reset(seed=seed)
    found, over = [], False
    while not over:
        found.append(env.oracle())
        _, _, terminated, truncated, _ = env.step(found[-1])
        over = terminated or truncated
    return found


def test_their_generic_client_plays_ours() -> None:
    ours = envsdk.make("envsdk/FrozenLake-v1")
    with served("FrozenLake") as server:
        address = server.url.replace("http://", f"ws://any:{TOKEN}@")
        with openenv.GenericEnvClient(base_url=address).sync() as theirs:
            for seed in (3, 4):
                result = theirs.reset(seed=seed, episode_id=f"episode {seed}")
                assert result.observation["text"] == ours.reset(seed=seed)[0]
                assert (result.reward, result.done) == (None, False)
                for move in moves(seed):
                    result = theirs.step({"text": move})
                    observation, reward, terminated, _, info = ours.step(move)
                    assert result.observation["text"] == observation
                    assert result.observation["metrics"] == info["metrics"]
                    assert (result.reward, result.done) == (reward, terminated)
                assert result.observation["success"] is True
                state = theirs.state()
                assert (state["episode_id"], state["seed"], state["done"]) == (f"episode {seed}", seed, True)
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                theirs.step({"message": "Left"})


def test_their_typed_client_and_models_fit_ours() -> None:
    core_client = __import__("openenv.core.client_types", fromlist=["StepResult"])

    class Reply(openenv.Action):  # type: ignore[misc]
        text: str

    class Lake(openenv.Observation):  # type: ignore[misc]
        text: str
        success: bool | None = None
        truncated: bool = False
        metrics: dict[str, float] = {}  # noqa: RUF012

    class LakeClient(openenv.EnvClient):  # type: ignore[misc]
        def _step_payload(self, action: Reply) -> dict[str, Any]:
            return dict(action.model_dump())

        def _parse_result(self, payload: dict[str, Any]) -> Any:
            told = Lake(**payload["observation"], reward=payload["reward"], done=payload["done"])
            return core_client.StepResult(observation=told, reward=told.reward, done=told.done)

        def _parse_state(self, payload: dict[str, Any]) -> Any:
            return openenv.State(**payload)

    with served("FrozenLake", {"max_steps": 6}) as server:
        address = server.url.replace("http://", f"ws://any:{TOKEN}@")
        with LakeClient(base_url=address).sync() as theirs:
            theirs.reset(seed=3)
            for _ in range(6):
                result = theirs.step(Reply(text="nothing"))
            assert result.observation.truncated
            assert result.done
            assert theirs.state().step_count == 6


def test_a_client_without_the_token_is_turned_away() -> None:
    with served("FrozenLake") as server:
        theirs = openenv.GenericEnvClient(base_url=server.url).sync()
        with pytest.raises(ConnectionError, match="403"):
            theirs.connect()
