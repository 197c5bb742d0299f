"""Episodes can be repeated: everything follows from the seed."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np

from envsdk.adapters.global_random import seeded_globals
from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import Script, Turn, ask, assert_same, play_from, reset, same
from envsdk.testing.subject import Subject


@check("Two instances with one seed play the same course: the members of a group play the same task.")
def same_seed_same_course(subject: Subject, seed: int, script: Script) -> None:
    turns = play_from(subject.make(), seed, script)
    assert_same(turns, play_from(subject.make(), seed, script), "two instances with one seed differ")


@check("A second `reset` with the same seed plays the same course again: instances are reused.")
def same_seed_same_course_again(subject: Subject, seed: int, script: Script) -> None:
    env = subject.make()
    turns = play_from(env, seed, script)
    assert_same(turns, play_from(env, seed, script), "a second reset with the same seed differs")


@check("Episodes played before leave no trace in the next: an instance plays thousands.")
def history_leaves_no_trace(
    subject: Subject, history: list[tuple[int, Script]], seed: int, script: Script
) -> None:
    env = subject.make()
    for earlier_seed, earlier_script in history:
        play_from(env, earlier_seed, earlier_script)
    turns = play_from(env, seed, script)
    assert_same(play_from(subject.make(), seed, script), turns, "after other episodes the course differs")


@check("Different seeds give different tasks: a policy that sees one task learns it by heart.")
def other_seeds_give_other_tasks(subject: Subject) -> None:
    if not subject.options.seeds_give_tasks:
        raise NotApplicable("seeds_give_tasks is off")
    script = [0, 1, 2, 3]
    first = _signature(subject, 0, script)
    for seed in range(1, 40):
        if not same(first, _signature(subject, seed, script)):
            return
    raise AssertionError("40 seeds give one and the same course: is the seed used?")


def _signature(subject: Subject, seed: int, script: Script) -> list[Any]:
    """What an onlooker can tell of a task."""
    env = subject.make()
    first = reset(env, seed)
    seen: list[Any] = [first.observation]
    for ability in sorted(env.abilities() & {"oracle", "legal_actions", "state_hash"}):
        answer = ask(env, ability)
        seen.append(list(answer) if ability == "legal_actions" else answer)
    turns = play_from(env, seed, script)
    env.close()
    return [*seen, *((t.observation, t.reward, t.terminated, t.truncated) for t in turns[1:])]


@check("Resets without a seed go on from the one before: two instances stay together.")
def unseeded_resets_follow_the_seed(subject: Subject, seed: int, script: Script) -> None:
    courses: list[list[Turn]] = []
    for _ in range(2):
        env = subject.make()
        reset(env, seed)
        courses.append([*play_from(env, None, script), *play_from(env, None, script)])
    assert_same(courses[0], courses[1], "after reset(seed=None) two instances with one history differ")


def _under_global_seed(
    subject: Subject, seed: int, script: Script, global_seed: int
) -> tuple[list[Turn], Any]:
    """A course, and whether it left the global states, which are put back, as they were."""
    with seeded_globals(global_seed):
        before = random.getstate(), pickle.dumps(np.random.get_state())
        env = subject.make()
        turns = play_from(env, seed, script)
        if "oracle" in env.abilities() and not turns[-1].is_last:
            ask(env, "oracle")
        env.close()
        after = random.getstate(), pickle.dumps(np.random.get_state())
        return turns, [one == two for one, two in zip(before, after, strict=True)]


@check("The module `random` is neither drawn from nor seeded: others in the process use it too.")
def python_random_is_not_touched(subject: Subject, seed: int, script: Script) -> None:
    _, (is_same, _) = _under_global_seed(subject, seed, script, 0)
    assert is_same, "the global state of `random` changed"


@check("`numpy.random` is neither drawn from nor seeded: others in the process use it too.")
def numpy_random_is_not_touched(subject: Subject, seed: int, script: Script) -> None:
    _, (_, is_same) = _under_global_seed(subject, seed, script, 0)
    assert is_same, "the global state of `numpy.random` changed"


@check("No course depends on global random state: it would differ from worker to worker.")
def global_random_state_is_not_used(subject: Subject, seed: int, script: Script) -> None:
    turns, _ = _under_global_seed(subject, seed, script, 0)
    others, _ = _under_global_seed(subject, seed, script, 1)
    assert_same(turns, others, "the course depends on global random state")
