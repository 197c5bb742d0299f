"""Environments of verifiers here, and ours there, with the real package."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.failures import ConfigurationError
from envsdk.testing import TextEnvSuite

pytest.importorskip("verifiers", reason="needs verifiers: make test-adapters")
pytestmark = pytest.mark.adapters

import verifiers as vf  # noqa: E402
from verifiers.clients import Client  # noqa: E402
from verifiers.types import Response, ResponseMessage  # noqa: E402

from envsdk.adapters.verifiers import env as verifiers_env  # noqa: E402
from envsdk.adapters.verifiers.messages import text_of  # noqa: E402


def make_verifiers_env(**arguments):
    return envsdk.as_sync(verifiers_env.make_verifiers_env(**arguments))


ID = "envsdk/Verifiers-v1"
SUMS = {"id": "verifiers_classic_envs"}
GUESS = {"id": "verifiers_classic_envs", "args": {"kind": "guess"}}
EXPORT = "envsdk.adapters.verifiers.export"

TestSums = TextEnvSuite.of(ID, SUMS, max_examples=3)
TestGuess = TextEnvSuite.of(ID, GUESS, max_examples=3)
TestGuessCutShort = TextEnvSuite.of(ID, {**GUESS, "max_steps": 3}, max_examples=3)
TestOneOfOursThereAndBack = TextEnvSuite.of(
    ID, {"id": EXPORT, "args": {"id": "envsdk/FrozenLake-v1", "num_train": 30, "num_eval": 5}}, max_examples=2
)


def test_a_single_turn_shows_the_prompt_and_pays_what_the_rubric_says():
    env = make_verifiers_env(**SUMS)
    observation, _ = env.reset(seed=0, options={"task": 4})
    assert observation == "Answer in <answer> tags.\n\n4 + 5 = ?"
    _, reward, terminated, truncated, info = env.step("<answer>9</answer>")
    assert (reward, terminated, truncated) == (pytest.approx(1.1), True, False)
    assert info["success"]
    assert info["metrics"]["is_right"] == 1.0
    env.reset(seed=0, options={"task": 24})
    _, reward, *_, info = env.step("<answer>8</answer>")
    assert (reward, info["success"]) == (pytest.approx(0.1), False)


def test_the_evaluation_data_set_is_the_split_eval():
    env = make_verifiers_env(**SUMS, split="eval")
    assert env.reset(seed=3)[0].endswith("1 + 1 = ?")


def test_turns_go_on_until_the_environment_ends_them():
    env = make_verifiers_env(**GUESS)
    env.reset(seed=0, options={"task": 6})
    assert env.step("3")[:4] == ("Higher.", 0.0, False, False)
    assert env.step("ten")[0] == "A number, please."
    assert env.step("9")[0] == "Lower."
    observation, reward, terminated, truncated, info = env.step("7")
    assert (observation, reward, terminated, truncated, info["success"]) == ("Right.", 1.0, True, False, True)


def test_its_own_limit_of_turns_ends_the_episode_scored():
    env = make_verifiers_env(**GUESS)
    assert env.max_steps == 6
    env.reset(seed=0, options={"task": 6})
    for _ in range(5):
        assert env.step("1")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step("1")
    assert (reward, terminated or truncated, info["success"]) == (0.0, True, False)


def test_a_lower_limit_cuts_it_short_and_it_is_scored_all_the_same():
    env = make_verifiers_env(**SUMS | GUESS, max_steps=2)
    env.reset(seed=0, options={"task": 6})
    env.step("1")
    _, reward, terminated, truncated, info = env.step("1")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["metrics"]["num_turns"] == 2.0


def test_what_breaks_in_the_environment_is_raised_and_not_scored():
    env = make_verifiers_env(id="verifiers_classic_envs", args={"kind": "broken"})
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="the backend is gone"):
        env.step("1")
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.reset(seed=0)
    env.close()


def test_it_is_built_on_any_thread_and_leaves_the_signals_alone():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    built = []
    thread = threading.Thread(
        target=lambda: built.append(make_verifiers_env(id="verifiers_classic_envs", args={"num_rows": 3}))
    )
    thread.start()
    thread.join()
    assert built[0].reset(seed=1)[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_it_plays_inside_a_running_event_loop():
    env = make_verifiers_env(**GUESS)
    env.reset(seed=0, options={"task": 0})
    assert env.step("1")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "no-such-environment"}, "id: Could not import 'no-such-environment'"),
        ({**SUMS, "args": {"kind": "guess", "num_row": 3}}, "id: .*num_row"),
        ({**SUMS, "args": {"kind": "tools"}}, "has tools"),
        ({**SUMS, "args": {"kind": "groups"}}, "scores whole groups"),
        ({**SUMS, "split": "val"}, "split: must be one of train, eval"),
        ({"id": EXPORT, "args": {"id": "envsdk/FrozenLak-v1"}}, "Did you mean 'envsdk/FrozenLake-v1'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        envsdk.make(ID, **arguments)


class Scripted(Client):
    """A model of verifiers that plays our oracle."""

    def __init__(self, reply):
        self.reply = reply

    async def get_response(self, prompt, model, *_, state=None, **__):
        message = ResponseMessage(content=self.reply(prompt, state), finish_reason="stop", is_truncated=False)
        return Response(id="1", created=0, model=model, message=message)

    setup_client = to_native_tool = to_native_prompt = get_native_response = None
    raise_from_native_response = from_native_response = close = None


def test_ours_is_loaded_played_and_scored_by_verifiers():
    env = vf.load_environment(EXPORT, id="envsdk/FrozenLake-v1", num_train=4, num_eval=2)
    oracle = Scripted(lambda prompt, state: state["text_env"].oracle())
    nothing = Scripted(lambda prompt, state: "?")
    rows = env.get_dataset().to_list()
    assert len(rows) == 4
    assert {row["info"]["seed"] for row in rows}.isdisjoint(
        row["info"]["seed"] for row in env.get_eval_dataset().to_list()
    )
    for row in rows:
        solved = asyncio.run(env.run_rollout(row, oracle, "m", {}))
        assert (solved["reward"], solved["metrics"]["success"]) == (1.0, 1.0)
        assert solved["stop_condition"] == "has_final_env_response"
        assert text_of(solved["completion"][-1:]).count("V") == 1
        wasted = asyncio.run(env.run_rollout(row, nothing, "m", {}))
        assert (wasted["reward"], wasted["metrics"]["success"], wasted["metrics"]["num_turns"]) == (
            0.0,
            0.0,
            20.0,
        )


@settings(max_examples=5)
@given(task=st.integers(0, 9), replies=st.lists(st.sampled_from(["Left", "Down", "Right", "Up"]), max_size=8))
def test_one_of_ours_comes_back_from_verifiers_with_the_same_course(task, replies):
    args = {"id": "envsdk/FrozenLake-v1", "num_train": 10, "num_eval": 1, "system_prompt": ""}
    back = make_verifiers_env(id=EXPORT, args=args)
    ours = envsdk.make("envsdk/FrozenLake-v1")
    first, _ = back.reset(seed=0, options={"task": task})
    seed = vf.load_environment(EXPORT, **args).get_dataset()[task]["info"]["seed"]
    assert first == ours.reset(seed=seed)[0]
    total = 0.0
    for reply in replies:
        observation, reward, terminated, truncated, info = ours.step(reply)
        total += reward
        again = back.step(reply)
        over = terminated or truncated
        assert (again[0], again[2] or again[3]) == (observation, over)
        if over:
            assert (again[1], again[4]["success"]) == (total, info["success"])
            break
