"""Tasksets of verifiers here, and our environments as tasksets there, with the real package."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.error import ResetNeeded

import envsdk
from envsdk.contracts.failures import ConfigurationError
from envsdk.testing import TextEnvSuite

pytest.importorskip("verifiers", minversion="0.4", reason="needs verifiers: make test-verifiers")
pytestmark = pytest.mark.verifiers

import toy_tasksets as toys  # noqa: E402
import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: E402

from envsdk.adapters.verifiers import env as verifiers_env  # noqa: E402
from envsdk.adapters.verifiers.hosted_taskset import ModelServer  # noqa: E402
from envsdk.adapters.verifiers.rollout import Ended, Rollout  # noqa: E402
from envsdk.adapters.verifiers.taskset import TASKSET_ID  # noqa: E402


def make_verifiers_env(**arguments: Any) -> envsdk.TextEnv:
    return envsdk.as_sync(verifiers_env.make_verifiers_env(**arguments))


ID = "envsdk/Verifiers-v1"
LAKE = {"env": "envsdk/FrozenLake-v1", "env_config": {"size": 3}, "num_tasks": 20}

TestSums = TextEnvSuite.of(ID, {"id": "toy-sums"}, max_examples=3)
TestGuesses = TextEnvSuite.of(ID, {"id": "toy-guesses", "max_steps": 6}, max_examples=3)
TestOneOfOursThereAndBack = TextEnvSuite.of(ID, {"id": TASKSET_ID, "args": LAKE}, max_examples=2)


def test_a_single_turn_shows_the_prompt_and_pays_what_the_task_says() -> None:
    env = make_verifiers_env(id="toy-sums", args={"num_tasks": 5})
    assert env.max_steps == 1
    observation, _ = env.reset(seed=0, options={"task": 4})
    assert observation == "Answer in <answer> tags.\n\n4 + 5 = ?"
    _, reward, terminated, truncated, info = env.step("It is <answer>9</answer>")
    assert (reward, terminated, truncated, info["success"]) == (pytest.approx(1.1), True, False, True)
    assert info["metrics"] == {"is_right": 1.0, "is_number": pytest.approx(0.1), "length": 24.0}
    assert env.reset(seed=0, options={"task": 9})[0] == observation
    _, reward, *_, info = env.step("<answer>8</answer>")
    assert (reward, info["success"]) == (pytest.approx(0.1), False)


def test_turns_go_on_until_the_environment_ends_them() -> None:
    env = make_verifiers_env(id="toy-guesses")
    assert env.reset(seed=0, options={"task": 6})[0] == "Guess from 1 to 20."
    assert env.step("3")[:4] == ("Higher.", 0.0, False, False)
    assert env.step("ten")[0] == "Lower."
    _, reward, terminated, truncated, info = env.step("7")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_a_lower_limit_cuts_it_short_and_it_is_scored_all_the_same() -> None:
    env = make_verifiers_env(id="toy-guesses", max_steps=2)
    env.reset(seed=0, options={"task": 6})
    assert env.step("1")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step("2")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)


def test_what_breaks_in_the_taskset_is_raised_and_not_scored() -> None:
    env = make_verifiers_env(id=toys.module_with("toy_broken", toys.BrokenSums))
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="the judge is gone"):
        env.step("2")
    with pytest.raises(ResetNeeded):
        env.step("2")
    env.reset(seed=0)
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "no-such-taskset"}, "id: no-such-taskset: taskset 'no-such-taskset' not found"),
        ({"id": "toy-sums", "args": {"num_task": 3}}, "num_task"),
        ({"id": "toy-sums", "args": {"num_tasks": 0}}, "id: toy-sums has no tasks"),
        ({"id": "toy-sums", "split": "eval"}, "split: tasksets of verifiers"),
        ({"id": TASKSET_ID, "args": {"env": "envsdk/FrozenLak-v1"}}, "Did you mean 'envsdk/FrozenLake-v1'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_name(arguments, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        envsdk.make(ID, **arguments)


def test_what_a_policy_of_text_cannot_play_is_refused() -> None:
    container = toys.module_with("toy_repairs", toys.Repairs)
    with pytest.raises(ConfigurationError, match="works on files in a container"):
        envsdk.make(ID, id=container)
    debate = toys.module_with("toy_debate", toys.Sums, toys.Debate)
    with pytest.raises(ConfigurationError, match="its environment has 2 agents"):
        envsdk.make(ID, id=debate)
    pictures = toys.module_with("toy_pictures", toys.Pictures)
    with pytest.raises(ConfigurationError, match="toy_pictures shows more than text, such as images"):
        envsdk.make(ID, id=pictures)


def test_a_package_that_a_taskset_lacks_is_named() -> None:
    lacking = toys.module_with("toy_lacking", toys.Lacking)
    with pytest.raises(ConfigurationError, match="toy_lacking needs a_package_that_is_absent: pip install"):
        envsdk.make(ID, id=lacking)


class Player(Rollout):
    """A model of verifiers: what `reply` makes of the conversation."""

    def __init__(self, reply) -> None:
        super().__init__()
        self.reply_to = reply

    async def _play(self) -> Ended:
        raise NotImplementedError

    async def answer(self, messages) -> str:
        return self.reply_to(messages)


async def episode_of(reply, task: int = 0):
    environment = load_environment(resolve_env_config({"taskset": {"id": TASKSET_ID, **LAKE}}))
    task = list(environment.taskset)[task]
    server = await ModelServer.of_this_loop()
    async with environment.serving():
        client = vf.EvalClientConfig(base_url=server.base_url, api_key_var="NO_KEY_IS_NEEDED")
        model = vf.ModelContext(model="m", client=client)
        with server.answering(Player(reply)) as on_trace:
            return task, await environment.run_episode(task, model, on_trace=on_trace)


async def test_ours_is_loaded_played_and_scored_by_verifiers() -> None:
    ours = envsdk.make("envsdk/FrozenLake-v1", size=3)
    asked = []

    def oracle(messages) -> str:
        if not asked:
            ours.reset(seed=seed_of[0])
        asked.append(messages)
        reply = ours.oracle()
        ours.step(reply)
        return reply

    environment = load_environment(resolve_env_config({"taskset": {"id": TASKSET_ID, **LAKE}}))
    seed_of = [next(iter(environment.taskset)).data.seed]
    task, episode = await episode_of(oracle)
    (trace,) = episode.traces
    assert episode.ok
    assert trace.reward == 1.0
    assert trace.metrics["success"] == 1.0
    assert trace.num_turns == len(asked)
    assert asked[0][0]["role"] == "system"
    assert asked[0][1]["content"] == task.data.prompt
    # Each observation is a message of the user, after the reply that led to it.
    assert [message["role"] for message in asked[-1][1:]] == ["user", "assistant"] * (len(asked) - 1) + [
        "user"
    ]


async def test_an_episode_of_ours_ends_at_its_own_limit_unsolved() -> None:
    _, episode = await episode_of(lambda messages: "I will not move.")
    (trace,) = episode.traces
    assert (trace.reward, trace.metrics["success"]) == (0.0, 0.0)
    assert trace.num_turns == 20
