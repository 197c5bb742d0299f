"""What holds for every `TextEnv`: one function per property, each for one example.

A property takes a factory of environments of one configuration, a seed and, where it plays, a
script, and raises AssertionError where the property does not hold. `envsdk.testing.suite` draws
the examples.

A script is what a policy might do: a string is replied as it is, a number picks one of the legal
actions at that moment (any environment without `legal_actions` is sent the number itself).
"""

from __future__ import annotations

import math
import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env, data_equivalence

from envsdk.env import TextEnv

Factory = Callable[[], TextEnv]
Script = Sequence[int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one `reset` or `step` returned."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def is_last(self) -> bool:
        return self.terminated or self.truncated

    @property
    def was_invalid(self) -> bool:
        """The environment says that the reply did not parse."""
        return bool(self.info.get("metrics", {}).get("action_is_valid", 1.0) == 0.0)


def reset(env: TextEnv, seed: int) -> Turn:
    observation, info = env.reset(seed=seed)
    return Turn(observation=observation, reward=0.0, terminated=False, truncated=False, info=info)


def step(env: TextEnv, reply: str) -> Turn:
    observation, reward, terminated, truncated, info = env.step(reply)
    return Turn(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)


def choose_reply(env: TextEnv, item: int | str) -> str:
    if isinstance(item, str):
        return item
    if "legal_actions" not in env.abilities():
        return str(item)
    legal = env.legal_actions()
    assert legal, "legal_actions() is empty before the end of the episode"
    return legal[item % len(legal)]


def play(env: TextEnv, script: Script) -> list[Turn]:
    """Follow `script` from where `env` is, to its end or that of the episode."""
    turns: list[Turn] = []
    for item in script:
        turns.append(step(env, choose_reply(env, item)))
        if turns[-1].is_last:
            break
    return turns


def play_from(env: TextEnv, seed: int, script: Script) -> list[Turn]:
    first = reset(env, seed)
    return [first, *play(env, script)]


def assert_same(turns: Sequence[Turn], others: Sequence[Turn], why: str) -> None:
    assert len(turns) == len(others), f"{why}: {len(turns)} turns against {len(others)}"
    for index, (turn, other) in enumerate(zip(turns, others, strict=True)):
        for name in ("observation", "reward", "terminated", "truncated", "info"):
            one, two = getattr(turn, name), getattr(other, name)
            assert data_equivalence(one, two, exact=True), (
                f"{why}: turn {index} has {name} {one!r} against {two!r}"
            )


def same_seed_gives_the_same_course(make: Factory, seed: int, script: Script) -> None:
    """In two instances, and in one that has played before."""
    env = make()
    turns = play_from(env, seed, script)
    assert_same(turns, play_from(make(), seed, script), "two instances with one seed differ")
    assert_same(turns, play_from(env, seed, script), "a second reset with the same seed differs")


def instances_do_not_influence_each_other(
    make: Factory, seed: int, script: Script, other_seed: int, other_script: Script
) -> None:
    alone = play_from(make(), seed, script)
    env, other = make(), make()
    together = [reset(env, seed)]
    reset(other, other_seed)
    other_turns = iter(other_script)
    other_is_over = False
    for item in script[: len(alone) - 1]:
        if not other_is_over and (other_item := next(other_turns, None)) is not None:
            other_is_over = step(other, choose_reply(other, other_item)).is_last
        together.append(step(env, choose_reply(env, item)))
    assert_same(alone, together, "another instance playing at the same time changes the course")


def global_random_state_is_not_touched(make: Factory, seed: int, script: Script) -> None:
    """Neither drawn from (which would move it) nor seeded, and no course depends on it."""
    kept = random.getstate(), np.random.get_state()
    courses = []
    try:
        for global_seed in (0, 1):
            random.seed(global_seed)
            np.random.seed(global_seed)
            before, numpy_before = random.getstate(), pickle.dumps(np.random.get_state())
            env = make()
            courses.append(play_from(env, seed, script))
            if "oracle" in env.abilities() and not courses[-1][-1].is_last:
                env.oracle()
            env.close()
            numpy_after = pickle.dumps(np.random.get_state())
            assert before == random.getstate(), "the global state of `random` changed"
            assert numpy_before == numpy_after, "the global state of `numpy.random` changed"
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
    assert_same(courses[0], courses[1], "the course depends on global random state")


def any_reply_is_answered(make: Factory, seed: int, script: Script) -> None:
    """With a well-formed turn, whatever the reply is."""
    env = make()
    for index, turn in enumerate(play_from(env, seed, script)):
        assert isinstance(turn.observation, str), f"turn {index}: observation {turn.observation!r} is no str"
        assert turn.observation in env.observation_space, (
            f"turn {index}: observation {turn.observation!r} is not in {env.observation_space}"
        )
        assert isinstance(turn.info, dict), f"turn {index}: info {turn.info!r} is no dict"
        is_number = isinstance(turn.reward, int | float) and math.isfinite(turn.reward)
        assert is_number, f"turn {index}: reward {turn.reward!r} is no finite number"
        for name in ("terminated", "truncated"):
            assert isinstance(getattr(turn, name), bool), f"turn {index}: {name} is no bool"
        if turn.was_invalid:
            assert not turn.info.get("success"), f"turn {index}: success by a reply that did not parse"
    env.close()
    env.close()


def snapshots_can_be_replayed(make: Factory, seed: int, script: Script, then: Script) -> None:
    """In the same instance and in another, after a round trip through pickle."""
    env = make()
    before = play_from(env, seed, script)
    if before[-1].is_last:
        return
    snapshot = env.snapshot()
    pickled = pickle.dumps(snapshot)
    turns = play(env, then)
    for where, other, state in (
        ("the same instance", env, snapshot),
        ("a new instance", make(), pickle.loads(pickled)),
        ("the same instance, a second time", env, snapshot),
    ):
        observation = other.restore(state)
        assert observation == before[-1].observation, (
            f"restore() in {where} shows {observation!r}, not {before[-1].observation!r}"
        )
        assert_same(turns, play(other, then), f"after restore() in {where} the course differs")


def oracle_solves_the_task(make: Factory, seed: int, script: Script, max_turns: int) -> None:
    """From the start, so every generated task can be solved; and it answers wherever `script` leads."""
    env = make()
    turn = reset(env, seed)
    turns = 0
    while not turn.is_last:
        assert turns < max_turns, f"the oracle has not solved seed {seed} after {max_turns} turns"
        turn = step(env, env.oracle())
        turns += 1
    assert turn.info.get("success") is True, (
        f"the oracle ended the task of seed {seed} after {turns} turns without info['success']"
    )
    if not play_from(env, seed, script)[-1].is_last:
        assert isinstance(env.oracle(), str), "oracle() did not return a reply"


def legal_actions_parse(make: Factory, seed: int, script: Script) -> None:
    """Each of them, at each moment, in an order that is the same each time."""
    env = make()
    if play_from(env, seed, script)[-1].is_last:
        return
    legal = list(env.legal_actions())
    assert legal, "legal_actions() is empty before the end of the episode"
    assert len(set(legal)) == len(legal), f"legal_actions() repeats itself: {legal}"
    assert legal == list(env.legal_actions()), "legal_actions() changes from call to call"
    for reply in legal:
        env = make()
        play_from(env, seed, script)
        assert not step(env, reply).was_invalid, f"the legal action {reply!r} does not parse"


def state_hash_tells_states_apart(
    make: Factory, seed: int, script: Script, *, observations_show_state: bool
) -> None:
    """The same state has the same hash, and a reply that does not parse leaves it.

    With `observations_show_state`, whatever looks different has another hash, and the other way round.
    """
    env, twin = make(), make()
    turns = [reset(env, seed)]
    reset(twin, seed)
    hashes = [env.state_hash()]
    for item in script:
        if turns[-1].is_last:
            break
        reply = choose_reply(env, item)
        turns.append(step(env, reply))
        step(twin, reply)
        hashes.append(env.state_hash())
        assert hashes[-1] == twin.state_hash(), "two instances in the same state have different hashes"
        if turns[-1].was_invalid and not turns[-1].is_last:
            assert hashes[-1] == hashes[-2], "a reply that did not parse changed the hash"
    if not observations_show_state:
        return
    shown = [(t.observation, h) for t, h in zip(turns, hashes, strict=True) if not t.was_invalid]
    for observation, state in shown:
        for other_observation, other_state in shown:
            assert (observation == other_observation) == (state == other_state), (
                f"hashes {state} and {other_state} do not tell apart what looks different (or do tell"
                f" apart what looks the same):\n{observation}\n\n{other_observation}"
            )


def abilities_come_in_pairs(make: Factory) -> None:
    declared = make().abilities() & {"snapshot", "restore"}
    assert len(declared) != 1, f"snapshot() and restore() go together; here is only {', '.join(declared)}()"


def gymnasium_accepts_it(make: Factory) -> None:
    """`gymnasium.utils.env_checker.check_env`, its warnings taken as errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(make(), skip_close_check=True)
    # It can build no second environment to render with; that takes a registered id.
    serious = [str(w.message) for w in caught if "alternative render modes" not in str(w.message)]
    assert not serious, f"check_env warns: {serious}"
