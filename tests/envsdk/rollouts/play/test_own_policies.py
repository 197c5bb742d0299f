"""Policies that a program brings along: functions, objects, clients of OpenAI's package; their failures."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

import envsdk
from envsdk.contracts.failures import EngineError, RolloutStalled
from envsdk.rollouts.play.collection import CollectOptions, collect
from envsdk.rollouts.play.own_policies import as_reply
from tests.by_day import by_day
from tests.envsdk.engines.chat_server import ChatServer, completion

LAKE = "envsdk/FrozenLake-v1"
UP = "<answer>Up</answer>"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as started:
        yield started


class _Callable:
    async def __call__(self, messages: list[dict[str, str]], context: envsdk.TurnContext) -> str:
        assert messages[-1]["content"] == context.prompt
        return UP


class _Object(envsdk.Policy):
    name = "mine"

    async def act(self, turn: envsdk.TurnContext) -> envsdk.Reply:
        return envsdk.Reply(text=UP)


async def _observed(observation: str) -> str:
    assert isinstance(observation, str)
    return UP


def _with_default(observation: str, reply: str = UP) -> str:
    return reply


@pytest.mark.parametrize(
    "policy",
    [
        _observed,
        _with_default,
        _Callable(),
        _Object(),
        lambda observation, context: envsdk.Reply(text=UP),
        lambda *arguments: UP if len(arguments) == 2 else "",
        lambda observation, context=None: UP if context is not None else "",
        lambda observation: _observed(observation),
        partial(_with_default, reply=UP),
        "tests.envsdk.rollouts.play.test_own_policies:_Object",
    ],
)
def test_a_policy_is_a_function_or_an_object(policy: Any) -> None:
    (played,) = envsdk.rollout_sync(LAKE, policy=policy, tasks=1)
    assert played.failure is None, played.failure and played.failure.traceback
    assert {turn.reply for turn in played.turns} == {UP}


def test_a_plain_function_runs_on_threads_as_many_as_there_are_episodes() -> None:
    met = threading.Barrier(20)

    def meet(observation: str, context: envsdk.TurnContext) -> str:
        if context.turn_index == 0:
            met.wait()
        return UP

    played = envsdk.rollout_sync(LAKE, policy=meet, tasks=20, concurrency=20)
    assert not played.failed


def test_messages_are_the_chat_as_the_trajectory_has_it() -> None:
    seen = []

    def note(messages: list[dict[str, str]]) -> str:
        seen.append([dict(each) for each in messages])
        messages.clear()
        return UP

    (played,) = envsdk.rollout_sync(LAKE, policy=note, tasks=1)
    whole = played.to_messages()
    assert seen[0][0]["role"] == "system"
    assert [messages == whole[: len(messages)] for messages in seen] == [True] * len(seen)
    assert len(seen[-1]) == len(whole) - 1


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None (is a `return` missing?)"),
        (3, "returned a int"),
        ({"role": "assistant", "content": "x"}, 'return its "content"'),
        (openai.types.CompletionChoice.model_construct(choices=[]), "choices[0].message.content"),
    ],
)
def test_a_reply_that_is_none_fails_the_episode_and_says_what_to_return(returned: Any, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        as_reply(returned, "play")
    assert said in str(raised.value)
    assert "return the text of the reply, a str, or an envsdk.Reply" in str(raised.value)
    (failed,) = envsdk.rollout_sync(LAKE, policy=lambda observation: returned, tasks=1)
    assert failed.failure is not None
    assert said in failed.failure.message


def test_an_exception_fails_its_episode_with_the_traceback_in_memory() -> None:
    def break_at_the_third(observation: str, context: envsdk.TurnContext) -> str:
        if context.session_id == "train-2":
            raise KeyError("the third")
        return UP

    played = envsdk.rollout_sync(LAKE, policy=break_at_the_third, tasks=20)
    (failed,) = played.failed
    assert failed.failure is not None
    assert (failed.failure.boundary, failed.failure.kind) == (envsdk.Boundary.POLICY, "raised")
    assert 'raise KeyError("the third")' in failed.failure.traceback
    assert "raise" not in failed.failure.message
    assert "\n" not in failed.failure.message


class _Failing(envsdk.Policy):
    name = "failing"

    async def act(self, turn: envsdk.TurnContext) -> envsdk.Reply:
        raise KeyError("not to be stored")


class _Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, GeneratorExit, _Odd])
def test_whatever_a_plain_function_raises_fails_its_episode(error: type[BaseException]) -> None:
    def play(observation: str) -> str:
        raise error

    played = envsdk.rollout_sync(LAKE, policy=play, tasks=3)
    assert [each.failure and each.failure.kind for each in played] == ["raised"] * 3
    assert error.__name__ in str(played[0].failure)


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError])
def test_an_async_function_cannot_take_the_loop_or_its_episode_along(error: type[BaseException]) -> None:
    async def play(observation: str) -> str:
        raise error

    played = envsdk.rollout_sync(LAKE, policy=play, tasks=3)
    assert [each.failure and each.failure.kind for each in played] == ["raised"] * 3


def _plain(error: type[BaseException]) -> Callable[[str], str]:
    def play(observation: str) -> str:
        raise error

    return play


def _awaited(error: type[BaseException]) -> Callable[[str], Awaitable[str]]:
    async def play(observation: str) -> str:
        raise error

    return play


@pytest.mark.parametrize("limit_s", [None, 60.0])
@pytest.mark.parametrize("made", [_plain, _awaited])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_the_rollout_and_no_other(
    error: type[BaseException], made: Callable[[type[BaseException]], Any], limit_s: float | None
) -> None:
    with pytest.raises(error):
        envsdk.rollout_sync(LAKE, policy=made(error), tasks=3, turn_timeout_s=limit_s)
    assert len(envsdk.rollout_sync(LAKE, policy="oracle", tasks=3)) == 3


@pytest.mark.parametrize("limit_s", by_day([None], [None, 60.0]))
@pytest.mark.parametrize("made", ["def", "async def"])
@pytest.mark.parametrize(("error", "code"), [("SystemExit(7)", 7), ("KeyboardInterrupt", -signal.SIGINT)])
def test_what_ends_a_program_ends_it_from_an_async_rollout(
    error: str, code: int, made: str, limit_s: float | None
) -> None:
    program = f"""if True:
        import asyncio, envsdk
        {made} play(observation):
            raise {error}
        async def main():
            async for _ in envsdk.rollout("FrozenLake", policy=play, tasks=40, turn_timeout_s={limit_s}):
                print("an episode ended")
        asyncio.run(main())"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert "never retrieved" not in ended.stderr


def test_an_async_function_that_blocks_the_event_loop_is_named_once() -> None:
    async def play(observation: str) -> str:
        time.sleep(0.6)  # noqa: ASYNC251 - what it must not do
        return UP

    with pytest.warns(RuntimeWarning) as warned:
        envsdk.rollout_sync(LAKE, policy=play, tasks=1, env_config={"max_steps": 6})
    (said,) = {str(each.message) for each in warned}
    assert "play kept the event loop for more than 0.5 s" in said
    assert "asyncio.to_thread" in said


class _Exiting(envsdk.Policy):
    name = "exiting"

    async def act(self, turn: envsdk.TurnContext) -> envsdk.Reply:
        raise SystemExit(7)


def test_a_policy_that_exits_ends_a_collection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = f"{__name__}:{_Exiting.__name__}"
    with pytest.raises(SystemExit, match="7"):
        collect(CollectOptions.of(source=LAKE, out=tmp_path / "lake", num_episodes=9, policy=name))
    assert not caplog.records


def test_files_keep_the_message_of_a_failure_and_not_its_traceback(tmp_path: Path) -> None:
    name = f"{__name__}:{_Failing.__name__}"
    collect(CollectOptions.of(source=LAKE, out=tmp_path / "lake", num_episodes=2, policy=name))
    for stored in envsdk.Trajectories.from_folder(tmp_path / "lake"):
        assert stored.failure is not None
        assert "not to be stored" in stored.failure.message
        assert stored.failure.traceback == ""


def test_a_rollout_ends_when_the_first_episodes_all_fail_alike() -> None:
    played = []

    async def fail(observation: str) -> str:
        raise KeyError("always")

    async def play() -> None:
        async for each in envsdk.rollout(LAKE, policy=fail, tasks=1000):
            played.append(each)

    with pytest.raises(RolloutStalled, match="KeyError") as raised:
        asyncio.run(play())
    assert any('raise KeyError("always")' in note for note in raised.value.__notes__)
    assert len(played) < 100


def test_a_failed_task_is_played_again() -> None:
    lock, tried = threading.Lock(), set[int]()

    def fail_once(observation: str, context: envsdk.TurnContext) -> str:
        with lock:
            if context.session_id not in tried:
                tried.add(context.session_id)  # type: ignore[arg-type]
                raise OSError
        return UP

    assert not envsdk.rollout_sync(LAKE, policy=fail_once, tasks=8, retries=1).failed


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, server: ChatServer) -> Any:
    kind = openai.OpenAI if request.param == "sync" else openai.AsyncOpenAI
    return kind(base_url=server.base_url, api_key="none", max_retries=0)


def test_a_client_of_openai_plays(client: Any, server: ChatServer) -> None:
    server.behavior.reply = lambda messages: UP
    played = envsdk.rollout_sync(
        LAKE, policy=client, model="tiny", tasks=2, group_size=2, sampling={"temperature": 0.5, "top_p": None}
    )
    assert [each.failure for each in played] == [None] * 4
    body = server.behavior.bodies[0]
    assert body["model"] == "tiny"
    assert body["max_tokens"] == 64
    assert (body["temperature"], "top_p" in body) == (0.5, False)
    assert [each["role"] for each in body["messages"]] == ["system", "user"]
    firsts = [each["seed"] for each in server.behavior.bodies if len(each["messages"]) == 2]
    assert len(set(firsts)) == 4


async def test_an_async_client_plays_in_the_loop_it_belongs_to(server: ChatServer) -> None:
    server.behavior.reply = lambda messages: UP
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        fields = {"max_completion_tokens": 9, "seed": None}
        stream = envsdk.rollout(LAKE, policy=client, model="tiny", tasks=3, sampling=fields)
        played = [each async for each in stream]
    assert [each.failure for each in played] == [None] * 3
    body = server.behavior.bodies[0]
    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body
    assert "seed" not in body


def test_what_a_client_raises_or_gets_instead_of_text_fails_the_episode(
    client: Any, server: ChatServer
) -> None:
    server.behavior.answers = [
        (400, {"error": {"message": "no such thing"}}, {}),
        (200, completion(None), {}),
        (200, completion("", "content_filter"), {}),
    ]
    played = envsdk.rollout_sync(LAKE, policy=client, model="tiny", tasks=3, concurrency=1)
    refused, empty, filtered = (str(each.failure) for each in played)
    assert refused.startswith("policy/raised: BadRequestError")
    assert empty.startswith("engine/reply_refused: the completion has no text")
    assert filtered.startswith(
        "engine/reply_refused: the completion ended with finish_reason 'content_filter'"
    )


def test_a_url_plays_with_the_models_name(server: ChatServer) -> None:
    server.behavior.reply = lambda messages: UP
    played = envsdk.rollout_sync(
        LAKE, policy=server.base_url, model="tiny", tasks=2, sampling={"max_new_tokens": 5}
    )
    assert [each.failure for each in played] == [None] * 2
    assert server.behavior.bodies[0]["max_tokens"] == 5


LONG = (400, {"error": {"message": "This model's maximum context length is 512 tokens."}}, {})


def _asked_by_a_function(server: ChatServer) -> Any:
    client = openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0)

    async def play(messages: list[dict[str, str]]) -> str:
        found = await client.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]
        return found.choices[0].message.content or ""

    return play


@pytest.mark.parametrize("kind", ["client", "url", "function"])
def test_a_full_context_truncates_the_episode_whoever_asks(
    kind: str, client: Any, server: ChatServer
) -> None:
    """A model's folder truncates there as well: the same policy gets the same score."""
    server.behavior.answers = [(200, completion("hm"), {})] * 2 + [LONG]
    policy: Any = {"client": client, "url": server.base_url, "function": _asked_by_a_function(server)}[kind]
    named = {} if kind == "function" else {"model": "tiny"}
    (played,) = envsdk.rollout_sync(LAKE, policy=policy, tasks=1, **named)
    assert (played.outcome.value, len(played.turns), played.failure) == ("truncated", 2, None)


@pytest.mark.parametrize("kind", ["client", "url"])
def test_a_first_prompt_that_the_server_cannot_hold_fails_and_says_what_to_do(
    kind: str, client: Any, server: ChatServer
) -> None:
    server.behavior.answers = [LONG]
    policy = client if kind == "client" else server.base_url
    (played,) = envsdk.rollout_sync(LAKE, policy=policy, model="tiny", tasks=1)
    assert str(played.failure).startswith("configuration/prompt_too_long: the first prompt")
    assert "maximum context length is 512" in str(played.failure)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/v1", "http://no-such-host.invalid/v1"])
@pytest.mark.parametrize("kind", ["sync", "async", "url"])
def test_a_server_that_is_not_there_ends_the_rollout_at_once(address: str, kind: str) -> None:
    policy: Any = address
    if kind != "url":
        made = openai.OpenAI if kind == "sync" else openai.AsyncOpenAI
        policy = made(base_url=address, api_key="none", max_retries=0)
    with pytest.raises(EngineError, match=r"no server answers .*nothing was played") as raised:
        envsdk.rollout_sync(LAKE, policy=policy, model="tiny", tasks=3)
    assert address in str(raised.value)


def test_a_server_that_goes_away_later_fails_the_episodes_it_owes(client: Any, server: ChatServer) -> None:
    server.behavior.reply = lambda messages: UP
    played = []

    def then_gone(**fields: Any) -> Any:
        if played:
            raise ConnectionRefusedError("gone")
        played.append(1)
        return openai.OpenAI(base_url=server.base_url, api_key="none").chat.completions.create(**fields)

    stand_in = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=then_gone)))
    found = envsdk.rollout_sync(LAKE, policy=stand_in, model="tiny", tasks=2, concurrency=1)
    assert {str(each.failure).partition(" ")[0] for each in found} == {"policy/raised:"}


def test_a_failure_names_the_line_of_the_program_first() -> None:
    def play(observation: str) -> str:
        raise RuntimeError("rate limit")

    (played,) = envsdk.rollout_sync(LAKE, policy=play, tasks=1)
    message = str(played.failure)
    assert message.startswith("policy/raised: RuntimeError: rate limit (at play/test_own_policies.py:")
    assert "own_policies.py:1" not in message.replace("test_own_policies", "")


def test_a_client_needs_the_models_name(client: Any) -> None:
    with pytest.raises(envsdk.ConfigurationError, match="model: a client needs"):
        envsdk.rollout(LAKE, policy=client)
