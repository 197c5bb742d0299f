"""`TurnEnv`: whatever an author's `parse` and `play` do, the contract is kept."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import EnvSpec, InvalidAction, TurnEnv, TurnResult
from envsdk.testing import TextEnvSuite


class Guess(TurnEnv[int]):
    """A complete environment."""

    max_steps = 6
    STATE = ("number", "guesses")

    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> None:
        self.number = int(rng.integers(1, 11))
        self.guesses: list[int] = []

    def parse(self, reply: str) -> int:
        answer = self.answer_in(reply)
        if answer not in map(str, range(1, 11)):
            raise InvalidAction("Invalid action: not a number from 1 to 10.")
        return int(answer)

    def play(self, action: int) -> TurnResult:
        self.guesses.append(action)
        is_right = action == self.number
        note = "Right." if is_right else "Higher." if action < self.number else "Lower."
        return TurnResult(reward=float(is_right), success=is_right, note=note)

    def observe(self) -> str:
        return "Guess a number from 1 to 10."

    def oracle(self) -> str:
        return f"<answer>{self.number}</answer>"

    def legal_actions(self) -> list[str]:
        return [] if self.is_over else [f"<answer>{number}</answer>" for number in range(1, 11)]


class TestGuess(TextEnvSuite):
    """A short class of one's own passes every check."""

    max_examples = 5

    def make_env(self) -> Guess:
        return Guess()


@dataclass
class Scripted(TurnEnv[str]):
    """Plays a script of what `play` returns or raises; replies in `invalid` do not parse."""

    script: list[Any]
    max_steps: int = 3

    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> None:
        self.played: list[str] = []
        self.options = options

    def parse(self, reply: str) -> str:
        if not reply.isalpha():
            raise InvalidAction(f"no: {len(reply)}")
        return reply

    def play(self, action: str) -> TurnResult:
        step = self.script[len(self.played) % len(self.script)]
        if isinstance(step, Exception):
            raise step
        self.played.append(action)
        return step

    def observe(self) -> str:
        return " ".join(self.played)


results = st.builds(
    TurnResult,
    reward=st.floats(-2, 2),
    success=st.booleans(),
    terminated=st.none() | st.booleans(),
    note=st.sampled_from(["", "So it is."]),
    metrics=st.dictionaries(st.sampled_from("ab"), st.integers(-3, 3)),
    details=st.none() | st.just({"why": "so"}),
)
scripts = st.lists(results | st.builds(InvalidAction), min_size=1, max_size=5)
replies = st.lists(st.sampled_from(["a", "b", "", "?!", "\ud800"]) | st.text(max_size=4), max_size=12)


@given(scripts, replies, st.integers(1, 6), st.floats(0, 1), st.floats(0, 1))
def test_any_rules_keep_the_contract(
    script: list[Any], played: list[str], max_steps: int, step_penalty: float, invalid_penalty: float
) -> None:
    env = Scripted(script, max_steps)
    env.step_penalty, env.invalid_penalty = step_penalty, invalid_penalty
    env.reset(seed=0)
    over, last = False, None
    for number, reply in enumerate(played, start=1):
        before = list(env.played)
        observation, reward, terminated, truncated, info = env.step(reply)
        if over:
            assert env.played == before
            assert (reward, info["metrics"]) == (0.0, {})
            assert (observation, terminated, truncated, info["success"]) == last
            continue
        assert env.num_turns == number <= max_steps
        assert not (terminated and truncated)
        assert truncated == (number == max_steps and not terminated)
        is_valid = env.played != before
        assert info["metrics"]["action_is_valid"] == float(is_valid)
        if is_valid:
            result = script[len(before) % len(script)]
            assert reward == result.reward - step_penalty
            assert (terminated, info["success"]) == (result.terminated, result.success)
            assert info.get("details") == result.details
            assert observation == "\n".join(filter(None, (env.observe(), result.note)))
        else:
            assert reward == 0.0 - step_penalty - invalid_penalty
            assert not terminated
            assert observation.splitlines()[-1] in (f"no: {len(reply)}", "Invalid action.")
        over, last = terminated or truncated, (observation, terminated, truncated, info["success"])
    assert env.is_over == over


@pytest.mark.parametrize("method", ["start", "parse", "play", "observe"])
@pytest.mark.parametrize("error", [ValueError, KeyError, AssertionError])
def test_any_other_exception_is_a_failure_of_the_environment(
    method: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Guess()
    env.reset(seed=0)

    def fails(*_: object) -> None:
        raise error("a mistake")

    monkeypatch.setattr(env, method, fails)
    with pytest.raises(error, match="a mistake"):
        env.reset(seed=0) if method == "start" else env.step("<answer>3</answer>")


def test_a_start_that_fails_leaves_no_episode_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Guess()
    env.reset(seed=0)
    monkeypatch.setattr(env, "start", lambda rng, options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        env.reset(seed=1)
    with pytest.raises(ResetNeeded):
        env.step("<answer>3</answer>")


@pytest.mark.parametrize("call", ["step", "snapshot"])
def test_nothing_is_played_before_the_first_reset(call: str) -> None:
    env = Guess()
    with pytest.raises(ResetNeeded, match="Guess: call reset"):
        env.step("1") if call == "step" else env.snapshot()


@given(st.integers(0, 50), st.lists(st.integers(1, 11), max_size=8), st.lists(st.integers(1, 11), max_size=4))
def test_a_declared_state_gives_snapshots_and_hashes(seed: int, before: list[int], after: list[int]) -> None:
    env, other = Guess(), Guess()
    env.reset(seed=seed)
    for number in before:
        env.step(f"<answer>{number}</answer>")
    kept, state = pickle.dumps(env.snapshot()), env.state_hash()
    course = [env.step(f"<answer>{number}</answer>") for number in after]
    assert other.restore(pickle.loads(kept)) == (env.restore(pickle.loads(kept)))
    assert other.state_hash() == env.state_hash() == state
    assert [other.step(f"<answer>{number}</answer>") for number in after] == course


def test_abilities_are_those_declared() -> None:
    assert Guess.abilities() == {"snapshot", "restore", "state_hash", "oracle", "legal_actions"}
    assert Scripted.abilities() == set()
    with pytest.raises(NotImplementedError, match="Scripted has no `snapshot`"):
        Scripted([]).snapshot()


@dataclass
class Piece:
    name: str
    place: tuple[int, int]


class Anything(TurnEnv[str]):
    max_steps = 1
    STATE = ("value",)
    value: Any = None

    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> None:
        self.value = options["value"]

    def parse(self, reply: str) -> str:
        return reply

    def play(self, action: str) -> TurnResult:
        return TurnResult(terminated=True)

    def observe(self) -> str:
        return ""


EQUAL = [
    ({"a": 1, "b": {2, 3}}, {"b": {3, 2}, "a": 1}),
    (np.arange(4), np.arange(8)[:4]),
    (np.int64(3), 3),
    (Piece("rook", (1, 2)), Piece("rook", (1, 2))),
    ([{"x", "y", "z"}], [{"z", "y", "x"}]),
]
DIFFERENT = [
    ({"a": 1}, {"a": 2}),
    (np.arange(2000), np.where(np.arange(2000) == 1000, 0, np.arange(2000))),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (Piece("rook", (1, 2)), Piece("rook", (2, 2))),
    ("1", 1),
]


@pytest.mark.parametrize(
    ("one", "other", "equal"), [(*pair, True) for pair in EQUAL] + [(*pair, False) for pair in DIFFERENT]
)
def test_hashes_tell_states_apart_whatever_holds_them(one: Any, other: Any, equal: bool) -> None:
    hashes = []
    for value in (one, other):
        env = Anything()
        env.reset(options={"value": value})
        hashes.append(env.state_hash())
    assert (hashes[0] == hashes[1]) is equal


def test_the_types_of_numpy_become_pythons() -> None:
    result = TurnResult(reward=np.float32(0.5), success=np.bool_(True), metrics={"a": np.int64(2)})
    assert [type(each) for each in (result.reward, result.success, result.terminated)] == [float, bool, bool]
    assert type(result.metrics["a"]) is float


def test_the_limit_is_the_classs_or_the_constructors() -> None:
    assert Guess().max_steps == 6
    assert Guess(max_steps=2, step_penalty=0.1).max_steps == 2
    for wrong in (0, -1, True, 2.0):
        with pytest.raises(ValueError, match="max_steps: must be a whole number of at least 1"):
            Guess(max_steps=wrong)  # type: ignore[arg-type]

    class Unlimited(Guess):
        max_steps = None  # type: ignore[assignment]

    with pytest.raises(ValueError, match="max_steps: missing"):
        Unlimited()


class Listed(Anything):
    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> dict[str, Any]:
        self.value = self.task_number(options, 5)
        return {"tools": []}


def test_tasks_of_a_list_go_by_number_or_are_drawn() -> None:
    env = Listed()
    for number in range(12):
        assert env.reset(options={"task": number})[1] == {"tools": []}
        assert env.value == number % 5
    env.reset(seed=3)
    drawn = env.value
    env.reset(seed=3)
    assert env.value == drawn
    with pytest.raises(ValueError, match="must be the number of a task, not 'first'"):
        env.reset(options={"task": "first"})


def test_gymnasiums_shared_memory_is_refused_in_words_also_for_ones_own_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envsdk.register(EnvSpec(id="shared/Guess-v1", entry_point=Guess))
    alone = [Guess().reset(seed=seed)[0] for seed in (3, 4)]
    for vector in (
        partial(gymnasium.vector.AsyncVectorEnv, [Guess] * 2),
        partial(gymnasium.make_vec, "shared/Guess-v1", 2, vectorization_mode="async"),
    ):
        with pytest.raises(ValueError, match="shared_memory=False"):
            vector()
    right = gymnasium.make_vec(
        "shared/Guess-v1", 2, vectorization_mode="async", vector_kwargs={"shared_memory": False}
    )
    assert list(right.reset(seed=3)[0]) == alone
    right.close()
